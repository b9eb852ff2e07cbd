"""Performing effects through a list of middleware, outermost first.

`through` is the whole mechanism: a stack of the middleware's generators, the outermost at its bottom. What the one on
top yields is given to the next one in, or, where there is none, to the driver; what comes of it is sent back to the one
on top. So nothing here waits, and one definition serves both drivers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from kernai.errors import Control, KernaiError, Pause
from kernai.interrupts import calls_out
from kernai.loop.effects import CallModel, CallProtocol, CallSkill, Commit, Effect, Raise, Sleep, SubRun, Work

if TYPE_CHECKING:
    from kernai.loop.run_state import Run

#: what a middleware's generator is: it yields effects, is sent what came of them, and returns the outcome
Flow = Generator[Effect, Any, Any]
Middleware = Callable[[Any], Flow]

#: what goes through the list
CALLS = frozenset({CallModel, CallSkill, CallProtocol})
_MAY_BE_YIELDED = CALLS | {Sleep}


def around(run: Run, effect: Effect | None, work: Work) -> Work:
    """`work` with the calls that it asks for made through the run's middleware. Without any, `work` itself."""
    if not run.middleware:
        return work
    is_run = effect is None or isinstance(effect, SubRun)
    return _Performed(run, work, [one for one in run.middleware if hasattr(one, "on_run_start")] if is_run else [])


def through(effect: Effect, middleware: Sequence[Middleware]) -> Flow:
    """Performs one effect through the list. Gives, or raises, what the outermost one makes of it."""
    flows: list[Flow] = []
    try:
        return (yield from _through(effect, middleware, flows))
    finally:
        while flows:  # Ctrl-C between two lines of it
            flows.pop().close()


@calls_out
def _through(effect: Effect, middleware: Sequence[Middleware], flows: list[Flow]) -> Flow:
    depth = len(middleware)
    given: BaseException | None = None  # what the driver has thrown
    while True:
        outcome: Any = None
        error: BaseException | None = None
        at = len(flows)
        if at < depth and type(effect) is not Sleep:
            try:
                flow = middleware[at](effect)
            except BaseException as raised:  # noqa: BLE001 - no generator yet, but it has its place in the stack
                flow = _failing(raised)
            flows.append(flow if type(flow) is GeneratorType else _failing(_no_generator(middleware[at], flow)))
        else:
            try:
                outcome = yield effect
            except BaseException as raised:  # noqa: BLE001 - it belongs to the one who asked
                error = given = raised
        while flows:
            flow = flows[-1]
            try:
                effect = flow.send(outcome) if error is None else flow.throw(error)
            except StopIteration as stop:
                flows.pop()
                outcome, error = stop.value, None
            except BaseException as raised:  # noqa: BLE001 - it belongs to the next one out
                flows.pop()
                outcome, error = None, raised
            else:
                if type(effect) in _MAY_BE_YIELDED:
                    break
                outcome, error = None, _no_effect(effect)
        else:
            if error is None:
                return outcome
            return (yield from _raised(error, by_driver=error is given))


def _raised(error: BaseException, *, by_driver: bool) -> Flow:
    """The driver judges what a middleware raised as if the call had raised it."""
    if not by_driver and not isinstance(error, Exception):
        yield Raise(error)
    raise error


def _no_generator(middleware: Middleware, value: object) -> TypeError:
    return TypeError(
        f"{_name(middleware)} gave {type(value).__name__}, not a generator: a middleware is a function that yields the "
        "effect to have it performed, and returns the outcome"
    )


def _failing(error: BaseException) -> Flow:
    raise error
    yield


def _no_effect(value: object) -> TypeError:
    return TypeError(f"a middleware may yield CallModel, CallSkill, CallProtocol or Sleep, not {type(value).__name__}")


def _name(middleware: Middleware) -> str:
    return getattr(middleware, "__qualname__", None) or type(middleware).__name__


class _Performed(Work):
    """Work, its calls made through the run's middleware. `observers` are told of its first effect and of its end.

    Not before the first effect: a run that is only played back asks for none. No generator function, since Ctrl-C may
    come between any two lines: then the work, which has not heard of it, is still there, as `gi_frame` says.
    """

    def __init__(self, run: Run, work: Work, observers: Sequence[Any]) -> None:
        self._run = run
        self._work = work
        self._observers = observers
        self._begun = False
        self._flow: Any = None

    @property
    def gi_frame(self) -> object:
        return getattr(self._work, "gi_frame", None)

    def send(self, outcome: Any) -> Effect:
        return self._advance(outcome, None)

    def throw(self, error: Any, *_: object) -> Effect:
        return self._advance(None, error)

    def _advance(self, outcome: Any, error: BaseException | None) -> Effect:
        """The next effect for the driver."""
        while True:
            flow = self._flow
            if flow is not None:
                try:
                    asked: Effect = flow.send(outcome) if error is None else flow.throw(error)
                except StopIteration as stop:
                    outcome, error = stop.value, None
                except BaseException as raised:
                    if flow.gi_frame is not None:
                        raise
                    outcome, error = None, raised
                else:
                    return asked
                self._flow = None
            effect = self._next(outcome, error)
            if type(effect) not in CALLS:
                return effect
            self._flow = through(effect, self._run.middleware)
            outcome = error = None

    def _next(self, outcome: Any, error: BaseException | None) -> Effect:
        """The next effect of the work."""
        try:
            effect = self._work.send(outcome) if error is None else self._work.throw(error)
        except BaseException:
            if self._begun and self.gi_frame is None and self._run.result is not None:
                _tell_end(self._run, self._observers)
            raise
        if self._begun or type(effect) is Commit:  # a commit is between those who keep the run and the driver
            return effect
        self._begun = True
        return _tell_start(self._run, self._observers, effect) or effect


@calls_out
def _tell_start(run: Run, observers: Sequence[Any], effect: Effect) -> Raise | None:
    for one in observers:
        try:
            one.on_run_start(run)
        except Pause as pause:  # it is the first call that waits
            if type(effect) not in CALLS:
                why = f" ({pause.reason})" if pause.reason else ""
                return Raise(KernaiError(f"on_run_start paused{why} where no call can wait: pause in before_model"))
            if effect.approval is None:  # type: ignore[attr-defined]  # calls have it
                return Raise(pause)
        except BaseException as error:  # noqa: BLE001 - raised in the place of the run's first effect
            return Raise(error)
    return None


@calls_out
def _tell_end(run: Run, observers: Sequence[Any]) -> None:
    for one in reversed(observers):
        try:
            one.on_run_end(run, run.result)
        except (Exception, Control) as error:  # noqa: BLE001 - the run has ended, and stays what it is
            run.root.warn("hook.failed", run_id=run.root.run_id, scope=run.scope, hook=_name(one),
                          reason=f"on_run_end raised {type(error).__name__}")
