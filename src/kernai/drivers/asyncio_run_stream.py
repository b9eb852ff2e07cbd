"""`AsyncRunStream`: a run as an asynchronous iterator of its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, Self

from kernai._util.worker_pool import outcome_of
from kernai.drivers.answer_stream import INSIDE, AnswerText, EventStream, PartialAnswer, inside
from kernai.events import Event
from kernai.loop.root import Cancellation
from kernai.loop.run_state import Run
from kernai.values.result import Output_co

#: takes a callback for events; returns the run's state, and the coroutine that drives the run to its end
Begin = Callable[[Callable[["Event"], Awaitable[None]]], "tuple[Run, Coroutine[Any, Any, object]]"]


class AsyncRunStream(EventStream[Output_co]):
    """Iterates over a run's events. The run begins when you ask for the first event. The last event is the root's
    `result`; then `.result` has the `Result`.

    The run waits for its consumer. Leaving ``async with``, calling `aclose()`, or dropping the stream cancels the run
    at once.
    """

    def __init__(self, begin: Begin, cancellation: Cancellation) -> None:
        self._begin = begin
        self._channel = _Channel(cancellation)
        self._task: asyncio.Task[BaseException | None] | None = None

    async def aclose(self) -> None:
        """Cancels the run and waits until it has ended. Does nothing if it has already ended.

        Called from within the run (an async callback, an async skill), it only cancels.
        """
        self._channel.cancellation.set()
        self._channel.leave()
        if self._channel in INSIDE.get():
            return
        task = self._start()
        if self._run is not None and self._run.steps and not task.done():
            task.cancel()
        again: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:  # some frameworks cancel at each await; keep waiting
                again = error
        if again is not None:
            raise again

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        task = self._start()
        event = await self._channel.take()
        if event is None:
            failure = await asyncio.shield(task)  # the run ends even if the consumer is cancelled
            if failure is not None:
                raise failure
            raise StopAsyncIteration
        return event

    def text(self) -> AsyncIterator[str]:
        """See `RunStream.text`."""
        return AsyncPieces(self, AnswerText().take)

    def partial(self) -> AsyncIterator[Any]:
        """See `RunStream.partial`."""
        _ = self._start()
        assert self._run is not None
        return AsyncPieces(self, PartialAnswer(self._run.answer_type).take)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # dropped without aclose(): the run must not wait for a consumer that is gone
        if self._task is not None and not self._task.done():
            self._channel.cancellation.set()
            with suppress(RuntimeError):  # the event loop is closed, and the task with it
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    def _start(self) -> asyncio.Task[BaseException | None]:
        if self._task is None:
            self._run, driving = self._begin(self._channel.give)
            self._task = asyncio.ensure_future(_to_the_end(driving, self._channel))
            # If the event loop ends before the task begins, Python would warn that the coroutine was never awaited.
            self._task.add_done_callback(lambda _: driving.close())
        return self._task


class AsyncPieces(AsyncIterator[Any]):
    """The pieces in a stream's events. An async generator would end if a wait for its next piece is cancelled."""

    def __init__(self, events: AsyncRunStream[Any], take: Callable[[Event], Iterator[Any]]) -> None:
        self._events, self._take = events, take
        self._ready: Iterator[Any] = iter(())

    async def __anext__(self) -> Any:
        while True:
            for piece in self._ready:
                return piece
            self._ready = self._take(await anext(self._events))

    async def aclose(self) -> None:
        """Does nothing; for `contextlib.aclosing`."""


async def _to_the_end(driving: Awaitable[object], channel: _Channel) -> BaseException | None:
    """Drives the run, as a task. Returns the exception that the run raised (an error in the host's own code).

    It does not refer to the stream, so a dropped stream is freed, and its `__del__` cancels the run.
    """
    INSIDE.set(inside(channel))  # for the run's task and all tasks that it starts
    run = asyncio.ensure_future(outcome_of(driving))  # SystemExit from a task would end the consumer's event loop
    is_ending = False
    while not run.done():
        try:
            await asyncio.wait([run])
        except asyncio.CancelledError:
            # the stream was closed or dropped, or the event loop ends: nobody takes events, so nobody may wait for that
            channel.leave()
            if not is_ending:  # only once, so that the run can end undisturbed
                is_ending = run.cancel()
    channel.end()
    return None if run.cancelled() else run.result()[1]


class _Channel:
    """Passes events to the consumer, one at a time; the run waits until each is taken."""

    def __init__(self, cancellation: Cancellation) -> None:
        self.cancellation = cancellation
        self._event: Event | None = None
        self.ended = self._left = False
        self._there, self._room = asyncio.Event(), asyncio.Event()

    async def give(self, event: Event) -> None:
        while self._event is not None and not self._left:
            self._room.clear()
            await self._room.wait()
        if not self._left:
            self._event = event
            self._there.set()

    async def take(self) -> Event | None:
        """The next event. After the end, returns None to every consumer."""
        while self._event is None and not self.ended:
            self._there.clear()
            await self._there.wait()
        event, self._event = self._event, None
        self._room.set()
        return event

    def end(self) -> None:
        """Notes that the run has ended: after the last event, `take` returns None."""
        self.ended = True
        self._there.set()

    def leave(self) -> None:
        """Notes that the consumer has left: events are dropped, and nobody waits."""
        self._left, self._event = True, None
        self._room.set()
