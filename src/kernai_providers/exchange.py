"""`Turn`: one turn of a model over HTTP. Retries, limits and completeness are defined here, once for both drivers.

`Turn.perform` is a coroutine. Under asyncio its steps wait on the event loop. In a thread they block, so the coroutine
never suspends and needs no loop.

Guarantees: however the turn ends, its connection is closed or returned to the pool before the call returns. A call ends
soon after the run has ended, wherever it waits; `deadline` and `cancelled()` of `on_chunk` say when that is.
Assumes: one object serves one turn.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar

from kernai import LlmResponse, ProviderError, RunCancelledError
from kernai_providers.failures import Recipient, RetryPolicy, failure
from kernai_providers.network import SLICE
from kernai_providers.reader import CallText, Reader
from kernai_providers.transport import AsyncResponse, BlockingResponse, Request, TransportError, finished

T = TypeVar("T")
OK = 200
#: how many bytes of an error's body are read
MAX_ERROR_BODY = 64 * 1024


@dataclass(frozen=True, slots=True, repr=False)
class Exchange:
    """What one turn is about: the request, the reader for its response, and the retry rules."""

    request: Request
    new_reader: Callable[[], Reader]
    retries: RetryPolicy
    to: Recipient


class Turn:
    """One turn: the connection, and the run that waits for the answer.

    If it is blocking, `transport` is a `Transport`, else an `AsyncTransport`.
    """

    def __init__(self, exchange: Exchange, transport: Any, on_chunk: Callable[[str], Any], *, blocking: bool) -> None:
        deadline, cancelled = getattr(on_chunk, "deadline", None), getattr(on_chunk, "cancelled", lambda: False)
        self._aborted = aborted = threading.Event()
        #: whether the run has ended
        self.unwanted: Callable[[], bool] = lambda: (
            aborted.is_set() or cancelled() or (deadline is not None and time.monotonic() >= deadline))
        self._exchange = exchange
        self._transport = transport
        self._on_chunk = on_chunk
        self._blocking = blocking
        self._response: AsyncResponse | None = None

    async def perform(self) -> LlmResponse:
        """Performs the whole turn, including retries. Every failure raises `ProviderError`."""
        attempt = 0
        while True:
            reader = self._exchange.new_reader()
            try:
                return await self._attempt(reader)
            except ProviderError as error:
                # text that observers have seen cannot be retracted here, so there is no retry
                wait = None if reader.has_given else self._exchange.retries.wait_before(attempt, error)
                if wait is None:
                    raise
                why = str(error)
            await self.close()
            attempt += 1
            self._report("attempt_failed")
            self._report("waiting", wait, why, attempt)
            await self._wait(wait)

    async def close(self, *, keep: bool = False) -> None:
        """Closes the connection, or with `keep` returns it to the pool if that is cheap."""
        response, self._response = self._response, None
        if response is not None:
            await (response.finish() if keep else response.aclose())

    async def give_up(self) -> NoReturn:
        """Raises because the run has ended: what `on_chunk` raises, or else a `RunCancelledError`."""
        await self._show("")
        raise RunCancelledError("the call was cancelled, or its time is up") from None

    async def _attempt(self, reader: Reader) -> LlmResponse:
        began, vendor = time.monotonic(), self._exchange.to.vendor
        try:
            response = await self._unless_ended(self._open())
            if response.status != OK:
                raise await self._failure(response)
            reader.begin(response.headers)
            await self._read(reader)
        except TransportError as error:
            if error.kind == "too_large":
                why = f"{vendor}: the response is larger than max_response_bytes={self._exchange.request.max_bytes}"
                broken = ProviderError(why, status=OK, code="response_too_large", vendor=vendor)
            else:
                began_to_come = " after part of the answer had come" if reader.has_given else ""
                advice = "; if the model needs longer, raise the provider's timeout" if error.kind == "timeout" else ""
                why = f"{vendor}: {error}{began_to_come}{advice}"
                broken = ProviderError(why, code=error.kind, retryable=error.retryable, vendor=vendor)
        else:
            await self.close(keep=True)
            return reader.response(int((time.monotonic() - began) * 1000))
        # raised outside of the except block: the original error may quote the server, which may quote the key
        raise broken

    async def _open(self) -> AsyncResponse:
        request, to = replace(self._exchange.request, unwanted=self.unwanted), self._transport
        response: AsyncResponse = BlockingResponse(to.send(request)) if self._blocking else await to.asend(request)
        self._response, self._body = response, response.__aiter__()
        return response

    async def _next(self) -> bytes:
        return await self._unless_ended(anext(self._body, b""))

    async def _failure(self, response: AsyncResponse) -> ProviderError:
        """Reads the start of an error's body, even if the rest never arrives."""
        body = b""
        with suppress(TransportError):
            while len(body) < MAX_ERROR_BODY and (data := await self._next()):
                body += data
        await self.close(keep=True)
        return failure(response.status, response.headers, body[:MAX_ERROR_BODY], self._exchange.to, time.time())

    async def _read(self, reader: Reader) -> None:
        size, longest = 0, self._exchange.request.max_bytes
        while not reader.complete:
            try:
                data = await self._next()
            except TransportError as error:
                if not (reader.may_end and error.retryable):
                    raise
                data = b""  # some servers send everything and never end the body
            size += len(data)
            if longest is not None and size > longest:
                raise TransportError("more content than allowed, after it was decoded", "too_large")
            used = reader.usage
            try:
                pieces = reader.feed(data)
            finally:
                if reader.usage not in (None, used):
                    self._report("report_usage", reader.usage)  # it counts even if the call fails
            for piece in pieces:
                await self._show(piece)
            if not data:
                reader.check_complete()
                return

    # ----------------------------------------------------------------------------------------------------- the run

    async def _show(self, piece: str | CallText) -> None:
        """Passes a piece of text or of a native call to the observers; their exceptions propagate."""
        pending = self._on_chunk(piece if isinstance(piece, str) else "")  # raises if the run has ended
        if not isinstance(piece, str):
            pending = self._report("block", *piece)
        if not self._blocking and hasattr(pending, "__await__"):  # in a thread, `on_chunk` waits for the observers
            await pending

    def _report(self, what: str, *details: object) -> Any:
        return getattr(self._on_chunk, what, lambda *_: None)(*details)

    async def _wait(self, seconds: float) -> None:
        """Waits before a retry. Empty pieces are passed on regularly, so that the run can raise if it has ended."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            await self._show("")
            if self._blocking:
                self._aborted.wait(min(left, SLICE))
            else:
                await asyncio.sleep(min(left, SLICE))
            await self._check()

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

    def abort(self) -> None:
        """Ends a blocking turn. Allowed from any thread."""
        self._on_chunk = lambda _: None  # nobody listens any more
        self._aborted.set()
        finished(self.close())


async def aperform(turn: Turn) -> LlmResponse:
    """Performs the turn on the running event loop. If the task is cancelled, the connection is closed."""
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
            return await turn.perform()
    except TimeoutError:
        if not scope.expired():
            raise
        await turn.give_up()
    finally:
        next_look.cancel()
        await asyncio.shield(turn.close())  # also if the task is cancelled once more


def perform(turn: Turn) -> LlmResponse:
    """Performs the turn in this thread. Exceptions of `on_chunk` propagate, after the connection is closed."""
    try:
        return finished(turn.perform())
    finally:
        turn.abort()  # also what a transport began before Ctrl-C interrupted it, such as the decoding of llama.cpp
