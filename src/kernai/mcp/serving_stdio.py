"""Serving over stdio: a client has started this process and talks through its stdin and stdout.

The SDK's own reading and writing happens in threads that nothing can interrupt: Ctrl-C would wait for the client's next
line, and a client that reads nothing would keep the server alive. So the SDK gets an input and an output whose threads
are daemons, and which do not wait for them when they are cancelled.

Stdout belongs to the protocol, and one stray `print` would break it. So while serving, descriptor 1 and `sys.stdout`
are stderr and descriptor 0 is empty, for this process and its children.
"""

from __future__ import annotations

import asyncio
import io
import os
import select
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from functools import partial
from io import FileIO
from typing import TYPE_CHECKING, Any

from mcp.server.stdio import stdio_server

from kernai._util.worker_pool import WorkerPool, in_worker
from kernai.errors import KernaiError
from kernai.mcp.serving_loop import GRACE, until

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

_claimed = threading.Lock()


async def serve_stdio(app: Server[Any], stop: asyncio.Event) -> None:
    """Serves the client behind stdin and stdout until it leaves or `stop` is set."""
    with _client() as (stdin, stdout), ExitStack() as files:
        woken, waker = map(files.enter_context, (FileIO(end, mode) for end, mode in zip(os.pipe(), "rw", strict=True)))
        pool = WorkerPool(2, keep=True)
        files.callback(pool.close)
        client: Any = _Client(pool, _Input(stdin, woken), stdout, stop)

        async def serve() -> None:
            try:
                async with stdio_server(client, client) as (incoming, outgoing):
                    await app.run(incoming, outgoing, app.create_initialization_options())
            except* OSError:  # the client has stopped reading
                pass

        serving = asyncio.ensure_future(serve())
        await until(stop, serving)
        waker.close()  # ends the input
        await asyncio.wait([serving], timeout=GRACE)
        serving.cancel()  # the client does not read the rest of the output
        with suppress(asyncio.CancelledError):
            await serving


class _Client:
    """What the SDK takes for two `anyio.AsyncFile`: the lines of a client, and what is written to it.

    Sets `ended` when the client has left.
    """

    def __init__(self, pool: WorkerPool, source: _Input, target: FileIO, ended: asyncio.Event) -> None:
        self._pool = pool
        self._lines = io.TextIOWrapper(io.BufferedReader(source), "utf-8", "replace")
        self._target = target
        self._ended = ended

    async def __aiter__(self) -> AsyncIterator[str]:
        while line := await in_worker(self._pool, self._lines.readline):
            yield line
        self._ended.set()

    async def write(self, text: str) -> None:
        await in_worker(self._pool, partial(self._write, memoryview(text.encode())))

    async def flush(self) -> None:
        """Nothing is kept back."""

    def _write(self, left: memoryview) -> None:
        while left:
            left = left[self._target.write(left) or 0 :]


class _Input(io.RawIOBase):
    """What `source` has, and the end once `woken` is readable. Where descriptors cannot be polled it just reads."""

    def __init__(self, source: FileIO, woken: FileIO) -> None:
        self._source = source
        self._woken = woken

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(self._source, select.POLLIN)
            poll.register(self._woken, select.POLLIN)
            if self._woken.fileno() in {ready for ready, _ in poll.poll()}:
                return 0
        return self._source.readinto(buffer) or 0


@contextmanager
def _client() -> Iterator[tuple[FileIO, FileIO]]:
    """Private copies of descriptors 0 and 1, which meanwhile lead nowhere and to stderr."""
    if not _claimed.acquire(blocking=False):
        raise KernaiError("stdin and stdout are serving an MCP client already; another server needs transport='http'")
    with ExitStack() as undo:
        undo.callback(_claimed.release)
        # Python looked when it started: by now the number of a closed one may belong to another file
        if sys.__stdin__ is None or sys.__stdout__ is None:
            raise KernaiError("transport='stdio' needs an open stdin and stdout; without them use 'http'")
        stdin = undo.enter_context(FileIO(_copy_of(0)))
        undo.callback(os.dup2, stdin.fileno(), 0)
        stdout = undo.enter_context(FileIO(_copy_of(1), "w"))
        undo.callback(os.dup2, stdout.fileno(), 1)
        _lead(0, os.open(os.devnull, os.O_RDONLY))
        _lead(1, os.open(os.devnull, os.O_WRONLY) if sys.__stderr__ is None else os.dup(2))
        before = sys.stdout
        undo.callback(_flush, before)  # while it still leads to stderr
        _flush(before)
        if sys.stderr is not None:
            undo.enter_context(redirect_stdout(sys.stderr))  # shows at once what descriptor 1 would show when flushed
        yield stdin, stdout


def _copy_of(descriptor: int) -> int:
    """A copy beyond the standard three, not inherited by children."""
    if sys.platform == "win32":
        return os.dup(descriptor)
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)


def _lead(descriptor: int, opened: int) -> None:
    os.dup2(opened, descriptor)
    os.close(opened)


def _flush(stream: Any) -> None:
    with suppress(Exception):
        stream.flush()
