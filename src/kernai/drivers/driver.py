"""What both drivers share: everything except waiting.

A driver drives stacks. A stack is a loop with the sub-runs that it waits for on top of it; spawned work has a stack of
its own. `Driver` knows what an effect calls, what a failure means, and what happens to the run if events cannot be
delivered.

A failed delivery is not an outcome. An effect's events are delivered before it is performed. If that fails, the effect
is not performed (`NotPerformed`), the rest of the run is stopped, and the caller gets the failure when everything has
ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from traceback import format_exception
from typing import Any

from kernai._util.api import is_async
from kernai.errors import (
    Control,
    KernaiError,
    Pause,
    ProviderError,
    RunCancelledError,
    RunStoppedError,
    StoreNeededError,
    as_failure,
)
from kernai.events import ModelWaitingRow
from kernai.interrupts import INTERRUPTS, calls_out
from kernai.loop.effects import (
    CallModel,
    CallProtocol,
    CallSkill,
    Cancelled,
    Commit,
    Completion,
    Effect,
    NotApproved,
    NotBegun,
    NotPerformed,
    Raise,
    Sleep,
    Spawn,
    SubRun,
    Work,
)
from kernai.loop.kernel import work_of
from kernai.loop.model_stream import ModelStream
from kernai.loop.root import Outbox, Root
from kernai.loop.run_state import NO_PROVIDER
from kernai.registry.provider import Provider
from kernai.values.llm_response import LlmResponse
from kernai.values.model import GenerationOptions

#: how often waiting code checks whether the run must stop, in seconds
POLL = 0.05
#: how long a call may continue after the run must stop before a driver abandons it, if it can; in seconds
GRACE = 0.1


class Stack:
    """A loop that is being driven, with the sub-runs that it waits for on top. `key` is the parent's name for it.

    A `breakable` stack is not driven in the caller's thread, so a call that does not end when the run is stopped can be
    abandoned. Another thread then takes over the stack (`take_over`). If the call ends later, its thread gets
    `TakenOver` and leaves the stack alone. `performed` and `take_over` are only for such stacks.
    """

    #: work that the loop on top has spawned and not joined yet
    spawned: Sequence[Any] = ()
    #: the driver's queue of completions
    completions: Any = None
    #: how the stack as a whole ended
    completion: Completion | None = None
    _caller = 0  # the thread that is making a call for this stack, if one is
    _below: Sequence[tuple[Work, Outbox]] = ()

    def __init__(self, work: Work, outbox: Outbox, key: Any = None, *, breakable: bool = True) -> None:
        self.key = key
        #: the loop on top, and the outbox with its rows
        self.work = work
        self.outbox = outbox
        self.breakable = breakable
        if breakable:
            self._lock = threading.Lock()

    def enter(self, work: Work, outbox: Outbox) -> None:
        """Puts a sub-run's loop on top; its outcome is sent to the loop below."""
        self._below = [*self._below, (self.work, self.outbox)]
        self.work, self.outbox = work, outbox

    def leave(self) -> bool:
        """Removes the loop on top, which has ended. Returns False if it was the last one."""
        if not self._below:
            return False
        *self._below, (self.work, self.outbox) = self._below
        return True

    def performed(self, perform: Callable[[Any], Any], effect: Effect) -> Any:
        """Performs a call. Raises `TakenOver` if another thread has taken over the stack in the meantime."""
        here = threading.get_ident()
        with self._lock:
            self._caller = here
        try:
            return perform(effect)
        finally:
            with self._lock:
                if self._caller != here:
                    raise TakenOver
                self._caller = 0

    def take_over(self) -> int:
        """Takes over the stack for the calling thread if a call is in progress; returns the thread in it, else 0."""
        with self._lock:
            caller, self._caller = self._caller, 0
            return caller


class TakenOver(BaseException):
    """Another thread drives the stack now. Never raised outside a driver."""


class Driver:
    """The part of a driver that does not wait. Only `ask` does, for drivers that wait in the current thread."""

    #: the failure of delivery, if any, which the caller gets when the run has ended
    failure: BaseException | None = None

    def __init__(self, root: Root, delivery: Any) -> None:
        self.root = root
        self._delivery = delivery

    @calls_out
    def ask(self, effect: CallModel) -> LlmResponse:
        provider, stream, generation = self.begin_call(effect)
        try:
            answer = provider.call(effect.messages, effect.model, generation, stream)
            if type(answer) is not LlmResponse or effect.model is not stream.run.model:
                return stream.answered(answer, provider)
            stream.answer = answer
            return answer
        except BaseException as error:
            stream.end(error, provider)
            raise

    def begin_call(self, effect: CallModel) -> tuple[Provider, ModelStream, GenerationOptions]:
        """Returns the provider to call, the stream for the response, and the options."""
        if not self.root.cancellation.is_quiet:
            self.check_wanted()
        run = self.root.runs[effect.scope]
        provider, generation = effect.provider, effect.generation
        if provider is None:
            provider = run.provider
        elif run.setup.constrains and not (run.setup.is_native and provider.calls_natively):  # a fallback, for example
            generation = run.setup.constrained_instead(generation, run.provider, provider)
        if provider is None:
            raise ProviderError(NO_PROVIDER)
        stream = run.stream
        assert stream is not None
        if stream.effect is not None:
            stream = stream.again()
        stream.effect = effect
        if effect.tools is not None and provider.calls_natively:
            stream.tools = effect.tools
        if effect.timeout is not None:
            stream.own_deadline = self.root.clock.monotonic() + effect.timeout
        if type(generation) is not GenerationOptions or generation.extra or generation.thinking or generation.stop:
            generation = replace(GenerationOptions.coerce(generation))  # a copy: a provider may change what it gets
        return provider, stream, generation

    def look_for_interrupt(self) -> None:
        """Raises a Ctrl-C that was noted. If the run must stop anyway, it is raised at the end instead."""
        if INTERRUPTS.noted is not None and not self.root.cancellation.is_set():
            INTERRUPTS.look()

    def check_wanted(self) -> None:
        """Raises `NotBegun` if the run must stop. Check this before a call: the call may have waited for a worker or an
        observer, or the process may have been suspended and another worker may have claimed the run.
        """
        if self.root.journal is not None:
            try:
                self.root.journal.held.look()
            except KernaiError as lost:
                self.delivery_failed(lost)
        if self.root.cancellation.is_set():
            raise NotBegun

    def call_of(self, effect: CallSkill | CallProtocol) -> tuple[Callable[..., Any], Mapping[str, Any], bool]:
        """Returns the function that an effect calls, its keyword arguments, and whether it is async."""
        run = self.root.runs[effect.scope]
        if run.setup.asks and effect.approval is None and self.root.durable is None:
            raise NotApproved("its agent asks before each call")
        if isinstance(effect, CallSkill):
            skill = run.held.get(effect.skill) or run.held_skill(effect.skill)  # the former is faster
            if skill.approval and effect.approval is None:  # with a store, a middleware has chosen this skill
                raise NotApproved(f"skill {skill.name!r} needs approval", (skill.name, effect.arguments))
            if skill.takes_keywords:
                return skill.function, effect.arguments, skill.is_async
            context = run.skill_context(skill, effect) if skill.wants_context else None
            return partial(skill.invoke, effect.arguments, context), {}, skill.is_async
        handler = run.protocols.held(effect.protocol).handler
        return partial(handler, effect.block, run.skill_context(None, effect)), {}, is_async(handler)

    def perform_at_once(self, effect: Effect, stack: Stack) -> Any:
        if isinstance(effect, Commit):
            assert self.root.journal is not None
            return self.root.journal.commit()
        if isinstance(effect, SubRun):
            return stack.enter(*work_of(self.root, effect))
        if isinstance(effect, Raise):
            raise effect.error
        assert isinstance(effect, Spawn)
        work, outbox = work_of(self.root, effect.what)
        return self.spawn(Stack(work, outbox, effect.key), stack)

    def spawn(self, spawned: Stack, stack: Stack) -> None:
        """Starts driving `spawned`, whose completion goes to `stack`."""
        raise NotImplementedError

    def outcome_error(self, raised: BaseException, effect: Effect, *, is_spawned: bool) -> BaseException:
        """Returns the exception to throw into the loop for the exception that an effect raised.

        Ctrl-C and similar exceptions stop all work of the run. If spawned work raised one (`is_spawned`), the caller
        gets it once everything has ended; a `SystemExit` there is only a failure of that work.
        Exceptions raised on purpose (`Stop`, `Pause`) are left to the loop.
        """
        error = as_failure(raised)
        if isinstance(effect, Commit) and not isinstance(error, Control):
            return self.delivery_failed(raised)
        if isinstance(error, Pause) and self.root.durable is None:
            return self._cannot_pause(error, effect)
        if isinstance(error, AssertionError) and isinstance(effect, CallModel):
            provider = effect.provider or self.root.runs[effect.scope].provider
            if provider is not None and provider.raises_assertions:
                return self.delivery_failed(error)
        if isinstance(effect, (CallModel, CallSkill, CallProtocol)):
            if (trace := self.root.event_log.trace) is not None:
                text = self.root.runs[effect.scope].scrub(effect.call_id, "".join(format_exception(raised)))
                trace("call.failed", text, run_id=self.root.run_id, call_id=effect.call_id)
            ended = RunStoppedError if isinstance(effect, CallModel) else RunCancelledError  # `on_chunk` raises either
            if isinstance(error, ended) and self.root.cancellation.is_set():
                return Cancelled()  # because the run must stop: the call may or may not have taken effect
        if is_spawned:
            self.spawned_failed(error)
        elif not isinstance(error, (Exception, Control)):
            self.stop()
        return error

    def spawned_failed(self, error: BaseException) -> None:
        """Ends the run if spawned work, or a call in it, has raised Ctrl-C or a similar exception."""
        if not isinstance(error, (Exception, Control, SystemExit)):
            self.failure = self.failure or error
            self.stop()

    def _cannot_pause(self, pause: Pause, effect: Effect) -> BaseException:
        if isinstance(effect, (CallModel, CallSkill, CallProtocol)):
            run = self.root.runs[effect.scope]
            pause.reason = run.scrub(effect.call_id, pause.reason)
            if run.middleware:
                return pause  # it may redact the reason; the pause comes again, with a `Raise`
        why = f" ({pause.reason})" if pause.reason else ""
        self.failure = self.failure or StoreNeededError(f"the run paused{why}")
        self.stop()
        return NotBegun() if isinstance(pause, NotApproved) else Cancelled()

    def pauses(self, sleep: Sleep) -> Iterator[float]:
        """Yields the time to wait in short pieces, in seconds. Raises `Cancelled` if the run must stop."""
        if sleep.reason is not None:
            self.root.runs[sleep.scope].write_now(ModelWaitingRow(sleep.seconds, sleep.reason, sleep.attempt))
        cancellation, now = self.root.cancellation, self.root.clock.monotonic
        end = now() + sleep.seconds
        cancellation.check()
        while (left := end - now()) > 0:
            yield min(left, POLL)
            cancellation.check()

    def delivery_failed(self, failure: BaseException) -> NotPerformed:
        """Ends the run because events could not be delivered. Returns the exception to throw into the loop."""
        self.failure = self.failure or failure
        self.stop()
        return NotPerformed()

    def stop(self) -> None:
        """Stops all work of the run, as far as possible."""
        self.root.cancellation.set()
