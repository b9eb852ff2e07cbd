"""`HttpTransport`: the default transport, on the standard library's `http.client`.

Guarantees: one instance serves any number of threads; connections are kept and used again; the body's bytes are given
as soon as they are there; what was cut off is an error, in the head as well as in the body; no message holds a header,
a query or the proxy's password.
Assumes: a request may be sent a second time if an idle connection turns out to be closed before the first byte of an
answer (RFC 9112 section 9.3.1 allows that where the client knows that repeating is safe).

`http.client` is used through its module's attributes only, never subclassed: a recorder of cassettes (vcrpy) puts its
own classes there, whose sockets are not sockets.
"""

from __future__ import annotations

import errno
import http.client
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from kernai._util.fork_safe_lock import ForkSafeLock
from kernai_providers.network import CutHeadError, Deadline, WatchedSocket, connected, is_readable
from kernai_providers.request_checks import Outgoing, Proxy, authority, outgoing, proxy_for
from kernai_providers.transport import Request, StreamedResponse, TransportError, ends_for_certain, joined

#: bytes of one read, and of one send
BLOCK: Final = 64 * 1024


class HttpTransport:
    """Sends requests over HTTP/1.1, with TLS where the URL is https; connections are reused.

    `ssl_context`: by default the system's certificate authorities, which `SSL_CERT_FILE` and `SSL_CERT_DIR` replace.
    At most `max_idle` connections stay open between requests, each for at most `idle_seconds`. Proxies come from the
    environment (`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`).

    `Timeouts.connect` applies to each step of connecting: reaching one of the host's addresses, a proxy's tunnel, TLS.
    """

    def __init__(
        self, *, ssl_context: ssl.SSLContext | None = None, max_idle: int = 64, idle_seconds: float = 30.0
    ) -> None:
        self._ssl_context = ssl_context
        self._lock = ForkSafeLock()
        self._pool = ConnectionPool(max_idle, idle_seconds)

    def send(self, request: Request) -> HttpResponse:
        """Returns the head of the answer. `TransportError` if there is none, `ValueError` for an invalid request."""
        call = outgoing(request)
        route = Route(call.scheme, call.host, call.port, proxy_for(call.scheme, call.host, call.port))
        connection = self._pool.take(route)
        if connection is not None:
            connection.deadline = deadline = Deadline(request, call.peer)
            try:
                return self._ask(connection, request, call)
            except TransportError as error:
                if error.kind != "closed" or deadline.has_received:
                    raise
                # the other side was about to close the idle connection, and never saw the request
        return self._ask(self._connect(route, request), request, call)

    def close(self) -> None:
        """Closes idle connections."""
        self._pool.close()

    def _connect(self, route: Route, request: Request) -> Connection:
        proxy, seconds = route.proxy, request.timeouts.connect
        if proxy is not None and proxy.scheme != "http":
            raise TransportError(
                f"the proxy {proxy.peer} is of type {proxy.scheme}; this transport supports http:// only", "protocol"
            )
        host, port = (proxy.host, proxy.port) if proxy is not None else (route.host, route.port)
        kind: Any = connection_class(route.scheme)
        secure = {"context": _Tls(self.context())} if route.scheme == "https" else {}
        plain = kind(host, port, timeout=seconds, **secure)
        connection = Connection(plain, route, Deadline(request, route.peer))
        connection.deadline.seconds = seconds
        plain._create_connection = partial(_open, connection)  # noqa: SLF001 - no public way to say how a socket is made
        try:
            if proxy is not None and route.scheme == "https":
                credentials = {"Proxy-Authorization": proxy.authorization} if proxy.authorization else {}
                plain.set_tunnel(route.host, route.port, credentials)
            plain.connect()
        except BaseException as error:
            connection.close()
            if isinstance(error, (OSError, http.client.HTTPException, UnicodeError)):
                # without its cause: a proxy may repeat in its answer what it was sent
                raise _not_connected(error, route, seconds) from (error if proxy is None else None)
            raise
        connection.sock = plain.sock
        connection.deadline.seconds = request.timeouts.read
        return connection

    def _ask(self, connection: Connection, request: Request, call: Outgoing) -> HttpResponse:
        """Sends the request and reads the head of its answer. Whatever is raised, the connection is closed."""
        raw = None
        try:
            # while a cassette is recorded, the socket does not exist yet, and is made with this timeout
            connection.http.timeout = request.timeouts.read
            sent = _transmit(connection, request, call)
            raw = connection.http.getresponse()
            connection.deadline.answered()
            return HttpResponse(raw, connection, request.max_bytes, self._pool if sent else None)
        except BaseException as error:
            if raw is not None:
                raw.close()
            connection.close()
            if isinstance(error, (OSError, http.client.HTTPException)):
                raise _broken(error, call.peer, connection.deadline) from _cause(error)
            raise

    def context(self) -> ssl.SSLContext:
        """Made once: reading the certificate authorities takes longer than sending most requests."""
        if self._ssl_context is not None:
            return self._ssl_context
        with self._lock:
            if self._ssl_context is None:
                context = ssl.create_default_context()
                context.set_alpn_protocols(["http/1.1"])
                self._ssl_context = context
            return self._ssl_context


class HttpResponse(StreamedResponse):
    """An answer of `HttpTransport`."""

    def __init__(
        self,
        raw: http.client.HTTPResponse,
        connection: Connection,
        max_bytes: int | None,
        pool: ConnectionPool | None,
    ) -> None:
        super().__init__(raw.status, joined(raw.getheaders()), connection.route.peer, max_bytes)
        self._raw = raw
        self._connection = connection
        self._deadline = connection.deadline
        self._pool = pool

    def _pull(self) -> bytes:
        try:
            data = self._raw.read1(BLOCK)
        except (OSError, http.client.HTTPException) as error:
            raise _broken(error, self._peer, self._deadline) from _cause(error)
        # http.client takes an early end for the end; a cassette's answer counts nothing, and has text here
        missing = self._raw.length
        if not data and isinstance(missing, int) and missing > 0:
            raise TransportError(f"{self._peer} closed the connection {missing} bytes before the body's end", "closed")
        self._deadline.content(len(data))
        return data

    def _hurry(self, seconds: float) -> None:
        self._deadline.seconds = seconds

    def _stop_waiting(self) -> None:
        self._deadline.cancel()

    def _give_up(self, *, keep: bool) -> None:
        self._raw.close()
        # `will_close` is missing in a cassette's answers; their connections may always be kept
        keep = keep and not getattr(self._raw, "will_close", False) and ends_for_certain(self.status, self.headers)
        if keep and self._pool is not None:
            self._pool.give(self._connection)
        else:
            self._connection.close()


# -------------------------------------------------------------------------------------------- connections, kept


class Route(NamedTuple):
    """Requests with equal routes may share a connection."""

    scheme: str
    host: str
    port: int
    proxy: Proxy | None

    @property
    def peer(self) -> str:
        """Host and port, for errors."""
        return authority(self.host, self.port)


def connection_class(scheme: str) -> type[http.client.HTTPConnection]:
    """Looked up each time: a recorder of cassettes replaces these classes while it is at work."""
    return http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection


@dataclass(slots=True, eq=False, repr=False)
class Connection:
    """One connection. `sock` outlives ``http.sock``, which `http.client` drops with the last answer of a connection.

    `deadline` is that of the request that it serves now.
    """

    http: http.client.HTTPConnection
    route: Route
    deadline: Deadline
    sock: Any = None
    idle_since: float = 0.0

    def close(self) -> None:
        """Closes the socket, once the answer's file on it is closed too."""
        self.http.close()

    @property
    def is_stale(self) -> bool:
        """Whether there is something to read although nothing was asked: the end, or nonsense."""
        return isinstance(self.sock, WatchedSocket) and (self.sock.has_excess or is_readable(self.sock.sock))


class ConnectionPool:
    """Keeps up to `max_idle` connections for up to `idle_seconds` each, for all threads.

    A connection is in use or idle, never both; the one that became idle last is taken first, so that those left over
    after a busy time grow old and are closed. One that the other side has closed, or on which it has sent something
    unasked, is not handed out. After a fork the child begins with an empty pool and leaves the parent's connections as
    they are. There is no thread: old connections are closed at the next use of the pool.
    """

    def __init__(self, max_idle: int, idle_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_idle = max_idle
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._lock = ForkSafeLock()
        self._process = os.getpid()
        self._idle: list[Connection] = []

    def take(self, route: Route) -> Connection | None:
        """A connection that is ready for a request, or None."""
        wanted = connection_class(route.scheme)
        found: Connection | None = None
        with self._lock:
            unfit = self._unfit()
            for connection in [each for each in reversed(self._idle) if each.route == route]:
                self._idle.remove(connection)
                # a cassette's connection does not survive the cassette, nor a real one its beginning
                if type(connection.http) is wanted and not connection.is_stale:
                    found = connection
                    break
                unfit.append(connection)
        for connection in unfit:
            connection.close()
        return found

    def give(self, connection: Connection) -> None:
        """A connection that is in order and not used any more."""
        with self._lock:
            unfit = self._unfit()
            connection.idle_since = self._clock()
            self._idle.append(connection)
            while len(self._idle) > self._max_idle:
                unfit.append(self._idle.pop(0))
        for old in unfit:
            old.close()

    def close(self) -> None:
        """Closes what is idle."""
        with self._lock:
            connections, self._idle = self._idle, []
        for connection in connections:
            connection.close()

    def _unfit(self) -> list[Connection]:
        """Takes out those that are too old; in a forked child the parent's, of which closing ends the copies only."""
        oldest = self._clock() - self._idle_seconds
        unfit = [each for each in self._idle if each.idle_since <= oldest or self._process != os.getpid()]
        self._idle = self._idle[len(unfit):]
        self._process = os.getpid()
        return unfit


def _open(connection: Connection, address: tuple[str, int], timeout: float, *_: Any) -> WatchedSocket:
    """Makes the socket of a connection, for `http.client`."""
    sock = connected(*address, timeout, connection.deadline)
    return WatchedSocket(sock, lambda: connection.deadline)


class _Tls:
    """A context, as far as `http.client` uses one, for watched sockets."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def wrap_socket(self, sock: WatchedSocket, server_hostname: str | None = None) -> WatchedSocket:
        return sock.start_tls(self._context, server_hostname)


def _transmit(connection: Connection, request: Request, call: Outgoing) -> bool:
    """Whether all of the request could be sent. If not, there may be an answer that says why."""
    headers, target = call.headers, call.target
    proxy = connection.route.proxy
    if proxy is not None and call.scheme == "http":
        target = f"http://{call.peer}{target}"
        if proxy.authorization:
            headers = {**headers, "Proxy-Authorization": proxy.authorization}
    try:
        connection.http.request(request.method, target, headers=headers)
        # in blocks: while a cassette is recorded, a timeout applies to a whole send
        for start in range(0, len(request.body), BLOCK):
            connection.http.send(request.body[start:start + BLOCK])
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


# --------------------------------------------------------------------------------------------- what went wrong


def _cause(error: Exception) -> OSError | None:
    """What may be shown: the errors of `http.client` show what came, which may repeat a header that was sent."""
    return error if isinstance(error, OSError) and not isinstance(error, http.client.HTTPException) else None


def _broken(error: Exception, peer: str, deadline: Deadline) -> TransportError:
    """The error for a failure while a request was sent or an answer read."""
    if isinstance(error, TimeoutError):
        return deadline.timed_out()
    if isinstance(error, CutHeadError):
        return TransportError(f"{peer} closed the connection {error}", "closed")
    if isinstance(error, http.client.IncompleteRead):
        return TransportError(f"{peer} closed the connection before the body's end", "closed")
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return TransportError(f"{peer} closed the connection", "closed")
    if isinstance(error, ssl.SSLError):
        return TransportError(f"{peer} broke the rules of TLS ({error.reason or 'no reason given'})", "protocol")
    if isinstance(error, OSError):
        return TransportError(f"the connection to {peer} broke: {error.strerror or 'closed'}", "closed")
    return TransportError(f"{peer} sent something that is not HTTP ({type(error).__name__})", "protocol")


def _not_connected(error: Exception, route: Route, seconds: float) -> TransportError:
    """The error for a failure while connecting."""
    peer = route.peer if route.proxy is None else f"{route.peer} through the proxy {route.proxy.peer}"
    if isinstance(error, TimeoutError):
        return TransportError(f"no connection to {peer} within {seconds:g} seconds", "connect")
    return not_connected(error, peer)


def not_connected(error: BaseException, peer: str) -> TransportError:
    """The error for a connection that failed for another reason than its time."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return TransportError(f"{peer} has no trusted certificate: {error.verify_message}", "tls")
    if isinstance(error, ssl.SSLError) and not isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return TransportError(f"no TLS with {peer} ({error.reason or 'no reason given'})", "tls")
    reason = None
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        # asyncio writes the address where the reason belongs
        reason = os.strerror(error.errno or 0) if error.errno in errno.errorcode else error.strerror
    return TransportError(f"no connection to {peer}: {reason or _refusal(error)}", "connect")


def _refusal(error: BaseException) -> str:
    """Why there is no tunnel. Of the proxy's own words only the status, since they may repeat the password."""
    status = [word for word in str(error).split() if word.isdecimal() and len(word) == 3][:1]  # noqa: PLR2004 - RFC 9110
    if status:
        return f"it was refused with status {status[0]}"
    if isinstance(error, ssl.SSLError):  # the end in its middle; for everything else TLS has words of its own
        return "the connection was closed while TLS was negotiated"
    return "the connection was closed" if isinstance(error, OSError) else "the answer was not HTTP"
