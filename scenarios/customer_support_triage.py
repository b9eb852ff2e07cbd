#!/usr/bin/env python3
"""An agent works through the morning's support tickets: sorts them, looks customers up, replies, refunds, hands over.

The desk is real: it refuses what the policy forbids. The expected results are computed here from the customers' orders.
Only the subject of each ticket is taken from the fixture; no skill returns it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Literal, TypedDict

from harness import Outcome, Scenario, require

from kit.sources import text_of

NAME = "customer_support_triage"
REFUND_LIMIT = Decimal("50.00")
Record = dict[str, Any]

Category = Literal["shipping", "technical", "billing", "security", "feedback"]
Priority = Literal["low", "normal", "high", "urgent"]
Team = Literal["engineering", "billing", "security"]

# -------------------------------------------------------------------------------------------------------- desk


class Label(TypedDict):
    """The category of a ticket, and how soon somebody must look at it."""

    ticket: str
    category: Category
    priority: Priority


@dataclass
class Desk:
    """The records, and the actions on the tickets in this run."""

    records: Record = field(default_factory=lambda: json.loads(text_of(NAME, "desk.json")))
    labels: dict[str, tuple[str, str]] = field(default_factory=dict)
    replies: dict[str, str] = field(default_factory=dict)
    refunds: dict[str, Decimal] = field(default_factory=dict)
    escalations: dict[str, str] = field(default_factory=dict)

    def one(self, kind: str, id: str) -> Record:
        """The record of the `tickets` or `orders` with this id. Raises `ValueError` if there is none."""
        for record in self.records[kind]:
            if record["id"] == id:
                return dict(record)
        raise ValueError(f"there is no {id!r} among the {kind}")

    def customer_of(self, ticket: Record) -> Record:
        """Who wrote it."""
        return next(one for one in self.records["customers"] if one["email"] == ticket["from"])

    def orders_of(self, customer: Record) -> list[Record]:
        """What the customer has bought."""
        return [one for one in self.records["orders"] if one["customer"] == customer["id"]]


    def clear(self) -> None:
        """Forget what was done."""
        for done in (self.labels, self.replies, self.refunds, self.escalations):
            done.clear()


desk = Desk()


def overpaid(order: Record) -> Decimal:
    """What was paid above the order's total, in euros."""
    return sum(map(Decimal, order["payments"]), Decimal(0)) - Decimal(order["total"])


# ---------------------------------------------------------------------------------------------------- scenario

scenario = Scenario(
    NAME,
    description="an agent sorts seven support tickets, replies, refunds and hands over",
    real="skills, the desk with its policy, loop and recording",
)
scenario.max_steps(14)
scenario.instructions(
    "You are the first line of a webshop's support. For every new ticket:\n"
    "1. Label it. Category: shipping, technical, billing, security or feedback. Priority: security is urgent; feedback "
    "is low; of the others those of customers on the plan `business` are high, the rest normal.\n"
    "2. Money: refund what a customer paid above an order's total, to the cent, and nothing else; nothing is taken "
    f"back. You may refund up to {REFUND_LIMIT} euros; more is for the team `billing`.\n"
    "3. Hand over with `escalate`: technical faults to `engineering`, security to `security`, refunds above your limit "
    "to `billing`.\n"
    "4. Draft one reply to the customer, with the ticket's number in it, and the tracking number where the ticket is "
    "about a parcel. Tickets of category security get no reply from you.\n"
    "Look facts up with your skills, never guess them. When all tickets are done, answer with a line for each, "
    "`TICKET: category, priority`, and add `-> TEAM` to those that you handed over."
)
scenario.input("Good morning! Please work through the new tickets.")
scenario.prepare(desk.clear)


@scenario.skill
def read_tickets() -> list[Record]:
    """Read the new tickets: sender, subject and text of each."""
    return [{key: one[key] for key in ("id", "received", "from", "subject", "text")} for one in desk.records["tickets"]]


@scenario.skill
def find_customer(email: str) -> Record:
    """Find a customer by mail address: name, plan, and all orders with their payments in euros."""
    for customer in desk.records["customers"]:
        if customer["email"] == email.strip().lower():
            return {**customer, "orders": desk.orders_of(customer)}
    raise ValueError(f"no customer has the address {email!r}")


@scenario.skill
def label_tickets(labels: list[Label]) -> str:
    """Set category and priority of tickets, one or many at once."""
    for label in labels:
        desk.one("tickets", label["ticket"])
    desk.labels.update({label["ticket"]: (label["category"], label["priority"]) for label in labels})
    missing = [one["id"] for one in desk.records["tickets"] if one["id"] not in desk.labels]
    return f"{len(labels)} labelled; without a label: {', '.join(missing) or 'none'}"


@scenario.skill
def refund(ticket: str, order: str, euros: Decimal) -> str:
    """Refund money that a customer paid for an order. The policy holds: what it forbids is refused."""
    customer, bought = desk.customer_of(desk.one("tickets", ticket)), desk.one("orders", order)
    if bought["customer"] != customer["id"]:
        raise PermissionError(f"{order} is not an order of {customer['name']}")
    due = overpaid(bought) - desk.refunds.get(order, Decimal(0))
    if not 0 < euros <= due:
        raise PermissionError(f"{euros} euros are not due: for {order} {due} were paid too much")
    if euros > REFUND_LIMIT:
        raise PermissionError(f"{euros} euros are above your limit of {REFUND_LIMIT}: escalate it to billing")
    desk.refunds[order] = desk.refunds.get(order, Decimal(0)) + euros
    return f"{euros} euros refunded to {customer['name']} for {order}"


@scenario.skill
def escalate(ticket: str, team: Team, summary: Annotated[str, "what the team has to know"]) -> str:
    """Hand a ticket over to a team."""
    desk.one("tickets", ticket)
    if not summary.strip():
        raise ValueError("summary must say what the team has to know")
    desk.escalations[ticket] = team
    return f"{ticket} is with {team} now"


@scenario.skill
def draft_reply(ticket: str, text: str) -> str:
    """Draft the reply to the customer; a second draft replaces the first."""
    wrote = desk.one("tickets", ticket)["from"]
    if ticket not in text:
        raise ValueError(f"the reply must name its ticket, {ticket}")
    desk.replies[ticket] = text
    return f"drafted to {wrote}, {len(text)} characters"


# ------------------------------------------------------------------------------------------- what a good run shows


def due_label(ticket: Record) -> tuple[str, str]:
    """Category and priority by the rules."""
    by_category = {"security": "urgent", "feedback": "low"}
    by_plan = {"business": "high"}
    plan = desk.customer_of(ticket)["plan"]
    return ticket["category"], by_category.get(ticket["category"]) or by_plan.get(plan, "normal")


def due_refunds(*, above_limit: bool) -> dict[str, tuple[str, Decimal]]:
    """By ticket, the order and the amount that is due to a customer who wrote about money and paid too much."""
    tickets = [one for one in desk.records["tickets"] if one["category"] == "billing"]
    bought = [(one["id"], order) for one in tickets for order in desk.orders_of(desk.customer_of(one))]
    due = {ticket: (order["id"], overpaid(order)) for ticket, order in bought if overpaid(order) > 0}
    return {ticket: (order, sum_) for ticket, (order, sum_) in due.items() if (sum_ > REFUND_LIMIT) == above_limit}


def due_escalations() -> dict[str, str]:
    """The team for each ticket that must be escalated."""
    teams = {"technical": "engineering", "security": "security"}
    tickets = desk.records["tickets"]
    by_category = {one["id"]: teams[one["category"]] for one in tickets if one["category"] in teams}
    return by_category | dict.fromkeys(due_refunds(above_limit=True), "billing")


def require_equal(done: object, due: object) -> bool:
    return require(done == due, f"done: {done}; due: {due}")


@scenario.expect
def every_ticket_is_labelled_by_the_rules(_: Outcome) -> bool:
    due = {one["id"]: due_label(one) for one in desk.records["tickets"]}
    wrong = [ticket for ticket in due if desk.labels.get(ticket) != due[ticket]]
    return require_equal({one: desk.labels.get(one) for one in wrong}, {one: due[one] for one in wrong})


@scenario.expect
def what_was_overpaid_and_nothing_else_is_refunded(_: Outcome) -> bool:
    return require_equal(desk.refunds, dict(due_refunds(above_limit=False).values()))


@scenario.expect
def each_ticket_that_needs_a_team_is_with_it(_: Outcome) -> bool:
    return require_equal(desk.escalations, due_escalations())


@scenario.expect
def every_customer_but_the_hacked_one_is_answered(_: Outcome) -> bool:
    """A customer who misses a parcel reads its correct number."""
    tickets = desk.records["tickets"]
    require_equal(sorted(desk.replies), [one["id"] for one in tickets if one["category"] != "security"])
    for ticket in (one for one in tickets if one["category"] == "shipping"):
        numbers = [order["tracking"] for order in desk.orders_of(desk.customer_of(ticket))]
        is_told = any(number in desk.replies[ticket["id"]] for number in numbers)
        require(is_told, f"the reply to {ticket['id']} lacks {' and '.join(numbers)}")
    return True


@scenario.expect
def the_summary_says_who_has_what(outcome: Outcome) -> bool:
    lines = re.findall(r"(T-\d+)\W*:\W*(\w+)\W+(\w+)(?:.*(?:->|→)\W*(\w+))?", outcome.text)
    answered = {ticket: tuple(filter(None, words)) for ticket, *words in lines}
    teams = due_escalations()
    due = {one["id"]: (*due_label(one), *filter(None, [teams.get(one["id"])])) for one in desk.records["tickets"]}
    return require_equal(answered, due)


if __name__ == "__main__":
    scenario.main()
