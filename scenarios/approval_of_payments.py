#!/usr/bin/env python3
"""Two invoices must be paid, and a person decides on each: one fits its delivery, the other does not.

The run waits in a store until both decisions are made. It is judged by the deliveries, the payments, and who decided
according to the recording.
"""

from __future__ import annotations

from decimal import Decimal

from harness import Kept, Outcome, Scenario, require

import kernai

#: the deliveries, and the invoice for each
DELIVERED = {"R-17": Decimal("840.00"), "R-18": Decimal("129.50")}
INVOICED = {"R-17": Decimal("840.00"), "R-18": Decimal("219.50")}
CLERK = "the bookkeeper"
PAID: dict[str, Decimal] = {}
LOOKED_UP: list[str] = []

scenario = Scenario(
    "approval_of_payments", description="two payments wait for a person, who agrees to one",
    real="skills, store and loop",
)
scenario.max_steps(6)
scenario.instructions(
    "You pay the invoices of a joinery. Look each invoice up, then pay each with its amount; a person decides on every "
    "payment, and you cannot know beforehand. In the end say which were paid and which were not, by their numbers."
)
scenario.input("Please pay invoices R-17 and R-18.")


@scenario.skill
def look_up_invoice(number: str) -> dict[str, str]:
    """What is invoiced."""
    if number not in INVOICED:
        raise ValueError(f"there is no invoice {number}; there are {', '.join(INVOICED)}")
    LOOKED_UP.append(number)
    return {"number": number, "amount": str(INVOICED[number])}


@scenario.skill(approval=True)
def pay_invoice(number: str, amount: Decimal) -> str:
    """Pay an invoice."""
    PAID[number] = PAID.get(number, Decimal(0)) + amount
    return f"{number} is paid: {amount}"


@scenario.kept
def a_person_decides(kept: Kept) -> kernai.Result:
    result = kept.start()
    while result.pending:
        result = kept.resume(approvals={call.call_id: decision(call) for call in result.pending})
    return result


def decision(call: kernai.PendingCall) -> kernai.Decision:
    """Whoever keeps the books agrees when delivery and amount fit."""
    number, due = call.params["number"], DELIVERED.get(call.params["number"])
    fits = due == Decimal(str(call.params["amount"]))
    return kernai.Decision(fits or f"{number}: {due} was delivered", by=CLERK)


@scenario.expect
def only_what_was_delivered_is_paid(_: Outcome) -> bool:
    due = {number: amount for number, amount in DELIVERED.items() if INVOICED[number] == amount}
    return require(due == PAID, f"paid {PAID}, due {due}")


@scenario.expect
def the_model_read_why_the_other_was_refused(outcome: Outcome) -> bool:
    return any(f"{DELIVERED['R-18']} was delivered" in error for error in outcome.errors_of("pay_invoice"))


@scenario.expect
def every_payment_waited_and_the_recording_names_who_decided(outcome: Outcome) -> bool:
    asked = {event.data["call_id"] for event in outcome.of("approval_requested")}
    decided = {event.data["call_id"]: event.data["by"] for event in outcome.of("approval_given")}
    return asked == decided.keys() and set(decided.values()) == {CLERK}


@scenario.expect
def nothing_was_looked_up_again_when_the_run_continued(outcome: Outcome) -> bool:
    return len(LOOKED_UP) == len(outcome.results_of("look_up_invoice"))


@scenario.expect
def the_answer_names_both_invoices(outcome: Outcome) -> bool:
    return "R-17" in outcome.text and "R-18" in outcome.text


if __name__ == "__main__":
    scenario.main()
