"""`DurableRun`: a root run that is recorded in a store, resumed, or waiting for people.

It has the run's scopes, their recorded rows, the decisions that were made, and the new rows. A resume first replays
every scope to its frontier, the first effect without a recorded outcome (`replay`). Nothing is written or performed
before that, so an error found during the replay changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from kernai.durable.approvals import Call, Decision, as_edited, called, edited
from kernai.durable.history import History, divergence
from kernai.durable.host_state import HostState, restore
from kernai.durable.outcomes import RecordedError, RecordedExit
from kernai.durable.recorded_run import Recorded, RecordedRun, parts_of, reading
from kernai.durable.scope import DurableScope
from kernai.errors import InFlightError, KernaiError, RunConflictError, RunStoppedError, Stop, StoreNeededError
from kernai.events import RECORDING_FORMAT, InFlightRow, ResultRow, Row, RunResumedRow, RunStartRow
from kernai.loop import effects
from kernai.loop.effects import CallProtocol, CallSkill, Completion, Effect, NotApproved, SubRun, Work
from kernai.loop.kernel import run_loop
from kernai.loop.root import Outbox
from kernai.loop.run_state import Run
from kernai.values.context import Context
from kernai.values.message import InputPart
from kernai.values.pending_calls import PendingCall
from kernai.values.result import Result

InFlight = Literal["fail", "skip", "retry"] | Callable[[PendingCall], str]
IN_FLIGHT = ("fail", "skip", "retry")
UNKNOWN_OUTCOME = (
    "the outcome of this call is unknown: the run was interrupted while it was under way, and it was not called again"
)
INPUT_LEFT = "the new input was not added to the conversation: pass it again when the run is resumed"


class DurableRun:
    """The root's `durable`. It sits between the loop and the middleware, so it records what the loop sees.

    Without a journal nothing is stored, and no call can wait for a decision.
    """

    def __init__(self, run: Run) -> None:
        self._root = root = run.root
        self._middleware = root.wrap
        root.durable, root.wrap = self, self._wrap
        # rows are not recorded directly: others are put between them, and replayed ones are compared
        run.outbox.delivery.kept = None
        run.write_to(Outbox(run.outbox.delivery))
        self.scopes: dict[str, DurableScope] = {}
        #: rows written during the resume that are not recorded yet
        self.new_rows: list[Row] = []
        #: calls that wait for a decision
        self.pending: list[PendingCall] = []
        #: decisions that were not used yet, by call id
        self.decisions: dict[str, Decision] = {}
        #: paused calls that are made again because their time has come
        self.woken: set[str] = set()
        #: calls in flight that are only made again because their skill is idempotent
        self.repeated: set[str] = set()
        self.compares = False
        #: called with each recorded outcome of a skill, if the replay runs the skills again
        self.check_skill: Callable[[Run, CallSkill, Recorded], None] | None = None
        #: whether scopes end at their frontier, because the run was closed or interrupted
        self.closes = False
        #: whether work was parked because another worker is to continue the run
        self.is_left = False
        self.history = History()
        self._state = HostState()
        self._in_flight: InFlight = "fail"
        self._stored_decisions: Mapping[str, Decision] = {}
        #: whether an input has not been added to the conversation yet
        self._is_input_left = False
        self._failing: list[PendingCall] = []
        #: the Ctrl-C at the first question of `approve` that had one, raised when the run has ended
        self.interrupt: BaseException | None = None

    def _wrap(self, run: Run, what: Effect | None, work: Work) -> Work:
        """Wraps the work of a scope or of a spawned call, for a driver."""
        if not isinstance(what, (CallSkill, CallProtocol)):
            known = self.scopes.get(run.scope)
            if known is None:
                known = self.scopes[run.scope] = DurableScope(self, run, work)
            work = known.live()
        elif (state := self.state_of(run)) is not None:
            work = _in_turn(state, run, what, work)
        return self._middleware(run, what, work)

    @property
    def must_leave(self) -> bool:
        """Whether nothing more may start here because another worker will continue the run."""
        stopping = None if self._root.journal is None else self._root.journal.held.stopping
        return stopping is not None and stopping.is_set()

    # ------------------------------------------------------------------------------------------------- resuming

    def replay(
        self, run: Run, recorded: RecordedRun, history: History, *, added: Sequence[tuple[InputPart, ...]] = (),
        approvals: Mapping[str, Decision] = MappingProxyType({}), in_flight: InFlight = "skip",
        stored_decisions: Mapping[str, Decision] = MappingProxyType({}), ends: ResultRow | None = None,
        compares: bool = False,
    ) -> DurableScope:
        """Replays every scope to its frontier and returns the root's. Raises whatever prevents the resume. Call `use`
        for each decision next, then `continued`.

        `added` are new inputs. A call in flight may have one of the `stored_decisions`; `in_flight` decides on the
        others. With `compares`, the run stops at the end of its recording. `ends` is an end that the loop did not
        decide on, such as that of a closed run: the run ends there as recorded, and the last input reopens it.
        """
        self.compares = compares
        if ends is not None:
            self.closes = True
            run.root.cancellation.stop(Stop(ends.stop_reason, str(ends.error)))
        self.history = history
        self._definition = recorded.definition
        self._in_flight, self._stored_decisions = in_flight, stored_decisions
        facts = history.facts
        made = {call: decision.about(facts.waiting[call]) for call, decision in approvals.items()}
        self.decisions = facts.approvals | made
        self._restore(run)
        inputs = [*recorded.inputs(run.context.media_store), *added]
        root = DurableScope(self, run, self._conversation(run, inputs), history.of(""))
        self.scopes[""] = root
        root.replay()
        if self._failing:
            named = ", ".join(f"{call.call_id} ({call.skill})" for call in self._failing)
            raise InFlightError(
                f"the run was interrupted during these calls, and they may have taken effect: {named}; pass "
                'in_flight="skip", "retry" or a function of the call, or mark a skill that may be called twice with '
                "@skill(idempotent=True)", self._failing,
            )
        unreached = next((rows[0] for scope, rows in history.scopes.items() if rows and scope not in self.scopes), None)
        if unreached is not None:
            raise divergence(unreached, unreached.row.type, "the run never gets to this event")
        self.pending = [call for call_id, call in recorded.waiting.items() if call_id not in approvals]
        return root

    def use(self, call_id: str, decision: Decision) -> None:
        """Keeps the row of a new decision until the resume writes it. Raises what `edited` raises."""
        run = self.scopes[call_id.rpartition("/")[0]].run
        if decision.params is not None:
            waiting = self.history.facts.waiting[call_id]
            edited(run, waiting.skill or "", waiting.params, decision)
        row = decision.row(call_id)
        if run.trust is not None:
            run.trust.restore([row])
        self.new_rows.append(run.sealed(row))

    def continued(self) -> Work:
        """Returns the rest of the run, for a driver. It starts by recording the resume and the new rows.

        If several workers resume a run at once, the first to append these continues it; the others call nothing.
        """
        root = self.scopes[""]
        run = root.run
        changed = {
            name: rules._asdict() for name, scope in self.scopes.items()
            if (scope.ended is None or scope.has_unrecorded) and (rules := scope.cursor.new_rules())
        }
        if [one for _, one in self.history.repairs][-1:] != [repair := run.root.configured_repair]:
            changed[""] = {**run.setup.rules._asdict(), "repair": repair}
        definition = run.definition()
        run.write(RunResumedRow(
            len(self.history.rows), self.history.dropped, format=RECORDING_FORMAT, rules=changed or None,
            definition=None if definition == self._definition else definition, metadata=run.metadata or None,
            model=run.model.id, agent=run.agent.name,
        ))
        run.outbox.waiting.extend(self.new_rows)
        return self._middleware(run, None, root.live())

    def waits_to_begin(self, sub_run: SubRun) -> bool:
        """Whether the sub-run is the call of an agent that did not begin in the recording, so it may need approval."""
        return (sub_run.skill is not None or self.closes) and not self.has_begun(sub_run.scope)

    def has_begun(self, scope: str) -> bool:
        return scope in self.scopes or bool(self.history.of(scope))

    def replayed(self, sub_run: SubRun) -> DurableScope:
        """Replays a sub-run that has begun to its frontier and returns its scope."""
        run = self.scopes[""].run.root.runs[sub_run.scope]
        rows, given = self.history.of(run.scope), sub_run.input
        self._restore(run, has_ended=isinstance(rows[-1].row, ResultRow))
        if sub_run.skill is not None:
            agreed = self.history.facts.as_agreed(self.scopes[run.scope.rpartition("/")[0]].run, sub_run)
            given = agreed.input if isinstance(agreed, SubRun) else given
        elif isinstance(rows[0].row, RunStartRow):  # the runtime writes a task's input
            given = parts_of(rows[0], rows[0].row.input, run.context.media_store)
        scope = DurableScope(self, run, run_loop(run, given), rows)
        self.scopes[run.scope] = scope
        scope.replay()
        return scope

    def _restore(self, run: Run, *, has_ended: bool = False) -> None:
        """Restores the host's recorded state, and the record of trusted values."""
        # not if nobody uses it, nor if skills are called again, which change it again from its beginning
        if not has_ended and self.check_skill is None:
            restore(run, self.history.facts.contexts)
        if run.trust is not None:
            for one in self.history.facts.trusted.get(run.scope, ()):
                reading(one, run.trust.restore, [one.row])

    def settle(self, run: Run, call: CallSkill | CallProtocol) -> Completion | None:
        """Returns the outcome of a call that was announced but has none yet; None if it waits or must be made again."""
        facts, decision = self.history.facts, self.decisions.get(call.call_id)
        refused = decision is not None and decision.refusal is not None
        if refused or call.call_id in facts.waiting or call.call_id in self.history.never_ran:
            return None
        made = facts.as_agreed(run, call)
        found = PendingCall(call.call_id, *called(call if made is None else made))
        row, known = self._in_flight_row(run, call, found), facts.in_flight.get(call.call_id)
        if row.decision == "fail":
            self._failing.append(found)
        elif known is None or known.decision != row.decision:  # once: workers that keep dying would add nothing else
            self.new_rows.append(run.sealed(row))
        outcome = Completion(None, error=RecordedError(row.reason or UNKNOWN_OUTCOME))
        return None if row.decision == "retry" else outcome

    def _in_flight_row(self, run: Run, call: Call, found: PendingCall) -> InFlightRow:
        if isinstance(call, CallSkill) and run.held_skill(call.skill).idempotent:
            self.repeated.update([call.call_id] if self._in_flight != "retry" else ())
            return InFlightRow(call.call_id, "retry")
        known, decision = self.history.facts.in_flight.get(call.call_id), self._stored_decisions.get(call.call_id)
        if known is not None and known.decision == "skip":
            return known  # decided earlier, but the run broke off before the model could read it
        if decision is not None:
            reason = decision.refusal if isinstance(decision.value, str) else None
            return InFlightRow(call.call_id, "retry" if decision.refusal is None else "skip", reason, decision.by)
        choice = self._in_flight(found) if callable(self._in_flight) else self._in_flight
        if choice not in IN_FLIGHT:
            raise ValueError(
                f"in_flight must return one of {', '.join(IN_FLIGHT)}, returned {choice!r} for {call.call_id}"
            )
        return InFlightRow(call.call_id, choice)

    def instead(self, run: Run, call: Call, call_id: str) -> Call:
        """Returns a call that a middleware makes instead of the model's, with people's decisions on it alone."""
        name, decisions = called(call)[0], (*self.history.facts.decided.get(call_id, ()), call.approval)
        skill = run.held_skill(call.skill) if isinstance(call, CallSkill) else None
        if call_id in self.repeated and not (skill and skill.idempotent):
            why = f"{name!r} may have been called before the run was interrupted, and it is not idempotent"
            raise NotApproved(why, called(call))
        own = [one for one in decisions if getattr(one, "skill", None) == name]
        if skill and skill.approval and not own and getattr(call.approval, "asked", None) is not None:
            return call.replace(approval=None)  # a person has decided on the model's call
        return as_edited(run, call, own)

    def broken_off(self, call_id: str) -> BaseException:
        """Returns the error of a call without an outcome in a closed run."""
        began = call_id in self.history.announced and call_id not in self.history.facts.waiting
        return effects.Cancelled() if began or self.has_begun(call_id) else effects.NotBegun()

    def _conversation(self, run: Run, inputs: Sequence[tuple[InputPart, ...]]) -> Work:
        """Runs the loop for the first input, then again for each input that was added later."""
        first, *later = inputs
        turn: Work = run_loop(run, first)
        for left, added in enumerate(later, 1 - len(later)):
            self._is_input_left = True
            try:
                result = yield from turn
            except (Exception, RecordedExit):  # noqa: BLE001 - recorded, and the next turn follows
                result = run.result
            if self.closes and left == 0:
                self.closes = False
                run.root.cancellation.reopen()
            elif run.gate is run.root and result is not None and not result.ok:
                if result.error is not None:
                    result.error.add_note(INPUT_LEFT)
                return result  # the run ended in this process, so the next input has nothing to continue
            self._is_input_left = False
            turn = run_loop(run, added, again=True)
        return (yield from turn)

    # ------------------------------------------------------------------------------------------- while it runs

    def state_of(self, run: Run) -> HostState | None:
        """The host's state; None if this run has none to save."""
        if self._root.journal is None or type(run.context).save is Context.save:
            return None
        self._root.journal.host_state = self._state
        return self._state

    def end(self, scope: DurableScope) -> Work:
        """Ends a scope's work. For the root, its last rows are appended."""
        ended = scope.ended
        assert ended is not None
        if scope.run.scope:
            self.scopes.pop(scope.run.scope, None)  # only a replay asks for ended sub-runs
        elif self._root.journal is not None:
            yield effects.Commit()
        error = ended.error if scope.run.scope else self.interrupt or ended.error
        if error is not None:
            raise error
        return ended.value

    def end_parked(self, scope: DurableScope) -> Work:
        """Parks a waiting sub-run; if the root waits, ends the run until somebody decides."""
        run = scope.run
        if run.scope:
            raise effects.Parked
        if self._root.journal is None:
            error = StoreNeededError(f"the run waits for a decision on {self._waiting()}")
            self.parked_result(error)
            raise error
        if self.is_left:
            yield effects.Commit()
            raise RunConflictError(f"run {run.root.run_id!r} is left to another worker: this one is stopping")
        result = self.parked_result()
        yield effects.Commit()
        return result

    def parked_result(self, error: KernaiError | None = None) -> Result[Any]:
        """The result of a root run that waits. It includes the usage of the sub-runs that wait with it."""
        run = self.scopes[""].run
        self.scopes[""].work.close()  # adds the outcomes of calls that were made to the messages
        for other in run.root.runs.values():
            if other is not run:
                run.meter.add(other.meter.usage())
        if error is None:
            why = f"the run waits for a decision on {self._waiting()}: resume(..., approvals={{call_id: True}})"
            error = RunStoppedError(why)
        if self._is_input_left:
            error.add_note(INPUT_LEFT)
        return run.finish(error=error, pending=tuple(self.pending))

    def _waiting(self) -> str:
        return ", ".join(f"{one.call_id} ({one.skill or 'the model'})" for one in self.pending)


def _in_turn(state: HostState, run: Run, call: CallSkill | CallProtocol, work: Work) -> Work:
    """Performs a spawned call once no other call is changing the host's state."""
    yield from state.in_turn(run, call)
    return (yield from work)
