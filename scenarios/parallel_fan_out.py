#!/usr/bin/env python3
"""Four sub-agents ask four carriers for an offer, really at the same time.

The desks bid against each other in one round: each waits until all four have been asked, and gives up if that does not
happen. So tasks that run one after the other get no offer at all, and no clock is needed to judge this.
"""

from __future__ import annotations

import threading
from decimal import Decimal
from typing import Any, Literal

from harness import Outcome, Scenario, require

from kit.answers import cents, require_figures
from kit.sources import rows_of
from kit.workflow_evidence import workflow_of

NAME = "parallel_fan_out"
LANE = "Lyon-Bergen"
WEIGHT_KG = 640
#: seconds for which a desk waits for the others: with a slow vendor, four sub-agents need some time to ask
PATIENCE = 30.0

Carrier = Literal["Nordfrakt", "Rhône Express", "Skagerrak Line", "Balticargo"]
CARRIERS = frozenset({"Nordfrakt", "Rhône Express", "Skagerrak Line", "Balticargo"})

scenario = Scenario(
    NAME,
    description="four sub-agents ask for offers at the same time",
    real="skills, threads, workflow, loop and recording",
)
scenario.max_steps(6)
scenario.instructions(
    f"You buy freight. Your carriers are {', '.join(sorted(CARRIERS))}. They bid against each other: a carrier answers "
    "only while all four are being asked at the same time. So ask them in one workflow with the strategy "
    '"parallel", a task for each carrier. If your input is about one carrier alone, you are its sub-agent: call '
    "ask_for_offer once and answer with the offer. In the final answer give each carrier a line "
    "`CARRIER: PRICE`, then a line `Cheapest: CARRIER, PRICE` and a line `Fastest: CARRIER, DAYS`."
)
scenario.input(f"We have to send {WEIGHT_KG} kg from Lyon to Bergen. Which carrier is cheapest, which one fastest?")

# ------------------------------------------------------------------------------------------------------- skills


desks: set[str] = set()  # the carriers that wait for the others
changed = threading.Condition()
scenario.prepare(desks.clear)


def join_round(carrier: str) -> None:
    """Wait for the other carriers, and leave when all are there. Raises `TimeoutError` if one is missing for long."""
    with changed:
        desks.add(carrier)
        changed.notify_all()
        if not changed.wait_for(lambda: desks == CARRIERS, PATIENCE):
            missing = ", ".join(sorted(CARRIERS - desks))
            desks.discard(carrier)
            raise TimeoutError(
                f"{carrier} makes no offer: {missing} were not asked at the same time. Ask all four at once."
            )


@scenario.skill
def ask_for_offer(carrier: Carrier, lane: Literal["Lyon-Bergen", "Lyon-Osaka"], weight_kg: int) -> dict[str, Any]:
    """Ask a carrier for an offer. It answers only while all four carriers are being asked at the same time."""
    join_round(carrier)
    price, days = offers(lane, weight_kg)[carrier]
    return {"carrier": carrier, "price": str(price), "currency": "EUR", "days": days}


def offers(lane: str, weight_kg: int) -> dict[str, tuple[Decimal, int]]:
    """Price and days of each carrier on a lane."""
    found = {}
    for row in rows_of(NAME, "tariffs"):
        if row["lane"] == lane:
            plain = Decimal(row["base"]) + Decimal(row["per_kg"]) * weight_kg
            price = plain * (1 + Decimal(row["fuel_percent"]) / 100)
            found[row["carrier"]] = (cents(price), int(row["days"]))
    return found


# ------------------------------------------------------------------------------------------- what a good run shows


@scenario.expect
def all_four_carriers_were_being_asked_at_the_same_time(outcome: Outcome) -> bool:
    """The last question was asked before the first answer came, and each by a separate task."""
    answered = outcome.calls_of("ask_for_offer")
    asked = {call.params["carrier"] for call in answered}
    require(asked == CARRIERS, f"only these made an offer: {sorted(asked) or 'none'}")
    tasks = {call.task for call in answered}
    require(None not in tasks and len(tasks) >= len(CARRIERS), f"the offers came by these tasks alone: {tasks}")
    return max(call.started for call in answered) < min(call.ended for call in answered)


@scenario.expect
def every_task_had_started_before_the_first_one_ended(outcome: Outcome) -> bool:
    """This is checked for the tasks that have nothing to wait for."""
    free = [task for task in workflow_of(outcome).tasks.values() if not task.depends_on]
    require(len(free) >= len(CARRIERS), f"only {len(free)} tasks depend on no other")
    return max(task.started for task in free) < min(task.ended for task in free)


@scenario.expect
def the_answer_has_every_price_the_cheapest_and_the_fastest(outcome: Outcome) -> bool:
    due = offers(LANE, WEIGHT_KG)
    cheapest = min(due, key=lambda carrier: due[carrier][0])
    fastest = min(due, key=lambda carrier: due[carrier][1])
    lines = outcome.text.splitlines()
    require(any("Cheapest" in line and cheapest in line for line in lines), f"{cheapest} is not named as the cheapest")
    require(any("Fastest" in line and fastest in line for line in lines), f"{fastest} is not named as the fastest")
    prices = {carrier: price for carrier, (price, _) in due.items()}
    return require_figures(outcome, {**prices, "Cheapest": due[cheapest][0], "Fastest": Decimal(due[fastest][1])})


if __name__ == "__main__":
    scenario.main()
