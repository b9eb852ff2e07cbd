"""The network below `HttpxTransport`: httpcore's backends, with the `Patience` of the request that waits.

For threads it stands on the same `PatientSocket` as `HttpTransport`. Under asyncio whoever waits is cancelled, so that
httpcore's own backend is left to wait, and only the time and the bytes are looked at.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeVar

import httpcore

from kernai_providers.patience import Patience
from kernai_providers.patient_socket import PatientSocket, connected, is_readable

T = TypeVar("T")
#: of the request that this thread or task is at; httpcore hands nothing down but numbers
PATIENCE: Final[ContextVar[Patience]] = ContextVar("kernai_patience")
RECORD: Final = 16 * 1024
#: how a proxy is asked for one
TUNNEL: Final = b"CONNECT "


@contextmanager
def waiting(patience: Patience) -> Iterator[None]:
    """In this block it is this request that waits."""
    token = PATIENCE.set(patience)
    try:
        yield
    finally:
        PATIENCE.reset(token)


@contextmanager
def _mapped(late: type[Exception], broken: type[Exception]) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise late(error) from error
    except OSError as error:
        raise broken(error) from error


class PatientBackend(httpcore.NetworkBackend):
    """For threads."""

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        del local_address, socket_options  # `HttpxTransport` gives none
        patience = PATIENCE.get()
        patience.dialed = True
        with _mapped(httpcore.ConnectTimeout, httpcore.ConnectError):
            sock = connected(host, port, patience.seconds if timeout is None else timeout, patience)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return PatientStream(PatientSocket(sock, PATIENCE.get))


class PatientStream(httpcore.NetworkStream):
    """A connection for threads."""

    def __init__(self, sock: PatientSocket | _TlsInTls) -> None:
        self._sock = sock
        self._is_asked = False

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        del timeout
        with _mapped(httpcore.ReadTimeout, httpcore.ReadError):
            return self._sock.recv(max_bytes)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        del timeout
        self._is_asked = True
        if buffer.startswith(TUNNEL):
            PATIENCE.get().connects()
        with _mapped(httpcore.WriteTimeout, httpcore.WriteError):
            self._sock.sendall(buffer)

    def is_answered(self) -> None:
        """What comes from now on was not asked for."""
        self._is_asked = False

    def close(self) -> None:
        self._sock.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        with _mapped(httpcore.ConnectTimeout, httpcore.ConnectError):
            try:
                secure: PatientSocket | _TlsInTls
                if isinstance(self._sock, PatientSocket) and not isinstance(self._sock.sock, ssl.SSLSocket):
                    secure = self._sock.start_tls(ssl_context, server_hostname, timeout)
                else:
                    secure = _TlsInTls(self._sock, ssl_context, server_hostname)
            except BaseException:
                self.close()
                raise
        PATIENCE.get().connects(still=False)
        return PatientStream(secure)

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            # Looked at in this order. httpcore asks without a lock whether an idle connection has spoken: meanwhile
            # another thread may have sent a request on it, and what has come is the answer.
            return is_readable(self._sock.sock) and not self._is_asked
        return self._sock.sock if info == "socket" else None


class _TlsInTls:
    """TLS to a host inside of TLS to its proxy, which an `ssl.SSLSocket` cannot do."""

    def __init__(self, outer: Any, context: ssl.SSLContext, server_hostname: str | None) -> None:
        self._outer = outer
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=server_hostname)
        self._perform(self._tls.do_handshake)

    @property
    def sock(self) -> socket.socket:
        sock: socket.socket = self._outer.sock
        return sock

    def recv(self, size: int) -> bytes:
        try:
            return self._perform(lambda: self._tls.read(size))
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return b""

    def sendall(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._perform(lambda: self._tls.write(left)):]  # noqa: B023 - called at once

    def close(self) -> None:
        self._outer.close()

    def _perform(self, act: Callable[[], T]) -> T:
        while True:
            try:
                result = act()
            except ssl.SSLWantReadError:
                self._outer.sendall(self._out.read())
                data = self._outer.recv(RECORD)
                if data:
                    self._in.write(data)
                else:
                    self._in.write_eof()
            else:
                self._outer.sendall(self._out.read())
                return result


class PatientAsyncBackend(httpcore.AsyncNetworkBackend):
    """For asyncio."""

    # ruff: noqa: ASYNC109 - the names are httpcore's

    def __init__(self) -> None:
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        PATIENCE.get().dialed = True
        return PatientAsyncStream(await self._inner.connect_tcp(host, port, timeout, local_address, socket_options))


class PatientAsyncStream(httpcore.AsyncNetworkStream):
    """A connection for asyncio."""

    def __init__(self, inner: httpcore.AsyncNetworkStream) -> None:
        self._inner = inner

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        del timeout
        patience = PATIENCE.get()
        patience.look()
        data = await self._inner.read(max_bytes, max(0.0, patience.until() - time.monotonic()))
        patience.took(len(data))
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if buffer.startswith(TUNNEL):
            PATIENCE.get().connects()
        await self._inner.write(buffer, timeout)
        PATIENCE.get().sent()

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        try:
            secure = PatientAsyncStream(await self._inner.start_tls(ssl_context, server_hostname, timeout))
        except BaseException as error:
            # httpcore forgets a connection that is cancelled while TLS is negotiated
            await self.aclose()
            if isinstance(error, httpcore.ConnectError) and not isinstance(error.__cause__, ssl.SSLError):
                end = ssl.SSLEOFError()  # what it is called everywhere else
                raise httpcore.ConnectError(end) from end
            raise
        PATIENCE.get().connects(still=False)
        return secure

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
