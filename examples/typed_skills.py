"""Validated inputs of any depth: after a wrong call, the model reads every fault and a correct call to copy."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Annotated, Literal

import kernai


@dataclass
class Guest:
    """One traveller."""

    name: str
    age: int | None = None


@kernai.skill(register=False)
def book_rooms(
    arrival: date,
    guests: list[Guest],
    board: Literal["none", "breakfast", "half"] = "breakfast",
    discount: Annotated[float, "percent, 0 to 20"] = 0.0,
) -> dict[str, object]:
    """Book rooms for some guests."""
    return {"arrival": arrival, "weekday": f"{arrival:%A}", "guests": guests, "board": board, "discount": discount}


# The first call has three mistakes; the model reads the faults and corrects them.
WRONG = '{"arrival": "tomorrow", "guests": [{"name": "Ada"}, {"age": "7"}]}'
RIGHT = '{"arrival": "2026-11-20", "guests": [{"name": "Ada"}, {"name": "Ben", "age": 7}], "board": "half"}'

agent = kernai.Agent(
    instructions="You book hotel rooms.",
    provider=kernai.MockProvider(
        f'<block type="command" name="book_rooms">{WRONG}</block>',
        f'<block type="command" name="book_rooms">{RIGHT}</block>',
        '<block type="final">Booked for Ada and Ben.</block>',
    ),
    skills=[book_rooms],
)

if __name__ == "__main__":
    print("what the model reads when it asks for /skills:\n")
    print(book_rooms.describe())

    result = kernai.execute(agent, "Two rooms with half board on 20 November, please.")
    print("\nwhat it reads after a wrong call:\n")
    print(result.messages[2].text)
    print("\nwhat it reads after a right one:\n")
    print(result.messages[4].text)
    print(f"\nanswer: {result.text}")
