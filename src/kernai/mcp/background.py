"""`Background`: one event loop in one thread, for all of an adapter's clients.

A client is opened, used and closed on this loop alone, whoever calls: the main thread, a worker, a notebook with a
running loop of its own. Events of a call reach the thread that waits for it, and are emitted there. After `close`, also
at the interpreter's exit, neither thread nor loop is left. Nobody may wait for it on its own thread (this is checked).
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from kernai.drivers.background_loop import BackgroundLoop
from kernai.errors import KernaiError, RunCancelledError
from kernai.mcp.errors import McpClosedError, McpError

Answer = TypeVar("Answer")
#: emits an event in the thread that waits
Emit = Callable[[dict[str, Any]], object]

#: how often a thread that waits checks whether its run has been cancelled
POLL_SECONDS = 0.1
_DONE = object()


class Background:
    """Starts its thread with the first call."""

    def __init__(self, at_exit: Callable[[], object]) -> None:
        self._at_exit = at_exit  # registered only while there is something to end
        self._loop = BackgroundLoop("kernai-mcp")
        self._process = os.getpid()
        self._begun = False

    def run(
        self,
        work: Callable[[Emit], Coroutine[Any, Any, Answer]],
        emit: Emit = lambda _: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Answer:
        """Performs `work` on the loop and waits for it; `emit` gets its events, in the caller's thread.

        An interrupt of the caller or a cancelled run cancels the work. `McpClosedError` after `close`.
        """
        inbox: SimpleQueue[Any] = SimpleQueue()
        future = self._submit(lambda: work(inbox.put))
        future.add_done_callback(lambda _: inbox.put(_DONE))
        try:
            while (event := _next(inbox)) is not _DONE:
                if cancelled():
                    raise RunCancelledError("the run was cancelled")
                if event is not None:
                    emit(event)
            return future.result()
        except CancelledError:
            raise McpClosedError("the MCP adapter was shut down while it was asked") from None
        except BaseException:
            future.cancel()
            raise

    @property
    def is_of_parent(self) -> bool:
        """Whether this process was forked from the one that made it, and so cannot use it."""
        return os.getpid() != self._process

    def check(self) -> None:
        """`McpClosedError` if nothing can be run any more."""
        if self._loop.closed:
            raise McpClosedError("the MCP adapter has been shut down; build a new one with kernai.mcp.setup")
        if self.is_of_parent:
            raise McpClosedError("the MCP adapter belongs to the parent process; build a new one after forking")

    def close(self, last: Callable[[], Coroutine[Any, Any, object]], seconds: float) -> None:
        """Runs `last` on the loop, then ends loop and thread; waits for at most about `seconds`."""
        atexit.unregister(self._at_exit)
        if not self.is_of_parent:
            self._loop.close(seconds, last)

    def _submit(self, work: Callable[[], Coroutine[Any, Any, Answer]]) -> Future[Answer]:
        self.check()
        if self._loop.serves_here():
            raise McpError(
                "an MCP request on the thread that serves MCP would wait for itself forever; "
                "in a sampling or elicitation callback use 'def' in place of 'async def', or await arun(...)"
            )
        if not self._begun:
            self._begun = True
            atexit.register(self._at_exit)
        try:
            return self._loop.submit(work)
        except KernaiError:
            self.check()
            raise


def _next(inbox: SimpleQueue[Any]) -> Any:
    try:
        return inbox.get(timeout=POLL_SECONDS)
    except Empty:
        return None
