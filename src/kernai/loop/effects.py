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

They are slotted classes written out, not dataclasses: two are made each step, and decorators would cost the import.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernai.blocks.block import Block
    from kernai.loop.outbox import Outbox
    from kernai.registry.protocol_registry import Protocol
    from kernai.registry.provider import Provider
    from kernai.registry.skill_context import SkillContext
    from kernai.registry.skill_definition import Skill
    from kernai.values.generation_options import GenerationOptions
    from kernai.values.message import Message
    from kernai.values.model import Model


class Cancelled(BaseException):
    """Raised by the loop when it finds the run cancelled. Never seen outside of a run.

    Not an `Exception`, so that it cannot be taken for the failure of a call.
    """


class CallModel:
    """One turn of the model. Streamed pieces go to `on_chunk`, which may raise to stop the call."""

    __slots__ = ("generation", "messages", "model", "on_chunk", "provider")

    def __init__(
        self,
        provider: Provider,
        messages: Sequence[Message],
        model: Model,
        generation: GenerationOptions,
        on_chunk: Callable[[str], None],
    ) -> None:
        self.provider = provider
        self.messages = messages
        self.model = model
        self.generation = generation
        self.on_chunk = on_chunk


class CallSkill:
    """One call of a skill with arguments that have been validated."""

    __slots__ = ("arguments", "call_id", "context", "skill")

    def __init__(
        self, call_id: str, skill: Skill, arguments: Mapping[str, Any], context: SkillContext[Any] | None
    ) -> None:
        self.call_id = call_id
        self.skill = skill
        self.arguments = arguments
        self.context = context


class CallProtocol:
    """One block handed to its protocol."""

    __slots__ = ("block", "call_id", "context", "protocol")

    def __init__(self, call_id: str, protocol: Protocol, block: Block, context: SkillContext[Any]) -> None:
        self.call_id = call_id
        self.protocol = protocol
        self.block = block
        self.context = context


class Start:
    """Begin `work`, a generator of effects itself, beside everything else. `outbox` is the one it fills."""

    __slots__ = ("key", "outbox", "work")

    def __init__(self, key: Any, work: Work, outbox: Outbox) -> None:
        self.key = key
        self.work = work
        self.outbox = outbox


class NextEnded:
    """Wait for the next of the started pieces of work to end."""

    __slots__ = ()


class Ended:
    """How a started piece of work ended: with `value`, or with `error`."""

    __slots__ = ("error", "key", "value")

    def __init__(self, key: Any, value: Any = None, error: BaseException | None = None) -> None:
        self.key = key
        self.value = value
        self.error = error


Effect = CallModel | CallSkill | CallProtocol | Start | NextEnded
#: a generator of effects: the loop itself, or one effect on its own
Work = Generator[Effect, Any, Any]


def alone(effect: Effect) -> Work:
    """One effect as a piece of work."""
    return (yield effect)
