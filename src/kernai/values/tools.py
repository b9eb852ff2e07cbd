"""`Tool` and `Tools`: what a model may call in its vendor's own format; see `Agent(calls="native")`.

A provider with `calls_natively` gets them with the call, as data, and translates. The loop sees blocks in either mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernai.values.message import Message, Part, Wording


@dataclass(frozen=True, slots=True)
class Tool:
    """One thing to call. `schema` is the JSON Schema of its parameters, an object.

    A call becomes a block of this `type`: a ``command`` of this name, a `plan`, a `final`, or the request of the
    protocol of that name, whose parameters are `name` and `content`.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    type: str = "command"


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a model call that may be native, and the wording of the conversation for it.

    `output` is the JSON Schema of the answer; None for text. `blocks_system` is the system message for a provider that
    cannot call natively, `system` the one for others. `constrained`: `Agent(constrain=True)`.
    """

    tools: tuple[Tool, ...]
    blocks_system: Message
    system: Message
    output: Mapping[str, Any] | None = None
    constrained: bool = False

    def messages(self, messages: Sequence[Message]) -> list[Message]:
        """The conversation for a model that calls natively."""
        system, rest = (messages[0], messages[1:]) if messages and messages[0].role == "system" else (None, messages)
        return [*([] if system is None else [self._system(system)]), *map(_native, rest)]

    def _system(self, system: Message) -> Message:
        """Keeps what middleware has added to the system message."""
        before, there, after = system.text.partition(self.blocks_system.text)
        return Message("system", before + self.system.text + after) if there else system


def _native(message: Message) -> Message:
    if not any(type(part) is Wording for part in message.content):
        return message
    parts: list[Part] = [part.native if type(part) is Wording else part for part in message.content]
    return message.rewritten(parts)
