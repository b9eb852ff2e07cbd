"""Reading the parameters out of a command block's text.

The text comes from a model: whatever it is, reading it never fails. What cannot be taken as it is says so when the
parameters are bound to the skill's inputs, so that the model hears of it with all other faults.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from contextlib import suppress
from typing import Any, Literal

from kernai.blocks.grammar import ASCII_SPACE
from kernai.inputs.faults import NO_VALUE, Validation
from kernai.inputs.types import InputType
from kernai.jsonio.json_data import JSON_SPACE, JsonRefusedError, JsonSyntaxError, loads

#: what is done about a call's mistakes: nothing; JSON that loses nothing by it is mended; numbers, booleans and values
#: that are given in another form than JSON's are taken too
Repair = bool | Literal["json"]


class TextParams(dict[str, object]):
    """Parameters that were text, not a JSON object.

    `hint` is what a fault should add where the text seems meant as JSON. `refused` is why a JSON object was not taken,
    where something in it would be lost, or it is broken; it stands under ``"input"`` then.
    """

    hint: str = ""
    refused: str = ""


class RepairedParams(dict[str, object]):
    """Parameters out of JSON with mistakes; `repairs` says which, `hint` where the first one stands."""

    repairs: Sequence[str] = ()
    hint: str = ""


class WholeParams(dict[str, object]):
    """The one input, given as JSON that does not name it."""

    repairs: Sequence[str] = ()


def read_params(
    content: str, only: tuple[str, InputType] | None, names: Container[str], *, all_optional: bool, repair: Repair
) -> dict[str, object]:
    """The parameters in `content`. `only` is the skill's input where it has just one, `names` are those of all;
    `all_optional` says that it has inputs, and that each has a default.

    A JSON object is its keys; with `repair` also one with mistakes of which nothing is lost, and an object or a list
    may be the only input itself where that is of such a type. Other text is the only input, without blank lines around
    it, and as a number or boolean where that is its type and the text is exactly such a literal; with several inputs,
    or none, it stands under ``"input"``. No text at all, where all inputs have a default, is a call without parameters.
    Where the only input is a text, an object that does not begin with its name is that text: it may be code.
    """
    if all_optional and not content.strip(ASCII_SPACE):
        return {}
    found: Any = NO_VALUE
    repairs: Sequence[str] = ()
    hint = ""
    if content.lstrip(JSON_SPACE)[:1] in _JSON_BEGINS or (repair and content.lstrip(ASCII_SPACE)[:3] == "```"):
        try:
            found = loads(content, unique_keys=True)
        except JsonRefusedError as error:
            return _refused(content, str(error))
        except JsonSyntaxError:
            named = "" if only is None else _begins_with(content, names)
            is_text = only is not None and str in only[1].natural
            try:
                found, hint, repairs = read_json(content, repair=bool(repair and (named or not is_text)))
            except JsonRefusedError as refused:
                return _refused(content, str(refused))
            except JsonSyntaxError as broken:
                if named == "quoted":
                    return _refused(content, f"it is not valid JSON: {broken}")
                if content.lstrip(JSON_SPACE)[:1] == "{":
                    hint = f"the text looks like JSON, but is not valid JSON: {broken}"
            if only is not None and is_text and named == "bare" and not _is_call(found, only[0]):
                found, repairs = NO_VALUE, ()
    if only is not None and repair is True and _is_whole(found, *only, all_optional=all_optional):
        whole = WholeParams({only[0]: found})
        whole.repairs = repairs
        return whole
    if isinstance(found, dict):
        return found if not repairs else _repaired(found, repairs, hint)
    params = TextParams(input=content)
    if only is not None:
        text = without_blank_lines(content)
        value = only[1].from_text(text)
        params = TextParams({only[0]: text if value is NO_VALUE else value})
    params.hint = hint
    return params


_JSON_BEGINS = ("{", "[")
_FIRST_KEY = re.compile(
    r"""\s*+(?:```\w*+\s*+)?\{\s*+(?:"((?:[^"\\]|\\.)*+)"|'([^'\\]*+)'|([^\W\d][\w$-]*+))\s*+:"""
)


def _begins_with(content: str, names: Container[str]) -> Literal["quoted", "bare", ""]:
    """How the text names an input, if it begins like a JSON object whose first key is one. In quotes it is no text."""
    first = _FIRST_KEY.match(content)
    if first is None or first[first.lastindex or 0] not in names:
        return ""
    return "bare" if first[3] is not None else "quoted"


def _is_call(found: object, name: str) -> bool:
    """Whether an object whose key is bare can only be meant as a call: `{code: 1}` for a text `code` is code."""
    return isinstance(found, dict) and [*found] == [name] and isinstance(found[name], str)


def read_json(content: str, *, repair: bool) -> tuple[Any, str, Sequence[str]]:
    """The value that the text is, what is wrong with it as JSON, and the repairs that it took."""
    try:
        return loads(content, unique_keys=True), "", ()
    except JsonSyntaxError as error:
        if not repair:
            raise
        from kernai.jsonio.tolerant_json import read_tolerantly  # most calls are JSON

        read = read_tolerantly(content)
        return read.value, f"the text is not valid JSON: {error}", read.repairs


def _is_whole(found: object, name: str, kind: InputType, *, all_optional: bool) -> bool:
    """Whether a JSON value that does not name the only input is that input itself."""
    if not isinstance(found, (dict, list)) or not kind.takes_whole(found):
        return False
    return isinstance(found, list) or (name not in found and not (all_optional and not found))


def _refused(content: str, why: str) -> TextParams:
    params = TextParams(input=content)
    params.refused = why
    return params


def _repaired(found: dict[str, object], repairs: Sequence[str], hint: str) -> RepairedParams:
    params = RepairedParams(found)
    params.repairs, params.hint = repairs, hint
    return params


def without_blank_lines(text: str) -> str:
    """The text without blank lines at both ends; where one line is left, without the spaces around it.

    Models put a line break behind an opening tag. Indentation is kept, for the text may be code.
    """
    inside = text.strip(ASCII_SPACE)
    if "\n" not in inside:
        return inside
    begin = text.rfind("\n", 0, len(text) - len(text.lstrip(ASCII_SPACE))) + 1
    end = text.find("\n", len(text.rstrip(ASCII_SPACE)))
    return text[begin:] if end < 0 else text[begin:end].removesuffix("\r")


def setting_value(given: object, kind: InputType, validation: Validation) -> Any:
    """A value of `kind` out of one, or out of text: a literal, text, or JSON. Faults go to `validation`."""
    if isinstance(given, str):
        value = kind.from_text(given)
        if value is not NO_VALUE:
            return value
        if str not in kind.natural:
            with suppress(ValueError):
                given = loads(given, unique_keys=True)
    return kind.convert(given, validation)
