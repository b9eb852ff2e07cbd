"""`Exchange`: one turn of a model over HTTP. Retries, limits and completeness are defined here, once for both drivers.

`perform` is a coroutine over a `Turn`, which sends, reads, shows and waits. For asyncio those steps wait on the event
loop; in a thread each one is done before it returns, so that the coroutine runs to its end without a loop. Both kinds
of turn are in `turns.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from kernai import LlmResponse, ProviderError
from kernai_providers.failures import failure
from kernai_providers.transport import Request, TransportError

if TYPE_CHECKING:
    from kernai_providers.failures import RetryPolicy
    from kernai_providers.reader import Reader
    from kernai_providers.turns import Turn

OK = 200
#: bytes of an error's body that are read
MAX_ERROR_BODY = 64 * 1024


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
        """The whole turn. Every failure is a `ProviderError`."""
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
        """The start of an error's body; it is used even if the rest never arrives."""
        body = b""
        try:
            while len(body) < MAX_ERROR_BODY:
                data = await turn.read()
                if not data:
                    break
                body += data
        except TransportError:
            pass
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
