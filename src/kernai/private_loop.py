"""`PrivateLoop`: one event loop per synchronous run, for its async skills.

It lives in a thread of its own, started on first use, so it works also where a loop is running already (a notebook),
and all async skills of a run share it: a client session opened by one is usable by the next.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio


class PrivateLoop:
    """Thread-safe; costs nothing until the first awaitable."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """Waits for the awaitable in the caller's thread, with the caller's context variables."""
        import asyncio

        future = asyncio.run_coroutine_threadsafe(_await(awaitable), self._running())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancels what still runs on the loop and ends its thread."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _running(self) -> asyncio.AbstractEventLoop:
        import asyncio

        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(self._loop,), name="kernai-async", daemon=True)
                self._thread.start()
            return self._loop


async def _await(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    import asyncio

    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
