#!/usr/bin/env python3
"""A process is killed while it books fees, and another one continues its run.

The first process dies during a booking, after the bank has made it. The bank keeps its bookings in a file and accepts
each idempotency key once. So a good run has one booking for each member, and no member is looked up twice, whichever
calls are repeated.
"""

from __future__ import annotations

import json
import os
import signal
from typing import Any

from harness import Kept, Outcome, Scenario, require

import kernai

FEES = {"Ada": 120, "Ben": 60}
FIRST_KILLED = "Ben"
#: set when the run begins, also in the process that continues it
FOLDER: dict[str, Kept] = {}

scenario = Scenario(
    "crash_and_resume", description="a process is killed in the middle of a booking; another continues",
    real="skills, store, loop and the kill",
)
scenario.max_steps(6)
scenario.instructions(
    "You collect the yearly fees of a rowing club. Look the fee of a member up, then book it; one call a turn. In the "
    "end say who has paid how much."
)
scenario.input("Collect the fees of Ada and of Ben, in this order.")


@scenario.skill
def look_up_fee(member: str) -> int:
    """The yearly fee of a member, in euros."""
    if member not in FEES:
        raise ValueError(f"there is no member {member!r}; there are {', '.join(FEES)}")
    write("looked_up.txt", member)
    return FEES[member]


@scenario.skill(idempotent=True)
def book_fee(member: str, amount: int, ctx: kernai.SkillContext) -> str:
    """Book a fee with the bank."""
    if ctx.idempotency_key not in {booking["key"] for booking in bookings()}:
        write("bank.txt", json.dumps({"key": ctx.idempotency_key, "member": member, "amount": amount}))
    if FOLDER["run"].is_child and member == FIRST_KILLED:
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
    return f"{amount} euros are booked for {member}"


def write(name: str, line: str) -> None:
    with (FOLDER["run"].folder / name).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def lines(name: str) -> list[str]:
    path = FOLDER["run"].folder / name
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def bookings() -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines("bank.txt")]


class Seen:
    """The facts that expectations judge, since the folder is deleted with the run."""

    status = 0
    left: tuple[str, ...] = ()
    booked: tuple[tuple[str, int], ...] = ()
    looked_up: tuple[str, ...] = ()


@scenario.kept
def killed_and_resumed(kept: Kept) -> kernai.Result:
    FOLDER["run"] = kept
    if kept.is_child:
        return kept.start()
    Seen.status = kept.start_in_child()
    Seen.left = tuple(run.status for run in kept.store.runs())
    result = kept.resume()
    Seen.booked = tuple((one["member"], one["amount"]) for one in bookings())
    Seen.looked_up = tuple(lines("looked_up.txt"))
    return result


@scenario.expect
def the_first_process_was_killed_and_left_an_unfinished_run(_: Outcome) -> bool:
    return Seen.status not in (0, 1, 2) and Seen.left == ("abandoned",)


@scenario.expect
def every_fee_is_booked_once(_: Outcome) -> bool:
    is_due = sorted(Seen.booked) == sorted(FEES.items())
    return require(is_due, f"booked {Seen.booked}, due {tuple(FEES.items())}")


@scenario.expect
def no_fee_was_looked_up_again(_: Outcome) -> bool:
    return sorted(Seen.looked_up) == sorted(FEES)


@scenario.expect
def the_recording_says_that_the_booking_was_made_again(outcome: Outcome) -> bool:
    return [event.data["decision"] for event in outcome.of("in_flight")] == ["retry"]


@scenario.expect
def the_answer_names_every_fee(outcome: Outcome) -> bool:
    return all(member in outcome.text and str(fee) in outcome.text for member, fee in FEES.items())


if __name__ == "__main__":
    scenario.main()
