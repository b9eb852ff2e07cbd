"""A refund that survives its process: let it die in the middle, and run it again.

    python examples/durable_refund.py --die     dies while the money is on its way, as by a power cut
    python examples/durable_refund.py           goes on: the order is not looked up again, the money moves once

The run is kept in refund.db, what the bank has booked in bank.txt; delete both to begin anew.
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
    print(f"looking up order {number}")
    return {"number": number, "paid": 30}


@skill(register=False, idempotent=True)
def refund(order: int, amount: int, ctx: SkillContext) -> str:
    """Pay an amount back."""
    booked = BANK.read_text().splitlines() if BANK.exists() else []
    if ctx.idempotency_key not in booked:  # a bank does this for you: the same key moves money once
        BANK.write_text("\n".join([*booked, ctx.idempotency_key]))
        print(f"the bank moves {amount} for order {order}")
    if DIE:
        os._exit(1)  # the money has moved, and nobody has noted it
    return f"{amount} paid back"


agent = Agent(
    instructions="You refund orders.",
    skills=[find_order, refund],
    provider=MockProvider().on_call(
        lambda messages, _model: [
            '<block type="command" name="find_order">{"number": 42}</block>',
            '<block type="command" name="refund">{"order": 42, "amount": 30}</block>',
            "<final>Order 42 is refunded.</final>",
        ][sum(message.role == "assistant" for message in messages)]
    ),
)

if __name__ == "__main__":
    with SqliteStore("refund.db") as store:
        if RUN in [run.run_id for run in store.runs()]:
            print("going on with the run that died")
            result = kernai.resume(agent, RUN, store=store)
        else:
            result = kernai.execute(agent, "Refund order 42", store=store, run_id=RUN)
    print(result.text)
    print(f"the bank has booked {len(BANK.read_text().splitlines())} payment")
