"""A call ends soon after its run, wherever it waits; the head of an answer has its own timeout; many calls at once."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import pytest

from adapter_calls import ASYNC_WAYS, HELLO, TIMEOUT, WAYS, Caller, Interrupt, Listener, Way
from kernai import Agent, GenerationOptions, LimitReachedError, Limits, Model, Result, RunCancelledError, StopReason
from kernai_providers import HttpProvider, MemoryReply, MemoryTransport, OpenAIProvider, Request
from tests.ways import by_aexecute, by_astream, by_execute, by_stream
from wire_server import Endless, Gate, Reply, WireRequest, WireServer

#: seconds: the adapter's own patience; a test gives up earlier
PATIENT = 60.0

every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def open_files() -> int | None:
    """How many file descriptors this process has open; None where the system does not say."""
    try:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return None


@contextmanager
def nothing_left(server: WireServer | None = None) -> Iterator[None]:
    """Afterwards: no thread, connection of the server and file descriptor more than before, long before an adapter gives up."""
    threads, files = set(threading.enumerate()), None if server is None else open_files()
    yield
    if server is not None:
        server.until(lambda: not server.open_connections)
    for thread in set(threading.enumerate()) - threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive(), f"{thread} is still running"
    if files is not None:  # what others have left behind may be gone by now
        assert (open_files() or 0) <= files


# ------------------------------------------------------------------------------------------- where a call may wait


def dripping(bytes_of_head: bytes, pause: threading.Event) -> Reply:
    """A head that comes byte by byte and never ends."""
    steps = [step for byte in bytes_of_head for step in (bytes([byte]), lambda: pause.wait(0.02))]
    return Reply(before=(*steps, Gate()))


COMMENTS = b": keep-alive\n\n"
REASONING = b'data: {"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}}]}\n\n'
STREAM = (("Content-Type", "text/event-stream"),)

PLACES: dict[str, Callable[[Any, threading.Event], Reply]] = {
    "the head": lambda wire, pause: wire.answer().stall(Gate()),
    "a head that drips": lambda wire, pause: dripping(b"HTTP/1.1 200 OK\r\n" + b"X-Pad: 1\r\n" * 400, pause),
    "interim answers": lambda wire, pause: dripping(b"HTTP/1.1 100 Continue\r\n\r\n" * 200, pause),
    "the body": lambda wire, pause: wire.answer("Hel", "lo").hold(Gate(), at=-2),
    "comments": lambda wire, pause: Reply(200, STREAM, (Endless(COMMENTS),)),
    "reasoning": lambda wire, pause: Reply(200, STREAM, (Endless(REASONING),)),
    "an error's body": lambda wire, pause: wire.error(500).framed("chunked").hold(Gate(), at=1),
    "a retry": lambda wire, pause: wire.error(429, headers={"retry-after": "50"}),
}


@pytest.mark.parametrize("way,place,by", [
    pytest.param(way, place, by, id=f"{by}-{place}-{way.name}")
    for row, place in enumerate(PLACES)
    for column, way in enumerate(WAYS.values())
    for by in ("cancelled", "deadline")
    if by == "cancelled" or (row + column) % len(WAYS) == 0  # which of the two it is makes little difference
])
@pytest.mark.slow
def test_a_call_ends_soon_after_the_run_is_over_wherever_it_waits(way: Way, place: str, by: str) -> None:
    caller, pause = Caller("openai", way), threading.Event()
    error = LimitReachedError("the time is up", StopReason.TIMEOUT)
    listener = Listener(time.monotonic() + 0.1) if by == "deadline" else Listener(error=error)

    def script(request: object) -> Reply:
        if by == "cancelled":
            listener.over.set()
        return PLACES[place](caller.wire, pause)

    with WireServer(script) as server, nothing_left():
        began = time.monotonic()
        outcome = caller.ask(server, listener, timeout=PATIENT, max_retry_wait=PATIENT)
        assert time.monotonic() - began < TIMEOUT
        pause.set()
        server.until(lambda: not server.open_connections)
        assert by == "deadline" or len(server.requests) == 1
    if by == "deadline":
        assert isinstance(outcome.error, RunCancelledError)
    else:
        assert outcome.error is error


@pytest.mark.parametrize("way", ASYNC_WAYS, ids=lambda way: way.name)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.slow
def test_cancelling_the_task_ends_a_call_wherever_it_waits_and_the_next_one_is_served(way: Way, place: str) -> None:
    """On a connection that was used before: a request that was cancelled there is not sent again."""
    caller, pause, asked = Caller("openai", way), threading.Event(), threading.Event()

    def script(request: object) -> Reply:
        if len(server.requests) != 2:
            return caller.wire.answer("Hel", "lo")
        asked.set()
        return PLACES[place](caller.wire, pause)

    async def main() -> None:
        provider = caller.provider(server, timeout=PATIENT, max_retry_wait=PATIENT)
        assert (await caller.ask_within(provider)).answer.content == "Hello"
        task = asyncio.create_task(caller.ask_within(provider))
        assert await asyncio.to_thread(asked.wait, TIMEOUT)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()  # while it closes the connection
        with pytest.raises(asyncio.CancelledError):
            await task
        pause.set()
        if place != "a retry":  # which leaves its connection in order
            await asyncio.to_thread(server.until, lambda: not server.open_connections)
        assert (len(server.requests), server.accepts) == (2, 1)
        assert (await caller.ask_within(provider)).answer.content == "Hello"
        await provider.aclose()

    with WireServer(script) as server, nothing_left():
        asyncio.run(main())


@every_way
@pytest.mark.parametrize("error", [ValueError(), RunCancelledError(), Interrupt()], ids=lambda error: type(error).__name__)
def test_an_exception_of_the_callback_is_raised_unchanged_and_closes_the_connection(way: Way, error: BaseException) -> None:
    def watch(text: str) -> None:
        if text:
            raise error

    caller = Caller("openai", way)
    with WireServer(PLACES["the body"](caller.wire, threading.Event())) as server:
        closed = partial(server.until, lambda: not server.open_connections)
        outcome = caller.ask(server, watch, then=closed, timeout=PATIENT)
        assert [request.client_closed.is_set() for request in server.requests] == [True]
    assert outcome.error is error
    assert outcome.pieces == ["Hel"]


def test_what_a_transport_began_before_it_was_interrupted_is_not_wanted_any_more() -> None:
    def interrupted(_: Request) -> MemoryReply:
        raise Interrupt

    transport = MemoryTransport(interrupted)
    with pytest.raises(Interrupt):
        OpenAIProvider("k", transport=transport).call(HELLO, Model("m"), GenerationOptions(), lambda _: None)
    assert [one.unwanted and one.unwanted() for one in transport.requests] == [True]


def test_a_transport_that_never_asks_whether_it_is_wanted_is_left_with_its_next_bytes() -> None:
    error, given = LimitReachedError("the time is up", StopReason.TIMEOUT), count()
    listener = Listener(error=error)

    def pieces() -> Iterator[bytes]:
        while next(given) < 1000:
            listener.over.set()
            yield COMMENTS

    transport = MemoryTransport(MemoryReply(200, STREAM, pieces()))
    with pytest.raises(LimitReachedError) as caught:
        OpenAIProvider("k", transport=transport).call(HELLO, Model("m"), GenerationOptions(), listener)
    assert (caught.value, next(given), transport.open_responses) == (error, 1, 0)


@every_way
def test_the_callback_may_end_a_wait_for_a_retry_during_which_no_connection_is_open(way: Way) -> None:
    caller, error, looks = Caller("openai", way), ValueError(), list[str]()

    def watch(text: str) -> None:
        looks.append(text)
        if len(looks) == 3:
            server.until(lambda: not server.open_connections)
            raise error

    failing = Reply(200, STREAM, (b'data: {"error": {"message": "later"}}\n\n', Gate()))
    with WireServer([failing, caller.wire.answer("Hello")]) as server:
        outcome = caller.ask(server, watch, max_retry_wait=PATIENT)
        assert len(server.requests) == 1
    assert (outcome.error, looks) == (error, [""] * 3)


def test_a_native_acall_waits_for_slow_observers() -> None:
    """The next piece is sent only when what the callback returned was awaited."""
    caller, gate = Caller("openai", WAYS["acall on httpx"]), Gate()

    async def caught_up() -> None:
        gate.allow()

    wire = caller.wire
    with WireServer(wire.answer("Hel", "lo").trickle(gate, lambda event: bool(wire.text_in(event)))) as server:
        assert caller.ask(server, lambda text: caught_up()).answer.content == "Hello"


async def test_a_native_acall_that_has_ended_asks_no_more_whether_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernai_providers.exchange.SLICE", 0)
    asked = count()
    listener = Listener()
    listener.cancelled = lambda: next(asked) < 0  # type: ignore[method-assign]  # counts, and never cancels
    body = [b'data: {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]}\n\n', b"data: [DONE]\n\n"]
    provider = OpenAIProvider("k", transport=MemoryTransport(MemoryReply(200, STREAM, body)))
    await provider.acall(HELLO, Model("m"), GenerationOptions(), listener)
    after = next(asked)
    for _ in range(5):
        await asyncio.sleep(0)
    assert next(asked) == after + 1


@every_way
@pytest.mark.parametrize("place", ["to connect", "for tls", "to send"])
@pytest.mark.parametrize("by", ["deadline", "cancelled"])
@pytest.mark.slow
def test_a_native_acall_that_waits_for_its_connection_ends_soon_after_the_run(way: Way, place: str, by: str) -> None:
    listener, caller = Listener(time.monotonic() + 0.1 if by == "deadline" else None), Caller("openai", way)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf, nothing_left():
        fillers = []
        while place == "to connect":  # until the queue of those who wait to be accepted is full
            filler = socket.socket()
            filler.settimeout(0.05)
            fillers.append(filler)
            try:
                filler.connect(deaf.getsockname())
            except TimeoutError:
                break
        scheme = "https" if place == "for tls" else "http"
        provider = caller.provider(f"{scheme}://127.0.0.1:{deaf.getsockname()[1]}", timeout=(PATIENT, PATIENT))
        timer = threading.Timer(0.05, listener.over.set)
        if by == "cancelled":
            timer.start()
        began = time.monotonic()
        text = "x" * 30_000_000 if place == "to send" else "Hi"
        outcome = asyncio.run(caller.ask_within(provider, listener, text))
        assert isinstance(outcome.error, RunCancelledError)
        assert time.monotonic() - began < TIMEOUT
        for filler in fillers:
            filler.close()


@pytest.mark.parametrize("on_httpx", [False, True], ids=["http", "httpx"])
@pytest.mark.parametrize("drive", [by_execute, by_stream, by_aexecute, by_astream])
@pytest.mark.parametrize("place", ["the head", "comments", "a retry"])
@pytest.mark.slow
def test_a_runs_timeout_holds_while_the_vendor_says_nothing_and_leaves_no_thread(
    drive: Callable[..., Result], on_httpx: bool, place: str
) -> None:
    caller = Caller("openai", Way("", on_httpx=on_httpx, is_async=False))
    with WireServer(PLACES[place](caller.wire, threading.Event())) as server, nothing_left():
        with caller.provider(server, timeout=PATIENT, max_retry_wait=PATIENT) as provider:
            agent = Agent(instructions="", provider=provider, model=caller.model)
            began = time.monotonic()
            result = drive(agent, limits=Limits(timeout=0.1))
            assert time.monotonic() - began < TIMEOUT
            assert result.stop_reason == "timeout"
        server.until(lambda: not server.open_connections)


# ------------------------------------------------------------------------------------------------ the time of a head


@every_way
@pytest.mark.parametrize("place", ["a head that drips", "interim answers"])
@pytest.mark.slow
def test_response_headers_that_arrive_byte_by_byte_fail_at_the_read_timeout(way: Way, place: str) -> None:
    caller, pause = Caller("openai", way), threading.Event()
    with WireServer(PLACES[place](caller.wire, pause)) as server:
        said: list[str] = []
        while "did not finish the head of its answer within 0.1 seconds" not in str(said[-1:]):
            failure = caller.ask(server, timeout=(10.0, 0.1), max_retries=0).failure
            said.append(str(failure))
            assert (failure.code, failure.retryable, len(said) < 10) == ("timeout", True, True), said  # a busy machine may be silent
        pause.set()


@every_way
@pytest.mark.slow
def test_a_body_that_keeps_arriving_may_take_longer_than_the_read_timeout(way: Way) -> None:
    caller, pause = Caller("openai", way), threading.Event()
    reply = caller.wire.answer("Hel", "lo")
    steps: list[Any] = []
    for step in reply.body:
        steps += [step, *[COMMENTS, lambda: pause.wait(0.02)] * 4]

    def is_whole() -> bool:
        began = time.monotonic()
        outcome = caller.ask(server, timeout=0.3, max_retries=0)
        return outcome.error is None and outcome.answer.content == "Hello" and time.monotonic() - began > 0.3

    with WireServer(Reply(200, reply.headers, tuple(steps))) as server:
        assert any(is_whole() for _ in range(10))  # a busy machine may be too slow for such a timeout


# Many calls at once and many after each other, half of them given up in the middle: each ends right, nothing is left.


STREAMS = 64


def words(number: int) -> list[str]:
    """The answer to call `number`, unlike any other."""
    return [f"<{number}>", " ü漢😀" * (number % 5 + 1), f" </{number}>"]


@every_way
@pytest.mark.slow
def test_of_64_streams_at_once_half_are_given_up_and_the_others_get_their_own_answers(way: Way) -> None:
    """By an exception of the callback, or by cancelling the task; and twice, so that connections are used again."""
    caller, never, all_have_begun, begun = Caller("openai", way), Gate(), Gate(), count(1)
    first_piece = len(caller.wire.without_end([""]))

    def reply(request: WireRequest) -> Reply:
        """Even calls are answered once all have begun, odd ones get one piece and then nothing more."""
        number = int(re.findall(rb"call (\d+)", request.body)[-1])
        return caller.wire.answer(*words(number)).hold(never if number % 2 else all_have_begun, first_piece)

    async def outcome(provider: HttpProvider, number: int) -> str | None:
        def seen(text: str) -> None:
            if text == words(number)[0] and next(begun) == STREAMS:
                all_have_begun.set()

        def give_up(text: str) -> None:
            seen(text)
            if not way.is_async:
                raise Interrupt
            loop.call_soon_threadsafe(task.cancel)

        loop = asyncio.get_running_loop()
        task = asyncio.create_task(caller.ask_within(provider, give_up if number % 2 else seen, f"call {number}"))
        try:
            ended = await task
        except asyncio.CancelledError:
            return None
        return None if isinstance(ended.error, Interrupt) else ended.answer.content

    async def main() -> list[str | None]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(STREAMS))
        async with caller.provider(server, max_retries=0) as provider:
            first = await asyncio.gather(*(outcome(provider, number) for number in range(STREAMS)))
            second = await asyncio.gather(*(outcome(provider, number) for number in range(0, STREAMS, 2)))
        return [*first, *second]

    with WireServer(reply) as server, nothing_left(server):
        outcomes = asyncio.run(main())
        assert server.accepts == STREAMS
    texts = ["".join(words(number)) for number in range(STREAMS)]
    assert outcomes == [*(None if number % 2 else text for number, text in enumerate(texts)), *texts[::2]]
