"""`PatientSocket`: a connection on which every wait can be ended, for `http.client` and for httpx alike.

Guarantees: connecting, TLS, sending and reading wait in slices, and look between them (`Patience.look`) whether anybody
still wants the answer; no thread but the one that waits touches the socket.
Assumes: one thread at a time uses it. Looking up a host's name cannot be ended.
"""

from __future__ import annotations

import errno
import io
import os
import select
import selectors
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from kernai_providers.patience import SLICE, Patience

T = TypeVar("T")
UNDER_WAY: Final = (errno.EINPROGRESS, errno.EWOULDBLOCK)


def connected(host: str, port: int, seconds: float, patience: Patience) -> socket.socket:
    """A new connection. Each of the host's addresses has `seconds`; the last one's failure is the one that is told."""
    failed: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            _reach(sock, address, seconds, patience)
        except OSError as error:
            sock.close()
            failed = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failed if failed is not None else OSError("the host has no address")


def _reach(sock: socket.socket, address: Any, seconds: float, patience: Patience) -> None:
    patience.look()
    sock.setblocking(False)
    number = sock.connect_ex(address)
    if number in UNDER_WAY:
        until = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(sock, selectors.EVENT_WRITE)
            while not selector.select(min(SLICE, seconds)):
                patience.look()
                if time.monotonic() >= until:
                    raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if number:
        raise OSError(number, os.strerror(number))


def is_readable(sock: socket.socket) -> bool:
    """Whether there is something to read, or the end; also where the socket is closed."""
    if sock.fileno() < 0:
        return True
    if not hasattr(select, "poll"):
        return bool(select.select([sock], [], [], 0)[0])  # Windows, where it takes any number of sockets
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


class PatientSocket:
    """A connected socket. What is not here is the socket's own.

    `attention` gives whose patience counts at the moment: a connection serves one request after the other.
    """

    def __init__(self, sock: socket.socket, attention: Callable[[], Patience]) -> None:
        sock.settimeout(SLICE)
        self.sock = sock
        self.attention = attention
        #: whether more came than the last answer
        self.has_spoken_on = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sock, name)

    def recv(self, size: int) -> bytes:
        patience = self.attention()
        data = self._patiently(patience, self.sock.recv, size)
        patience.took(len(data))
        return data

    def recv_into(self, buffer: Any) -> int:
        patience = self.attention()
        size = self._patiently(patience, self.sock.recv_into, buffer)
        patience.took(size)
        return size

    def sendall(self, data: Any) -> None:
        left, patience = memoryview(data), self.attention()
        while left:
            left = left[self._patiently(patience, self.sock.send, left):]
        patience.sent()

    def start_tls(
        self, context: ssl.SSLContext, server_hostname: str | None, seconds: float | None = None
    ) -> PatientSocket:
        """The same connection, encrypted; this object is an empty shell afterwards."""
        tls = context.wrap_socket(self.sock, server_hostname=server_hostname, do_handshake_on_connect=False)
        try:
            secure = PatientSocket(tls, self.attention)
            secure._patiently(self.attention(), tls.do_handshake, seconds=seconds)
        except BaseException:
            tls.close()
            raise
        return secure

    def makefile(self, mode: str = "rb", buffering: int | None = None) -> Reader:
        """What comes, as a file for `http.client`, which never asks for another mode."""
        del mode, buffering
        return Reader(self)

    def _patiently(
        self, patience: Patience, act: Callable[..., T], *arguments: Any, seconds: float | None = None
    ) -> T:
        until = None
        while True:
            patience.look()
            try:
                return act(*arguments)
            except TimeoutError:
                if until is None:  # what comes at once needs no clock
                    until = patience.until(seconds, waited=SLICE)
                if time.monotonic() >= until:
                    raise


class _Bytes(io.RawIOBase):
    """What a `Reader` reads from. The socket stays open until it is closed too."""

    def __init__(self, sock: PatientSocket) -> None:
        self._sock = sock
        self._hold = sock.sock.makefile("rb", buffering=0)
        self.over = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        return None if self.over else self._sock.recv_into(buffer)

    def close(self) -> None:
        self._hold.close()
        super().close()


class Reader(io.BufferedReader):
    """What comes over a connection. Closed, it tells the connection of bytes that nobody has read."""

    def __init__(self, sock: PatientSocket) -> None:
        self._bytes = _Bytes(sock)
        self._sock = sock
        super().__init__(self._bytes)

    def close(self) -> None:
        if not self.closed:
            self._bytes.over = True  # from here on a look into the buffer reads nothing more
            with suppress(OSError, ValueError):
                self._sock.has_spoken_on = bool(self.peek(1))
        super().close()
