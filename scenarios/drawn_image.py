#!/usr/bin/env python3
"""A skill draws an image; the model then sees it and hands its id to a second skill.

Pillow really makes the drawing, and its PNG is opened and measured again here: a chart that does not show the numbers
of fixtures/harvest.csv fails, whatever the model says about it.
"""

from __future__ import annotations

import dataclasses
import io
import re
from typing import Annotated

from harness import Outcome, Scenario, require

import kernai
from kit import charts
from kit.answers import line_of
from kit.charts import Bar, Season
from kit.packages import require_packages

LINE_KG = 70
TOLERANCE_KG = 0.5  # a pixel is a third of a kg

scenario = Scenario(
    "drawn_image",
    description="a skill draws a chart, the model sees it and hands it to a skill that measures it",
    real="skills, picture, loop and recording",
)
scenario.capabilities(["text", "vision"])
scenario.max_steps(10)
scenario.instructions(
    "You draw charts for a beekeeper. Take numbers from the books, never from memory; /skills lists what you can do. "
    "Measure each chart you have drawn before you hand it over, by the id under which it came back, and say so when it "
    "does not show what the books say. Close your final answer with the lines `Chart: MEDIA_ID` and "
    "`Above the line: HIVE, HIVE, ...`."
)
scenario.input(
    f"Draw me a bar chart of the summer harvest, hive by hive, with the line at {LINE_KG} kg, last year's mean. "
    "Check it before you give it to me. Which hives lie above the line?"
)
scenario.prepare(lambda: require_packages("PIL"))


@scenario.skill
def read_books(season: Season) -> list[dict[str, object]]:
    """Say how many kg of honey each hive gave in one season."""
    return [dataclasses.asdict(bar) for bar in charts.harvest(season)]


@scenario.skill(produces="image")
def draw_chart(
    title: str, bars: list[Bar], line_kg: Annotated[float, "where the red line goes"]
) -> kernai.SkillResult:
    """Draw a bar chart with a red line across it."""
    png = charts.draw(title, bars, line_kg)
    return kernai.SkillResult(
        f"a chart with {len(bars)} bars, {charts.WIDTH} x {charts.HEIGHT} pixels",
        media=[kernai.Media.from_bytes(png, mime_type="image/png")],
    )


scenario.skill(requires="vision")(charts.measure_bars)


# ------------------------------------------------------------------------------------------- what a good run shows


def handed_over(outcome: Outcome) -> kernai.Media:
    """The picture that the answer names."""
    named = re.findall(r"Chart:\W*(media_[0-9a-f]{12})", outcome.text)
    drawn = {media.id: media for message in outcome.result.messages for media in message.media}
    require(named and named[-1] in drawn, f"the answer names {named}, drawn were {sorted(drawn)}")
    return drawn[named[-1]]


@scenario.expect
def the_chart_is_a_valid_png_that_shows_the_books(outcome: Outcome) -> bool:
    from PIL import Image

    data = handed_over(outcome).read_bytes()
    with Image.open(io.BytesIO(data)) as picture:
        picture.verify()  # the checksums of all its parts
        kind, size = picture.format, picture.size
    shown = sorted(charts.measure(data, LINE_KG))
    due = sorted(bar.kg for bar in charts.harvest("summer"))
    fits = len(shown) == len(due) and all(abs(a - b) <= TOLERANCE_KG for a, b in zip(shown, due, strict=True))
    require(fits, f"the chart shows {shown} kg, the books say {due}")
    return (kind, size) == ("PNG", (charts.WIDTH, charts.HEIGHT))


@scenario.expect
def the_model_sees_what_was_drawn(outcome: Outcome) -> bool:
    return charts.require_sent(outcome, handed_over(outcome))


@scenario.expect
def this_chart_was_measured_before_it_was_handed_over(outcome: Outcome) -> bool:
    """A call with its id returned what the pixels show."""
    chart = handed_over(outcome)
    results = [call.value for call in outcome.calls_of("measure_bars") if chart.id in str(call.params)]
    return charts.measure(chart.read_bytes(), LINE_KG) in results


@scenario.expect
def the_hives_above_the_line_are_those_of_the_books(outcome: Outcome) -> bool:
    hives = sorted(re.findall(r"[A-Z]\w+", line_of(outcome, "Above the line")))
    due = sorted(bar.hive for bar in charts.harvest("summer") if bar.kg > LINE_KG)
    return require(hives == due, f"answered {hives}, the books say {due}")


if __name__ == "__main__":
    scenario.main()
