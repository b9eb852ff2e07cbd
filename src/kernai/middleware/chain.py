"""Performs effects through a list of middleware, outermost first.

`_passed` is the whole mechanism: an effect that a middleware's generator yields is passed to the next middleware, or to
the driver if there is none; the outcome is sent back. So nothing here waits, and the same code serves both drivers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from types import GeneratorType
from typing import Any

from kernai.errors import Control, KernaiError, Pause
from kernai.interrupts import calls_out
from kernai.loop.effects import CallModel, CallProtocol, CallSkill, Commit, Effect, Raise, Sleep, SubRun, Work, alone
from kernai.loop.run_state import Run

#: a middleware's generator: it yields effects, is sent their outcomes, and returns the outcome for its caller
Flow = Generator[Effect, Any, Any]
Middleware = Callable[[Any], Flow]

#: the effects that go through the list
CALLS = frozenset({CallModel, CallSkill, CallProtocol})
_MAY_BE_YIELDED = CALLS | {Sleep}


def wrap(run: Run, effect: Effect | None, work: Work) -> Work:
    """Wraps `work` so that its calls go through the run's middleware. Without middleware, returns `work` itself."""
    if not run.middleware:
        return work
    is_run = effect is None or isinstance(effect, SubRun)
    return _performed(run, work, [one for one in run.middleware if hasattr(one, "on_run_start")] if is_run else [])


def through(run: Run, effect: Effect) -> Flow:
    """Passes one effect through the run's list, and returns or raises the outermost middleware's outcome. Parameters
    that a middleware changes are validated like those of the original call.
    """
    try:
        return (yield from _passed(run, effect, effect, 0))
    except (Exception, GeneratorExit):
        raise
    except BaseException as error:
        yield Raise(error)  # the driver shall treat it as if the call had raised it
        raise


@calls_out
def _passed(run: Run, first: Effect, effect: Effect, at: int) -> Flow:
    """Passes an effect to one middleware of the list, and the effects that it yields to those after it."""
    middleware = run.middleware[at]
    flow = middleware(effect)
    if type(flow) is not GeneratorType:
        raise TypeError(
            f"{_name(middleware)} gave {type(flow).__name__}, not a generator: a middleware is a function that "
            "yields the effect to have it performed, and returns the outcome"
        )
    outcome: Any = None
    error: BaseException | None = None
    may_return_none = False  # since its last call did
    while True:
        try:
            effect = flow.send(outcome) if error is None else flow.throw(error)
        except StopIteration as returned:
            if returned.value is None and not may_return_none:
                raise TypeError(
                    f"{_name(middleware)} returned nothing: end it with `return (yield effect)`, or another outcome"
                ) from None
            return returned.value
        error = None
        sleeps = type(effect) is Sleep
        try:
            if type(effect) not in _MAY_BE_YIELDED:
                wrong = type(effect).__name__
                error = TypeError(f"a middleware may yield CallModel, CallSkill, CallProtocol or Sleep, not {wrong}")
            elif sleeps or at + 1 == len(run.middleware):
                outcome = yield effect if effect is first else _checked(run, effect, first)
            else:
                outcome = yield from _passed(run, first, effect, at + 1)
        except BaseException as raised:  # noqa: BLE001 - thrown into the middleware that yielded the effect
            error = raised
        if not sleeps:
            may_return_none = outcome is None and error is None


def _checked(run: Run, call: Any, first: Effect) -> Effect:
    """Validates a call that a middleware has changed. Raises `ValueError` or `SkillInputError` if its skill refuses."""
    if isinstance(call, CallSkill):
        skill, store, repair = run.held_skill(call.skill), run.context.media_store, run.gate.repair(run)
        is_same = isinstance(first, CallSkill) and first.skill == call.skill
        known = first.arguments if isinstance(first, CallSkill) and is_same else {}
        changes = {key: value for key, value in call.arguments.items() if key not in known or known[key] is not value}
        arguments = skill.rebind(known, changes, store, repair=repair)
        if is_same:
            return call.replace(arguments=arguments)
        call = call.replace(arguments=skill.bind(arguments, store, repair=repair))
    durable, is_call = run.root.durable, isinstance(call, (CallSkill, CallProtocol))
    return durable.instead(run, call, first.call_id) if is_call and durable is not None else call


def _name(middleware: Middleware) -> str:
    return getattr(middleware, "__qualname__", None) or type(middleware).__name__


def _performed(run: Run, work: Work, hooked: Sequence[Any]) -> Work:
    """Passes the calls of `work` through the run's middleware, and calls the hooks of `hooked` at start and end.

    The start is the first effect, so a run that is only replayed never starts.
    """
    outcome: Any = None
    error: BaseException | None = None
    is_begun = False
    try:
        while True:
            effect = work.send(outcome) if error is None else work.throw(error)
            if not is_begun and type(effect) is not Commit:  # a commit concerns only the store
                is_begun = True
                effect = _call_start_hooks(run, hooked, effect) or effect
            outcome = error = None
            try:
                outcome = yield from through(run, effect) if type(effect) in CALLS else alone(effect)
            except BaseException as raised:  # noqa: BLE001 - thrown into the work, which decides
                error = raised
    except StopIteration as ended:
        return ended.value
    finally:
        if is_begun and run.result is not None:
            _call_end_hooks(run, hooked)


@calls_out
def _call_start_hooks(run: Run, hooked: Sequence[Any], effect: Effect) -> Raise | None:
    for one in hooked:
        try:
            one.on_run_start(run)
        except Pause as pause:  # the first call waits
            if type(effect) not in CALLS:
                why = f" ({pause.reason})" if pause.reason else ""
                return Raise(KernaiError(f"on_run_start paused{why} where no call can wait: pause in before_model"))
            if effect.approval is None:  # type: ignore[attr-defined]  # calls have it
                return Raise(pause)
        except BaseException as error:  # noqa: BLE001 - raised instead of performing the run's first effect
            return Raise(error)
    return None


@calls_out
def _call_end_hooks(run: Run, hooked: Sequence[Any]) -> None:
    for one in reversed(hooked):
        try:
            one.on_run_end(run, run.result)
        except (Exception, Control) as error:  # noqa: BLE001 - the run has ended, and its result must not change
            reason = f"on_run_end raised {type(error).__name__}"
            run.root.warn("hook.failed", scope=run.scope, hook=_name(one), reason=reason)
