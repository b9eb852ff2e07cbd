"""`BackgroundLoop`: an event loop in its own thread, for async work that synchronous code waits for.

A synchronous run has one for its async skills, so that a client session opened by one skill can be used by the next. An
MCP adapter has one for its clients, a server for its calls. It also works in a thread with a running event loop (a
notebook).

Guarantees: the thread starts with the first call. A caller stops waiting when the run must stop, even if the work does
not end. After `close` nothing new runs on the loop, and its thread ends with its work.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kernai._util.worker_pool import outcome_of
from kernai.drivers.driver import GRACE, POLL
from kernai.errors import KernaiError
from kernai.interrupts import INTERRUPTS
from kernai.loop.effects import Cancelled

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

#: how long `close` waits for cancelled work, in seconds
TIMEOUT = 0.2


class BackgroundLoop:
    """An event loop in its own thread, started on first use. Thread-safe."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        #: the loop, the event that ends it, and its thread
        self._serving: tuple[asyncio.AbstractEventLoop, asyncio.Event, threading.Thread] | None = None
        self._ending: Future[object] | None = None
        self.closed = False

    def submit(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Future[Any]:
        """Starts `work` on the loop, with a copy of the caller's context variables; a `KernaiError` after `close`."""
        import asyncio

        with self._lock:
            # under the lock, so that nothing is submitted to a loop that is being closed
            if self.closed:
                raise KernaiError(f"{self._name}: this event loop is closed, because its run has ended")
            if self._serving is None:
                loop, stopped = asyncio.new_event_loop(), asyncio.Event()
                thread = threading.Thread(target=self._serve, args=(loop, stopped), name=self._name, daemon=True)
                self._serving = loop, stopped, thread  # first, since a signal's handler may raise when it has started
                try:
                    thread.start()
                except RuntimeError:  # no thread can be started
                    self._serving = None
                    loop.close()
                    raise
            return asyncio.run_coroutine_threadsafe(work(), self._serving[0])

    def run(self, awaitable: Awaitable[Any], cancelled: Callable[[], bool] = lambda: False) -> Any:
        """Returns the awaitable's result. When `cancelled()` is true, it is cancelled and `Cancelled` raised."""
        from concurrent.futures import CancelledError, wait

        try:
            if cancelled():
                raise Cancelled
            future = self.submit(lambda: outcome_of(awaitable))
        except BaseException:
            getattr(awaitable, "close", lambda: None)()  # it will not be awaited
            raise
        try:
            while not wait([future], POLL).done:
                INTERRUPTS.look()
                if cancelled():
                    future.cancel()
                    wait([future], GRACE)
                    raise Cancelled
            value, error = future.result()
        except CancelledError:
            if cancelled():
                raise Cancelled from None
            raise
        except BaseException:
            future.cancel()
            raise
        if error is not None:
            raise error
        return value

    def serves_here(self) -> bool:
        return self._serving is not None and self._serving[2] is threading.current_thread()

    def close(self, timeout: float = TIMEOUT, last: Callable[[], Coroutine[Any, Any, object]] | None = None) -> None:
        """Performs `last`, if given, then cancels all remaining work and ends the thread.

        Waits at most `timeout` seconds for `last`, and again for the rest.
        """
        import asyncio

        with self._lock:
            self.closed = True
            if self._serving is None:
                return
            loop, stopped, thread = self._serving
            if self._ending is None:
                self._ending = asyncio.run_coroutine_threadsafe(asyncio.sleep(0) if last is None else last(), loop)
                self._ending.add_done_callback(lambda _: loop.call_soon_threadsafe(stopped.set))
            ending = self._ending
        if thread is threading.current_thread():
            return
        with suppress(Exception):
            ending.result(timeout)
        ending.cancel()  # does nothing if it has ended
        thread.join(timeout)

    def _serve(self, loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> None:
        import asyncio
        from asyncio.events import _get_running_loop

        asyncio.set_event_loop(loop)
        try:
            while not stopped.is_set() and _get_running_loop() is None:  # gevent's threads share one
                # SystemExit and Ctrl-C: raised in a task that a skill started; the skill also gets it, when it awaits
                # the task. CancelledError: a skill has cancelled all tasks. RuntimeError: it has stopped the loop
                with suppress(SystemExit, KeyboardInterrupt, asyncio.CancelledError, RuntimeError):
                    loop.run_until_complete(stopped.wait())
        finally:
            left = asyncio.all_tasks(loop)
            for task in left:
                if not task.cancelling():  # otherwise it is cleaning up
                    task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()  # does not wait for work in threads that a skill started, whose result nobody needs any more
