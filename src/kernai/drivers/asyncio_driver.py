"""The asynchronous driver: performs the same loop's effects with asyncio.

Guarantees: async skills and a provider's `acall` run on the event loop. Sync skills and providers without an `acall`
run in worker threads, in a copy of the caller's context variables. After a sync skill that took less than `BRIEF`, the
event loop waits up to that long for the next one before it does other work. Every event is delivered before the effect
that follows it is performed. Spawned work runs in an asyncio task of its own, and has ended when the loop ends. When
the run must stop, calls in progress are cancelled; a sync call is abandoned in its thread.
Assumes: it is used on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, copy_context
from functools import partial
from time import perf_counter
from types import CoroutineType
from typing import Any

from kernai._util.worker_pool import WorkerPool, in_worker, outcome_of
from kernai.drivers.asyncio_delivery import AsyncioDelivery, CaughtUp
from kernai.drivers.driver import POLL, Driver, Stack
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
    advance,
)
from kernai.loop.root import Outbox
from kernai.registry.provider import Provider

#: a sync skill's call is brief if it takes less than this, in seconds. Waking the event loop takes a quarter of it
BRIEF = 0.0002
#: how often a run is polled that only its timeout can end, in seconds: thousands may wait at once
TIMED_POLL = 1.0
#: how many causes of an error are followed; they may form a cycle
_MOST_CAUSES = 100


class AsyncioDriver(Driver):
    """Drives one root run and everything below it.

    Thousands of drivers may wait for their models at once, and the garbage collector visits every object they hold. So
    objects that most runs do not need are created on first use, which is always on the event loop and needs no lock.
    """

    _pool: WorkerPool | None = None
    _store: WorkerPool | None = None
    #: the tasks of spawned work, each with the stack that waits for it
    _tasks: dict[asyncio.Task[None], Stack] = {}  # noqa: RUF012 - never changed
    #: tasks with a call in progress, and whether `_cancel_calls` cancelled it; None if only the run's task can end it
    _calling: dict[asyncio.Task[Any], bool] | None = None
    _next_poll: asyncio.TimerHandle | None = None
    _hold = 0.0  # how long the event loop may wait for the next sync skill
    _root_task: asyncio.Task[Any] | None = None
    _root_is_cancelled = False
    _cancelled_before = 0  # cancellations of the root's task before the run: it may run while its task cleans up
    _delivery: AsyncioDelivery

    async def run(self, stack: Stack) -> Any:
        self._root_task = asyncio.current_task()
        self._cancelled_before = 0 if self._root_task is None else self._root_task.cancelling()
        if not self.root.cancellation.is_quiet or self._delivery.observed:
            self._calling = {}
            self._delivery.on_failure = self._cancel_calls  # an observer may have ended the run
        if not self.root.cancellation.is_quiet:
            self._poll()
        value = None
        try:
            value = await self._drive(stack)
        except NotPerformed:
            pass  # the failure behind it is raised below
        finally:
            try:
                if self.root.journal is not None and self.root.journal.held.may_hold:
                    await self._in_store(self.root.journal.close)
            finally:  # also if the event loop was closed, and this coroutine is closed by the garbage collector
                if self._next_poll is not None:
                    self._next_poll.cancel()
                for used in (self._pool, self._store):
                    if used is not None:
                        used.close()
            self.root.runs.clear()
            await self._delivery.settle()
            self._delivery.on_failure = None  # without this cycle no garbage collector is needed
        if self.failure is not None:
            raise self.failure
        if self._root_is_cancelled:
            raise asyncio.CancelledError  # the interrupted call has turned the cancellation into another error
        return value

    def stop(self) -> None:
        super().stop()
        for task in [*self._tasks]:
            if not task.cancelling():
                task.cancel()
        self._delivery.interrupt()

    def _poll(self) -> None:
        self._cancel_calls()
        others = self._delivery.observed or self.root.journal is not None
        left = 0.0 if others else self.root.cancellation.left()
        self._next_poll = asyncio.get_running_loop().call_later(max(min(left, TIMED_POLL), POLL), self._poll)

    def _cancel_calls(self) -> None:
        """Cancels the calls in progress if the run must stop, because of its limits, its caller or an observer."""
        calling = self._calling
        if calling and self.root.cancellation.is_set():
            for task in calling:
                if not self._cancellations(task):
                    calling[task] = task.cancel()

    async def _cancellable(self, call: Coroutine[Any, Any, Any], calling: dict[asyncio.Task[Any], bool]) -> Any:
        """Returns the result of the call. Raises `Cancelled` if `_cancel_calls` has cancelled it."""
        task = asyncio.current_task()
        assert task is not None
        calling[task] = False
        try:
            return await call
        except asyncio.CancelledError:
            if calling[task] and self._cancellations(task) == 1:
                raise Cancelled from None
            raise
        finally:
            if calling.pop(task):
                task.uncancel()

    async def _drive(self, stack: Stack) -> Any:
        """Performs each effect of the stack and sends back its outcome, until the last loop has ended."""
        outcome = None
        error: BaseException | None = None
        while True:
            effect = advance(stack.work, outcome, error)
            outcome = error = None
            outbox = stack.outbox
            if outbox.waiting:
                error = await self._flush(outbox)
            if isinstance(effect, Completion):
                await self._end_spawned(stack)
                if not stack.leave():
                    if effect.error is not None:
                        raise effect.error
                    return effect.value
                outcome, error = effect.value, effect.error
            elif error is None or isinstance(effect, Commit):  # rows are stored even if a callback failed
                try:
                    outcome = self._performed(effect, stack)
                    if type(outcome) is CoroutineType:
                        outcome = await outcome
                except BaseException as raised:  # noqa: BLE001 - thrown into the loop, which decides
                    error = error or self._error_of(raised, effect)

    def _error_of(self, raised: BaseException, effect: Effect) -> BaseException:
        task = asyncio.current_task()
        store_failed = isinstance(effect, Commit) and not isinstance(raised, asyncio.CancelledError)
        if store_failed or not self._cancellations(task):
            return self.outcome_error(raised, effect, is_spawned=task is not self._root_task)
        self._delivery.hurry()
        if isinstance(effect, Commit):  # the announced call has not begun, so it had no effect
            if task is self._root_task:
                return self.delivery_failed(raised)
            self.stop()
            return NotPerformed()
        self.stop()
        self._root_is_cancelled = self._root_is_cancelled or task is self._root_task
        return raised

    def _cancellations(self, task: asyncio.Task[Any] | None) -> int:
        """How often one of the run's tasks was cancelled since the run began."""
        before = self._cancelled_before if task is self._root_task else 0
        return 0 if task is None else max(task.cancelling() - before, 0)

    async def _flush(self, outbox: Outbox) -> NotPerformed | None:
        """Delivers the waiting rows. If delivering one fails, the rest are still delivered, and the run ends."""
        failed: NotPerformed | None = None
        while outbox.waiting:
            try:
                await self._delivery.flush(outbox)
            except BaseException as failure:  # noqa: BLE001 - raised to the caller when everything has ended
                if isinstance(failure, asyncio.CancelledError):
                    self._delivery.hurry()
                failed = failed or self.delivery_failed(failure)
        return failed

    def _performed(self, effect: Effect, stack: Stack) -> Any:
        """Returns the outcome of an effect, or a coroutine that returns it."""
        kind = type(effect)
        if kind is CallModel or kind is CallSkill or kind is CallProtocol:
            call = self._call_model(effect) if kind is CallModel else self._call(effect)  # type: ignore[arg-type]
            return call if self._calling is None else self._cancellable(call, self._calling)
        if kind is Sleep:
            return self._sleep(effect)  # type: ignore[arg-type]
        if kind is Commit:
            assert self.root.journal is not None
            return self._in_store(self.root.journal.commit)
        return stack.completions.get() if kind is Join else self.perform_at_once(effect, stack)

    async def _call(self, effect: CallSkill | CallProtocol) -> Any:
        self.check_wanted()
        function, arguments, is_async = self.call_of(effect)
        if is_async:
            variables = copy_context()
            return await _in_task(variables.run(function, **arguments), variables)
        value = await self._call_sync(partial(function, **arguments))
        return await _in_task(value) if type(value) is not str and hasattr(value, "__await__") else value

    def _call_sync(self, call: Callable[[], Any]) -> Coroutine[Any, Any, Any]:
        # a method of its own, since a closure in `_call` would cost each waiting async call objects, too
        hold, self._hold = self._hold, 0.0

        def timed() -> Any:
            began = perf_counter()
            try:
                return call()
            finally:
                if perf_counter() - began < BRIEF:
                    self._hold = BRIEF

        return self._in_worker(timed, hold=hold, not_begun=NotBegun)

    def _in_worker(self, call: Callable[[], Any], **options: Any) -> Coroutine[Any, Any, Any]:
        self._pool = self._pool or WorkerPool(keep=True)
        return in_worker(self._pool, call, **options)

    async def _call_model(self, effect: CallModel) -> Any:
        provider, stream, generation = self.begin_call(effect)
        task = asyncio.current_task()
        cancelled = 0 if task is None else task.cancelling()
        try:
            stream.caught_up = CaughtUp(self._delivery, stream.run.outbox)
            if type(provider).acall is Provider.acall:
                call = partial(provider.call, effect.messages, effect.model, generation, stream)
                answer: Awaitable[Any] = self._in_worker(call)
            else:
                answer = provider.acall(effect.messages, effect.model, generation, stream)
            if effect.timeout is None:
                return stream.answered(await answer, provider)
            limit = asyncio.timeout(effect.timeout)
            try:
                async with limit:
                    return stream.answered(await answer, provider)
            except TimeoutError:
                if limit.expired():
                    raise stream.timed_out() from None
                raise
        except BaseException as error:
            if task is not None and _involves_a_group(error):  # as in `_in_task`
                while task.cancelling() > cancelled:
                    task.uncancel()
            stream.end(error, provider)
            raise

    async def _sleep(self, effect: Sleep) -> None:
        for seconds in self.pauses(effect):
            await asyncio.sleep(seconds)

    async def _in_store(self, call: Callable[[], None]) -> None:
        """Calls the store in its own thread: its connection stays in one thread, and the event loop must not block.

        Awaited even if the run is cancelled meanwhile, so that all its rows are in the store when it ends.
        """
        self._store = self._store or WorkerPool(1, keep=True)
        await in_worker(self._store, call, to_the_end=True)

    def spawn(self, spawned: Stack, stack: Stack) -> None:
        if stack.completions is None:
            stack.completions = asyncio.Queue()
        task = asyncio.ensure_future(self._drive_spawned(spawned))
        self._tasks = {**self._tasks, task: stack}
        task.add_done_callback(partial(self._spawned_ended, spawned))

    async def _drive_spawned(self, spawned: Stack) -> None:
        """Keeps the result or error of spawned work for its parent, which records it."""
        try:
            spawned.completion = Completion(spawned.key, await self._drive(spawned))
        except BaseException as error:  # noqa: BLE001 - recorded by the parent
            if not isinstance(error, asyncio.CancelledError) or not self._cancellations(asyncio.current_task()):
                self.spawned_failed(error)
            spawned.completion = Completion(spawned.key, error=error)

    def _spawned_ended(self, spawned: Stack, task: asyncio.Task[None]) -> None:
        """Queues the completion of spawned work. A task that was cancelled before it began gets a new one."""
        stack = self._tasks.pop(task)
        stack.completions.put_nowait(spawned.completion or Completion(spawned.key, error=NotPerformed()))

    async def _end_spawned(self, stack: Stack) -> None:
        """Waits for work that is left over because the run was cancelled again while waiting."""
        while left := [task for task, parent in self._tasks.items() if parent is stack and not task.done()]:
            for task in left:
                task.cancel()
            try:
                await asyncio.wait(left)
            except asyncio.CancelledError as again:
                self.failure = self.failure or again


def _involves_a_group(error: BaseException | None) -> bool:
    """Whether a failed `TaskGroup` raised or caused this error."""
    for _ in range(_MOST_CAUSES):
        if error is None or isinstance(error, BaseExceptionGroup):
            break
        error = error.__cause__ or error.__context__
    return isinstance(error, BaseExceptionGroup)


async def _in_task(value: Awaitable[Any], variables: Context | None = None) -> Any:
    """Awaits an async skill's call in a separate task.

    A failing `TaskGroup` cancels its task, and up to Python 3.12 may not undo it: the run's task would look cancelled.
    """
    try:
        result, error = await asyncio.get_running_loop().create_task(outcome_of(value), context=variables)
    finally:
        if type(value) is CoroutineType:
            value.close()  # does nothing unless the task was cancelled before it began
    if error is not None:
        raise error
    return result
