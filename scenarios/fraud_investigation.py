#!/usr/bin/env python3
"""Six sub-agents find frauds in five sources: a workflow with flags and dependencies, whose last task merges all.

A month of payments is in a SQLite database, the other sources are files; fixtures/fraud_investigation/make_payments.py
says what is hidden in them. The fraudulent accounts are computed again here, only from the files.
"""

from __future__ import annotations

import functools
import sqlite3
from collections import defaultdict
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from harness import Outcome, Scenario, require

from kit.answers import require_sum
from kit.sources import Database, rows_of
from kit.workflow_evidence import overlapping, workflow_of

NAME = "fraud_investigation"

scenario = Scenario(
    NAME,
    description="six sub-agents find frauds in five sources, in a workflow with dependencies",
    real="skills, database, files, workflow, loop and recording",
)
scenario.max_steps(10)
scenario.instructions(
    "You investigate card fraud. Five signs speak against an account: (1) a burst, that is at least 5 payments within "
    "10 minutes of together at least 1,000; (2) a login from a device that at least 3 accounts use; (3) its phone "
    "number was changed in the 48 hours before the burst; (4) the burst went to a merchant opened within 60 days "
    "before it that has at least 5 percent chargebacks; (5) the payout account of such a merchant is on the watchlist "
    "for money laundering or forgery. An account with at least four of the five signs is a fraud; its damage is the "
    "total of its burst.\n"
    'Investigate in one workflow with strategy "mixed", a task for each source and one more: payments and logins at '
    "once (parallel: true); the merchants of the bursts (parallel: true) once the payments are done; the customers "
    "with a sign so far, once payments and logins are done; the watchlist once the merchants are done; at last a "
    "verdict that depends on all five and weighs them. A sub-agent knows nothing but its input and the results it "
    "depends on, so say in each input what to look for. If your input is one such task, you are its sub-agent: do it "
    "alone and answer with all facts that the others need.\n"
    "In the final answer each fraud has a line `ACCOUNT: DAMAGE`, and the last line is `Total: DAMAGE`. Name no other "
    "account."
)
scenario.input("Which accounts were misused in October 2026, and how large is the damage?")

# ------------------------------------------------------------------------------------------------------ sources

SCHEMA = "CREATE TABLE payments (payment TEXT PRIMARY KEY, at TEXT, account TEXT, merchant TEXT, cents INTEGER)"
# For each payment, what the same account paid from then on within the minutes; the best such window of each account.
BURSTS = """
SELECT account, began, payments, max(cents) AS cents, merchants FROM (
    SELECT first.account, first.at AS began, count(*) AS payments, sum(next.cents) AS cents,
        group_concat(DISTINCT next.merchant) AS merchants
    FROM payments AS first JOIN payments AS next ON next.account = first.account
        AND next.at BETWEEN first.at AND datetime(first.at, :minutes || ' minutes')
    GROUP BY first.payment HAVING count(*) >= :payments AND sum(next.cents) >= :cents
) GROUP BY account ORDER BY account
"""


def fill(connection: sqlite3.Connection) -> None:
    connection.execute(SCHEMA)
    rows = [{**row, "cents": int(Decimal(row["amount"]) * 100)} for row in rows_of(NAME, "payments")]
    connection.executemany("INSERT INTO payments VALUES (:payment, :at, :account, :merchant, :cents)", rows)


database = Database(fill)
scenario.prepare(lambda: database.uri)  # made before any thread


@scenario.skill
def find_bursts(min_payments: int, minutes: int, min_total: float) -> list[dict[str, Any]]:
    """Source 1, the payments: the accounts with so many payments, of so much, within so many minutes."""
    found = database.query(BURSTS, payments=min_payments, minutes=minutes, cents=round(min_total * 100))
    return [
        {
            "account": row["account"],
            "began": row["began"],
            "payments": row["payments"],
            "total": f"{Decimal(row['cents']) / 100:.2f}",
            "merchants": sorted(row["merchants"].split(",")),
        }
        for row in found
    ]


@scenario.skill
def find_shared_devices(min_accounts: int) -> list[dict[str, Any]]:
    """Source 2, the logins: the devices from which at least so many accounts logged in."""
    shared = sorted((device, used) for device, used in users_of_devices().items() if len(used) >= min_accounts)
    return [{"device": device, "accounts": sorted(used)} for device, used in shared]


@scenario.skill
def look_up_merchants(merchants: list[str]) -> list[dict[str, str]]:
    """Source 3: name, opening day, share of chargebacks and payout account of merchants such as M-101."""
    return _found("merchants", "merchant", merchants)


@scenario.skill
def look_up_customers(accounts: list[str]) -> list[dict[str, str]]:
    """Source 4: name, country and last change of the phone number of accounts such as A-1001."""
    return _found("customers", "account", accounts)


@scenario.skill
def check_watchlist(payout_accounts: list[str]) -> list[dict[str, str]]:
    """Source 5: which payout accounts, such as P-5101, are on the watchlist, and why."""
    return [row for row in rows_of(NAME, "watchlist") if row["payout_account"] in payout_accounts]


def users_of_devices() -> dict[str, set[str]]:
    """The accounts that logged in from each device."""
    users: dict[str, set[str]] = defaultdict(set)
    for row in rows_of(NAME, "logins"):
        users[row["device"]].add(row["account"])
    return users


def _found(source: str, key: str, wanted: list[str]) -> list[dict[str, str]]:
    rows = {row[key]: row for row in rows_of(NAME, source)}
    unknown = [one for one in wanted if one not in rows]
    if unknown:
        raise ValueError(f"there is no {key} {', '.join(unknown)}")
    return [rows[one] for one in wanted]


SOURCES = (find_bursts, find_shared_devices, look_up_merchants, look_up_customers, check_watchlist)

# ------------------------------------------------------------------------------------------- what a good run shows


def investigators(outcome: Outcome) -> dict[str, str]:
    """The task that first read each source, one task for each."""
    found = {}
    for skill in SOURCES:
        tasks = [call.task for call in outcome.calls_of(skill.name)]
        require(tasks, f"nobody called {skill.name}")
        require(None not in tasks, f"the root itself called {skill.name}")
        found[skill.name] = str(tasks[0])
    require(len(set(found.values())) == len(SOURCES), f"one task looked into several sources: {found}")
    return found


@scenario.expect
def each_source_was_searched_by_its_own_task(outcome: Outcome) -> bool:
    return bool(investigators(outcome))


@scenario.expect
def the_tasks_ran_in_parallel_if_their_flags_allow_it(outcome: Outcome) -> bool:
    """Payments and logins run together, tasks without the flag one at a time."""
    workflow, by = workflow_of(outcome), investigators(outcome)
    require(workflow.plan["strategy"] == "mixed", f"the strategy was {workflow.plan['strategy']}")
    tasks = workflow.tasks
    flagged = {task["id"] for task in workflow.plan["tasks"] if task["parallel"]}
    together = overlapping([task for task in tasks.values() if task.id not in flagged])
    require(not together, f"these ran at the same time without the flag: {together}")
    return tasks[by["find_bursts"]].overlaps(tasks[by["find_shared_devices"]])


@scenario.expect
def each_task_was_given_what_it_builds_on(outcome: Outcome) -> bool:
    """Merchants come from the payments, the watchlist's accounts from the merchants, the customers from two tasks."""
    workflow, by = workflow_of(outcome), investigators(outcome)
    workflow.require_results_passed_on()
    wanted = {
        "look_up_merchants": {"find_bursts"},
        "look_up_customers": {"find_bursts", "find_shared_devices"},
        "check_watchlist": {"look_up_merchants"},
    }
    for later, earlier in wanted.items():
        missing = {by[one] for one in earlier} - workflow.needed_by(by[later])
        require(not missing, f"{by[later]} did not wait for {missing}")
    return True


@scenario.expect
def one_last_task_merged_all_the_others(outcome: Outcome) -> bool:
    workflow = workflow_of(outcome)
    everyone = set(workflow.tasks)
    merging = [one for one in everyone if workflow.needed_by(one) == everyone - {one}]
    require(merging, "no task waits for all the others")
    for account in frauds():
        require(account in workflow.tasks[merging[0]].result, f"{merging[0]} does not name {account}")
    return True


@scenario.expect
def the_frauds_and_the_damage_are_what_the_sources_say(outcome: Outcome) -> bool:
    due = frauds()
    for row in rows_of(NAME, "customers"):
        require((row["account"] in outcome.text) == (row["account"] in due), f"{row['account']} is wrong in the answer")
    return require_sum(outcome, due)


@functools.cache
def frauds() -> dict[str, Decimal]:
    """The accounts with four signs and their damage, computed payment by payment, without the skills."""
    payments: dict[str, list[tuple[datetime, str, Decimal]]] = defaultdict(list)
    for row in rows_of(NAME, "payments"):
        payments[row["account"]].append((datetime.fromisoformat(row["at"]), row["merchant"], Decimal(row["amount"])))
    found = {}
    for account, paid in payments.items():
        for began, _, _ in sorted(paid):
            burst = [one for one in paid if began <= one[0] <= began + timedelta(minutes=10)]
            total = sum((amount for _, _, amount in burst), Decimal(0))
            if len(burst) >= 5 and total >= 1000:
                signs = 1 + _signs(account, began, {merchant for _, merchant, _ in burst})
                found.update({account: total} if signs >= 4 else {})
                break  # the first window is the largest: later ones of the same burst have fewer payments
    return found


def _signs(account: str, began: datetime, merchants: set[str]) -> int:
    """How many of the other signs, besides the burst, an account shows."""
    shared = any(account in users and len(users) >= 3 for users in users_of_devices().values())
    (changed,) = (row["phone_changed_at"] for row in rows_of(NAME, "customers") if row["account"] == account)
    fresh = bool(changed) and began - timedelta(hours=48) <= datetime.fromisoformat(changed) <= began
    young = [
        row for row in rows_of(NAME, "merchants")
        if row["merchant"] in merchants and float(row["chargeback_percent"]) >= 5
        and began.date() - timedelta(days=60) <= date.fromisoformat(row["opened_on"])
    ]
    listed = {row["payout_account"] for row in rows_of(NAME, "watchlist")}
    return shared + fresh + bool(young) + any(row["payout_account"] in listed for row in young)


if __name__ == "__main__":
    scenario.main()
