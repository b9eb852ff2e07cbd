"""`HttpxTransport`: a native transport for asyncio, on httpx. Needs the extra: ``pip install "kernai[httpx]"``.

Guarantees: those of `HttpTransport`, also for `asend`. Each event loop has its own connections. `aclose` closes idle
ones, and the loop's end closes all, if it shuts down asynchronous generators, as `asyncio.run` does.

It uses httpx's transports, not its clients: no redirects, no cookies, nothing added to a request. Bodies are read raw
and decoded as everywhere else in this package.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import IncompleteRead
from typing import Any, TypeAlias

from kernai._util.network import origin_of
from kernai_providers.http_transport import HttpTransport, broken, cause_of
from kernai_providers.network import BLOCK, Deadline, tunnel
from kernai_providers.request_checks import Outgoing, Proxy, routed
from kernai_providers.transport import (
    DRAIN_BYTES,
    DRAIN_SECONDS,
    ContentDecoder,
    Request,
    TransportError,
    ends_for_certain,
    joined,
)

try:
    import httpcore
    import httpx
except ImportError as missing:
    raise ImportError('HttpxTransport needs httpx: pip install "kernai[httpx]"') from missing


# ruff: noqa: SLF001 - httpx and httpcore hide their connections


class HttpxTransport(HttpTransport):
    """An `HttpTransport` that also sends requests under asyncio. With it, a provider needs no worker thread there.

    All threads together have one pool of idle connections, and each event loop has one. `close` closes those of the
    threads, `aclose` those of an event loop.
    """

    def __init__(
        self, *, ssl_context: ssl.SSLContext | None = None, max_idle: int = 64, idle_seconds: float = 30.0
    ) -> None:
        super().__init__(ssl_context=ssl_context, max_idle=max_idle, idle_seconds=idle_seconds)
        self._limits = httpx.Limits(max_keepalive_connections=max_idle, keepalive_expiry=idle_seconds)
        self._loops: dict[asyncio.AbstractEventLoop, AsyncGenerator[_Transports, None]] = {}

    async def asend(self, request: Request) -> HttpxResponse:
        """Sends a request on the running event loop. If the task is cancelled, the connection is closed."""
        call = routed(request)
        transport = await self._transport(call)
        deadline = Deadline(request, call)
        sent = httpx.Request(
            request.method, f"{call.scheme}://{call.peer}", headers=list(call.headers.items()), content=request.body,
            # httpcore hands the deadline down to the network, which is ours
            extensions={
                "timeout": dict.fromkeys(("connect", "read", "write"), deadline), "target": call.target.encode()},
        )
        while True:
            try:
                raw = await transport.handle_async_request(sent)
                deadline.lift_limit()
                return HttpxResponse(raw, deadline)
            except BaseException as error:
                if deadline.stream is not None:
                    await asyncio.shield(_abandon(transport, deadline.stream))
                known = (OSError, httpx.HTTPError, TransportError)
                if not isinstance(error, Exception if deadline.connecting else known):
                    raise
                failed = error if isinstance(error, TransportError) else broken(error, deadline)
                if failed.kind != "closed" or not deadline.awaits_head or deadline.dialed or deadline.has_received:
                    raise failed from cause_of(error)
                # an idle connection was closed, and is now gone from the pool

    async def aclose(self) -> None:
        transports = self._loops.get(asyncio.get_running_loop())
        for transport in () if transports is None else list((await anext(transports)).values()):
            for connection in transport._pool.connections:  # httpx closes all or none
                if connection.is_idle():
                    await connection.aclose()

    async def _transport(self, call: Outgoing) -> httpx.AsyncHTTPTransport:
        loop = asyncio.get_running_loop()
        for ended in [each for each in list(self._loops) if each.is_closed()]:
            self._loops.pop(ended, None)
        if loop not in self._loops:
            self._loops[loop] = self._connections(loop)
        transports, key = await anext(self._loops[loop]), (call.scheme, call.proxy)
        if key not in transports:
            # http needs no certificate authorities, and reading them takes longer than a local request
            context = self.context() if call.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            made = httpx.AsyncHTTPTransport(verify=context, limits=self._limits, trust_env=False)
            # httpx has no parameter for httpcore's network backend
            vars(made._pool)["_network_backend"] = _WatchedBackend(self.context)
            transports[key] = made
        return transports[key]

    async def _connections(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[_Transports, None]:
        """Keeps the transports of one event loop, and closes them when the loop ends.

        Loops have no hook for their end, but they close asynchronous generators.
        """
        transports: _Transports = {}
        try:
            while True:
                yield transports
        finally:
            self._loops.pop(loop, None)
            for transport in transports.values():
                await transport.aclose()


#: by scheme and proxy: requests for which these are equal share a pool of connections
_Transports: TypeAlias = dict[tuple[str, Proxy | None], httpx.AsyncHTTPTransport]


class HttpxResponse:
    """A response of `HttpxTransport.asend`."""

    def __init__(self, raw: httpx.Response, deadline: Deadline) -> None:
        assert isinstance(raw.stream, httpx.AsyncByteStream)
        self.status = raw.status_code
        self.headers = joined(raw.headers.multi_items())
        self._deadline = deadline
        self._decoder = ContentDecoder(self.headers.get("content-encoding", ""), deadline.call.peer)
        self._stream = raw.stream
        self._pieces = raw.stream.__aiter__()
        self._ended = False
        self._closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self._read():
            for piece in self._decoder.decode(data):
                yield piece
        self._decoder.end()

    async def finish(self) -> None:
        try:
            with suppress(TransportError, TimeoutError):
                async with asyncio.timeout(DRAIN_SECONDS):
                    size = 0
                    while size <= DRAIN_BYTES and not self._ended and not self._closed:
                        size += len(await self._read())
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Closes the connection unless the body was read to its end; an iteration in progress gets an error."""
        self._closed = True
        await asyncio.shield(self._release())  # if it were cancelled, httpcore would keep the connection as in use

    async def _release(self) -> None:
        stream: Any = getattr(self._stream, "_httpcore_stream", None)
        connection = getattr(getattr(stream, "_stream", None), "_connection", None)
        if connection is None:
            return  # a cassette's response has no connection, nor one that tests put into httpcore's pool
        # httpcore would take bytes after the response's end for the next response
        has_more = bool(connection._h11_state.trailing_data[0])
        if not self._ended or has_more or not ends_for_certain(self.status, self.headers):
            await connection.aclose()
        await stream.aclose()

    async def _read(self) -> bytes:
        if self._closed and not self._ended:
            raise self._deadline.closed_here()
        try:
            data = await anext(self._pieces, b"")
        except BaseException as error:
            was_closed, self._closed = self._closed, True  # the next read would be taken for the body's end
            if not isinstance(error, (OSError, httpx.HTTPError)):
                raise
            if was_closed:
                raise self._deadline.closed_here() from None
            await self.aclose()
            # for the parser, an early end is one of many errors
            seen = error if isinstance(error, OSError) else IncompleteRead(b"")
            raise broken(seen, self._deadline) from cause_of(error)
        self._ended = not data
        self._deadline.count(content=len(data))
        return data


async def _abandon(transport: Any, stream: _WatchedStream) -> None:
    """Closes a connection, which httpcore does not if it fails before sending.

    If the task is cancelled twice, httpcore would also keep it as one in use, with all that belongs to the request.
    """
    await stream.aclose()
    for connection in transport._pool.connections:
        if getattr(connection._connection, "_network_stream", None) is stream:
            await connection.aclose()


# ------------------------------------------------------------------------------------ the network below httpx


@contextmanager
def _plain_errors(unknown: type[OSError] = ConnectionError) -> Iterator[None]:
    """Turns errors of httpcore's network into the original ones, which `http.client` raises too.

    A failed write remains httpcore's, which then looks for a response that says why.
    """
    try:
        yield
    except httpcore.TimeoutException:
        raise TimeoutError from None
    except (httpcore.ConnectError, httpcore.ReadError) as error:
        origin = origin_of(error)
        raise (origin if isinstance(origin, OSError) else unknown()) from None


class _WatchedBackend(httpcore.AsyncNetworkBackend):
    """httpcore's own network, with the `Deadline` of each request. A task that waits is ended by cancelling it.

    Proxies are handled here, not by httpcore, which would log their passwords and sends some of them wrong requests.
    """

    # ruff: noqa: ASYNC109 - the names are httpcore's

    def __init__(self, context: Callable[[], ssl.SSLContext]) -> None:
        self._inner = httpcore.AnyIOBackend()
        self._context = context

    async def connect_tcp(
        self, host: str, port: int, timeout: Any = None, *options: Any, **named: Any  # noqa: ARG002 - the call's own
    ) -> httpcore.AsyncNetworkStream:
        deadline: Deadline = timeout
        deadline.begin(connecting=True)
        to, proxy = deadline.call, deadline.call.proxy
        first = proxy or to
        with _plain_errors():
            stream = await self._inner.connect_tcp(first.host, first.port, deadline.seconds, *options, **named)
        deadline.stream = watched = _WatchedStream(stream, deadline)
        deadline.dialed = True
        if proxy is not None and proxy.scheme == "https":
            watched = await watched.start_tls(self._context(), proxy.host)
        if proxy is not None and to.needs_tunnel:
            await tunnel(watched, proxy, to)
        return watched


class _WatchedStream(httpcore.AsyncNetworkStream):
    """One connection. `timeout` is the deadline of the request; a proxy's handshake passes none."""

    def __init__(self, inner: httpcore.AsyncNetworkStream, deadline: Deadline) -> None:
        self._inner = inner
        self._deadline = deadline

    async def read(self, max_bytes: int, timeout: Any = None) -> bytes:
        self._deadline = deadline = timeout or self._deadline
        deadline.check()
        with _plain_errors():
            data = await self._inner.read(max_bytes, max(0.0, deadline.until() - time.monotonic()))
        if not data and deadline.awaits_head and not deadline.connecting:
            raise deadline.cut_head()
        deadline.has_received = deadline.has_received or bool(data)
        deadline.count(len(data))
        return data

    async def write(self, buffer: bytes, timeout: Any = None) -> None:
        self._deadline = deadline = timeout or self._deadline
        deadline.stream = self
        if deadline.connecting and timeout is not None:
            deadline.begin()
        for at in range(0, len(buffer), BLOCK):  # or the whole body would have to be sent in that time
            with _plain_errors():
                await self._inner.write(buffer[at : at + BLOCK], deadline.seconds)
        deadline.limit_step()

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: Any = None
    ) -> _WatchedStream:
        with _plain_errors(ssl.SSLEOFError):
            stream = await self._inner.start_tls(ssl_context, server_hostname, self._deadline.seconds)
        deadline: Deadline = timeout or self._deadline
        deadline.stream = watched = _WatchedStream(stream, deadline)
        return watched

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
