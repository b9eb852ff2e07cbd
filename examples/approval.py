"""A payment that waits for a person: the process may end while it waits.

    python examples/approval.py                 asks for the payment, and ends
    python examples/approval.py yes             another process, next week: approves, and the run continues
    python examples/approval.py "too expensive" or: refuses, with this reason

The run is stored in approval.db in the current folder; delete the file to start over. The same on the command line:

    kernai resume examples/approval.py approval.db refund-42 --approve 0.0
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import kernai
from kernai import Agent, Decision, Message, MockProvider, Model, SqliteStore, skill

RUN = "refund-42"


@skill(register=False, approval=True)
def refund(order: int, amount: int) -> str:
    """Pay an amount back to whoever placed the order."""
    return f"{amount} paid back for order {order}"


def answer(messages: Sequence[Message], _: Model) -> str:
    """The mock model: it pays, then reports the outcome."""
    last = messages[-1].text
    if last.startswith("Please"):
        return '<block type="command" name="refund">{"order": 42, "amount": 30}</block>'
    if "paid back" in last:
        return "<final>Order 42 is refunded.</final>"
    why = last.removesuffix("</block>").rpartition(">")[2]
    return f"<final>I may not refund it: {why}</final>"


agent = Agent(instructions="You refund orders.", skills=[refund], provider=MockProvider().on_call(answer))


def main(said: list[str]) -> None:
    with SqliteStore("approval.db") as store:
        if RUN not in [run.run_id for run in store.runs()]:
            result = kernai.execute(agent, "Please refund order 42.", store=store, run_id=RUN)
        else:
            result = kernai.resume(agent, RUN, store=store)
        if result.pending and said:
            (call,) = result.pending
            decision = Decision(said[0].lower() in ("y", "yes") or said[0], by="you")
            result = kernai.resume(agent, RUN, store=store, approvals={call.call_id: decision})
        for call in result.pending:
            print(f"waits for you: {call.skill} {call.params}; say yes, or why not")
        if result.text:
            print(result.text)


if __name__ == "__main__":
    main(sys.argv[1:])
