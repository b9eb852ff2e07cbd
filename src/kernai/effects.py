"""What the loop can ask for.

The loop yields one of these and is sent what came of it; a failure is thrown into it. A driver performs them. Nothing
here does anything by itself, which is why one loop serves threads, asyncio, tests by hand and replays.

==============  =========================================  ===========================================
effect          sent back                                  may be thrown
==============  =========================================  ===========================================
`CallModel`     the `LlmResponse`                          whatever the provider raises
`CallSkill`     what the skill returned                    whatever it raises
`CallProtocol`  what the handler returned                  whatever it raises
`Start`         None, at once                              nothing
`NextEnded`     the `Ended` of one started piece of work   nothing of that work: `Ended` carries it
==============  =========================================  ===========================================

Ctrl-C, or the cancellation of an asyncio task, may be thrown at any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernai.block import Block
    from kernai.generation_options import GenerationOptions
    from kernai.message import Message
    from kernai.model import Model
    from kernai.outbox import Outbox
    from kernai.protocol_registry import Protocol
    from kernai.provider import Provider
    from kernai.skill_context import SkillContext
    from kernai.skill_definition import Skill


class Cancelled(BaseException):
    """Raised by the loop when it finds the run cancelled. Never seen outside of a run.

    Not an `Exception`, so that it cannot be taken for the failure of a call.
    """


@dataclass(slots=True)
class CallModel:
    """One turn of the model. Streamed pieces go to `on_chunk`, which may raise to stop the call."""

    provider: Provider
    messages: Sequence[Message]
    model: Model
    generation: GenerationOptions
    on_chunk: Callable[[str], None]


@dataclass(slots=True)
class CallSkill:
    """One call of a skill with arguments that have been validated."""

    call_id: str
    skill: Skill
    arguments: Mapping[str, Any]
    context: SkillContext[Any] | None


@dataclass(slots=True)
class CallProtocol:
    """One block handed to its protocol."""

    call_id: str
    protocol: Protocol
    block: Block
    context: SkillContext[Any]


@dataclass(slots=True)
class Start:
    """Begin `work`, a generator of effects itself, beside everything else. `outbox` is the one it fills."""

    key: Any
    work: Work
    outbox: Outbox


@dataclass(slots=True)
class NextEnded:
    """Wait for the next of the started pieces of work to end."""


@dataclass(slots=True)
class Ended:
    """How a started piece of work ended: with `value`, or with `error`."""

    key: Any
    value: Any = None
    error: BaseException | None = None


Effect = CallModel | CallSkill | CallProtocol | Start | NextEnded
#: a generator of effects: the loop itself, or one effect on its own
Work = Generator[Effect, Any, Any]


def alone(effect: Effect) -> Work:
    """One effect as a piece of work."""
    return (yield effect)
