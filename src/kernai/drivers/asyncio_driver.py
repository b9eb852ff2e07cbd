"""The asynchronous driver: performs the same loop's effects with asyncio.

Guarantees: async skills and a provider's `acall` run on the event loop; sync skills and providers without an `acall`
run in worker threads, in a copy of the caller's context variables; behind a sync skill that took less than `BRIEF`, the
event loop waits as long for the next one before it turns to other work. Every event is delivered before the effect that
follows it. Spawned work is an asyncio task of its own; it has ended when the loop ends. A call that is under way when
the run is to stop is cancelled; a sync one is left to end by itself in its thread.
Assumes: it is used on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from kernai.drivers.asyncio_delivery import CaughtUp
from kernai.drivers.policy import POLL, Driver, Line, answered, end_failed
from kernai.loop.effects import (
    CallModel,
    CallProtocol,
    CallSkill,
    Cancelled,
    Commit,
    Completion,
    Effect,
    Join,
    NotBegun,
    NotPerformed,
    Sleep,
)
from kernai.registry.provider import Provider
from kernai.worker_pool import WorkerPool, in_worker

if TYPE_CHECKING:
    from kernai.drivers.asyncio_delivery import AsyncioDelivery
    from kernai.loop.outbox import Outbox
    from kernai.loop.root import Root

#: what counts as a brief call of a sync skill, in seconds. To be woken by another thread takes the event loop a quarter
BRIEF = 0.0002


class AsyncioDriver(Driver):
    """Drives one root run and everything below it."""

    def __init__(self, root: Root, delivery: AsyncioDelivery) -> None:
        super().__init__(root)
        self._delivery = delivery
        self._pool = WorkerPool(keep=True)
        self._hold = 0.0  # for the next call of a sync skill
        self._store: WorkerPool | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._look: asyncio.TimerHandle | None = None
        #: the tasks that sit in a call just now, and those of them that were told to let go of it
        self._calling: set[asyncio.Task[Any]] = set()
        self._breaking: set[asyncio.Task[Any]] = set()
        self._root_task: asyncio.Task[Any] | None = None
        self._root_is_cancelled = False
        self._cancelled_before = 0  # a run may be made while its task cleans up

    async def run(self, line: Line) -> Any:
        """Drives the root's line to its end."""
        self._root_task = asyncio.current_task()
        self._cancelled_before = 0 if self._root_task is None else self._root_task.cancelling()
        if self.root.cancellation.must_be_watched:
            self._look_later()
        value = None
        try:
            value = await self._drive(line)
        except NotPerformed:
            pass  # the failure that it stands for is raised below
        finally:
            if self._look is not None:
                self._look.cancel()
            self._pool.close()
            if self._store is not None:
                self._store.close()
            self.root.runs.clear()
            await self._delivery.settle()
        if self.failure is not None:
            raise self.failure
        if self._root_is_cancelled:
            raise asyncio.CancelledError  # the call that was under way has made another error of it
        return value

    def stop(self) -> None:
        super().stop()
        for task in self._tasks:
            if not task.cancelling():
                task.cancel()
        self._delivery.interrupt()

    def _look_later(self) -> None:
        self._look = asyncio.get_running_loop().call_later(POLL, self._break_off_calls)

    def _break_off_calls(self) -> None:
        """Where the run is to stop, for a reason that comes without a word, ends the calls that are under way."""
        if self.root.cancellation.is_set():
            for task in self._calling - self._breaking:
                self._breaking.add(task)
                task.cancel()
        self._look_later()

    async def _drive(self, line: Line) -> Any:
        """Performs each effect of the line and sends back what came of it, until its last loop has ended."""
        outcome = None
        error: BaseException | None = None
        while True:
            effect = line.advance(outcome, error)
            outcome = error = None
            outbox = line.loops[-1][1]
            if outbox.waiting:
                error = await self._flush(outbox)
            if effect is None:
                await self._end_spawned(line)
                ended = line.leave()
                if not line.loops:
                    if ended.error is not None:
                        raise ended.error
                    return ended.value
                outcome, error = ended.value, ended.error
            elif error is None or isinstance(effect, Commit):  # what was told is appended also where a callback failed
                try:
                    outcome = await self._performed(effect, line)
                except BaseException as raised:  # noqa: BLE001 - it belongs to the loop, which decides
                    error = error or self._error_of(raised, effect)

    def _error_of(self, raised: BaseException, effect: Effect) -> BaseException:
        task = asyncio.current_task()
        is_stores_own = isinstance(effect, Commit) and not isinstance(raised, asyncio.CancelledError)
        if task is None or not self._cancellations(task) or is_stores_own:
            # work beside the root's line ends with its own SystemExit, as a thread does; Ctrl-C may strike anywhere
            beside = task in self._tasks and not isinstance(raised, KeyboardInterrupt)
            return self.outcome_error(raised, effect, beside=beside)
        self._delivery.hurry()
        if isinstance(effect, Commit):  # what was announced is not begun any more, so it took no effect
            if task not in self._tasks:
                return self.delivery_failed(raised)
            self.stop()
            return NotPerformed()
        self.stop()
        self._root_is_cancelled = self._root_is_cancelled or task is self._root_task
        return raised

    def _cancellations(self, task: asyncio.Task[Any]) -> int:
        """How often a task of the run was cancelled since the run began."""
        return max(task.cancelling() - (self._cancelled_before if task is self._root_task else 0), 0)

    async def _flush(self, outbox: Outbox) -> NotPerformed | None:
        """Delivers what waits. Where that fails, the events behind are delivered all the same, and the run ends."""
        failed: NotPerformed | None = None
        while outbox.waiting:
            try:
                await self._delivery.flush(outbox)
            except BaseException as failure:  # noqa: BLE001 - it reaches the caller when all has ended
                if isinstance(failure, asyncio.CancelledError):
                    self._delivery.hurry()
                failed = failed or self.delivery_failed(failure)
        return failed

    async def _performed(self, effect: Effect, line: Line) -> Any:
        if isinstance(effect, (CallModel, CallSkill, CallProtocol)):
            return await self._call(effect)
        if isinstance(effect, Sleep):
            return await self._sleep(effect)
        if isinstance(effect, Commit):
            return await self._commit()
        return await self._join(line) if isinstance(effect, Join) else self.perform_at_once(effect, line)

    async def _call(self, effect: CallModel | CallSkill | CallProtocol) -> Any:
        task = asyncio.current_task()
        assert task is not None
        self._calling.add(task)
        try:
            if isinstance(effect, CallModel):
                return await self._call_model(effect)
            self.check_wanted()
            function, given, context, is_async = self.call_of(effect)
            call = partial(function, given, context)
            value = call() if is_async else await self._call_sync(call)
            return await value if type(value) is not str and hasattr(value, "__await__") else value
        except asyncio.CancelledError:
            if task in self._breaking and self._cancellations(task) == 1:
                raise Cancelled from None
            raise
        finally:
            self._calling.discard(task)
            if task in self._breaking:
                self._breaking.discard(task)
                task.uncancel()

    async def _call_sync(self, call: Callable[[], Any]) -> Any:
        hold, self._hold = self._hold, 0.0

        def timed() -> Any:
            began = perf_counter()
            try:
                return call()
            finally:
                if perf_counter() - began < BRIEF:
                    self._hold = BRIEF

        return await in_worker(self._pool, timed, hold=hold, unbegun=NotBegun)

    async def _call_model(self, effect: CallModel) -> Any:
        run, provider, stream = self.begin_call(effect)
        given = effect.messages, effect.model, effect.generation, stream
        try:
            stream.caught_up = CaughtUp(self._delivery, run.outbox)
            if type(provider).acall is Provider.acall:
                answer: Awaitable[Any] = in_worker(self._pool, lambda: provider.call(*given))
            else:
                answer = provider.acall(*given)
            if effect.timeout is None:
                return answered(run, effect, await answer)
            limit = asyncio.timeout(effect.timeout)
            try:
                async with limit:
                    return answered(run, effect, await answer)
            except TimeoutError:
                if limit.expired():
                    raise stream.timed_out() from None
                raise
        except BaseException as error:
            end_failed(run, provider, stream, error)
            raise

    async def _join(self, line: Line) -> Completion:
        ended: Completion = await line.completions.get()
        return ended

    async def _sleep(self, effect: Sleep) -> None:
        for seconds in self.pauses(effect):
            await asyncio.sleep(seconds)

    async def _commit(self) -> None:
        """In a thread of the store's own: a connection is used where it was made, and the event loop goes on.

        It is waited for also where the run is cancelled meanwhile: what the run has told is in the store when it ends.
        """
        assert self.root.durable is not None
        self._store = self._store or WorkerPool(1, keep=True)
        await in_worker(self._store, self.root.durable.commit, to_the_end=True)

    def spawn(self, spawned: Line, line: Line) -> None:
        if line.completions is None:
            line.completions = asyncio.Queue()
        task = asyncio.ensure_future(self._drive_spawned(spawned))
        line.spawned.append(task)
        self._tasks.add(task)
        task.add_done_callback(partial(self._spawned_ended, spawned, line))

    async def _drive_spawned(self, spawned: Line) -> None:
        """The value or the error of spawned work, which only its parent tells."""
        try:
            spawned.completion = Completion(spawned.key, await self._drive(spawned))
        except BaseException as error:  # noqa: BLE001 - told by the parent
            spawned.completion = Completion(spawned.key, error=error)

    def _spawned_ended(self, spawned: Line, line: Line, task: asyncio.Task[None]) -> None:
        """A task that was cancelled before its first line has no word of its own; one that was in its last line has."""
        self._tasks.discard(task)
        line.completions.put_nowait(spawned.completion or Completion(spawned.key, error=NotPerformed()))

    async def _end_spawned(self, line: Line) -> None:
        """Waits for what was not waited for, because the run was cancelled again while it waited."""
        while left := [task for task in line.spawned if not task.done()]:
            for task in left:
                task.cancel()
            try:
                await asyncio.wait(left)
            except asyncio.CancelledError as again:
                self.failure = self.failure or again
        line.spawned.clear()
