"""The interface below the adapters: one HTTP request in; a status, headers and an iterator of bytes out.

::

    provider → exchange → Transport.send(Request) → Response
                          AsyncTransport.asend(Request) → AsyncResponse

A transport knows nothing of vendors, retries or JSON. It does not follow redirects. It decodes `Content-Encoding`,
returns bytes as they arrive, and raises `TransportError` for every failure, in `send` or while the body is iterated.
Wherever it waits, it regularly checks whether the response is still wanted. Threads may share it. `HttpTransport` is
the default, `MemoryTransport` is for tests, and `HttpxTransport` also supports asyncio;
`tests/providers/test_transports.py` checks that all of them behave as described here.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """In seconds: how long connecting may take, and how long the server may be silent or take for a response's head."""

    connect: float = 10.0
    read: float = 120.0


@dataclass(frozen=True, slots=True, repr=False)
class Request:
    """One HTTP request. `url` is absolute, http or https; header names are sent as given.

    `max_bytes`: a response with more content, as transferred, is an error. `unwanted()` is called regularly; it returns
    true once nobody wants the response any more, because the run was cancelled or has timed out.
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

    def __init__(self, message: str, kind: str = "protocol") -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.kind in ("connect", "timeout", "closed")


class Head(Protocol):
    """The head of a response. Header names are in lower case; values of a repeated name are joined by a comma."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...


@runtime_checkable
class Response(Head, Protocol):
    """A response. Iterate over it once, then always call `finish` or `close`."""

    def __iter__(self) -> Iterator[bytes]:
        """Yields the decoded body as it arrives. Raises `TransportError` if the body ends early."""
        ...

    def finish(self) -> None:
        """Stops reading. The connection is kept if the rest of the body arrives at once, else closed. Never raises."""
        ...

    def close(self) -> None:
        """Closes the connection, which unblocks a reader. Allowed from any thread, at any time, and repeatedly."""
        ...


@runtime_checkable
class Transport(Protocol):
    """Sends requests. Many threads may use it at the same time."""

    def send(self, request: Request) -> Response: ...

    def close(self) -> None:
        """Closes idle connections. The transport may be used again."""
        ...


@runtime_checkable
class AsyncResponse(Head, Protocol):
    """A response for asyncio, otherwise like `Response`."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def finish(self) -> None: ...

    async def aclose(self) -> None: ...


@runtime_checkable
class AsyncTransport(Protocol):
    """A transport for asyncio. With one, a provider's `acall` needs no worker thread."""

    async def asend(self, request: Request) -> AsyncResponse: ...

    async def aclose(self) -> None:
        """Closes the idle connections of the running event loop. The transport may be used again."""
        ...

# ------------------------------------------------------------------------------------------------------------ responses

#: how long, and how many bytes, `finish` reads at most to keep a connection
DRAIN_SECONDS: Final = 0.1
DRAIN_BYTES: Final = 64 * 1024
#: the largest decoded piece, in bytes
PIECE: Final = 64 * 1024


def joined(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Returns headers with lower-case names; values of a repeated name are joined by a comma (RFC 9110 section 5.3)."""
    result: dict[str, str] = {}
    for name, value in headers:
        key = name.lower()
        result[key] = f"{result[key]}, {value}" if key in result else value
    return result


def ends_for_certain(status: int, headers: Mapping[str, str]) -> bool:
    """Whether another response may follow on the connection.

    None may follow a response with two lengths (RFC 9112 section 6.3), or one that must not have a body: some servers
    send a body anyway, which would be taken for the next response.
    """
    # No Content, Not Modified
    return status not in (204, 304) and not ("transfer-encoding" in headers and "content-length" in headers)


class BlockingResponse:
    """Wraps a synchronous response as an asynchronous one whose coroutines never suspend."""

    def __init__(self, response: Response) -> None:
        self.status, self.headers = response.status, response.headers
        self._response = response
        self._pieces = iter(response)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        for piece in self._pieces:
            return piece
        raise StopAsyncIteration

    async def finish(self) -> None:
        self._response.finish()

    async def aclose(self) -> None:
        self._response.close()


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never suspends, and returns its result."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("a step in a thread waited for an event loop")  # pragma: no cover


class ContentDecoder:
    """Undoes the `Content-Encoding` of one body while its bytes arrive (RFC 9110 section 8.4.1, RFC 1950 to 1952).

    The size of its pieces is limited, however much a few compressed bytes expand to, so a caller that counts bytes can
    stop in time. `codings` is the header's value, and `peer` the host, for error messages.

    Raises `TransportError` of kind ``protocol`` for an unknown coding, for several, and for bytes in another coding
    than the header says, and of kind ``closed`` if the compressed body ends early.
    """

    def __init__(self, codings: str, peer: str) -> None:
        names = (part.strip().lower() for part in codings.split(","))
        # many servers of streams say "none", which is no coding, so that nothing compresses them
        self._coding = ", ".join(name for name in names if name not in ("", "identity", "none"))
        self._peer = peer
        self._member: zlib._Decompress | None = None
        self._has_ended = False

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Yields what these bytes decode to. Consume all of it before the next call."""
        if self._coding not in ("", "gzip", "x-gzip", "deflate"):
            # its name is not shown: it comes from the server
            raise TransportError(f"{self._peer} answered in a Content-Encoding other than gzip or deflate", "protocol")
        try:
            yield from self._inflated(data) if self._coding else (data,)
        except zlib.error as error:
            raise TransportError(f"{self._peer} sent a body that cannot be decompressed", "protocol") from error

    def end(self) -> None:
        """Raises `TransportError` if the compressed data is incomplete. Call this at the end of the body."""
        if self._member is not None:
            raise TransportError(f"{self._peer} sent a compressed body that breaks off", "closed")

    def _inflated(self, data: bytes) -> Iterator[bytes]:
        is_gzip = self._coding != "deflate"
        piece = b""
        while data or len(piece) == PIECE:  # after a full piece, zlib may hold back more although it has read all input
            if self._member is None:
                if self._has_ended and not (is_gzip and data.startswith(b"\x1f")):
                    return  # padding after the end
                # "deflate" means zlib's format, but some servers send the raw stream, whose first byte is another
                wrapped = data[0] & 0x0F == zlib.DEFLATED
                self._member = zlib.decompressobj(wbits=31 if is_gzip else 15 if wrapped else -15)
            piece = self._member.decompress(data, PIECE)
            if piece:
                yield piece
            data = self._member.unconsumed_tail
            if self._member.eof:
                data, piece, self._member, self._has_ended = self._member.unused_data, b"", None, True
