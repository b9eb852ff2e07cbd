"""Reading the parameters out of a command block's text.

The text comes from a model: whatever it is, reading it never fails. What cannot be taken as it is says so when the
parameters are bound to the skill's inputs, so that the model hears of it with all other faults.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from kernai.blocks.grammar import ASCII_SPACE
from kernai.inputs.faults import NO_VALUE, Validation
from kernai.inputs.types import InputType
from kernai.values.json_data import JSON_SPACE, JsonRefusedError, JsonSyntaxError, loads


class TextParams(dict[str, object]):
    """Parameters that were text, not a JSON object.

    `hint` is what a fault should add where the text seems meant as JSON. `refused` is why a JSON object was not taken,
    where something in it would be lost; it stands under ``"input"`` then.
    """

    hint: str = ""
    refused: str = ""


def read_params(content: str, only: tuple[str, InputType] | None, *, all_optional: bool) -> dict[str, object]:
    """The parameters in `content`. `only` is the skill's input where it has just one; `all_optional` says that it has
    inputs, and that each has a default.

    A JSON object is its keys. Other text is the only input, without blank lines around it, and as a number or boolean
    where that is its type and the text is exactly such a literal; with several inputs, or none, it stands under
    ``"input"``. No text at all, where all inputs have a default, is a call without parameters.
    """
    hint = ""
    if all_optional and not content.strip(ASCII_SPACE):
        return {}
    if content.lstrip(JSON_SPACE)[:1] == "{":
        try:
            found: dict[str, object] = loads(content, unique_keys=True)
            return found
        except JsonRefusedError as error:
            params = TextParams(input=content)
            params.refused = str(error)
            return params
        except JsonSyntaxError as error:
            hint = f"the text looks like JSON, but is not valid JSON: {error}"
    params = TextParams(input=content)
    if only is not None:
        text = without_blank_lines(content)
        value = only[1].from_text(text)
        params = TextParams({only[0]: text if value is NO_VALUE else value})
    params.hint = hint
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
