"""The network below `http.client`: `Deadline`, how long a request may wait, and `Connection`, whose every wait can end.

`StreamedResponse` is the synchronous response of all transports.

Guarantees: connecting, TLS, sending and reading wait in slices of `SLICE` seconds and call `Deadline.check` between
them, so each ends within a slice once the response is no longer wanted. The head must arrive within the time that one
silence may last, even if its bytes arrive one by one. The overhead around a response's content (interim responses,
chunk sizes, trailers) is limited. Only the thread that waits touches the socket.
Assumes: one thread at a time uses a connection. Looking up a host's name cannot be interrupted.
"""

from __future__ import annotations

import errno
import http.client
import io
import ipaddress
import math
import os
import re
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Final, TypeVar

from kernai_providers.request_checks import Endpoint, Outgoing, Proxy
from kernai_providers.transport import DRAIN_BYTES, DRAIN_SECONDS, ContentDecoder, Request, TransportError, finished

T = TypeVar("T")
#: seconds of one wait
SLICE: Final = 0.05
#: bytes of one read
BLOCK: Final = 64 * 1024
#: overhead in bytes: for each response, and for each byte of its content (a chunk of one byte takes six)
OVERHEAD_PER_RESPONSE: Final = 256 * 1024
OVERHEAD_PER_BYTE: Final = 8
#: the first line of an interim response; 101 is a final one
INTERIM: Final = re.compile(rb"HTTP/1\.\d 1(?!01)\d\d\b")
BLANK: Final = (b"\r\n", b"\n")
#: a header, or the next line of one; `http.client` ends the head at any other line
HEADER: Final = re.compile(rb"(?:[!-9;-~]*:|[ \t])[^\r]*\Z")
#: how a response begins, and how its head ends
STATUS: Final = re.compile(rb"HTTP/1\.\d (\d\d\d)\b[^\n]*\n")
BLANK_LINE: Final = re.compile(rb"\n\r?\n")
#: the default selector would need a descriptor of its own, and there may be none left
Selector: Final = getattr(selectors, "PollSelector", selectors.SelectSelector)


class Deadline:
    """The limits of one request. `seconds` is how long the server may currently be silent."""

    def __init__(self, request: Request, call: Outgoing, *, connecting: bool = False) -> None:
        self._timeouts = request.timeouts
        self.begin(connecting=connecting)
        self.call = call
        self.unwanted = request.unwanted or (lambda: False)
        self._content_left = math.inf if request.max_bytes is None else request.max_bytes
        #: under asyncio: the request's connection, and whether it is a new one
        self.stream: Any = None
        self.dialed = False

    def begin(self, *, connecting: bool = False) -> None:
        """Starts a new phase: connecting, or the request itself."""
        self.seconds = self._timeouts.connect if connecting else self._timeouts.read
        #: whether the request has not begun; this includes the handshakes of a proxy and of TLS
        self.connecting = connecting
        #: whether any byte of a response has arrived
        self.has_received = False
        self._step_until = math.inf
        self._overhead_left = OVERHEAD_PER_RESPONSE

    def limit_step(self) -> None:
        """Limits the time of a handshake, or of the head after the request was sent, to that of a silence."""
        self._step_until = time.monotonic() + self.seconds

    def lift_limit(self) -> None:
        """Ends this limit, because the head has arrived or because more of the request is being sent."""
        self._step_until = math.inf

    def cancel(self) -> None:
        """Ends the wait. Allowed from any thread."""
        self.unwanted = lambda: True

    def check(self) -> None:
        """Raises `TransportError` if the response is no longer wanted, and `TimeoutError` if a step takes too long."""
        if self.unwanted():
            raise TransportError(f"the answer of {self.call.peer} is not wanted any more", "unwanted")
        # before a response's first byte is read, all may be there already, if this process had no time to look
        if (self.has_received or self.connecting) and time.monotonic() >= self._step_until:
            raise TimeoutError

    def until(self, waited: float = 0.0) -> float:
        """Returns when a wait that began `waited` seconds ago becomes too long, in monotonic seconds."""
        return min(time.monotonic() - waited + self.seconds, self._step_until)

    def count(self, overhead: int = 0, content: int = 0) -> None:
        """Counts bytes. Raises `TransportError` for too much content, or overhead, of which content allows for more."""
        self._content_left -= content
        if self._content_left < 0:
            raise TransportError(f"the answer of {self.call.peer} is too large", "too_large")
        self._overhead_left += content * OVERHEAD_PER_BYTE - overhead
        if self._overhead_left < 0:
            what = "more headers or chunk sizes than any answer needs"
            raise TransportError(f"{self.call.peer} sends {what}", "protocol")

    @property
    def awaits_head(self) -> bool:
        """Whether part of the request is out and the head has not arrived."""
        return self._step_until < math.inf

    def cut_head(self) -> TransportError:
        """Returns the error for a connection that ended before the head was complete."""
        where = "in the middle of the headers" if self.has_received else "without an answer"
        return TransportError(f"{self.call.peer} closed the connection {where}", "closed")

    def closed_here(self) -> TransportError:
        return TransportError(f"the answer of {self.call.peer} was closed on this side before its end", "closed")


# -------------------------------------------------------------------------------------------------- the connection


def connection_class(scheme: str) -> type[http.client.HTTPConnection]:
    """Returns the class for a connection. It is looked up each time, because vcrpy replaces it in `http.client`."""
    return http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection


class Connection:
    """One connection: a socket that waits in slices, and its connection of `http.client`, `http`.

    `deadline` is that of the current request. `context` is for TLS to the host, to the proxy or to both. `http.client`
    closes its socket after the last response, which is still being read then; so only `hang_up` closes the connection.
    """

    def __init__(self, to: Outgoing, deadline: Deadline, context: ssl.SSLContext | None = None) -> None:
        self.to = to
        self.deadline = deadline
        self.idle_since = 0.0
        #: whether bytes arrived after the last response
        self.has_excess = False
        #: this connection, or TLS over it; None before it is open, and always for a cassette's
        self.wire: Any = None
        self._context = context
        options: dict[str, Any] = {}
        if context is not None and to.scheme == "https":
            # as much of a context as `http.client` uses
            options["context"] = SimpleNamespace(
                wrap_socket=self._encrypt, verify_mode=context.verify_mode, check_hostname=context.check_hostname)
        make: Any = connection_class(to.scheme)
        self.http = make(to.host, to.port, **options)
        self.http._create_connection = self._open  # noqa: SLF001 - no public way to say how a socket is made

    def hang_up(self) -> None:
        self.http.close()
        if self.wire is not None:
            self._socket.close()

    def read(self, size: int) -> bytes:
        return self._wait(self._socket.recv, size)

    def write(self, data: Any) -> None:
        left = memoryview(data)
        while left:
            left = left[self._wait(self._socket.send, left):]

    def has_input(self) -> bool:
        """Whether there is something to read, or the end; also true for a closed socket."""
        return self._socket.fileno() < 0 or _is_ready(self._socket, selectors.EVENT_READ, 0)

    def _open(self, *_: object) -> Connection:
        proxy = self.to.proxy
        if self.wire is not None:  # when a cassette is recorded, `http.client` may connect again
            self._socket.close()
        self._socket: socket.socket = _connected(proxy or self.to, self.deadline)
        self._socket.settimeout(SLICE)
        self.setsockopt = self._socket.setsockopt  # for `http.client`
        self.wire = self
        if proxy is not None and proxy.scheme == "https":
            self._encrypt(self, proxy.host)
        if proxy is not None and self.to.needs_tunnel:
            self.deadline.limit_step()
            finished(tunnel(self.wire, proxy, self.to))
        return self

    def _encrypt(self, _: object, server_hostname: str) -> Connection:
        assert self._context is not None
        self.deadline.limit_step()
        self.wire = _Tls(self.wire, self._context, server_hostname)
        return self

    def _wait(self, act: Callable[[Any], T], argument: Any) -> T:
        deadline, until = self.deadline, None
        while True:
            deadline.check()
            try:
                return act(argument)
            except TimeoutError:
                if until is None:  # the clock is read only after a wait
                    until = deadline.until(waited=SLICE)
                if time.monotonic() >= until:
                    raise

    # what `http.client` calls

    def sendall(self, data: Any) -> None:
        self.deadline.lift_limit()
        self.wire.write(data)
        self.deadline.limit_step()

    def makefile(self, *_: object) -> ResponseFile:
        return ResponseFile(self)

    def close(self) -> None:
        """Does nothing; see `hang_up`."""


def _connected(to: Endpoint, deadline: Deadline) -> socket.socket:
    """Opens a socket. Each of the host's addresses has the deadline's time; if all fail, the last failure is raised."""
    number = errno.EADDRNOTAVAIL
    for family, kind, protocol, _, address in socket.getaddrinfo(to.host, to.port, 0, socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            if (number := _reach(sock, address, deadline)) == 0:
                return sock
        finally:
            if number:  # if `_reach` raised, that of the address before
                sock.close()
    raise OSError(number, os.strerror(number))


def _reach(sock: socket.socket, address: Any, deadline: Deadline) -> int:
    """Returns the number of the error; 0 if there was none."""
    sock.setblocking(False)
    number, until = sock.connect_ex(address), deadline.until()
    while number in (errno.EINPROGRESS, errno.EWOULDBLOCK):
        deadline.check()
        if _is_ready(sock, selectors.EVENT_WRITE, min(SLICE, deadline.seconds)):
            number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        elif time.monotonic() >= until:
            number = errno.ETIMEDOUT
    return number


def _is_ready(sock: socket.socket, event: int, seconds: float) -> bool:
    with Selector() as selector:
        selector.register(sock, event)
        return bool(selector.select(seconds))


class _Tls:
    """TLS over a connection, or over TLS to a proxy."""

    def __init__(self, below: Connection | _Tls, context: ssl.SSLContext, server_hostname: str) -> None:
        self._below = below
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_hostname=server_hostname)
        self._run(self._tls.do_handshake)

    def read(self, size: int) -> bytes:
        try:
            return self._run(self._tls.read, size)
        except ssl.SSLEOFError:  # many servers close the connection without ending TLS
            return b""

    def write(self, data: Any) -> None:
        self._run(self._tls.write, data)

    def has_input(self) -> bool:
        return bool(self._tls.pending() or self._received.pending) or self._below.has_input()

    def _run(self, act: Callable[..., T], *arguments: Any) -> T:
        while True:
            try:
                return act(*arguments)
            except ssl.SSLWantReadError:
                pass
            finally:
                if self._to_send.pending:
                    self._below.write(self._to_send.read())
            data = self._below.read(BLOCK)
            if data:
                self._received.write(data)
            else:
                self._received.write_eof()


# ----------------------------------------------------------------------------------------------------- proxies


async def tunnel(wire: Any, proxy: Proxy, to: Endpoint) -> None:
    """Asks a proxy for a connection to a host. Raises `OSError`, without any text from the proxy, if it refuses.

    The methods of `wire` are async, or block.
    """
    await (_ask_socks if proxy.is_socks else _ask_http)(wire, proxy, to)


async def _ask_http(wire: Any, proxy: Proxy, to: Endpoint) -> None:
    """Sends CONNECT (RFC 9110, section 9.3.6)."""
    key = f"Proxy-Authorization: {proxy.authorization}\r\n" if proxy.authorization else ""
    asked = f"CONNECT {to.peer} HTTP/1.1\r\nHost: {to.peer}\r\n{key}\r\n".encode()
    received = await _reply(wire, asked, 1, BLOCK)
    while (status := STATUS.match(received)) is None or BLANK_LINE.search(received) is None:
        if len(received) > BLOCK or (status is None and b"\n" in received):
            raise _refused()
        received += await _reply(wire, b"", 1, BLOCK)
    if not status[1].startswith(b"2"):
        raise OSError(0, f"it was refused with status {status[1].decode()}")


async def _ask_socks(wire: Any, proxy: Proxy, to: Endpoint) -> None:
    """Speaks SOCKS5 (RFC 1928), if need be with a password (RFC 1929)."""
    def sized(text: str) -> bytes:
        data = text.encode()
        if len(data) > 255:  # noqa: PLR2004 - its length is one byte
            raise OSError(0, "a user, password or host name is too long for SOCKS")
        return bytes([len(data)]) + data

    method = b"\x00" if proxy.credentials is None else b"\x02"
    if await _reply(wire, b"\x05\x01" + method, 2) != b"\x05" + method:
        raise _refused()
    login = b"" if proxy.credentials is None else b"\x01" + b"".join(map(sized, proxy.credentials))
    if login and (await _reply(wire, login, 2))[1]:
        raise _refused()
    try:
        address = ipaddress.ip_address(to.host).packed
        target = (b"\x01" if len(address) == 4 else b"\x04") + address  # noqa: PLR2004 - bytes of IPv4
    except ValueError:
        target = b"\x03" + sized(to.host)
    head = await _reply(wire, b"\x05\x01\x00" + target + to.port.to_bytes(2, "big"), 4)
    if head[:2] != b"\x05\x00":
        raise _refused()
    await _reply(wire, b"", {1: 4, 4: 16}.get(head[3]) or (await _reply(wire, b"", 1))[0])
    await _reply(wire, b"", 2)


async def _reply(wire: Any, data: bytes, size: int, most: int = 0) -> bytes:
    """Sends data, and returns a reply of this size, or of up to `most` bytes."""
    async def done(result: Any) -> Any:
        return await result if hasattr(result, "__await__") else result

    if data:
        await done(wire.write(data))
    received = b""
    while len(received) < size:
        piece = await done(wire.read(max(size, most) - len(received)))
        if not piece:
            raise ConnectionError
        received += piece
    return received


def _refused() -> OSError:
    return OSError(0, "the proxy refused, or is of another kind")


# ---------------------------------------------------------------------------------------------------- the response


class StreamedResponse:
    """A synchronous response, of any transport.

    `pull` returns the next encoded bytes of the body, or none at its end; it raises `TransportError` if the body is cut
    off, and waits no longer than `deadline` allows, which `finish` and `close` change. `release` gets whether the
    connection may be used again, or else has to be closed.

    Guarantees: the connection is released exactly once. `close` may be called from any thread, and unblocks the reader.
    While a thread reads, only that thread touches the connection. Assumes: one thread at a time iterates.
    """

    def __init__(
        self, status: int, headers: Mapping[str, str], deadline: Deadline, pull: Callable[[], bytes],
        release: Callable[[bool], object],
    ) -> None:
        self.status = status
        self.headers = headers
        self._deadline = deadline
        self._pull = pull
        self._release_connection = release
        self._decoder = ContentDecoder(headers.get("content-encoding", ""), deadline.call.peer)
        #: held by the thread that uses the connection
        self._in_use = threading.Lock()
        self._ended = False
        self._closed = False

    def __iter__(self) -> Iterator[bytes]:
        while data := self._read():
            yield from self._decoder.decode(data)
        self._decoder.end()

    def finish(self) -> None:
        deadline, size = time.monotonic() + DRAIN_SECONDS, 0
        with suppress(TransportError):
            while size <= DRAIN_BYTES and not self._ended and (left := deadline - time.monotonic()) > 0:
                self._deadline.seconds = left
                size += len(self._read())
        self._release()

    def close(self) -> None:
        self._closed = True
        self._deadline.cancel()
        self._release()

    def _read(self) -> bytes:
        data = b""
        try:
            with self._in_use:
                if not self._ended and not self._closed:
                    data = self._pull()
                    self._deadline.count(content=len(data))
                    self._ended = not data
        except BaseException as error:
            was_closed, self._closed = self._closed, True
            if not (was_closed and isinstance(error, TransportError)):
                raise
        finally:
            if self._closed:
                self._release()
        if self._closed and not self._ended:
            raise self._deadline.closed_here()
        return data

    def _release(self) -> None:
        """Releases the connection, once. If another thread is reading, that one does it afterwards."""
        if self._in_use.acquire(blocking=False):
            try:
                # the rest of a body that was not read to its end is lost
                self._closed = self._closed or not self._ended
                release, self._release_connection = self._release_connection, lambda _: None
                release(not self._closed)
            finally:
                self._in_use.release()


class _Bytes(io.RawIOBase):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.has_ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self.has_ended:
            return None
        data = self._connection.wire.read(len(buffer))
        if data:
            self._connection.deadline.has_received = True
        buffer[: len(data)] = data
        return len(data)


class ResponseFile(io.BufferedReader):
    """One response as `http.client` reads it. When closed, it records whether unread bytes are left.

    This corrects what `http.client` gets wrong: it ends the head at a line that is not a header, and the head or a
    chunk's size at the end of the connection; it knows no interim response but 100 (RFC 9110 section 15.2), and keeps
    white space at the end of values (RFC 9112 section 5).
    """

    def __init__(self, connection: Connection) -> None:
        self._bytes = _Bytes(connection)
        self._connection = connection
        self._in_head = self._is_first_line = True
        super().__init__(self._bytes)

    def readline(self, size: int | None = -1) -> bytes:
        line = self._line(size)
        if not self._in_head:
            return line
        while INTERIM.match(line):  # no header line looks like this
            while self._line(size) not in BLANK:
                pass
            line = self._line(size)
        if line in BLANK:
            self._in_head = False
            self._connection.deadline.lift_limit()
        content = line.rstrip(b" \t\r\n")
        if content and not self._is_first_line and not HEADER.match(content):
            raise http.client.HTTPException("not a header")
        self._is_first_line = False
        return content + b"\r\n" if content and line.endswith(b"\n") else line

    def _line(self, size: int | None) -> bytes:
        deadline = self._connection.deadline
        line = super().readline(size)
        deadline.count(len(line))
        if not line.endswith(b"\n") and len(line) != size:
            if self._in_head:
                raise deadline.cut_head()
            if line:  # the start of a chunk's size would be taken for all of it
                raise http.client.IncompleteRead(b"")
        return line

    def close(self) -> None:
        if not self.closed:
            self._bytes.has_ended = True  # from now on, `peek` only looks into the buffer
            self._connection.has_excess = bool(self.peek(1))
        super().close()
