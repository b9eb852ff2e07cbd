"""Writes the table of events in docs/recording.md from `kernai.events`: `python3 dev.py tables`."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from kernai.events import KINDS, Row

PAGE = Path(__file__).resolve().parent / "docs" / "recording.md"
_BEGIN = "<!-- generated from src/kernai/events.py by `python3 dev.py tables` -->\n"
_END = "<!-- end of the generated table -->\n"
_HEAD = "| event | meaning | data | example |\n|---|---|---|---|\n"
#: data that is not an object, by the annotation of the row's parameter
_PLAIN = {"str": "a text", "Any": "anything"}


def with_table(page: str) -> str:
    """The page with an up-to-date table of events."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {_BEGIN.strip()} and {_END.strip()}")
    return before + begin + "\n" + _HEAD + "".join(map(_line, KINDS.values())) + "\n" + end + after


def documented(kind: type[Row]) -> tuple[str, str]:
    """The meaning of a kind of event, and an example of its data as JSON."""
    text, _, example = inspect.getdoc(kind).partition("\n\nExample: ")  # type: ignore[union-attr]  # a test checks it
    return " ".join(text.partition("\n\n")[0].split()), " ".join(example.split())


def _line(kind: type[Row]) -> str:
    text, example = documented(kind)
    marks = " *live*" * (kind.role == "live") + " *warning*" * kind.is_warning
    cells = (f"`{kind.type}`{marks}", text, _data(kind), f"`{example}`")
    return "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in cells) + " |\n"


def _data(kind: type[Row]) -> str:
    """The cell with the fields of the data."""
    parameters = [one for one in inspect.signature(kind).parameters.values() if one.name != "block"]
    if kind.read.__func__ is not Row.read.__func__:  # type: ignore[attr-defined]  # the data is not an object
        return _PLAIN.get(parameters[0].annotation, "a list")
    always, perhaps = (
        " ".join(one.name.rstrip("_") for one in parameters if (one.default is None) is optional)
        for optional in (False, True)
    )
    return f"`{always}`" + (f"; sometimes `{perhaps}`" if perhaps else "")


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
