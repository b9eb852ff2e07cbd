"""The stdio transport: a client has started this process and talks through its stdin and stdout.

Stdout belongs to the protocol, and one stray `print` would break it. So while serving, descriptor 1 is stderr and
`sys.stdout` too, for this process and its children, and descriptor 0 is empty; the protocol has private copies of both.

The SDK's own transport reads in a thread that nothing can interrupt, so that Ctrl-C would wait for the client's next
line. Here the reading thread is a daemon that can be woken.
"""

from __future__ import annotations

import asyncio
import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import anyio
from mcp.server.stdio import stdio_server

from kernai._util.worker_pool import WorkerPool, in_worker
from kernai.errors import KernaiError
from kernai.mcp.serving_loop import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from mcp.server.lowlevel import Server

_CHUNK = 1 << 16
_READ_AHEAD = 64  # lines
_claimed = threading.Lock()


async def serve_stdio(app: Server[Any], stop: asyncio.Event) -> None:
    """Serves the client behind stdin and stdout until it leaves or `stop` is set."""
    with _private_streams() as (stdin, stdout), _Lines(stdin) as lines:
        output = _Output(stdout, lines.end)
        ending = asyncio.ensure_future(_end_with(stop, lines))
        try:
            # the SDK asks of its files no more than these two can do
            streams = stdio_server(cast("anyio.AsyncFile[str]", lines), cast("anyio.AsyncFile[str]", output))
            with anyio.CancelScope() as scope:
                lines.on_end = partial(_allow, scope)
                async with streams as (read, write):
                    await app.run(read, write, app.create_initialization_options())
        finally:
            ending.cancel()


async def _end_with(stop: asyncio.Event, lines: _Lines) -> None:
    await stop.wait()
    lines.end()


def _allow(scope: anyio.CancelScope) -> None:
    """From the end of the input on the rest has its time; then even a client that reads nothing is left."""
    scope.deadline = asyncio.get_running_loop().time() + PATIENCE  # which is anyio's too, and known in a callback


class _Lines:
    """The lines of a descriptor, as an asynchronous iterator, on the running event loop."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._room = threading.Semaphore(_READ_AHEAD)
        self._ended = False
        self.on_end: Callable[[], object] = lambda: None
        self._waking, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._read, name="kernai-mcp-stdin", daemon=True)

    def end(self) -> None:
        """As if the client had closed its side; on the event loop."""
        if not self._ended:
            self._ended = True
            self._lines.put_nowait(None)
            self.on_end()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        os.close(self._wake)
        self._room.release()
        self._thread.join(PATIENCE if _can_wait() else 0)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        line = await self._lines.get()
        if line is None:
            raise StopAsyncIteration
        self._room.release()
        return line

    def _read(self) -> None:
        with suppress(RuntimeError):  # the event loop is closed
            for line in self._split():
                self._room.acquire()
                if self._ended:
                    break
                self._loop.call_soon_threadsafe(self._lines.put_nowait, line.decode("utf-8", "replace"))
            self._loop.call_soon_threadsafe(self.end)

    def _split(self) -> Iterator[bytes]:
        parts: list[bytes] = []
        for chunk in self._chunks():
            *whole, rest = chunk.split(b"\n")
            for line in whole:
                yield b"".join([*parts, line])
                parts = []
            parts.append(rest)

    def _chunks(self) -> Iterator[bytes]:
        # not through a buffered file: its lock, held by a thread that reads, is fatal when the interpreter ends
        with suppress(OSError):
            while self._readable() and (chunk := os.read(self._descriptor, _CHUNK)):
                yield chunk

    def _readable(self) -> bool:
        """Waits for input; False when woken to end. Where descriptors cannot be waited for, reading itself waits."""
        if not _can_wait():
            return True
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        poll.register(self._waking, select.POLLIN)
        return self._waking not in {ready for ready, _ in poll.poll()}


class _Output:
    """What the SDK writes to: each write is whole, and waits in a thread if the client reads slowly."""

    def __init__(self, descriptor: int, on_broken: Any) -> None:
        self._descriptor = descriptor
        self._on_broken = on_broken
        self._pool = WorkerPool(1)

    async def write(self, text: str) -> None:
        try:
            await in_worker(self._pool, partial(_write_all, self._descriptor, text.encode("utf-8", "replace")))
        except OSError:  # nobody reads any more
            self._on_broken()

    async def flush(self) -> None:
        """Nothing is held back."""


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left):]


@contextmanager
def _private_streams() -> Iterator[tuple[int, int]]:
    """Private copies of descriptors 0 and 1, which meanwhile lead nowhere and to stderr."""
    if not _claimed.acquire(blocking=False):
        raise KernaiError("stdin and stdout are serving an MCP client already; another server needs transport='http'")
    with ExitStack() as undo:
        undo.callback(_claimed.release)
        # asked of Python, which looked at its start: by now the number of a closed one may be something else's
        if sys.__stdin__ is None or sys.__stdout__ is None:
            raise KernaiError("transport='stdio' needs an open stdin and stdout; without them use 'http'")
        stdin, stdout = _copy(0), _copy(1)
        undo.callback(_restore, stdin, 0)
        undo.callback(_restore, stdout, 1)
        _lead(os.devnull, os.O_RDONLY, 0)
        if sys.__stderr__ is None:
            _lead(os.devnull, os.O_WRONLY, 1)
        else:
            os.dup2(2, 1)
        before = sys.stdout
        undo.callback(_flush, before)  # while it still leads to stderr
        _flush(before)
        if sys.stderr is not None:
            undo.enter_context(redirect_stdout(sys.stderr))  # at once, where descriptor 1 waits for a full buffer
        yield stdin, stdout


def _copy(descriptor: int) -> int:
    """A copy beyond the standard three, not inherited by children."""
    if sys.platform == "win32":
        return os.dup(descriptor)
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)


def _restore(copy: int, descriptor: int) -> None:
    os.dup2(copy, descriptor)
    if _can_wait():  # else a thread may still be reading it
        os.close(copy)


def _lead(path: str, flags: int, descriptor: int) -> None:
    opened = os.open(path, flags)
    os.dup2(opened, descriptor)
    os.close(opened)


def _flush(stream: Any) -> None:
    with suppress(Exception):
        stream.flush()


def _can_wait() -> bool:
    return hasattr(select, "poll")
