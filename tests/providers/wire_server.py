"""A server on loopback that keeps to HTTP/1.1 only as far as its script says.

Plain sockets and threads, nothing between the script and the wire, so that a test decides on every byte and on the
moment it is sent. What it promises (test_wire_server.py holds it to that):

- A reply goes out as written, each piece in a send of its own, or not at all. Without a step that says otherwise the
  connection is kept for the next request.
- Each wait ends when its gate opens, when the client closes, or when the server is closed.
- `requests`, `accepts` and `open_connections` may be read from any thread; `until` waits for them to change.
- A client that closes is noticed at the next wait or piece: `WireRequest.client_closed`, `WireServer.client_closed`.
- After the `with` block no thread and no socket is left. What went wrong on a thread (a script that raised, a client
  that does not speak HTTP) is raised there.

::

    with WireServer([hang_up(), Reply(body=(b"one", b"two"))]) as server:
        ...  # the first request is answered by a closed connection, all others by two chunks
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self, TypeAlias

from wire_line import Ended, Line
from wire_reply import (
    Close,
    Endless,
    Framing,
    Gate,
    Hold,
    Notify,
    Reply,
    StartTls,
    Step,
    Torn,
    as_json,
    endless,
    garbage,
    hang_up,
    plain,
    redirect,
    tunnel,
)

__all__ = [
    "Answer",
    "Authority",
    "Close",
    "Endless",
    "Gate",
    "Hold",
    "Notify",
    "Reply",
    "StartTls",
    "Torn",
    "WireRequest",
    "WireServer",
    "as_json",
    "endless",
    "garbage",
    "gzip_if_asked",
    "hang_up",
    "plain",
    "redirect",
    "tunnel",
]

PATIENCE = 20.0  # seconds until a wait that should have ended long ago is called a failure


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
