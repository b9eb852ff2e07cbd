"""`PrivateLoop`: one event loop per synchronous run, for its async skills.

It lives in a thread of its own, started on first use, so it works also where a loop is running already (a notebook),
and all async skills of a run share it: a client session opened by one is usable by the next.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from kernai.errors import RunCancelledError

if TYPE_CHECKING:
    import asyncio


class PrivateLoop:
    """Thread-safe; costs nothing until the first awaitable."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """Waits for the awaitable in the caller's thread, with the caller's context variables."""
        import asyncio

        with self._lock:
            # under the lock, so that nothing is put onto a loop that is being closed
            if self._closed:
                _drop(awaitable)
                raise RunCancelledError("the run has ended")
            future = asyncio.run_coroutine_threadsafe(_outcome(awaitable), self._running())
        try:
            value, error = future.result()
        except BaseException:
            future.cancel()
            raise
        if error is not None:
            raise error
        return value

    def serves_here(self) -> bool:
        """Whether the current thread is the loop's own."""
        thread = self._thread
        return thread is not None and thread.ident == threading.get_ident()

    def cancel(self) -> None:
        """Cancels what runs on the loop now, for the run was interrupted; those that wait for it get an error."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(_cancel_all, self._loop)

    def close(self) -> None:
        """Cancels what still runs on the loop and ends its thread. Nothing runs on it afterwards."""
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _running(self) -> asyncio.AbstractEventLoop:
        import asyncio

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_serve, args=(self._loop,), name="kernai-async", daemon=True)
            self._thread.start()
        return self._loop


async def _outcome(awaitable: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """What it comes to, or what ended it: asyncio would let SystemExit and Ctrl-C end the loop, and all that waits."""
    try:
        return await awaitable, None
    except (SystemExit, KeyboardInterrupt) as error:
        return None, error


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    import asyncio

    for task in asyncio.all_tasks(loop):
        task.cancel()


def _drop(awaitable: Awaitable[Any]) -> None:
    close = getattr(awaitable, "close", None)
    if callable(close):
        close()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    import asyncio

    asyncio.set_event_loop(loop)
    try:
        _run_until_stopped(loop)
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


def _run_until_stopped(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        try:
            return loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            # from a task that a skill has spawned; it reaches the skill too, through what the skill awaits
            continue
