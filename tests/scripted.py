"""Providers that do what a function says, for tests that look at how a model is called."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from kernai import LlmResponse, Message, Provider

OnChunk = Callable[[str], Any]
#: returns the text of the response, or raises; an `AsyncScripted` may await what it returns
Script = Callable[[Sequence[Message], OnChunk], Any]


class Scripted(Provider):
    """Answers as `script(messages, on_chunk)` says, in a thread if the driver is asynchronous."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.calls = 0

    def call(self, messages: Sequence[Message], model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
        self.calls += 1
        return LlmResponse(self.script(messages, on_chunk))


class AsyncScripted(Scripted):
    """Like `Scripted`, on the event loop if there is one."""

    async def acall(self, messages: Sequence[Message], model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
        self.calls += 1
        await asyncio.sleep(0)
        said = self.script(messages, on_chunk)
        return LlmResponse(said if isinstance(said, str) else await said)
