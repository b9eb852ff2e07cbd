"""A server on loopback that keeps to HTTP/1.1 only as far as its script says.

Nothing is between the script and the wire, so that a test decides on every byte and on the moment it is sent:

- A reply goes out as written, each piece in a send of its own. Without a step that says otherwise the connection is kept.
- Each wait ends when its gate opens, when the client closes, or when the server is closed.
- `requests`, `accepts` and `open_connections` may be read from any thread; `until` waits for them to change.
- A client that closes is noticed at the next wait or piece: `WireRequest.client_closed`, `WireServer.client_closed`.
- The end of the `with` block raises what went wrong: a script that raised, a client that does not speak HTTP.

A reply is data: a status, headers and three rows of steps. Bytes in `before` and `after` go out as they are, those of
`body` are framed. Where the connection shall break, wait or lie, there is a step; the methods of `Reply` put one there.

::

    with WireServer([hang_up(), Reply(body=(b"one", b"two"))]) as server:
        ...  # the first request is answered by a closed connection, all others by two chunks
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import ssl
import struct
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

PATIENCE = 20.0  # seconds until a wait that should have ended long ago is called a failure

Framing: TypeAlias = Literal["chunked", "length", "close", "none"]


class Gate:
    """What the server waits for. `set` opens it for good, `allow` lets that many waits pass.

    A client's callback that calls `allow()` makes the server send the next piece only when the last one was seen.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._passes: float = 0
        self._waiting: list[Callable[[], object]] = []

    def set(self) -> None:
        self.allow(math.inf)

    def allow(self, passes: float = 1) -> None:
        with self._lock:
            self._passes += passes
            for wake in self._waiting:
                wake()

    async def passed(self, line: Line) -> None:
        """Returns when it lets one wait pass."""
        wake = partial(asyncio.get_running_loop().call_soon_threadsafe, line.news.set)
        with self._lock:
            self._waiting.append(wake)
        try:
            while True:
                with self._lock:
                    if self._passes:
                        self._passes -= 1
                        return
                await line.next_news()
        finally:
            with self._lock:
                self._waiting.remove(wake)


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection here: a clean FIN, or a RST. Under TLS neither says goodbye, as a cut does not."""

    reset: bool = False


@dataclass(frozen=True, slots=True)
class Torn:
    """The first `keep` bytes of a piece that was announced whole."""

    piece: bytes
    keep: int


@dataclass(frozen=True, slots=True)
class Endless:
    """The same piece again and again, until the client closes or `bound` bytes are out. Made while it is sent."""

    piece: bytes
    bound: float = math.inf


#: bytes to send, a gate to wait at, a function of the test's to call on the server's thread, or a context: from there
#: on the connection is encrypted, as by a proxy after CONNECT
Step: TypeAlias = bytes | Gate | Callable[[], object] | Close | Torn | Endless | ssl.SSLContext


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. Headers that frame the body are added; `headers` may name one twice.

    `framing`: ``chunked`` (each piece a chunk), ``length``, ``close`` (the end of the connection ends the body), or
    ``none`` (no body, as after CONNECT). `length` is what Content-Length says where that is not the truth.
    """

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: tuple[Step, ...] = ()
    framing: Framing = "chunked"
    before: tuple[Step, ...] = ()
    after: tuple[Step, ...] = ()
    length: int | None = None

    @property
    def pieces(self) -> list[bytes]:
        return [step for step in self.body if isinstance(step, bytes)]

    @property
    def declared(self) -> int:
        return sum(map(len, self.pieces)) if self.length is None else self.length

    def framed(self, framing: Framing) -> Reply:
        return replace(self, framing=framing)

    def with_headers(self, headers: Mapping[str, str]) -> Reply:
        return replace(self, headers=(*self.headers, *headers.items()))

    def split(self, size: int) -> Reply:
        """Pieces of this size; where a piece ended before does not matter."""
        data = b"".join(self.pieces)
        return replace(self, body=tuple(data[at : at + size] for at in range(0, len(data), size)))

    def trickle(self, gate: Gate, after: Callable[[bytes], bool] = lambda piece: True) -> Reply:
        """Wait at the gate after each piece (for which `after` is true), but for the last one."""
        *first, last = self.body
        body = [one for step in first for one in ((step, gate) if isinstance(step, bytes) and after(step) else (step,))]
        return replace(self, body=(*body, last))

    def hold(self, gate: Gate, at: int | None = None) -> Reply:
        """Send nothing from step `at` on until the gate opens; without `at`, all pieces, but not the end of the body."""
        at = len(self.body) if at is None else at
        return replace(self, body=(*self.body[:at], gate, *self.body[at:]))

    def stall(self, gate: Gate) -> Reply:
        """Not even the status line comes before the gate opens."""
        return replace(self, before=(*self.before, gate))

    def cut(self, keep: int, *, reset: bool = False) -> Reply:
        """Close after `keep` bytes of the body. The headers, and the chunk it falls into, announce all of it."""
        body: list[Step] = []
        for piece in self.pieces:
            if len(piece) > keep:
                body += [Torn(piece, keep)] if keep else []
                break
            keep -= len(piece)
            body.append(piece)
        return replace(self, body=(*body, Close(reset)), length=self.declared)

    def gzipped(self) -> Reply:
        """The same body compressed, each piece flushed so that it can be read before the next one is sent."""
        packer = zlib.compressobj(wbits=31)
        body: list[Step] = []
        for step in self.body:
            packed = packer.compress(step) + packer.flush(zlib.Z_SYNC_FLUSH) if isinstance(step, bytes) else step
            body.append(packed)
        return replace(self, body=(*body, packer.flush())).with_headers({"Content-Encoding": "gzip"})


def plain(body: bytes, status: int = 200, media_type: str = "text/plain") -> Reply:
    """A short answer in one piece, its length announced."""
    return Reply(status, (("Content-Type", media_type),), (body,), "length")


def as_json(value: Any, status: int = 200) -> Reply:
    return plain(json.dumps(value).encode(), status, "application/json")


def redirect(location: str, status: int = 307) -> Reply:
    return plain(b"moved", status).with_headers({"Location": location})


def garbage(data: bytes) -> Reply:
    """These bytes in place of an answer, then a close."""
    return Reply(before=(data, Close()))


def hang_up(*, reset: bool = False) -> Reply:
    """Not one byte of an answer."""
    return Reply(before=(Close(reset),))


def tunnel(context: ssl.SSLContext) -> Reply:
    """The answer of a proxy to CONNECT. The same server then plays the host behind it."""
    return Reply(framing="none", after=(context,))


# ------------------------------------------------------------------------------------------------------ the server


@dataclass(frozen=True, slots=True)
class WireRequest:
    """One request as it came. Header names are in lower case; `path` is the target with its query."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int  # the number of the accepted connection, from 1
    client_closed: threading.Event  # the client has closed that connection
    answered: threading.Event = field(default_factory=threading.Event)  # the whole answer was sent

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Answer: TypeAlias = Reply | Callable[[WireRequest], Reply]


class Authority:
    """A certificate authority nobody knows: `server` contexts for these names, `client` contexts that trust them."""

    def __init__(self) -> None:
        import trustme

        self._authority = trustme.CA()
        self.pem: bytes = self._authority.cert_pem.bytes()

    def server(self, *names: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._authority.issue_cert(*(names or ("127.0.0.1", "localhost"))).configure_cert(context)
        return context

    def client(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # without the system's authorities: to read them takes 100 ms
        self._authority.configure_trust(context)
        return context


class WireServer:
    """Answers each request by its script: one reply after the other, the last one for all that follow, or a function.

    `tls` is the context of an `Authority`; without it the server speaks plain HTTP.
    """

    def __init__(self, script: Answer | Sequence[Answer], *, tls: ssl.SSLContext | None = None) -> None:
        self._script = script if isinstance(script, Sequence) else [script]
        self._tls = tls
        self._changed = threading.Condition()
        self._requests: list[WireRequest] = []
        self._accepts = 0
        self._lines: set[Line] = set()
        self._errors: list[Exception] = []
        self.client_closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="wire-server", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
        if self._errors and error is None:
            raise ExceptionGroup("the wire server", self._errors)

    @property
    def accepts(self) -> int:
        with self._changed:
            return self._accepts

    @property
    def requests(self) -> tuple[WireRequest, ...]:
        """All requests so far, in the order in which they were read to the end."""
        with self._changed:
            return tuple(self._requests)

    @property
    def open_connections(self) -> int:
        with self._changed:
            return len(self._lines)

    def until(self, what: Callable[[], bool]) -> None:
        """Wait until `what()`, asked at each change, is true. `AssertionError` when that does not happen."""
        with self._changed:
            assert self._changed.wait_for(what, PATIENCE), "the server waited for something that did not happen"

    def close(self) -> None:
        """Ends all connections and the thread. Also twice."""
        with suppress(RuntimeError):  # closed already
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the wire server does not end"

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._accept())  # the runner then cancels what still serves a connection

    async def _accept(self) -> None:
        def connection() -> asyncio.StreamReaderProtocol:
            return asyncio.StreamReaderProtocol(line := Line(), partial(self._serve, line))

        server = await self._loop.create_server(connection, sock=self._listener)
        await self._over.wait()
        # asyncio never closes a connection that was just accepted if the server or its task ends before it is served
        self._loop.remove_reader(self._listener)
        for _ in range(5):  # from accepting to serving
            await asyncio.sleep(0)
        server.close()

    async def _serve(self, line: Line, _: object, writer: asyncio.StreamWriter) -> None:
        line.writer, wire, client_closed = writer, writer.transport, threading.Event()
        with self._changed:
            self._lines.add(line)
            self._accepts = number = self._accepts + 1
            self._changed.notify_all()
        try:
            # or the second piece waits 40 ms for the first one's receipt
            wire.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await line.encrypt(self._tls)
            while await self._answer(line, await _read_request(line, number, client_closed)):
                pass
            writer.close()
            await writer.wait_closed()
        except _ClosedHereError:
            pass
        except (OSError, EOFError):
            client_closed.set()
            self.client_closed.set()
        except Exception as error:
            self._errors.append(error)
        finally:
            wire.abort()  # also below TLS
            await asyncio.sleep(0)  # in which the socket is closed
            with self._changed:
                self._lines.discard(line)
                self._changed.notify_all()

    async def _answer(self, line: Line, request: WireRequest) -> bool:
        """Whether the connection is kept."""
        with self._changed:
            answer = self._script[min(len(self._requests), len(self._script) - 1)]
            self._requests.append(request)
            self._changed.notify_all()
        reply = answer if isinstance(answer, Reply) else answer(request)
        for step in reply.before:
            await line.do(step)
        await line.do(_head(reply))
        for step in reply.body:
            await line.do(step, reply.framing)
        if reply.framing == "chunked":
            await line.do(b"0\r\n\r\n")
        request.answered.set()
        with self._changed:
            self._changed.notify_all()
        for step in reply.after:
            await line.do(step)
        asked = request.headers.get("connection", "")
        promised = [value for name, value in reply.headers if name.lower() == "connection"]
        return reply.framing != "close" and "close" not in (asked, *promised)


class _ClosedHereError(Exception):
    """The script has closed the connection."""


class Line(asyncio.StreamReader):
    """The server's end of one connection."""

    writer: asyncio.StreamWriter

    def __init__(self) -> None:
        super().__init__(limit=1 << 40)  # reading is never paused, so that the end is noticed
        #: a gate was opened, or the client has closed
        self.news = asyncio.Event()

    def feed_eof(self) -> None:
        super().feed_eof()
        self.news.set()

    def set_exception(self, exc: Exception) -> None:
        super().set_exception(exc)
        self.news.set()

    async def next_news(self) -> None:
        self._check()
        self.news.clear()
        await self.news.wait()

    async def encrypt(self, context: ssl.SSLContext | None) -> None:
        if context is not None:
            await self.writer.start_tls(context)

    async def do(self, step: Step, framing: Framing = "close") -> None:
        if isinstance(step, bytes):
            await self._send(_framed(step, framing))
        elif isinstance(step, Torn):
            whole = _framed(step.piece, framing)
            await self._send(whole[: whole.index(step.piece) + step.keep])
        elif isinstance(step, Endless):
            whole, sent = _framed(step.piece, framing), 0
            while sent < step.bound:
                await self._send(whole)
                sent += len(step.piece)
        elif isinstance(step, Gate):
            await step.passed(self)
        elif isinstance(step, ssl.SSLContext):
            await self.encrypt(step)
        elif isinstance(step, Close):
            if step.reset:
                sock = self.writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise _ClosedHereError
        else:
            step()

    async def _send(self, data: bytes) -> None:
        await asyncio.sleep(0)  # lets the event loop notice that the client has closed
        self._check()
        self.writer.transport.set_write_buffer_limits(high=1)  # `drain` waits until all of it is out
        self.writer.write(data)
        await self.writer.drain()

    def _check(self) -> None:
        if self.at_eof() or self.exception() is not None:
            raise ConnectionResetError


def _head(reply: Reply) -> bytes:
    try:
        phrase = HTTPStatus(reply.status).phrase
    except ValueError:
        phrase = "Unknown"  # 529 is one vendor's own
    framing = {
        "chunked": [("Transfer-Encoding", "chunked")],
        "length": [("Content-Length", str(reply.declared))],
        "close": [("Connection", "close")],
        "none": [],
    }[reply.framing]
    lines = [f"HTTP/1.1 {reply.status} {phrase}", *(f"{name}: {value}" for name, value in (*reply.headers, *framing))]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _framed(piece: bytes, framing: Framing) -> bytes:
    # an empty chunk would be the last one
    return b"%x\r\n%b\r\n" % (len(piece), piece) if framing == "chunked" and piece else piece


async def _read_request(line: Line, number: int, client_closed: threading.Event) -> WireRequest:
    first, *rest = (await line.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
    method, target, version = first.split(" ")
    if version != "HTTP/1.1":
        raise ValueError(f"a client speaks {version}; this server knows HTTP/1.1")
    headers: dict[str, str] = {}
    for name, _, value in (row.partition(":") for row in rest):
        name, value = name.lower(), value.strip()  # noqa: PLW2901 - the row's own spelling is of no use
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    body = await line.readexactly(int(headers.get("content-length", "0")))
    return WireRequest(method, target, headers, body, number, client_closed)
