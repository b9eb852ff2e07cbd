"""`Background` runs the clients of an adapter on one event loop in one thread.

A client is opened, used and closed only on this loop, whichever thread calls, even if that thread runs its own loop (as
in a notebook). Events of a call are passed to the thread that waits for the call, and emitted there. After `close`,
also at the interpreter's exit, neither the thread nor the loop is left.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from queue import SimpleQueue
from typing import Any, TypeVar

from kernai.drivers.background_loop import BackgroundLoop
from kernai.errors import KernaiError, RunCancelledError
from kernai.loop.effects import Cancelled
from kernai.mcp.errors import McpClosedError, McpError
from kernai.registry.skill_context import SkillContext

Answer = TypeVar("Answer")
#: emits an event
Emit = Callable[[dict[str, Any]], object]


class Background:
    """The event loop for an adapter's clients, in a thread that the first call starts."""

    def __init__(self) -> None:
        self._loop = BackgroundLoop("kernai-mcp")
        self._process = os.getpid()

    def run(self, work: Callable[[Emit], Coroutine[Any, Any, Answer]], context: SkillContext[Any]) -> Answer:
        """Performs `work` on the loop and waits for it. Its events are emitted by `context`, in the caller's thread.

        Ctrl-C in the caller, or the cancellation of its run, cancels the work. Raises `McpClosedError` after `close`.
        """
        self.check()
        if self._loop.serves_here():
            raise McpError(
                "an MCP request on the thread that serves MCP would wait for itself forever; "
                "in a sampling or elicitation callback use 'def' in place of 'async def', or await arun(...)"
            )
        inbox: SimpleQueue[dict[str, Any]] = SimpleQueue()

        def must_stop() -> bool:  # called again and again by the waiting thread
            while not inbox.empty():
                context.emit(inbox.get())
            return context.cancelled

        try:
            answer: Answer = self._loop.run(work(inbox.put), must_stop)
        except Cancelled:
            raise RunCancelledError("the run was cancelled") from None
        except (CancelledError, asyncio.CancelledError):
            raise McpClosedError("the MCP adapter was shut down while it was asked") from None
        except KernaiError:
            self.check()  # it may have been closed meanwhile
            raise
        finally:
            must_stop()  # emits the last events
        return answer

    @property
    def is_of_parent(self) -> bool:
        """Whether it belongs to the parent process. A forked child cannot use it."""
        return os.getpid() != self._process

    def check(self) -> None:
        """Raises `McpClosedError` if no more work can be run."""
        if self._loop.closed:
            raise McpClosedError("the MCP adapter has been shut down; build a new one with kernai.mcp.setup")
        if self.is_of_parent:
            raise McpClosedError("the MCP adapter belongs to the parent process; build a new one after forking")

    def close(self, last: Callable[[], Coroutine[Any, Any, object]], seconds: float) -> None:
        """Runs `last` on the loop, then ends the loop and its thread. Waits at most about `seconds`."""
        if not self.is_of_parent:
            self._loop.close(seconds, last)
