#!/usr/bin/env python3
"""An image is passed to a skill by its media id; only vision models can use the skill.

The chart contains no numbers. The skill measures the bars pixel by pixel, so only its result has the kg. The
measurements and the answer are judged by fixtures/harvest.csv, from which the chart was drawn.
"""

from __future__ import annotations

import re

from harness import Outcome, Scenario, require

from kit import charts

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


charts.ask_about(scenario, QUESTION, "Spring harvest", "spring", LINE_KG)
scenario.skill(requires="vision")(charts.measure_bars)


# ------------------------------------------------------------------------------------------- what a good run shows


def due() -> dict[str, float]:
    """The kg in the books, by hive."""
    return {bar.hive: bar.kg for bar in charts.harvest("spring")}


@scenario.expect
def the_skill_measured_the_picture_that_was_given(outcome: Outcome) -> bool:
    """A call has the picture's id, and its result has the kg of the books."""
    given = outcome.result.messages[0].media[0].id
    results = [call.value for call in outcome.calls_of("measure_bars") if given in str(call.params)]
    require(results, f"no call with {given} was answered by a result")
    return list(due().values()) in results


@scenario.expect
def every_hive_and_the_total_are_what_the_books_say(outcome: Outcome) -> bool:
    lines = re.findall(r"^\W*(\w+): *(\d+\.?\d*)", outcome.text.replace("*", ""), re.MULTILINE)
    readings = {name: float(number) for name, number in lines}
    wanted = due() | {"Total": sum(due().values())}
    wrong = [name for name, kg in wanted.items() if abs(readings.get(name, -1.0) - kg) > TOLERANCE_KG]
    answered, books = ({name: of.get(name) for name in wrong} for of in (readings, wanted))
    return require(not wrong, f"answered {answered}, the books say {books}")


if __name__ == "__main__":
    scenario.main()
