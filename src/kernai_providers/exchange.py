"""`Exchange`: one turn of a model over HTTP, as a generator without I/O.

It yields steps and is sent their outcomes, so retries, limits and completeness are defined once for the synchronous and
the asynchronous driver in `performing.py`:

==================  ==============================================  ======================================
step                sent back                                       may be thrown
==================  ==============================================  ======================================
`Send`              the `Head` of the response                      `TransportError`
`READ`              the next bytes of the body, ``b""`` at its end  `TransportError`
`Piece`             None: observers got a piece of text             nothing: what they raise ends the turn
`CallPiece`         None: the same for a native call                likewise
`FINISH`            None: the connection may be kept                nothing
`Wait`              None, after so many seconds                     nothing
==================  ==============================================  ======================================
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kernai import LlmResponse, ProviderError
from kernai_providers.failures import failure
from kernai_providers.transport import Request, TransportError

if TYPE_CHECKING:
    from kernai_providers.failures import RetryPolicy
    from kernai_providers.reader import Reader

OK = 200
#: bytes of an error's body that are read
MAX_ERROR_BODY = 64 * 1024


class Send(NamedTuple):
    """Send the request. This ends an earlier response."""

    request: Request


class Piece(NamedTuple):
    """A piece of the answer's text, for observers."""

    text: str


class CallPiece(NamedTuple):
    """A piece of a native call, for observers."""

    number: int
    type: str
    name: str | None
    text: str


class Wait(NamedTuple):
    """Wait so many seconds."""

    seconds: float


class Signal(Enum):
    """A step without an argument."""

    READ = auto()
    FINISH = auto()


READ: Final = Signal.READ
FINISH: Final = Signal.FINISH


class Head(NamedTuple):
    """The start of a response; header names in lower case."""

    status: int
    headers: Mapping[str, str]


Step = Send | Piece | CallPiece | Wait | Signal
Steps = Generator[Step, Any, LlmResponse]


@dataclass(frozen=True, slots=True, repr=False)
class Exchange:
    """Everything one turn needs: the request, the reader for its response, and the retry rules."""

    request: Request
    new_reader: Callable[[], Reader]
    retries: RetryPolicy
    vendor: str
    key_hint: str | None = None
    secrets: tuple[str, ...] = ()
    #: the caller's callback; see `ModelStream`
    on_chunk: object = None

    def steps(self) -> Steps:
        """The whole turn. Every failure is a `ProviderError`."""
        for attempt in count():
            reader = self.new_reader()
            try:
                return (yield from self._attempt(reader))
            except ProviderError as error:
                # text that observers have seen cannot be retracted here, so there is no retry
                wait = None if reader.has_given else self.retries.wait_before(attempt, error)
                if wait is None:
                    raise
                why = str(error)
            self._report("attempt_failed")
            self._report("waiting", wait, why, attempt + 1)
            yield Wait(wait)
        raise AssertionError("unreachable")  # pragma: no cover - `count` never ends

    def _attempt(self, reader: Reader) -> Steps:
        began = time.monotonic()
        broken = None
        try:
            head: Head = yield Send(self.request)
            if head.status != OK:
                body = yield from self._error_body()
                yield FINISH
                raise failure(
                    head.status, head.headers, body, self.vendor, time.time(),
                    key_hint=self.key_hint, secrets=self.secrets,
                )
            reader.begin(head.headers)
            yield from self._read(reader)
        except TransportError as error:
            broken = self._broken(reader, error)
        if broken is not None:
            # raised outside of the except block: the original error may quote the server, which may quote the key
            raise broken
        yield FINISH
        return reader.response(int((time.monotonic() - began) * 1000))

    def _read(self, reader: Reader) -> Generator[Step, Any, None]:
        size = 0
        while not reader.complete:
            try:
                data: bytes = yield READ
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
                    self._check_size(size)
                    pieces = reader.feed(data)
            finally:
                if reader.usage not in (None, used):
                    self._report("report_usage", reader.usage)
            for piece in pieces:
                yield Piece(piece) if isinstance(piece, str) else CallPiece(*piece)
            if not data:
                reader.check_complete()
                return

    def _report(self, what: str, *details: object) -> None:
        """Reports to the run, if it listens: usage, for one, counts even if the call fails."""
        listener = getattr(self.on_chunk, what, None)
        if listener is not None:
            listener(*details)

    def _error_body(self) -> Generator[Step, Any, bytes]:
        """The start of an error's body; it is used even if the rest never arrives."""
        body = b""
        try:
            while len(body) < MAX_ERROR_BODY:
                data: bytes = yield READ
                if not data:
                    break
                body += data
        except TransportError:
            pass
        return body[:MAX_ERROR_BODY]

    def _check_size(self, size: int) -> None:
        if self.request.max_bytes is not None and size > self.request.max_bytes:
            raise self._too_large()

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
