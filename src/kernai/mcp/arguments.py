"""Checking a tool's arguments against its JSON schema before they are sent, and saying what is wrong with them.

The schema is untrusted, and so are the names in it: `validation` bounds the work, `close_names` its own. What cannot be
checked is left to the server.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from heapq import nlargest
from itertools import islice
from typing import Any

from jsonschema.exceptions import ValidationError  # type: ignore[import-untyped]  # has no types of its own

from kernai.mcp.validation import errors_of, missing

MAX_FAULTS = 10
MAX_TEXT = 200
#: levels of an example for nested objects; a schema may refer to itself
MOST_NESTING = 3
#: given arguments that an example shows
MOST_SHOWN = 50
#: of similar names; one that is longer is no misspelling of anything
LONGEST_NAME = 200
MOST_NAMES = 5000
MOST_COMPARED = 20
LEAST_LIKENESS = 0.6
#: where something is wrong, and what
Found = tuple[tuple[str | int, ...], str]
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
_EXAMPLES: dict[str, Any] = {"string": "...", "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}


def faults(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[str]:
    """What is wrong with the arguments, one line each; none where all is well or the schema itself is broken."""
    return [f"{_place(path)}: {message}" for path, message in found_faults(schema, arguments)]


def found_faults(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[Found]:
    """The same with the path of each."""
    told: dict[Found, None] = {}
    try:
        for one in _found(schema, arguments):
            told[one] = None
            if len(told) == MAX_FAULTS:
                break
    except (Exception, RecursionError):  # noqa: BLE001 - a schema nobody can read is the server's own affair
        return []
    return list(told)


def _found(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[Found]:
    is_wrong = False
    for error in errors_of(schema, dict(arguments)):
        is_wrong = True
        yield from _told(error)
    if is_wrong:
        yield from _strange(schema, arguments)


def _told(error: ValidationError) -> Iterator[Found]:
    place = tuple(error.absolute_path)
    instance, rule = error.instance, error.validator_value
    if error.validator == "required" and isinstance(instance, Mapping):
        for name in missing(error.schema, instance):
            kind = kind_of((error.schema.get("properties") or {}).get(name))
            yield (*place, name), f"required, but missing ({kind})"
    elif error.validator == "additionalProperties" and isinstance(instance, Mapping) and rule is False:
        known = error.schema.get("properties") or {}
        for name in instance:
            if name not in known:
                yield (*place, name), f"there is no such argument{_meant(name, known)}"
    elif error.validator == "type":
        expected = " or ".join(rule) if isinstance(rule, list) else rule
        yield place, f"expected {expected}, received {_received(instance)}"
    elif error.validator in ("anyOf", "oneOf") and error.context:
        deepest = max(error.context, key=lambda one: len(one.absolute_path))
        lacking = [" and ".join(missing(one.schema, instance)) for one in error.context if one.validator == "required"]
        if len(deepest.absolute_path) > len(error.absolute_path):
            yield from _told(deepest)
        elif lacking:
            yield place, f"needs {' or '.join(dict.fromkeys(lacking))}"
        else:
            yield place, f"expected {kind_of(error.schema)}, received {_received(instance)}"
    elif error.validator in ("enum", "const"):
        allowed = rule if isinstance(rule, list) and error.validator == "enum" else [rule]
        yield place, f"must be one of {_short(', '.join(map(_json, allowed)))}, received {_received(instance)}"
    else:
        yield place, _short(error.message)


def _strange(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[Found]:
    """Where something is wrong, an argument that the tool does not know may be the missing one under another name."""
    known = schema.get("properties") or {}
    for name in arguments:
        if name not in known:
            yield (name,), f"there is no such argument{_meant(name, known)}"


def _place(path: Iterable[str | int]) -> str:
    place = "arguments"
    for step in path:
        place += f"[{step}]" if isinstance(step, int) else f".{step}"
    return place


def _meant(name: str, known: Collection[str]) -> str:
    close = close_names(name, known)
    if close:
        return f"; did you mean {' or '.join(map(repr, close))}?"
    return f"; there are {_short(', '.join(known))}" if known else "; it takes none"


def _received(value: Any) -> str:
    if value is None:
        return "null"
    return f"{_TYPES.get(type(value), type(value).__name__)} {_short(_json(value), 60)}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _short(text: str, most: int = MAX_TEXT) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def close_names(name: str, known: Collection[str]) -> list[str]:
    """At most three of the known names that `name` may be meant as; the likeliest first.

    Names are compared in full where a bound on their likeness, which costs much less, is among the highest.
    """
    wanted = _plain(name)
    plain = {_plain(one): one for one in known}
    if wanted in plain:
        return [plain[wanted]]
    if len(wanted) > LONGEST_NAME:
        return []
    matcher = difflib.SequenceMatcher(b=wanted)
    bounds: list[tuple[float, str]] = []
    for other in islice(plain, MOST_NAMES):
        matcher.set_seq1(other)
        if matcher.real_quick_ratio() >= LEAST_LIKENESS and (bound := matcher.quick_ratio()) >= LEAST_LIKENESS:
            bounds.append((bound, other))
    scored: list[tuple[float, str]] = []
    for _, other in nlargest(MOST_COMPARED, bounds):
        matcher.set_seq1(other)
        if (likeness := matcher.ratio()) >= LEAST_LIKENESS:
            scored.append((likeness, other))
    return [plain[other] for _, other in nlargest(3, scored)]


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def kind_of(schema: Any) -> str:
    """The type in an argument's schema, in a word or two."""
    if not isinstance(schema, Mapping):
        return "any"
    if isinstance(schema.get("enum"), list):
        return "one of " + _short(", ".join(map(_json, schema["enum"])), 100)
    kind = schema.get("type")
    if isinstance(kind, list) and (kinds := [one for one in kind if isinstance(one, str) and one]):
        return " or ".join(kinds)
    if kind == "array":
        return f"array of {kind_of(schema.get('items'))}"
    if isinstance(kind, str) and kind:
        return kind
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list) and options:
        return " or ".join(dict.fromkeys(map(kind_of, options)))
    return "any"


def example(schema: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of the right shape: those given that exist and fit, and for each required one that is missing the one
    that was given under a similar name, or a placeholder. Lists and objects are kept: most of what is in them is right.
    """
    known = schema.get("properties")
    known = known if isinstance(known, Mapping) else {}
    required = schema.get("required")
    beside = {name: schema[name] for name in ("$schema", "$defs", "definitions") if name in schema}

    def fits(name: str, value: Any) -> bool:
        if not known or (name in known and isinstance(value, (list, dict))):
            return True
        return name in known and not faults({**beside, "properties": {name: known[name]}}, {name: value})

    made = {name: value for name, value in islice(given.items(), MOST_SHOWN) if fits(name, value)}
    required = required if isinstance(required, list) else []
    lacking = [name for name in required if isinstance(name, str) and name not in made]
    meant: dict[str, Any] = {}
    for one in islice((one for one in given if one not in known), MAX_FAULTS if lacking else 0):
        for name in close_names(one, known)[:1]:
            meant.setdefault(name, given[one])
    return made | {name: meant[name] if name in meant else _placeholder(known.get(name)) for name in lacking}


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
