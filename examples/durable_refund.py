"""A refund that survives its process: let it die in the middle, and run it again.

    python examples/durable_refund.py --die     dies while the money is on its way, as in a power cut
    python examples/durable_refund.py           continues: the order is not looked up again, the money moves once

The run is stored in refund.db, the bank's bookings in bank.txt; delete both to start over. To look at the run:

    kernai runs refund.db
    kernai view refund.db refund-42 --open
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import kernai
from kernai import Agent, MockProvider, SkillContext, SqliteStore, skill

RUN = "refund-42"
BANK = Path("bank.txt")
DIE = "--die" in sys.argv


@skill(register=False)
def find_order(number: int) -> dict[str, int]:
    """Find an order and what was paid for it."""
    print(f"looking up order {number}", flush=True)
    return {"number": number, "paid": 30}


def bookings() -> list[str]:
    return BANK.read_text(encoding="utf-8").splitlines() if BANK.exists() else []


@skill(register=False, idempotent=True)
def refund(order: int, amount: int, ctx: SkillContext) -> str:
    """Pay an amount back for an order."""
    booked = bookings()
    if ctx.idempotency_key not in booked:  # a bank does this for you: the same key moves money once
        BANK.write_text("\n".join([*booked, ctx.idempotency_key]), encoding="utf-8")
        print(f"the bank moves {amount} for order {order}", flush=True)
    if DIE:
        os._exit(1)  # the money has moved, but the run has not recorded it
    return f"{amount} paid back"


agent = Agent(
    instructions="You refund orders.",
    skills=[find_order, refund],
    provider=MockProvider().on_call(
        lambda messages, _: [
            '<block type="command" name="find_order">{"number": 42}</block>',
            '<block type="command" name="refund">{"order": 42, "amount": 30}</block>',
            "<final>Order 42 is refunded.</final>",
        ][sum(message.role == "assistant" for message in messages)]
    ),
)

if __name__ == "__main__":
    with SqliteStore("refund.db") as store:
        if RUN in [run.run_id for run in store.runs()]:
            print(f"continuing run {RUN}")
            result = kernai.resume(agent, RUN, store=store)
        else:
            result = kernai.execute(agent, "Refund order 42", store=store, run_id=RUN)
    print(result.text)
    print(f"the bank has booked {len(bookings())} payment")
