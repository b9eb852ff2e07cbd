#!/usr/bin/env python3
"""A trip is planned by price; then the run is forked at the point where the timetable is known, and planned by time.

Nothing that was looked up before the fork is looked up again, the forked run is not changed, and both answers are
judged against the timetable.
"""

from __future__ import annotations

from harness import Kept, Outcome, Scenario, require

import kernai

#: euros and minutes
TRAINS = {"night train": (59, 610), "express": (129, 245), "regional": (34, 540)}
ROLE = "You plan train journeys. Look the trains up with your skill, then choose exactly one of them and name it. "
LOOKED_UP: list[str] = []
SEEN: dict[str, kernai.Result | list[dict[str, object]]] = {}

scenario = Scenario(
    "fork_another_way", description="a finished run is forked, and decides differently from there",
    real="skill, store and loop",
)
scenario.max_steps(4)
scenario.instructions(ROLE + "What counts for this traveller is the price alone.")
scenario.input("How do I get from Lyon to Berlin?")


@scenario.skill
def find_trains(start: str, end: str) -> dict[str, dict[str, int]]:
    """The trains between two cities, with price in euros and duration in minutes."""
    LOOKED_UP.append(f"{start} {end}")
    return {name: {"price": price, "minutes": minutes} for name, (price, minutes) in TRAINS.items()}


@scenario.kept
def planned_twice(kept: Kept) -> kernai.Result:
    SEEN["first"] = kept.start()
    SEEN["before"] = kept.store.load(kept.run_id)
    kept.fork(at_step=1, run_id="by-time")
    by_time = kept.agent.replace(instructions=ROLE + "What counts for this traveller is the time alone.")
    result = kept.resume("by-time", agent=by_time)
    SEEN["after"] = kept.store.load(kept.run_id)
    return result


def best(by: int) -> str:
    return min(TRAINS, key=lambda name: TRAINS[name][by])


def chosen(result: object) -> list[str]:
    text = result.text or "" if isinstance(result, kernai.Result) else ""
    return [name for name in TRAINS if name in text.lower()]


@scenario.expect
def each_run_chose_what_the_timetable_says(outcome: Outcome) -> bool:
    names = (chosen(SEEN["first"]), chosen(outcome.result))
    due = ([best(0)], [best(1)])
    return require(names == due, f"chosen {names}, due {due}")


@scenario.expect
def what_was_known_at_the_fork_was_not_looked_up_again(outcome: Outcome) -> bool:
    return len(LOOKED_UP) == len(outcome.results_of("find_trains")) == 1


@scenario.expect
def the_run_that_was_forked_stays_as_it_was(_: Outcome) -> bool:
    return SEEN["before"] == SEEN["after"]


if __name__ == "__main__":
    scenario.main()
