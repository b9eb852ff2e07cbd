"""One synchronous face for every transport, so that one suite of cases can be held against all of them.

`CLIENTS` names them. An asynchronous one is driven on an event loop in a thread of its own, call by call; reading and
closing then happen in different tasks, as they happen in different threads otherwise.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, TypeVar

import pytest

from kernai_providers.http_transport import HttpTransport
from kernai_providers.httpx_transport import HttpxTransport
from kernai_providers.in_process import MemoryReply, MemoryTransport
from kernai_providers.transport import AsyncResponse, AsyncTransport, Request, Response, Transport, TransportError
from wire_server import Authority, Close, Reply, Torn, WireServer

T = TypeVar("T")
PATIENCE = 20.0  # seconds until what should have ended long ago is called a failure
KEY = "sk-never-to-be-seen-0123456789"
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # or the system's authorities would be read, for 100 ms
FRAMINGS = ("chunked", "length", "close")
TEXT = "Grüße, 世界! ".encode() * 20


class Client(Protocol):
    """What a case may do."""

    def send(self, request: Request) -> Response: ...

    def close(self) -> None: ...


class LoopClient:
    """An asynchronous transport behind the synchronous face."""

    def __init__(self, transport: AsyncTransport) -> None:
        self.transport = transport
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="client-loop")
        self._thread.start()
        assert self._ready.wait(PATIENCE)

    def send(self, request: Request) -> LoopResponse:
        return LoopResponse(self, self.wait_for(self.transport.asend(request)))

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.start(coroutine).result(PATIENCE)

    def close(self) -> None:
        """Ends the loop and nothing else: the connections are the transport's business."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        asyncio.run(self._live())

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._ready.set()
        await self._over.wait()


class LoopResponse:
    """An asynchronous response behind the synchronous face."""

    def __init__(self, client: LoopClient, response: AsyncResponse) -> None:
        self._client = client
        self._response = response

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    def __iter__(self) -> Iterator[bytes]:
        body = self._response.__aiter__()

        async def following() -> bytes | None:
            return await anext(body, None)

        while (piece := self._client.wait_for(following())) is not None:
            yield piece

    def finish(self) -> None:
        self._client.wait_for(self._response.finish())

    def close(self) -> None:
        self._client.wait_for(self._response.aclose())


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


def in_memory(replies: tuple[Reply, ...]) -> MemoryTransport:
    return MemoryTransport(*map(memory_reply, replies))


MakeTransport = Callable[[ssl.SSLContext | None], HttpTransport | HttpxTransport]
#: the real ones: how each is made, and whether it is driven asynchronously
REAL: dict[str, tuple[MakeTransport, bool]] = {
    "http": (lambda context: HttpTransport(ssl_context=context), False),
    "httpx-async": (lambda context: HttpxTransport(ssl_context=context), True),
}
MEMORY = ("memory", "memory-async")
CLIENTS = (*REAL, *MEMORY)


@contextmanager
def real_client(kind: str, ssl_context: ssl.SSLContext | None = NO_TLS) -> Iterator[Client]:
    """A client with connections, which are closed afterwards."""
    make, is_async = REAL[kind]
    transport = make(ssl_context)
    client: Client = LoopClient(transport) if is_async and isinstance(transport, AsyncTransport) else transport
    try:
        yield client
    finally:
        client.close()


@contextmanager
def memory_client(kind: str, replies: tuple[Reply, ...]) -> Iterator[Client]:
    """A client without connections, that answers with these replies."""
    transport = in_memory(replies)
    client: Client = LoopClient(transport) if kind == "memory-async" else transport
    try:
        yield client
    finally:
        client.close()


def read(client: Client | Transport, request: Request) -> tuple[int, bytes]:
    """One call from its beginning to its end: status and body."""
    response = client.send(request)
    try:
        return response.status, b"".join(response)
    finally:
        response.finish()


class Stage:
    """Where a case plays: it says what shall be answered, and gets a client and a URL."""

    def __init__(self, kind: str, stack: ExitStack) -> None:
        self.kind = kind
        self._stack = stack
        self._servers: list[WireServer] = []

    @property
    def server(self) -> WireServer:
        """The one that answers; there is none for a transport in memory."""
        (server,) = self._servers
        return server

    def answers(self, *replies: Reply, tls: bool = False) -> Client:
        self.url = "http://127.0.0.1:9"
        if self.kind in MEMORY:
            return self._stack.enter_context(memory_client(self.kind, replies))
        authority = Authority() if tls else None
        self._servers = [self._stack.enter_context(WireServer(replies, tls=authority.server() if authority else None))]
        self.url = self.server.url
        return self._stack.enter_context(real_client(self.kind, authority.client() if authority else NO_TLS))

    def request(self, **changes: Any) -> Request:
        given: dict[str, Any] = {"method": "POST", "url": f"{self.url}/v1/chat?key={KEY}", "body": b"{}"}
        given["headers"] = {"X-Api-Key": KEY, "Content-Type": "application/json"}
        return Request(**(given | changes))


def failure(act: Callable[[], object]) -> TransportError:
    with pytest.raises(TransportError) as caught:
        act()
    return caught.value
