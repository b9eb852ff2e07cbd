"""Reading the parameters out of a command block's text.

The text comes from a model: whatever it is, reading it never fails. What cannot be taken as it is says so when the
parameters are bound to the skill's inputs, so that the model hears of it with all other faults.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

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


def read_params(content: str, only: tuple[str, InputType] | None) -> dict[str, object]:
    """The parameters in `content`. `only` is the skill's input where it has just one.

    A JSON object is its keys. Other text is the only input, as a number or boolean where that is its type and the text
    is exactly such a literal; with several inputs, or none, it stands under ``"input"``.
    """
    hint = ""
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
        value = only[1].from_text(content)
        params = TextParams({only[0]: content if value is NO_VALUE else value})
    params.hint = hint
    return params


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
