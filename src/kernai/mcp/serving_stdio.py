"""Serving over stdio: a client has started this process and talks through its stdin and stdout.

The SDK's transport reads and writes in threads that nothing can interrupt: Ctrl-C would wait for the client's next
line, and a client that reads nothing would keep the server alive. So the SDK gets a pipe for each direction, and daemon
threads copy between these and the client. Closing a pipe ends whatever the SDK waits for.

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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from functools import partial
from io import FileIO
from typing import TYPE_CHECKING, Any

import anyio
from mcp.server.stdio import stdio_server

from kernai.errors import KernaiError
from kernai.mcp.serving_loop import GRACE

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

_CHUNK = 1 << 16
_claimed = threading.Lock()


async def serve_stdio(app: Server[Any], stop: asyncio.Event) -> None:
    """Serves the client behind stdin and stdout until it leaves or `stop` is set."""
    loop = asyncio.get_running_loop()
    with _client() as (stdin, stdout), ExitStack() as files:
        (lines, feed), (drain, output), (woken, wake) = (_pipe(files) for _ in range(3))
        reader = io.TextIOWrapper(io.BufferedReader(lines), "utf-8", "replace")
        writer = io.TextIOWrapper(io.BufferedWriter(output), "utf-8")

        def end() -> None:
            wake.close()  # wakes the thread that reads stdin
            feed.close()  # ends the SDK's input
            loop.call_later(GRACE, drain.close)  # ends its output, if the client has not read it by then

        async def end_when_stopped() -> None:
            await stop.wait()
            end()

        def copy(read: Callable[[int], bytes], target: FileIO, closing: FileIO) -> None:
            with suppress(OSError, ValueError):  # the other side is gone, or `closing` is closed
                while chunk := read(_CHUNK):
                    left = memoryview(chunk)
                    while left:
                        left = left[target.write(left) or 0 :]
            closing.close()
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(end)

        copying = [
            threading.Thread(target=copy, args=arguments, name="kernai-mcp-stdio", daemon=True)
            for arguments in ((partial(_read, stdin, woken), feed, feed), (drain.read, stdout, drain))
        ]
        for thread in copying:
            thread.start()
        ending = asyncio.ensure_future(end_when_stopped())
        try:
            async with stdio_server(anyio.wrap_file(reader), anyio.wrap_file(writer)) as (incoming, outgoing):
                await app.run(incoming, outgoing, app.create_initialization_options())
        except* OSError:  # the client has stopped reading
            pass
        finally:
            ending.cancel()
            end()
            with suppress(OSError):  # it still has what the client did not read
                writer.close()
            for thread in copying:
                thread.join(GRACE)


def _read(source: FileIO, woken: FileIO, size: int) -> bytes:
    """What `source` has, or nothing once `woken` is readable. Where descriptors cannot be polled it just reads."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(source, select.POLLIN)
        poll.register(woken, select.POLLIN)
        if woken.fileno() in {ready for ready, _ in poll.poll()}:
            return b""
    return source.read(size) or b""


def _pipe(files: ExitStack) -> tuple[FileIO, FileIO]:
    """Its reading and its writing end. A closed `FileIO` refuses to read, even if its number is in use again."""
    read, write = os.pipe()
    return files.enter_context(FileIO(read)), files.enter_context(FileIO(write, "w"))


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
