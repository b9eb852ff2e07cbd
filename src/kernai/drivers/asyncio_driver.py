"""The asynchronous driver: performs the same loop's effects with asyncio.

Guarantees: async skills and a provider's `acall` run on the event loop; sync skills and providers without an `acall`
run in worker threads, in a copy of the caller's context variables. Every event is delivered before the effect that
follows it. Started work is an asyncio task of its own; it has ended when the loop ends.
Assumes: it is used on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from kernai.errors import RunCancelledError, as_failure
from kernai.loop.effects import CallModel, CallProtocol, CallSkill, Effect, Ended, Start, Work
from kernai.registry.provider import Provider
from kernai.worker_pool import WorkerPool, in_worker

if TYPE_CHECKING:
    from kernai.drivers.asyncio_delivery import AsyncRails
    from kernai.drivers.cancellation import Cancellation
    from kernai.loop.outbox import Outbox


class AsyncDriver:
    """Drives one root run and everything below it."""

    def __init__(self, rails: AsyncRails, cancellation: Cancellation) -> None:
        self._rails = rails
        self._cancellation = cancellation
        self._pool = WorkerPool()

    async def run(self, work: Work, outbox: Outbox) -> Any:
        """Drives the root's work to its end."""
        try:
            return await self._drive(work, outbox)
        finally:
            # a sync skill that still runs after a cancellation is left to end by itself
            await self._rails.settle()

    async def _drive(self, work: Work, outbox: Outbox) -> Any:
        children = _Children()
        value = outcome = None
        error: BaseException | None = None
        while True:
            try:
                effect = work.send(outcome) if error is None else work.throw(error)
            except StopIteration as stop:
                value = stop.value
                break
            except BaseException:
                try:
                    await children.end()
                finally:
                    await self._flush_whole(outbox)
                raise
            outcome = error = None
            try:
                await self._rails.flush(outbox)
                outcome = await self._perform(effect, outbox, children)
            except BaseException as raised:  # noqa: BLE001 - it belongs to the loop, which decides
                task = asyncio.current_task()
                error = raised if task is not None and task.cancelling() else as_failure(raised)
                if not isinstance(error, Exception):
                    # cancelled, or Ctrl-C: work beside this one is to stop too
                    self._cancellation.set()
                    children.cancel()
                    self._rails.interrupt()
        await self._flush_whole(outbox)
        return value

    async def _flush_whole(self, outbox: Outbox) -> None:
        """The last flush: even when observers are cancelled, the events behind them are not lost."""
        interrupt: BaseException | None = None
        while outbox.waiting:
            try:
                await self._rails.flush(outbox)
            except BaseException as raised:  # noqa: BLE001 - raised when all is told
                interrupt = raised
        if interrupt is not None:
            raise interrupt

    async def _perform(self, effect: Effect, outbox: Outbox, children: _Children) -> Any:
        if isinstance(effect, CallModel):
            return await self._call_model(effect, outbox)
        if isinstance(effect, CallSkill):
            invoke = partial(effect.skill.invoke, effect.arguments, effect.context)
            return await self._value(invoke, is_async=effect.skill.is_async)
        if isinstance(effect, CallProtocol):
            handler = effect.protocol.handler
            return await self._value(
                partial(handler, effect.block, effect.context), is_async=asyncio.iscoroutinefunction(handler)
            )
        if isinstance(effect, Start):
            return children.start(effect.key, self._drive(effect.work, effect.outbox))
        return await children.next_ended()

    async def _call_model(self, effect: CallModel, outbox: Outbox) -> Any:
        cancelled, forward, provider = self._cancellation.is_set, effect.on_chunk, effect.provider

        def on_chunk(text: str) -> Any:
            if cancelled():
                raise RunCancelledError("the run was cancelled")
            forward(text)
            return self._rails.caught_up(outbox)

        given = (effect.messages, effect.model, effect.generation, on_chunk)
        if type(provider).acall is Provider.acall:
            return await in_worker(self._pool, lambda: provider.call(*given))
        return await provider.acall(*given)

    async def _value(self, call: Callable[[], Any], *, is_async: bool) -> Any:
        value = call() if is_async else await in_worker(self._pool, call)
        return await value if hasattr(value, "__await__") else value


class _Children:
    """The work one loop has started, as asyncio tasks."""

    def __init__(self) -> None:
        self._ended: asyncio.Queue[Ended] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, key: Any, driving: Any) -> None:
        task = asyncio.ensure_future(self._outcome(key, driving))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def next_ended(self) -> Ended:
        return await self._ended.get()

    async def end(self) -> None:
        """Waits for what was not waited for, because the run was cancelled again while it waited."""
        again: asyncio.CancelledError | None = None
        while self._tasks:
            self.cancel()
            try:
                await asyncio.wait(set(self._tasks))
            except asyncio.CancelledError as error:
                again = error
        if again is not None:
            raise again

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _outcome(self, key: Any, driving: Any) -> None:
        try:
            ended = Ended(key, await driving)
        except BaseException as error:  # noqa: BLE001 - captured; the parent delivers it
            ended = Ended(key, error=error)
        self._ended.put_nowait(ended)
