"""Helpers of the middleware tests: scripted providers, and the events of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kernai import Agent, LlmResponse, Message, Model, Provider, ProviderError, Recorder, skill

FINAL = "<final>done</final>"
RETRYABLE = ProviderError("busy", retryable=True, code="overloaded")


class Script(Provider):
    """Gives the scripted answers in turn: texts are streamed in two pieces, `LlmResponse`s returned, errors raised."""

    def __init__(self, *answers: str | LlmResponse | BaseException, pieces: str = "") -> None:
        self.answers = list(answers)
        self.pieces = pieces
        self.asked: list[tuple[list[Message], Model]] = []

    def call(self, messages: Sequence[Message], model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
        self.asked.append((list(messages), model))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            if self.pieces:
                on_chunk(self.pieces)
            raise answer
        content = answer if isinstance(answer, str) else answer.content
        middle = len(content) // 2
        on_chunk(content[:middle])
        on_chunk(content[middle:])
        return LlmResponse(content, prompt_tokens=1000, completion_tokens=100) if isinstance(answer, str) else answer


class AsyncScript(Script):
    """Like `Script`, with a native `acall`."""

    async def acall(self, messages: Sequence[Message], model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
        return self.call(messages, model, generation, on_chunk)


BOTH = pytest.mark.parametrize("kind", [Script, AsyncScript], ids=["call", "acall"])


def agent_with(provider: Provider, *middleware: Any, **options: Any) -> Agent:
    return Agent(instructions="x", provider=provider, middleware=middleware, **options)


@skill(register=False)
def echo(text: str) -> str:
    """Give the text back."""
    return text


@skill(register=False)
def fail(why: str) -> str:
    """Fail."""
    raise ValueError(why)


def types(recorder: Recorder) -> list[str]:
    return [event.type for event in recorder.entries]


def data_of(recorder: Recorder, type: str) -> list[Any]:
    return [event.data for event in recorder.for_event(type)]
