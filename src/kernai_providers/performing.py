"""Performs the steps of an `Exchange`: once for threads, once for asyncio.

Guarantees: however the turn ends, its connection is closed or returned to the pool before the call returns. A call ends
soon after the run is over, wherever it waits; `deadline` and `cancelled()` of `on_chunk` say when that is.
Assumes: a `SyncTurn` or `AsyncTurn` serves one turn.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernai import LlmResponse, RunCancelledError
from kernai_providers.exchange import FINISH, CallPiece, Head, Piece, Send, Wait
from kernai_providers.network import SLICE
from kernai_providers.transport import AsyncTransport, Transport, TransportError

if TYPE_CHECKING:
    from kernai_providers.exchange import Step, Steps
    from kernai_providers.transport import AsyncResponse, Response

#: the error if the run does not say why it is over
UNWANTED = "the call was cancelled, or its time is up"


def unwanted_by(on_chunk: object) -> Callable[[], bool] | None:
    """Returns whether the run behind `on_chunk` is over; None if `on_chunk` does not know."""
    deadline, cancelled = getattr(on_chunk, "deadline", None), getattr(on_chunk, "cancelled", None)
    if deadline is None and cancelled is None:
        return None
    return lambda: (cancelled is not None and cancelled()) or (deadline is not None and time.monotonic() >= deadline)


def perform(
    steps: Steps, transport: Transport, on_chunk: Callable[[str], object], turn: SyncTurn | None = None
) -> LlmResponse:
    """Performs the steps in this thread. Exceptions of `on_chunk` propagate, after the connection is closed."""
    turn = turn if turn is not None else SyncTurn(on_chunk)
    step = next(steps)
    try:
        while True:
            failed = outcome = None
            try:
                outcome = _act(step, transport, on_chunk, turn)
            except TransportError as error:
                failed = error
            turn.check()  # after a failure too: if the run is over, that is the reason to report
            step = steps.send(outcome) if failed is None else steps.throw(failed)
    except StopIteration as stop:
        response: LlmResponse = stop.value
        return response
    finally:
        steps.close()
        turn.close()


def _act(step: Step, transport: Transport, on_chunk: Callable[[str], object], turn: SyncTurn) -> Any:
    if isinstance(step, Piece):
        return on_chunk(step.text)
    if isinstance(step, CallPiece):
        return _show(on_chunk, step)
    if isinstance(step, Send):
        return turn.send(transport, step)
    if isinstance(step, Wait):
        return turn.wait(step.seconds)
    return turn.finish() if step is FINISH else turn.read()


def _show(on_chunk: Callable[[str], object], piece: CallPiece) -> Any:
    on_chunk("")  # raises if the run is over
    show = getattr(on_chunk, "block", None)
    return None if show is None else show(*piece)


class SyncTurn:
    """One turn's connection. `abort` ends it from another thread."""

    def __init__(self, on_chunk: Callable[[str], object]) -> None:
        self._on_chunk = on_chunk
        self._is_over = unwanted_by(on_chunk) or (lambda: False)
        self._lock = threading.Lock()
        self._aborted = threading.Event()
        self._response: Response | None = None
        self._body: Iterator[bytes] = iter(())

    def send(self, transport: Transport, step: Send) -> Head:
        """Sends the request and returns the head of the response."""
        self.close()
        response = transport.send(replace(step.request, unwanted=self._unwanted))
        with self._lock:
            self._response = response
        self._body = iter(response)
        return Head(response.status, response.headers)

    def read(self) -> bytes:
        """The next bytes; none at the end."""
        return next(self._body, b"")

    def finish(self) -> None:
        """The response is complete: keeps the connection if that is cheap."""
        with self._lock:
            response, self._response = self._response, None
        if response is not None:
            response.finish()

    def wait(self, seconds: float) -> None:
        """Waits before a retry. An empty piece now and then lets the run raise if it is over."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._on_chunk("")
            self._aborted.wait(min(left, SLICE))
            self.check()

    def check(self) -> None:
        """Raises if the run is over, with the reason that `on_chunk` raises, if it does."""
        if self._unwanted():
            if not self._aborted.is_set():
                self._on_chunk("")
            raise RunCancelledError(UNWANTED)

    def abort(self) -> None:
        """Ends the turn; from any thread."""
        self._aborted.set()
        self.close()

    def close(self) -> None:
        """Closes the connection, unless it was returned to the pool."""
        with self._lock:
            response, self._response = self._response, None
        if response is not None:
            response.close()

    def _unwanted(self) -> bool:
        return self._aborted.is_set() or self._is_over()


async def aperform(steps: Steps, transport: AsyncTransport, on_chunk: Callable[[str], Any]) -> LlmResponse:
    """The same on the running event loop."""
    unwanted = unwanted_by(on_chunk)
    turn = AsyncTurn(unwanted)
    try:
        async with _while_wanted(unwanted):
            return await _aperform(steps, transport, on_chunk, turn)
    except _UnwantedError:
        await _caught_up(on_chunk(""))
        raise RunCancelledError(UNWANTED) from None
    finally:
        steps.close()
        await turn.aclose()


async def _aperform(
    steps: Steps, transport: AsyncTransport, on_chunk: Callable[[str], Any], turn: AsyncTurn
) -> LlmResponse:
    step = next(steps)
    try:
        while True:
            failed = outcome = None
            try:
                outcome = await _aact(step, transport, on_chunk, turn)
            except TransportError as error:
                failed = error
            turn.check()
            step = steps.send(outcome) if failed is None else steps.throw(failed)
    except StopIteration as stop:
        response: LlmResponse = stop.value
        return response


class _UnwantedError(Exception):
    """The run is over."""


@asynccontextmanager
async def _while_wanted(unwanted: Callable[[], bool] | None) -> AsyncIterator[None]:
    """Ends the block, wherever it waits, once the run is over."""
    if unwanted is None:
        yield
        return
    loop = asyncio.get_running_loop()
    scope = asyncio.timeout(None)
    next_look: asyncio.Handle

    def look() -> None:
        nonlocal next_look
        if unwanted():
            scope.reschedule(loop.time())
        else:
            next_look = loop.call_later(SLICE, look)

    next_look = loop.call_soon(look)
    try:
        async with scope:
            try:
                yield
            finally:
                next_look.cancel()
    except TimeoutError:
        if not scope.expired():
            raise
        raise _UnwantedError from None


async def _aact(step: Step, transport: AsyncTransport, on_chunk: Callable[[str], Any], turn: AsyncTurn) -> Any:
    if isinstance(step, Piece):
        return await _caught_up(on_chunk(step.text))
    if isinstance(step, CallPiece):
        return await _caught_up(_show(on_chunk, step))
    if isinstance(step, Send):
        return await turn.send(transport, step)
    if isinstance(step, Wait):
        return await _waited(step.seconds, on_chunk)
    return await turn.finish() if step is FINISH else await turn.read()


async def _waited(seconds: float, on_chunk: Callable[[str], Any]) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        await _caught_up(on_chunk(""))
        await asyncio.sleep(min(left, SLICE))


async def _caught_up(pending: Any) -> None:
    """Waits until slow observers have caught up, if the caller offers that."""
    if hasattr(pending, "__await__"):
        await pending


class AsyncTurn:
    """One turn's connection under asyncio. Cancelling the task ends it."""

    def __init__(self, unwanted: Callable[[], bool] | None) -> None:
        self._unwanted = unwanted
        self._response: AsyncResponse | None = None

    async def send(self, transport: AsyncTransport, step: Send) -> Head:
        """Sends the request and returns the head of the response."""
        await self.aclose()
        self._response = response = await transport.asend(replace(step.request, unwanted=self._unwanted))
        self._body = response.__aiter__()
        return Head(response.status, response.headers)

    async def read(self) -> bytes:
        """The next bytes; none at the end."""
        return await anext(self._body, b"")

    def check(self) -> None:
        """Raises if the run is over."""
        if self._unwanted is not None and self._unwanted():
            raise _UnwantedError

    async def finish(self) -> None:
        """The response is complete: keeps the connection if that is cheap."""
        response, self._response = self._response, None
        if response is not None:
            await response.finish()

    async def aclose(self) -> None:
        """Closes the connection, unless it was returned to the pool."""
        response, self._response = self._response, None
        if response is not None:
            with suppress(TransportError):
                await response.aclose()
