"""Checks data against an untrusted JSON Schema, says what is wrong with the data, and describes what fits.

References are never fetched. Regular expressions, ``uniqueItems`` and the two ``unevaluated…`` keywords are never run,
because a single step of them can take quadratic or exponential time. All other steps are counted and limited: a schema
whose branches meet again at each level can make a kilobyte cost a year of work. They are counted instead of timed, so
that the same data always get the same verdict. What cannot be checked is left to the server.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import cache, lru_cache, reduce
from itertools import islice
from operator import getitem
from typing import Any

from jsonschema import Draft202012Validator, ValidationError, validators  # type: ignore[import-untyped]  # has no types
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # as above
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, specification_with

from kernai._util.api import close_matches
from kernai._util.redaction import printable
from kernai.inputs.schema import Schema, is_multiple, label_of, merged, sample_of, with_one_type
from kernai.inputs.table import change_form
from kernai.inputs.types import dotted, shown
from kernai.jsonio.json_data import copy_of

MAX_FAULTS = 10
MAX_LINE, MAX_TEXT = 160, 200
#: how many of the given arguments an example shows
MAX_SHOWN = 50
#: the path of a fault, and its text
Found = tuple[tuple[str | int, ...], str]
#: limit for the parts of a schema that is written out; one with very many keys or items in lists counts as several
MAX_PARTS, SIZE_OF_PART = 5000, 20
_MOST_INSIDE = 100  # references that lead to one another
#: keywords that a schema written out does not need. What a dynamic reference allows is only checked
_LEFT_OUT = ("$defs", "definitions", "$schema", "$id", "$dynamicRef", "$recursiveRef")
#: keywords about properties that a schema does not name
_OF_OTHERS = ("additionalProperties", "patternProperties")
_KIND = ("type", "format", "enum", "const", "items", "prefixItems", "anyOf", "oneOf")
#: limit for checking data, about half a second; a keyword is one step, plus one for each item that it looks at
MAX_STEPS = 50_000
#: limit for checking a schema itself, which is done once: a second or two, enough for 200 KB of schema
MAX_STEPS_FOR_SCHEMA = 400_000
#: limit for keywords inside one another, each of which takes up to five frames of the stack. If the stack overflowed
#: inside the library's Rust code, it would print a traceback and raise something that is no `Exception`.
MAX_NESTING = 160
#: characters of an error's text that count as a step
_TEXT_STEP = 50

_Keyword = Callable[[Any, Any, Any, Any], Iterator[Any] | None]
_NEVER_RUN = ("pattern", "patternProperties", "uniqueItems", "unevaluatedItems", "unevaluatedProperties")
#: the keywords under which data may seem to fit only because something is never run
_UNSURE = ("not", "if", "contains", "oneOf", "disallow")
#: the steps and the levels that are left, and how often something was not run
_left: ContextVar[list[int]] = ContextVar("left")


def faults(schema: Mapping[str, Any], data: Any, name: str = "arguments") -> list[str]:
    """What is wrong with the data, one line per fault. Empty if nothing is, or if that cannot be found out."""
    return [f"{dotted((name, *path))}: {message}" for path, message in found_faults(schema, data)]


def found_faults(schema: Mapping[str, Any], data: Any) -> list[Found]:
    """Like `faults`, but returns the path and the text of each fault."""
    found: dict[Found, None] = {}
    with suppress(Exception):  # a limit is reached, or the schema cannot be used: the server must check
        checker = _checker(json.dumps(schema))
        _left.set([MAX_STEPS, MAX_NESTING, 0])
        root: Mapping[str, Any] | None = None
        for error in checker.iter_errors(data) if checker is not None else ():
            # once, since there may be thousands of errors
            root = written_out_if_possible(schema) if root is None else root
            found |= dict.fromkeys(islice(_explained(error, root), MAX_FAULTS))
            if len(found) >= MAX_FAULTS:
                break
        else:
            # an unknown name may be that of a missing argument, unless the schema says something about such names
            if (
                root and isinstance(data, Mapping) and root.keys().isdisjoint(_OF_OTHERS)
                and (way := _in_one_way(root, data)).get("additionalProperties", False) is False
                and (known := inputs_of(way))
            ):
                found |= dict.fromkeys(islice(_unknown((), data, known), MAX_FAULTS))
        return list(found)[:MAX_FAULTS]
    return []


def _explained(error: ValidationError, root: Mapping[str, Any]) -> Iterator[Found]:
    place = tuple(error.absolute_path)
    instance, rule = error.instance, error.validator_value
    if error.validator == "required" and isinstance(instance, Mapping):
        known = properties_of(error.schema if place else root)
        for name in missing(error.schema, instance):
            yield (*place, name), f"required, but missing ({type_of(known.get(name))})"
    elif error.validator == "additionalProperties" and isinstance(instance, Mapping) and rule is False:
        yield from _unknown(place, instance, properties_of(error.schema))
    elif not error.context and error.validator not in ("type", "enum", "const"):
        yield place, one_line(error.message, MAX_TEXT)
    else:
        context = error.context or ()
        deepest = max(context, key=lambda one: len(one.absolute_path), default=error)
        lacking = [" and ".join(missing(one.schema, instance)) for one in context if one.validator == "required"]
        if len(deepest.absolute_path) > len(error.absolute_path):
            yield from _explained(deepest, root)
        elif lacking:
            yield place, f"needs {' or '.join(dict.fromkeys(lacking))}"
        else:
            yield place, f"expected {type_of(error.schema)}, received {shown(instance)}"


def _unknown(place: tuple[str | int, ...], given: Mapping[str, Any], known: Collection[str]) -> Iterator[Found]:
    for name in given:
        if name not in known:
            close = " or ".join(map(repr, close_matches(name, known, 3)))
            others = f"there are {one_line(', '.join(known), MAX_TEXT)}" if known else "it takes none"
            yield (*place, name), f"there is no such argument; {f'did you mean {close}?' if close else others}"


def one_line(text: str | None, most: int = MAX_LINE) -> str:
    """The text without line breaks and control characters, cut to `most` characters."""
    line = " ".join(printable(text or "").split())
    return line if len(line) <= most else line[: most - 1] + "…"


def type_of(schema: Any) -> str:
    """An argument's type in a few words, without the bounds of its values."""
    with suppress(Exception):  # a server may send anything as a schema
        if kind := label_of({key: schema[key] for key in _KIND if key in schema}):
            return one_line(kind, MAX_TEXT)
    return "any value"


def example(schema: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that fit the schema, based on those given.

    Numbers in quotes and the like are corrected, and unknown names become similar ones. What still does not fit is left
    out, at any depth, and what is required and missing gets a placeholder.
    """
    full = written_out_if_possible(schema)
    takes_any = not properties_of(full) and full.get("additionalProperties") is not False
    whole = {**full, "additionalProperties": takes_any}
    made = _completed(whole, copy_of(dict(islice(given.items(), MAX_SHOWN))))
    for mend in (change_form, _leave_out, _leave_out):  # twice: a list may be too short then
        # once for each place, and the last items of a list first, so that the others keep their numbers
        for path in sorted({path for path, _ in found_faults(schema, made)}, reverse=True):
            with suppress(LookupError, TypeError, ValueError):  # it cannot mend this fault
                mend(made, path)
    return dict(_completed(whole, made))


def _leave_out(data: Any, path: tuple[str | int, ...]) -> None:
    reduce(getitem, path[:-1], data).pop(path[-1])


def value_faults(schema: Any, value: Any) -> list[Found]:
    """Like `found_faults`, for a schema that describes the value itself."""
    return [(path[1:], message) for path, message in found_faults({"properties": {"": schema}}, {"": value})]


def _completed(schema: Any, value: Any) -> Any:
    """The value with similar names for unknown ones, and placeholders for all that it lacks, at any depth.

    Unknown names that are not allowed and have no similar one are left out.
    """
    if isinstance(schema, Mapping) and isinstance(value, list):
        return [_completed(schema.get("items"), one) for one in value]
    if not isinstance(schema, Mapping) or not isinstance(value, dict):
        return value
    schema = _in_one_way(schema, value)
    known = inputs_of(schema)
    made = {name: _completed(known.get(name), one) for name, one in value.items()}
    lacking = [name for name in _required_names(schema) if name not in made]
    is_closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    wanted = known if is_closed else lacking
    for one in islice((one for one in value if one not in known), MAX_FAULTS):
        for name in close_matches(one, known):
            if name in wanted and name not in made and all(path for path, _ in value_faults(known[name], made[one])):
                made[name] = made.pop(one)
    made |= {name: _placeholder(known.get(name)) for name in lacking if name not in made}
    return {name: one for name, one in made.items() if name in known or not is_closed}


def _placeholder(schema: Any) -> Any:
    with suppress(Exception):  # as in `type_of`
        return sample_of(schema)
    return "..."


# --------------------------------------------------------------------------------------------------------- references


def written_out_if_possible(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema written out, for a description; unchanged if that is not possible."""
    with suppress(Exception):  # a server may send anything as a schema
        return _Writer(schema).written(schema, ("#",))
    return schema


def written_out(schema: Mapping[str, Any]) -> Schema:
    """A schema with all references resolved, as one tree of limited size. Raises `ValueError` if there is none."""
    if _checker(json.dumps(schema)) is None:
        raise ValueError("it is not a valid JSON schema")
    try:
        return _Writer(schema, checks=True).written(schema, ("#",))
    except RecursionError:
        raise ValueError("it nests too deeply") from None


class _Writer:
    """Writes a schema out. A recursive reference is not followed: its value is checked, but not described."""

    def __init__(self, root: Mapping[str, Any], *, checks: bool = False) -> None:
        self._resolver = Registry().with_resource("", DRAFT202012.create_resource(root)).resolver()
        self._checks = checks
        self._found = cache(self._looked_up)
        self._left = MAX_PARTS

    def written(self, schema: Any, inside: tuple[str, ...]) -> Schema:
        if not isinstance(schema, Mapping):
            schema = {}  # True accepts any value, False none; the check reports that
        size = len(schema) + sum(len(one) for one in schema.values() if isinstance(one, list))
        self._left -= 1 + size // SIZE_OF_PART
        if self._left < 0:
            raise ValueError(f"with its references written out it has more than {MAX_PARTS} parts")
        if "$ref" in schema:
            return self._referred(schema, inside)
        made = {key: one for key, one in schema.items() if key not in _LEFT_OUT}
        if "properties" in made:
            made["properties"] = {name: self.written(one, inside) for name, one in made["properties"].items()}
        if isinstance(made.get("items"), list):  # as earlier drafts write a tuple
            made["prefixItems"] = made.pop("items")
        for key in ("items", "additionalProperties"):
            if isinstance(made.get(key), Mapping):
                made[key] = self.written(made[key], inside)
        if "prefixItems" in made:
            made["prefixItems"] = [self.written(one, inside) for one in made["prefixItems"]]
        for one in made.pop("allOf", ()):
            made = merged(made, self.written(one, inside))
        for key in ("anyOf", "oneOf"):
            if key in made:
                made["anyOf"] = [self.written(one, inside) for one in made.pop(key)]
        return with_one_type(made)

    def _referred(self, schema: Mapping[str, Any], inside: tuple[str, ...]) -> Schema:
        reference = str(schema["$ref"])
        siblings = self.written({key: one for key, one in schema.items() if key != "$ref"}, inside)
        found = self._found(reference)
        if len(inside) > _MOST_INSIDE:
            raise RecursionError
        if reference in inside:
            kind = found.get("type") if isinstance(found, Mapping) else None
            return {**siblings, **({"type": kind} if isinstance(kind, str) else {})}
        return merged(self.written(found, (*inside, reference)), siblings)

    def _looked_up(self, reference: str) -> Any:
        try:
            found = self._resolver.lookup(reference).contents
        except Unresolvable:
            raise ValueError(f"it refers to {reference!r}, which it does not contain") from None
        # it may be any part of the document, such as a default
        if self._checks and _checker(json.dumps(found)) is None:
            raise ValueError(f"it refers to {reference!r}, which is not a schema")
        return found


# ----------------------------------------------------------------------------------------------------------- checking


def missing(schema: Mapping[str, Any], instance: Mapping[str, Any]) -> list[str]:
    """The required properties that are missing and have no default. Many servers fill in the defaults themselves."""
    present = {*instance, *defaults_of(schema)}
    return [name for name in _required_names(schema) if name not in present]


def properties_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The properties that a schema describes; a server may send anything in their place."""
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def inputs_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The properties that a schema describes, and those that it only requires."""
    found = properties_of(schema)
    return {**found, **{name: {} for name in missing(schema, found)}}


def defaults_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of the properties that have one."""
    properties = properties_of(schema).items()
    return {name: one["default"] for name, one in properties if isinstance(one, Mapping) and "default" in one}


def _in_one_way(schema: Mapping[str, Any], given: Collection[str]) -> Schema:
    """Combines a schema with one of its ways for an object: the first whose needs are in `given`, or else the first."""
    listed = schema.get("anyOf")
    ways = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    ways = [one for one in ways if one.get("type", "object") == "object"]
    way = next((one for one in ways if {*_required_names(one)} <= {*given}), ways[0] if ways else {})
    return merged({**schema}, way)


def _required_names(schema: Mapping[str, Any]) -> list[str]:
    required = schema.get("required")
    return [name for name in required if isinstance(name, str)] if isinstance(required, list) else []


@lru_cache(256)
def _checker(written: str) -> Any:
    """The validator for a schema; None if that cannot be used or checked within limits. Cached, as checks are slow."""
    try:
        schema = json.loads(written)
        kind = _bounded(validators.validator_for(schema, default=Draft202012Validator))
        _left.set([MAX_STEPS_FOR_SCHEMA, MAX_NESTING, 0])
        if not _made(_bounded(validators.validator_for(kind.META_SCHEMA)), kind.META_SCHEMA).is_valid(schema):
            return None
        return _made(kind, schema)
    except Exception:  # noqa: BLE001 - the schema cannot be used
        return None


def _made(kind: Any, schema: Any) -> Any:
    """Makes a validator with an index of the schema's references; without it, each would search the whole schema."""
    specification = specification_with(kind.ID_OF(kind.META_SCHEMA))
    resource = specification.create_resource(schema)
    uri = resource.id() or ""
    return kind(schema, _resolver=REGISTRY.with_resource(uri, resource).crawl().resolver(uri))


@lru_cache(16)
def _bounded(kind: Any) -> Any:
    rules: dict[str, _Keyword] = dict(kind.VALIDATORS)
    rules |= {name: rule for name, rule in _OURS.items() if name in rules}
    made = validators.extend(kind, {name: _counted(rule, name) for name, rule in rules.items()})
    # the library's own `evolve` would switch to an unlimited validator at a "$schema" inside the schema
    made.evolve = lambda self, *, schema=None, _resolver=None: type(self)(
        self.schema if schema is None else schema, _resolver=_resolver or self._resolver
    )
    return made


def _counted(rule: _Keyword, name: str) -> _Keyword:
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        length = len(value) if isinstance(value, Collection) and not isinstance(value, str) else 0
        left = _left.get()
        left[1] -= 1
        not_run = left[2]
        try:
            _count(left, (1 + length) * (_nodes(instance) if name in ("enum", "const") else 1))
            for error in rule(validator, value, instance, schema) or ():
                _count(left, 1 + len(error.message) // _TEXT_STEP)
                # that nothing in a `oneOf` fits is sure in any case
                if name not in _UNSURE or left[2] == not_run or (name == "oneOf" and error.context):
                    yield error
        finally:
            left[1] += 1

    return counted


def _count(left: list[int], steps: int) -> None:
    left[0] -= steps
    if min(left) < 0:
        raise RuntimeError("a limit is reached, so the check is left to the server")


def _nodes(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_nodes, inner))


def _never_run(*_: Any) -> None:
    _left.get()[2] += 1


def _required(_: Any, __: Any, instance: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    """Replaces the library's `required`: reports all missing properties in one error."""
    if isinstance(instance, Mapping) and (names := missing(schema, instance)):
        yield ValidationError(f"{', '.join(names)}: required, but missing")


def _additional_properties(validator: Any, rule: Any, instance: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    """Replaces the library's `additionalProperties`: reports properties in the order given, not in that of a set.

    Does nothing if the schema has patterns for names, because regular expressions are never run.
    """
    if "patternProperties" in schema or not isinstance(instance, Mapping):
        return
    known = properties_of(schema)
    extra = [name for name in instance if name not in known]
    if rule is False and extra:
        yield ValidationError(f"{', '.join(extra)}: there is no such property")
    elif isinstance(rule, Mapping):
        for name in extra:
            yield from validator.descend(instance[name], rule, path=name)


def _multiple_of(validator: Any, of: Any, instance: Any, __: Any) -> Iterator[Any]:
    """Replaces the library's `multipleOf`, for which 19.99 is not a multiple of 0.01."""
    with suppress(OverflowError):  # integers beyond a float's range are left to the server
        if validator.is_type(instance, "number") and not is_multiple(instance, of):
            yield ValidationError(f"{instance!r} is not a multiple of {of!r}")


_OURS: dict[str, _Keyword] = {
    "additionalProperties": _additional_properties,
    "multipleOf": _multiple_of,
    "required": _required,
    **dict.fromkeys(_NEVER_RUN, _never_run),
}
