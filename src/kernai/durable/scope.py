"""`DurableScope`: sits between the loop of one run or sub-run and its driver.

`replay` drives the loop with recorded outcomes, up to the first effect whose outcome is not recorded: the frontier.
`live` continues from there, as a generator for a driver. It takes the loop's effects and yields effects of its own: a
`Commit` before each effect with side effects. It asks for approvals, and parks work that waits for one.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import count
from types import NoneType
from typing import TYPE_CHECKING, Any

from kernai import events
from kernai.durable import outcomes
from kernai.durable.approvals import Call, as_edited, ask, decided, pending_call
from kernai.durable.history import ReplayCursor, divergence
from kernai.durable.recorded_run import Recorded, reading
from kernai.errors import Control, LimitReachedError, Pause, Stop
from kernai.loop import effects
from kernai.loop.effects import CallModel, Cancelled, Completion, Effect, NotPerformed, Parked, Spawn, SubRun
from kernai.values.result import Usage

if TYPE_CHECKING:
    from kernai.durable.durable_run import DurableRun
    from kernai.durable.host_state import HostState
    from kernai.loop.run_state import Run

#: calls of skills and protocols
_TOOL_CALLS = (effects.CallSkill, effects.CallProtocol)
#: effects before which the rows so far are appended
_COMMITTED = (CallModel, *_TOOL_CALLS)
#: rows of work without a result
_ERRORS = (events.SkillErrorRow, events.ProtocolErrorRow, events.TaskErrorRow)


class DurableScope:
    """One run or sub-run; `rows` are its recorded rows."""

    def __init__(self, durable: DurableRun, run: Run, work: effects.Work, rows: Sequence[Recorded] = ()) -> None:
        self.run = run
        self.ended: Completion | None = None
        #: whether the loop waits for nothing but decisions
        self.is_parked = False
        #: whether the loop has written rows beyond the recorded ones
        self.has_unrecorded = False
        #: the loop
        self.work = work
        self._durable = durable
        self.cursor = ReplayCursor(run, rows, durable.history, compares=durable.compares)
        #: the first effect whose outcome is not recorded
        self._frontier: Effect | None = None
        #: while it is replayed, spawned work by scope or call id
        self._spawned: dict[str, Spawn] = {}
        #: after that, spawned work by key: not started yet, running, waiting for a decision, and ended
        self._to_spawn: list[Spawn] = []
        self._running: set[Any] = set()
        self._parked: list[Any] = []
        self._done: dict[Any, Completion] = {}
        self._calls: dict[Any, Call] = {}
        self._has_failed = False
        if rows:
            run.gate = self.cursor

    # -------------------------------------------------------------------------------------------------- on record

    def replay(self) -> None:
        """Drives the loop to the first effect whose outcome is not recorded, or to its end."""
        outcome: Completion | None = Completion(None)
        while outcome is not None:
            effect = effects.advance(self.work, outcome.value, outcome.error)
            error = effect.error if isinstance(effect, Completion) else None
            if not isinstance(error, (Exception, Control, outcomes.RecordedExit, NoneType)):
                raise error  # raised just now
            self._compare_rows()
            if isinstance(effect, Completion):
                self.ended, outcome = effect, None
            else:
                outcome = self._recorded_outcome(effect)
                self._frontier = None if outcome is not None else effect
        left, frontier = self.cursor.next, self._frontier
        if left is not None:
            raise divergence(left, left.row.type, "the run ends" if frontier is None else repr(type(frontier).__name__))
        self.is_parked = frontier is not None and self._waits(frontier)
        if isinstance(frontier, CallModel) and not (self.is_parked or self.has_unrecorded):
            self._durable.new_rows.append(self.run.sealed(events.ModelRestartedRow("the run was resumed")))

    def _compare_rows(self) -> None:
        """Compares the rows that the loop has written with the recording. Rows beyond its end are new."""
        waiting = self.run.outbox.waiting
        while waiting:
            row = waiting.popleft()
            if self.cursor.next is None:
                self._durable.new_rows.append(row)
                self.has_unrecorded = True
            elif row.role in ("decision", "outcome"):
                self.cursor.compare(row)

    def _recorded_outcome(self, effect: Effect) -> Completion | None:
        following, budget = self.cursor.next, self.run.root.budget
        if isinstance(effect, Spawn):
            self._spawned[effect.what.call_id] = effect
            return Completion(None)
        if isinstance(effect, effects.Join):
            return self._recorded_end()
        if isinstance(effect, CallModel):
            for used in self._durable.history.wasted.get(effect.call_id, ()):
                self._count(used.model_calls or 1)
                self.run.meter.add(used)
                budget.spend_usage(used, self.run.model)
            if following is not None:
                return reading(following, self._answer, effect, following)
        assert isinstance(effect, (*_COMMITTED, SubRun))
        return self._end_of(effect)

    def _recorded_end(self) -> Completion | None:
        """The next completion in the recorded order; after the end of the record, any that is known."""
        recorded = self.cursor.next
        if recorded is None:
            self._sort_spawned()
            return Completion(None, self._done.pop(next(iter(self._done)))) if self._done else None
        spawn = self._spawned.pop(recorded.call, None)
        if spawn is None:
            raise divergence(recorded, recorded.row.type, "no such call or task was started")
        ended = self._end_of(spawn.what) or self._failure(recorded, "the run is waiting for a call or task to end")
        return Completion(None, Completion(spawn.key, ended.value, ended.error))

    def _sort_spawned(self) -> None:
        for spawn in self._spawned.values():
            ended = self._end_of(spawn.what)
            if ended is not None:
                self._done[spawn.key] = Completion(spawn.key, ended.value, ended.error)
            elif self._waits(spawn.what):
                self._parked.append(spawn.key)
            else:
                self._to_spawn.append(spawn)
        self._spawned.clear()

    def _end_of(self, effect: Call) -> Completion | None:
        """How a call or a sub-run ended, if it did. If a sub-run failed, only its parent's row says exactly how."""
        if not isinstance(effect, SubRun) or not self._durable.has_begun(effect.scope):
            return self._outcome_of(effect)
        child, recorded = self._durable.replayed(effect), self.cursor.next
        is_known = child.ended is not None and not child.has_unrecorded
        if recorded is None or (is_known and not isinstance(recorded.row, _ERRORS)):
            return child.ended
        return self._failure(recorded, f"the run {child.run.scope} continues")

    def _answer(self, effect: CallModel, following: Recorded) -> Completion:
        row, stream = following.row, self.run.stream
        if isinstance(row, events.LlmResponseRow):
            if stream is not None and row.given_up is not None:
                stream.give_up(used := Usage(**row.given_up))
                # a middleware that discards an answer may return one of its own, without usage, for which it calls none
                is_own = row.total_tokens is None and used.total_tokens is not None
                self._count(used.model_calls - is_own)
            return Completion(None, outcomes.response(row))
        if isinstance(row, events.ModelFailedRow):
            if stream is not None:
                self._count((row.model_calls or 1) - 1)
                stream.pieces[:] = [row.content]
                stream.give_up(row.usage() or (Usage(model_calls=row.model_calls) if row.model_calls else None))
            return Completion(None, error=outcomes.model_failure(row))
        raise divergence(following, row.type, f"{type(effect).__name__} {effect.call_id}")

    def _count(self, calls: int) -> None:
        """Counts model calls that a step made besides its last one: a middleware's, or those of rows left out."""
        budget = self.run.root.budget
        self.cursor.spent = next(budget.calls) + calls - 1
        budget.calls = count(self.cursor.spent + 1)

    def _outcome_of(self, effect: Call) -> Completion | None:
        """The outcome of a call; None if it is to be performed, or waits."""
        durable, history = self._durable, self._durable.history
        recorded = history.outcomes.get(effect.call_id)
        if recorded is not None:
            if durable.check_skill is not None and isinstance(effect, effects.CallSkill):
                durable.check_skill(self.run, effect, recorded)
            return reading(recorded, self._completion, recorded)
        if durable.closes:
            return Completion(None, error=durable.broken_off(effect.call_id))
        if isinstance(effect, _TOOL_CALLS) and effect.call_id in history.announced:
            return durable.settle(self.run, effect)
        return None

    def _completion(self, recorded: Recorded) -> Completion:
        """The outcome of a call, or of a task that failed, from its row."""
        row, ends = recorded.row, False
        if isinstance(row, (events.SkillErrorRow, events.ProtocolErrorRow)):
            ends = row.stop_reason is not None or (row.exception == SystemExit.__name__ and self._has_exited(recorded))
            ends = ends and not self._durable.history.was_resumed_after(recorded)
        if isinstance(row, _ERRORS):
            return Completion(None, error=outcomes.error(row, ends=ends))
        assert isinstance(row, (events.SkillResultRow, events.ProtocolResultRow))
        return Completion(None, outcomes.value(row, self.run.context.media_store))

    def _has_exited(self, recorded: Recorded) -> bool:
        """Whether a `SystemExit` ended this scope's run. If that has no end on record, only in a task."""
        after = next((one.row for one in self.cursor.rows if one.seq > recorded.seq), None)
        return isinstance(after, events.ResultRow) or (self.run.scope != "" and self.run.task_id is not None)

    def _failure(self, recorded: Recorded, otherwise: str) -> Completion:
        """The error of work whose own end is not recorded, from its parent's row. If there is none, the run diverges:
        `otherwise` is what happens now.
        """
        if not isinstance(recorded.row, _ERRORS):
            raise divergence(recorded, recorded.row.type, otherwise)
        return reading(recorded, self._completion, recorded)

    def _waits(self, effect: Effect) -> bool:
        """Whether an effect waits for a decision, or only for work that does."""
        if isinstance(effect, effects.Join):
            return not self._to_spawn
        call_id, durable = getattr(effect, "call_id", ""), self._durable
        sub_run = durable.scopes.get(call_id)
        waits = call_id in durable.history.facts.waiting and call_id not in durable.decisions
        return waits if sub_run is None else sub_run.is_parked

    # ----------------------------------------------------------------------------------------------- after the record
    # Here a failed effect is an exception, which `_continue` throws into the loop.

    def live(self) -> effects.Work:
        """The rest of the run, for a driver."""
        run = self.run
        run.gate = run.root
        if run.trust is not None and self._frontier is not None:  # a new run records this in its `run_start`
            added = run.trust.note_host(before_response=isinstance(self._frontier, CallModel))
            if added is not None:
                run.write(added)
        try:
            if self.is_parked:
                raise Parked
            yield from self._continue()
        except Parked:
            self.work.close()
            end = self._durable.end_parked(self)
        else:
            end = self._durable.end(self)
        return (yield from end)  # outside of `except`, so that `Parked` is not the error's context

    def _continue(self) -> Generator[Effect, Any, None]:
        """Continues from the frontier until the loop has ended."""
        run, effect, state = self.run, self._frontier, self._durable.state_of(self.run)
        waiting, value, error, added = run.outbox.waiting, None, None, None
        if state is not None:
            state.begin(run)
        while self.ended is None:
            changed: list[events.ContextSavedRow] = []
            if effect is not None:
                try:
                    value = yield from self._performed(effect)
                except (Parked, GeneratorExit):
                    raise
                except BaseException as raised:  # noqa: BLE001 - the loop decides what to do about it
                    error = raised
                if state is not None:
                    changed, interrupt = yield from self._changed(state, effect, value)
                    error = interrupt or error
                added = None if run.trust is None else run.trust.note_host()
            at = len(waiting)  # of the outcome's row, if the loop writes one; the host's changes come after it
            following = effects.advance(self.work, value, error)
            value = error = None  # the traceback of an error refers to this frame
            if isinstance(following, Completion):
                self.ended = following
            else:
                effect = following
            if added is not None:
                waiting.insert(at + 1, run.sealed(added))
            if state is not None and changed:
                for after, saved in enumerate(changed, at + 1):
                    waiting.insert(after, saved)
                state.accompany(waiting[at], changed)

    def _changed(
        self, state: HostState, effect: Effect, value: Any
    ) -> Generator[Effect, Any, tuple[list[events.ContextSavedRow], BaseException | None]]:
        """The changes of an outcome to the host's state, without half-finished changes by other calls; or a Ctrl-C that
        came meanwhile.
        """
        of_call = isinstance(effect, _TOOL_CALLS) or (isinstance(value, Completion) and value.key in self._calls)
        try:
            changed = state.changes(self.run)
            if changed and not of_call:
                is_due = yield from state.in_turn(self.run)
                changed = state.changes(self.run) if is_due else []
                if is_due and not changed:  # another call made the change, and has recorded it in the meantime
                    state.end_turn(self.run.scope)
        except (Exception, GeneratorExit, SystemExit, Control):
            raise
        except BaseException as interrupt:  # noqa: BLE001 - thrown into the loop
            self.run.root.cancellation.set()
            return [], interrupt
        return changed, None

    def _performed(self, effect: Effect) -> effects.Work:
        if isinstance(effect, Spawn):
            self._to_spawn.append(effect)
            return None
        if isinstance(effect, effects.Join):
            return (yield from self._joined())
        if self._durable.must_leave:
            yield from self._leave_to_others()
            raise Parked
        if isinstance(effect, _COMMITTED):
            return (yield from self._called(effect))
        if isinstance(effect, SubRun) and self._durable.waits_to_begin(effect):
            effect = self._approved(effect)
        return (yield effect)

    def _called(self, effect: CallModel | effects.CallSkill | effects.CallProtocol) -> effects.Work:
        approved = self._approved(effect)
        if not isinstance(effect, CallModel) and (state := self._durable.state_of(self.run)) is not None:
            yield from state.in_turn(self.run, effect)
        yield from self._commit()
        if self._is_stopped():
            raise effects.NotBegun
        if effect is self._frontier and isinstance(effect, CallModel):
            try:
                self.run.root.budget.check_call(self.cursor.spent)
            except LimitReachedError as error:
                raise effects.LimitStop(error.reason, str(error)) from None
        try:
            return (yield approved)
        except Pause as pause:
            self._request(approved, pause)
            raise Parked from None

    def _commit(self) -> effects.Work:
        """Appends the rows so far, if they must be stored before anything is performed."""
        journal = self.run.root.journal
        if journal is not None and (any(row.stored_first for row in self.run.outbox.waiting) or journal.must_commit):
            yield effects.Commit()

    def _leave_to_others(self) -> effects.Work:
        """Appends the rows so far, except those of calls that another worker will begin. The caller parks the work."""
        waiting = self.run.outbox.waiting
        kinds = (events.CallBegunRow, events.MessagesSentRow)
        announced = (at for at, row in enumerate(waiting) if isinstance(row, kinds))
        for _ in range(next(announced, len(waiting)), len(waiting)):
            waiting.pop()
        self._durable.is_left = True
        yield effects.Commit()

    def _joined(self) -> Generator[Effect, Any, Completion]:
        if not self._has_failed and (self._to_spawn or not self._done):
            self._has_failed = True  # a failure is thrown only once, since the loop still waits for running work
            yield from (self._begin_spawned() if self._to_spawn else self._commit())
            self._has_failed = False
        while not self._done:
            if self._running:
                ended: Completion = yield effects.Join()
                self._running.discard(ended.key)
                if not isinstance(ended.error, (Parked, Pause)):
                    return ended
                if isinstance(ended.error, Pause):
                    self._request(self._calls[ended.key], ended.error)
                self._parked.append(ended.key)
            elif not self._parked:  # a second Ctrl-C may come anywhere
                raise NotPerformed
            elif not self._is_stopped():
                raise Parked
            else:
                self._done = {key: Completion(key, error=Cancelled()) for key in self._parked}
                self._parked.clear()
        return self._done.pop(next(iter(self._done)))

    def _begin_spawned(self) -> effects.Work:
        """Begins all spawned work. Requests all approvals first, to record waiting calls before others are made."""
        asked, self._to_spawn = self._to_spawn, []
        if self._durable.must_leave:
            self._parked.extend(spawn.key for spawn in asked)
            yield from self._leave_to_others()
            return
        try:
            ready = [one for spawn in asked if not self._is_stopped() and (one := self._ready(spawn)) is not None]
            yield from self._commit()
            for spawn in ready:
                if self._is_stopped():
                    break
                yield spawn
                self._running.add(spawn.key)
        finally:
            for key in [spawn.key for spawn in asked]:
                if key not in self._running and key not in self._parked and key not in self._done:
                    self._done[key] = Completion(key, error=NotPerformed())

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
            self._parked.append(key)
            return None
        except (Exception, Stop) as refused:  # noqa: BLE001 - the call's own failure
            self._done[key] = Completion(key, error=refused)
            return None
        if not isinstance(what, SubRun):
            self._calls[key] = approved
        return spawn.replace(what=approved)

    # ------------------------------------------------------------------------------------------------- approvals

    def _approved(self, effect: Call) -> Call:
        """Returns the call to make. Raises the error of a refused one, and `Parked` if nobody has decided yet."""
        durable, run, call_id = self._durable, self.run, effect.call_id
        effect = as_edited(run, effect, durable.history.facts.decided.get(call_id, ()))
        decision = durable.decisions.pop(call_id, None)
        if decision is not None and decision.is_woken:  # not a consent, unless somebody agreed before the call paused
            durable.woken.add(call_id)
            decision = durable.history.facts.agreed(call_id)
        if decision is None and not isinstance(effect, CallModel):
            try:
                decision = ask(run, effect)
            except Pause as pause:
                self._request(effect, pause)
                raise Parked from None
            if decision is not None:
                row = decision.row(call_id)
                if run.trust is not None and not isinstance(decision.value, bool):
                    row.trusted = decision.trusted  # the `approve` function may quote the model's own text
                    run.trust.restore([row])
                run.write(row)
        return effect if decision is None else decided(run, effect, decision)

    def _request(self, effect: Call, pause: Pause) -> None:
        asked = pending_call(self.run, effect, pause)
        self.run.write(events.ApprovalRequestedRow(**asked.to_dict()))
        self._durable.pending.append(asked)
