"""A real model of 135 million parameters: 50 turns under a grammar, over five sets of skills, and 28 free ones.

It is judged on protocol, not on intelligence. A turn is one response of SmolLM2-135M-Instruct: right where it is a
valid call or a final, cut off where it came to its last token before its end. It always takes the likeliest token, so
it may say one sentence for ever: all that it writes here is bounded by its types.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import MaxLen

from kernai import Agent, Event, Model, Provider, Skill, execute
from kernai_providers import resolve
from support import emit

CALLED, ANSWERED, WRONG, PROSE, CUT = "a valid call", "a final", "wrong", "prose", "cut off"
FREE = 28
TOKENS = 400  # more than the longest right response has

Word = Annotated[str, MaxLen(20)]
Words = Annotated[list[Word], MaxLen(3)]
Sentence = Annotated[str, MaxLen(80)]


@dataclass
class Line:
    """What is ordered."""

    product: Word
    count: int




def _gives(text: str) -> Any:
    return lambda **given: text


SETS: dict[str, list[Skill]] = {
    "weather": [
        Skill("weather", execute=_gives("rain"), description="The weather in a city.", inputs={"city": Word}),
        Skill("forecast", execute=_gives("sun"), description="Days ahead.", inputs={"city": Word, "days": int}),
    ],
    "calculator": [
        Skill("add", execute=_gives("5"), description="Add two numbers.", inputs={"a": float, "b": float}),
        Skill("round", execute=_gives("2"), description="Round.", inputs={"number": float, "up": bool}),
    ],
    "shop": [
        Skill("find", execute=_gives("[]"), description="Find products.", inputs={"text": Word, "tags": Words}),
        Skill("order", execute=_gives("ok"), description="Order.", inputs={"lines": Annotated[list[Line], MaxLen(3)]}),
    ],
    "lights": [
        Skill(
            "light", execute=_gives("done"), description="Switch a light.",
            inputs={"room": Literal["kitchen", "hall"], "on": bool},
        ),
        Skill("status", execute=_gives("all off"), description="Which lights are on.", inputs={}),
    ],
    "notes": [Skill("note", execute=_gives("noted"), description="Write a note.", inputs={"text": Sentence})],
}  # fmt: skip
ASKED = (
    "What is the weather in Lyon?", "Add 2 and 3.", "Find a red lamp.", "Switch the kitchen light on.",
    "Note: buy milk.", "Say hello.", "Order two of everything.", "Will it rain in Oslo for 3 days?",
    "Which lights are on?", "Stop now.",
)  # fmt: skip


def turn(asked: str, skills: list[Skill], provider: Provider, model: Model, *, constrain: bool) -> str:
    """What one response was."""
    agent = Agent(
        instructions="Use a skill, or answer in a few words.", provider=provider, model=model, skills=skills,
        protocols=[], constrain=constrain, max_steps=1, list_skills=True, output=Sentence,
        generation={"max_tokens": TOKENS, "temperature": 0},
    )  # fmt: skip
    events: list[Event] = []
    execute(agent, asked, on_event=events.append)
    told = {event.type for event in events}
    response = next(event.data for event in events if event.type == "llm_response")
    if response["finish_reason"] == "length":
        return CUT
    if told & {"skill_error", "builtin_error", "block_incomplete", "informational_only", "dialect", "answer_rejected"}:
        return WRONG
    if told & {"skill_result", "builtin_result"}:
        return CALLED
    return ANSWERED if "<final>" in response["content"] or 'type="final"' in response["content"] else PROSE


def main(*, quick: bool) -> None:
    """Counts of both kinds of turns, and a figure for the constrained ones."""
    provider, model = resolve("smollm2/135m", context=4096)
    turns = [(asked, skills) for skills in SETS.values() for asked in ASKED][:: 5 if quick else 1]
    held = Counter(turn(*one, provider, model, constrain=True) for one in turns)
    print(f"# constrained: {_written(held)}", flush=True)
    free = Counter(turn(*one, provider, model, constrain=False) for one in turns[:FREE])
    print(f"# free: {_written(free)}", flush=True)
    right = held[CALLED] + held[ANSWERED]
    emit("model: constrained turns that are right", right, held.total(), right / held.total(), ">= 1", unit="of")
    right = free[CALLED] + free[ANSWERED]
    emit("model: free turns that are right", right, free.total(), right / free.total(), ">= 0", unit="of")


def _written(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[kind]} {kind}" for kind in (CALLED, ANSWERED, WRONG, PROSE, CUT))
