"""Checking a tool's arguments against its JSON schema before they are sent, and saying what is wrong with them.

The schema is untrusted. References in it are never fetched, and its regular expressions are never run: one made for
that purpose could hold the whole process up. What cannot be checked is left to the server.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # has no types of its own
from jsonschema.exceptions import ValidationError  # type: ignore[import-untyped]  # as above
from jsonschema.validators import extend, validator_for  # type: ignore[import-untyped]  # as above
from referencing import Registry

MAX_FAULTS = 10
MAX_TEXT = 200
#: levels of an example for nested objects; a schema may refer to itself
MOST_NESTING = 3
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
_EXAMPLES: dict[str, Any] = {"string": "...", "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}


def faults(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[str]:
    """What is wrong with the arguments, one line each; none where all is well or the schema itself is broken."""
    try:
        found = list(_checker(json.dumps(schema)).iter_errors(dict(arguments)))
        told = [line for error in found for line in _told(error)]
        told += _strange(schema, arguments) if told else []
    except (Exception, RecursionError):  # noqa: BLE001 - a schema nobody can read is the server's own affair
        return []
    return list(dict.fromkeys(told))[:MAX_FAULTS]


@lru_cache(256)
def _checker(written: str) -> Any:
    """What checks against a schema; checking the schema itself takes much longer than checking arguments."""
    schema = json.loads(written)
    kind = validator_for(schema, default=Draft202012Validator)
    kind.check_schema(schema)
    return _without_patterns(kind)(schema, registry=Registry())


def _ignored(*_: Any) -> Iterator[Any]:
    yield from ()


def _without_patterns(validator: Any) -> Any:
    additional = validator.VALIDATORS.get("additionalProperties", _ignored)

    def additional_properties(self: Any, rule: Any, instance: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
        if "patternProperties" not in schema:
            yield from additional(self, rule, instance, schema) or ()

    rules = dict.fromkeys(("pattern", "patternProperties", "unevaluatedProperties"), _ignored)
    return extend(validator, {**rules, "additionalProperties": additional_properties})


def _told(error: ValidationError) -> Iterator[str]:
    place = _place(error.absolute_path)
    instance, rule = error.instance, error.validator_value
    if error.validator == "required" and isinstance(instance, Mapping):
        for name in rule:
            if name not in instance:
                kind = kind_of((error.schema.get("properties") or {}).get(name))
                yield f"{_inside(place, name)}: required, but missing ({kind})"
    elif error.validator == "additionalProperties" and isinstance(instance, Mapping) and rule is False:
        known = list(error.schema.get("properties") or {})
        for name in instance:
            if name not in known:
                yield f"{_inside(place, name)}: there is no such argument{_meant(name, known)}"
    elif error.validator == "type":
        expected = " or ".join(rule) if isinstance(rule, list) else rule
        yield f"{place}: expected {expected}, received {_received(instance)}"
    elif error.validator in ("anyOf", "oneOf") and error.context:
        deepest = max(error.context, key=lambda one: len(one.absolute_path))
        if len(deepest.absolute_path) > len(error.absolute_path):
            yield from _told(deepest)
        else:
            yield f"{place}: expected {kind_of(error.schema)}, received {_received(instance)}"
    elif error.validator in ("enum", "const"):
        allowed = rule if isinstance(rule, list) and error.validator == "enum" else [rule]
        yield f"{place}: must be one of {_short(', '.join(map(_json, allowed)))}, received {_received(instance)}"
    else:
        yield f"{place}: {_short(error.message)}"


def _strange(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[str]:
    """Where something is wrong, an argument that the tool does not know may be the missing one under another name."""
    known = list(schema.get("properties") or {})
    for name in arguments:
        if name not in known:
            yield f"{_inside('arguments', name)}: there is no such argument{_meant(name, known)}"


def _place(path: Any) -> str:
    place = "arguments"
    for step in path:
        place += f"[{step}]" if isinstance(step, int) else f".{step}"
    return place


def _inside(place: str, name: str) -> str:
    return f"{place}.{name}"


def _meant(name: str, known: list[str]) -> str:
    close = close_names(name, known)
    if close:
        return f"; did you mean {' or '.join(map(repr, close))}?"
    return f"; there are {', '.join(known)}" if known else "; it takes none"


def _received(value: Any) -> str:
    if value is None:
        return "null"
    return f"{_TYPES.get(type(value), type(value).__name__)} {_short(_json(value), 60)}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _short(text: str, most: int = MAX_TEXT) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def close_names(name: str, known: list[str]) -> list[str]:
    """At most three of the known names that `name` may be meant as; the likeliest first."""
    plain = {one.lower().replace("-", "_"): one for one in known}
    same = plain.get(name.lower().replace("-", "_"))
    if same is not None:
        return [same]
    return [plain[found] for found in difflib.get_close_matches(name.lower().replace("-", "_"), plain, 3, 0.6)]


def kind_of(schema: Any) -> str:
    """The type in an argument's schema, in a word or two."""
    if not isinstance(schema, Mapping):
        return "any"
    if isinstance(schema.get("enum"), list):
        return "one of " + _short(", ".join(map(_json, schema["enum"])), 100)
    kind = schema.get("type")
    if isinstance(kind, list) and kind:
        return " or ".join(map(str, kind))
    if kind == "array":
        return f"array of {kind_of(schema.get('items'))}"
    if isinstance(kind, str) and kind:
        return kind
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list) and options:
        return " or ".join(dict.fromkeys(map(kind_of, options)))
    return "any"


def example(schema: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of the right shape: those given that exist, and for each required one that is missing the one that
    was given under a similar name, or a placeholder.
    """
    known = schema.get("properties")
    known = known if isinstance(known, Mapping) else {}
    required = schema.get("required")
    made = {name: value for name, value in given.items() if name in known or not known}
    for name in required if isinstance(required, list) else []:
        if isinstance(name, str) and name not in made:
            meant = [one for one in given if one not in known and close_names(one, list(known))[:1] == [name]]
            made[name] = given[meant[0]] if meant else _placeholder(known.get(name))
    return made


def _placeholder(schema: Any, depth: int = 0) -> Any:
    if not isinstance(schema, Mapping) or depth > MOST_NESTING:
        return "..."
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return schema["enum"][0]
    if "default" in schema:
        return schema["default"]
    known, required = schema.get("properties"), schema.get("required")
    if isinstance(known, Mapping) and isinstance(required, list):
        return {name: _placeholder(known.get(name), depth + 1) for name in required if isinstance(name, str)}
    kind = schema.get("type")
    return _EXAMPLES.get(kind[0] if isinstance(kind, list) and kind else kind if isinstance(kind, str) else "", "...")
