"""The seam below the adapters: one HTTP request in, a status, headers and an iterator of bytes out.

::

    provider → exchange → Transport.send(Request) → Response
                          AsyncTransport.asend(Request) → AsyncResponse

A transport knows nothing of vendors, of retries or of JSON. It does not follow redirects, decodes `Content-Encoding`,
gives the bytes as they arrive, and raises `TransportError` for whatever goes wrong on the way: at `send`, or while the
body is iterated. Wherever it waits, it looks now and then whether the answer is still wanted. It is shared by threads.
`HttpTransport` is the default, `MemoryTransport` the one for tests, and `HttpxTransport` the one that is asynchronous
too; `tests/providers/test_transports.py` holds all of them to this page.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds: how long connecting may take; how long the other side may be silent, and take for an answer's head."""

    connect: float = 10.0
    read: float = 120.0


@dataclass(frozen=True, slots=True, repr=False)
class Request:
    """One HTTP request. `url` is absolute, http or https; header names are given as they are to be sent.

    `max_bytes`: an answer whose content is larger, as it comes over the wire, is an error. `unwanted()`, asked now and
    then, becomes true when nobody waits for the answer any more: because the run was cancelled, or its time is up.
    """

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    timeouts: Timeouts = Timeouts()
    max_bytes: int | None = None
    unwanted: Callable[[], bool] | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        # neither headers nor body: keys and conversations are nobody's business
        return f"Request({self.method} {self.url.partition('?')[0]}, {len(self.body)} bytes)"


class TransportError(Exception):
    """The request did not get through, or its answer broke off.

    `kind` is ``connect`` (nothing was sent), ``timeout``, ``closed`` (the other side closed or reset the connection,
    or the body ended early), ``tls`` (no trusted certificate; trying again does not help), ``protocol`` (what came is
    not HTTP), ``too_large`` or ``unwanted`` (see `Request`). The message names the host, never a header, a query, a
    proxy's password or a body.
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def retryable(self) -> bool:
        """Whether the same request may get through later."""
        return self.kind in ("connect", "timeout", "closed")


@runtime_checkable
class Response(Protocol):
    """What came back. Iterate it once; then `finish` or `close` it, whatever happened."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case; of a repeated one the values are joined by a comma."""
        ...

    def __iter__(self) -> Iterator[bytes]:
        """The body as it arrives, content decoded. `TransportError` when it ends before its length says so."""
        ...

    def finish(self) -> None:
        """Nothing more is wanted. Keeps the connection for the next request where that costs next to no time."""
        ...

    def close(self) -> None:
        """Closes the connection; from any thread, at any time, also twice. Whoever waits for bytes stops waiting."""
        ...


@runtime_checkable
class Transport(Protocol):
    """Sends requests. Used by many threads at once."""

    def send(self, request: Request) -> Response: ...

    def close(self) -> None:
        """Closes idle connections. The transport may be used again."""
        ...


@runtime_checkable
class AsyncResponse(Protocol):
    """The same for asyncio."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def finish(self) -> None: ...

    async def aclose(self) -> None: ...


@runtime_checkable
class AsyncTransport(Protocol):
    """A transport with this method makes a provider's `acall` native."""

    async def asend(self, request: Request) -> AsyncResponse: ...

    async def aclose(self) -> None:
        """Closes what is kept for the running event loop. The transport may be used again."""
        ...
