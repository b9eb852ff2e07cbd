#!/usr/bin/env python3
"""The minimum that an agent does: one question, one skill, one answer. The cost of others is compared to this."""

from __future__ import annotations

from datetime import date, timedelta

from harness import Outcome, Scenario, require

from kit.answers import figure

FIRST, LAST = date(2026, 1, 12), date(2026, 3, 20)
CLOSED = (date(2026, 2, 16), date(2026, 2, 17))

scenario = Scenario("simple_baseline", description="one question, one skill call, one answer", real="skill and loop")
scenario.max_steps(4)
scenario.instructions(
    "You plan the work of a joinery. Count days with your skill, never in your head. End your answer with a line "
    "`Working days: NUMBER`."
)
scenario.input(
    f"A kitchen is to be built from {FIRST.isoformat()} to {LAST.isoformat()}, both days included. We are closed on "
    f"{CLOSED[0].isoformat()} and {CLOSED[1].isoformat()}. How many working days do we have for it?"
)


@scenario.skill
def count_working_days(first: date, last: date, closed: list[date]) -> int:
    """Count the days from Monday to Friday between two days, both included, without those that are closed."""
    if last < first:
        raise ValueError(f"last ({last}) must not be before first ({first})")
    days = (first + timedelta(days=number) for number in range((last - first).days + 1))
    return sum(day.isoweekday() <= 5 and day not in closed for day in days)


@scenario.expect
def the_answer_is_what_the_calendar_says(outcome: Outcome) -> bool:
    due = count_working_days(FIRST, LAST, list(CLOSED))
    days = figure(outcome.text, "Working days")
    return require(days == due, f"answered {days}, due {due}")


@scenario.expect
def the_number_comes_from_the_skill(outcome: Outcome) -> bool:
    return str(count_working_days(FIRST, LAST, list(CLOSED))) in outcome.results_of("count_working_days")


if __name__ == "__main__":
    scenario.main()
