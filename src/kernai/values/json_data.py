"""Turning anything into JSON data, and JSON text into data, without surprises.

Out: what is not JSON is written as text, never left out; the result is strictly valid JSON in ASCII, with lone
surrogates and non-finite numbers in it too. In: strict JSON with bounds, so that no model output can crash a run.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, NoReturn

MAX_DEPTH = 200
_PLAIN = frozenset({str, bool, type(None)})
#: integers beyond are written in hexadecimal: for decimal digits Python has a limit
_LONG = 10**4000
# a string without its end runs to the end of the text: with a retry at each quote in it the search would be quadratic
_NESTING = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)


def jsonable(value: object) -> Any:
    """`value` as JSON data: objects with `to_dict` through it, dataclasses as objects, the rest as text."""
    return value if type(value) in _PLAIN else _jsonable(value, ())


def _jsonable(value: object, around: tuple[int, ...]) -> Any:
    """`around` are the ids of the containers that the value stands in: one inside itself is cut off."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Enum):
        return _jsonable(value.value, around)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(float(value))
    if isinstance(value, int):
        return int(value) if abs(value) < _LONG else hex(value)
    if len(around) > MAX_DEPTH + 50 or id(value) in around:
        return "…"
    inside = (*around, id(value))
    if isinstance(value, Mapping):
        return {_text(key): _jsonable(one, inside) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_jsonable(one, inside) for one in value]
    return _object(value, inside)


def _object(value: object, inside: tuple[int, ...]) -> Any:
    if isinstance(value, type):
        return _text(value)
    to_dict = getattr(value, "to_dict", None)
    if callable(to_dict):
        try:
            return _jsonable(to_dict(), inside)
        except Exception:  # noqa: BLE001 - a broken to_dict must not lose the rest of a recording
            return _text(value)
    if is_dataclass(value):
        return {one.name: _jsonable(getattr(value, one.name, None), inside) for one in fields(value)}
    return _text(value)


def dumps(value: object) -> str:
    """`value` as one line of ASCII JSON."""
    return json.dumps(jsonable(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def loads(text: str, *, unique_keys: bool = False) -> Any:
    """Strict JSON: no NaN, no trailing text. `ValueError` says what is wrong.

    Nesting beyond `MAX_DEPTH` levels and integers beyond Python's digit limit are errors too; so is a key that comes
    twice in one object, with `unique_keys`.
    """
    check_depth(text)
    hook = _unique if unique_keys else None
    return json.loads(text, parse_constant=_no_constant, object_pairs_hook=hook)


def check_depth(text: str) -> None:
    """`ValueError` when the text nests deeper than `MAX_DEPTH`; linear, and free for texts with few brackets."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for found in _NESTING.finditer(text):
        sign = found[0]
        if sign in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
        elif sign in "]}":
            depth -= 1


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key!r} is given twice")
            seen.add(key)
    return found


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a broken __str__ must not lose the rest of a recording
        return f"<{type(value).__name__}>"
