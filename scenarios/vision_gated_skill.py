#!/usr/bin/env python3
"""An image is passed to a skill by its media id; only vision models can use the skill.

The chart contains no numbers. The skill measures the bars pixel by pixel, so only its result has the kg. The
measurements and the answer are judged by fixtures/harvest.csv, from which the chart was drawn.
"""

from __future__ import annotations

import re
from typing import Annotated

from harness import ExpectationError, Outcome, Scenario

import kernai
from kit import charts
from kit.packages import require

LINE_KG = 40
TOLERANCE_KG = 0.5  # a pixel is a third of a kg
QUESTION = (
    f"This is my spring harvest (the picture is {{id}}); the red line stands for {LINE_KG} kg. How many kg did each "
    "hive give, and all of them together?"
)

scenario = Scenario(
    "vision_gated_skill",
    description="a skill for vision models receives an image by its media id",
    real="picture, skill, loop and recording",
)
scenario.capabilities(["text", "vision"])
scenario.max_steps(6)
scenario.instructions(
    "You help a beekeeper to read charts. Never estimate a bar by eye: measure the picture with your skills, /skills "
    "lists them. Close your final answer with one line for each bar from left to right, `HIVE: KG`, and the line "
    "`Total: KG`, all with one decimal."
)


@scenario.prepare
def draw_the_chart() -> None:
    """Draw the picture and put it before the question, which names its id."""
    require("PIL")
    chart = kernai.Media.from_bytes(
        charts.draw("Spring harvest", charts.harvest("spring"), LINE_KG), mime_type="image/png"
    )
    scenario.input([chart, QUESTION.format(id=chart.id)])


@scenario.skill(requires="vision")
def measure_bars(
    image: Annotated[kernai.Media, "the id of the picture of a bar chart, media_..."],
    line_kg: Annotated[float, "what the red line stands for"],
) -> list[float]:
    """Measure the bars of a chart in kg, from left to right, by its red line."""
    return charts.measure(image.read_bytes(), line_kg)


# ------------------------------------------------------------------------------------------- what a good run shows


def due() -> dict[str, float]:
    """The kg in the books, by hive."""
    return {bar.hive: bar.kg for bar in charts.harvest("spring")}


@scenario.expect
def the_skill_measured_the_picture_that_was_given(outcome: Outcome) -> bool:
    """A call has the picture's id, and its result has the kg of the books."""
    given = outcome.result.messages[0].media[0].id
    answered = {event.data["call_id"] for event in outcome.of("skill_result")}
    calls = [event.data for event in outcome.of("skill_execute") if event.data["call_id"] in answered]
    if not any(given in str(call["params"]) for call in calls):
        raise ExpectationError(f"no call with {given} was answered by a result")
    kg = [f"{value:.1f}" for value in due().values()]
    return any(re.findall(r"\d+\.\d", str(result)) == kg for result in outcome.results_of("measure_bars"))


@scenario.expect
def every_hive_and_the_total_are_what_the_books_say(outcome: Outcome) -> bool:
    """The answer has the kg that were read from the pixels."""
    readings = {
        name: float(number)
        for name, number in re.findall(r"^\W*(\w+): *(\d+\.?\d*)", outcome.text.replace("*", ""), re.MULTILINE)
    }
    wanted = due() | {"Total": sum(due().values())}
    wrong = {
        name: readings.get(name) for name, kg in wanted.items() if abs(readings.get(name, -1.0) - kg) > TOLERANCE_KG
    }
    if wrong:
        raise ExpectationError(f"answered {wrong}, the books say {({name: wanted[name] for name in wrong})}")
    return True


if __name__ == "__main__":
    scenario.main()
