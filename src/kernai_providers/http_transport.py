"""`HttpTransport`: the default transport, on the standard library's `http.client`.

Guarantees: one instance serves any number of threads; connections are reused; the body's bytes are returned as soon as
they arrive; a head or a body that was cut off is an error; no error message contains a header, a query or the proxy's
password.
Assumes: a request may be sent a second time if an idle connection turns out to be closed before the first byte of a
response (RFC 9112 section 9.3.1 allows that if the client knows that repeating is safe).

`http.client` is used through its module's attributes only, never subclassed: vcrpy, the recorder of cassettes, puts its
own classes there, whose sockets are not real sockets.
"""

from __future__ import annotations

import errno
import http.client
import os
import ssl
import time
from collections.abc import Callable
from contextlib import suppress

from kernai._util.api import ForkSafeLock, check_count, check_type
from kernai_providers.network import BLOCK, Connection, Deadline, StreamedResponse, connection_class
from kernai_providers.request_checks import Outgoing, routed
from kernai_providers.transport import Request, TransportError, ends_for_certain, joined


class HttpTransport:
    """Sends requests over HTTP/1.1, with TLS if the URL is https; connections are reused.

    `ssl_context`: by default the system's certificate authorities, which `SSL_CERT_FILE` and `SSL_CERT_DIR` replace.
    At most `max_idle` connections stay open between requests; one idle for `idle_seconds` is not used again. Proxies
    come from the environment (`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`).

    `Timeouts.connect` applies to each step of connecting: reaching one of the host's addresses, a proxy's answer, TLS.
    """

    def __init__(
        self, *, ssl_context: ssl.SSLContext | None = None, max_idle: int = 64, idle_seconds: float = 30.0
    ) -> None:
        check_type(ssl_context, ssl.SSLContext | None, "ssl_context must be an ssl.SSLContext")
        if not isinstance(idle_seconds, (int, float)) or not idle_seconds >= 0:
            raise ValueError(f"idle_seconds must be a number of at least 0, got {idle_seconds!r}")
        self._ssl_context = ssl_context
        self._max_idle = check_count("max_idle", max_idle, or_zero=True)
        self._idle_seconds = idle_seconds
        self._lock, self._reading = ForkSafeLock(), ForkSafeLock()  # for idle connections; while the context is made
        self._process = os.getpid()
        self._idle: list[Connection] = []

    def send(self, request: Request) -> StreamedResponse:
        """Sends a request and returns its response, once the head has arrived.

        Raises `TransportError` if there is no response, and `ValueError` for an invalid request.
        """
        call = routed(request)
        connection = self._take(call)
        if connection is not None:
            connection.deadline = deadline = Deadline(request, call)
            try:
                return self._ask(connection, request, call)
            except TransportError as error:
                if error.kind != "closed" or deadline.has_received:
                    raise
                # the server was closing the idle connection, and has not seen the request
        uses_tls = "https" in (call.scheme, call.proxy and call.proxy.scheme)
        deadline = Deadline(request, call, connecting=True)
        return self._ask(Connection(call, deadline, self.context() if uses_tls else None), request, call)

    def close(self) -> None:
        with self._lock:
            while self._idle:
                self._idle.pop().hang_up()

    def _ask(self, connection: Connection, request: Request, call: Outgoing) -> StreamedResponse:
        """Sends a request, if need be over a new connection, and reads the head of its response.

        If this raises, the connection is closed.
        """
        deadline = connection.deadline
        keep: Callable[[Connection], None] = Connection.hang_up
        try:
            if deadline.connecting:
                connection.http.connect()
                deadline.begin()
            with suppress(BrokenPipeError, ConnectionResetError):  # there may be a response that says why
                connection.http.request(request.method, call.target, request.body or None, call.headers)
                keep = self._keep
            return _response(connection.http.getresponse(), connection, keep)
        except BaseException as error:
            connection.hang_up()
            if isinstance(error, (OSError, http.client.HTTPException, UnicodeError)):
                raise broken(error, deadline) from cause_of(error)
            raise

    def context(self) -> ssl.SSLContext:
        """Returns the TLS context, created once: reading the certificate authorities is slower than most requests."""
        with self._reading:
            if self._ssl_context is None:
                self._ssl_context = ssl.create_default_context()
                self._ssl_context.set_alpn_protocols(["http/1.1"])
            return self._ssl_context

    def _take(self, call: Outgoing) -> Connection | None:
        """Returns an idle connection, the last one that became idle: those left over after a busy time become too old.

        A connection is in use or idle, never both. One that the server has closed, or on which it has sent something
        unasked, is not used again. After a fork, the child starts with none and does not touch the parent's. There is
        no background thread: old connections are closed when this or `_keep` is called.
        """
        wanted = connection_class(call.scheme)
        with self._lock:
            self._close_unfit()
            for connection in [each for each in reversed(self._idle) if each.to == call]:
                self._idle.remove(connection)
                wire = connection.wire
                is_stale = wire is not None and (connection.has_excess or wire.has_input())
                # a cassette's connection must not be used after the cassette, nor an earlier one during it
                if type(connection.http) is wanted and not is_stale:
                    return connection
                connection.hang_up()
        return None

    def _keep(self, connection: Connection) -> None:
        with self._lock:
            self._close_unfit()
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
            if len(self._idle) > self._max_idle:
                self._idle.pop(0).hang_up()

    def _close_unfit(self) -> None:
        """Closes connections that are too old; in a forked child, its copies of the parent's."""
        oldest = time.monotonic() - self._idle_seconds
        while self._idle and (self._idle[0].idle_since <= oldest or self._process != os.getpid()):
            self._idle.pop(0).hang_up()
        self._process = os.getpid()


def _response(
    raw: http.client.HTTPResponse, connection: Connection, keep: Callable[[Connection], None]
) -> StreamedResponse:
    headers, deadline = joined(raw.getheaders()), connection.deadline

    def pull() -> bytes:
        try:
            data, left = raw.read1(BLOCK), raw.length
            # http.client takes an early end of the body for its end; in a cassette's response, `left` is not a number
            if not data and isinstance(left, int) and left > 0:
                raise http.client.IncompleteRead(b"")
        except (OSError, http.client.HTTPException) as error:
            raise broken(error, deadline) from cause_of(error)
        return data

    def release(may_keep: bool) -> None:
        raw.close()
        # `will_close` is missing in a cassette's responses; their connections may always be kept
        has_ended = may_keep and not getattr(raw, "will_close", False) and ends_for_certain(raw.status, headers)
        (keep if has_ended else Connection.hang_up)(connection)

    return StreamedResponse(raw.status, headers, deadline, pull, release)


# ------------------------------------------------------------------------------------------------------ errors


def cause_of(error: Exception) -> OSError | None:
    """Returns the error if it may be shown as the cause, else None.

    Errors of HTTP libraries quote the response, which may repeat a header of the request.
    """
    return error if isinstance(error, OSError) and not isinstance(error, http.client.HTTPException) else None


def broken(error: Exception, deadline: Deadline) -> TransportError:
    """Returns the error for a failure while connecting, sending a request or reading a response."""
    peer = deadline.call.peer
    if deadline.connecting:
        return _not_connected(error, deadline.call, deadline.seconds)
    if isinstance(error, TimeoutError):
        is_in_head = deadline.awaits_head and deadline.has_received
        what = "did not finish the head of its answer within" if is_in_head else "was silent for"
        return TransportError(f"{peer} {what} {deadline.seconds:g} seconds", "timeout")
    if isinstance(error, http.client.IncompleteRead):
        return TransportError(f"{peer} closed the connection before the body's end", "closed")
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return TransportError(f"{peer} closed the connection", "closed")
    if isinstance(error, ssl.SSLError):
        reason = error.reason or "no reason given"
        what = "ended TLS" if "ALERT" in reason else "broke the rules of TLS"  # it may want a client's certificate
        return TransportError(f"{peer} {what} ({reason})", "protocol")
    if isinstance(error, OSError):
        return TransportError(f"the connection to {peer} broke: {error.strerror or 'closed'}", "closed")
    return TransportError(f"{peer} sent something that is not HTTP ({type(error).__name__})", "protocol")


def _not_connected(error: Exception, call: Outgoing, seconds: float) -> TransportError:
    peer = call.peer if call.proxy is None else f"{call.peer} through the proxy {call.proxy.peer}"
    if isinstance(error, TimeoutError):
        return TransportError(f"no connection to {peer} within {seconds:g} seconds", "connect")
    if isinstance(error, ssl.SSLCertVerificationError):
        return TransportError(f"{peer} has no trusted certificate: {error.verify_message}", "tls")
    if isinstance(error, ssl.SSLError) and not isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return TransportError(f"no TLS with {peer} ({error.reason or 'no reason given'})", "tls")
    reason = None
    if isinstance(error, UnicodeError):
        reason = "this is not the name of a host"
    elif isinstance(error, ssl.SSLError):
        reason = "the connection was closed while TLS was negotiated"
    elif isinstance(error, OSError):
        # asyncio has the address in place of the reason
        reason = os.strerror(error.errno or 0) if error.errno in errno.errorcode else error.strerror
    return TransportError(f"no connection to {peer}: {reason or 'the connection was closed'}", "connect")
