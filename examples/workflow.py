"""A plan of three tasks: two sub-agents work at the same time, the third receives their results."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence

import kernai

PRICES = {"north": 40, "south": 35}
both_at_once = threading.Barrier(2)  # breaks after 10 seconds, unless two sub-agents wait at the same time


@kernai.skill(register=False)
def look_up_price(supplier: str) -> str:
    """Look up a supplier's price."""
    both_at_once.wait(timeout=10)
    return f"{PRICES[supplier]} euros"


PLAN = {
    "goal": "find the cheaper supplier",
    "strategy": "mixed",
    "tasks": [
        {"id": "north", "input": "What does north ask?", "parallel": True},
        {"id": "south", "input": "What does south ask?", "parallel": True},
        {"id": "compare", "input": "Which one is cheaper?", "depends_on": ["north", "south"]},
    ],
}


def answer(messages: Sequence[kernai.Message], _: kernai.Model) -> str:
    """The mock model. The first message shows whether it is the root or a sub-agent, the last one what to do next."""
    first, last = messages[1].text, messages[-1].text
    if "Which one is cheaper?" in first:
        return "<final>south</final>" if "35 euros" in first else "<final>unknown</final>"
    if 'name="look_up_price"' in last:
        return f"<final>{last[last.index('>') + 1 : last.rindex('<')]}</final>"
    for supplier in PRICES:
        if supplier in first:
            return f'<command name="look_up_price">{supplier}</command>'
    if 'name="tasks"' in last:
        return "<final>Order from south.</final>"
    return f'<block type="plan">{json.dumps(PLAN)}</block>'


def report(task_id: str, input: str, result: str | None, **more: object) -> None:
    """Called once for each task; `more` holds `duration_ms` and `error`."""
    print(f"task {task_id}: {input!r} -> {result or more['error']!r}")


agent = kernai.Agent(
    instructions="You buy parts.", provider=kernai.MockProvider().on_call(answer), skills=[look_up_price]
)

if __name__ == "__main__":
    result = kernai.execute(agent, "Where do we order?", on_task_complete=report)
    print(f"the model reads: {result.messages[2].text}")
    print(f"answer: {result.text} ({result.usage.model_calls} model calls)")
