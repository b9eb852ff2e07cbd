#!/usr/bin/env python3
"""Sub-agents try to delegate their work too: their plans are rejected, and they do the work themselves.

The agent's instructions cause this: all work with parts is delegated by a plan. The root's plan becomes a workflow. A
sub-agent's plan is `nested`: it starts nothing, even if it is valid, and the sub-agent reads that nothing was run.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

from harness import Outcome, Scenario, require

import kernai
from kit.answers import require_sum
from kit.sources import rows_of
from kit.workflow_evidence import workflow_of

NAME = "sub_agent_must_not_plan"
MONTH = "2026-10"
REGIONS = ("North", "South", "East")

scenario = Scenario(
    NAME,
    description="plans of sub-agents are rejected, and they do the work themselves",
    real="skills, sales, plan check, workflow, loop and recording",
)
scenario.max_steps(8)
scenario.instructions(
    "You report revenues. Your habit: whatever has parts is handed out first, by a plan block alone in its response, "
    'with the JSON {"strategy": "parallel", "tasks": [{"id": "...", "input": "..."}, ...]} and a task for each part. '
    "The whole company has the regions North, South and East as its parts; a region has its stores, which list_stores "
    "lists. Whoever is asked for one region does the same with its stores. But when you read that your plan was not "
    "run, do the parts yourself with read_revenue: do not plan again. Answer with the sum and what it is made of. "
    "The final report on the company has a line `REGION: AMOUNT` for each region and, last, `Total: AMOUNT`."
)
scenario.input(f"What was our revenue in {MONTH}, by region and in all?")

Region = Literal["North", "South", "East"]


@scenario.skill
def list_stores(region: Region) -> list[str]:
    """List the stores of a region."""
    return list(dict.fromkeys(row["store"] for row in rows_of(NAME, "sales") if row["region"] == region))


@scenario.skill
def read_revenue(store: str, month: str) -> str:
    """Read the revenue of one store in a month such as 2026-10."""
    found = [row["revenue"] for row in rows_of(NAME, "sales") if (row["store"], row["month"]) == (store, month)]
    if not found:
        raise ValueError(f"there is no revenue of {store!r} in {month!r}; list_stores lists the stores")
    return found[0]


# ------------------------------------------------------------------------------------------- what a good run shows


@scenario.expect
def sub_agents_wrote_plans_and_each_was_rejected_as_nested(outcome: Outcome) -> bool:
    """At least one would have been run if the root had written it. Each is recorded as notes."""
    nested = [event for event in outcome.of("plan_rejected") if event.scope]
    require(nested, "no sub-agent wrote a plan")
    plans = {(event.scope, event.data["raw"]) for event in nested}
    require(any(kernai.Plan.validate(raw).ok for _, raw in plans), "none of their plans was a valid one")
    notes = {(event.scope, event.data) for event in outcome.of("plan")}
    require(plans <= notes, "a rejected plan was not kept as notes")
    return {event.data["reason"] for event in nested} == {"nested"}


@scenario.expect
def only_the_root_started_a_workflow(outcome: Outcome) -> bool:
    starts = outcome.of("workflow_start")
    require(len(starts) == 1, f"{len(starts)} workflows were started")
    return starts[0].scope == "" and max(event.depth for event in outcome.events) == 1


@scenario.expect
def the_sub_agents_did_the_work_themselves(outcome: Outcome) -> bool:
    """Each store was read by a task, whose result has the sum of its region."""
    results = workflow_of(outcome).tasks
    good = [call for call in outcome.calls_of("read_revenue") if call.params["month"] == MONTH]
    for region, revenue in revenues().items():
        stores = {row["store"] for row in rows_of(NAME, "sales") if row["region"] == region}
        tasks = {str(call.task) for call in good if call.params["store"] in stores}
        require(stores <= {call.params["store"] for call in good}, f"not all stores of {region} were read")
        answers = [results[task].result.replace(",", "") for task in tasks if task in results]
        require(any(str(revenue) in one for one in answers), f"no task gave the revenue of {region}")
    return all(call.task for call in good)


@scenario.expect
def the_report_is_what_the_sales_say(outcome: Outcome) -> bool:
    return require_sum(outcome, revenues())


def revenues() -> dict[str, Decimal]:
    """The month's revenue of each region."""
    rows = [row for row in rows_of(NAME, "sales") if row["month"] == MONTH]
    return {one: sum((Decimal(row["revenue"]) for row in rows if row["region"] == one), Decimal(0)) for one in REGIONS}


if __name__ == "__main__":
    scenario.main()
