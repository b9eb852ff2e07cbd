"""Checks a tool's arguments against its JSON schema before they are sent, and says what is wrong with them.

The schema is untrusted: `validation` bounds the work. What cannot be checked is left to the server.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from jsonschema.exceptions import ValidationError  # type: ignore[import-untyped]  # has no types of its own

from kernai._util.close_matches import close_matches
from kernai.inputs.faults import dotted, shown
from kernai.inputs.schema import label_of, sample_of
from kernai.mcp.validation import errors_of, missing

MAX_FAULTS = 10
MAX_TEXT = 200
#: given arguments that an example shows
MAX_SHOWN = 50
#: where something is wrong, and what
Found = tuple[tuple[str | int, ...], str]
_KIND = ("type", "enum", "const", "items", "anyOf", "oneOf")


def faults(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[str]:
    """What is wrong with the arguments, one line each; none where all is well or the schema itself is broken."""
    return [f"{dotted(('arguments', *path))}: {message}" for path, message in found_faults(schema, arguments)]


def found_faults(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[Found]:
    """The same with the path of each."""
    try:
        unique: dict[Found, None] = {}
        for one in _found(schema, arguments):
            unique[one] = None
            if len(unique) == MAX_FAULTS:
                break
        return list(unique)
    except (Exception, RecursionError):  # noqa: BLE001 - the server may judge a schema that nobody can read
        return []


def _found(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[Found]:
    is_wrong = False
    for error in errors_of(schema, dict(arguments)):
        is_wrong = True
        yield from _explained(error)
    if is_wrong:  # an unknown argument may be the missing one under another name
        yield from _unknown((), arguments, schema.get("properties") or {})


def _explained(error: ValidationError) -> Iterator[Found]:
    place = tuple(error.absolute_path)
    instance, rule = error.instance, error.validator_value
    if error.validator == "required" and isinstance(instance, Mapping):
        for name in missing(error.schema, instance):
            kind = kind_of((error.schema.get("properties") or {}).get(name))
            yield (*place, name), f"required, but missing ({kind})"
    elif error.validator == "additionalProperties" and isinstance(instance, Mapping) and rule is False:
        yield from _unknown(place, instance, error.schema.get("properties") or {})
    elif error.validator == "type":
        expected = " or ".join(rule) if isinstance(rule, list) else rule
        yield place, f"expected {expected}, received {shown(instance)}"
    elif error.validator in ("anyOf", "oneOf") and error.context:
        deepest = max(error.context, key=lambda one: len(one.absolute_path))
        lacking = [" and ".join(missing(one.schema, instance)) for one in error.context if one.validator == "required"]
        if len(deepest.absolute_path) > len(error.absolute_path):
            yield from _explained(deepest)
        elif lacking:
            yield place, f"needs {' or '.join(dict.fromkeys(lacking))}"
        else:
            yield place, f"expected {kind_of(error.schema)}, received {shown(instance)}"
    elif error.validator in ("enum", "const"):
        allowed = rule if isinstance(rule, list) and error.validator == "enum" else [rule]
        yield place, f"must be one of {_short(', '.join(map(_json, allowed)))}, received {shown(instance)}"
    else:
        yield place, _short(error.message)


def _unknown(place: tuple[str | int, ...], given: Mapping[str, Any], known: Collection[str]) -> Iterator[Found]:
    for name in given:
        if name not in known:
            close = " or ".join(map(repr, close_matches(name, known, 3)))
            others = f"there are {_short(', '.join(known))}" if known else "it takes none"
            yield (*place, name), f"there is no such argument; {f'did you mean {close}?' if close else others}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _short(text: str, most: int = MAX_TEXT) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def kind_of(schema: Any) -> str:
    """The type in an argument's schema, in a few words; how its values are bounded is left out."""
    with suppress(Exception):  # a server may send anything in place of a schema
        if kind := label_of({key: schema[key] for key in _KIND if key in schema}):
            return _short(kind)
    return "any value"


def example(schema: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that fit: of those given the ones that exist and fit, and for each missing one that is required the
    value given under a similar name, or a placeholder. Lists and objects are kept: most of their content is right.
    """
    known = schema.get("properties")
    known = known if isinstance(known, Mapping) else {}
    definitions = {name: schema[name] for name in ("$schema", "$defs", "definitions") if name in schema}

    def fits(name: str, value: Any) -> bool:
        if not known or (name in known and isinstance(value, (list, dict))):
            return True
        return name in known and not faults({**definitions, "properties": {name: known[name]}}, {name: value})

    made = {name: value for name, value in islice(given.items(), MAX_SHOWN) if fits(name, value)}
    required = schema.get("required")
    required = required if isinstance(required, list) else []
    lacking = [name for name in required if isinstance(name, str) and name not in made]
    meant: dict[str, Any] = {}
    for one in islice((one for one in given if one not in known), MAX_FAULTS if lacking else 0):
        for name in close_matches(one, known):
            meant.setdefault(name, given[one])
    return made | {name: meant[name] if name in meant else _placeholder(known.get(name)) for name in lacking}


def _placeholder(schema: Any) -> Any:
    with suppress(Exception):  # likewise
        return sample_of(schema)
    return "..."
