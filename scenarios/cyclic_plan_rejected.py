#!/usr/bin/env python3
"""A plan whose tasks wait for each other is rejected before any of them starts; a plan without the cycle is run.

In the user's plan, freight waits for the total, the total for the discount, and the discount for the freight. The terms
of sale, which a skill returns, show which of these is wrong.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from itertools import pairwise
from typing import Any, TypedDict

from harness import Outcome, Scenario

from kit.workflow_evidence import (
    FIXTURES,
    calls_of,
    last_workflow,
    rejections_of,
    require,
    require_figures,
    require_handed_on,
    require_results_passed_on,
    rows_of,
    workflows_of,
)

NAME = "cyclic_plan_rejected"
ORDER = {"PT-1003": 12, "HT-1010": 25, "FA-1012": 8}
PLAN = (FIXTURES / NAME / "plan.txt").read_text(encoding="utf-8").strip()

scenario = Scenario(
    NAME,
    description="a plan whose tasks wait for each other is rejected, one without the cycle is run",
    real="skills, prices, plan check, workflow, loop and recording",
)
scenario.max_steps(8)
scenario.instructions(
    "You price orders. When the user hands you a plan, write it into a plan block first, alone and to the letter, even "
    "where it looks wrong to you: the program decides whether it can be run. If it is not run, its tasks wait for each "
    "other in a circle: call read_terms, and write the same tasks as a plan in which each waits only for what the "
    "terms say it needs. If your input is one such task, you are its sub-agent: use the skill for it, once, with the "
    "figures that you were given, and answer with its whole result. "
    "In the final answer write the lines `Freight: AMOUNT`, `Discount: PERCENT` and `Total: AMOUNT`."
)
scenario.input(
    f"What does the order {', '.join(f'{count} {sku}' for sku, count in ORDER.items())} come to? "
    f"Work by this plan:\n\n{PLAN}"
)

# ------------------------------------------------------------------------------------------------------- skills


class OrderLine(TypedDict):
    """How many of one product are ordered."""

    sku: str
    quantity: int


@scenario.skill
def read_terms() -> str:
    """Read the terms of sale: what freight, discount and total go by."""
    return (FIXTURES / NAME / "terms.txt").read_text(encoding="utf-8")


@scenario.skill
def price_freight(lines: list[OrderLine]) -> dict[str, str]:
    """Work out the freight of an order."""
    weight = _sum_of(lines, "weight_kg")
    fitting = [row for row in rows_of(NAME, "freight") if weight <= Decimal(row["up_to_kg"])]
    if not fitting:
        raise ValueError(f"{weight} kg is too heavy for one order")
    return {"weight_kg": str(weight), "freight": fitting[0]["freight"]}


@scenario.skill
def find_discount(lines: list[OrderLine], freight: float) -> dict[str, Any]:
    """Work out the discount on an order whose freight is known."""
    amount = _sum_of(lines, "unit_price") + _money(freight)
    percent = max(int(row["percent"]) for row in rows_of(NAME, "discounts") if amount >= Decimal(row["from_amount"]))
    return {"goods and freight": str(amount), "percent": percent}


@scenario.skill
def total_order(lines: list[OrderLine], freight: float, discount_percent: int) -> dict[str, str]:
    """Work out the total of an order, once freight and discount are known."""
    amount = _sum_of(lines, "unit_price") + _money(freight)
    return {"total": str(_money(amount * (100 - discount_percent) / 100))}


def _sum_of(lines: list[OrderLine], column: str) -> Decimal:
    values = {row["sku"]: Decimal(row[column]) for row in rows_of(NAME, "prices")}
    unknown = sorted({line["sku"] for line in lines} - set(values))
    if unknown:
        raise ValueError(f"there is no product {', '.join(unknown)}")
    return sum((values[line["sku"]] * line["quantity"] for line in lines), Decimal(0))


def _money(amount: Decimal | float) -> Decimal:
    return Decimal(str(amount)).quantize(Decimal("0.01"), ROUND_HALF_UP)


# ------------------------------------------------------------------------------------------- what a good run shows


@scenario.expect
def the_cyclic_plan_was_sent_unchanged_and_rejected(outcome: Outcome) -> bool:
    """The reason is recorded."""
    require_handed_on(PLAN, outcome)
    rejected = rejections_of(outcome)
    return bool(rejected) and rejected[0][:2] == ("", "cyclic")


@scenario.expect
def no_task_of_the_cycle_was_started(outcome: Outcome) -> bool:
    """No task ran before there was a plan without a cycle."""
    started = [at for at, event in enumerate(outcome.events) if event.type == "task_start"]
    rejected = [at for at, event in enumerate(outcome.events) if event.type == "plan_rejected"]
    require(len(workflows_of(outcome)) == 1, f"{len(workflows_of(outcome))} workflows were run")
    require(rejected, "no plan was rejected")
    return bool(started) and min(started) > max(rejected)


@scenario.expect
def the_corrected_plan_has_each_task_wait_for_what_it_really_needs(outcome: Outcome) -> bool:
    """Freight, then discount, then total, each by a separate task."""
    workflow = last_workflow(outcome)
    require_results_passed_on(workflow)
    by = {}
    for skill in (price_freight, find_discount, total_order):
        good = [call for call in calls_of(outcome, skill.name) if call.error is None]
        require(good and good[0].task, f"{skill.name} gave no task a result")
        by[skill.name] = str(good[0].task)
    order = [workflow.tasks[by[skill.name]] for skill in (price_freight, find_discount, total_order)]
    for earlier, later in pairwise(order):
        require(earlier.id in workflow.needed_by(later.id), f"{later.id} did not wait for {earlier.id}")
    return True


@scenario.expect
def the_answer_is_what_the_price_list_says(outcome: Outcome) -> bool:
    """The expected figures are computed here, in the order of the terms."""
    products = {row["sku"]: row for row in rows_of(NAME, "prices")}
    goods = sum((Decimal(products[sku]["unit_price"]) * count for sku, count in ORDER.items()), Decimal(0))
    weight = sum((Decimal(products[sku]["weight_kg"]) * count for sku, count in ORDER.items()), Decimal(0))
    freight = next(Decimal(row["freight"]) for row in rows_of(NAME, "freight") if Decimal(row["up_to_kg"]) >= weight)
    steps = [row for row in rows_of(NAME, "discounts") if Decimal(row["from_amount"]) <= goods + freight]
    percent = int(steps[-1]["percent"])
    total = _money((goods + freight) * (100 - percent) / 100)
    return require_figures(outcome.text, {"Freight": freight, "Discount": percent, "Total": total})


if __name__ == "__main__":
    scenario.main()
