"""A real model of 135 million parameters: 50 turns under a grammar, over five sets of skills, and 28 free ones.

It is judged on protocol, not on intelligence. A turn is one response of SmolLM2-135M-Instruct: right where it is a
valid call or a final, cut off where it came to its last token before its end. It always takes the likeliest token, so
it may say one sentence for ever: all that it writes under the grammar is bounded by its types. A free turn that is not
right is told so, and may be right then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import MaxLen

from kernai import Agent, Event, Model, Provider, Skill, execute
from kernai_providers import resolve
from support import emit

CALLED, ANSWERED, CORRECTED, WRONG, PROSE, CUT = KINDS = (
    "a valid call", "a final", "right when told", "wrong", "prose", "cut off",
)  # fmt: skip
RIGHT = (CALLED, ANSWERED)
FREE = 28
TOKENS = 400  # more than the longest right response under the grammar has
FREE_TOKENS = 120

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


_GOOD = {"skill_result", "builtin_result", "final"}
_BAD = {"skill_error", "builtin_error", "block_incomplete", "informational_only", "dialect", "answer_rejected"}


def constrained(asked: str, skills: list[Skill], provider: Provider, model: Model) -> str:
    """What a response under the grammar is."""
    agent = _agent(skills, provider, model, TOKENS, constrain=True, max_steps=1, output=Sentence)
    (outcome,) = responses(agent, asked)
    return outcome


def free(asked: str, skills: list[Skill], provider: Provider, model: Model) -> str:
    """The same without one. What is no call and no final is told to the model, which may try again once."""
    agent = _agent(skills, provider, model, FREE_TOKENS, max_steps=2, on_prose="correct")
    first, *more = responses(agent, asked)
    if first not in RIGHT and any(outcome in RIGHT for outcome in more):
        return CORRECTED
    return first


def _agent(skills: list[Skill], provider: Provider, model: Model, tokens: int, **options: Any) -> Agent[str]:
    return Agent(
        instructions="Use a skill, or answer in a few words.", provider=provider, model=model, skills=skills,
        protocols=[], list_skills=True, on_prose="accept", generation={"max_tokens": tokens, "temperature": 0},
        **options,
    )  # fmt: skip


def responses(agent: Agent[str], asked: str) -> list[str]:
    """What each response to a question is."""
    events: list[Event] = []
    execute(agent, asked, on_event=events.append)
    starts = [at for at, event in enumerate(events) if event.type == "llm_response"]
    return [_outcome(events[at:end]) for at, end in zip(starts, [*starts[1:], None], strict=True)]


def _outcome(events: Sequence[Event]) -> str:
    told = {event.type for event in events}
    if events[0].data["finish_reason"] == "length":
        return CUT
    if told & _BAD:
        return WRONG
    if told & _GOOD:
        return ANSWERED if "final" in told else CALLED
    return PROSE


def main(*, quick: bool) -> None:
    """Counts of both kinds of turns, and a figure for the constrained ones."""
    provider, model = resolve("smollm2/135m", context=4096)
    turns = [(asked, skills) for skills in SETS.values() for asked in ASKED][:: 5 if quick else 1]
    for name, way, some, aim in (("constrained", constrained, turns, ">= 1"), ("free", free, turns[:FREE], ">= 0")):
        counts = Counter(way(*one, provider, model) for one in some)
        print(f"# {name}: {', '.join(f'{counts[kind]} {kind}' for kind in KINDS)}", flush=True)
        right = sum(counts[kind] for kind in RIGHT)
        emit(f"model: {name} turns that are right", right, len(some), right / len(some), aim, unit="of")
