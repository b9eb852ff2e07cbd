"""`Background`: one event loop in one thread, on which all of an adapter's clients live.

Guarantees: a client is opened, used and closed on this loop alone, whoever calls and from wherever: the main thread, a
worker, a notebook whose own loop is running. Events of a call reach the thread that waits for it, in which alone they
are told. After `close`, also at the interpreter's exit, neither thread nor loop is left.
Assumes: nobody waits for it on its own thread, which would wait for itself (this is checked).
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
#: tells the thread that waits what has happened
Report = Callable[[dict[str, Any]], object]

#: how often a thread that waits looks whether its run has been cancelled
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

    @property
    def is_of_parent(self) -> bool:
        return os.getpid() != self._process

    def check(self) -> None:
        """`McpClosedError` where nothing can be run any more."""
        if self._loop.closed:
            raise McpClosedError("the MCP adapter has been shut down; build a new one with kernai.mcp.setup")
        if self.is_of_parent:
            raise McpClosedError("the MCP adapter belongs to the parent process; build a new one after forking")

    def close(self, last: Callable[[], Coroutine[Any, Any, object]], patience: float) -> None:
        """Runs `last` on the loop, then ends loop and thread; waits for at most about `patience` seconds."""
        atexit.unregister(self._at_exit)
        if not self.is_of_parent:
            self._loop.close(patience, last)

    def _submit(self, work: Callable[[], Coroutine[Any, Any, Answer]]) -> Future[Answer]:
        self.check()
        if self._loop.serves_here():
            raise McpError(
                "an MCP request was made on the thread that serves MCP, which would wait for itself for ever; "
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
