"""Reading the parameters out of a command block's text.

The text comes from a model, so reading it never fails. What cannot be used is reported when the parameters are bound to
the skill's inputs, together with all other faults.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from kernai.blocks.grammar import ASCII_SPACE
from kernai.inputs.containers import Field
from kernai.inputs.faults import NO_VALUE, Validation
from kernai.inputs.schema import takes_whole
from kernai.inputs.types import InputType
from kernai.jsonio.json_data import JSON_SPACE, JsonRefusedError, JsonSyntaxError, loads

Repair = bool | Literal["json"]
"""Which mistakes of a call are repaired: none; those in its JSON that lose nothing; with True also numbers and booleans
in quotes, and values without the name of their input."""


class ReadParams(dict[str, object]):
    """Parameters that were not simply a JSON object.

    `is_text`: they were other text. `refused` says why a JSON object was not used: it is broken, or something in it
    would be lost; the text is under ``"input"`` then. `repairs` lists the mistakes of JSON that was used nevertheless.
    `hint` is added to faults, and says what is wrong with the text as JSON.
    """

    def __init__(
        self, values: Mapping[str, object], *, is_text: bool = True, refused: str = "", repairs: Sequence[str] = (),
        hint: str = "",
    ) -> None:
        super().__init__(values)
        self.is_text, self.refused, self.repairs, self.hint = is_text, refused, repairs, hint


def read_params(content: str, inputs: Sequence[Field], repair: Repair) -> dict[str, object]:
    """The parameters in `content` for a skill with these inputs.

    A JSON object is its keys; with `repair` also one whose mistakes lose nothing, and an object or a list may be the
    only input itself if that has such a type. Other text is the only input, without blank lines around it, and a number
    or boolean if that is its type and the text is exactly such a literal; with several inputs, or none, it is under
    ``"input"``. No text at all, if all inputs have a default, is a call without parameters. If the only input is a
    text, an object that does not begin with its name is that text: it may be code.
    """
    only = inputs[0] if len(inputs) == 1 else None
    all_optional = bool(inputs) and not any(one.required for one in inputs)
    if all_optional and not content.strip(ASCII_SPACE):
        return {}
    found: Any = NO_VALUE
    hint, repairs = "", ()  # type: str, Sequence[str]
    if content.lstrip(JSON_SPACE)[:1] in _JSON_BEGINS or (repair and content.lstrip(ASCII_SPACE)[:3] == "```"):
        named = "" if only is None else _begins_with(content, only.name)
        is_text = only is not None and str in only.type.natural
        try:
            found, hint, repairs = read_json(content, repair=bool(repair and (named or not is_text)))
        except JsonRefusedError as error:
            return ReadParams({"input": content}, refused=str(error))
        except JsonSyntaxError as error:
            if named == "quoted":
                return ReadParams({"input": content}, refused=f"it is not valid JSON: {error}")
            if content.lstrip(JSON_SPACE)[:1] == "{":
                hint = f"the text looks like JSON, but is not valid JSON: {error}"
        if only is not None and is_text and hint and named == "bare" and not _is_call(found, only.name):
            found = NO_VALUE
    if only is not None and repair is True and _is_whole(found, only):
        return ReadParams({only.name: found}, is_text=False, repairs=repairs)
    if isinstance(found, dict):
        return ReadParams(found, is_text=False, repairs=repairs, hint=hint) if repairs else found
    if only is None:
        return ReadParams({"input": content}, hint=hint)
    text = without_blank_lines(content)
    value = only.type.from_text(text)
    return ReadParams({only.name: text if value is NO_VALUE else value}, hint=hint)


_JSON_BEGINS = ("{", "[")
_FIRST_KEY = (  # compiled when a call is not JSON
    r"""\s*+(?:```\w*+\s*+)?\{\s*+(?:"((?:[^"\\]|\\.)*+)"|'([^'\\]*+)'|([^\W\d][\w$-]*+))\s*+:"""
)


def _begins_with(content: str, name: str) -> Literal["quoted", "bare", ""]:
    """How the first key of a JSON object is written, if the text begins like one and the key is `name`."""
    first = re.match(_FIRST_KEY, content)
    if first is None or first[first.lastindex or 0] != name:
        return ""
    return "bare" if first[3] is not None else "quoted"


def _is_call(found: object, name: str) -> bool:
    """Whether an object with a bare key can only be a call: `{code: 1}` is code if the input `code` is a text."""
    return isinstance(found, dict) and [*found] == [name] and isinstance(found[name], str)


def read_json(content: str, *, repair: bool) -> tuple[Any, str, Sequence[str]]:
    """The value of the text, what is wrong with it as JSON, and the repairs that were made."""
    try:
        return loads(content, unique_keys=True), "", ()
    except JsonSyntaxError as error:
        if not repair:
            raise
        from kernai.jsonio.tolerant_json import read_tolerantly  # most calls are JSON

        read = read_tolerantly(content)
        return read.value, f"the text is not valid JSON: {error}", read.repairs


def _is_whole(found: object, only: Field) -> bool:
    """Whether a JSON value without the name of the only input is that input itself."""
    if not isinstance(found, (dict, list)) or not takes_whole(only.type.schema, found):
        return False
    return isinstance(found, list) or (only.name not in found and (only.required or bool(found)))


def without_blank_lines(text: str) -> str:
    """The text without blank lines at both ends; a single line also without the spaces around it.

    Models put a line break after an opening tag. Indentation is kept, since the text may be code.
    """
    inside = text.strip(ASCII_SPACE)
    if "\n" not in inside:
        return inside
    begin = text.rfind("\n", 0, len(text) - len(text.lstrip(ASCII_SPACE))) + 1
    end = text.find("\n", len(text.rstrip(ASCII_SPACE)))
    return text[begin:] if end < 0 else text[begin:end].removesuffix("\r")


def setting_value(given: object, kind: InputType, validation: Validation) -> Any:
    """A value of `kind`, from one or from text: a literal, text, or JSON. Faults are added to `validation`."""
    if isinstance(given, str):
        value = kind.from_text(given)
        if value is not NO_VALUE:
            return value
        if str not in kind.natural:
            with suppress(ValueError):
                given = loads(given, unique_keys=True)
    return kind.convert(given, validation)
