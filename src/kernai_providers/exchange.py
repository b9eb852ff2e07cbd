"""`Exchange`: one turn of a model over HTTP. Retries, limits and completeness are defined here, once for both drivers.

`Exchange.perform` is a coroutine over a `Turn`, which sends, reads, shows and waits. Under asyncio these steps wait on
the event loop. In a thread (`ThreadTurn`) they block, so the coroutine never suspends and needs no loop.

Guarantees: however the turn ends, its connection is closed or returned to the pool before the call returns. A call ends
soon after the run has ended, wherever it waits; `deadline` and `cancelled()` of `on_chunk` say when that is.
Assumes: one object serves one turn.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NoReturn, TypeVar

from kernai import LlmResponse, ProviderError, RunCancelledError
from kernai_providers.failures import RetryPolicy, failure
from kernai_providers.network import SLICE
from kernai_providers.reader import CallText, Reader
from kernai_providers.transport import (
    AsyncResponse,
    AsyncTransport,
    BlockingResponse,
    Request,
    Transport,
    TransportError,
)

T = TypeVar("T")
OK = 200
#: how many bytes of an error's body are read
MAX_ERROR_BODY = 64 * 1024
#: the error if the run does not say why it has ended
UNWANTED = "the call was cancelled, or its time is up"


@dataclass(frozen=True, slots=True, repr=False)
class Exchange:
    """Everything one turn needs: the request, the reader for its response, and the retry rules."""

    request: Request
    new_reader: Callable[[], Reader]
    retries: RetryPolicy
    vendor: str
    key_hint: str | None = None
    secrets: tuple[str, ...] = ()

    async def perform(self, turn: Turn) -> LlmResponse:
        """Performs the whole turn, including retries. Every failure is a `ProviderError`."""
        for attempt in count():
            reader = self.new_reader()
            try:
                return await self._attempt(reader, turn)
            except ProviderError as error:
                # text that observers have seen cannot be retracted here, so there is no retry
                wait = None if reader.has_given else self.retries.wait_before(attempt, error)
                if wait is None:
                    raise
                why = str(error)
            turn.report("attempt_failed")
            turn.report("waiting", wait, why, attempt + 1)
            await turn.wait(wait)
        raise AssertionError("unreachable")  # pragma: no cover - `count` never ends

    async def _attempt(self, reader: Reader, turn: Turn) -> LlmResponse:
        began = time.monotonic()
        broken = None
        try:
            response = await turn.send(self.request)
            if response.status != OK:
                body = await self._error_body(turn)
                await turn.finish()
                raise failure(
                    response.status, response.headers, body, self.vendor, time.time(),
                    key_hint=self.key_hint, secrets=self.secrets,
                )
            reader.begin(response.headers)
            await self._read(reader, turn)
        except TransportError as error:
            broken = self._broken(reader, error)
        if broken is not None:
            # raised outside of the except block: the original error may quote the server, which may quote the key
            raise broken
        await turn.finish()
        return reader.response(int((time.monotonic() - began) * 1000))

    async def _read(self, reader: Reader, turn: Turn) -> None:
        size = 0
        while not reader.complete:
            try:
                data = await turn.read()
            except TransportError as error:
                if not (reader.may_end and error.retryable):
                    raise
                data = b""  # some servers send everything and never end the body
            used = reader.usage
            try:
                if not data:
                    pieces = reader.end()
                else:
                    size += len(data)
                    if self.request.max_bytes is not None and size > self.request.max_bytes:
                        raise self._too_large()
                    pieces = reader.feed(data)
            finally:
                if reader.usage not in (None, used):
                    turn.report("report_usage", reader.usage)  # it counts even if the call fails
            for piece in pieces:
                await turn.show(piece)
            if not data:
                reader.check_complete()
                return

    async def _error_body(self, turn: Turn) -> bytes:
        """Returns the start of an error's body, even if the rest never arrives."""
        body = b""
        with suppress(TransportError):
            while len(body) < MAX_ERROR_BODY and (data := await turn.read()):
                body += data
        return body[:MAX_ERROR_BODY]

    def _too_large(self) -> ProviderError:
        return ProviderError(
            f"{self.vendor}: the response is larger than max_response_bytes={self.request.max_bytes}",
            status=OK, code="response_too_large", vendor=self.vendor,
        )

    def _broken(self, reader: Reader, error: TransportError) -> ProviderError:
        if error.kind == "too_large":
            return self._too_large()
        began = " after part of the answer had come" if reader.has_given else ""
        return ProviderError(
            f"{self.vendor}: {error}{began}", code=error.kind, retryable=error.retryable, vendor=self.vendor
        )

# ---------------------------------------------------------------------------------------------------------------- turns

def unwanted_by(on_chunk: object) -> Callable[[], bool]:
    """Returns a function that says whether the run behind `on_chunk` has ended; always false if there is no run."""
    deadline, cancelled = getattr(on_chunk, "deadline", None), getattr(on_chunk, "cancelled", lambda: False)
    return lambda: cancelled() or (deadline is not None and time.monotonic() >= deadline)


def perform(exchange: Exchange, turn: ThreadTurn) -> LlmResponse:
    """Performs the turn in this thread. Exceptions of `on_chunk` propagate, after the connection is closed."""
    try:
        return _finished(exchange.perform(turn))
    finally:
        turn.abort()


async def aperform(exchange: Exchange, transport: AsyncTransport, on_chunk: Callable[[str], Any]) -> LlmResponse:
    """Performs the turn on the running event loop. If the task is cancelled, the connection is closed."""
    turn = Turn(transport.asend, on_chunk)
    loop, scope = asyncio.get_running_loop(), asyncio.timeout(None)
    next_look: asyncio.Handle

    def look() -> None:
        """Ends the turn, wherever it waits, once the run has ended."""
        nonlocal next_look
        if turn.unwanted():
            scope.reschedule(loop.time())
        else:
            next_look = loop.call_later(SLICE, look)

    next_look = loop.call_soon(look)
    try:
        async with scope:
            try:
                return await exchange.perform(turn)
            finally:
                next_look.cancel()
    except TimeoutError:
        if not scope.expired():
            raise
        await turn.give_up()
    finally:
        await turn.close()


class Turn:
    """One turn's connection, and the run that waits for the answer."""

    def __init__(self, send: Callable[[Request], Awaitable[AsyncResponse]], on_chunk: Callable[[str], Any]) -> None:
        self.unwanted = unwanted_by(on_chunk)
        self._open = send
        self._on_chunk = on_chunk
        self._response: AsyncResponse | None = None

    async def send(self, request: Request) -> AsyncResponse:
        """Sends the request, and returns the response once its head has arrived. Closes an earlier response."""
        await self.close()
        return await self._unless_ended(self._send(replace(request, unwanted=self.unwanted)))

    async def read(self) -> bytes:
        """Returns the next bytes of the body, or none at its end."""
        return await self._unless_ended(anext(self._body, b""))

    async def show(self, piece: str | CallText) -> None:
        """Passes a piece of text or of a native call to the observers; their exceptions propagate."""
        if isinstance(piece, str):
            await self._wait_for_observers(self._on_chunk(piece))
            return
        self._on_chunk("")  # raises if the run has ended
        show = getattr(self._on_chunk, "block", None)
        if show is not None:
            await self._wait_for_observers(show(*piece))

    def report(self, what: str, *details: object) -> None:
        """Reports to the run, if it listens."""
        listener = getattr(self._on_chunk, what, None)
        if listener is not None:
            listener(*details)

    async def wait(self, seconds: float) -> None:
        """Waits before a retry. Empty pieces are passed on regularly, so that the run can raise if it has ended."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            await self.show("")
            await self._pause(min(left, SLICE))
            await self._check()

    async def finish(self) -> None:
        """Ends a complete response. The connection is kept if that is cheap."""
        response, self._response = self._response, None
        if response is not None:
            await response.finish()

    async def close(self) -> None:
        """Closes the connection, unless it was returned to the pool."""
        response, self._response = self._response, None
        if response is not None:
            with suppress(TransportError):
                await response.aclose()

    async def give_up(self) -> NoReturn:
        """Raises because the run has ended: what `on_chunk` raises, or else a `RunCancelledError`."""
        await self.show("")
        raise RunCancelledError(UNWANTED) from None

    async def _send(self, request: Request) -> AsyncResponse:
        self._response = response = await self._open(request)
        self._body = response.__aiter__()
        return response

    async def _unless_ended(self, step: Awaitable[T]) -> T:
        """Returns the step's result. If the run has ended, raises that instead, even if the step failed."""
        try:
            result = await step
        except TransportError:
            await self._check()
            raise
        await self._check()
        return result

    async def _check(self) -> None:
        if self.unwanted():
            await self.give_up()

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _wait_for_observers(self, pending: Any) -> None:
        """Waits until slow observers have caught up, if `on_chunk` returned something to await."""
        if hasattr(pending, "__await__"):
            await pending


# ------------------------------------------------------------------------------------------------------ threads


class ThreadTurn(Turn):
    """A turn whose steps block their thread. `abort` ends it from another one."""

    def __init__(self, transport: Transport, on_chunk: Callable[[str], Any]) -> None:
        async def send(request: Request) -> AsyncResponse:
            return BlockingResponse(transport.send(request))

        super().__init__(send, on_chunk)
        self._aborted = threading.Event()
        has_ended = self.unwanted
        self.unwanted = lambda: self._aborted.is_set() or has_ended()

    def abort(self) -> None:
        self._aborted.set()
        _finished(self.close())

    async def give_up(self) -> NoReturn:
        """Raises because the run has ended. After `abort`, there is nobody to ask for the reason."""
        if self._aborted.is_set():
            raise RunCancelledError(UNWANTED)
        await super().give_up()

    async def _pause(self, seconds: float) -> None:
        self._aborted.wait(seconds)

    async def _wait_for_observers(self, pending: Any) -> None:
        """Does nothing: in a thread, `on_chunk` itself waits for the observers."""


def _finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never suspends, and returns its result."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("a turn in a thread waited for an event loop")  # pragma: no cover
