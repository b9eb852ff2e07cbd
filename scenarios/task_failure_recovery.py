#!/usr/bin/env python3
"""Tasks fail, the others continue, and the root finds the missing results in another way.

Osaka's count never ends, so its sub-agent asks until it has no steps left. On the tape, another sub-agent's provider
fails too. The root reads both as `error: ...`, together with the results of the successful tasks, and computes the
missing counts from last night's export and today's movements.
"""

from __future__ import annotations

from typing import Any, Literal

from harness import Outcome, Scenario, require

import kernai
from kit.answers import require_sum
from kit.sources import rows_of
from kit.workflow_evidence import workflow_of

NAME = "task_failure_recovery"
SKU = "HT-1026"
WAREHOUSES = ("Bergen", "Lyon", "Osaka", "Valparaíso")
NEVER_READY = "Osaka"

Warehouse = Literal["Bergen", "Lyon", "Osaka", "Valparaíso"]

scenario = Scenario(
    NAME,
    description="a task fails, the others continue, and the root gets its result in another way",
    real="skills, files, workflow, failures, loop and recording",
)
scenario.max_steps(5)

ROOT = (
    f"You report how many pieces of a product are in the warehouses {', '.join(WAREHOUSES)}. Have them counted by "
    'sub-agents in one workflow with strategy "parallel", a task for each warehouse. Where a task fails, do not start '
    "it again: work the count out yourself, as the pieces in read_export plus all movements in read_movements since. "
    "In the final answer each warehouse has a line `WAREHOUSE: PIECES`, the last line is `Total: PIECES`, and you say "
    "for which warehouses you had to work it out."
)
TASK = (
    "You are the sub-agent for one warehouse. Call count_pieces, once in each response. While it answers that the "
    "count is under way, call it again: never give up, never guess, never use another skill. Answer with the count."
)


def instructions(context: kernai.Context) -> str:
    """The root plans and recovers; a sub-agent only counts."""
    return ROOT if context.is_root else TASK


scenario.instructions(instructions)
scenario.input(f"How many {SKU} do we have in each warehouse right now, and in all?")

# ------------------------------------------------------------------------------------------------------- skills


@scenario.skill
def count_pieces(warehouse: Warehouse, sku: str) -> dict[str, Any]:
    """Have the pieces of a product counted in a warehouse."""
    if warehouse == NEVER_READY:
        return {"warehouse": warehouse, "state": "the count is under way, ask again"}
    return {"warehouse": warehouse, "state": "counted", "pieces": pieces_in(warehouse, sku)}


@scenario.skill
def read_export(warehouse: Warehouse, sku: str) -> int:
    """The pieces of a product in a warehouse as of last night's export."""
    return sum(int(row["pieces"]) for row in rows_about("export", warehouse, sku))


@scenario.skill
def read_movements(warehouse: Warehouse, sku: str) -> list[dict[str, str]]:
    """What has come into a warehouse and left it (below zero) since last night's export."""
    return [{"at": row["at"], "pieces": row["pieces"]} for row in rows_about("movements", warehouse, sku)]


def pieces_in(warehouse: str, sku: str) -> int:
    """The actual number of pieces."""
    sources = [*rows_about("export", warehouse, sku), *rows_about("movements", warehouse, sku)]
    return sum(int(row["pieces"]) for row in sources)


def rows_about(source: str, warehouse: str, sku: str) -> list[dict[str, str]]:
    """The rows of a file about a product in a warehouse."""
    return [row for row in rows_of(NAME, source) if (row["warehouse"], row["sku"]) == (warehouse, sku)]


# ------------------------------------------------------------------------------------------- what a good run shows


def counted(outcome: Outcome) -> set[str]:
    """The warehouses whose task returned a count."""
    good = {task.id for task in workflow_of(outcome).tasks.values() if not task.failed}
    calls = [call for call in outcome.calls_of("count_pieces") if call.task in good]
    return {call.params["warehouse"] for call in calls if call.value["state"] == "counted"}


@scenario.expect
def the_endless_task_ran_out_of_steps(outcome: Outcome) -> bool:
    """It asked as often as it could, and its result says what happened."""
    tasks = workflow_of(outcome).tasks
    calls = [call for call in outcome.calls_of("count_pieces") if call.params["warehouse"] == NEVER_READY]
    asked = [tasks[call.task] for call in calls if call.task in tasks]
    require(asked, f"no task asked {NEVER_READY}")
    task = asked[0]
    require(task.failed, f"its task ended with: {task.result}")
    require("steps" in task.result, f"its task failed for another reason: {task.result}")
    return bool(outcome.task_results()[task.id] == f"error: {task.result}")


@scenario.expect
def the_other_tasks_continued_and_returned_their_counts(outcome: Outcome) -> bool:
    """Each task that did not fail has the correct count in its result."""
    tasks = workflow_of(outcome).tasks
    require(len(tasks) == len(WAREHOUSES), f"there were {len(tasks)} tasks for {len(WAREHOUSES)} warehouses")
    good = counted(outcome)
    require(good, "no task brought a count")
    results = "\n".join(task.result for task in tasks.values() if not task.failed)
    missing = [one for one in good if str(pieces_in(one, SKU)) not in results]
    require(not missing, f"the counts of {missing} are in no result")
    return sum(not task.failed for task in tasks.values()) == len(good)


@scenario.expect
def what_failed_was_worked_out_in_another_way(outcome: Outcome) -> bool:
    """The root did this after the workflow, from export and movements; nothing was counted a second time."""
    after = max(task.ended for task in workflow_of(outcome).tasks.values())
    missing = set(WAREHOUSES) - counted(outcome)
    for skill in ("read_export", "read_movements"):
        own = [call for call in outcome.calls_of(skill) if call.task is None and call.started > after]
        require({call.params["warehouse"] for call in own} >= missing, f"the root did not use {skill} for {missing}")
    return all(event.task_id for event in outcome.of("skill_execute") if event.data["skill"] == "count_pieces")


@scenario.expect
def the_answer_has_every_count(outcome: Outcome) -> bool:
    return require_sum(outcome, {warehouse: pieces_in(warehouse, SKU) for warehouse in WAREHOUSES})


if __name__ == "__main__":
    scenario.main()
