#!/usr/bin/env python3
"""The same work is planned twice: the kernel runs both tasks, and the answer counts the work once.

The kernel does not guess that two tasks mean the same; it only requires different ids. So a skill that changes
something must be safe to call twice: here a refund is booked once for each order, in a SQLite database.
"""

from __future__ import annotations

import re
from collections import Counter
from datetime import date
from decimal import Decimal
from typing import Literal

from harness import Outcome, Scenario, require

from kit.answers import cents, require_sum
from kit.sources import Database, rows_of
from kit.workflow_evidence import workflow_of

NAME = "redundant_tasks"
SKILL = "settle_refund"
LATE_PERCENT_A_DAY, LATE_PERCENT_MOST = 2, 15
MAILS = (
    ("SO-1182", "defective", 'Ateliers Brun & Fils on SO-1182: "All three sanders came with cracked plugs."'),
    ("SO-1190", "late", 'Łódź Metal on SO-1190: "The cable came more than a week late."'),
    ("SO-1182", "defective", 'Ateliers Brun & Fils again on SO-1182: "The sanders are faulty, we want our money."'),
    ("SO-1207", "lost", 'Nordverk AS on SO-1207: "Our vices have never arrived."'),
    ("SO-1190", "late", 'Łódź Metal on SO-1190: "Still no word about the delay of our cable?"'),
)

scenario = Scenario(
    NAME,
    description="the same work is planned twice, and counted once",
    real="skills, database, workflow, loop and recording",
)
scenario.max_steps(8)
scenario.instructions(
    "You settle complaints of a wholesaler's customers. Every mail is handled by a sub-agent of its own, whatever it "
    'says: plan one task a mail, in one workflow with strategy "parallel". If your input is one mail or one complaint, '
    "you are that sub-agent: call settle_refund and answer with the booking. "
    "In the final answer each order has one line `ORDER: AMOUNT`, and the last line is `Total: AMOUNT`, what we pay "
    "altogether. An order is paid for once, however many mails came."
)
scenario.input("This morning's mails:\n" + "\n".join(f"{at}. {text}" for at, (_, _, text) in enumerate(MAILS, 1)))

# ------------------------------------------------------------------------------------------------------- skills

SCHEMA = """
CREATE TABLE refunds ("order" TEXT PRIMARY KEY, reason TEXT NOT NULL, amount TEXT NOT NULL, requests INTEGER NOT NULL)
"""
# One statement, so that two tasks at once cannot both be the first.
BOOK = """
INSERT INTO refunds VALUES (:order, :reason, :amount, 1) ON CONFLICT ("order") DO UPDATE SET requests = requests + 1
"""


ledger = Database(lambda connection: connection.execute(SCHEMA))
scenario.prepare(lambda: ledger.change("DELETE FROM refunds"))


@scenario.skill
def settle_refund(order: str, reason: Literal["defective", "late", "lost"]) -> dict[str, str]:
    """Work out what a customer gets back for an order and book it, once an order: a second request changes nothing."""
    amount = refund(order, reason)
    ledger.change(BOOK, order=order, reason=reason, amount=str(amount))
    (booked,) = ledger.query('SELECT "order", reason, amount FROM refunds WHERE "order" = :order', order=order)
    return {"booking": f"RF-{order.removeprefix('SO-')}", **booked}


def refund(order: str, reason: str) -> Decimal:
    """The amount due: the goods if defective, a share of them for each day if late, goods and shipping if lost."""
    rows = [row for row in rows_of(NAME, "orders") if row["order"] == order]
    if not rows:
        raise ValueError(f"there is no order {order!r}")
    (row,) = rows
    goods = Decimal(row["unit_price"]) * int(row["quantity"])
    if reason == "defective":
        return goods
    if reason == "lost":
        if row["delivered_on"]:
            raise ValueError(f"{order} was delivered on {row['delivered_on']}: it is not lost")
        return goods + Decimal(row["shipping"])
    if not row["delivered_on"]:
        raise ValueError(f"{order} was never delivered: it is lost and not late")
    days = (date.fromisoformat(row["delivered_on"]) - date.fromisoformat(row["promised_on"])).days
    if days <= 0:
        raise ValueError(f"{order} was not late: promised on {row['promised_on']}, there on {row['delivered_on']}")
    share = Decimal(min(days * LATE_PERCENT_A_DAY, LATE_PERCENT_MOST)) / 100
    return cents(goods * share)


# ------------------------------------------------------------------------------------------- what a good run shows


@scenario.expect
def the_kernel_ran_the_same_work_as_often_as_it_was_planned(outcome: Outcome) -> bool:
    """There is a task and a result for each mail, including mails that repeat another one."""
    tasks = workflow_of(outcome).tasks
    require(len(tasks) >= len(MAILS), f"there were {len(tasks)} tasks for {len(MAILS)} mails")
    good = {(call.params["order"], call.task) for call in outcome.calls_of(SKILL)}
    asked = Counter(order for order, _ in good)
    return asked == Counter(order for order, _, _ in MAILS)


@scenario.expect
def the_same_work_gave_the_same_result(outcome: Outcome) -> bool:
    """This holds whichever of two tasks came first."""
    failed = outcome.errors_of(SKILL)
    require(not failed, f"{SKILL} failed: {failed}")
    results = {(call.params["order"], str(call.value)) for call in outcome.calls_of(SKILL)}
    return len(results) == len({order for order, _ in results})


@scenario.expect
def each_order_was_booked_once(_: Outcome) -> bool:
    due = {(order, str(refund(order, reason))) for order, reason, _ in MAILS}
    booked = ledger.query('SELECT "order", amount, requests FROM refunds')
    require({(row["order"], row["amount"]) for row in booked} == due, f"booked {booked}, due {sorted(due)}")
    return sum(int(row["requests"]) for row in booked) == len(MAILS)


@scenario.expect
def the_answer_names_and_counts_each_order_once(outcome: Outcome) -> bool:
    due = {order: refund(order, reason) for order, reason, _ in MAILS}
    lines = Counter(re.findall(r"SO-\d{4}(?=[^\w\n]*:)", outcome.text))
    require(lines == Counter(list(due)), f"the answer has these lines: {dict(lines)}")
    return require_sum(outcome, due)


if __name__ == "__main__":
    scenario.main()
