"""What a call had used before it was cancelled or failed: whatever the vendor had said by then counts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

import kernai
from asking import ADAPTERS
from kernai import Agent, Limits, MemoryStore, Model, Recorder, Result, Usage
from kernai_providers import MemoryReply, MemoryTransport
from kernai_providers.reader import Reader
from vendor_wires import WIRES, Turn

MODEL = Model("m", cost=(2.0, 10.0, 0.5, 3.0))
TYPES = {"ollama": "application/x-ndjson"}
Way = Callable[[Agent, Recorder, threading.Event], Result]


def by_thread(agent: Agent, recorder: Recorder, cancel: threading.Event) -> Result:
    return kernai.execute(agent, "Hi.", recorder=recorder, cancel=cancel)


def by_asyncio(agent: Agent, recorder: Recorder, cancel: threading.Event) -> Result:
    return asyncio.run(kernai.aexecute(agent, "Hi.", recorder=recorder, cancel=cancel))


def events_of(vendor: str) -> list[bytes]:
    return WIRES[vendor].whole(Turn(("Hel", "lo"), usage=(900, 60)))


def agent_on(vendor: str, pieces: Iterator[bytes], **more: Iterator[bytes]) -> Agent:
    del more
    reply = MemoryReply(200, {"content-type": TYPES.get(vendor, "text/event-stream")}, pieces)
    provider = ADAPTERS[vendor]("k", transport=MemoryTransport(reply), max_retries=0)
    return Agent(instructions="", provider=provider, model=MODEL)


def known(vendor: str, events: list[bytes]) -> Usage | None:
    """What the vendor has said with these events."""
    reader: Reader = ADAPTERS[vendor]("k").reader()
    reader.begin({"content-type": TYPES.get(vendor, "text/event-stream")})
    for event in events:
        reader.feed(event)
    return reader.usage


CUTS = [(vendor, at) for vendor in ADAPTERS for at in range(len(events_of(vendor)))]


@pytest.mark.parametrize("how", ["cancelled", "cut"])
@pytest.mark.parametrize("way", [by_thread, by_asyncio])
@pytest.mark.parametrize("vendor,at", CUTS)
def test_a_run_that_ends_in_any_event_of_a_stream_keeps_what_was_reported(
    vendor: str, at: int, way: Way, how: str
) -> None:
    events, cancel, recorder = events_of(vendor), threading.Event(), Recorder()

    def pieces() -> Iterator[bytes]:
        yield from events[:at]
        if how == "cut":
            return
        cancel.set()
        yield b": nothing\n\n" if vendor != "ollama" else b"\n"

    result = way(agent_on(vendor, pieces()), recorder, cancel)
    assert result.stop_reason == ("error" if how == "cut" else "cancelled")
    expected = known(vendor, events[:at])
    (failed,) = recorder.for_event("model_failed")
    if expected is None:
        assert (result.usage, failed.data["prompt_tokens"]) == (Usage(), None)
        return
    assert (result.usage.prompt_tokens, result.usage.completion_tokens, result.usage.cached_tokens) == (
        expected.prompt_tokens, expected.completion_tokens, expected.cached_tokens)
    assert result.usage.model_calls == 1
    assert failed.data["prompt_tokens"] == expected.prompt_tokens
    assert failed.data["cost"] == result.usage.cost
    assert result.usage.cost is not None
    assert recorder.token_usage() == result.usage


def test_an_attempt_that_is_made_again_is_on_the_bill_and_on_record() -> None:
    """Anthropic counts the prompt in its first event; then it is overloaded, and the adapter asks again."""
    wire = WIRES["anthropic"]
    head = {"content-type": "text/event-stream"}
    failing = [*wire.opening(Turn(usage=(1200, 0))), *wire.errors()["overloaded_error"]]
    transport = MemoryTransport(
        MemoryReply(200, {**head, "retry-after-ms": "1"}, failing),
        MemoryReply(200, head, wire.whole(Turn(("Hello",), usage=(1200, 30)))),
    )
    provider = ADAPTERS["anthropic"]("k", transport=transport)
    store, recorder = MemoryStore(), Recorder()
    agent = Agent(instructions="", provider=provider, model=MODEL)
    result = kernai.execute(agent, "Hi.", store=store, run_id="r", recorder=recorder)
    assert (result.text, len(transport.requests)) == ("Hello", 2)
    (event,) = recorder.for_event("llm_response")
    assert event.data["prompt_tokens"] == 1200
    assert event.data["given_up"]["prompt_tokens"] == 1200
    assert (result.usage.prompt_tokens, result.usage.model_calls) == (2400, 2)
    assert recorder.token_usage() == result.usage
    replayed = kernai.replay(agent, "r", store=store).result
    assert replayed is not None
    assert replayed.usage == result.usage


def test_what_failed_calls_used_counts_against_the_limits() -> None:
    wire = WIRES["anthropic"]
    reply = MemoryReply(200, {"content-type": "text/event-stream"}, wire.opening(Turn(usage=(1200, 0))))
    provider = ADAPTERS["anthropic"]("k", transport=MemoryTransport(reply), max_retries=0)
    part = Agent(instructions="", provider=provider, model=MODEL).as_skill("ask", "Asks another model.")
    from kernai import MockProvider

    whole = Agent(
        instructions="", skills=[part], model=MODEL,
        provider=MockProvider("<block type='command' name='ask'>Hi</block>", "<final>Done</final>"),
    )
    result = kernai.execute(whole, "Hi.", limits=Limits(max_tokens=1000))
    assert result.stop_reason == "max_tokens"
    assert result.usage.prompt_tokens == 1200
