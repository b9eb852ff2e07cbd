"""`Root`: what a root run and all its sub-runs share, with its clock, its cancellation, its gate and its outboxes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from kernai.errors import LimitReachedError, RunCancelledError, RunStoppedError, Stop
from kernai.interrupts import calls_out
from kernai.loop.effects import Cancelled
from kernai.values.result import StopReason

if TYPE_CHECKING:
    from kernai.agents.definition import Rules
    from kernai.agents.setup import System
    from kernai.events import Row
    from kernai.inputs.table import Repair
    from kernai.loop.effects import Effect, Work
    from kernai.loop.run_state import Run
    from kernai.loop.trust import Trust
    from kernai.registry.configuration import Resolver
    from kernai.registry.protocol_registry import ProtocolRegistry
    from kernai.registry.skill_registry import SkillRegistry
    from kernai.values.limits import Budget
    from kernai.values.message import Message


class Clock:
    """`wall` returns seconds since 1970, for timestamps; `monotonic` seconds that only grow, for durations."""

    __slots__ = ("monotonic", "wall")

    def __init__(
        self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.wall = wall
        self.monotonic = monotonic


class Cancellation:
    """Whether a root run is to stop, and why. Loop, drivers, providers and skills ask it.

    It is set from within (Ctrl-C, a closed stream), by the caller's object with `is_set()`, or by the timeout.
    """

    __slots__ = ("_clock", "_outer", "_set", "_stop", "_timeout", "deadline", "is_quiet", "must_be_watched")

    def __init__(self, clock: Clock, outer: Any = None) -> None:
        if outer is not None and not callable(getattr(outer, "is_set", None)):
            raise TypeError(
                f"cancel must have is_set(), and {type(outer).__name__} has none: pass a threading.Event, and set() it "
                "to cancel the run"
            )
        self._clock = clock
        self._outer = outer
        self._set = False
        self._stop: Stop | None = None
        self._timeout: float | None = None
        #: in the clock's monotonic seconds; None without a timeout
        self.deadline: float | None = None
        #: whether it can become set without a call of `set`, so that it has to be polled
        self.must_be_watched = outer is not None
        #: whether it is not set and need not be polled
        self.is_quiet = outer is None

    def may_come_from_outside(self) -> None:
        """Another thread may stop the run at any time."""
        self.must_be_watched, self.is_quiet = True, False

    def begin(self, timeout: float | None, spent: float = 0.0) -> None:
        """The run begins and has `timeout` seconds, of which it used `spent` before it was resumed."""
        if timeout is not None:
            self._timeout = timeout
            self.deadline = self._clock.monotonic() + max(timeout - spent, 0.0)
            self.must_be_watched = True
            self.is_quiet = False

    def set(self) -> None:
        self._set = True
        self.is_quiet = False

    def stop(self, stop: Stop) -> None:
        """Ends the run because an observer raised `stop`; the first one gives the reason."""
        self._stop = self._stop or stop
        self.set()

    def reopen(self) -> None:
        """Takes a `stop` back: the run continues."""
        self._set, self._stop = False, None
        self.is_quiet = not self.must_be_watched

    def is_set(self) -> bool:
        if not self._set and self._outer is not None:
            # kept: clearing the caller's event later does not resume the run
            self._set = bool(self._outer.is_set())
        return self._set or (self.deadline is not None and self._clock.monotonic() >= self.deadline)

    def check(self) -> None:
        """Raises `Cancelled` if the run is to stop."""
        if not self.is_quiet and self.is_set():
            raise Cancelled

    def error(self) -> RunStoppedError:
        """Why the run is to stop. A cancellation takes precedence over the timeout."""
        if self.is_set() and not self._set:
            return LimitReachedError(f"timeout={self._timeout} s has passed", StopReason.TIMEOUT)
        if self._stop is not None and self._stop.reason != StopReason.CANCELLED:
            return LimitReachedError(str(self._stop), self._stop.reason)
        why = "" if self._stop is None or not self._stop.args[1] else f": {self._stop.args[1]}"
        return RunCancelledError(f"the run was cancelled{why}")


class Gate:
    """What a run asks before it acts: whether it is to stop, whether a limit is used up, which rules hold.

    This one answers for the present, to a root run and all its sub-runs. A scope that is being replayed has a
    `durable.replay_cursor.ReplayCursor` of its own, which answers from the recording.
    """

    __slots__ = ("_budget", "_cancellation")

    def __init__(self, cancellation: Cancellation, budget: Budget) -> None:
        self._cancellation = cancellation
        self._budget = budget

    def is_on_record(self) -> bool:
        """Whether the next row is on record."""
        return False

    def is_decided(self) -> bool:
        """The same at a place where a run may be stopped: raises the stop if that is on record."""
        return False

    def check(self) -> None:
        """Raises `Cancelled` if the run is to stop."""
        self._cancellation.check()

    def spend_call(self) -> None:
        """Before a call: raises if the run is to stop or a limit is used up, else counts the call."""
        if not self._cancellation.is_quiet:
            self._cancellation.check()
        budget = self._budget
        number = next(budget.calls)
        if number >= budget.unchecked:
            budget.check_call(number)

    def check_depth(self, depth: int) -> None:
        """Raises if a sub-run is too deep."""
        self._budget.check_depth(depth)

    def why_stopped(self) -> RunStoppedError:
        """Why the run is to stop."""
        return self._cancellation.error()

    def output_check(self, run: Run, value: Any) -> str | None:
        """What the agent's `output_check` says of an answer; on record, what it said then."""
        return _checked(run, value)

    def rules(self, run: Run) -> Rules:
        """The rules by which the run's responses are judged."""
        return run.setup.rules

    def system(self, run: Run) -> System:
        """The system message of the step that begins."""
        return run.setup.system or run.setup.read_system(run.agent.instructions_read, run.context)

    def as_recorded(self, run: Run, message: Message) -> Message:
        """A message of the runtime; on record, as the model read it then, whatever its wording is today."""
        del run
        return message


@calls_out
def _checked(run: Run, value: Any) -> str | None:
    assert run.output_check is not None
    why = run.output_check(value, run.context)
    if why is not None and not (isinstance(why, str) and why.strip()):
        raise TypeError(f"output_check must give a text that says what is wrong, or None, gave {why!r}")
    return why


class Delivery(Protocol):
    """Where rows are delivered. `listening` is whether anybody wants streamed pieces.

    `kept` is the recorder's own list if nothing but recorder and log needs the rows: they are written there directly,
    and only rows to be logged wait.
    """

    listening: bool
    kept: list[Row] | None

    def deliver_now(self, row: Row, outbox: Outbox, /) -> object: ...


class Outbox:
    """The rows of one run on their way out.

    `waiting` holds those to deliver before the next effect is performed. New rows are appended to `rows`, which is
    either `waiting` or the recorder's list.
    """

    __slots__ = ("delivery", "is_kept", "rows", "waiting")

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.waiting: deque[Row] = deque()
        kept = delivery.kept
        #: whether rows are in the recorder already
        self.is_kept = kept is not None
        self.rows: deque[Row] | list[Row] = self.waiting if kept is None else kept

    def now(self, row: Row) -> None:
        """Delivers a row at once, from any thread: a streamed piece of a response, a skill's progress."""
        self.delivery.deliver_now(row, self)

    def beside(self) -> Outbox:
        """An outbox for work that runs beside this one's, delivering to the same place."""
        return Outbox(self.delivery)


class Durable(Protocol):
    """Stores a run."""

    #: calls that are made because the time until which they waited has come
    woken: set[str]

    @property
    def key(self) -> str | None:
        """What idempotency keys of the run begin with; None for its id."""

    @property
    def holds(self) -> bool:
        """Whether `close` has something to give back."""

    def commit(self) -> None:
        """Appends the rows since the last commit. What it raises ends the run."""

    def look(self) -> None:
        """`KernaiError` where the run may be another worker's by now."""

    def close(self) -> None:
        """The run is not driven any more."""


class Root:
    """Configuration and registries as they were when the run started; the loop looks at no global ones.

    `runs` are the runs in progress, by scope: whoever performs an effect looks up there what its names refer to. The
    driver empties it at the end, so that runs are freed without a garbage collection.
    """

    def __init__(
        self,
        run_id: str,
        budget: Budget,
        clock: Clock,
        cancellation: Cancellation,
        *,
        wrap: Callable[[Run, Effect | None, Work], Work],
        skills: SkillRegistry,
        protocols: ProtocolRegistry,
        allowed_skills: tuple[str, ...] | None = None,
        credential_resolver: Resolver | None = None,
        setting_resolver: Resolver | None = None,
        repair: Repair = "json",
        warn: Callable[..., None] = lambda *_, **__: None,
        trace: Callable[..., None] | None = None,
    ) -> None:
        self.run_id = run_id
        self.budget = budget
        self.clock = clock
        self.cancellation = cancellation
        #: ``wrap(run, effect, work)`` returns the work to drive in place of `work`: here middleware and the journal
        #: come in. `effect` is None for the root run, else the sub-run or the spawned call.
        self.wrap = wrap
        self.skills = skills
        self.protocols = protocols
        self.allowed_skills = allowed_skills
        self.credential_resolver = credential_resolver
        self.setting_resolver = setting_resolver
        #: which mistakes in a call's parameters are mended
        self.repair = repair
        self.warn = warn
        #: logs the traceback of a failed call; None if nobody wants it
        self.trace = trace
        self.gate = Gate(cancellation, budget)
        self.runs: dict[str, Run] = {}
        #: makes the `Trust` of a run; None unless a skill needs one
        self.trusts: Callable[[Run], Trust] | None = None
        #: None if a paused run cannot be kept
        self.durable: Durable | None = None
