"""The server's end of one connection: sending, reading and waiting, so that nothing can block it for good."""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from wire_server import Gate

T = TypeVar("T")
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Ended(Exception):  # noqa: N818 - the usual end of a connection, not an error
    def __init__(self, *, by_client: bool) -> None:
        super().__init__()
        self.by_client = by_client


class Line:
    """A socket that is never blocked upon: each wait also ends when it is rung, and the ring looks why."""

    def __init__(self, sock: socket.socket, stopping: threading.Event) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._stopping = stopping
        self._unread = bytearray()
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._ear, READ)
        self._selector.register(sock, READ)

    def ring(self) -> None:
        """Wakes the line's thread, from any other."""
        with contextlib.suppress(OSError):  # closed already; or so full of rings that one more says nothing new
            self._bell.send(b"!")

    def attempt(self, act: Callable[[], T], blocked: int = READ) -> T:
        """What `act` gives as soon as the socket is ready for it."""
        while True:
            if self._stopping.is_set():
                raise Ended(by_client=False)
            try:
                return act()
            except ssl.SSLWantReadError:  # TLS may have to read in order to write, and the other way round
                wants = READ
            except ssl.SSLWantWriteError:
                wants = WRITE
            except BlockingIOError:
                wants = blocked
            except OSError as error:
                raise Ended(by_client=True) from error
            self._wait(wants)

    def send(self, data: bytes) -> None:
        self._look()
        rest = memoryview(data)
        while rest:
            rest = rest[self.attempt(lambda: self._sock.send(rest), WRITE) :]  # noqa: B023 - called at once

    def hold(self, gate: Gate) -> None:
        gate.listen(self.ring)
        try:
            while not gate.take():
                self._look()
                self._wait(READ)
        finally:
            gate.forget(self.ring)

    def read_until(self, mark: bytes) -> bytes:
        while (end := self._unread.find(mark)) < 0:
            self._receive()
        data = self.read(end + len(mark))
        return data[:end]

    def read(self, size: int) -> bytes:
        while len(self._unread) < size:
            self._receive()
        data = bytes(self._unread[:size])
        del self._unread[:size]
        return data

    def encrypt(self, context: ssl.SSLContext) -> None:
        self._selector.unregister(self._sock)
        encrypted = context.wrap_socket(self._sock, server_side=True, do_handshake_on_connect=False)
        self._sock = encrypted
        self._selector.register(encrypted, READ)
        self.attempt(encrypted.do_handshake)

    def say_goodbye(self) -> None:
        """The end of TLS, where there is TLS; the client's own farewell is not waited for."""
        if isinstance(self._sock, ssl.SSLSocket):
            with contextlib.suppress(OSError):
                self._sock.unwrap()

    def cut(self, *, reset: bool) -> None:
        if reset:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise Ended(by_client=False)

    def close(self) -> None:
        self._selector.close()
        for sock in (self._sock, self._bell, self._ear):
            sock.close()

    def _receive(self) -> None:
        data = self.attempt(lambda: self._sock.recv(65536))
        if not data:
            raise Ended(by_client=True)
        self._unread += data

    def _look(self) -> None:
        """Takes what has come already, above all the news that the client has closed."""
        if self._stopping.is_set():
            raise Ended(by_client=False)
        while True:
            try:
                data = self._sock.recv(65536)
            except LATER:
                return
            except OSError as error:
                raise Ended(by_client=True) from error
            if not data:
                raise Ended(by_client=True)
            self._unread += data

    def _wait(self, events: int) -> None:
        self._selector.modify(self._sock, events)
        ready = self._selector.select()
        if any(key.fileobj is self._ear for key, _ in ready):
            with contextlib.suppress(BlockingIOError):
                self._ear.recv(65536)
