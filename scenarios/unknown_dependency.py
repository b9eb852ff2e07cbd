#!/usr/bin/env python3
"""A plan waits for tasks that it does not have: the kernel drops these dependencies, and the run continues.

The user's plan refers to two tasks that do not exist (`menu`, `insurance`), and one, `travel`, has no input and is
dropped. Tasks that waited for these start as soon as their other dependencies are done. The agent sees in the results
what is missing.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, Literal

from harness import Outcome, Scenario, require

from kit.answers import require_sum
from kit.sources import rows_of, text_of
from kit.workflow_evidence import require_handed_on, workflow_of

NAME = "unknown_dependency"
PEOPLE, DAYS = 64, 3
ITEMS = ("venue", "catering", "travel", "insurance")
PLAN = text_of(NAME, "plan.txt").strip()

scenario = Scenario(
    NAME,
    description="a plan depends on tasks that it does not have, and is run without these dependencies",
    real="skills, prices, plan check, workflow, loop and recording",
)
scenario.max_steps(8)
scenario.instructions(
    f"You work out what a conference costs; it always needs {', '.join(ITEMS)}. When the user hands you a plan, write "
    "it into a plan block first, alone and to the letter, even where it looks wrong to you: the program decides what "
    "of it can be run. Then look which costs are missing in the results, and get each of them with your own skill. "
    "If your input is one task, you are its sub-agent: do no more than it says, and answer with the result. "
    "In the final answer each of the four has a line `ITEM: AMOUNT`, and the last line is `Total: AMOUNT`."
)
scenario.input(f"What will our conference cost, with {PEOPLE} people for {DAYS} days? Work by this plan:\n\n{PLAN}")

# ------------------------------------------------------------------------------------------------------- skills


@scenario.skill
def work_out_cost(item: Literal["venue", "catering", "travel", "insurance"], people: int, days: int) -> dict[str, str]:
    """Work out what one item costs for so many people and days."""
    return {"item": item, "amount": str(cost_of(item, people, days))}


@scenario.skill
def add_up(amounts: list[float]) -> str:
    """Add up amounts."""
    return str(sum((Decimal(str(amount)) for amount in amounts), Decimal(0)))


def cost_of(item: str, people: int, days: int) -> Decimal:
    """The cost of an item, which the price list has by day, by person, or by person and day."""
    (row,) = (row for row in rows_of(NAME, "prices") if row["item"] == item)
    shares = (("per_day", days), ("per_person", people), ("per_person_and_day", people * days))
    return sum((Decimal(row[column]) * count for column, count in shares), Decimal("0.00"))


# ------------------------------------------------------------------------------------------- what a good run shows


def given_tasks() -> dict[str, dict[str, Any]]:
    """The tasks of the user's plan that have an input, unchanged."""
    return {task["id"]: task for task in json.loads(PLAN)["tasks"] if task["input"].strip()}


@scenario.expect
def the_plan_was_sent_unchanged_and_run(outcome: Outcome) -> bool:
    require_handed_on(PLAN, outcome)
    return set(workflow_of(outcome, 0).tasks) == set(given_tasks())


@scenario.expect
def only_the_dependencies_on_unknown_tasks_were_dropped(outcome: Outcome) -> bool:
    """The other dependencies of each task are unchanged, in their order."""
    given = given_tasks()
    ran = {task["id"]: task["depends_on"] for task in workflow_of(outcome, 0).plan["tasks"]}
    due = {one: [need for need in task.get("depends_on", []) if need in given] for one, task in given.items()}
    require(ran == due, f"the tasks waited for {ran}, due is {due}")
    return any(due[one] != given[one].get("depends_on", []) for one in given)


@scenario.expect
def each_task_ran_after_the_dependencies_that_were_left(outcome: Outcome) -> bool:
    workflow = workflow_of(outcome, 0)
    workflow.require_results_passed_on()
    failed = [task.id for task in workflow.tasks.values() if task.failed]
    return require(not failed, f"these failed: {failed}")


@scenario.expect
def what_the_plan_lacked_was_looked_up_afterwards(outcome: Outcome) -> bool:
    ended = max(task.ended for task in workflow_of(outcome).tasks.values())
    calls = [call for call in outcome.calls_of("work_out_cost") if call.task is None and call.started > ended]
    missing = set(ITEMS) - set(given_tasks()) - {call.params["item"] for call in calls}
    return require(not missing, f"the root did not look up {sorted(missing)}")


@scenario.expect
def the_answer_has_every_cost(outcome: Outcome) -> bool:
    return require_sum(outcome, {item: cost_of(item, PEOPLE, DAYS) for item in ITEMS})


if __name__ == "__main__":
    scenario.main()
