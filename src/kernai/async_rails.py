"""`AsyncRails`: the rails of one root run under asyncio.

Guarantees: as in `rails`; callbacks are called on the event loop, may be async functions, and are waited for. An event
that a worker thread emits is delivered before the worker goes on, so a slow observer holds the run back.
Assumes: it is made and used on one event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

from kernai.outbox import Outbox
from kernai.rails import Callback, Records, TaskCompletions, TaskHook

if TYPE_CHECKING:
    from kernai.event import Event


class AsyncRails:
    """Delivers events on the event loop on which it was made."""

    def __init__(self, records: Records, callbacks: Sequence[Callback], on_task_complete: TaskHook | None) -> None:
        self._records = records
        self._callbacks = callbacks
        self._tasks = None if on_task_complete is None else TaskCompletions(on_task_complete)
        self._order = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._flushing: set[asyncio.Task[None]] = set()

    def outbox(self) -> Outbox:
        """An outbox that delivers here."""
        return _AsyncOutbox(self, listening=bool(self._callbacks))

    async def flush(self, outbox: Outbox) -> None:
        """Delivers what waits in the outbox."""
        if not outbox.waiting:
            return
        async with self._order:
            batch, outbox.waiting = outbox.waiting, []
            done = 0
            try:
                for event in batch:
                    done += 1
                    await self._deliver(event)
            finally:
                # cancelled while a callback was awaited: what is left is not lost
                outbox.waiting[:0] = batch[done:]

    def caught_up(self, outbox: Outbox) -> CaughtUp:
        """Awaiting it waits until observers have all that was streamed so far."""
        return CaughtUp(self, outbox)

    async def settle(self) -> None:
        """Waits for deliveries that are under way."""
        while self._flushing:
            await asyncio.wait(self._flushing)

    def deliver_soon(self, event: Event, outbox: Outbox) -> None:
        """From the event loop, which cannot wait for itself: the event goes out in its place, at once or shortly."""
        outbox.waiting.append(event)
        if not self._flushing:
            task = self._loop.create_task(self.flush(outbox))
            self._flushing.add(task)
            task.add_done_callback(self._flushing.discard)

    def deliver_from(self, event: Event, outbox: Outbox) -> None:
        """From whatever thread this is."""
        if threading.get_ident() == self._thread:
            self.deliver_soon(event, outbox)
        else:
            asyncio.run_coroutine_threadsafe(self._deliver_in_order(event), self._loop).result()

    async def _deliver_in_order(self, event: Event) -> None:
        async with self._order:
            await self._deliver(event)

    async def _deliver(self, event: Event) -> None:
        self._records.keep((event,))
        for callback in self._callbacks:
            await self._call(event, callback, event)
        if self._tasks is not None and (arguments := self._tasks.after(event)) is not None:
            await self._call(event, self._tasks.hook, **arguments)

    async def _call(self, event: Event, observer: Callable[..., Any], *given: Any, **named: Any) -> None:
        try:
            called = observer(*given, **named)
            if hasattr(called, "__await__"):
                await called
        except Exception as error:  # noqa: BLE001 - a callback's mistake is not the run's
            self._records.callback_failed(event, error)


class CaughtUp:
    """What `on_chunk` gives a provider's `acall`: it may be awaited, to be held back by slow observers, or ignored."""

    __slots__ = ("_outbox", "_rails")

    def __init__(self, rails: AsyncRails, outbox: Outbox) -> None:
        self._rails = rails
        self._outbox = outbox

    def __await__(self) -> Generator[Any, None, None]:
        return self._rails.flush(self._outbox).__await__()


class _AsyncOutbox(Outbox):
    __slots__ = ("_rails",)

    def __init__(self, rails: AsyncRails, *, listening: bool) -> None:
        super().__init__(lambda event: rails.deliver_from(event, self), listening=listening)
        self._rails = rails

    def beside(self) -> Outbox:
        return _AsyncOutbox(self._rails, listening=self.listening)
