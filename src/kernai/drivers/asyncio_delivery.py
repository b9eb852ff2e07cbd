"""`AsyncioDelivery`: delivers a root run's events under asyncio.

Guarantees: those of `delivery`. Also, callbacks run on the event loop, may be async functions, and are awaited. An
event emitted by a worker thread is delivered before the worker continues, so a slow observer slows down the run.
Assumes: it is created and used on one event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

from kernai.drivers.delivery import Callback, EventWriter, TaskHook, arguments_of
from kernai.drivers.driver import POLL
from kernai.events import Event

if TYPE_CHECKING:
    from kernai.events import Row
    from kernai.loop.root import Outbox


#: how long all callbacks together may take for the last events of a cancelled run, in seconds
CALLBACK_GRACE = 1.0
_ANY_ORDER = nullcontext()
_NO_LOOP = (
    "kernai's async functions need a running asyncio event loop; with trio, run a sync one in a thread, as in "
    "await trio.to_thread.run_sync(kernai.execute, agent, input)"
)


def running_loop() -> asyncio.AbstractEventLoop:
    """Returns the running event loop. Raises `RuntimeError`, with what to do under trio, if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(_NO_LOOP) from None


class AsyncioDelivery:
    """Delivers events on the event loop on which it was created."""

    # created on first use, always on the event loop: most runs need neither
    _flushing: set[asyncio.Task[None]] | None = None
    _soon: set[Outbox] | None = None
    _closed = False
    #: when to stop awaiting callbacks, by the event loop's clock; None unless the run was cancelled
    _deadline: float | None = None

    def __init__(self, writer: EventWriter, callbacks: Sequence[Callback], on_task_complete: TaskHook | None) -> None:
        self.listening = bool(callbacks)
        self._writer = writer
        self._callbacks = callbacks
        self._on_task_complete = on_task_complete
        self._observed = self.listening or on_task_complete is not None
        self.kept = None if self._observed else writer.kept
        #: held while an event is delivered, so that callbacks are called one at a time
        self._order = asyncio.Lock() if self._observed else _ANY_ORDER
        self._loop = running_loop()
        self._thread = threading.get_ident()

    def caught_up(self, outbox: Outbox) -> Awaitable[None]:
        """The value that `on_chunk` returns to a provider's `acall`, for the run with this outbox."""
        return CaughtUp(self, outbox) if self._observed else _NOBODY

    async def flush(self, outbox: Outbox) -> None:
        """Delivers the waiting rows. If cancelled, the rest stays in the outbox."""
        if not self._observed:
            self._writer.write_all(outbox)
            return
        async with self._order:
            # one by one, so that a cancellation during a callback leaves the rest in the outbox
            while outbox.waiting:
                await self._deliver(outbox.waiting.popleft())

    def deliver_now(self, event: Row, outbox: Outbox) -> None:
        """Delivers one event; callable from any thread."""
        if outbox.is_kept or (event.role == "live" and not self._observed):  # a live event is at most logged
            self._writer.write(event)
        elif threading.get_ident() == self._thread:
            self._deliver_soon(event, outbox)
        elif not self._closed:
            self._deliver_and_wait(event)

    def hurry(self) -> None:
        """Sets a deadline for callbacks, because the run was cancelled. They still get all events."""
        self._deadline = self._deadline or self._loop.time() + CALLBACK_GRACE

    def interrupt(self) -> None:
        """Cancels deliveries in progress, because the run was cancelled and an observer may never return."""
        for task in self._flushing or ():
            task.cancel()

    async def settle(self) -> None:
        """Waits for deliveries in progress. Later events from workers are dropped, since the run has ended."""
        while self._flushing:
            await asyncio.wait(self._flushing)
        self._closed = True

    def _deliver_soon(self, event: Row, outbox: Outbox) -> None:
        """Delivers an event emitted on the event loop, which cannot wait for this, in order and as soon as possible."""
        outbox.waiting.append(event)
        self._soon = self._soon or set()
        if outbox not in self._soon:
            self._soon.add(outbox)
            self._track(self._loop.create_task(self._flush_soon(outbox, self._soon)))

    async def _flush_soon(self, outbox: Outbox, soon: set[Outbox]) -> None:
        try:
            await self.flush(outbox)
        finally:
            soon.discard(outbox)

    def _deliver_and_wait(self, event: Row) -> None:
        begun: list[asyncio.Task[None]] = []
        delivered = threading.Event()

        def begin() -> None:
            if not self._closed:
                task = self._loop.create_task(self._deliver_in_order(event))
                self._track(task)
                begun.append(task)
                task.add_done_callback(lambda _: delivered.set())

        # the event loop is closed, or the run was cancelled, which the worker notices at its next chunk
        with suppress(RuntimeError, asyncio.CancelledError):
            self._loop.call_soon_threadsafe(begin)
            while not delivered.wait(POLL):
                if self._closed:  # an event loop that ends with the run may never begin the delivery
                    return
            begun[0].result()

    def _track(self, task: asyncio.Task[None]) -> None:
        self._flushing = self._flushing or set()
        self._flushing.add(task)
        task.add_done_callback(self._flushing.discard)

    async def _deliver_in_order(self, event: Row) -> None:
        async with self._order:
            if not self._closed:
                await self._deliver(event)

    async def _deliver(self, event: Row) -> None:
        self._writer.write(event)
        for callback in self._callbacks:
            await self._call(event, callback, Event.of(event))
        if self._on_task_complete is not None and (arguments := arguments_of(event)) is not None:
            await self._call(event, self._on_task_complete, **arguments)

    async def _call(self, event: Row, observer: Callable[..., Any], *given: Any, **named: Any) -> None:
        try:
            called = observer(*given, **named)
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
            self._writer.observer_failed("callback", event, error)
        except BaseException as error:  # noqa: BLE001 - `observer_failed` decides
            self._writer.observer_failed("callback", event, error)


class CaughtUp:
    """Returned by `on_chunk` to a provider's `acall`. Awaiting it waits for slow observers; it may be ignored."""

    __slots__ = ("_delivery", "_outbox")

    def __init__(self, delivery: AsyncioDelivery | None = None, outbox: Outbox | None = None) -> None:
        self._delivery = delivery
        self._outbox = outbox

    def __await__(self) -> Generator[Any, None, None]:
        if self._delivery is not None and self._outbox is not None:
            yield from self._delivery.flush(self._outbox).__await__()


#: for runs without observers
_NOBODY = CaughtUp()
