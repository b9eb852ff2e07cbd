"""`Deadline` and `WatchedSocket`: how long a request may wait, and a connection whose every wait can be ended.

Guarantees: connecting, TLS, sending and reading wait in slices of `SLICE` seconds and call `Deadline.check` between
them, so each ends within a slice once the response is no longer wanted. The head must arrive within the time that one
silence may last, even if its bytes arrive one by one. The overhead around a response's content (interim responses,
chunk sizes, trailers) is limited. Only the thread that waits touches the socket.
Assumes: one thread at a time uses a socket. Looking up a host's name cannot be interrupted.
"""

from __future__ import annotations

import errno
import io
import math
import os
import re
import selectors
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from kernai_providers.transport import Request, TransportError

T = TypeVar("T")
#: seconds of one wait
SLICE: Final = 0.05
#: overhead in bytes: for each response, and for each byte of its content (a chunk of one byte needs five more)
OVERHEAD_PER_RESPONSE: Final = 256 * 1024
OVERHEAD_PER_BYTE: Final = 8
IN_PROGRESS: Final = (errno.EINPROGRESS, errno.EWOULDBLOCK)
#: the first line of an interim response; 101 is a final one
INTERIM: Final = re.compile(rb"HTTP/1\.\d 1(?!01)\d\d\b")
BLANK: Final = (b"\r\n", b"\n")


class Deadline:
    """The limits of one request. `seconds` is how long the server may currently be silent."""

    def __init__(self, request: Request, peer: str) -> None:
        self.seconds = request.timeouts.read
        self.connecting = False
        #: the connection that `HttpxTransport` opened for this request, if it did
        self.dialed: Any = None
        #: the method, with which httpx begins the request
        self.method = request.method.upper().encode()
        self._timeouts = request.timeouts
        self._peer = peer
        self._unwanted = request.unwanted
        self._cancelled = False
        self._head_until = math.inf
        self._overhead_left: float = OVERHEAD_PER_RESPONSE

    def connects(self, *, still: bool = True) -> None:
        """Applies the time limit for connecting, which includes a proxy's handshake; with ``still=False`` no longer."""
        self.connecting = still
        self.seconds = self._timeouts.connect if still else self._timeouts.read
        self._head_until, self._overhead_left = math.inf, OVERHEAD_PER_RESPONSE

    def sent(self) -> None:
        """Starts the time limit for the head, because part of the request was sent. It is as long as for a silence."""
        self._head_until = time.monotonic() + self.seconds

    def answered(self) -> None:
        """Ends the time limit for the head, because it has arrived."""
        self._head_until = math.inf

    def cancel(self) -> None:
        """Ends the wait. Allowed from any thread."""
        self._cancelled = True

    def check(self) -> None:
        """Raises `TransportError` if the response is no longer wanted, or if its head takes too long."""
        if self._cancelled or (self._unwanted is not None and self._unwanted()):
            raise TransportError(f"the answer of {self._peer} is not wanted any more", "unwanted")
        # before its first byte is read, the head may be there already, if this process had no time to look
        if self.awaits_head and self.has_received and time.monotonic() >= self._head_until:
            raise self.timed_out()

    def until(self, waited: float = 0.0) -> float:
        """Returns when a wait that began `waited` seconds ago becomes too long, in monotonic seconds."""
        return min(time.monotonic() - waited + self.seconds, self._head_until)

    def received(self, size: int) -> None:
        """Counts bytes that were read, of any kind. Raises `TransportError` if the overhead is too large."""
        self._overhead_left -= size
        if self._overhead_left < 0:
            raise TransportError(f"{self._peer} sends more headers or chunk sizes than any answer needs", "protocol")

    def content(self, size: float) -> None:
        """Counts bytes of content, which allow for more overhead."""
        self._overhead_left += size * (1 + OVERHEAD_PER_BYTE)

    @property
    def awaits_head(self) -> bool:
        """Whether part of the request is out and the head has not arrived."""
        return self._head_until < math.inf

    @property
    def has_received(self) -> bool:
        """Whether anything was received, if no content was counted yet."""
        return self._overhead_left < OVERHEAD_PER_RESPONSE

    def timed_out(self) -> TransportError:
        """Returns the error for a wait that was too long."""
        if self.awaits_head and self.has_received:
            what = f"did not finish the head of its answer within {self.seconds:g} seconds"
        else:
            what = f"was silent for {self.seconds:g} seconds"
        return TransportError(f"{self._peer} {what}", "timeout")


class CutHeadError(ConnectionError):
    """The connection ended inside the head of a response."""


def connected(host: str, port: int, seconds: float, deadline: Deadline) -> socket.socket:
    """Opens a connection. Each of the host's addresses may take `seconds`; if all fail, the last failure is raised."""
    failed = OSError("the host has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            _reach(sock, address, seconds, deadline)
            return sock
        except OSError as error:
            sock.close()
            failed = error
        except BaseException:
            sock.close()
            raise
    raise failed


def _reach(sock: socket.socket, address: Any, seconds: float, deadline: Deadline) -> None:
    deadline.check()
    sock.setblocking(False)
    number = sock.connect_ex(address)
    if number in IN_PROGRESS:
        until = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(sock, selectors.EVENT_WRITE)
            while not selector.select(min(SLICE, seconds)):
                deadline.check()
                if time.monotonic() >= until:
                    raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if number:
        raise OSError(number, os.strerror(number))


def is_readable(sock: socket.socket) -> bool:
    """Whether there is something to read, or the end; also true for a closed socket."""
    if sock.fileno() < 0:
        return True
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        return bool(selector.select(0))


class WatchedSocket:
    """A connected socket for `http.client`. All attributes that are not defined here are the socket's own.

    `deadline` returns the deadline of the current request.
    """

    def __init__(self, sock: socket.socket, deadline: Callable[[], Deadline]) -> None:
        sock.settimeout(SLICE)
        self.sock = sock
        self.deadline = deadline
        #: whether bytes arrived after the last response
        self.has_excess = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sock, name)

    def recv_into(self, buffer: Any) -> int:
        deadline = self.deadline()
        size = self._wait(deadline, self.sock.recv_into, buffer)
        deadline.received(size)
        return size

    def sendall(self, data: Any) -> None:
        left, deadline = memoryview(data), self.deadline()
        while left:
            left = left[self._wait(deadline, self.sock.send, left):]
        deadline.sent()

    def start_tls(self, context: ssl.SSLContext, server_hostname: str | None) -> WatchedSocket:
        """Returns the same connection, encrypted. This object must not be used afterwards."""
        self.deadline().answered()  # the proxy's response to the request for a tunnel, if there is one
        tls = context.wrap_socket(self.sock, server_hostname=server_hostname, do_handshake_on_connect=False)
        try:
            secure = WatchedSocket(tls, self.deadline)
            secure._wait(self.deadline(), tls.do_handshake)
        except BaseException:
            tls.close()
            raise
        return secure

    def makefile(self, mode: str = "rb", buffering: int | None = None) -> ResponseFile:
        """Returns a file of what arrives; `http.client` never asks for another mode."""
        del mode, buffering
        return ResponseFile(self)

    def close(self) -> None:
        self.sock.close()

    def _wait(self, deadline: Deadline, act: Callable[..., T], *arguments: Any) -> T:
        until = None
        while True:
            deadline.check()
            try:
                return act(*arguments)
            except TimeoutError:
                if until is None:  # the clock is read only after a wait
                    until = deadline.until(waited=SLICE)
                if time.monotonic() >= until:
                    raise


class _Bytes(io.RawIOBase):
    """The raw file below a `ResponseFile`. The socket stays open until this is closed, too."""

    def __init__(self, sock: WatchedSocket) -> None:
        self._sock = sock
        self._hold = sock.sock.makefile("rb", buffering=0)
        self.has_ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        return None if self.has_ended else self._sock.recv_into(buffer)

    def close(self) -> None:
        self._hold.close()
        super().close()


class ResponseFile(io.BufferedReader):
    """One response as `http.client` reads it. When closed, it records whether unread bytes are left.

    While the head is read, this corrects what `http.client` gets wrong: it takes the end of the connection for the end
    of the head, knows no interim response but 100 (RFC 9110 section 15.2), and keeps white space at the end of values
    (RFC 9112 section 5).
    """

    def __init__(self, sock: WatchedSocket) -> None:
        self._bytes = _Bytes(sock)
        self._sock = sock
        self._in_head = True
        self._has_begun = False
        super().__init__(self._bytes)

    def readline(self, size: int | None = -1) -> bytes:
        line = super().readline(size)
        if not self._in_head:
            return line
        while INTERIM.match(line):  # no header line looks like this
            while self._complete_line(line, size) not in BLANK:
                line = super().readline(size)
            line = super().readline(size)
        if self._complete_line(line, size) in BLANK:
            self._in_head = False
        return line.rstrip(b" \t\r\n") + b"\r\n" if line.endswith(b"\n") else line

    def read(self, size: int | None = -1) -> bytes:
        deadline = self._sock.deadline()
        if deadline.awaits_head:  # while a cassette is recorded, the whole body is read together with the head
            deadline.content(math.inf)
        return super().read(size)

    def _complete_line(self, line: bytes, size: int | None) -> bytes:
        self._has_begun = self._has_begun or bool(line)
        if not line.endswith(b"\n") and (not size or size < 0 or len(line) < size):
            raise CutHeadError("in the middle of the headers" if self._has_begun else "without an answer")
        return line

    def close(self) -> None:
        if not self.closed:
            self._bytes.has_ended = True  # from now on, `peek` only looks into the buffer
            with suppress(OSError, ValueError):
                self._sock.has_excess = bool(self.peek(1))
        super().close()
