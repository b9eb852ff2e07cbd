"""Runs a server's event loop until its client leaves, Ctrl-C, SIGTERM, or a call of `stop`.

The first signal ends the server in order and without a traceback. A second one has its usual effect, so that a server
that does not end can be killed. A task that ignores its cancellation is abandoned after `GRACE` seconds.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

#: seconds that cancelled work has to clean up
GRACE = 2.0


def run_to_end(main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Runs ``main(stop)`` on an event loop of its own; in the main thread signals set `stop`."""
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    try:
        asyncio.set_event_loop(loop)
        with _signals(loop, stop):
            loop.run_until_complete(main(stop))
            loop.run_until_complete(_cancel_rest())
            loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def until(stop: asyncio.Event, serving: asyncio.Future[None]) -> None:
    """Waits until `stop` is set or `serving` has ended on its own."""
    stopping: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
    await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()


async def _cancel_rest() -> None:
    """Unlike `asyncio.run`, which waits for ever."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        _, stubborn = await asyncio.wait(left, timeout=GRACE)
        for task in stubborn:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - a warning would help nobody


@contextmanager
def _signals(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> Iterator[None]:
    """In the main thread: the first SIGINT or SIGTERM sets `stop`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {}

    def restore() -> None:
        while before:
            number, handler = before.popitem()
            with suppress(NotImplementedError):
                loop.remove_signal_handler(number)
            signal.signal(number, handler)

    def first(*_: object) -> None:
        restore()
        loop.call_soon_threadsafe(stop.set)

    for number in (signal.SIGINT, signal.SIGTERM):
        # None: set by something other than Python, and cannot be restored
        before[number] = signal.getsignal(number) or signal.SIG_DFL
        try:
            loop.add_signal_handler(number, first)  # also wakes a loop that is about to wait
        except NotImplementedError:  # on Windows, where the loop wakes up anyway
            signal.signal(number, first)
    try:
        yield
    finally:
        restore()
