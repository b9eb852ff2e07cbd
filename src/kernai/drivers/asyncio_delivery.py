"""`AsyncioDelivery`: delivers a root run's events under asyncio.

Guarantees: those of `delivery`. Also, callbacks run on the event loop, may be async functions, and are awaited. An
event emitted by a worker thread is delivered before the worker continues, so a slow observer slows down the run.
Assumes: it is created and used on one event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

from kernai.drivers.delivery import EventDelivery
from kernai.drivers.driver import POLL
from kernai.events import Row
from kernai.loop.root import Outbox
from kernai.loop.run_state import Run

#: how long all callbacks together may take for the last events of a cancelled run, in seconds
CALLBACK_GRACE = 1.0


class AsyncioDelivery(EventDelivery):
    """Delivers events on the event loop on which it was created."""

    _closed = False
    #: when to stop awaiting callbacks, by the event loop's clock; None unless the run was cancelled
    _deadline: float | None = None
    #: called soon after an observer has failed, when no task is at work
    on_failure: Callable[[], None] | None = None

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        if self.observed:
            #: held while an event is delivered, so that callbacks are called one at a time
            self._order = asyncio.Lock()
        #: the tasks that deliver to observers what was emitted during an effect
        self._flushing: dict[Outbox, asyncio.Task[None]] = {}
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    async def flush(self, outbox: Outbox) -> None:
        """Delivers the waiting rows. If cancelled, the rest stays in the outbox."""
        if not self.observed:
            self.write_all(outbox)
            return
        async with self._order:
            # one by one, so that a cancellation during a callback leaves the rest in the outbox
            while outbox.waiting:
                await self._deliver(outbox.waiting.popleft())
        if self._flushing.get(outbox) is asyncio.current_task():  # it ends here, without waiting again
            del self._flushing[outbox]

    def deliver_now(self, row: Row, run: Run) -> None:
        """Delivers one event, unless its run has ended; callable from any thread."""
        if threading.get_ident() == self._thread:
            _ = self._deliver_soon(row, run.outbox)
        elif not self._closed:
            self._deliver_and_wait(row, run)

    def observer_failed(self, who: str, row: Row, error: BaseException) -> None:
        super().observer_failed(who, row, error)
        if self.on_failure is not None:
            self._loop.call_soon(self.on_failure)

    def hurry(self) -> None:
        """Sets a deadline for callbacks, because the run was cancelled. They still get all events."""
        self._deadline = self._deadline or self._loop.time() + CALLBACK_GRACE

    def interrupt(self) -> None:
        """Cancels deliveries in progress, because the run was cancelled and an observer may never return."""
        for task in self._flushing.values():
            task.cancel()

    async def settle(self) -> None:
        """Waits for deliveries in progress. Later events from workers are dropped, since the run has ended."""
        while busy := [task for task in self._flushing.values() if not task.done()]:
            await asyncio.wait(busy)
        self._closed = True

    def _deliver_soon(self, row: Row, outbox: Outbox) -> asyncio.Task[None] | None:
        """Delivers an event in order: at once, or in a task if there are observers, for it may have to await them."""
        if not self.observed:
            self.write_all(outbox)
            self.write(row)
            return None
        outbox.waiting.append(row)
        task = self._flushing.get(outbox)
        if task is None or task.done():
            task = self._flushing[outbox] = self._loop.create_task(self.flush(outbox))
        return task

    def _deliver_and_wait(self, row: Row, run: Run) -> None:
        begun: asyncio.Task[None] | None = None
        failure: BaseException | None = None
        delivered = threading.Event()

        def begin() -> None:  # on the event loop, where the run cannot end at the same time
            nonlocal begun, failure
            try:
                if not self._closed and run.result is None:
                    begun = self._deliver_soon(row, run.outbox)
            except BaseException as error:  # noqa: BLE001 - raised in the worker
                failure = error
            if begun is None:
                delivered.set()
            else:
                begun.add_done_callback(lambda _: delivered.set())

        # the event loop is closed, or the run was cancelled, which the worker notices at its next chunk
        with suppress(RuntimeError, asyncio.CancelledError):
            self._loop.call_soon_threadsafe(begin)
            while not delivered.wait(POLL):
                if self._closed:  # an event loop that ends with the run may never begin the delivery
                    return
            if begun is not None:
                begun.result()
        if failure is not None:
            raise failure

    async def _deliver(self, row: Row) -> None:
        self.write(row)
        for call in self.calls_for(row):
            await self._call(row, call)

    async def _call(self, row: Row, call: Callable[[], Any]) -> None:
        try:
            called = call()
            if not hasattr(called, "__await__"):
                return
            if self._deadline is None:
                await called
                return
            async with asyncio.timeout_at(self._deadline):
                await called
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # the run was not cancelled: something that the callback awaited was
            self.observer_failed("callback", row, error)
        except BaseException as error:  # noqa: BLE001 - `observer_failed` decides
            self.observer_failed("callback", row, error)


class CaughtUp:
    """Returned by `on_chunk` to a provider's `acall`. Awaiting it waits for slow observers; it may be ignored."""

    __slots__ = ("_delivery", "_outbox")

    def __init__(self, delivery: AsyncioDelivery, outbox: Outbox) -> None:
        self._delivery, self._outbox = delivery, outbox

    def __await__(self) -> Generator[Any, None, None]:
        return self._delivery.flush(self._outbox).__await__()
