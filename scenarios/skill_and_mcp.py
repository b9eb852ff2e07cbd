#!/usr/bin/env python3
"""A skill of this program and the tools of two MCP servers in one run; the result of each is used by the next.

The payments come from the filesystem server, the people's names from the memory server, a skill computes who owes whom,
and the filesystem server writes it down. The final file is judged only by the payments: after its transfers, everybody
must have paid the same.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from decimal import Decimal
from typing import TypedDict

from harness import ExpectationError, Outcome, Scenario, require

from kit.node_servers import Workspace

SETTLEMENT = "trip/settlement.csv"
CENT = Decimal("0.01")

workspace = Workspace("skill_and_mcp")
scenario = Scenario(
    "skill_and_mcp",
    description="a skill settles a trip's costs; MCP servers give it the payments and the names, and keep what it says",
    real="skill, MCP servers, files, loop and recording",
)
scenario.prepare(workspace.open)
scenario.mcp_config("scenarios/mcp.yml")
scenario.max_steps(14)
scenario.instructions(
    "You settle the costs of trips. The protocol `mcp` gives you the trip's folder, with paths relative to it like "
    "expenses.csv, and a memory that knows people; the command /protocols explains how to use them, /skills lists "
    "what else you can do. Never calculate on your own. Close your final answer with a line `NAME pays NAME AMOUNT` for"
    " each transfer."
)
scenario.input(
    "Who owes whom what after Lisbon? expenses.csv has what each of us paid, by our nicknames; the costs are shared "
    "equally by all who went, and your memory knows who that was. Write the transfers to settlement.csv, with the "
    "columns from, to and amount, and full names."
)


class Payment(TypedDict):
    """An amount that one person paid for all."""

    who: str
    amount: Decimal


class Transfer(TypedDict):
    """An amount that one person must give another."""

    giver: str
    taker: str
    amount: Decimal


def _check(people: list[str], payments: list[Payment]) -> None:
    if not people or len(set(people)) != len(people):
        raise ValueError("people must name everybody, and each of them once")
    unknown = sorted({payment["who"] for payment in payments} - set(people))
    if unknown:
        raise ValueError(f"not among the people, but paid: {', '.join(unknown)}; write the same names in both")
    odd = [str(payment["amount"]) for payment in payments if payment["amount"] < 0 or payment["amount"] % CENT]
    if odd:
        raise ValueError(f"an amount must be whole cents and not below 0, got {', '.join(odd)}")


@scenario.skill
def settle(people: list[str], payments: list[Payment]) -> list[Transfer]:
    """Work out the transfers after which all `people` have paid the same; `who` must be one of them."""
    _check(people, payments)
    cents = Counter(dict.fromkeys(people, 0))
    for payment in payments:
        cents[payment["who"]] += int(payment["amount"] // CENT)
    share, rest = divmod(sum(cents.values()), len(people))
    too_much = {name: cents[name] - share - (at < rest) for at, name in enumerate(people)}
    transfers: list[Transfer] = []
    while any(too_much.values()):
        giver, taker = min(too_much, key=too_much.__getitem__), max(too_much, key=too_much.__getitem__)
        amount = min(-too_much[giver], too_much[taker])
        too_much[giver] += amount
        too_much[taker] -= amount
        transfers.append({"giver": giver, "taker": taker, "amount": amount * CENT})
    return transfers


# ------------------------------------------------------------------------------------------- what a good run shows


def travellers() -> dict[str, str]:
    """The travellers by nickname, from the memory before the run."""
    people = [json.loads(line) for line in workspace.given("memory.jsonl").splitlines()]
    return {
        one["observations"][0].removeprefix("is called "): one["name"]
        for one in people if "went to Lisbon" in one["observations"]
    }


def paid() -> dict[str, Decimal]:
    """The amount that each traveller paid, by full name."""
    names = travellers()
    sums = dict.fromkeys(names.values(), Decimal(0))
    for row in csv.DictReader(io.StringIO(workspace.given("trip/expenses.csv"))):
        sums[names[row["who"]]] += Decimal(row["amount"])
    return sums


def written() -> list[tuple[str, str, Decimal]]:
    """The transfers in the file that the server has written. Raises `ExpectationError` if it is not such a file."""
    rows = csv.DictReader(io.StringIO(workspace.required(SETTLEMENT)), skipinitialspace=True)
    try:
        return [(row["from"].strip(), row["to"].strip(), Decimal(row["amount"].strip())) for row in rows]
    except (KeyError, AttributeError, ArithmeticError) as error:
        raise ExpectationError(f"{SETTLEMENT} is not made of the columns from, to and amount: {error!r}") from error


@scenario.expect
def after_the_transfers_everybody_has_paid_the_same(_: Outcome) -> bool:
    """This is checked to the cent in the file on disk, which has no more transfers than are needed."""
    balance = paid()
    share = sum(balance.values(), Decimal(0)) / len(balance)
    for giver, taker, amount in written():
        is_transfer = {giver, taker} <= balance.keys() and amount > 0
        require(is_transfer, f"{SETTLEMENT} lets {giver!r} pay {taker!r} {amount}")
        balance[giver] += amount
        balance[taker] -= amount
    off = {name: str(total) for name, total in balance.items() if abs(total - share) >= CENT}
    require(not off, f"the share is {share:.2f}, but after the transfers these have paid {off}")
    return len(written()) < len(balance)


@scenario.expect
def the_skill_was_given_the_servers_answers(outcome: Outcome) -> bool:
    """It was given all travellers, and all that they paid."""
    calls = outcome.calls_of("settle")
    require(calls, "the skill was never asked")
    given = calls[-1].params
    total = sum(Decimal(str(one["amount"])) for one in given["payments"])
    return (len(given["people"]), total) == (len(paid()), sum(paid().values()))


@scenario.expect
def the_server_wrote_down_what_the_skill_worked_out(outcome: Outcome) -> bool:
    worked_out = [Decimal(one["amount"]) for call in outcome.calls_of("settle")[-1:] for one in call.value]
    return sorted(worked_out) == sorted(amount for _, _, amount in written())


@scenario.expect
def the_answer_states_the_transfers_of_the_file(outcome: Outcome) -> bool:
    paid = re.findall(r"^\W*([\w ]+?) pays ([\w ]+?):? +\W?(\d+\.\d\d)\b", outcome.text.replace("*", ""), re.MULTILINE)
    return sorted((giver, taker, Decimal(amount)) for giver, taker, amount in paid) == sorted(written())


if __name__ == "__main__":
    scenario.main()
