#!/usr/bin/env python3
"""A model without vision gets a picture: it reads a placeholder, the vision skill is refused, and the model says so.

The vendors' adapters build the requests that each family of vendors would be sent in this run. These must contain the
placeholder, and not the picture. The answer must not contain facts that only the picture shows.
"""

from __future__ import annotations

import io
import re
from typing import Annotated

from harness import Outcome, Scenario, require

import kernai
from kit import charts
from kit.answers import line_of
from kit.vendor_requests import request_bodies

LINE_KG = 40
QUESTION = "This is my spring harvest (the picture is {id}). Which hive gave the most, and how much?"
PLACEHOLDER = "[image unavailable: image/png]"

scenario = Scenario(
    "text_only_fallback",
    description="a text-only model is given a picture, and says that it cannot see it",
    real="picture, skills, vendors' requests, loop and recording",
)
scenario.capabilities(["text"])
scenario.max_steps(6)
scenario.instructions(
    "You help a beekeeper to read charts; /skills lists what you can do. A picture that you cannot see comes to you as "
    "a placeholder. Then never guess what it shows: say what is missing, and what you could find out about the file "
    "all the same. Close your final answer with the line `Seen: yes` or `Seen: no`."
)


charts.ask_about(scenario, QUESTION, "Spring harvest", "spring", LINE_KG, numbered=True)
scenario.skill(requires="vision")(charts.measure_bars)


@scenario.skill
def inspect_file(image: Annotated[kernai.Media, "the id of a picture, media_..."]) -> dict[str, object]:
    """Say of which format and size a picture's file is. What it shows is not looked at."""
    from PIL import Image

    data = image.read_bytes()
    with Image.open(io.BytesIO(data)) as picture:
        return {"format": picture.format, "width": picture.width, "height": picture.height, "bytes": len(data)}


# ------------------------------------------------------------------------------------------- what a good run shows


@scenario.expect
def the_vendor_is_sent_the_placeholder_and_not_the_picture(outcome: Outcome) -> bool:
    """The request has neither the picture's data nor any reference to them."""
    picture = outcome.result.messages[0].media[0].to_base64()
    for vendor, body in request_bodies(outcome):
        require(PLACEHOLDER in body, f"{vendor} would be sent no placeholder")
        require(picture[:100] not in body, f"{vendor} would be sent the picture")
    return True


@scenario.expect
def no_vision_skill_was_run(outcome: Outcome) -> bool:
    errors = outcome.errors_of("measure_bars")
    return not outcome.results_of("measure_bars") and all("is not allowed" in error for error in errors)


@scenario.expect
def the_answer_is_honest_about_the_picture(outcome: Outcome) -> bool:
    """It says that the picture was not seen, and has none of the facts that only the picture shows."""
    require(line_of(outcome, "Seen").lower().startswith("no"), "the answer does not end with `Seen: no`")
    facts = {word for bar in charts.harvest("spring") for word in (bar.hive, f"{bar.kg:g}")}
    guessed = sorted(facts & set(re.findall(r"\w+", outcome.text)))
    return require(not guessed, f"the answer states {', '.join(guessed)}, which it cannot know")


if __name__ == "__main__":
    scenario.main()
