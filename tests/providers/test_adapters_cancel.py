"""Whoever does not want an answer any more gets rid of it at once, and of its connection."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from adapter_calls import ASYNC_WAYS, MESSAGES, TIMEOUT, WAYS, Caller, Interrupt, Way, close, ways_in_turn
from adapter_cases import PIECES, TEXT
from asking import ADAPTERS
from kernai import GenerationOptions, RunCancelledError
from kernai_providers import HttpProvider
from vendor_wires import Turn, Wire
from wire_reply import Hold, Notify, Reply
from wire_server import Gate, WireRequest, WireServer

#: seconds: the adapter's own patience; tests give up earlier
PATIENT = 60.0

every_vendor = pytest.mark.parametrize("vendor", ADAPTERS)
each_way = pytest.mark.parametrize(
    "vendor,way", [pytest.param(vendor, way, id=f"{vendor}-{way.name}") for vendor, way in ways_in_turn(0)]
)
async_ways = pytest.mark.parametrize("way", ASYNC_WAYS, ids=[way.name for way in ASYNC_WAYS])


class EnoughError(Exception):
    """What an observer raises to end a call."""


def half(wire: Wire) -> Reply:
    """The first piece, and then silence."""
    return wire.answer(*PIECES).hold(Gate(), len(wire.opening(Turn())) + len(wire.middle(Turn(PIECES[:1]))))


def busy(wire: Wire, seconds: float) -> Reply:
    """Come back in so many seconds."""
    return wire.error(429, headers={"retry-after": f"{seconds:g}"})


#: those of other tests, whose skills are stuck on purpose
OTHERS: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def _know_the_threads_of_others() -> None:
    OTHERS.clear()
    OTHERS.update(threading.enumerate())


def assert_no_worker_is_left() -> None:
    for thread in set(threading.enumerate()) - OTHERS:
        if thread.name == "kernai-worker":
            thread.join(TIMEOUT)
            assert not thread.is_alive(), "a worker thread of a cancelled call is still running"


@pytest.mark.parametrize(
    "error,vendor,way",
    [
        pytest.param(error, vendor, way, id=f"{type(error).__name__}-{vendor}-{way.name}")
        for row, error in enumerate((EnoughError(), RunCancelledError(), Interrupt()))
        for vendor, way in ways_in_turn(row)
    ],
)
def test_what_the_callback_raises_passes_as_it_is_and_closes_the_connection(
    error: BaseException, vendor: str, way: Way
) -> None:
    def watch(text: str) -> None:
        if text:
            raise error

    caller = Caller(vendor, way)
    with WireServer(half(caller.wire)) as server:
        outcome = caller.ask(
            server, watch, then=lambda: server.until(lambda: not server.open_connections), timeout=PATIENT
        )
        assert [request.client_closed.is_set() for request in server.requests] == [True]
    assert outcome.error is error
    assert outcome.pieces == [PIECES[0]]


@each_way
def test_the_callback_may_end_a_wait_for_a_retry(vendor: str, way: Way) -> None:
    """It is asked again and again: the run may be cancelled in the middle of the wait."""
    looks = []

    def watch(text: str) -> None:
        looks.append(text)
        if len(looks) == 3:
            raise error

    caller, error = Caller(vendor, way), EnoughError()
    with WireServer([busy(caller.wire, 3), caller.wire.answer(*PIECES)]) as server:
        outcome = caller.ask(server, watch, max_retry_wait=PATIENT)
        assert len(server.requests) == 1
    assert outcome.error is error
    assert looks == [""] * 3


def cancel_when(
    seen: threading.Event, caller: Caller, server: WireServer, **options: Any
) -> None:
    """Cancels the task of an `acall` once `seen` is set, and waits until the server has lost its client."""

    async def main() -> None:
        provider = caller.provider(server, timeout=PATIENT, **options)
        task = asyncio.create_task(call(provider, caller, lambda text: seen.set()))
        assert await asyncio.to_thread(seen.wait, TIMEOUT)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        try:
            # before anything else is closed, and long before the adapter loses its own patience
            await asyncio.to_thread(server.until, lambda: not server.open_connections)
        finally:
            await close(provider)

    asyncio.run(main())
    assert_no_worker_is_left()


async def call(provider: HttpProvider, caller: Caller, on_chunk: Callable[[str], Any]) -> str:
    return (await provider.acall(MESSAGES, caller.model, GenerationOptions(), on_chunk)).content


@async_ways
@every_vendor
def test_cancelling_the_task_in_the_middle_closes_the_connection_of_a_silent_server(vendor: str, way: Way) -> None:
    caller = Caller(vendor, way)
    with WireServer(half(caller.wire)) as server:
        cancel_when(threading.Event(), caller, server)
        assert [request.client_closed.is_set() for request in server.requests] == [True]


@async_ways
@every_vendor
def test_cancelling_the_task_before_the_headers_closes_the_connection_of_a_silent_server(vendor: str, way: Way) -> None:
    caller, asked = Caller(vendor, way), threading.Event()

    def script(request: object) -> Reply:
        asked.set()
        return caller.wire.answer().stall(Gate())

    with WireServer(script) as server:
        cancel_when(asked, caller, server)
        assert [request.client_closed.is_set() for request in server.requests] == [True]


@async_ways
@every_vendor
def test_cancelling_the_task_on_a_reused_connection_does_not_resend_the_request(vendor: str, way: Way) -> None:
    """As is done where the server has closed an idle connection, which looks much the same from here."""
    caller, asked = Caller(vendor, way), threading.Event()

    def script(request: WireRequest) -> Reply:
        if len(server.requests) == 1:
            return caller.wire.answer(*PIECES)
        asked.set()
        return caller.wire.answer().stall(Gate())

    async def main() -> None:
        provider = caller.provider(server, timeout=PATIENT)
        assert (await caller.ask_within(provider)).answer.content == TEXT
        task = asyncio.create_task(call(provider, caller, str))
        assert await asyncio.to_thread(asked.wait, TIMEOUT)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(server.until, lambda: not server.open_connections)
        await close(provider)

    with WireServer(script) as server:
        asyncio.run(main())
        assert_no_worker_is_left()
        assert (len(server.requests), server.accepts) == (2, 1)


@async_ways
@every_vendor
def test_cancelling_the_task_in_the_body_of_an_error_closes_the_connection(vendor: str, way: Way) -> None:
    caller, sent = Caller(vendor, way), threading.Event()
    reply = caller.wire.error(500).framed("chunked")
    with WireServer(reply.insert(1, Notify(sent.set), Hold(Gate()))) as server:
        cancel_when(sent, caller, server)
        assert [request.client_closed.is_set() for request in server.requests] == [True]


@async_ways
@every_vendor
def test_cancelling_the_task_while_a_retry_waits_ends_it(vendor: str, way: Way) -> None:
    caller = Caller(vendor, way)
    with WireServer([busy(caller.wire, PATIENT), caller.wire.answer()]) as server:

        async def main() -> None:
            provider, seen = caller.provider(server, max_retry_wait=2 * PATIENT), threading.Event()
            task = asyncio.create_task(call(provider, caller, lambda text: seen.set()))
            assert await asyncio.to_thread(seen.wait, TIMEOUT)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await close(provider)

        asyncio.run(main())
        assert_no_worker_is_left()
        assert len(server.requests) == 1


@async_ways
def test_cancelling_the_task_while_it_connects_closes_the_connection(way: Way) -> None:
    """To a host that takes the connection, and then says nothing of TLS."""

    async def main() -> None:
        provider = caller.provider(f"https://127.0.0.1:{silent.getsockname()[1]}", timeout=(PATIENT, PATIENT))
        task = asyncio.create_task(call(provider, caller, str))
        accepted, _ = await asyncio.to_thread(silent.accept)
        with accepted:
            accepted.settimeout(TIMEOUT)
            await asyncio.to_thread(accepted.recv, 1)  # it has begun to speak
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(read_to_the_end, accepted)
        await close(provider)

    caller = Caller("openai", way)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        asyncio.run(main())
    assert_no_worker_is_left()


def read_to_the_end(sock: socket.socket) -> None:
    with suppress(ConnectionResetError):
        while sock.recv(65536):
            pass


@async_ways
@every_vendor
def test_after_a_cancelled_call_the_provider_serves_the_next_one(vendor: str, way: Way) -> None:
    caller = Caller(vendor, way)
    with WireServer([half(caller.wire), caller.wire.answer(*PIECES)]) as server:

        async def main() -> str:
            provider, seen = caller.provider(server), threading.Event()
            task = asyncio.create_task(call(provider, caller, lambda text: seen.set()))
            assert await asyncio.to_thread(seen.wait, TIMEOUT)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            try:
                return (await caller.ask_within(provider)).answer.content
            finally:
                await close(provider)

        assert asyncio.run(main()) == TEXT


@every_vendor
def test_a_native_acall_waits_for_slow_observers(vendor: str) -> None:
    """The next piece is sent only when what the callback gave back was awaited."""
    caller, gate = Caller(vendor, WAYS["acall on httpx"]), Gate()

    async def caught_up() -> None:
        gate.allow()

    wire = caller.wire
    with WireServer(wire.answer(*PIECES).trickle(gate, lambda event: bool(wire.text_in(event)))) as server:
        assert caller.ask(server, lambda text: caught_up()).answer.content == TEXT
