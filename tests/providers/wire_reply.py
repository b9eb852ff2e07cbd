"""What a `WireServer` answers: one frozen `Reply` per request, made of pieces to send and of things to do in between.

A reply is data: a status, headers and three rows of steps. Those of `before` and `after` stand outside of the answer,
so that bytes there go out as they are; those of `body` are framed. Whoever wants the connection to break, to wait or
to lie puts a step where it shall happen; the methods of `Reply` do it for the usual places and give a new reply::

    Reply(body=events).split(1)                    # every byte a send and a chunk of its own
    Reply(body=events).trickle(gate)               # a piece, then wait until the test has let the next one pass

Nothing here sleeps: a wait ends when its `Gate` opens, when the client closes, or when the server is closed.
"""

from __future__ import annotations

import itertools
import json
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from ssl import SSLContext
from typing import Any, Literal, TypeAlias

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

    context: SSLContext


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


def tunnel(context: SSLContext) -> Reply:
    """The answer of a proxy to CONNECT. The same server then plays the host behind it."""
    return Reply(framing="none", after=(StartTls(context),))
