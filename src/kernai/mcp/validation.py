"""JSON Schema validation with a schema that nobody vouches for.

References are never fetched. Regular expressions and the two ``unevaluated…`` keywords are never run, because a single
step of either can take exponential time. All other work is counted: a schema can branch at each level and meet again at
the next, so that a kilobyte of it is a year of work. Counted and not timed, so that equal arguments get equal verdicts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # has no types of its own
from jsonschema.exceptions import ValidationError  # type: ignore[import-untyped]  # as above
from jsonschema.validators import extend, validator_for  # type: ignore[import-untyped]  # as above
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # as above
from referencing.jsonschema import specification_with

#: a keyword is one step, and one more for each thing it looks at: about half a second at most
MAX_STEPS = 50_000
#: for the schema itself, which is looked at once: a second or two at most, for 200 KB of schema
MAX_STEPS_FOR_SCHEMA = 400_000
#: characters of an error's text that count as a step
_TEXT_STEP = 50

_Keyword = Callable[[Any, Any, Any, Any], Iterator[Any] | None]
_steps_left: ContextVar[list[int]] = ContextVar("steps_left")


class TooMuchWorkError(Exception):
    """The budget is used up, so whoever wrote the schema may judge."""


def errors_of(schema: Mapping[str, Any], instance: Any) -> Iterator[ValidationError]:
    """The errors, as they are found; none for a schema that is broken or too large.

    Raises `TooMuchWorkError`, and anything that the library raises about a strange schema that has passed its check.
    """
    checker = _checker(json.dumps(schema))
    if checker is not None:
        _steps_left.set([MAX_STEPS])
        yield from checker.iter_errors(instance)


def is_schema(schema: Mapping[str, Any]) -> bool:
    """Whether it is a JSON schema, as far as bounded work can find out."""
    return _checker(json.dumps(schema)) is not None


def first_error(schema: Mapping[str, Any], instance: Any) -> str | None:
    """What is wrong first, in a line; None where nothing is, or where that cannot be said."""
    try:
        error = next(errors_of(schema, instance), None)
    except (Exception, RecursionError):  # noqa: BLE001 - nothing can be said about such a schema
        return None
    return None if error is None else " ".join(error.message.split())


def missing(schema: Mapping[str, Any], instance: Mapping[str, Any]) -> list[str]:
    """The missing properties that are required and have no default: many servers fill a default in themselves."""
    known, required = schema.get("properties"), schema.get("required")
    known = known if isinstance(known, Mapping) else {}
    has_default = {name for name, one in known.items() if isinstance(one, Mapping) and "default" in one}
    names = required if isinstance(required, list) else []
    return [name for name in names if isinstance(name, str) and name not in instance and name not in has_default]


@lru_cache(256)
def _checker(written: str) -> Any:
    """What checks against a schema, or None. Kept, because checking the schema takes longer than checking arguments."""
    try:
        schema = json.loads(written)
        kind = _bounded(validator_for(schema, default=Draft202012Validator))
        _steps_left.set([MAX_STEPS_FOR_SCHEMA])
        if not _made(_bounded(validator_for(kind.META_SCHEMA)), kind.META_SCHEMA).is_valid(schema):
            return None
        return _made(kind, schema)
    except (Exception, RecursionError):  # noqa: BLE001 - nothing can be checked against such a schema
        return None


def _made(kind: Any, schema: Any) -> Any:
    """A validator that has resolved its references; otherwise each would search the whole schema again."""
    specification = specification_with(kind.ID_OF(kind.META_SCHEMA))
    resource = specification.create_resource(schema)
    uri = resource.id() or ""
    return kind(schema, _resolver=REGISTRY.with_resource(uri, resource).crawl().resolver(uri))


@lru_cache(16)
def _bounded(kind: Any) -> Any:
    rules: dict[str, _Keyword] = dict(kind.VALIDATORS)
    rules |= {name: rule for name, rule in _OURS.items() if name in rules}
    made = extend(kind, {name: _counted(rule, name in ("enum", "const")) for name, rule in rules.items()})
    # the library's own would follow a "$schema" inside the schema to a validator without bounds
    made.evolve = lambda self, *, schema=None, _resolver=None: type(self)(
        self.schema if schema is None else schema, _resolver=_resolver or self._resolver
    )
    return made


def _counted(rule: _Keyword, compares: bool) -> _Keyword:
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        length = len(value) if isinstance(value, Collection) and not isinstance(value, str) else 0
        _count((1 + length) * (_nodes(instance) if compares else 1))
        for error in rule(validator, value, instance, schema) or ():
            _count(1 + len(error.message) // _TEXT_STEP)
            yield error

    return counted


def _count(steps: int) -> None:
    left = _steps_left.get()
    left[0] -= steps
    if left[0] < 0:
        raise TooMuchWorkError


def _nodes(value: Any) -> int:
    """How many values there are in a value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_nodes, inner))


def _ignored(*_: Any) -> Iterator[Any]:
    yield from ()


def _required(_: Any, __: Any, instance: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    """One error for everything that is missing."""
    if isinstance(instance, Mapping) and (names := missing(schema, instance)):
        yield ValidationError(f"{', '.join(names)}: required, but missing")


def _additional_properties(validator: Any, rule: Any, instance: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    """In the order in which they were given, not in that of a set. Without patterns, their keyword means nothing."""
    if "patternProperties" in schema or not isinstance(instance, Mapping):
        return
    extra = [name for name in instance if name not in schema.get("properties", {})]
    if rule is False and extra:
        yield ValidationError(f"{', '.join(extra)}: there is no such property")
    elif isinstance(rule, Mapping):
        for name in extra:
            yield from validator.descend(instance[name], rule, path=name)


def _unique_items(_: Any, rule: Any, instance: Any, __: Any) -> Iterator[Any]:
    """The library's own takes quadratic time."""
    if rule is True and isinstance(instance, list) and len(set(map(_hashable, instance))) < len(instance):
        yield ValidationError("holds the same item twice")


def _hashable(value: Any) -> Any:
    """Equal for values that are equal as JSON: 1 is 1.0, but not true."""
    if isinstance(value, dict):
        return dict, frozenset((key, _hashable(one)) for key, one in value.items())
    if isinstance(value, list):
        return list, tuple(map(_hashable, value))
    return type(value) is bool, value


_OURS: dict[str, _Keyword] = {
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
    "required": _required,
    **dict.fromkeys(("pattern", "patternProperties", "unevaluatedProperties", "unevaluatedItems"), _ignored),
}
