"""One synchronous face for every transport, so that one suite of cases can be held against all of them.

`CLIENTS` names them. An asynchronous one is driven on an event loop in a thread of its own, call by call; reading and
closing then happen in different tasks, as they happen in different threads otherwise.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import pytest

from kernai.drivers.background_loop import BackgroundLoop
from kernai_providers.http_transport import HttpTransport
from kernai_providers.httpx_transport import HttpxTransport
from kernai_providers.in_process import MemoryReply, MemoryTransport
from kernai_providers.transport import AsyncResponse, AsyncTransport, Request, Response, TransportError
from wire_server import Authority, Close, Reply, Torn, WireServer

PATIENCE = 20.0  # seconds until what should have ended long ago is called a failure
KEY = "sk-never-to-be-seen-0123456789"
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # or the system's authorities would be read, for 100 ms
FRAMINGS = ("chunked", "length", "close")
TEXT = "Grüße, 世界! ".encode() * 20


class Client(Protocol):
    def send(self, request: Request) -> Response: ...

    def close(self) -> None: ...


class LoopClient:
    """An asynchronous transport behind the synchronous face."""

    def __init__(self, transport: AsyncTransport) -> None:
        self.transport = transport
        self._loop = BackgroundLoop("client-loop")

    def send(self, request: Request) -> Response:
        return LoopResponse(self._loop, self._loop.run(self.transport.asend(request)))

    def close(self) -> None:
        """Ends the loop and nothing else: the connections are the transport's business."""
        self._loop.close(PATIENCE)


class LoopResponse:
    """An asynchronous response behind the synchronous face."""

    def __init__(self, loop: BackgroundLoop, response: AsyncResponse) -> None:
        self.status, self.headers = response.status, response.headers
        self._loop = loop
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        body = self._response.__aiter__()
        while (piece := self._loop.run(anext(body, None))) is not None:
            yield piece

    def finish(self) -> None:
        self._loop.run(self._response.finish())

    def close(self) -> None:
        self._loop.run(self._response.aclose())


#: those with connections, and those without
REAL, MEMORY = ("http", "httpx-async"), ("memory", "memory-async")
CLIENTS = (*REAL, *MEMORY)


@contextmanager
def client_of(kind: str, ssl_context: ssl.SSLContext | None = NO_TLS, replies: Sequence[Reply] = ()) -> Iterator[Client]:
    """A client, whose connections are closed afterwards; one without connections answers with these replies."""
    transport: Any
    if kind in MEMORY:
        transport = MemoryTransport(*map(memory_reply, replies))
    else:
        transport = (HttpTransport if kind == "http" else HttpxTransport)(ssl_context=ssl_context)
    client: Client = LoopClient(transport) if kind.endswith("-async") else transport
    try:
        yield client
    finally:
        client.close()


def memory_reply(reply: Reply) -> MemoryReply:
    """What comes of a server's reply when there is no wire in between."""
    pieces: list[bytes | BaseException] = []
    for step in reply.body:
        if isinstance(step, bytes):
            pieces.append(step)
        elif isinstance(step, Torn):
            pieces.append(step.piece[: step.keep])
        else:
            assert isinstance(step, Close), "a case with this step is for real connections only"
            pieces.append(TransportError("vendor.test:443 closed the connection", "closed"))
    return MemoryReply(reply.status, reply.headers, pieces)


def read(client: Client, request: Request) -> tuple[int, bytes]:
    """One call from its beginning to its end: status and body."""
    response = client.send(request)
    try:
        return response.status, b"".join(response)
    finally:
        response.finish()


class Stage:
    """Where a case plays: it says what shall be answered, and gets a client and a URL."""

    #: the one that answers; there is none for a transport in memory
    server: WireServer

    def __init__(self, kind: str, stack: ExitStack) -> None:
        self.kind = kind
        self._stack = stack

    def answers(self, *replies: Reply, tls: bool = False) -> Client:
        self.url = "http://127.0.0.1:9"
        if self.kind in MEMORY:
            return self._stack.enter_context(client_of(self.kind, replies=replies))
        authority = Authority() if tls else None
        self.server = self._stack.enter_context(WireServer(replies, tls=authority.server() if authority else None))
        self.url = self.server.url
        return self._stack.enter_context(client_of(self.kind, authority.client() if authority else NO_TLS))

    def request(self, **changes: Any) -> Request:
        given: dict[str, Any] = {"method": "POST", "url": f"{self.url}/v1/chat?key={KEY}", "body": b"{}"}
        given["headers"] = {"X-Api-Key": KEY, "Content-Type": "application/json"}
        return Request(**(given | changes))


def failure(act: Callable[[], object]) -> TransportError:
    with pytest.raises(TransportError) as caught:
        act()
    return caught.value
