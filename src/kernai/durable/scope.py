"""`DurableScope`: what stands between the loop of one scope and its driver.

It takes the loop's effects and yields its own. From the frontier that `replay` has come to, as a generator that a
driver drives (`live`), it has effects performed: it yields `Commit` before each that has a side effect, asks for
approvals, and parks work that waits for one.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from kernai.durable.approvals import Call, decided, pending_call
from kernai.durable.recorded_run import Recorded
from kernai.durable.replayed_scope import ReplayedScope
from kernai.errors import LimitReachedError, Pause, Stop
from kernai.events import ApprovalRequestedRow
from kernai.loop.effects import (
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
    attempted,
)

if TYPE_CHECKING:
    from kernai.durable.durable_run import DurableRun
    from kernai.durable.host_state import HostState, Saved
    from kernai.loop.run_state import Run


class DurableScope(ReplayedScope):
    """One run or sub-run: what is on record of it, and what is not."""

    def __init__(self, durable: DurableRun, run: Run, work: Work, recorded: Sequence[Recorded] = ()) -> None:
        super().__init__(durable, run, work, recorded)
        self._running: set[Any] = set()
        self._calls: dict[Any, CallSkill | CallProtocol] = {}
        self._has_failed = False

    def live(self) -> Work:
        """The rest of the run, for a driver."""
        self.run.gate = self.run.root.gate
        try:
            yield from self._going_on()
        except Parked:
            self._work.close()
            return (yield from self._durable.end_parked(self))
        return (yield from self._durable.end(self))

    def _going_on(self) -> Generator[Effect, Any, None]:
        """From the frontier until the loop has ended."""
        effect = self._frontier
        state = self._durable.state_of(self.run)
        if state is not None:
            state.begin(self.run)
        while self.ended is None:
            value = error = None
            changed: list[Saved] = []
            if effect is not None:
                try:
                    outcome = yield from self._performed(effect)
                    value, error = outcome.value, outcome.error
                    if state is not None:
                        changed = yield from self._changed(state, effect, outcome)
                except (Exception, Parked, GeneratorExit):
                    raise
                except BaseException as raised:  # noqa: BLE001 - out of `approve` or `Context.save`
                    self.run.root.cancellation.set()
                    error = raised
            waiting = self.run.outbox.waiting
            at = len(waiting)
            effect = self._advance(value, error)
            if state is not None and changed:
                for behind, saved in enumerate(changed, at + 1):
                    waiting.insert(behind, saved.row)
                state.accompany(waiting[at], changed)  # the first that the loop writes is the outcome

    def _changed(self, state: HostState, effect: Effect, outcome: Completion) -> Generator[Effect, Any, list[Saved]]:
        """What an outcome has changed of the host's state, without what another call is just changing."""
        run = self.run
        changed = self._durable.changed_state(run)
        if not changed or isinstance(effect, (CallSkill, CallProtocol)):
            return changed
        if isinstance(effect, Join) and outcome.value is not None and outcome.value.key in self._calls:
            return changed
        yield from state.in_turn(run)
        changed = self._durable.changed_state(run)
        if not changed:  # it was the other call's, and is recorded by now
            state.end_turn(run.scope)
        return changed

    def _performed(self, effect: Effect) -> Generator[Effect, Any, Completion]:
        if isinstance(effect, Spawn):
            self._to_spawn.append(effect)
            return Completion(None)
        if isinstance(effect, Join):
            return (yield from self._joined())
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
            self._park(effect, outcome.error)
        return outcome

    def _forbidden(self, effect: Effect) -> Completion | None:
        """What a call comes to that was announced, and must not be begun any more."""
        if self._is_stopped():
            return Completion(None, error=NotBegun())
        if effect is self._frontier and isinstance(effect, CallModel):
            try:
                self.run.root.budget.check_call(self._gate.spent)
            except LimitReachedError as error:
                return Completion(None, error=LimitStop(error.reason, str(error)))
        return None

    def _commit(self) -> Generator[Effect, Any, Completion | None]:
        """Has what was told appended; an outcome only where that failed, and nothing may be performed."""
        journal = self._durable.journal
        if journal is None or not (journal.due or any(row.stored_first for row in self.run.outbox.waiting)):
            return None
        outcome = yield from attempted(Commit())
        return None if outcome.error is None else outcome

    def _begin_spawned(self) -> Generator[Effect, Any, Completion | None]:
        """Has all begun that is to run at once; an outcome only where that failed.

        Who is to be asked is asked first, so that what waits for somebody is on record before anything is performed.
        """
        asked, self._to_spawn = self._to_spawn, []
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
        """What is to begin; None where it waits for somebody, or was refused."""
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
            self._calls[key] = what
        return spawn.replace(what=approved)

    def _joined(self) -> Generator[Effect, Any, Completion]:
        if self._to_spawn or not self._done:
            failed = yield from (self._begin_spawned() if self._to_spawn else self._commit())
            if failed is not None and not self._has_failed:
                self._has_failed = True  # told once: what goes on is still waited for
                return failed
        while not self._done:
            if not self._running:
                if not self._parked:  # a second Ctrl-C may fall anywhere
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
        """Nothing goes on but what waits for somebody: the loop waits too, or is told that the run is to stop."""
        if not self._is_stopped():
            raise Parked
        for key in self._parked:
            self._done[key] = Completion(key, error=Cancelled())
        self._parked.clear()

    # ------------------------------------------------------------------------------------------------- approvals

    def _approved(self, effect: Call) -> Effect | Completion:
        """The call as it is to be made; or its outcome, where it was refused. Parks it where nobody has decided."""
        decision = self._durable.decisions.pop(effect.call_id, None)
        if decision is None and not isinstance(effect, CallModel):
            try:
                decision = self._durable.ask(self.run, effect)
            except Pause as pause:
                self._park(effect, pause)
            except Stop as stop:
                return Completion(None, error=stop)
            if decision is not None:
                self.run.write(decision.row(effect.call_id))
        return effect if decision is None else decided(self.run, effect, decision)

    def _park(self, effect: Call, pause: Pause) -> None:
        self._request(effect, pause)
        raise Parked

    def _request(self, effect: Call, pause: Pause) -> None:
        asked = pending_call(self.run, effect, pause)
        self.run.write(ApprovalRequestedRow(**asked.to_dict()))
        self._durable.pending.append(asked)
