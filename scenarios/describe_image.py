#!/usr/bin/env python3
"""A vision model reads a bar chart that comes with the question.

Pillow really draws the chart from fixtures/harvest.csv, and the answer is judged by that file. Its numbers are in no
text that the model is sent, so only a model that sees the picture can know them.
"""

from __future__ import annotations

import re

from harness import Outcome, Scenario, require

from kit import charts
from kit.answers import line_of

TARGET_KG = 70
QUESTION = (
    "Which of my hives gave the most this summer, which the least, and which reached the target, the red line? "
    "What did all of them give together?"
)

scenario = Scenario(
    "describe_image",
    description="a vision model reads a bar chart that comes with the question",
    real="picture, loop and recording",
)
scenario.capabilities(["text", "vision"])
scenario.max_steps(3)
scenario.instructions(
    "You help a beekeeper to read charts. Say only what the picture shows. Close your final answer with these four "
    "lines: `Most: HIVE KG`, `Least: HIVE KG`, `On target: HIVE, HIVE, ...`, `Total: KG`."
)


charts.ask_about(scenario, QUESTION, "Summer harvest, kg", "summer", TARGET_KG, numbered=True)


# ------------------------------------------------------------------------------------------- what a good run shows


def words_of(text: str) -> list[str]:
    """The words and numbers of a text, with the unit left out."""
    return [word for word in re.findall(r"[^\W\d]+|\d+(?:\.\d+)?", text) if word != "kg"]


def same(given: list[str], due: list[str]) -> bool:
    return require(given == due, f"answered {' '.join(given)}, the books say {' '.join(due)}")


@scenario.expect
def a_vendor_is_sent_the_picture_and_no_number_in_words(outcome: Outcome) -> bool:
    """Otherwise the answer would prove nothing."""
    first = outcome.result.messages[0]
    charts.require_sent(outcome, first.media[0])
    return not re.search(r"\d", "".join(part for part in first.content if isinstance(part, str)))


@scenario.expect
def the_hives_with_most_and_least_are_those_of_the_books(outcome: Outcome) -> bool:
    bars = sorted(charts.harvest("summer"), key=lambda bar: bar.kg)
    due = {"Most": bars[-1], "Least": bars[0]}
    return all(same(words_of(line_of(outcome, name)), [bar.hive, f"{bar.kg:g}"]) for name, bar in due.items())


@scenario.expect
def the_hives_on_target_are_those_of_the_books(outcome: Outcome) -> bool:
    due = sorted(bar.hive for bar in charts.harvest("summer") if bar.kg >= TARGET_KG)
    return same(sorted(re.findall(r"[A-Z]\w+", line_of(outcome, "On target"))), due)


@scenario.expect
def the_total_is_that_of_the_books(outcome: Outcome) -> bool:
    """The total is a sum of numbers that only the picture shows."""
    total = sum(bar.kg for bar in charts.harvest("summer"))
    return same(words_of(line_of(outcome, "Total")), [f"{total:g}"])


if __name__ == "__main__":
    scenario.main()
