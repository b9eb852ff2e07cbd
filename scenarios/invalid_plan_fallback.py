#!/usr/bin/env python3
"""A plan that is not JSON starts nothing; the kernel says why, and the work is done nevertheless.

The user's plan has a comment and an extra comma. The kernel treats it as notes and does not guess what was meant. The
agent reads that nothing was run, and falls back to a corrected plan or to its skills.
"""

from __future__ import annotations

from typing import Any, Literal

from harness import Outcome, Scenario, require

from kit.answers import require_sum
from kit.sources import rows_of, text_of
from kit.workflow_evidence import plans_written, require_handed_on

NAME = "invalid_plan_fallback"
MONTH = "2026-10"
BUILDINGS = ("Town hall", "Library", "Swimming pool")
PLAN = text_of(NAME, "plan.txt").strip()
#: one more than the highest number that a five-digit counter shows
ROLLS_OVER_AT = 100_000

scenario = Scenario(
    NAME,
    description="a plan that is not JSON is rejected, and the work is done anyway",
    real="skills, readings, plan check, loop and recording",
)
scenario.max_steps(8)
scenario.instructions(
    "You report what a town's buildings consume. When the user hands you a plan, write it into a plan block first, "
    "alone and to the letter, even where it looks wrong to you: the program decides whether it can be run. If it "
    "is not run, get the figures with your skill, or write a plan that is valid. If your input is about one building "
    "alone, answer with its consumption. In the final answer each building has a line `BUILDING: KWH`, and the last "
    "line is `Total: KWH`."
)
scenario.input(f"What did town hall, library and swimming pool consume in {MONTH}? Work by this plan:\n\n{PLAN}")


@scenario.skill
def read_consumption(building: Literal["Town hall", "Library", "Swimming pool", "Depot"], month: str) -> dict[str, Any]:
    """What a building consumed in a month such as 2026-10, in kWh, over all its meters and their changes."""
    meters: dict[str, list[int]] = {}
    for row in rows_of(NAME, "readings"):
        if row["building"] == building:
            meters.setdefault(row["meter"], []).append(int(row["kwh"]))
    if month != MONTH:
        raise ValueError(f"there are readings for {MONTH} alone")
    used = {meter: (last - first) % ROLLS_OVER_AT if last < first else last - first
            for meter, (first, last) in meters.items()}
    return {"building": building, "kwh": sum(used.values()), "meters": used}


# ------------------------------------------------------------------------------------------- what a good run shows


@scenario.expect
def the_plan_was_sent_unchanged_and_rejected_as_invalid_json(outcome: Outcome) -> bool:
    return require_handed_on(PLAN, outcome, rejected_as="invalid_json")


@scenario.expect
def no_task_of_a_rejected_plan_was_run(outcome: Outcome) -> bool:
    """There are as many workflows as accepted plans: none if the agent continued without a plan."""
    good = len(plans_written(outcome)) - len(outcome.of("plan_rejected"))
    ran = len(outcome.of("workflow_start"))
    return require(ran == good, f"{ran} workflows were run, of {good} valid plans")


@scenario.expect
def the_agent_read_the_error_and_continued_on_its_own(outcome: Outcome) -> bool:
    """The response with only the plan was answered by a correction, and the figures were looked up later."""
    reports = [at for at, event in enumerate(outcome.events) if event.type == "informational_only"]
    require(reports, "no correction was injected: something stood beside the plan")
    looked_up = outcome.calls_of("read_consumption")
    missing = set(BUILDINGS) - {call.params["building"] for call in looked_up}
    require(not missing, f"nobody looked up {sorted(missing)}")
    return min(call.started for call in looked_up) > reports[0]


@scenario.expect
def the_report_is_what_the_meters_say(outcome: Outcome) -> bool:
    """The figures were computed by hand: the library's counter rolled over, the pool's meter was replaced."""
    due = {
        "Town hall": (431905 - 418220) + (80128 - 77310),
        "Library": (100000 - 99184) + 1946,
        "Swimming pool": (684467 - 655031) + 22905,
    }
    return require_sum(outcome, due)


if __name__ == "__main__":
    scenario.main()
