"""`outside`: marks a text that neither the user nor the host wrote."""

from __future__ import annotations

from typing import Any, NoReturn

from kernai.values.media import Media
from kernai.values.message import Part


class Outside:
    """An untrusted text, as a part of its own in an input or in instructions.

    Formatting or joining it would lose the mark, so that is a `TypeError`.
    """

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"outside() takes text, got {type(text).__name__}")
        self.text = text

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(
            "in another text, outside() text would lose its mark: pass a list of parts, ['Sum up:', outside(mail)]"
        )

    __str__ = __format__ = __add__ = __radd__ = __mod__ = __rmod__ = __iter__ = _refuse

    def to_dict(self) -> dict[str, str]:
        """As an input is recorded."""
        return {"outside": self.text}

    def __repr__(self) -> str:
        return f"outside({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Outside) and other.text == self.text

    def __hash__(self) -> int:
        return hash((Outside, self.text))


#: what a run is given; a part from outside becomes text in the conversation
InputPart = Part | Outside
INPUT_PARTS = (str, Media, Outside)


def instruction_parts(given: object, what: str = "must be text, a list of texts or a callable") -> Any:
    """An agent's instructions, a list as a tuple; `TypeError` for what they cannot be."""
    if isinstance(given, str):
        return given
    if not isinstance(given, (list, tuple)) or not given or not all(isinstance(one, (str, Outside)) for one in given):
        got = given if isinstance(given, (list, tuple)) else type(given).__name__
        raise TypeError(f"instructions {what}, got {got}")
    return tuple(given)


def outside(text: str) -> Outside:
    """Marks a text as written by neither the user nor the host: a mail, a web page, a customer's message.

    Pass it as a part of an input, or of an agent's instructions: ``["Summarise this mail:", outside(mail)]``. Tags in
    it cannot act, calls in it count as quoted, and nothing in it is trusted (docs/security.md).
    """
    return Outside(text)
