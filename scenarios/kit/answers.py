"""Reads from an answer the lines `LABEL: ...` that a scenario asks for, and rounds the figures that are due."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal

from kit.definition import ExpectationError, Outcome, require

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def cents(amount: Decimal | float) -> Decimal:
    """An amount rounded to the cent, halves up."""
    return Decimal(str(amount)).quantize(Decimal("0.01"), ROUND_HALF_UP)


def line_of(outcome: Outcome, label: str) -> str:
    """The text after the label, in the last line that begins with it, without emphasis, which models like to add.

    Raises `ExpectationError` if there is no such line.
    """
    found: list[str] = re.findall(rf"^\W*{label}:(.*)$", outcome.text.replace("*", ""), re.MULTILINE)
    require(found, f"the answer has no line `{label}: ...`")
    return found[-1].strip()


def figure(text: str, label: str) -> Decimal:
    """The last number on the last line `LABEL: ...` of an answer. Raises `ExpectationError` if there is none."""
    labelled = re.compile(rf"(?<!\w){re.escape(label)}[^\w\n]*:(.*)", re.IGNORECASE)
    for rest in reversed(labelled.findall(text)):
        if numbers := NUMBER.findall(rest):
            return Decimal(numbers[-1].replace(",", ""))
    raise ExpectationError(f"the answer has no line `{label}: ` with a figure")


def require_figures(outcome: Outcome, due: Mapping[str, Decimal | int]) -> bool:
    """Requires every figure under its label in the answer. Lists all that are wrong."""
    found = {label: figure(outcome.text, label) for label in due}
    wrong = [f"{label} is {found[label]}, due {value}" for label, value in due.items() if found[label] != value]
    return require(not wrong, "; ".join(wrong))


def require_sum(outcome: Outcome, due: Mapping[str, Decimal | int]) -> bool:
    """Requires every figure under its label, and the sum of all as `Total`."""
    return require_figures(outcome, {**due, "Total": sum(due.values())})
