"""An agent with one skill: the model calls it, reads the result, and answers.

`MockProvider` plays the model, so this runs without a key and without a network. With a real provider nothing else
changes.
"""

from __future__ import annotations

import kernai

STOCK = {"lamp": 12, "chair": 0}


@kernai.skill
def count_stock(product: str) -> str:
    """Say how many pieces of a product are in stock."""
    return f"{STOCK[product]} in stock"


agent = kernai.Agent(
    instructions="You answer questions about our stock. Look facts up, never guess.",
    provider=kernai.MockProvider(
        '<block type="command" name="count_stock">{"product": "lamp"}</block>',
        '<block type="final">We have 12 lamps.</block>',
    ),
    skills=[count_stock],
)

if __name__ == "__main__":
    result = kernai.execute(agent, "How many lamps do we have?")
    for message in result.messages:
        print(f"{message.role}: {message.text}")
    print(f"\nanswer: {result.text} ({result.stop_reason} after {result.steps} steps)")
