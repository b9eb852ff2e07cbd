"""`AsyncRunStream`: a run as an asynchronous iterator of its events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING

from kernai.errors import KernaiError

if TYPE_CHECKING:
    from typing import Self

    from kernai.drivers.cancellation import Cancellation
    from kernai.loop.run_state import Scope
    from kernai.values.event import Event
    from kernai.values.result import Result

#: given a callback for events, makes the run: its scope, and what drives it to its end
Begin = Callable[[Callable[["Event"], Awaitable[None]]], "tuple[Scope, Awaitable[object]]"]


_inside: ContextVar[AsyncRunStream | None] = ContextVar("kernai_inside_stream", default=None)


class AsyncRunStream:
    """The run begins with the first event asked for; the last one is the root's `result`, then `.result`.

    The run waits for its consumer. Leaving ``async with``, or `aclose()`, cancels it at once.
    """

    def __init__(self, begin: Begin, cancellation: Cancellation) -> None:
        self._begin = begin
        self._cancellation = cancellation
        self._events: asyncio.Queue[Event | None] = asyncio.Queue(maxsize=1)
        self._scope: Scope | None = None
        self._task: asyncio.Task[None] | None = None
        self._left = False

    @property
    def result(self) -> Result:
        """How the run ended. `KernaiError` as long as it has not: iterate to the end, or `aclose()`."""
        result = None if self._scope is None else self._scope.result
        if result is None:
            raise KernaiError("the run has not ended: iterate over the stream to its end, or close it")
        return result

    async def aclose(self) -> None:
        """Cancels the run and waits until it has ended; does nothing when it has.

        From within the run (an async callback, an async skill) it only cancels.
        """
        self._cancellation.set()
        self._leave()
        if _inside.get() is self:
            return
        if self._task is None:
            self._start()
        assert self._task is not None
        if self._scope is not None and self._scope.steps and not self._task.done():
            self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.exception()  # looked at, so that asyncio does not complain that nobody has

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if self._task is None:
            self._start()
        event = None if self._left else await self._events.get()
        if event is None:
            self._left = True
            assert self._task is not None
            # what the run raised (a mistake of the host's own code) is raised here
            await self._task
            raise StopAsyncIteration
        return event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def _start(self) -> None:
        self._scope, driving = self._begin(self._give)
        self._task = asyncio.ensure_future(self._run(driving))

    async def _run(self, driving: Awaitable[object]) -> None:
        _inside.set(self)  # for the run's task and all that it starts: a task copies the context
        run = asyncio.ensure_future(driving)
        try:
            await asyncio.wait([run])
        except asyncio.CancelledError:
            # closed, or dropped and its event loop ends: nobody takes events any more, so nobody may wait to give one
            self._leave()
            run.cancel()
            await asyncio.wait([run])
        await self._give(None)
        if not run.cancelled():
            run.result()

    async def _give(self, event: Event | None) -> None:
        """The run waits here until its consumer has taken the event before."""
        if not self._left:
            await self._events.put(event)

    def _leave(self) -> None:
        self._left = True
        while not self._events.empty():
            self._events.get_nowait()
        # wakes a consumer that is waiting for the next event: there is none
        self._events.put_nowait(None)
