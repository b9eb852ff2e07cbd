"""`Root`: what a root run and all its sub-runs share. Also its clock, cancellation, gate and outboxes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from kernai._util.api import check_methods
from kernai.errors import LimitReachedError, RunCancelledError, RunStoppedError, Stop, described
from kernai.interrupts import calls_out
from kernai.loop.builtin_commands import run_builtin
from kernai.loop.effects import Cancelled, Effect, Work
from kernai.values.context import Context, child_of
from kernai.values.result import StopReason

if TYPE_CHECKING:
    from kernai.agents.definition import Rules
    from kernai.agents.setup import System
    from kernai.durable.durable_run import DurableRun
    from kernai.durable.journal import Journal
    from kernai.events import Row
    from kernai.inputs.table import Repair
    from kernai.loop.run_state import Run
    from kernai.loop.trust import Trust
    from kernai.recording.log import EventLog
    from kernai.registry.configuration import Configuration
    from kernai.registry.protocol_registry import ProtocolRegistry
    from kernai.registry.skill_registry import SkillRegistry
    from kernai.values.limits import Budget
    from kernai.values.message import Message


class Clock:
    """The time, in seconds: `wall` since 1970, for timestamps; `monotonic`, which never goes back, for durations."""

    __slots__ = ("monotonic", "wall")

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.wall = wall
        self.monotonic = monotonic


class Cancellation:
    """Whether a root run must stop, and why. The loop, drivers, providers and skills check it.

    It is set from within (Ctrl-C, a closed stream), by the caller's `cancel` object, or by the timeout.
    """

    __slots__ = ("_left", "_outer", "_set", "_stop", "_timeout", "clock", "deadline", "is_quiet")

    def __init__(self, clock: Clock, outer: Any = None) -> None:
        if outer is not None:
            check_methods(outer, "cancel must have is_set(), as a threading.Event() that you set() to cancel", "is_set")
        self.clock = clock
        self._outer = outer
        self._set = False
        self._stop: Stop | None = None
        self._timeout: float | None = None
        #: in the clock's monotonic seconds; None without a timeout
        self.deadline: float | None = None
        #: whether it is not set, and only `set` can change that: nobody has to look at the clock or at `cancel`
        self.is_quiet = outer is None

    def begin(self, timeout: float | None, spent: float = 0.0) -> None:
        """Sets the timeout, in seconds, and starts it. `spent` is how much the run had used before it was resumed."""
        if timeout is not None:
            self._timeout, self._left = timeout, max(timeout - spent, 0.0)
            self.is_quiet = False
            self.start()

    def start(self) -> None:
        """Starts the timeout, or starts it again: a stream's run begins only when its first event is asked for."""
        if self._timeout is not None:
            self.deadline = self.clock.monotonic() + self._left

    def set(self) -> None:
        self._set = True
        self.is_quiet = False

    def stop(self, stop: Stop) -> None:
        """Ends the run because an observer raised `stop`. If several do, the first one is the reason."""
        self._stop = self._stop or stop
        self.set()

    def reopen(self) -> None:
        """Undoes `set` and `stop`: the run continues."""
        self._set, self._stop = False, None

    def is_set(self) -> bool:
        if not self._set and self._outer is not None:
            try:
                # remembered: clearing the caller's event later does not resume the run
                self._set = bool(self._outer.is_set())
            except Exception as error:  # noqa: BLE001 - asked again at the run's end, it would prevent its `result`
                self._outer = None
                self.stop(Stop("error", f"cancel.is_set() raised {described(error)}"))
        return self._set or (self.deadline is not None and self.clock.monotonic() >= self.deadline)

    def left(self) -> float:
        """How many seconds the run has left if only its timeout can end it, else 0."""
        if self.deadline is None or self._outer is not None or self._set:
            return 0.0
        return self.deadline - self.clock.monotonic()

    def check(self) -> None:
        """Raises `Cancelled` if the run must stop."""
        if not self.is_quiet and self.is_set():
            raise Cancelled

    def error(self) -> RunStoppedError:
        """Returns why the run must stop. A cancellation takes precedence over the timeout."""
        if self.is_set() and not self._set:
            return LimitReachedError(f"timeout={self._timeout} s has passed", StopReason.TIMEOUT)
        if self._stop is not None and self._stop.reason != StopReason.CANCELLED:
            return LimitReachedError(str(self._stop), self._stop.reason)
        why = "" if self._stop is None or not self._stop.args[1] else f": {self._stop.args[1]}"
        return RunCancelledError(f"the run was cancelled{why}")


class Gate:
    """What a run asks before it acts: whether it must stop, whether a limit is used up, which rules apply.

    For live runs, the `Root` is the gate. A scope that is being replayed has a `durable.history.ReplayCursor` of
    its own, which answers from the recording.
    """

    __slots__ = ("budget", "cancellation")

    cancellation: Cancellation
    budget: Budget

    def is_on_record(self) -> bool:
        """Whether the next row has been recorded already, because the run is being replayed."""
        return False

    def is_decided(self) -> bool:
        """Like `is_on_record`, at a place where a run may stop: raises the stop if one is recorded here."""
        return False

    def check(self) -> None:
        self.cancellation.check()

    def spend_call(self) -> None:
        """Counts a call before it is made. Raises if the run must stop or a limit is used up."""
        if not self.cancellation.is_quiet:
            self.cancellation.check()
        budget = self.budget
        number = next(budget.calls)
        if number >= budget.unchecked:
            budget.check_call(number)

    def steps(self, run: Run) -> range:
        """Returns the steps that the turn which begins may take; in a replay, those that it took."""
        return range(run.steps, run.steps + run.agent.max_steps)

    def why_stopped(self) -> RunStoppedError:
        return self.cancellation.error()

    def child_context(self, run: Run, scope: str, task_id: str | None) -> Context:
        """Returns a sub-run's context. Raises what `Context.child` raises; in a replay, what it raised."""
        del scope
        return child_of(run.context, task_id)

    def builtin(self, run: Run, command: str) -> str:
        """Returns the output of a built-in command; in a replay, what it was then."""
        return run_builtin(run, command)

    @calls_out
    def output_check(self, run: Run, value: Any) -> str | None:
        """Returns what the agent's `output_check` says about an answer; in a replay, what it said then."""
        assert run.output_check is not None
        why = run.output_check(value, run.context)
        if why is not None and not (isinstance(why, str) and why.strip()):
            raise TypeError(f"output_check must give a text that says what is wrong, or None, gave {why!r}")
        return why and str.__str__(why)

    def rules(self, run: Run) -> Rules:
        """Returns the rules by which the run's responses are judged."""
        return run.setup.rules

    def repair(self, run: Run) -> Repair:
        """Returns which mistakes in a call's parameters or an answer are repaired; in a replay, those repaired then."""
        return run.root.configured_repair

    def system(self, run: Run) -> System:
        """Returns the system message of the step that begins."""
        return run.setup.system or run.setup.read_system(run.agent.instructions_read, run.context)

    def as_recorded(self, run: Run, message: Message) -> Message:
        """Returns a message of the runtime; in a replay, as the model read it then, even if the wording has changed."""
        del run
        return message


class Delivery(Protocol):
    """Where rows are delivered. `listening`: whether anybody wants streamed pieces.

    `kept` is the recorder's own list if only the recorder and the log need the rows; without a recorder, one that drops
    them; else None. Rows are written directly to it, and only rows for the log wait for their delivery.

    `deliver_now` delivers one row of `run` immediately, from any thread, such as a streamed piece of a response or a
    skill's progress, unless the run has ended.
    """

    listening: bool
    kept: list[Row] | deque[Row] | None

    def deliver_now(self, row: Row, run: Run, /) -> object: ...


class Outbox:
    """The rows of one run that are to be delivered.

    `waiting` has the rows to deliver before the next effect is performed. New rows are appended to `rows`, which is
    either `waiting` or the recorder's list.
    """

    __slots__ = ("delivery", "rows", "waiting")

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.waiting: deque[Row] = deque()
        self.rows: deque[Row] | list[Row] = self.waiting if delivery.kept is None else delivery.kept


class Root(Gate):
    """Configuration and registries as they were when the run started. The loop never uses the global ones.

    `runs` has the runs in progress, by scope. Whoever performs an effect looks up its names there. The driver empties
    `runs` at the end, so that runs are freed without garbage collection.
    """

    def __init__(
        self, run_id: str, budget: Budget, cancellation: Cancellation, *, config: Configuration, skills: SkillRegistry,
        protocols: ProtocolRegistry, wrap: Callable[[Run, Effect | None, Work], Work], log: EventLog,
    ) -> None:
        self.cancellation, self.budget = cancellation, budget
        self.run_id = run_id
        self.clock = cancellation.clock
        #: ``wrap(run, effect, work)`` returns the work to drive in place of `work`, with middleware and the journal
        #: added. `effect` is None for the root run, else the sub-run or the spawned call.
        self.wrap = wrap
        self.skills = skills
        self.protocols = protocols
        self.allowed_skills = config.allowed_skills
        self.credential_resolver = config.credential_resolver
        self.setting_resolver = config.setting_resolver
        self.configured_repair = config.repair
        self.event_log = log
        self.runs: dict[str, Run] = {}
        #: makes the `Trust` of a run; None unless a skill needs one
        self.trusts: Callable[[Run], Trust] | None = None
        #: None if the run is not kept in a store, so that it cannot pause
        self.durable: DurableRun | None = None
        #: appends the run's rows to its store; None without a store
        self.journal: Journal | None = None

    def warn(self, name: str, **fields: object) -> None:
        """Logs a warning that is not an event."""
        self.event_log.warn(name, run_id=self.run_id, **fields)
