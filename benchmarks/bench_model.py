"""A real model: 50 turns under a grammar, over five sets of skills, 28 free ones, and 28 native ones.

By default, the model is SmolLM2-135M-Instruct, which runs in this process. `dev.py bench model --provider
openai/gpt-6-luna` calls another model, in each way that its provider supports, and prints rows for the table in
docs/model-results.md.

Models are judged by the protocol, not by intelligence. A turn is one response. It is right if it is a valid call or a
final, and cut off if the token limit ended it. The model always takes the likeliest token, so a small model may repeat
a sentence forever; under the grammar, types limit all that it writes. After a wrong free turn, the model reads a
correction and may try once more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from annotated_types import MaxLen

from kernai import Agent, Event, Model, Provider, ProviderError, Skill, __version__, execute
from kernai_providers import resolve
from support import emit

CALLED, ANSWERED, CORRECTED, WRONG, PROSE, CUT = KINDS = (
    "a valid call", "a final", "right when corrected", "wrong", "prose", "cut off",
)  # fmt: skip
RIGHT = (CALLED, ANSWERED)
FREE = 28
TOKENS = 400  # more than the longest correct response under the grammar needs
FREE_TOKENS = 120

Word = Annotated[str, MaxLen(20)]
Words = Annotated[list[Word], MaxLen(3)]
Sentence = Annotated[str, MaxLen(80)]


@dataclass
class Line:
    """One line of an order."""

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


Way = Callable[[str, list[Skill], Provider, Model], str]


def constrained(asked: str, skills: list[Skill], provider: Provider, model: Model) -> str:
    """The kind of a response under the grammar."""
    agent = _agent(skills, provider, model, TOKENS, constrain=True, max_steps=1, output=Sentence)
    (outcome,) = responses(agent, asked)
    return outcome


def free(asked: str, skills: list[Skill], provider: Provider, model: Model) -> str:
    """The same without a grammar. A response that is neither a call nor a final is corrected once."""
    return _corrected_once(_agent(skills, provider, model, FREE_TOKENS, max_steps=2, on_prose="correct"), asked)


def native(asked: str, skills: list[Skill], provider: Provider, model: Model) -> str:
    """The same with calls in the vendor's own format, where prose is an answer."""
    outcome = _corrected_once(_agent(skills, provider, model, FREE_TOKENS, max_steps=2, calls="native"), asked)
    return ANSWERED if outcome == PROSE else outcome


def _corrected_once(agent: Agent[str], asked: str) -> str:
    first, *more = responses(agent, asked)
    if first not in RIGHT and any(outcome in RIGHT for outcome in more):
        return CORRECTED
    return first


def _agent(skills: list[Skill], provider: Provider, model: Model, tokens: int, **options: Any) -> Agent[str]:
    return Agent(
        instructions="Use a skill, or answer in a few words.", provider=provider, model=model, skills=skills,
        protocols=[], list_skills=True, generation={"max_tokens": tokens, "temperature": 0},
        **{"on_prose": "accept", **options},
    )  # fmt: skip


def responses(agent: Agent[str], asked: str) -> list[str]:
    """The kind of each response to a question."""
    events: list[Event] = []
    result = execute(agent, asked, on_event=events.append)
    if isinstance(result.error, ProviderError):
        raise result.error
    starts = [at for at, event in enumerate(events) if event.type == "llm_response"]
    return [_outcome(events[at:end]) for at, end in zip(starts, [*starts[1:], None], strict=True)]


def _outcome(events: Sequence[Event]) -> str:
    types = {event.type for event in events}
    if events[0].data["finish_reason"] == "length":
        return CUT
    if types & _BAD:
        return WRONG
    if types & _GOOD:
        return ANSWERED if "final" in types else CALLED
    return PROSE


def ways_of(provider: Provider) -> dict[str, Way]:
    """The ways in which a model can be asked, by their names in the table."""
    found: dict[str, Way] = {"free": free}
    if provider.grammar_field is not None:
        found = {"constrained": constrained, **found}
    if provider.calls_natively:
        found["native"] = native
    return found


def main(*, quick: bool, provider: str = "smollm2/135m") -> None:
    """Counts the kinds for each way; emits a figure, and prints a row of the table."""
    options: dict[str, Any] = {"context": 4096} if provider == "smollm2/135m" else {}
    asked, model = resolve(provider, **options)
    turns = [(text, skills) for skills in SETS.values() for text in ASKED][:: 5 if quick else 1]
    rows = [f"| model | way | turns | {' | '.join(KINDS)} | kernai | on |"]
    for name, way in ways_of(asked).items():
        some = turns if name == "constrained" else turns[:FREE]
        counts = Counter(way(*one, asked, model) for one in some)
        aim = ">= 1" if name == "constrained" else ">= 0"
        emit(f"model: {name} turns that are right", sum(counts[kind] for kind in RIGHT), len(some), aim, "of")
        cells = " | ".join(str(counts[kind]) for kind in KINDS)
        rows.append(f"| `{provider}` | {name} | {len(some)} | {cells} | {__version__} | {datetime.now(UTC):%d %B %Y} |")
    print(*rows, sep="\n", flush=True)
