"""`ReplayedScope`: the loop of one scope, driven by hand with what is on record of it.

It ends at the first effect whose outcome is not there, the frontier. `DurableScope` goes on from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kernai.durable import outcomes
from kernai.durable.comparison import Comparison, divergence
from kernai.durable.recorded_gate import RecordedGate
from kernai.durable.recorded_run import Recorded, is_broken_off, reading
from kernai.events import (
    BuiltinResultRow,
    LlmResponseRow,
    ModelFailedRow,
    ModelRestartedRow,
    ProtocolErrorRow,
    ProtocolResultRow,
    SkillErrorRow,
    SkillResultRow,
    TaskEndedRow,
    TaskErrorRow,
)
from kernai.loop.builtin_commands import BUILTINS
from kernai.loop.effects import (
    CallBuiltin,
    CallModel,
    CallProtocol,
    CallSkill,
    Cancelled,
    Completion,
    Effect,
    Join,
    NotPerformed,
    Spawn,
    SubRun,
    Work,
    task_scope,
)
from kernai.values.result import Usage

if TYPE_CHECKING:
    from kernai.agents.rules import Rules
    from kernai.durable.durable_run import DurableRun
    from kernai.loop.run_state import Run

#: rows of work that came to no result
ERRORS = (SkillErrorRow, ProtocolErrorRow, TaskErrorRow)


class ReplayedScope:
    """One run or sub-run, up to its frontier. `recorded` is what the recording has of it."""

    def __init__(self, durable: DurableRun, run: Run, work: Work, recorded: Sequence[Recorded] = ()) -> None:
        self.run = run
        self.ended: Completion | None = None
        self.is_parked = False
        self._durable = durable
        self._work = work
        self._recorded = recorded
        self._gate = RecordedGate(run, recorded, durable.history.seams, compares=durable.compares)
        self._comparison = Comparison()
        self.has_unrecorded = False
        #: the effect with which the loop waits for what is not on record
        self._frontier: Effect | None = None
        #: spawned work: what has still to begin, what waits for somebody, and what has ended
        self._to_spawn: list[Spawn] = []
        self._parked: set[Any] = set()
        self._done: dict[Any, Completion] = {}
        self._keys: dict[str, Any] = {}  # by scope or call id, of whatever was spawned
        self._children: dict[Any, ReplayedScope] = {}
        if recorded:
            run.gate = self._gate

    def new_rules(self) -> Rules | None:
        """By what the rest of the run is judged, where that has changed since it was recorded."""
        return None if self.ended is not None else self._gate.new_rules()

    # -------------------------------------------------------------------------------------------------- replaying

    def replay(self) -> None:
        """Drives the loop to its frontier: the first effect whose outcome is not on record, or its end."""
        value, error = None, None
        while True:
            effect = self._advance(value, error)
            self._take_told()
            if effect is None:
                break
            outcome = self._recorded_outcome(effect)
            if outcome is None:
                self._frontier = effect
                break
            value, error = outcome.value, outcome.error
        failed = None if self.ended is None else self.ended.error
        if isinstance(failed, (KeyboardInterrupt, SystemExit)) and not isinstance(failed, outcomes.RecordedExit):
            raise failed  # it fell just now: of one on record nothing is left but that the run was stopped
        if self._gate.at < len(self._recorded):
            left = self._recorded[self._gate.at]
            raise divergence(left, left.row.type, "the run ends" if effect is None else repr(type(effect).__name__))
        self.is_parked = self.ended is None and self._is_stuck(self._frontier)
        if isinstance(self._frontier, CallModel) and not (self.is_parked or self.has_unrecorded) and self._recorded:
            self._durable.write_unrecorded(self.run, ModelRestartedRow("the run was taken up again"))

    def _advance(self, value: Any, error: BaseException | None) -> Effect | None:
        """The loop's next effect; None where it has ended, as `ended` says."""
        try:
            return self._work.send(value) if error is None else self._work.throw(error)
        except StopIteration as stop:
            self.ended = Completion(None, stop.value)
        except BaseException as raised:  # noqa: BLE001 - how the loop has ended
            self.ended = Completion(None, error=raised)
        return None

    def _take_told(self) -> None:
        """Compares what the loop has told with the recording. What is not there is new."""
        waiting = self.run.outbox.waiting
        while waiting:
            row = waiting.popleft()
            if self._gate.at >= len(self._recorded):
                self._durable.news.append(row)
                self.has_unrecorded = True
            elif row.role in ("decision", "outcome"):
                recorded = self._recorded[self._gate.at]
                reading(recorded, self._comparison.check, row, recorded)
                self._gate.at += 1

    def _recorded_outcome(self, effect: Effect) -> Completion | None:
        """What came of an effect, as far as it is on record."""
        if isinstance(effect, SubRun) and not self._durable.waits_to_begin(effect):
            return self._end_of(self._durable.replayed(effect))
        if isinstance(effect, Spawn):
            return self._replay_spawned(effect)
        if isinstance(effect, Join):
            return self._recorded_end()
        assert isinstance(effect, (CallModel, CallSkill, CallProtocol, CallBuiltin, SubRun))
        next_one = self._recorded[self._gate.at] if self._gate.at < len(self._recorded) else None
        wasted = self._durable.history.wasted_on(effect.call_id) if isinstance(effect, CallModel) else None
        if wasted is not None:
            self.run.count_failed(wasted)
        if isinstance(effect, (CallModel, CallBuiltin)):
            return self._not_recorded(effect) if next_one is None else reading(next_one, self._answer, effect, next_one)
        call = self._durable.history.outcome_of(effect.call_id)
        if call is None and next_one is not None:
            raise divergence(next_one, next_one.row.type, f"call {effect.call_id} is made")
        return reading(call, self._completion, call) if call is not None else self._not_recorded(effect)

    def _end_of(self, child: ReplayedScope) -> Completion | None:
        """How a sub-run ended, which is on record where what its parent made of it is."""
        told = self._recorded[self._gate.at] if self._gate.at < len(self._recorded) else None
        if told is not None and (child.ended is None or child.has_unrecorded or is_broken_off(told)):
            if not isinstance(told.row, ERRORS):
                raise divergence(told, told.row.type, f"the run {child.run.scope} continues")
            # it was given up with the root: what its parent told of it is all that there is
            return Completion(None, error=self._recorded_error(told))
        return child.ended

    def _answer(self, effect: CallModel | CallBuiltin, next_one: Recorded) -> Completion | None:
        row, stream = next_one.row, self.run.stream
        if isinstance(effect, CallBuiltin) and isinstance(row, BuiltinResultRow):
            return Completion(None, row.result)
        if isinstance(effect, CallModel) and isinstance(row, LlmResponseRow):
            if stream is not None and row.given_up is not None:
                stream.give_up(Usage(**row.given_up))
            return Completion(None, outcomes.response(row))
        if isinstance(effect, CallModel) and isinstance(row, ModelFailedRow):
            if stream is not None:
                stream.pieces[:] = [row.content]
                stream.give_up(row.usage())
            return Completion(None, error=outcomes.model_failure(row))
        raise divergence(next_one, row.type, f"{type(effect).__name__} {effect.call_id}")

    def _completion(self, told: Recorded) -> Completion:
        row = told.row
        if isinstance(row, (SkillErrorRow, ProtocolErrorRow)):
            in_task = self.run.scope != "" and self.run.task_id is not None
            exits = outcomes.exit_of(row) if in_task else None  # elsewhere it has ended the whole run
            resumed = (exits or row.stop_reason) is not None and self._durable.history.was_resumed_after(told)
            if exits is not None and not resumed:
                return Completion(None, error=exits)
            return Completion(None, error=outcomes.error(row, resumed=resumed))
        assert isinstance(row, (SkillResultRow, ProtocolResultRow))
        return Completion(None, outcomes.value(row, self.run.context.media_store))

    def _not_recorded(self, effect: CallModel | CallSkill | CallProtocol | CallBuiltin | SubRun) -> Completion | None:
        """What becomes of a call that has no outcome: None where it is performed, or waits."""
        if self._durable.closes:
            if isinstance(effect, CallBuiltin):
                return Completion(None, BUILTINS[effect.command](self.run))
            return Completion(None, error=self._durable.broken_off(effect.call_id))
        if isinstance(effect, (CallSkill, CallProtocol)) and self._durable.history.was_announced(effect.call_id):
            return self._durable.settle(self.run, effect)
        return None

    def _replay_spawned(self, effect: Spawn) -> Completion:
        what, key = effect.what, effect.key
        self._keys[what.call_id] = key
        if isinstance(what, SubRun) and what.skill is None and self._was_dropped(what, key):
            return Completion(None)
        if isinstance(what, SubRun) and not self._durable.waits_to_begin(what):
            child = self._children[key] = self._durable.replayed(what)
            ended, waits = child.ended, child.is_parked
        else:
            told = self._durable.history.outcome_of(what.call_id)
            ended = reading(told, self._completion, told) if told is not None else self._not_recorded(what)
            waits = self._durable.waits(what.call_id)
        if ended is not None:
            self._done[key] = Completion(key, ended.value, ended.error)
        elif waits:
            self._parked.add(key)
        else:
            self._to_spawn.append(effect)
        return Completion(None)

    def _recorded_end(self) -> Completion | None:
        """The completion that comes next: by the recording, else of those that are there."""
        if self._gate.at >= len(self._recorded):
            return None if not self._done else Completion(None, self._done.pop(next(iter(self._done))))
        told = self._recorded[self._gate.at]
        row = told.row
        spawned = getattr(row, "call_id", None)
        if isinstance(row, TaskEndedRow):
            spawned = task_scope(self.run.scope, self.run.step, row.task_id)
        if spawned not in self._keys:
            raise divergence(told, row.type, "no such work was begun")
        key = self._keys[spawned]
        child, ended = self._children.pop(key, None), self._done.pop(key, None)
        if child is not None:
            of_child = self._end_of(child)
            ended = of_child and Completion(key, of_child.value, of_child.error)
        if ended is None:
            if not isinstance(row, ERRORS):
                raise divergence(told, row.type, "spawned work is waited for")
            ended = Completion(key, error=self._recorded_error(told))
        self._parked.discard(key)
        self._to_spawn = [spawn for spawn in self._to_spawn if spawn.key != key]
        return Completion(None, ended)

    def _recorded_error(self, told: Recorded) -> BaseException:
        """How spawned work ended, by what its parent wrote of it."""
        row = told.row
        if not isinstance(row, TaskErrorRow):
            assert isinstance(row, (SkillErrorRow, ProtocolErrorRow))
            return reading(told, lambda: outcomes.error(row, resumed=self._durable.history.was_resumed_after(told)))
        if row.not_run:
            return NotPerformed()
        return Cancelled() if row.interrupted else outcomes.RecordedError(row.error)

    def _was_dropped(self, task: SubRun, task_id: Any) -> bool:
        """Whether a task is on record as one that ended, and never began."""
        return not self._durable.has_begun(task.scope) and any(
            isinstance(one.row, TaskErrorRow) and one.row.task_id == task_id and one.step == self.run.step
            for one in self._recorded[self._gate.at:]
        )

    def _is_stuck(self, effect: Effect | None) -> bool:
        """Whether the loop waits for nothing but people."""
        if isinstance(effect, Join):
            return not self._to_spawn
        if isinstance(effect, SubRun) and effect.scope in self._durable.scopes:
            return self._durable.scopes[effect.scope].is_parked
        return isinstance(effect, (CallModel, CallSkill, CallProtocol, SubRun)) and self._durable.waits(effect.call_id)
