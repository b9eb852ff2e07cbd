#!/usr/bin/env python3
"""A plan whose tasks wait for each other is rejected before any of them starts; a plan without the cycle is run.

In the user's plan, freight waits for the total, the total for the discount, and the discount for the freight. The terms
of sale, which a skill returns, show which of these is wrong.
"""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise
from typing import Any, TypedDict

from harness import Outcome, Scenario, require

from kit.answers import cents, require_figures
from kit.sources import rows_of, text_of
from kit.workflow_evidence import require_handed_on, workflow_of

NAME = "cyclic_plan_rejected"
ORDER = {"PT-1003": 12, "HT-1010": 25, "FA-1012": 8}
PLAN = text_of(NAME, "plan.txt").strip()

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
    return text_of(NAME, "terms.txt")


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
    amount = _sum_of(lines, "unit_price") + cents(freight)
    percent = max(int(row["percent"]) for row in rows_of(NAME, "discounts") if amount >= Decimal(row["from_amount"]))
    return {"goods and freight": str(amount), "percent": percent}


@scenario.skill
def total_order(lines: list[OrderLine], freight: float, discount_percent: int) -> dict[str, str]:
    """Work out the total of an order, once freight and discount are known."""
    amount = _sum_of(lines, "unit_price") + cents(freight)
    return {"total": str(cents(amount * (100 - discount_percent) / 100))}


def _sum_of(lines: list[OrderLine], column: str) -> Decimal:
    values = {row["sku"]: Decimal(row[column]) for row in rows_of(NAME, "prices")}
    unknown = sorted({line["sku"] for line in lines} - set(values))
    if unknown:
        raise ValueError(f"there is no product {', '.join(unknown)}")
    return sum((values[line["sku"]] * line["quantity"] for line in lines), Decimal(0))


# ------------------------------------------------------------------------------------------- what a good run shows


@scenario.expect
def the_cyclic_plan_was_sent_unchanged_and_rejected(outcome: Outcome) -> bool:
    return require_handed_on(PLAN, outcome, rejected_as="cyclic")


@scenario.expect
def no_task_of_the_cycle_was_started(outcome: Outcome) -> bool:
    """No task ran before there was a plan without a cycle."""
    run = len(outcome.of("workflow_start"))
    require(run == 1, f"{run} workflows were run")
    types = [event.type for event in outcome.events if event.type in ("plan_rejected", "task_start")]
    return types == sorted(types)  # "plan_rejected" comes first


@scenario.expect
def the_corrected_plan_has_each_task_wait_for_what_it_really_needs(outcome: Outcome) -> bool:
    """Freight, then discount, then total, each by a separate task."""
    workflow = workflow_of(outcome)
    workflow.require_results_passed_on()
    order = []
    for skill in (price_freight, find_discount, total_order):
        good = outcome.calls_of(skill.name)
        require(good and good[0].task, f"{skill.name} gave no task a result")
        order.append(str(good[0].task))
    for earlier, later in pairwise(order):
        require(earlier in workflow.needed_by(later), f"{later} did not wait for {earlier}")
    return True


@scenario.expect
def the_answer_is_what_the_price_list_says(outcome: Outcome) -> bool:
    """The expected figures are computed here, in the order of the terms."""
    lines: list[OrderLine] = [{"sku": sku, "quantity": count} for sku, count in ORDER.items()]
    goods, weight = _sum_of(lines, "unit_price"), _sum_of(lines, "weight_kg")
    freight = next(Decimal(row["freight"]) for row in rows_of(NAME, "freight") if Decimal(row["up_to_kg"]) >= weight)
    steps = [row for row in rows_of(NAME, "discounts") if Decimal(row["from_amount"]) <= goods + freight]
    percent = int(steps[-1]["percent"])
    total = cents((goods + freight) * (100 - percent) / 100)
    return require_figures(outcome, {"Freight": freight, "Discount": percent, "Total": total})


if __name__ == "__main__":
    scenario.main()
