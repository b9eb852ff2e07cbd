"""Many calls at once and many after each other, half of them given up in the middle: each ends right, nothing is left.

All four vendors are called in each test, at one server that knows them by their path.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from typing import Any

import pytest

from adapter_calls import KEY, TIMEOUT, WAYS, Caller, Way, close
from asking import ADAPTERS
from kernai import GenerationOptions, Message, Model
from kernai.testing.contracts import at_once
from kernai_providers import HttpProvider, Transport
from vendor_wires import WIRES, Wire
from wire_server import Gate, Reply, WireRequest, WireServer

pytestmark = pytest.mark.slow

STREAMS = 64
CALLS = 80
AT_ONCE = 8

class GivenUpError(Exception):
    """Raised out of a callback."""


class Crowd:
    """A provider of each vendor, all on one transport; the n-th call goes to the n-th of them, in turn."""

    def __init__(self, way: Way, server: WireServer) -> None:
        self.transport: Transport = way.transport()
        self._callers = [Caller(vendor, way) for vendor in ADAPTERS]
        self._providers: list[HttpProvider] = [
            ADAPTERS[caller.vendor](
                KEY, base_url=caller.wire.base_url(server.url), timeout=TIMEOUT, transport=self.transport, max_retries=0
            )
            for caller in self._callers
        ]

    def call(self, number: int, on_chunk: Callable[[str], Any]) -> str:
        provider, model = self._of(number)
        return provider.call(asking(number), model, GenerationOptions(), on_chunk).content

    async def acall(self, number: int, on_chunk: Callable[[str], Any]) -> str:
        provider, model = self._of(number)
        return (await provider.acall(asking(number), model, GenerationOptions(), on_chunk)).content

    def close(self) -> None:
        self.transport.close()

    async def aclose(self) -> None:
        await close(self._providers[0])

    def _of(self, number: int) -> tuple[HttpProvider, Model]:
        at = number % len(self._providers)
        return self._providers[at], self._callers[at].model


def asking(number: int) -> list[Message]:
    return [Message("user", f"call {number}")]


def number_of(request: WireRequest) -> int:
    return int(wire_of(request).text_of(request)[-1][1].removeprefix("call "))


def wire_of(request: WireRequest) -> Wire:
    return next(wire for wire in WIRES.values() if request.path == wire.path(wire.model))


def words(number: int) -> list[str]:
    """The answer to call `number`, unlike any other."""
    return [f"<{number}>", " ü漢😀" * (number % 5), f" </{number}>"]


def answer(request: WireRequest, gate: Gate | None = None) -> Reply:
    """The first piece, and the others when the gate is open."""
    wire = wire_of(request)
    reply = wire.reply(wire.stream([word for word in words(number_of(request)) if word]))
    if gate is None:
        return reply
    first = next(at for at, event in enumerate(reply.body) if isinstance(event, bytes) and wire.text_in(event))
    return reply.hold(gate, first + 1)


def open_files() -> int | None:
    """How many file descriptors this process has open; None where the system does not say."""
    try:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return None


@contextmanager
def nothing_left(server: WireServer) -> Iterator[None]:
    """Afterwards: no connection, no file descriptor and no thread more than before."""
    files, threads = open_files(), set(threading.enumerate())
    yield
    server.until(lambda: not server.open_connections)
    for thread in set(threading.enumerate()) - threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive(), f"{thread} is still running"
    if files is not None:  # what others have left behind may be gone by now
        assert (open_files() or 0) <= files


class Meeting:
    """Opens a gate once so many streams have had their first piece. As the server keeps the rest back until then,
    all of them are open at that moment.
    """

    def __init__(self, size: int) -> None:
        self.gate = Gate()
        self._missing = size
        self._lock = threading.Lock()

    def watcher(self) -> Callable[[str], None]:
        seen: list[str] = []

        def on_chunk(text: str) -> None:
            if not seen:
                with self._lock:
                    self._missing -= 1
                    if not self._missing:
                        self.gate.set()
            seen.append(text)

        return on_chunk


every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@every_way
def test_64_streams_at_once_get_their_own_answers(way: Way) -> None:
    meeting = Meeting(STREAMS)

    async def main() -> list[str]:
        crowd = Crowd(way, server)
        try:
            return await asyncio.gather(*(crowd.acall(number, meeting.watcher()) for number in range(STREAMS)))
        finally:
            await crowd.aclose()

    def in_threads() -> list[str]:
        answers = dict[int, str]()

        def job(number: int) -> None:
            answers[number] = crowd.call(number, meeting.watcher())

        with closing(Crowd(way, server)) as crowd:
            assert at_once(job, STREAMS) == []
        return [answers[number] for number in range(STREAMS)]

    with WireServer(lambda request: answer(request, meeting.gate)) as server, nothing_left(server):
        answers = asyncio.run(main()) if way.is_async else in_threads()
        assert server.accepts == STREAMS
    assert answers == ["".join(words(number)) for number in range(STREAMS)]


@every_way
def test_calls_of_which_half_are_given_up_leave_nothing(way: Way) -> None:
    numbers, right, never = count(), list[bool](), Gate()

    def half_answers(request: WireRequest) -> Reply:
        """Even calls are answered, odd ones get one piece and then nothing more."""
        return answer(request, never if number_of(request) % 2 else None)

    def give_up(text: str) -> None:
        raise GivenUpError

    def job(crowd: Crowd) -> None:
        while (number := next(numbers)) < CALLS:
            if number % 2:
                with pytest.raises(GivenUpError):
                    crowd.call(number, give_up)
            else:
                right.append(crowd.call(number, str) == "".join(words(number)))

    async def cancelled(crowd: Crowd, number: int) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(crowd.acall(number, lambda text: loop.call_soon_threadsafe(task.cancel)))
        with pytest.raises(asyncio.CancelledError):
            await task

    async def work(crowd: Crowd) -> None:
        while (number := next(numbers)) < CALLS:
            if number % 2:
                await cancelled(crowd, number)
            else:
                right.append(await crowd.acall(number, str) == "".join(words(number)))

    async def main() -> None:
        crowd = Crowd(way, server)
        try:
            await asyncio.gather(*(work(crowd) for _ in range(AT_ONCE)))
        finally:
            await crowd.aclose()

    with WireServer(half_answers) as server, nothing_left(server):
        if way.is_async:
            asyncio.run(main())
        else:
            with closing(Crowd(way, server)) as crowd:
                assert at_once(lambda _: job(crowd), AT_ONCE) == []
        assert len(server.requests) == CALLS
        # each call that was given up has cost a connection; the others shared theirs
        assert CALLS // 2 <= server.accepts < CALLS * 3 // 4
    assert right == [True] * (CALLS // 2)
