"""Reading the parameters out of a command block's text.

The text comes from a model: whatever it is, reading it never fails. What cannot be taken as it is says so when the
parameters are bound to the skill's inputs, so that the model hears of it with all other faults.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from kernai.inputs.faults import NO_VALUE, Walk, quoted
from kernai.inputs.types import InputType
from kernai.values.json_data import check_depth

_JSON_SPACE = " \t\r\n"
# A string that does not end is taken to the end of the text, so that it is read only once.
_CONSTANT = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|(-?Infinity|NaN)', re.DOTALL)


class TextParams(dict[str, object]):
    """Parameters that were text, not a JSON object.

    `hint` is what a fault should add where the text seems meant as JSON.
    """

    hint: str = ""


class UnreadableParams(dict[str, object]):
    """The text under ``"input"``: a JSON object that cannot be used without losing something; `reason` says why."""

    reason: str = ""


class _RefusedError(Exception):
    """JSON that is valid and still of no use."""


def read_params(content: str, only: tuple[str, InputType] | None) -> dict[str, object]:
    """The parameters in `content`. `only` is the skill's input where it has just one.

    A JSON object is its keys. Other text is the only input, as a number or boolean where that is its type and the text
    is exactly such a literal; with several inputs, or none, it stands under ``"input"``.
    """
    hint = ""
    if content.lstrip(_JSON_SPACE)[:1] == "{":
        try:
            found = _object(content)
        except _RefusedError as refused:
            unreadable = UnreadableParams(input=content)
            unreadable.reason = str(refused)
            return unreadable
        if isinstance(found, dict):
            return found
        hint = f"the text looks like JSON, but is not valid JSON: {found}"
    params = TextParams(input=content)
    if only is not None:
        value = only[1].from_text(content)
        params = TextParams({only[0]: content if value is NO_VALUE else value})
    params.hint = hint
    return params


def value_from_text(text: str, kind: InputType, walk: Walk) -> Any:
    """A value of `kind` that is given as text, as settings are: a literal, text, or JSON. Faults go to `walk`."""
    value = kind.from_text(text)
    if value is not NO_VALUE:
        return value
    if str not in kind.natural:
        try:
            return kind.convert(_DECODER.decode(text), walk)
        except (ValueError, RecursionError, _RefusedError):
            pass
    return kind.convert(text, walk)


def _object(text: str) -> dict[str, object] | str:
    """The object, or what is wrong with the JSON; `_RefusedError` for valid JSON that cannot be used."""
    try:
        check_depth(text)
    except ValueError as error:
        raise _RefusedError(str(error)) from error
    try:
        found: dict[str, object] = _QUICK_DECODER.decode(text)
        # a colon for each key and no more: it is flat, and no key came twice
        return found if len(found) == text.count(":") else _DECODER.decode(text)
    except json.JSONDecodeError as error:
        return _at(text, error.msg, error.pos)
    except (_RefusedError, ValueError) as error:
        wrong = _syntax_error(text)
        if wrong:
            return wrong
        if isinstance(error, _RefusedError):
            raise
        raise _RefusedError(f"it holds an integer with too many digits ({error})") from error


def _syntax_error(text: str) -> str:
    """What is wrong with the JSON, numbers and keys aside; empty if nothing is."""
    try:
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        return _at(text, error.msg, error.pos)
    except ValueError as error:
        found = next((match for match in _CONSTANT.finditer(text) if match[1]), None)
        return _at(text, str(error), found.start() if found else 0)
    return ""


def _at(text: str, message: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    return f"{message} at line {line}, column {column} (character {position})"


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is no JSON value")


def _finite(text: str) -> float:
    number = float(text)
    if math.isfinite(number):
        return number
    raise _RefusedError(f"the number {text[:40]} is out of range")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _RefusedError(f"the key {quoted(key)} is given twice in one object; give each key once")
            seen.add(key)
    return made


_QUICK_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)
_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant, object_pairs_hook=_unique)
