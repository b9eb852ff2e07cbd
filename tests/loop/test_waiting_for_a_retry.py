"""A model call that failed and waits to be made again: everybody who watches a run can see it, in both drivers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import kernai
from kernai import Agent, Event, LlmResponse, MockProvider, Model, Provider, ProviderError, Recorder
from kernai.command_line.narrator import Narrator, PipedTurn
from kernai.middleware import retry
from kernai_providers import MemoryReply, MemoryTransport, OpenAIProvider

BUSY = MemoryReply(429, {"retry-after-ms": "10"}, b'{"error": {"code": "rate_limit_exceeded", "message": "slow down"}}')
HELLO = MemoryReply(
    200, {"content-type": "text/event-stream"},
    b'data: {"choices": [{"delta": {"content": "Hello."}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n',
)  # fmt: skip
WHY = "openai: HTTP 429 rate_limit_exceeded: slow down"


def by_provider() -> Agent:
    transport = MemoryTransport(BUSY, BUSY, HELLO)
    return Agent(instructions="", provider=OpenAIProvider("k", transport=transport), model=Model("m"))


def by_middleware() -> Agent:
    busy = ProviderError(WHY, retryable=True, retry_after=0.01)
    provider = MockProvider(*["Hello."] * 3).fail_on_step(0, busy).fail_on_step(1, busy)
    return Agent(instructions="", provider=provider, model=Model("m"), middleware=[retry()])


def run(agent: Agent, *, is_async: bool, **options: Any) -> kernai.Result:
    return asyncio.run(kernai.aexecute(agent, "Hi", **options)) if is_async else kernai.execute(agent, "Hi", **options)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("make", [by_provider, by_middleware])
def test_whoever_watches_sees_each_wait_and_no_recording_holds_it(
    make: Callable[[], Agent], is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Event] = []
    recorder = Recorder()
    assert run(make(), is_async=is_async, on_event=seen.append, recorder=recorder).text == "Hello."
    waits = [event for event in seen if event.type == "model_waiting"]
    assert [event.data for event in waits] == [{"seconds": 0.01, "reason": WHY, "attempt": n} for n in (1, 2)]
    assert [(event.step, event.scope) for event in waits] == [(0, ""), (0, "")]
    assert not recorder.for_event("model_waiting")
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if "model.waiting" in line and "slow down" in line and "attempt=2" in line]


def test_a_wait_is_logged_though_nobody_watches(caplog: pytest.LogCaptureFixture) -> None:
    run(by_provider(), is_async=False)
    assert caplog.text.count("event=model.waiting") == 2


@pytest.mark.parametrize("view", [Narrator, PipedTurn])
def test_the_command_line_has_a_line_for_a_wait(view: Callable[[], Any], capsys: pytest.CaptureFixture[str]) -> None:
    run(by_provider(), is_async=False, on_event=view())
    assert f"asks the model again in 0.0 s: {WHY}" in capsys.readouterr().err


def test_a_provider_reports_a_wait_with_seconds_and_a_reason() -> None:
    class Wrong(Provider):
        def call(self, messages: Any, model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
            for seconds, reason in (("1", "busy"), (True, "busy"), (1, None)):
                with pytest.raises(TypeError, match="waiting takes seconds"):
                    on_chunk.waiting(seconds, reason, 1)
            return LlmResponse("Hello.")

    assert run(Agent(instructions="", provider=Wrong()), is_async=False).text == "Hello."
