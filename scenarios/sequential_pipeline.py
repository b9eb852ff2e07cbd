#!/usr/bin/env python3
"""A report is made by five sub-agents, one after the other, each from the result of the one before it.

The skills pass on batches of real rows under ids that are only in the result of the skill that made them, so no stage
can be skipped or guessed. One stage, the rates, depends on nothing, but runs alone too: this is the meaning of the
strategy `sequential`.
"""

from __future__ import annotations

import hashlib
import json
from decimal import Decimal
from typing import Any

from harness import Outcome, Scenario, require

from kit.answers import cents, require_sum
from kit.sources import rows_of
from kit.workflow_evidence import overlapping, workflow_of

NAME = "sequential_pipeline"
MONTH = "2026-10"

Row = dict[str, str]

scenario = Scenario(
    NAME,
    description="five sub-agents make a report, one after the other",
    real="skills, rows, workflow, loop and recording",
)
scenario.max_steps(8)
scenario.instructions(
    "You run a reporting pipeline of five stages: extract the orders of the month; read the month's exchange rates; "
    "clean the extracted batch; convert the cleaned batch into euros; summarize the converted batch. Each stage is a "
    'task of its own in one workflow with strategy "sequential". A stage that takes what another made names it in '
    "depends_on, since a sub-agent knows nothing else about the others. If your input is one stage, you are its "
    "sub-agent: do that stage alone, with one skill, and answer with its whole result, ids included. "
    "The final report has a line `REGION: AMOUNT` for each region and, last, `Total: AMOUNT`, in euros with two "
    "decimals."
)
scenario.input(f"How much did we sell in each region in {MONTH}, in euros?")

# ------------------------------------------------------------------------------------------------------- skills


#: the data that the stages pass on, each with its state, by an id; shared by all sub-agents of a run
store: dict[str, tuple[str, Any]] = {}
scenario.prepare(store.clear)


def put(state: str, content: Any) -> str:
    """Keep the content and return its id, made of its hash."""
    name = f"{state}-{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:8]}"
    store[name] = (state, content)
    return name


def take(name: str, state: str) -> Any:
    """The content of that id. Raises `ValueError` if there is none in that state."""
    found, content = store.get(name, (None, None))
    if found != state:
        raise ValueError(f"there is nothing {state} under the id {name!r}" + (f": it is {found}" if found else ""))
    return content


@scenario.skill
def extract_orders(month: str) -> dict[str, Any]:
    """Pull all rows of a month, such as 2026-10, as the shops sent them. Gives the id of a batch."""
    rows = [row for row in rows_of(NAME, "orders") if row["date"].startswith(month)]
    return {"batch": put("extracted", rows), "rows": len(rows)}


@scenario.skill
def read_rates(month: str) -> dict[str, Any]:
    """Read the exchange rates of a month. Gives the id of a table."""
    rates = {row["currency"]: row["euros"] for row in rows_of(NAME, "rates") if row["month"] == month}
    if not rates:
        raise ValueError(f"there are no rates for {month!r}; a month is written as 2026-10")
    return {"rates": put("rates", rates), "currencies": list(rates)}


@scenario.skill
def clean_batch(batch: str) -> dict[str, Any]:
    """Drop repeated, cancelled and priceless rows of an extracted batch and even out how the rest is written."""
    kept: dict[str, Row] = {}
    dropped = {"repeated": 0, "cancelled": 0, "without an amount": 0}
    for row in take(batch, "extracted"):
        if row["order"] in kept:
            dropped["repeated"] += 1
        elif row["status"] == "cancelled":
            dropped["cancelled"] += 1
        elif not row["amount"]:
            dropped["without an amount"] += 1
        else:
            tidy = {"currency": row["currency"].strip().upper(), "amount": row["amount"].replace(",", "")}
            kept[row["order"]] = {**row, **tidy}
    return {"batch": put("cleaned", list(kept.values())), "rows": len(kept), "dropped": dropped}


@scenario.skill
def convert_batch(batch: str, rates: str) -> dict[str, Any]:
    """Convert a cleaned batch into euros with a table of rates, each row rounded to the cent."""
    table = take(rates, "rates")
    rows = [
        {**row, "amount": str(cents(Decimal(row["amount"]) * Decimal(table[row["currency"]]))), "currency": "EUR"}
        for row in take(batch, "cleaned")
    ]
    return {"batch": put("converted", rows), "rows": len(rows)}


@scenario.skill
def summarize_batch(batch: str) -> dict[str, Any]:
    """Sum a converted batch up by region."""
    regions: dict[str, Decimal] = {}
    for row in take(batch, "converted"):
        regions[row["region"]] = regions.get(row["region"], Decimal(0)) + Decimal(row["amount"])
    total = sum(regions.values(), Decimal(0))
    return {"regions": {name: str(regions[name]) for name in sorted(regions)}, "total": str(total)}


# ------------------------------------------------------------------------------------------- what a good run shows

STAGES = (extract_orders, read_rates, clean_batch, convert_batch, summarize_batch)


@scenario.expect
def the_stages_ran_one_at_a_time(outcome: Outcome) -> bool:
    """This includes the two that do not depend on each other."""
    workflow = workflow_of(outcome)
    require(len(workflow.tasks) >= len(STAGES), f"the workflow has only the tasks {', '.join(workflow.tasks)}")
    together = overlapping(list(workflow.tasks.values()))
    return require(not together, f"these ran at the same time: {together}")


@scenario.expect
def each_stage_took_what_the_one_before_it_made(outcome: Outcome) -> bool:
    """Each id that a task used was made in another task for which it waits."""
    workflow = workflow_of(outcome)
    workflow.require_results_passed_on()
    makers: dict[str, str | None] = {}
    for skill in STAGES:
        good = outcome.calls_of(skill.name)
        require(good, f"{skill.name} never gave a result")
        for call in good:
            require(call.task is not None, f"{skill.name} was called by the root and not by a task")
            for used in (call.params[key] for key in ("batch", "rates") if key in call.params):
                maker = makers[used]
                awaited = workflow.needed_by(str(call.task))
                require(maker in awaited, f"the task {call.task} used {used} of {maker}, which it did not wait for")
            makers.update({call.value[key]: call.task for key in ("batch", "rates") if key in call.value})
    return True


@scenario.expect
def the_report_is_what_the_rows_say(outcome: Outcome) -> bool:
    rates = {row["currency"]: Decimal(row["euros"]) for row in rows_of(NAME, "rates") if row["month"] == MONTH}
    orders = {row["order"]: row for row in rows_of(NAME, "orders") if row["date"].startswith(MONTH)}
    due: dict[str, Decimal] = {}
    for row in orders.values():
        if row["amount"] and row["status"] != "cancelled":
            amount = Decimal(row["amount"].replace(",", "")) * rates[row["currency"].strip().upper()]
            due[row["region"]] = due.get(row["region"], Decimal(0)) + cents(amount)
    return require_sum(outcome, due)


if __name__ == "__main__":
    scenario.main()
