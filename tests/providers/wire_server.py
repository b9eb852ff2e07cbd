"""A server on loopback that keeps to HTTP/1.1 only as far as its script says.

Plain sockets and threads, nothing between the script and the wire, so that a test decides on every byte and on the
moment it is sent. What it promises:

- A reply goes out as written, each piece in a send of its own, or not at all. Without a step that says otherwise the
  connection is kept for the next request.
- Each wait ends when its gate opens, when the client closes, or when the server is closed.
- `requests`, `accepts` and `open_connections` may be read from any thread; `until` waits for them to change.
- A client that closes is noticed at the next wait or piece: `WireRequest.client_closed`, `WireServer.client_closed`.
- After the `with` block no thread and no socket is left. What went wrong on a thread (a script that raised, a client
  that does not speak HTTP) is raised there.

A reply is data: a status, headers and three rows of steps. Those of `before` and `after` stand outside of the answer,
so that bytes there go out as they are; those of `body` are framed. Whoever wants the connection to break, to wait or
to lie puts a step where it shall happen; the methods of `Reply` do it for the usual places and give a new reply.

::

    with WireServer([hang_up(), Reply(body=(b"one", b"two"))]) as server:
        ...  # the first request is answered by a closed connection, all others by two chunks
"""

from __future__ import annotations

import itertools
import json
import socket
import ssl
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

from wire_line import Ended, Line

PATIENCE = 20.0  # seconds until a wait that should have ended long ago is called a failure
UNBOUNDED = 1 << 40  # what a Content-Length says of a body without end

Framing: TypeAlias = Literal["chunked", "length", "close", "none"]


class Gate(threading.Event):
    """What the server waits for. `set` opens it for good, `allow` lets that many waits pass.

    A client's callback that calls `allow()` makes the server send the next piece only when the last one was seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._passes = 0
        self._listeners: list[Callable[[], None]] = []

    def set(self) -> None:
        super().set()
        self._notify()

    def allow(self, passes: int = 1) -> None:
        with self._lock:
            self._passes += passes
        self._notify()

    def take(self) -> bool:
        """Whether one wait may pass now. It uses up one of what was allowed."""
        with self._lock:
            if self.is_set():
                return True
            self._passes -= (allowed := self._passes > 0)
            return allowed

    def listen(self, call: Callable[[], None]) -> None:
        with self._lock:
            self._listeners.append(call)

    def forget(self, call: Callable[[], None]) -> None:
        with self._lock:
            self._listeners.remove(call)

    def _notify(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for call in listeners:
            call()


@dataclass(frozen=True, slots=True)
class Hold:
    """Send nothing until the gate lets pass, or the client has closed."""

    gate: Gate


@dataclass(frozen=True, slots=True)
class Notify:
    """Call the test at this point, on the server's thread: an `Event.set`, a clock."""

    call: Callable[[], object]


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
    bound: int | None = None


@dataclass(frozen=True, slots=True)
class StartTls:
    """From here on the connection is encrypted: what a proxy does after CONNECT."""

    context: ssl.SSLContext


Step: TypeAlias = bytes | Hold | Notify | Close | Torn | Endless | StartTls


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
    def declared(self) -> int:
        return sum(map(_size, self.body)) if self.length is None else self.length

    def framed(self, framing: Framing) -> Reply:
        return replace(self, framing=framing)

    def with_headers(self, headers: Mapping[str, str]) -> Reply:
        return replace(self, headers=(*self.headers, *headers.items()))

    def split(self, *sizes: int) -> Reply:
        """Pieces of these sizes, over and over; where a piece ended before does not matter. `split(1)`: each byte."""
        if not sizes or min(sizes) < 1:
            raise ValueError(f"sizes {sizes} must be at least one, each at least 1")
        body: list[Step] = []
        for are_bytes, run in itertools.groupby(self.body, key=lambda step: isinstance(step, bytes)):
            steps = list(run)
            body += _resized(steps, sizes) if are_bytes else steps
        return replace(self, body=tuple(body))

    def trickle(self, gate: Gate, after: Callable[[bytes], bool] = lambda piece: True) -> Reply:
        """Wait at the gate after each piece (for which `after` is true), but for the last one."""
        body: list[Step] = []
        for number, step in enumerate(self.body, 1):
            body.append(step)
            if number < len(self.body) and isinstance(step, bytes) and after(step):
                body.append(Hold(gate))
        return replace(self, body=tuple(body))

    def insert(self, at: int, *steps: Step) -> Reply:
        """These steps before step `at` of the body; at the very end with ``len(reply.body)``."""
        return replace(self, body=(*self.body[:at], *steps, *self.body[at:]))

    def hold(self, gate: Gate, at: int) -> Reply:
        """Send nothing from step `at` on until the gate opens; negative: counted from the end."""
        return self.insert(at, Hold(gate))

    def stall(self, gate: Gate) -> Reply:
        """Not even the status line comes before the gate opens."""
        return replace(self, before=(*self.before, Hold(gate)))

    def linger(self, gate: Gate) -> Reply:
        """All pieces are sent, but the body does not end before the gate opens."""
        return replace(self, body=(*self.body, Hold(gate)))

    def cut(self, keep: int, *, reset: bool = False) -> Reply:
        """Close after `keep` bytes of the body. The headers, and the chunk it falls into, announce all of it."""
        body: list[Step] = []
        for step in self.body:
            if isinstance(step, bytes) and len(step) > keep:
                body += [Torn(step, keep)] if keep else []
                break
            keep -= len(step) if isinstance(step, bytes) else 0
            body.append(step)
        return replace(self, body=(*body, Close(reset)), length=self.declared)

    def then_close(self, gate: Gate | None = None, *, reset: bool = False) -> Reply:
        """Close the idle connection after a whole answer that promised to keep it; at the gate's word if given."""
        return replace(self, after=(*self.after, *([Hold(gate)] if gate else []), Close(reset)))

    def gzipped(self) -> Reply:
        """The same body compressed, each piece flushed so that it can be read before the next one is sent."""
        packer = zlib.compressobj(wbits=31)
        body: list[Step] = []
        for step in self.body:
            packed = packer.compress(step) + packer.flush(zlib.Z_SYNC_FLUSH) if isinstance(step, bytes) else step
            body.append(packed)
        return replace(self, body=(*body, packer.flush())).with_headers({"Content-Encoding": "gzip"})


def _size(step: Step) -> int:
    if isinstance(step, bytes):
        return len(step)
    if isinstance(step, Torn):
        return len(step.piece)
    if isinstance(step, Endless):
        return UNBOUNDED if step.bound is None else step.bound
    return 0


def _resized(run: Sequence[Step], sizes: Sequence[int]) -> Iterator[bytes]:
    data = b"".join(step for step in run if isinstance(step, bytes))
    start = 0
    for size in itertools.cycle(sizes):
        if start >= len(data):
            return
        yield data[start : start + size]
        start += size


def plain(body: bytes, status: int = 200, media_type: str = "text/plain") -> Reply:
    """A short answer in one piece, its length announced."""
    return Reply(status, (("Content-Type", media_type),), (body,), "length")


def as_json(value: Any, status: int = 200) -> Reply:
    return plain(json.dumps(value).encode(), status, "application/json")


def redirect(location: str, status: int = 307) -> Reply:
    return plain(b"moved", status).with_headers({"Location": location})


def endless(piece: bytes, bound: int | None = None, framing: Framing = "chunked") -> Reply:
    """A body that is never whole. With `bound` it ends there, in good order."""
    return Reply(body=(Endless(piece, bound),), framing=framing)


def garbage(data: bytes) -> Reply:
    """These bytes in place of an answer, then a close."""
    return Reply(before=(data, Close()))


def hang_up(*, reset: bool = False) -> Reply:
    """Not one byte of an answer."""
    return Reply(before=(Close(reset),))


def tunnel(context: ssl.SSLContext) -> Reply:
    """The answer of a proxy to CONNECT. The same server then plays the host behind it."""
    return Reply(framing="none", after=(StartTls(context),))


# ------------------------------------------------------------------------------------------------------ the server


@dataclass(frozen=True, slots=True)
class WireRequest:
    """One request as it came. Header names are in lower case; `path` is the target with its query."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int  # the how-manieth accepted connection, from 1
    client_closed: threading.Event  # the client has closed that connection
    answered: threading.Event = field(default_factory=threading.Event)  # the whole answer was sent

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def takes_gzip(self) -> bool:
        return "gzip" in self.headers.get("accept-encoding", "")


Answer: TypeAlias = Reply | Callable[[WireRequest], Reply]


def gzip_if_asked(reply: Reply) -> Callable[[WireRequest], Reply]:
    """Compressed for clients that take it."""
    packed = reply.gzipped()
    return lambda request: packed if request.takes_gzip else reply


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
        if isinstance(script, Sequence) and not script:
            raise ValueError("script has no reply; give at least one")
        self._script = script if isinstance(script, Sequence) else [script]
        self._tls = tls
        self._changed = threading.Condition()
        self._requests: list[WireRequest] = []
        self._accepts = 0
        self._lines: set[Line] = set()
        self._threads: list[threading.Thread] = []
        self._errors: list[Exception] = []
        self.client_closed = threading.Event()
        self.stopping = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self._door = Line(self._listener, self.stopping)
        self._doorkeeper = self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
        if self._errors and error is None:
            raise ExceptionGroup("the wire server", self._errors)

    @property
    def accepts(self) -> int:
        """How many connections were accepted so far."""
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
        """Ends all connections and threads. Also twice."""
        self.stopping.set()
        self._door.ring()
        _join(self._doorkeeper)  # first: nobody else starts threads
        with self._changed:
            lines, threads = list(self._lines), list(self._threads)
        for line in lines:
            line.ring()
        for thread in threads:
            _join(thread)

    def _accept(self) -> None:
        try:
            while True:
                sock, _ = self._door.attempt(self._listener.accept)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                line = Line(sock, self.stopping)
                with self._changed:
                    self._accepts += 1
                    self._lines.add(line)
                    self._start(self._serve, line, self._accepts)
                    self._changed.notify_all()
        except Ended as end:
            if end.__cause__:  # such as: no file descriptors left
                self._errors.append(RuntimeError(f"accepting failed: {end.__cause__!r}"))
        finally:
            self._door.close()

    def _start(self, work: Callable[..., None], *arguments: Any) -> threading.Thread:
        thread = threading.Thread(target=work, args=arguments, name="wire-server", daemon=True)
        with self._changed:
            self._threads = [*(old for old in self._threads if old.is_alive()), thread]
            thread.start()
        return thread

    def _serve(self, line: Line, number: int) -> None:
        client_closed = threading.Event()
        try:
            if self._tls:
                line.encrypt(self._tls)
            while self._answer(line, _read_request(line, number, client_closed)):
                pass
            line.say_goodbye()
        except Ended as end:
            if end.by_client:
                client_closed.set()
                self.client_closed.set()
        except Exception as error:
            self._errors.append(error)
        finally:
            line.close()
            with self._changed:
                self._lines.discard(line)
                self._changed.notify_all()

    def _answer(self, line: Line, request: WireRequest) -> bool:
        """Whether the connection is kept."""
        with self._changed:
            answer = self._script[min(len(self._requests), len(self._script) - 1)]
            self._requests.append(request)
            self._changed.notify_all()
        reply = answer if isinstance(answer, Reply) else answer(request)
        for step in reply.before:
            _do(line, step, "close")
        line.send(_head(reply))
        for step in reply.body:
            _do(line, step, reply.framing)
        if reply.framing == "chunked":
            line.send(b"0\r\n\r\n")
        request.answered.set()
        with self._changed:
            self._changed.notify_all()
        for step in reply.after:
            _do(line, step, "close")
        asked = request.headers.get("connection", "")
        promised = [value for name, value in reply.headers if name.lower() == "connection"]
        return reply.framing != "close" and "close" not in (asked, *promised)


def _join(thread: threading.Thread) -> None:
    thread.join(PATIENCE)
    assert not thread.is_alive(), "a thread of the wire server does not end"


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


def _do(line: Line, step: Step, framing: Framing) -> None:
    if isinstance(step, bytes):
        line.send(_framed(step, framing))
    elif isinstance(step, Torn):
        whole = _framed(step.piece, framing)
        line.send(whole[: whole.index(step.piece) + step.keep])
    elif isinstance(step, Endless):
        _send_endlessly(line, step, framing)
    elif isinstance(step, Hold):
        line.hold(step.gate)
    elif isinstance(step, Notify):
        step.call()
    elif isinstance(step, StartTls):
        line.encrypt(step.context)
    else:
        line.cut(reset=step.reset)


def _framed(piece: bytes, framing: Framing) -> bytes:
    # an empty chunk would be the last one
    return b"%x\r\n%b\r\n" % (len(piece), piece) if framing == "chunked" and piece else piece


def _send_endlessly(line: Line, step: Endless, framing: Framing) -> None:
    whole = _framed(step.piece, framing)
    left = step.bound
    while left is None or left >= len(step.piece):
        line.send(whole)
        left = None if left is None else left - len(step.piece)
    line.send(_framed(step.piece[:left], framing))


def _read_request(line: Line, number: int, client_closed: threading.Event) -> WireRequest:
    head = line.read_until(b"\r\n\r\n").decode("latin-1")
    first, *rest = head.split("\r\n")
    try:
        method, target, version = first.split(" ")
    except ValueError:
        raise ValueError(f"a client sent {first[:60]!r} for a request line") from None
    if version != "HTTP/1.1" and method != "CONNECT":  # for that http.client speaks 1.0
        raise ValueError(f"a client speaks {version}; this server knows HTTP/1.1")
    headers: dict[str, str] = {}
    for name, _, value in (row.partition(":") for row in rest):
        name, value = name.lower(), value.strip()  # noqa: PLW2901 - the row's own spelling is of no use
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    if headers.get("transfer-encoding") == "chunked":
        body = bytearray()
        while size := int(line.read_until(b"\r\n"), 16):
            body += line.read(size + 2)[:size]
        line.read_until(b"\r\n")
    else:
        body = bytearray(line.read(int(headers.get("content-length", "0"))))
    return WireRequest(method, target, headers, bytes(body), number, client_closed)
