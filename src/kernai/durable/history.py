"""`History`: the part of a recording that a run continues from. A resume or a replay looks up everything here.
`ReplayCursor`: one scope's rows in it, and how many of them its loop has written again, each compared with the recorded
one.

A stopped run has written rows only because of the stop: the model failed, a call was broken off, tasks ended with the
run. These rows have the stop's reason, and `truncated` leaves them out. It keeps the real outcomes of calls, so that
nothing is done twice. `run_resumed` records which rows a resume left out, so every later reader leaves out the same.

While a scope is replayed, its cursor is its gate: it answers from the recording, where the live gate would look at the
present state.

`fork` copies a run up to a step, to continue differently from there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernai import events
from kernai.agents.setup import NO_SYSTEM, System
from kernai.durable import outcomes
from kernai.durable.recorded_run import Facts, Recorded, RecordedRun, Resumes, reading, sent_messages
from kernai.durable.store import Store, check_store
from kernai.errors import INTERRUPTED, ReplayDivergenceError, RunStoppedError, stopped
from kernai.jsonio.json_data import dumps, jsonable
from kernai.loop.effects import Cancelled
from kernai.loop.root import Gate
from kernai.loop.run_state import Run
from kernai.values.context import Context
from kernai.values.message import Message
from kernai.values.result import StopReason, Usage

if TYPE_CHECKING:
    from kernai.agents.definition import Rules
    from kernai.inputs.table import Repair

LONGEST_SHOWN = 300
#: stop reasons that the loop does not decide on
NOT_DECIDED = (StopReason.INTERRUPT, StopReason.CLOSED)


class History:
    """`scopes` has the rows that count; `left_out` are the rows that a resume ignores. A new run has neither."""

    rows: Sequence[Recorded] = ()
    resumes: Resumes = ()

    def __init__(
        self, recorded: RecordedRun | None = None, scopes: Mapping[str, Sequence[Recorded]] | None = None,
        left_out: Sequence[Recorded] = (),
    ) -> None:
        self.facts = Facts() if recorded is None else recorded.facts
        self.repairs = [] if recorded is None else recorded.repairs()
        self.scopes = scopes or {}
        self.dropped = sorted(one.seq for one in left_out)
        #: calls that were announced but certainly did not begin
        self.never_ran: set[str] = set()
        #: calls that the recording says were about to be made, and the outcomes of calls, by call id
        self.announced: set[str] = set()
        self.outcomes: dict[str, Recorded] = {}
        #: from rows that were left out: the usage of each model call, empty if unknown, by call id
        self.wasted: dict[str, list[Usage]] = {}
        if recorded is None:
            return
        self.rows, self.resumes = recorded.all, recorded.resumes
        #: whether no resume has changed the agent, so that a comparison includes its `max_steps`
        self.has_one_agent = recorded.definition is recorded.start.definition
        since = max((one.seq for one, _ in recorded.resumes), default=-1)
        approved = [row.call_id for _, row in recorded.all[since + 1:] if isinstance(row, events.ApprovalGivenRow)]
        for one in left_out:
            row = one.row
            if getattr(row, "not_run", None):  # nor did the calls within it that were approved since the last resume
                self.never_ran.update([one.call], [call for call in approved if call.startswith(f"{one.call}/")])
            elif isinstance(row, events.CallEndedRow) and not row.is_broken_off and row.call_id not in recorded.scopes:
                self.outcomes[row.call_id] = one  # an agent's scope has its own end
        self._gone = recorded.dropped.union(self.dropped)
        for one in (recorded.all[seq] for seq in sorted(self._gone)):
            used, row = reading(one, one.row.usage), one.row
            # one that was stopped may not have begun
            if used is not None or (isinstance(row, events.ModelFailedRow) and row.exception and not row.stop_reason):
                self.wasted.setdefault(one.model_call, []).append(used or Usage())
        for rows in self.scopes.values():
            for one in rows:
                if isinstance(one.row, events.CallBegunRow):
                    self.announced.add(one.row.call_id)
                elif isinstance(one.row, events.CallEndedRow):
                    self.outcomes[one.row.call_id] = one

    @classmethod
    def truncated(cls, recorded: RecordedRun) -> History:
        """The history without the rows that were written because the run was stopped.

        If an input was added after them, they stay.
        """
        since = max((one.seq for one in recorded.scopes[""] if isinstance(one.row, events.InputAddedRow)), default=-1)
        left_out = [
            one for rows in recorded.scopes.values() for one in rows if one.row.place[5] is not None and one.seq > since
        ]
        gone = {one.seq for one in left_out}
        kept = {scope: [one for one in rows if one.seq not in gone] for scope, rows in recorded.scopes.items()}
        return cls(recorded, {scope: rows for scope, rows in kept.items() if rows}, left_out)

    @classmethod
    def whole(cls, recorded: RecordedRun) -> History:
        """The whole history, for a comparison. It leaves out a last row that says that the run waits or was closed,
        since the loop did not decide that.
        """
        root = recorded.scopes[""]
        count = len(root)
        while isinstance(end := root[count - 1].row, events.ResultRow) and end.stop_reason in NOT_DECIDED:
            count -= 1
        return cls(recorded, {**recorded.scopes, "": root[:count]})

    @classmethod
    def before_ctrl_c(cls, recorded: RecordedRun, differs: ReplayDivergenceError) -> History | None:
        """The history before Ctrl-C or the like, if that ended the run and explains why a replay `differs`; else None.

        It may come between any two events, so rows written because of it are not decisions. How the run ended is one.
        """
        before = cls.truncated(recorded)
        interrupted = (StopReason.CANCELLED, INTERRUPTED)  # of a callback in a task, only that task's end says so
        ends = (row for row in (recorded.all[seq].row for seq in before.dropped) if isinstance(row, events.ResultRow))
        if all((end.stop_reason, end.error) != interrupted for end in ends) or differs.seq < before.dropped[0]:
            return None
        # the loop also ends at that row, but differently, and not because of a row before it that is left out
        *_, last, end = recorded.scopes[""]
        was_over = differs.seq == end.seq and last.seq not in before.dropped
        return None if was_over and not differs.expected.startswith("result") else before

    def of(self, scope: str) -> Sequence[Recorded]:
        return self.scopes.get(scope, ())

    def was_resumed_after(self, outcome: Recorded) -> bool:
        for seq, row in self.rows[outcome.seq + 1:]:
            if row.place[3] != outcome.scope or not isinstance(row, (*events.BEGUN, events.ResultRow)):
                continue
            if seq not in self._gone:
                return not isinstance(row, events.ResultRow)
            if isinstance(row, events.ResultRow) and (row.raised or row.stop_reason != StopReason.INTERRUPT):
                return True  # a resume has left out the end of the scope
        return False


class ReplayCursor(Gate):
    """`at` is how many rows the loop has written again. Beyond the end of the record, the cursor answers as the live
    gate does; a run that only `compares` stops there.
    """

    __slots__ = ("_compared", "_compares", "_history", "_messages", "_rules", "_run", "_system", "at", "rows", "spent")

    def __init__(self, run: Run, rows: Sequence[Recorded], history: History, *, compares: bool) -> None:
        self.cancellation, self.budget = run.root.cancellation, run.root.budget
        self.rows = rows
        self.at = 0
        self._run = run
        self._compares = compares
        self._system = NO_SYSTEM
        self._messages = sent_messages(rows)
        #: how many messages were compared, with the system message
        self._compared = 0
        self._rules = _rules(run, rows, history.resumes)
        self._history = history
        #: the number of the model call counted last; -1 if the live gate counted it
        self.spent = -1

    @property
    def next(self) -> Recorded | None:
        """The row that the loop must write next; None at the end of the record."""
        return self.rows[self.at] if self.at < len(self.rows) else None

    def _written(self) -> int:
        """How many rows the loop has written, including those not compared yet."""
        return self.at + len(self._run.outbox.waiting)

    def is_on_record(self) -> bool:
        return self._written() < len(self.rows)

    def is_decided(self) -> bool:
        end = written = self._written()
        outcomes_of_work = events.CallEndedRow, events.TaskEndedRow
        # skip what was written because the run stops here
        while end < len(self.rows) and isinstance(row := self.rows[end].row, outcomes_of_work) and row.is_broken_off:
            end += 1
        if end >= len(self.rows):
            if self._compares:
                raise Cancelled
            return end > written
        result = self.rows[end].row
        if isinstance(result, events.ResultRow) and self._stops_here(result, end):
            raise outcomes.stop(result)
        return True

    def _stops_here(self, result: events.ResultRow, at: int) -> bool:
        """Whether the run was stopped before its next step, and not by that step's outcome."""
        reason = result.stop_reason
        failed = isinstance(self.rows[at - 1].row, events.ModelFailedRow) and reason == StopReason.ERROR
        return reason != StopReason.FINAL and result.steps == self._run.steps and not failed

    def check(self) -> None:
        if not self.is_decided():
            super().check()

    def spend_call(self) -> None:
        if self.is_decided():
            self.spent = next(self.budget.calls)  # whatever the limits are now
        else:
            self.spent = -1
            super().spend_call()

    def steps(self, run: Run) -> range:
        today = super().steps(run)
        following = (self.rows[at] for at in range(self._written(), len(self.rows)))
        seq, end = next(((seq, row) for seq, row in following if isinstance(row, events.ResultRow)), (0, None))
        if not (self._compares and self._history.has_one_agent):
            return range(run.steps, max(today.stop, self.rows[-1].step + 1) if end is None else end.steps)
        if end is None or end.place[5] in (None, StopReason.MAX_STEPS):
            return today
        # if an input followed, what was written because the turn was broken off is compared as well
        followed = any(isinstance(row, events.InputAddedRow) for _, row in self._history.rows[seq:])
        return range(run.steps, min(end.steps, today.stop)) if followed else today

    def why_stopped(self) -> RunStoppedError:
        end = next((one.row for one in self.rows[self._written():] if isinstance(one.row, events.ResultRow)), None)
        return super().why_stopped() if end is None else stopped(end.stop_reason, str(end.error))

    def child_context(self, run: Run, scope: str, task_id: str | None) -> Context:
        has_begun = self._history.of(scope) or scope in self._history.facts.decided
        one = self.rows[self._written()] if self.is_on_record() and not has_begun else None
        if one is not None and one.call == scope and isinstance(one.row, (events.SkillErrorRow, events.TaskErrorRow)):
            is_exit = getattr(one.row, "exception", None) == SystemExit.__name__  # which would have ended the run here
            failed = outcomes.error(one.row, ends=is_exit or getattr(one.row, "stop_reason", None) is not None)
            if isinstance(failed, Exception):  # otherwise the run was stopped here
                raise failed
        return super().child_context(run, scope, task_id)

    def builtin(self, run: Run, command: str) -> str:
        row = self.rows[self._written()].row if self.is_on_record() else None
        return row.result if isinstance(row, events.BuiltinResultRow) else super().builtin(run, command)

    def output_check(self, run: Run, value: Any) -> str | None:
        if not self.is_decided():
            return super().output_check(run, value)
        row = self.rows[self._written()].row
        return row.error if isinstance(row, events.AnswerRejectedRow) else None

    def rules(self, run: Run) -> Rules:
        if not self.is_on_record():
            return super().rules(run)
        seq = self.rows[self._written()].seq
        return next(rules for since, rules in reversed(self._rules) if since <= seq)

    def repair(self, run: Run) -> Repair:
        seq = self.rows[self._written()].seq if self.is_on_record() else -1
        return next((one for since, one in reversed(self._history.repairs) if since <= seq), super().repair(run))

    def new_rules(self) -> Rules | None:
        """The current rules, if they differ from the last recorded ones."""
        rules = self._run.setup.rules
        return None if rules == self._rules[-1][1] else rules

    def system(self, run: Run) -> System:
        """The recorded system message. A stored recording has it only in rows where it changed."""
        if not self.is_on_record():
            return super().system(run)
        one = self.rows[self._written()]
        if one.system is not None:
            message = reading(one, outcomes.message, one.system, run.context.media_store)
            self._system = System("", "", message, may_quote=True)
        return self._system

    def as_recorded(self, run: Run, message: Message) -> Message:
        at = len(run.messages)
        if at >= len(self._messages) or self._messages[at][1].get("role") != message.role:
            return message
        recorded, known = self._messages[at]
        if message.as_sent() == known:
            return message  # it may have a second wording, for native calls
        known = {**known, "by": message.by}  # who wrote it is not recorded
        return reading(recorded, outcomes.message, known, run.context.media_store)

    # -------------------------------------------------------------------------------------------------- comparison

    def compare(self, row: events.Row) -> None:
        """Compares a row that the loop has written with the next one of the record, and counts it."""
        recorded = self.rows[self.at]
        reading(recorded, self._compare, row, recorded)
        self.at += 1

    def _compare(self, row: events.Row, recorded: Recorded) -> None:
        there = recorded.row
        if type(row) is not type(there) or row.place[:3] != there.place[:3]:
            expected, got = (f"{one.type} {shown(one.fields())}" for one in (there, row))
            raise divergence(recorded, expected, got)
        if isinstance(row, events.MessagesSentRow) and isinstance(there, events.MessagesSentRow):
            compared = self._new_messages(row.messages, there.since or 0, recorded.messages)
        else:
            compared = _compared(row.json(), row), _compared(there.fields(), row)
        if compared[0] != compared[1]:
            raise divergence(recorded, *_differing(compared[1], compared[0]))

    def _new_messages(self, sent: Sequence[Any], since: int, recorded: Sequence[Any]) -> tuple[Any, Any]:
        """The messages that were not compared yet, without the system message."""
        from_here = max(since, 1)
        if from_here > max(self._compared, 1):
            return [f"since {self._compared}"], [f"since {since}"]
        self._compared = len(sent)
        return [jsonable(sent[at]) for at in range(from_here, len(sent))], recorded


def _rules(run: Run, rows: Sequence[Recorded], resumes: Resumes) -> list[tuple[int, Rules]]:
    """The rules for checking responses, each with the number of the first row to which they apply."""
    start = rows[0].row if rows else None
    if not isinstance(start, events.RunStartRow):
        return [(0, run.setup.rules)]
    return [
        (0, reading(rows[0], run.setup.rules.recorded, start.rules)),
        *[
            (one.seq, reading(one, run.setup.rules.recorded, row.rules[run.scope])) for one, row in resumes
            if row.rules and run.scope in row.rules
        ],
    ]


def divergence(recorded: Recorded, expected: str, got: str) -> ReplayDivergenceError:
    """Returns an error that describes the first event that differs."""
    row = recorded.row
    scope = recorded.scope or "the root"
    return ReplayDivergenceError(
        f"the agent decides differently from the recording: event {recorded.seq} ({row.type}, step "
        f"{row.place[0]} of {scope})\n  recorded: {expected}\n  now:      {got}\n"
        "Resume with the agent that made the recording, or fork the run at an earlier step; in a test, record again.",
        seq=recorded.seq, event=row.type, expected=expected, got=got,
    )


def _compared(data: Any, row: events.Row) -> Any:
    """The part of a row's data that a replay compares."""
    if not isinstance(data, Mapping):
        return data
    compared = {key: one for key, one in data.items() if key not in row.uncompared}
    if compared.get("error") is not None:
        compared["error"] = "possibly worded differently"
    usage = compared.get("usage")
    if isinstance(usage, Mapping) and isinstance(cost := usage.get("cost"), float):
        compared["usage"] = {**usage, "cost": float(f"{cost:.11e}")}  # the last digits of a sum depend on the order
    return compared


def _differing(expected: Any, got: Any) -> tuple[str, str]:
    """Describes the first field or item that differs; otherwise both values in full."""
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        for key in dict.fromkeys([*expected, *got]):
            if expected.get(key) != got.get(key):
                return f"{key}: {shown(expected.get(key))}", f"{key}: {shown(got.get(key))}"
    if isinstance(expected, list) and isinstance(got, list):
        for at, (one, other) in enumerate(zip(expected, got, strict=False)):
            if one != other:
                return f"[{at}] {shown(one)}", f"[{at}] {shown(other)}"
    return shown(expected), shown(got)


def shown(data: object) -> str:
    """Formats data for an error, shortened if it is long."""
    text = dumps(data)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}… ({len(text)} characters)"


def fork(store: Store, source: str, *, at_step: int, run_id: str) -> str:
    """Copies a run up to the start of step `at_step` to the new `run_id`, and returns that id. Then `resume` it.

    Steps are counted from 0; at step 0 only the input is copied. Raises `KernaiError` if the store does not have the
    run, `ValueError` for a step that the run did not reach, `RunConflictError` if the new id is taken.
    """
    check_store(store)
    entries = store.load(source)
    recorded = RecordedRun(source, entries)
    begins = {one.step: one.seq for one in recorded.scopes[""] if isinstance(one.row, events.MessagesSentRow)}
    if at_step not in begins:
        known = ", ".join(map(str, begins)) or "none"
        raise ValueError(f"at_step must be a step in which run {source!r} called the model ({known}), got {at_step!r}")
    # including rows that a resume left out: their usage counts, and `run_resumed` has their numbers
    copies = [{**entry, "run_id": run_id} for entry in entries[:begins[at_step]]]
    for copy in copies:
        if copy["event"] == events.RunStartRow.type:
            copy["data"] = {**copy["data"], "run_id": run_id}
    start = copies[recorded.scopes[""][0].seq]["data"]
    start["metadata"] = {**(start.get("metadata") or {}), "forked_from": {"run_id": source, "at_step": at_step}}
    text = json.dumps(copies, default=str)
    store.append(run_id, 0, copies, [one for one in store.load_media(source) if one.id in text])
    return run_id
