"""`DurableScope`: sits between the loop of one run or sub-run and its driver.

`replay` drives the loop with recorded outcomes, up to the first effect whose outcome is not recorded: the frontier.
`live` continues from there, as a generator for a driver. It takes the loop's effects and yields effects of its own: a
`Commit` before each effect with side effects. It asks for approvals, and parks work that waits for one.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from kernai import events
from kernai.durable import outcomes
from kernai.durable.approvals import Call, CallRefusedError, as_shown, decided, pending_call
from kernai.durable.recorded_run import Recorded, is_broken_off, reading
from kernai.durable.replay_cursor import Comparison, ReplayCursor, divergence
from kernai.errors import LimitReachedError, Pause, Stop
from kernai.loop.builtin_commands import run_builtin
from kernai.loop.effects import (
    CallBuiltin,
    CallModel,
    CallProtocol,
    CallSkill,
    Cancelled,
    Commit,
    Completion,
    Effect,
    Join,
    LimitStop,
    NotBegun,
    NotPerformed,
    Parked,
    Spawn,
    SubRun,
    Work,
    advance,
    attempted,
    task_scope,
)
from kernai.values.result import Usage

if TYPE_CHECKING:
    from kernai.agents.definition import Rules
    from kernai.durable.durable_run import DurableRun
    from kernai.durable.host_state import HostState, Saved
    from kernai.loop.run_state import Run

#: rows of work without a result
_ERRORS = (events.SkillErrorRow, events.ProtocolErrorRow, events.TaskErrorRow)


class DurableScope:
    """One run or sub-run; `rows` are its recorded rows."""

    def __init__(self, durable: DurableRun, run: Run, work: Work, rows: Sequence[Recorded] = ()) -> None:
        self.run = run
        self.ended: Completion | None = None
        #: whether the loop waits for nothing but decisions
        self.is_parked = False
        #: whether the loop has written rows beyond the recorded ones
        self.has_unrecorded = False
        self._durable = durable
        self._work = work
        self._cursor = ReplayCursor(run, rows, durable.history.seams, compares=durable.compares)
        self._comparison = Comparison()
        #: the first effect whose outcome is not recorded
        self._frontier: Effect | None = None
        #: spawned work, by key: not started yet, running, waiting for a decision, and ended
        self._to_spawn: list[Spawn] = []
        self._running: set[Any] = set()
        self._parked: set[Any] = set()
        self._done: dict[Any, Completion] = {}
        self._calls: dict[Any, Call] = {}
        self._children: dict[Any, DurableScope] = {}
        self._keys: dict[str, Any] = {}  # by scope or call id
        self._has_failed = False
        if rows:
            run.gate = self._cursor

    def new_rules(self) -> Rules | None:
        """The rules for the rest of the run, if they have changed since it was recorded."""
        return None if self.ended is not None else self._cursor.new_rules()

    # -------------------------------------------------------------------------------------------------- on record

    def replay(self) -> None:
        """Drives the loop to the first effect whose outcome is not recorded, or to its end."""
        outcome: Completion | None = Completion(None)
        while outcome is not None:
            effect = advance(self._work, outcome.value, outcome.error)
            self._compare_rows()
            if isinstance(effect, Completion):
                self.ended, outcome = effect, None
            else:
                outcome = self._recorded_outcome(effect)
                self._frontier = None if outcome is not None else effect
        failed = None if self.ended is None else self.ended.error
        if isinstance(failed, (KeyboardInterrupt, SystemExit)) and not isinstance(failed, outcomes.RecordedExit):
            raise failed  # raised just now; a recorded one is replayed as a cancellation
        left, frontier = self._cursor.next, self._frontier
        if left is not None:
            raise divergence(left, left.row.type, "the run ends" if frontier is None else repr(type(frontier).__name__))
        self.is_parked = frontier is not None and self._waits_for_decisions(frontier)
        if isinstance(frontier, CallModel) and not (self.is_parked or self.has_unrecorded) and self._cursor.rows:
            self._durable.write_unrecorded(self.run, events.ModelRestartedRow("the run was resumed"))

    def _compare_rows(self) -> None:
        """Compares the rows that the loop has written with the recording. Rows beyond its end are new."""
        waiting = self.run.outbox.waiting
        while waiting:
            row, recorded = waiting.popleft(), self._cursor.next
            if recorded is None:
                self._durable.news.append(row)
                self.has_unrecorded = True
            elif row.role in ("decision", "outcome"):
                reading(recorded, self._comparison.check, row, recorded)
                self._cursor.at += 1

    def _recorded_outcome(self, effect: Effect) -> Completion | None:
        """An effect's outcome, if it is recorded."""
        if isinstance(effect, SubRun) and not self._durable.waits_to_begin(effect):
            return self._end_of(self._durable.replayed(effect))
        if isinstance(effect, Spawn):
            return self._replay_spawned(effect)
        if isinstance(effect, Join):
            return self._recorded_end()
        assert isinstance(effect, (CallModel, CallSkill, CallProtocol, CallBuiltin, SubRun))
        following, history = self._cursor.next, self._durable.history
        if isinstance(effect, CallModel) and effect.call_id in history.wasted:
            self.run.count_failed(history.wasted[effect.call_id])
        if isinstance(effect, (CallModel, CallBuiltin)):
            recorded = following and reading(following, self._answer, effect, following)
            return recorded or self._unrecorded(effect)
        call = history.outcome_of(effect.call_id)
        return self._unrecorded(effect) if call is None else self._from_record(effect, call)

    def _end_of(self, child: DurableScope) -> Completion | None:
        """How a sub-run ended, if it did. If it was broken off with the root, only its parent's row says how."""
        recorded = self._cursor.next
        if recorded is not None and (child.ended is None or child.has_unrecorded or is_broken_off(recorded)):
            if not isinstance(recorded.row, _ERRORS):
                raise divergence(recorded, recorded.row.type, f"the run {child.run.scope} continues")
            return Completion(None, error=self._recorded_error(recorded))
        return child.ended

    def _answer(self, effect: CallModel | CallBuiltin, following: Recorded) -> Completion | None:
        row, stream = following.row, self.run.stream
        if isinstance(effect, CallBuiltin) and isinstance(row, events.BuiltinResultRow):
            return Completion(None, row.result)
        if isinstance(effect, CallModel) and isinstance(row, events.LlmResponseRow):
            if stream is not None and row.given_up is not None:
                stream.give_up(Usage(**row.given_up))
            return Completion(None, outcomes.response(row))
        if isinstance(effect, CallModel) and isinstance(row, events.ModelFailedRow):
            if stream is not None:
                stream.pieces[:] = [row.content]
                stream.give_up(row.usage())
            return Completion(None, error=outcomes.model_failure(row))
        raise divergence(following, row.type, f"{type(effect).__name__} {effect.call_id}")

    def _from_record(self, effect: Effect, recorded: Recorded) -> Completion:
        check = self._durable.check_skill
        if check is not None and isinstance(effect, CallSkill):
            check(self.run, effect, recorded)
        return reading(recorded, self._completion, recorded)

    def _completion(self, recorded: Recorded) -> Completion:
        row = recorded.row
        if isinstance(row, (events.SkillErrorRow, events.ProtocolErrorRow)):
            in_task = self.run.scope != "" and self.run.task_id is not None
            exits = outcomes.exit_of(row) if in_task else None  # outside a task, an exit ended the whole run
            resumed = (exits or row.stop_reason) is not None and self._durable.history.was_resumed_after(recorded)
            if exits is not None and not resumed:
                return Completion(None, error=exits)
            return Completion(None, error=outcomes.error(row, resumed=resumed))
        assert isinstance(row, (events.SkillResultRow, events.ProtocolResultRow))
        return Completion(None, outcomes.value(row, self.run.context.media_store))

    def _unrecorded(self, effect: CallModel | CallSkill | CallProtocol | CallBuiltin | SubRun) -> Completion | None:
        """The outcome of a call without a recorded one; None if it is to be performed, or waits."""
        if self._durable.closes:
            if isinstance(effect, CallBuiltin):
                return Completion(None, run_builtin(self.run, effect.command))
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
            recorded = self._durable.history.outcome_of(what.call_id)
            ended = self._unrecorded(what) if recorded is None else self._from_record(what, recorded)
            waits = self._durable.waits(what.call_id)
        if ended is not None:
            self._done[key] = Completion(key, ended.value, ended.error)
        elif waits:
            self._parked.add(key)
        else:
            self._to_spawn.append(effect)
        return Completion(None)

    def _was_dropped(self, task: SubRun, task_id: Any) -> bool:
        """Whether the recording says that a task ended before it began."""
        return not self._durable.has_begun(task.scope) and any(
            isinstance(one.row, events.TaskErrorRow) and one.row.task_id == task_id and one.step == self.run.step
            for one in self._cursor.rows[self._cursor.at:]
        )

    def _recorded_end(self) -> Completion | None:
        """The next completion in the recorded order; after the end of the record, any that is known."""
        recorded = self._cursor.next
        if recorded is None:
            return None if not self._done else Completion(None, self._done.pop(next(iter(self._done))))
        row = recorded.row
        spawned = getattr(row, "call_id", None)
        if isinstance(row, events.TaskEndedRow):
            spawned = task_scope(self.run.scope, self.run.step, row.task_id)
        if spawned not in self._keys:
            raise divergence(recorded, row.type, "no such call or task was started")
        key = self._keys[spawned]
        child, ended = self._children.pop(key, None), self._done.pop(key, None)
        if child is not None:
            of_child = self._end_of(child)
            ended = of_child and Completion(key, of_child.value, of_child.error)
        if ended is None:
            if not isinstance(row, _ERRORS):
                raise divergence(recorded, row.type, "the run is waiting for a call or task to end")
            ended = Completion(key, error=self._recorded_error(recorded))
        self._parked.discard(key)
        self._to_spawn = [spawn for spawn in self._to_spawn if spawn.key != key]
        return Completion(None, ended)

    def _recorded_error(self, recorded: Recorded) -> BaseException:
        """The error of spawned work, from its parent's row."""
        row = recorded.row
        if not isinstance(row, events.TaskErrorRow):
            assert isinstance(row, (events.SkillErrorRow, events.ProtocolErrorRow))
            resumed = self._durable.history.was_resumed_after(recorded)
            return reading(recorded, lambda: outcomes.error(row, resumed=resumed))
        if row.not_run:
            return NotPerformed()
        return Cancelled() if row.interrupted else outcomes.RecordedError(row.error)

    def _waits_for_decisions(self, frontier: Effect) -> bool:
        if isinstance(frontier, Join):
            return not self._to_spawn
        if isinstance(frontier, SubRun) and frontier.scope in self._durable.scopes:
            return self._durable.scopes[frontier.scope].is_parked
        calls = (CallModel, CallSkill, CallProtocol, SubRun)
        return isinstance(frontier, calls) and self._durable.waits(frontier.call_id)

    # ----------------------------------------------------------------------------------------------- after the record

    def live(self) -> Work:
        """The rest of the run, for a driver."""
        run = self.run
        run.gate = run.root.gate
        if run.trust is not None and self._frontier is not None:  # a new run records this in its `run_start`
            added = run.trust.note_host(before_response=isinstance(self._frontier, CallModel))
            if added is not None:
                run.write(added)
        try:
            yield from self._continue()
        except Parked:
            self._work.close()
            end = self._durable.end_parked(self)
        else:
            end = self._durable.end(self)
        return (yield from end)  # outside of `except`, so that `Parked` is not the error's context

    def _continue(self) -> Generator[Effect, Any, None]:
        """Continues from the frontier until the loop has ended."""
        effect = self._frontier
        state = self._durable.state_of(self.run)
        if state is not None:
            state.begin(self.run)
        while self.ended is None:
            value = error = None
            changed: list[Saved] = []
            added: events.TrustAddedRow | None = None
            if effect is not None:
                try:
                    outcome = yield from self._performed(effect)
                    value, error = outcome.value, outcome.error
                    if state is not None:
                        changed = yield from self._changed(state, effect, outcome)
                    added = None if self.run.trust is None else self.run.trust.note_host()
                except (Exception, Parked, GeneratorExit):
                    raise
                except BaseException as raised:  # noqa: BLE001 - from `approve` or `Context.save`
                    self.run.root.cancellation.set()
                    error = raised
            waiting = self.run.outbox.waiting
            at = len(waiting)
            following = advance(self._work, value, error)
            if isinstance(following, Completion):
                self.ended = following
            else:
                effect = following
            if added is not None:
                waiting.insert(at + 1, self.run.sealed(added))
            if state is not None and changed:
                for after, saved in enumerate(changed, at + 1):
                    waiting.insert(after, saved.row)
                state.accompany(waiting[at], changed)  # the loop writes the outcome first

    def _changed(self, state: HostState, effect: Effect, outcome: Completion) -> Generator[Effect, Any, list[Saved]]:
        """The changes of an outcome to the host's state, without half-finished changes by other calls."""
        run = self.run
        changed = self._durable.changed_state(run)
        if not changed or isinstance(effect, (CallSkill, CallProtocol)):
            return changed
        if isinstance(effect, Join) and outcome.value is not None and outcome.value.key in self._calls:
            return changed
        yield from state.in_turn(run)
        changed = self._durable.changed_state(run)
        if not changed:  # another call made the change, and has recorded it in the meantime
            state.end_turn(run.scope)
        return changed

    def _performed(self, effect: Effect) -> Generator[Effect, Any, Completion]:
        if isinstance(effect, Spawn):
            self._to_spawn.append(effect)
            return Completion(None)
        if isinstance(effect, Join):
            return (yield from self._joined())
        if self._durable.is_unwanted:
            failed = yield from self._leave_to_others()
            if failed is None:
                raise Parked
            return failed
        if isinstance(effect, (CallModel, CallSkill, CallProtocol)):
            return (yield from self._called(effect))
        asks = isinstance(effect, SubRun) and self._durable.waits_to_begin(effect)
        approved = self._approved(effect) if asks else effect  # type: ignore[arg-type]  # it is a call then
        outcome = (yield from attempted(approved)) if isinstance(approved, Effect) else approved
        if isinstance(outcome.error, Parked):
            raise Parked
        return outcome

    def _called(self, effect: CallModel | CallSkill | CallProtocol) -> Generator[Effect, Any, Completion]:
        approved = self._approved(effect)
        if not isinstance(approved, Effect):
            return approved
        if not isinstance(effect, CallModel) and (state := self._durable.state_of(self.run)) is not None:
            yield from state.in_turn(self.run, effect)
        outcome = (yield from self._commit()) or self._forbidden(effect)
        outcome = outcome or (yield from attempted(approved))
        if isinstance(outcome.error, Pause):
            self._park(approved, outcome.error)
        return outcome

    def _forbidden(self, effect: Effect) -> Completion | None:
        """The outcome of an announced call that may no longer begin; None if it may."""
        if self._is_stopped():
            return Completion(None, error=NotBegun())
        if effect is self._frontier and isinstance(effect, CallModel):
            try:
                self.run.root.budget.check_call(self._cursor.spent)
            except LimitReachedError as error:
                return Completion(None, error=LimitStop(error.reason, str(error)))
        return None

    def _commit(self) -> Generator[Effect, Any, Completion | None]:
        """Appends the rows so far. Returns an outcome only if that failed, in which case nothing may be performed."""
        journal = self._durable.journal
        if journal is None or not (any(row.stored_first for row in self.run.outbox.waiting) or journal.due):
            return None
        outcome = yield from attempted(Commit())
        return None if outcome.error is None else outcome

    def _leave_to_others(self) -> Generator[Effect, Any, Completion | None]:
        """Appends the rows so far, except those of calls that were about to begin: another worker will make them.
        Returns an outcome only if that failed; otherwise the caller parks the work.
        """
        waiting = self.run.outbox.waiting
        kinds = (events.CallBegunRow, events.MessagesSentRow)
        announced = (at for at, row in enumerate(waiting) if isinstance(row, kinds))
        for _ in range(next(announced, len(waiting)), len(waiting)):
            waiting.pop()
        self._durable.is_left = True
        outcome = yield from attempted(Commit())
        return None if outcome.error is None else outcome

    def _begin_spawned(self) -> Generator[Effect, Any, Completion | None]:
        """Begins all spawned work. Returns an outcome only if that failed.

        All approvals are requested first, so that the waiting calls are recorded before anything is performed.
        """
        asked, self._to_spawn = self._to_spawn, []
        if self._durable.is_unwanted:
            self._parked.update(spawn.key for spawn in asked)
            return (yield from self._leave_to_others())
        ready: list[Spawn] = []
        failed: Completion | None = None
        for spawn in asked:
            try:
                one = spawn if failed is not None or self._is_stopped() else self._ready(spawn)
            except BaseException as error:  # noqa: BLE001 - from `approve`
                one, failed = spawn, Completion(None, error=error)
            if one is not None:
                ready.append(one)
        failed = failed or (yield from self._commit())
        for spawn in ready:
            if failed is None and not self._is_stopped():
                outcome = yield from attempted(spawn)
                failed = None if outcome.error is None else outcome
                if outcome.error is None:
                    self._running.add(spawn.key)
                    continue
            self._done[spawn.key] = Completion(spawn.key, error=NotPerformed())
        return failed

    def _is_stopped(self) -> bool:
        return self.run.root.cancellation.is_set()

    def _ready(self, spawn: Spawn) -> Spawn | None:
        """The work to begin; None if it waits for a decision, or was refused."""
        key, what = spawn.key, spawn.what
        if isinstance(what, SubRun) and not self._durable.waits_to_begin(what):
            return spawn
        try:
            approved = self._approved(what)
        except Parked:
            self._parked.add(key)
            return None
        if not isinstance(approved, Effect):
            self._done[key] = Completion(key, approved.value, approved.error)
            return None
        if not isinstance(what, SubRun):
            self._calls[key] = approved
        return spawn.replace(what=approved)

    def _joined(self) -> Generator[Effect, Any, Completion]:
        if self._to_spawn or not self._done:
            failed = yield from (self._begin_spawned() if self._to_spawn else self._commit())
            if failed is not None and not self._has_failed:
                self._has_failed = True  # reported once, since the loop still waits for running work
                return failed
        while not self._done:
            if not self._running:
                if not self._parked:  # a second Ctrl-C may come anywhere
                    return Completion(None, error=NotPerformed())
                self._wake_parked()
                continue
            outcome = yield from attempted(Join())
            if outcome.error is not None:
                return outcome
            ended: Completion = outcome.value
            self._running.discard(ended.key)
            if not isinstance(ended.error, (Parked, Pause)):
                return outcome
            if isinstance(ended.error, Pause):
                self._request(self._calls[ended.key], ended.error)
            self._parked.add(ended.key)
        return Completion(None, self._done.pop(next(iter(self._done))))

    def _wake_parked(self) -> None:
        """Handles the case that all work left waits for decisions. Parks the loop too, unless the run is to stop."""
        if not self._is_stopped():
            raise Parked
        for key in self._parked:
            self._done[key] = Completion(key, error=Cancelled())
        self._parked.clear()

    # ------------------------------------------------------------------------------------------------- approvals

    def _approved(self, effect: Call) -> Call | Completion:
        """The call to make, or the outcome of a refused one. Parks the call if nobody has decided yet."""
        shown = as_shown(self.run, effect, self._durable.history.facts.changed.get(effect.call_id))
        if isinstance(shown, Completion):
            return shown
        effect = shown
        decision = self._durable.decisions.pop(effect.call_id, None)
        if decision is not None and decision.is_woken:  # not a consent, unless somebody agreed before the call paused
            self._durable.woken.add(effect.call_id)
            decision = self._durable.history.facts.agreed(effect.call_id)
        if decision is None and not isinstance(effect, CallModel):
            try:
                decision = self._durable.ask(self.run, effect)
            except Pause as pause:
                self._park(effect, pause)
            except (Stop, CallRefusedError) as refused:
                return Completion(None, error=refused)
            if decision is not None:
                row = decision.row(effect.call_id)
                if self.run.trust is not None and not isinstance(decision.value, bool):
                    row.trusted = decision.trusted  # the `approve` function may quote the model's own text
                    self.run.trust.restore([row])
                self.run.write(row)
        return effect if decision is None else decided(self.run, effect, decision)

    def _park(self, effect: Call, pause: Pause) -> None:
        self._request(effect, pause)
        raise Parked

    def _request(self, effect: Call, pause: Pause) -> None:
        asked = pending_call(self.run, effect, pause)
        self.run.write(events.ApprovalRequestedRow(**asked.to_dict()))
        self._durable.pending.append(asked)
