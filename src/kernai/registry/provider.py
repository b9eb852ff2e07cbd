"""`Provider`: the interface between the kernel and a model's vendor. Subclass it and write `call`.

With ``Agent(calls="native")``, a provider with `calls_natively` also receives `Tools`: everything that the model may
call, as data, which the provider translates into its vendor's format. The loop sees blocks in either mode.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kernai.values.llm_response import LlmResponse
from kernai.values.media import Media
from kernai.values.message import Message, Part, placeholder
from kernai.values.model import GenerationOptions, Model


class Provider(ABC):
    """Calls a model. One instance serves many runs at once, so it must not keep the state of a call."""

    grammar_field: str | None = None
    """The request field for a grammar in GBNF, ``a.b`` for a field inside an object; None if the vendor has none.

    With `Agent(constrain=True)`, `generation.extra` has the grammar under this name.
    """

    calls_natively: bool = False
    """Whether `call` and `acall` use `on_chunk.tools`, for `Agent(calls="native")`.

    If that is a `kernai.Tools`, the provider sends the tools and `tools.messages(messages)`, whose messages have
    `blocks` and `answers`. It returns `LlmResponse(blocks=..., ends_turn=...)`, with `blocks=None` if the model called
    nothing.
    """

    raises_assertions: bool = False
    """Whether an `AssertionError` from this provider is a test's, to be raised to the caller of the run unchanged."""

    @abstractmethod
    def call(
        self, messages: Sequence[Message], model: Model, generation: GenerationOptions,
        on_chunk: Callable[[str], object],
    ) -> LlmResponse:
        """Makes one call. `messages` starts with the system message, if there is one.

        Call `on_chunk(text)` for each piece as it arrives, or never; only the returned `content` counts. Do not catch
        an exception from `on_chunk`: it cancels the run, and the connection should be closed. Raise `ProviderError` for
        any failure, including a stream that breaks off before the vendor's last event.

        In a run, `on_chunk` also has `deadline` (on the clock of `time.monotonic`, or None), `cancelled()`,
        `waiting(seconds, reason, attempt)` and `report_usage(usage)`; see docs/providers.md.
        """

    async def acall(
        self, messages: Sequence[Message], model: Model, generation: GenerationOptions, on_chunk: Callable[[str], Any]
    ) -> LlmResponse:
        """Makes one call under asyncio. By default, runs `call` in a worker thread.

        In your own version, `on_chunk` returns an awaitable. Awaiting it holds the stream until observers have caught
        up; it may be ignored.
        """
        from kernai._util.worker_pool import WorkerPool, in_worker  # not needed by providers with their own `acall`

        return await in_worker(WorkerPool(), lambda: self.call(messages, model, generation, on_chunk))

    def encode(self, parts: Iterable[Part], model: Model) -> list[Any]:
        """Every part in the vendor's format; a part that `encode_part` does not accept becomes its placeholder."""
        encoded = []
        for part in parts:
            shape = self.encode_part(part, model)
            if shape is None and not isinstance(part, str):
                # the placeholder is encoded too, so that all items of the list have the same form
                part = self.fallback_for(part)  # noqa: PLW2901 - from here on, the text stands for the part
                shape = self.encode_part(part, model)
            encoded.append(part if shape is None else shape)
        return encoded

    def encode_part(self, part: Part, model: Model) -> Any:
        """Override this to return one part in the vendor's format, or None for a part that the vendor does not accept.

        By default, text is unchanged and media are not accepted.
        """
        del model
        return part if isinstance(part, str) else None

    def fallback_for(self, part: Media) -> str:
        """The text in place of media that this model or vendor does not accept: ``[image unavailable: image/png]``."""
        return placeholder(part.kind, part.mime_type)


def check_provider(provider: object, name: str = "provider") -> Provider | None:
    """Returns a provider, or None, as it is. Raises `TypeError`, with the argument's `name`, for anything else."""
    if provider is not None and not isinstance(provider, Provider):
        if isinstance(provider, type):
            raise TypeError(f"{name} must be an instance: write {provider.__name__}(...)")
        known = "write provider, model = kernai_providers.resolve('vendor/model')"
        hint = "derive its class from kernai.Provider" if hasattr(provider, "call") else known
        raise TypeError(f"{name} must be a kernai.Provider, got {type(provider).__name__}: {hint}")
    return provider
