"""The synchronous driver: performs the loop's effects on threads.

Guarantees: calls are made in the thread that drives the run. Work that the loop spawns (workflow tasks, parallel calls)
runs in workers of a bounded pool instead, each in a copy of the context variables. Async skills share one event loop
per run. Every event is delivered before the effect that follows it is performed. All spawned work has ended when the
loop ends. A call that does not end when the run must stop is abandoned in its thread, unless that is the caller's.
Assumes: a stack is advanced by one thread at a time (`Stack` ensures that).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from kernai.drivers.driver import GRACE, POLL, Driver, Stack, TakenOver
from kernai.interrupts import INTERRUPTS, calls_out
from kernai.loop.effects import (
    CallModel,
    CallProtocol,
    CallSkill,
    Cancelled,
    Commit,
    Completion,
    Effect,
    Join,
    NotPerformed,
    Sleep,
)

if TYPE_CHECKING:
    from kernai._util.worker_pool import WorkerPool
    from kernai.drivers.background_loop import BackgroundLoop
    from kernai.drivers.delivery import ThreadsDelivery


class ThreadsDriver(Driver):
    """Drives one root run and everything below it."""

    # most runs need neither, so both are created on first use; `setdefault` keeps the first if two threads create one
    _pool: WorkerPool | None = None
    _background: BackgroundLoop | None = None
    _delivery: ThreadsDelivery

    def run(self, stack: Stack) -> Any:
        return INTERRUPTS.during(self._to_the_end, stack)

    def take_over(self, stack: Stack) -> bool:
        """Ends the root's stack in this thread if a call is in progress; returns whether it did."""
        if not stack.take_over():
            return False
        self._to_the_end(stack, Cancelled())
        return True

    def _to_the_end(self, stack: Stack, error: BaseException | None = None) -> Any:
        value = None
        try:
            value = self._drive(stack, error)
            self._close()
        except NotPerformed:
            self._close()  # the failure behind it is raised below
        except TakenOver:
            raise  # the thread that has taken over the stack does the rest
        except BaseException:
            try:
                self.stop()
            finally:
                self._close()
            raise
        if self.failure is not None:
            raise self.failure
        return value

    def _close(self, *, again: bool = True) -> None:
        try:
            self.root.runs.clear()
            for used in (self._pool, self._background, self.root.journal):
                if used is not None:
                    used.close()
        except BaseException:
            if again:  # even after a second Ctrl-C, no thread may be left
                self._close(again=False)
            raise

    # each step passes here twice, so it is not split into slower function calls
    def _drive(self, stack: Stack, error: BaseException | None = None) -> Any:  # noqa: PLR0912
        """Performs each effect of the stack and sends back its outcome, until the last loop has ended."""
        outcome = None
        effect: Effect | Completion | None = None  # at the beginning there is none to perform
        while True:
            if type(effect) is Completion:
                if not stack.leave():
                    if effect.error is not None:
                        raise effect.error
                    return effect.value
                outcome, error = effect.value, effect.error
            elif effect is not None and (error is None or isinstance(effect, Commit)):  # rows are stored in any case
                try:
                    if INTERRUPTS.noted is not None and not isinstance(effect, Commit):
                        self.look_for_interrupt()
                    perform = _PERFORM.get(type(effect))
                    if perform is None or stack.breakable:
                        outcome = self._performed(effect, stack, perform)
                    else:
                        outcome = perform(self, effect)
                except TakenOver:
                    raise
                except BaseException as raised:  # noqa: BLE001 - thrown into the loop, which decides
                    error = error or self.outcome_error(raised, effect, is_spawned=stack.key is not None)
            try:
                effect = stack.work.send(outcome) if error is None else stack.work.throw(error)
            except StopIteration as ended:
                effect = Completion(None, ended.value)
            except BaseException as raised:  # noqa: BLE001 - the loop's own outcome
                effect = Completion(None, error=raised)
            outcome = error = None
            outbox = stack.outbox
            if outbox.waiting:
                try:
                    self._delivery.flush(outbox)
                except BaseException as failure:  # noqa: BLE001 - raised when everything has ended
                    error = self.delivery_failed(failure)
                    while outbox.waiting:
                        with suppress(BaseException):  # the first failure is raised later
                            self._delivery.flush(outbox)

    def _performed(self, effect: Effect, stack: Stack, perform: _Perform | None) -> Any:
        if perform is not None:
            return stack.performed(partial(perform, self), effect)
        return self._join(stack) if type(effect) is Join else self.perform_at_once(effect, stack)

    def sleep(self, effect: Sleep) -> None:
        for seconds in self.pauses(effect):
            time.sleep(seconds)
            self.look_for_interrupt()

    @calls_out
    def call(self, effect: CallSkill | CallProtocol) -> Any:
        """Calls a skill or a protocol's handler; async ones run on the run's event loop."""
        if not self.root.cancellation.is_quiet:
            self.check_wanted()
        function, arguments, _ = self.call_of(effect)
        value = copy_context().run(function, **arguments)
        if type(value) is str or not hasattr(value, "__await__"):
            return value
        from kernai.drivers.background_loop import BackgroundLoop  # most skills are not async

        background = self._background or vars(self).setdefault("_background", BackgroundLoop("kernai-async"))
        return background.run(value, self.root.cancellation.is_set)

    def spawn(self, spawned: Stack, stack: Stack) -> None:
        from kernai._util.worker_pool import Inbox, WorkerPool

        if stack.completions is None:
            stack.completions = Inbox()
        pool = self._pool or vars(self).setdefault("_pool", WorkerPool(keep=True))
        stack.spawned = [*stack.spawned, spawned]
        claim = threading.Lock()  # held by whoever drives the work or gives it up
        try:
            pool.submit(lambda: self._drive_spawned(spawned, stack) if claim.acquire(blocking=False) else None)
        except BaseException as error:
            if claim.acquire(blocking=False):  # no thread could be started
                stack.spawned = [one for one in stack.spawned if one is not spawned]
                raise
            self.failure = self.failure or error  # raised by a signal's handler, when the work had begun
            self.stop()

    def _drive_spawned(self, spawned: Stack, stack: Stack, error: BaseException | None = None) -> None:
        """Keeps the result or error of spawned work for its parent, which records it, and wakes the parent."""
        try:
            spawned.completion = Completion(spawned.key, self._drive(spawned, error))
        except TakenOver:
            return  # the thread that has taken over the stack does the rest
        except BaseException as raised:  # noqa: BLE001 - recorded by the parent
            self.spawned_failed(raised)
            spawned.completion = Completion(spawned.key, error=raised)
        stack.completions.put(spawned.completion)

    def _join(self, stack: Stack) -> Completion:
        assert self._pool is not None
        stopped = 0.0
        with self._pool.waiting():
            while stack.spawned:
                stack.completions.get(POLL)  # only a wake-up: if a signal's handler raises now, what was taken is lost
                ended: Completion | None = next((one.completion for one in stack.spawned if one.completion), None)
                if ended is not None:
                    stack.spawned = [one for one in stack.spawned if one.completion is not ended]
                    return ended
                self.look_for_interrupt()
                INTERRUPTS.look_for_forced()  # the pool may have lost a job
                if self.root.cancellation.is_set():
                    stopped = stopped or time.monotonic()
                    if time.monotonic() - stopped >= GRACE:
                        self._give_up_on_calls(stack)
        raise NotPerformed

    def _give_up_on_calls(self, stack: Stack) -> None:
        """Ends spawned work that is in a call, and abandons the call."""
        for spawned in stack.spawned:
            if caller := spawned.take_over():
                assert self._pool is not None
                self._pool.give_up_on(caller)
                self._drive_spawned(spawned, stack, Cancelled())


_Perform = Callable[[ThreadsDriver, Any], Any]
#: how to perform effects that wait; the others do not wait, or only for this driver's own work
_PERFORM: dict[type[Effect], _Perform] = {
    CallModel: ThreadsDriver.ask,
    CallSkill: ThreadsDriver.call,
    CallProtocol: ThreadsDriver.call,
    Sleep: ThreadsDriver.sleep,
}
