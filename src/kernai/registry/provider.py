"""`Provider`: the interface between the kernel and a model's vendor. Subclass it and write `call`.

`Tools` is what a provider with `calls_natively` gets with a call: what a model may call in its vendor's own format (see
`Agent(calls="native")`), as data, which the provider translates. The loop sees blocks in either mode.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernai._util.api import Value
from kernai.values.message import Message, Part, Wording, placeholder

if TYPE_CHECKING:
    from kernai.values.llm_response import LlmResponse
    from kernai.values.media import Media
    from kernai.values.model import GenerationOptions, Model


class Provider(ABC):
    """Asks a model. One instance serves many runs at once, so keep nothing about a call on it."""

    grammar_field: str | None = None
    """The request field for a grammar in GBNF, ``a.b`` for one inside an object; None if the vendor takes none.

    With `Agent(constrain=True)` the grammar is under this name in `generation.extra`.
    """

    calls_natively: bool = False
    """Whether `call` and `acall` look at `on_chunk.tools`, for `Agent(calls="native")`.

    Where that is a `kernai.Tools`, such a provider sends the tools and `tools.messages(messages)`, in which messages
    have `blocks` and `answers`, and answers with `LlmResponse(blocks=..., ends_turn=...)`; without calls `blocks` is
    None.
    """

    raises_assertions: bool = False
    """Whether an `AssertionError` from here is a test's, and is raised to the caller of the run as it is."""

    @abstractmethod
    def call(
        self,
        messages: Sequence[Message],
        model: Model,
        generation: GenerationOptions,
        on_chunk: Callable[[str], object],
    ) -> LlmResponse:
        """One turn. `messages` starts with the system message, if there is one.

        Call `on_chunk(text)` for each piece as it arrives, or never; what counts is the returned `content`. Let an
        exception from `on_chunk` pass: it cancels the run, and the connection should be closed. Raise `ProviderError`
        for any failure, also for a stream that breaks off before the vendor's last event.
        """

    async def acall(
        self, messages: Sequence[Message], model: Model, generation: GenerationOptions, on_chunk: Callable[[str], Any]
    ) -> LlmResponse:
        """The same for asyncio. By default `call` runs in a worker thread.

        In a native version `on_chunk` returns an awaitable: awaiting it holds the stream until observers have caught
        up. It may be ignored.
        """
        from kernai._util.worker_pool import WorkerPool, in_worker  # many providers have an `acall`

        return await in_worker(WorkerPool(), lambda: self.call(messages, model, generation, on_chunk))

    def encode(self, parts: Iterable[Part], model: Model) -> list[Any]:
        """Every part in the vendor's shape; one that `encode_part` does not take becomes its placeholder."""
        encoded = []
        for part in parts:
            shape = self.encode_part(part, model)
            if shape is None and not isinstance(part, str):
                # the placeholder is encoded likewise, so that the list always has one shape
                text = self.fallback_for(part)
                shape = self.encode_part(text, model)
                shape = text if shape is None else shape
            encoded.append(part if shape is None else shape)
        return encoded

    def encode_part(self, part: Part, model: Model) -> Any:
        """Override point: the vendor's shape of one part, or None for what it does not take. Text stays unchanged."""
        del model
        return part if isinstance(part, str) else None

    def fallback_for(self, part: Media) -> str:
        """The text in place of media that this model or vendor cannot take: ``[image unavailable: image/png]``."""
        return placeholder(part.kind, part.mime_type)


def check_provider(provider: object, name: str = "provider") -> Provider | None:
    """The provider itself, or None; `TypeError` naming the argument `name` for anything else."""
    if provider is not None and not isinstance(provider, Provider):
        if isinstance(provider, type):
            raise TypeError(f"{name} must be an instance: write {provider.__name__}(...)")
        raise TypeError(f"{name} must be a kernai.Provider, got {type(provider).__name__}")
    return provider


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tool(Value):
    """One thing to call. `schema` is the JSON Schema of its parameters, an object.

    A call becomes a block of this `type`: a ``command`` of this name, a `plan`, a `final`, or the request of the
    protocol of that name, whose parameters are `name` and `content`.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    type: str = "command"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tools(Value):
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
