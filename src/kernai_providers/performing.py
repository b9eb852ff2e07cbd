"""Performs the steps of an `Exchange`: once for threads, once for asyncio.

Guarantees: whatever ends the turn, its connection is closed or given back before the call returns.
Assumes: a `Line` serves one turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kernai import LlmResponse, RunCancelledError
from kernai_providers.exchange import FINISH, Head, Piece, Send, Wait
from kernai_providers.transport import AsyncTransport, InterruptibleTransport, Transport, TransportError

if TYPE_CHECKING:
    from kernai_providers.exchange import Step, Steps
    from kernai_providers.transport import AsyncResponse, Response

#: seconds between two looks at whether the run was cancelled, while a retry waits
LOOK = 0.1


def perform(steps: Steps, transport: Transport, on_chunk: Callable[[str], object], line: Line | None = None) -> \
        LlmResponse:
    """Performs the steps in this thread. What `on_chunk` raises passes, and the connection is closed."""
    line = line if line is not None else Line()
    step = next(steps)
    try:
        while True:
            failed = outcome = None
            try:
                outcome = _act(step, transport, on_chunk, line)
            except TransportError as error:
                failed = error
            step = steps.send(outcome) if failed is None else steps.throw(failed)
    except StopIteration as stop:
        response: LlmResponse = stop.value
        return response
    finally:
        steps.close()
        line.close()


def _act(step: Step, transport: Transport, on_chunk: Callable[[str], object], line: Line) -> Any:
    if isinstance(step, Piece):
        return on_chunk(step.text)
    if isinstance(step, Send):
        return line.send(transport, step)
    if isinstance(step, Wait):
        return line.wait(step.seconds, on_chunk)
    return line.finish() if step is FINISH else line.read()


class Line:
    """The connection of one turn. `abort` ends the turn from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._aborted = threading.Event()
        self._response: Response | None = None
        #: ends the connection while nothing has come over it yet
        self._interrupt: Callable[[], None] | None = None
        self._body: Iterator[bytes] = iter(())

    def send(self, transport: Transport, step: Send) -> Head:
        """Sends the request and gives the head of its answer."""
        self.close()
        if isinstance(transport, InterruptibleTransport):
            response = transport.send_interruptible(step.request, self._opened)
        else:
            response = transport.send(step.request)
        with self._lock:
            self._interrupt = None
            self._response = response
        self._body = iter(response)
        self._check()
        return Head(response.status, response.headers)

    def read(self) -> bytes:
        """The next bytes, none at the end."""
        try:
            return next(self._body, b"")
        finally:
            self._check()

    def finish(self) -> None:
        """The answer is whole: keeps the connection if that is cheap."""
        with self._lock:
            response, self._response = self._response, None
        if response is not None:
            response.finish()

    def wait(self, seconds: float, on_chunk: Callable[[str], object]) -> None:
        """Waits before a retry. An empty piece asks the run now and then whether it still wants an answer."""
        while seconds > 0:
            on_chunk("")
            self._aborted.wait(min(seconds, LOOK))
            self._check()
            seconds -= LOOK

    def abort(self) -> None:
        """From any thread: the turn is not wanted any more. Whoever waits for its bytes wakes up."""
        self._aborted.set()
        with self._lock:
            # inside of the lock: a moment later the connection may serve somebody else
            if self._interrupt is not None:
                self._interrupt()
        self.close()

    def close(self) -> None:
        """Closes the connection, unless it was given back."""
        with self._lock:
            response, self._response = self._response, None
        if response is not None:
            response.close()

    def _opened(self, interrupt: Callable[[], None]) -> None:
        with self._lock:
            self._interrupt = interrupt
        if self._aborted.is_set():
            interrupt()

    def _check(self) -> None:
        if self._aborted.is_set():
            self.close()
            raise RunCancelledError("the call was cancelled")


async def aperform(steps: Steps, transport: AsyncTransport, on_chunk: Callable[[str], Any]) -> LlmResponse:
    """The same on the running event loop."""
    line = AsyncLine()
    step = next(steps)
    try:
        while True:
            failed = outcome = None
            try:
                outcome = await _aact(step, transport, on_chunk, line)
            except TransportError as error:
                failed = error
            step = steps.send(outcome) if failed is None else steps.throw(failed)
    except StopIteration as stop:
        response: LlmResponse = stop.value
        return response
    finally:
        steps.close()
        await line.aclose()


async def _aact(step: Step, transport: AsyncTransport, on_chunk: Callable[[str], Any], line: AsyncLine) -> Any:
    if isinstance(step, Piece):
        return await _told(on_chunk(step.text))
    if isinstance(step, Send):
        return await line.send(transport, step)
    if isinstance(step, Wait):
        return await _waited(step.seconds, on_chunk)
    return await line.finish() if step is FINISH else await line.read()


async def _waited(seconds: float, on_chunk: Callable[[str], Any]) -> None:
    import asyncio

    while seconds > 0:
        await _told(on_chunk(""))
        await asyncio.sleep(min(seconds, LOOK))
        seconds -= LOOK


async def _told(caught_up: Any) -> None:
    """Waits until slow observers have what was streamed, where the caller offers that."""
    if hasattr(caught_up, "__await__"):
        await caught_up


class AsyncLine:
    """The connection of one turn under asyncio, where cancelling a task ends it."""

    def __init__(self) -> None:
        self._response: AsyncResponse | None = None

    async def send(self, transport: AsyncTransport, step: Send) -> Head:
        """Sends the request and gives the head of its answer."""
        await self.aclose()
        self._response = response = await transport.asend(step.request)
        self._body = response.__aiter__()
        return Head(response.status, response.headers)

    async def read(self) -> bytes:
        """The next bytes, none at the end."""
        return await anext(self._body, b"")

    async def finish(self) -> None:
        """The answer is whole: keeps the connection if that is cheap."""
        response, self._response = self._response, None
        if response is not None:
            await response.finish()

    async def aclose(self) -> None:
        """Closes the connection, unless it was given back."""
        response, self._response = self._response, None
        if response is not None:
            with suppress(TransportError):
                await response.aclose()
