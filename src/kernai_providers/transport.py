"""The seam below the adapters: one HTTP request in, a status, headers and an iterator of bytes out.

::

    provider → exchange → Transport.send(Request) → Response
                          AsyncTransport.asend(Request) → AsyncResponse

A transport knows nothing of vendors, retries or JSON. It does not follow redirects. It decodes `Content-Encoding`,
returns bytes as they arrive, and raises `TransportError` for every failure, in `send` or while the body is iterated.
Wherever it waits, it checks now and then whether the response is still wanted. Threads may share it.
`HttpTransport` is the default, `MemoryTransport` the one for tests, and `HttpxTransport` the one that is asynchronous
too; `tests/providers/test_transports.py` holds all of them to this page.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds: how long connecting may take, and how long the server may be silent or take for a response's head."""

    connect: float = 10.0
    read: float = 120.0


@dataclass(frozen=True, slots=True, repr=False)
class Request:
    """One HTTP request. `url` is absolute, http or https; header names are sent as given.

    `max_bytes`: a response with more content, as transferred, is an error. `unwanted()` is called now and then; it
    returns true once nobody waits for the response, because the run was cancelled or its time is up.
    """

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    timeouts: Timeouts = Timeouts()
    max_bytes: int | None = None
    unwanted: Callable[[], bool] | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        # neither headers nor body: they contain keys and conversations
        return f"Request({self.method} {self.url.partition('?')[0]}, {len(self.body)} bytes)"


class TransportError(Exception):
    """The request failed, or its response was cut off.

    `kind` is ``connect`` (nothing was sent), ``timeout``, ``closed`` (the server closed or reset the connection, or the
    body ended early), ``tls`` (no trusted certificate; a retry does not help), ``protocol`` (the response is not HTTP),
    ``too_large`` or ``unwanted`` (see `Request`). The message contains the host, never a header, a query, a proxy's
    password or a body.
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.kind in ("connect", "timeout", "closed")


@runtime_checkable
class Response(Protocol):
    """A response. Iterate it once; then `finish` or `close` it, whatever happened."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case; values of a repeated name are joined by a comma."""
        ...

    def __iter__(self) -> Iterator[bytes]:
        """The body as it arrives, content decoded. `TransportError` if it ends before its length."""
        ...

    def finish(self) -> None:
        """No more is wanted. Keeps the connection for the next request if that takes next to no time."""
        ...

    def close(self) -> None:
        """Closes the connection; from any thread, at any time, also twice. Unblocks a reader."""
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
