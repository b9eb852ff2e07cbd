"""`HttpTransport`: the default transport, on the standard library's `http.client`.

Guarantees: one instance serves any number of threads; connections are kept and used again; the body's bytes are given
as soon as they are there; what was cut off is an error, in the head as well as in the body; no message holds a header,
a query or the proxy's password.
Assumes: sending a request a second time is right where an idle connection turns out to be closed before the first byte
of an answer (RFC 9112 section 9.3.1 leaves that to whoever knows the requests).

`http.client` is used through its module's attributes only, never subclassed: a recorder of cassettes (vcrpy) puts its
own classes there, whose sockets are not sockets.
"""

from __future__ import annotations

import http.client
import math
import re
import ssl
from functools import partial
from typing import Any, Final

from kernai._util.fork_safe_lock import ForkSafeLock
from kernai_providers.connection_pool import Connection, ConnectionPool, Route, connection_class
from kernai_providers.outgoing import Outgoing, outgoing
from kernai_providers.patience import Patience
from kernai_providers.patient_socket import PatientSocket, connected
from kernai_providers.proxies import proxy_for
from kernai_providers.streamed_response import StreamedResponse, ends_for_certain, joined
from kernai_providers.transport import Request, TransportError

#: bytes of one read, and of one send
BLOCK: Final = 64 * 1024
#: the first line of an answer that another one follows; 101 is the last of its connection
INTERIM: Final = re.compile(rb"HTTP/1\.\d 1(?!01)\d\d\b")


class HttpTransport:
    """Sends requests over HTTP/1.1, with TLS where the URL is https; connections are reused.

    `ssl_context`: by default the system's certificate authorities, which `SSL_CERT_FILE` and `SSL_CERT_DIR` replace.
    At most `max_idle` connections stay open between requests, each for at most `idle_seconds`. Proxies come from the
    environment (`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`).

    `Timeouts.connect` holds for each step of connecting: reaching one of the host's addresses, a proxy's tunnel, TLS.
    """

    def __init__(
        self, *, ssl_context: ssl.SSLContext | None = None, max_idle: int = 64, idle_seconds: float = 30.0
    ) -> None:
        self._ssl_context = ssl_context
        self._lock = ForkSafeLock()
        self._pool = ConnectionPool(max_idle, idle_seconds)

    def send(self, request: Request) -> HttpResponse:
        """Gives the head of the answer. `TransportError` when there is none, `ValueError` for an impossible request."""
        call = outgoing(request)
        route = Route(call.scheme, call.host, call.port, proxy_for(call.scheme, call.host, call.port))
        connection = self._pool.take(route)
        if connection is not None:
            connection.patience = Patience(request, call.peer)
            head = _Head(connection.patience)
            try:
                return self._ask(connection, request, call, head)
            except TransportError as error:
                if error.kind != "closed" or head.begun:
                    raise
                # the other side was about to close the idle connection, and never saw the request
        connection = self._connect(route, request)
        return self._ask(connection, request, call, _Head(connection.patience))

    def close(self) -> None:
        """Closes idle connections."""
        self._pool.close()

    def _connect(self, route: Route, request: Request) -> Connection:
        proxy, seconds = route.proxy, request.timeouts.connect
        if proxy is not None and proxy.scheme != "http":
            raise TransportError(
                f"the proxy {proxy.peer} is of type {proxy.scheme}; this transport knows http:// proxies", "protocol"
            )
        host, port = (proxy.host, proxy.port) if proxy is not None else (route.host, route.port)
        kind: Any = connection_class(route.scheme)
        secure = {"context": _Tls(self._context())} if route.scheme == "https" else {}
        plain = kind(host, port, timeout=seconds, **secure)
        connection = Connection(plain, route, Patience(request, route.peer))
        connection.patience.seconds = seconds
        plain._create_connection = partial(_open, connection)  # noqa: SLF001 - no public way to say how a socket is made
        head = _Head(connection.patience)
        plain.response_class = head.open  # of a proxy that is asked for a tunnel
        try:
            if proxy is not None and route.scheme == "https":
                credentials = {"Proxy-Authorization": proxy.authorization} if proxy.authorization else {}
                plain.set_tunnel(route.host, route.port, credentials)
            plain.connect()
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            head.close()
            plain.close()
            # without its cause: a proxy may repeat in its answer what it was told
            raise _not_connected(error, route, seconds) from (error if proxy is None else None)
        except BaseException:
            head.close()
            plain.close()
            raise
        connection.sock = plain.sock
        connection.patience.seconds = request.timeouts.read
        return connection

    def _ask(self, connection: Connection, request: Request, call: Outgoing, head: _Head) -> HttpResponse:
        """Sends the request and reads the head of its answer. Whatever is raised, the connection is closed."""
        raw = None
        try:
            # where a cassette is recorded, the socket does not exist yet, and is made with this timeout
            connection.http.timeout = request.timeouts.read
            connection.http.response_class = head.open  # type: ignore[assignment]  # is only ever called
            sent = _transmit(connection, request, call)
            raw = connection.http.getresponse()
            head.check(call.peer)
            connection.patience.answered()
            return HttpResponse(raw, connection, request.max_bytes, self._pool if sent else None)
        except BaseException as error:
            if raw is not None:
                raw.close()
            connection.close()
            if isinstance(error, (OSError, http.client.HTTPException)):
                raise head.broken(error, call.peer) from _cause(error)
            raise

    def _context(self) -> ssl.SSLContext:
        """Made once: reading the certificate authorities takes longer than most requests need to be sent."""
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
        self._patience = connection.patience
        self._pool = pool

    def _pull(self) -> bytes:
        try:
            data = self._raw.read1(BLOCK)
        except (OSError, http.client.HTTPException) as error:
            raise _broken(error, self._peer, self._patience) from _cause(error)
        # http.client takes an early end for the end; a cassette's answer counts nothing, and has text here
        missing = self._raw.length
        if not data and isinstance(missing, int) and missing > 0:
            raise TransportError(f"{self._peer} closed the connection {missing} bytes before the body's end", "closed")
        self._patience.content(len(data))
        return data

    def _hurry(self, seconds: float) -> None:
        self._patience.seconds = seconds

    def _stop_waiting(self) -> None:
        self._patience.give_up()

    def _give_up(self, *, keep: bool) -> None:
        self._raw.close()
        # `will_close` is missing in a cassette's answers; their connections may always be kept
        keep = keep and not getattr(self._raw, "will_close", False) and ends_for_certain(self.status, self.headers)
        if keep and self._pool is not None:
            self._pool.give(self._connection)
        else:
            self._connection.close()


def _open(connection: Connection, address: tuple[str, int], timeout: float, *_: Any) -> PatientSocket:
    """Makes the socket of a connection, for `http.client`."""
    sock = connected(*address, timeout, connection.patience)
    return PatientSocket(sock, lambda: connection.patience)


class _Tls:
    """A context, as far as `http.client` uses one, for sockets that are not plain ones."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def wrap_socket(self, sock: PatientSocket, server_hostname: str | None = None) -> PatientSocket:
        return sock.start_tls(self._context, server_hostname)


class _Head:
    """Watches the lines of an answer's head, for `http.client` takes the end of the connection for the head's end, and
    of the interim answers that may come before (RFC 9110 section 15.2) knows one alone.
    """

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self.begun = False
        self._last = b"\n"
        self._lines: _Lines | None = None
        self._response: http.client.HTTPResponse | None = None

    def open(self, *arguments: Any, **named: Any) -> http.client.HTTPResponse:
        """In place of the response's class."""
        self._response = http.client.HTTPResponse(*arguments, **named)
        self._lines = _Lines(self._response.fp, self)
        self._response.fp = self._lines  # type: ignore[assignment]  # has all that is asked for
        return self._response

    def close(self) -> None:
        """Closes the answer; older Pythons leave that of a proxy open where it comes to nothing."""
        if self._response is not None:
            self._response.close()

    def saw(self, line: bytes) -> None:
        self.begun = self.begun or bool(line)
        self._last = line

    def check(self, peer: str) -> None:
        """After the head: raises if it was cut off, else steps out of the way."""
        if self._response is not None and self._lines is not None:
            if self._last not in (b"\r\n", b"\n"):
                raise TransportError(f"{peer} closed the connection in the middle of the headers", "closed")
            if not self._response.isclosed():  # a recorder has read the body already, which leaves no file
                self._response.fp = self._lines.file

    def broken(self, error: Exception, peer: str) -> TransportError:
        """What an error says that came before the end of the head."""
        cut = not self._last.endswith(b"\n") and not isinstance(error, (http.client.LineTooLong, OSError))
        if cut or isinstance(error, http.client.RemoteDisconnected):
            where = "in the middle of the headers" if self.begun else "without an answer"
            return TransportError(f"{peer} closed the connection {where}", "closed")
        return _broken(error, peer, self.patience)


class _Lines:
    """A file whose lines are shown to a `_Head`, without those of interim answers."""

    def __init__(self, file: Any, head: _Head) -> None:
        self.file = file
        self._head = head
        self._first = True

    def readline(self, limit: int = -1) -> bytes:
        line = self._line(limit)
        while self._first and INTERIM.match(line):
            while self._line(limit) not in (b"\r\n", b"\n", b""):
                pass
            line = self._line(limit)
        self._first = False
        # white space behind a value is no part of it (RFC 9112 section 5); http.client knows no "chunked " with some
        bare = line.rstrip(b" \t\r\n")
        return bare + b"\r\n" if bare and line.endswith(b"\n") else line

    def read(self, size: int = -1) -> bytes:
        """Content. Only a recorder of cassettes reads it here: all of it, before anybody could count."""
        self._head.patience.content(math.inf)
        data: bytes = self.file.read(size)
        return data

    def _line(self, limit: int) -> bytes:
        line: bytes = self.file.readline(limit)
        self._head.saw(line)
        return line

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def _transmit(connection: Connection, request: Request, call: Outgoing) -> bool:
    """Whether all of the request could be sent. Where not, there may be an answer that says why."""
    headers, target = call.headers, call.target
    proxy = connection.route.proxy
    if proxy is not None and call.scheme == "http":
        target = f"http://{call.peer}{target}"
        if proxy.authorization:
            headers = {**headers, "Proxy-Authorization": proxy.authorization}
    try:
        connection.http.request(request.method, target, headers=headers)
        # in blocks: where a cassette is recorded, a timeout holds for a whole send
        for start in range(0, len(request.body), BLOCK):
            connection.http.send(request.body[start:start + BLOCK])
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def _cause(error: Exception) -> OSError | None:
    """What may be told: the errors of `http.client` show what came, which may repeat a header that was sent."""
    return error if isinstance(error, OSError) and not isinstance(error, http.client.HTTPException) else None


def _broken(error: Exception, peer: str, patience: Patience) -> TransportError:
    """What an error says that came while a request was sent or an answer read."""
    if isinstance(error, TimeoutError):
        return patience.silence()
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
    """What an error says that came while connecting."""
    peer = route.peer if route.proxy is None else f"{route.peer} through the proxy {route.proxy.peer}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return TransportError(f"{peer} has no trusted certificate: {error.verify_message}", "tls")
    if isinstance(error, ssl.SSLError) and not isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return TransportError(f"no TLS with {peer} ({error.reason or 'no reason given'})", "tls")
    if isinstance(error, TimeoutError):
        return TransportError(f"no connection to {peer} within {seconds:g} seconds", "connect")
    reason = error.strerror if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) else None
    return TransportError(f"no connection to {peer}: {reason or refusal(error)}", "connect")


def refusal(error: Exception) -> str:
    """What became of a tunnel. Of the proxy's own words only the status, for they may repeat the password."""
    status = [word for word in str(error).split() if word.isdecimal() and len(word) == 3][:1]  # noqa: PLR2004 - RFC 9110
    if status:
        return f"it was refused with status {status[0]}"
    if isinstance(error, ssl.SSLError):  # the end in its middle: whatever else, TLS itself has words for
        return "the connection was closed while TLS was negotiated"
    return "the connection was closed" if isinstance(error, OSError) else "the answer was not HTTP"
