"""`HttpxTransport`: the transport on httpx, asynchronous too. Needs the extra: ``pip install "kernai[httpx]"``.

Guarantees: what `HttpTransport` guarantees, for threads with `send` and for asyncio with `asend`; each event loop has
connections of its own, which are closed when it ends (with `asyncio.run` and whatever else shuts asynchronous
generators down, or by `aclose`).

It stands on httpx's transports, not on its clients: no redirects, no cookies, nothing added to a request. Bodies are
taken raw and decoded like everywhere else here.
"""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from kernai_providers.content_decoding import ContentDecoder
from kernai_providers.http_transport import refusal
from kernai_providers.outgoing import Outgoing, outgoing
from kernai_providers.patience import Patience
from kernai_providers.proxies import Proxy, proxy_for
from kernai_providers.streamed_response import DRAIN_BYTES, DRAIN_SECONDS, StreamedResponse, ends_for_certain, joined
from kernai_providers.transport import Request, TransportError

try:
    import httpx

    from kernai_providers.httpx_network import (
        PatientAsyncBackend,
        PatientAsyncStream,
        PatientBackend,
        PatientStream,
        waiting,
    )
except ImportError as missing:
    raise ImportError('HttpxTransport needs httpx: pip install "kernai[httpx]"') from missing

T = TypeVar("T")


class HttpxTransport:
    """Sends requests over HTTP/1.1 with httpx; a provider that has one calls its model natively under asyncio.

    `ssl_context`: by default the system's certificate authorities. At most `max_idle` connections of all threads,
    and of each event loop, stay open between requests, each for at most `idle_seconds`. Proxies come from the
    environment.
    """

    def __init__(
        self, *, ssl_context: ssl.SSLContext | None = None, max_idle: int = 64, idle_seconds: float = 30.0
    ) -> None:
        self._ssl_context = ssl_context
        self._limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=max_idle, keepalive_expiry=idle_seconds
        )
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._pools: dict[_Route, _Pool] = {}
        self._loops: dict[asyncio.AbstractEventLoop, _LoopPools] = {}

    def send(self, request: Request) -> HttpxResponse:
        """Gives the head of the answer. `TransportError` when there is none, `ValueError` for an impossible request."""
        call = outgoing(request)
        route = _route(call)
        try:
            return self._ask(request, call, route)
        except _StaleError:
            return self._ask(request, call, route, again=True)

    def _ask(self, request: Request, call: Outgoing, route: _Route, *, again: bool = False) -> HttpxResponse:
        patience = Patience(request, call.peer)
        pool = self._borrow(route)
        raw = None
        try:
            with waiting(patience):
                raw = pool.transport.handle_request(_httpx_request(request, call))
            patience.answered()
            return HttpxResponse(raw, call.peer, request.max_bytes, patience, pool)
        except BaseException as error:
            if raw is not None:
                raw.stream.close()  # type: ignore[union-attr]  # a synchronous transport's stream
            pool.give_back()
            if isinstance(error, httpx.HTTPError):
                if not again and _was_stale(error, patience):
                    raise _StaleError from None
                raise _head_error(error, call, route, request, patience) from _cause(error)
            raise

    async def asend(self, request: Request) -> HttpxAsyncResponse:
        """The same on the running event loop. Cancelling the task closes the connection."""
        call = outgoing(request)
        route = _route(call)
        transport = await self._of_this_loop(route)
        try:
            return await self._aask(transport, request, call, route)
        except _StaleError:
            return await self._aask(transport, request, call, route, again=True)

    async def _aask(
        self, transport: httpx.AsyncHTTPTransport, request: Request, call: Outgoing, route: _Route, *,
        again: bool = False,
    ) -> HttpxAsyncResponse:
        patience = Patience(request, call.peer)
        try:
            with waiting(patience):
                raw = await transport.handle_async_request(_httpx_request(request, call))
        except httpx.HTTPError as error:
            if not again and _was_stale(error, patience):
                raise _StaleError from None
            raise _head_error(error, call, route, request, patience) from _cause(error)
        patience.answered()
        try:
            return HttpxAsyncResponse(raw, call.peer, request.max_bytes, patience)
        except TransportError:
            await raw.aclose()
            raise

    def close(self) -> None:
        """Closes the idle connections that threads have used. Those of an event loop: `aclose` there."""
        with self._lock:
            pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.retire()

    async def aclose(self) -> None:
        """Closes the connections of the running event loop, also those in use."""
        with self._lock:
            pools = self._loops.get(asyncio.get_running_loop())
        if pools is not None:
            await pools.aclose()

    def _borrow(self, route: _Route) -> _Pool:
        self._begin_anew_in_a_child()
        with self._lock:
            pool = self._pools.get(route)
            if pool is None:
                transport = _patient(httpx.HTTPTransport(**self._options(route)), PatientBackend())
                pool = self._pools[route] = _Pool(transport)
            pool.borrow()
            return pool

    async def _of_this_loop(self, route: _Route) -> httpx.AsyncHTTPTransport:
        self._begin_anew_in_a_child()
        loop = asyncio.get_running_loop()
        with self._lock:
            for ended in [each for each in self._loops if each.is_closed()]:
                del self._loops[ended]
            known = loop in self._loops
            pools = self._loops.setdefault(loop, _LoopPools(self._loops, loop))
            if route not in pools.transports:
                transport = httpx.AsyncHTTPTransport(**self._options(route))
                pools.transports[route] = _patient(transport, PatientAsyncBackend())
        if not known:
            await pools.watch_loop()
        return pools.transports[route]

    def _begin_anew_in_a_child(self) -> None:
        if self._process != os.getpid():
            # after a fork nothing of the parent's may be used, least of all a lock
            self._process, self._lock, self._pools, self._loops = os.getpid(), threading.Lock(), {}, {}

    def _options(self, route: _Route) -> dict[str, Any]:
        if route.scheme == "https":
            context = self._ssl_context = self._ssl_context or ssl.create_default_context()
        else:  # one that trusts nobody: reading the certificate authorities takes longer than a local request
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return {
            "verify": context, "limits": self._limits, "trust_env": False,
            "proxy": None if route.proxy is None else _httpx_proxy(route.proxy),
        }


class _StaleError(Exception):
    """An idle connection turned out to be closed. It is gone, so that the request is sent once more."""


class _Route(NamedTuple):
    """Which of the connections may serve a request."""

    scheme: str
    proxy: Proxy | None


def _route(call: Outgoing) -> _Route:
    return _Route(call.scheme, proxy_for(call.scheme, call.host, call.port))


class _Pool:
    """Connections for threads. Closing them takes those in use with it, so a retired pool waits for its last one."""

    def __init__(self, transport: httpx.HTTPTransport) -> None:
        self.transport = transport
        self._lock = threading.Lock()
        self._users = 0
        self._retired = False

    def borrow(self) -> None:
        with self._lock:
            self._users += 1

    def give_back(self) -> None:
        with self._lock:
            self._users -= 1
            over = self._retired and not self._users
        if over:
            self.transport.close()

    def retire(self) -> None:
        with self._lock:
            self._retired = True
            over = not self._users
        if over:
            self.transport.close()


class _LoopPools:
    """Connections for one event loop."""

    def __init__(
        self, all_loops: dict[asyncio.AbstractEventLoop, _LoopPools], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.transports: dict[_Route, httpx.AsyncHTTPTransport] = {}
        self._all_loops = all_loops
        self._loop = loop
        self._watch: AsyncGenerator[None, None] | None = None

    async def watch_loop(self) -> None:
        # loops have no hook for their end, but they close asynchronous generators that stand in their middle
        self._watch = self._until_the_end()
        await anext(self._watch)

    async def aclose(self) -> None:
        if self._watch is not None:
            await self._watch.aclose()

    async def _until_the_end(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._all_loops.pop(self._loop, None)
            for transport in self.transports.values():
                await transport.aclose()


class HttpxResponse(StreamedResponse):
    """An answer of `HttpxTransport.send`."""

    def __init__(
        self, raw: httpx.Response, peer: str, max_bytes: int | None, patience: Patience, pool: _Pool
    ) -> None:
        super().__init__(raw.status_code, joined(raw.headers.multi_items()), peer, max_bytes)
        assert isinstance(raw.stream, httpx.SyncByteStream)
        self._stream = raw.stream
        self._pieces: Iterator[bytes] = iter(raw.stream)
        self._line = raw.extensions.get("network_stream")
        self._patience = patience
        self._pool = pool

    def _pull(self) -> bytes:
        try:
            with waiting(self._patience):
                data = next(self._pieces, b"")
        except httpx.HTTPError as error:
            raise _body_error(error, self._peer, self._patience) from _cause(error)
        self._patience.content(len(data))
        return data

    def _hurry(self, seconds: float) -> None:
        self._patience.seconds = seconds

    def _stop_waiting(self) -> None:
        self._patience.give_up()

    def _give_up(self, *, keep: bool) -> None:
        if isinstance(self._line, PatientStream):  # in a cassette it is none
            self._line.is_answered()
            if not (keep and _may_serve_again(self._stream, self.status, self.headers)):
                self._line.close()
        with suppress(httpx.HTTPError):
            self._stream.close()
        self._pool.give_back()


class HttpxAsyncResponse:
    """An answer of `HttpxTransport.asend`."""

    def __init__(self, raw: httpx.Response, peer: str, max_bytes: int | None, patience: Patience) -> None:
        assert isinstance(raw.stream, httpx.AsyncByteStream)
        self.status = raw.status_code
        self.headers = joined(raw.headers.multi_items())
        self._peer = peer
        self._patience = patience
        self._decoder = ContentDecoder(self.headers.get("content-encoding", ""), peer, max_bytes)
        self._stream = raw.stream
        self._pieces = raw.stream.__aiter__()
        self._line = raw.extensions.get("network_stream")
        self._ended = False
        self._closed = False

    def __repr__(self) -> str:
        return f"HttpxAsyncResponse({self.status} from {self._peer})"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self._read():
            for piece in self._decoder.decode(data):
                yield piece
        self._decoder.end()

    async def finish(self) -> None:
        """Keeps the connection when what is left of the body comes at once; else closes it. Raises nothing."""
        with suppress(TransportError, TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                size = 0
                while size <= DRAIN_BYTES and not self._ended and not self._closed:
                    size += len(await self._read())
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connection, unless the body was read to its end; whoever iterates gets a `TransportError`."""
        self._closed = True
        with suppress(httpx.HTTPError):
            keep = _may_serve_again(self._stream, self.status, self.headers)
            if isinstance(self._line, PatientAsyncStream) and not keep:
                await self._line.aclose()
            await self._stream.aclose()

    async def _read(self) -> bytes:
        if self._ended:
            return b""
        if self._closed:
            raise self._closed_here()
        try:
            with waiting(self._patience):
                data = await anext(self._pieces, b"")
        except httpx.HTTPError as error:
            if self._closed:
                raise self._closed_here() from None
            await self.aclose()
            raise _body_error(error, self._peer, self._patience) from _cause(error)
        if self._closed:
            raise self._closed_here()
        self._ended = not data
        self._patience.content(len(data))
        return data

    def _closed_here(self) -> TransportError:
        return TransportError(f"the answer of {self._peer} was closed on this side before its end", "closed")


def _patient(transport: T, backend: object) -> T:
    """The transport on this network. httpx has no parameter for what httpcore takes."""
    transport._pool._network_backend = backend  # type: ignore[attr-defined]  # noqa: SLF001 - see above
    return transport


def _httpx_request(request: Request, call: Outgoing) -> httpx.Request:
    connect, read = request.timeouts.connect, request.timeouts.read
    timeout = {"connect": connect, "read": read, "write": read, "pool": None}
    return httpx.Request(
        request.method, f"{call.scheme}://{call.peer}{call.target}",
        headers=list(call.headers.items()), content=request.body, extensions={"timeout": timeout},
    )


def _httpx_proxy(proxy: Proxy) -> httpx.Proxy:
    try:
        return httpx.Proxy(proxy.url)
    except (ValueError, httpx.InvalidURL):
        raise TransportError(f"httpx takes no proxy like {proxy.peer} of type {proxy.scheme}", "protocol") from None


def _may_serve_again(stream: object, status: int, headers: Mapping[str, str]) -> bool:
    """Whether nothing has come beyond the answer's end: httpcore would take it for the answer to the next request.

    Where this version of httpcore does not show it, the answer is no.
    """
    inside: Any = stream
    for name in ("_httpcore_stream", "_stream", "_connection", "_h11_state"):
        inside = getattr(inside, name, None)
    return inside is not None and not inside.trailing_data[0] and ends_for_certain(status, headers)


def _origin(error: BaseException) -> BaseException:
    """What went wrong below httpx, which wraps twice and the inner time puts the exception where the text goes."""
    while True:
        deeper = error.__cause__ or next(iter(error.args), None)
        if not isinstance(deeper, BaseException):
            return error
        error = deeper


def _cause(error: httpx.HTTPError) -> httpx.HTTPError | None:
    """What may be told: the errors of the parser show what came, which may repeat a header that was sent."""
    return None if isinstance(error, (httpx.ProxyError, httpx.ProtocolError)) else error


def _was_stale(error: httpx.HTTPError, patience: Patience) -> bool:
    """Whether the other side was about to close an idle connection, and never saw the request."""
    ended = isinstance(error, (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError))
    return ended and patience.was_unheard


def _head_error(
    error: httpx.HTTPError, call: Outgoing, route: _Route, request: Request, patience: Patience
) -> TransportError:
    origin = _origin(error)
    reached = call.peer if route.proxy is None else f"{call.peer} through the proxy {route.proxy.peer}"
    if isinstance(error, httpx.ConnectTimeout) or (isinstance(error, httpx.TimeoutException) and patience.connecting):
        return TransportError(f"no connection to {reached} within {request.timeouts.connect:g} seconds", "connect")
    if isinstance(error, (httpx.ConnectError, httpx.ProxyError)):
        return _not_connected(error, origin, reached)
    # the HTTP parser itself complains; an early end is noticed before it is asked
    no_http = isinstance(error, httpx.RemoteProtocolError) and type(origin).__module__.partition(".")[0] == "h11"
    if patience.connecting:
        what = "the answer was not HTTP" if no_http else "the connection was closed"
        return TransportError(f"no connection to {reached}: {what}", "connect")
    if no_http:
        return TransportError(f"{call.peer} sent something that is not HTTP", "protocol")
    return _body_error(error, call.peer, patience)


def _not_connected(error: httpx.HTTPError, origin: BaseException, peer: str) -> TransportError:
    if isinstance(origin, ssl.SSLCertVerificationError):
        return TransportError(f"{peer} has no trusted certificate: {origin.verify_message}", "tls")
    if isinstance(origin, ssl.SSLError) and not isinstance(origin, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return TransportError(f"no TLS with {peer} ({origin.reason or 'no reason given'})", "tls")
    if isinstance(error, httpx.ProxyError):
        return TransportError(f"no connection to {peer}: {refusal(OSError(str(error)))}", "connect")
    reason = None
    if isinstance(origin, ssl.SSLError):  # its number is none of the system's
        reason = refusal(origin)
    elif isinstance(origin, OSError):
        # asyncio puts the address where the reason goes
        number = origin.errno or 0
        reason = os.strerror(number) if number in errno.errorcode else origin.strerror
    return TransportError(f"no connection to {peer}: {reason or 'it could not be reached'}", "connect")


def _body_error(error: httpx.HTTPError, peer: str, patience: Patience) -> TransportError:
    if isinstance(error, httpx.TimeoutException):
        return patience.silence()
    if isinstance(error, httpx.UnsupportedProtocol):
        return TransportError(f"httpx does not know how to reach {peer}", "protocol")
    return TransportError(f"{peer} closed the connection before the end of its answer", "closed")
