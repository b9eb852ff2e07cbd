"""`Background`: one event loop in one thread, on which all of an adapter's clients live.

Guarantees: a client is opened, used and closed on this loop alone, whoever calls and from wherever: the main thread, a
worker, a notebook whose own loop is running. Events of a call reach the thread that waits for it, in which alone they
are told. After `close`, also at the interpreter's exit, neither thread nor loop is left.
Assumes: nobody waits for it on its own thread, which would wait for itself (this is checked).
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from kernai.errors import RunCancelledError
from kernai.mcp.errors import McpClosedError, McpError

Answer = TypeVar("Answer")
#: tells the thread that waits what has happened
Report = Callable[[dict[str, Any]], object]

#: how often a thread that waits looks whether its run has been cancelled
POLL_SECONDS = 0.1
_DONE = object()


class Background:
    """Starts its thread with the first call."""

    def __init__(self, at_exit: Callable[[], object]) -> None:
        self._at_exit = at_exit  # registered only while there is something to end
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Future[None] | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._process = os.getpid()

    def run(
        self,
        work: Callable[[Report], Coroutine[Any, Any, Answer]],
        tell: Callable[[dict[str, Any]], object] = lambda _: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Answer:
        """Performs `work` on the loop and waits for it; what it reports goes to `tell`, in the caller's thread.

        An interrupt of the caller and a cancelled run cancel the work. `McpClosedError` after `close`.
        """
        inbox: SimpleQueue[Any] = SimpleQueue()
        future = self._submit(lambda: work(inbox.put))
        future.add_done_callback(lambda _: inbox.put(_DONE))
        try:
            while (item := _next(inbox)) is not _DONE:
                if cancelled():
                    raise RunCancelledError("the run was cancelled")
                if item is not None:
                    tell(item)
            return future.result()
        except CancelledError:
            raise McpClosedError("the MCP adapter was shut down while it was asked") from None
        except BaseException:
            future.cancel()
            raise

    def check(self) -> None:
        """`McpClosedError` where nothing can be run any more."""
        if self._closed:
            raise McpClosedError("the MCP adapter has been shut down; build a new one with kernai.mcp.setup")
        if os.getpid() != self._process:
            raise McpClosedError("the MCP adapter belongs to the parent process; build a new one after forking")

    def close(self, last: Callable[[], Coroutine[Any, Any, object]], patience: float) -> None:
        """Runs `last` on the loop, then ends loop and thread; waits for at most about `patience` seconds."""
        with self._lock:
            already, self._closed = self._closed, True
            loop, thread = self._loop, self._thread
        atexit.unregister(self._at_exit)
        if already or loop is None or thread is None or os.getpid() != self._process:
            return
        future = asyncio.run_coroutine_threadsafe(last(), loop)
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._stop))
        if thread is threading.current_thread():
            return  # a callback of the host closes the adapter it is called by
        with suppress(Exception):
            future.result(patience)
        if not future.done():
            future.cancel()
        thread.join(patience)

    def _stop(self) -> None:
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(None)

    def _submit(self, work: Callable[[], Coroutine[Any, Any, Answer]]) -> Future[Answer]:
        with self._lock:
            self.check()
            if self._thread is threading.current_thread():
                raise McpError(
                    "an MCP request was made on the thread that serves MCP, which would wait for itself for ever; "
                    "in a sampling or elicitation callback use 'def' in place of 'async def', or await arun(...)"
                )
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._stopped = self._loop.create_future()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop, self._stopped), name="kernai-mcp", daemon=True
                )
                self._thread.start()
                atexit.register(self._at_exit)
            return asyncio.run_coroutine_threadsafe(work(), self._loop)


def _next(inbox: SimpleQueue[Any]) -> Any:
    try:
        return inbox.get(timeout=POLL_SECONDS)
    except Empty:
        return None


def _serve(loop: asyncio.AbstractEventLoop, stopped: asyncio.Future[None]) -> None:
    asyncio.set_event_loop(loop)
    executor = ThreadPoolExecutor(4, "kernai-mcp-io")
    loop.set_default_executor(executor)
    try:
        # not for ever: anyio's worker threads end with what the loop was run for
        loop.run_until_complete(_until(stopped))
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        # not by the loop's own method, which starts a thread: at the interpreter's exit that is refused
        executor.shutdown(wait=True)
        loop.close()


async def _until(stopped: asyncio.Future[None]) -> None:
    await stopped
