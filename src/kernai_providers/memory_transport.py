r"""`MemoryTransport`: a transport without a network, for tests.

::

    transport = MemoryTransport(
        MemoryReply(429, {"retry-after": "1"}),
        MemoryReply(200, {"content-type": "text/event-stream"}, [b"data: one\n\n", b"data: [DONE]\n\n"]),
    )
    provider = OpenAIProvider(api_key="test", transport=transport)
    ...
    assert len(transport.requests) == 2
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from kernai_providers.request_checks import outgoing
from kernai_providers.streamed_response import BlockingResponse, StreamedResponse, joined
from kernai_providers.transport import Request


@dataclass(frozen=True, slots=True)
class MemoryReply:
    """An answer. `pieces` come as they are written here, one a read; an exception among them is raised in its place,
    most usefully a `TransportError`. Where `headers` say gzip or deflate, the pieces are decoded like a real body.

    `bytes` are one piece. An iterator serves one request; a list, a tuple or `bytes` any number.
    """

    status: int = 200
    headers: Mapping[str, str] | Iterable[tuple[str, str]] = field(default_factory=dict)
    pieces: bytes | Iterable[bytes | BaseException] = ()

    def __post_init__(self) -> None:
        if isinstance(self.pieces, str):
            raise TypeError("pieces must be bytes, or an iterable of bytes and exceptions, got str: encode it")


Answer: TypeAlias = MemoryReply | BaseException


class MemoryTransport:
    """Answers requests from memory, for threads and for asyncio alike.

    Takes replies, given in their order, the last one again and again; an exception in place of a reply is raised by
    `send`. Or one function ``Request -> MemoryReply`` that may raise. `requests` holds what was sent; `open_responses`
    how many answers were neither finished nor closed, which after a call should be 0.
    """

    def __init__(self, *replies: Answer | Callable[[Request], MemoryReply]) -> None:
        if not replies:
            raise ValueError("replies is empty; give MemoryReply objects, or one function from Request to MemoryReply")
        functions = [reply for reply in replies if not isinstance(reply, (MemoryReply, BaseException))]
        if functions and (len(replies) > 1 or not callable(functions[0])):
            raise TypeError("replies must be MemoryReply objects and exceptions, or exactly one function")
        self._replies = replies
        self._lock = threading.Lock()
        self._requests: list[Request] = []
        self._open: set[MemoryResponse] = set()

    @property
    def requests(self) -> tuple[Request, ...]:
        """All requests so far."""
        with self._lock:
            return tuple(self._requests)

    @property
    def open_responses(self) -> int:
        """How many answers were neither finished nor closed."""
        with self._lock:
            return len(self._open)

    def send(self, request: Request) -> MemoryResponse:
        """The next reply. `ValueError` for a request that no transport could send."""
        call = outgoing(request)
        with self._lock:
            answer = self._replies[min(len(self._requests), len(self._replies) - 1)]
            self._requests.append(request)
        if isinstance(answer, BaseException):
            raise answer
        # a function is called outside of the lock: it may wait, or send something itself
        reply = answer if isinstance(answer, MemoryReply) else answer(request)
        response = MemoryResponse(reply, call.peer, request.max_bytes, self._forget)
        with self._lock:
            self._open.add(response)
        return response

    async def asend(self, request: Request) -> AsyncMemoryResponse:
        """The same for asyncio."""
        return AsyncMemoryResponse(self.send(request))

    def close(self) -> None:
        """Nothing is idle here."""

    async def aclose(self) -> None:
        """Nothing is idle here."""

    def _forget(self, response: MemoryResponse) -> None:
        with self._lock:
            self._open.discard(response)


class MemoryResponse(StreamedResponse):
    """An answer of `MemoryTransport`."""

    def __init__(
        self, reply: MemoryReply, peer: str, max_bytes: int | None, forget: Callable[[MemoryResponse], None]
    ) -> None:
        headers = reply.headers.items() if isinstance(reply.headers, Mapping) else reply.headers
        super().__init__(reply.status, joined(headers), peer, max_bytes)
        pieces = (reply.pieces,) if isinstance(reply.pieces, bytes) else reply.pieces
        self._pieces: Iterator[bytes | BaseException] = iter(pieces)
        self._forget = forget

    def _pull(self) -> bytes:
        for piece in self._pieces:
            if isinstance(piece, BaseException):
                raise piece
            if piece:
                return piece
        return b""

    def _give_up(self, *, keep: bool) -> None:  # noqa: ARG002 - there is no connection to keep
        self._forget(self)


class AsyncMemoryResponse(BlockingResponse):
    """The same for asyncio."""

    async def __anext__(self) -> bytes:
        # as a real one would: others get their turn, and a cancelled task notices
        await asyncio.sleep(0)
        return await super().__anext__()
