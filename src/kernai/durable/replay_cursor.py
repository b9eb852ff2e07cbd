"""`ReplayCursor`: a scope's recorded rows, and how many of them its loop has written again, each compared with the
recorded one.

While a scope is replayed, its cursor is its gate: it answers from the recording, where the live gate would look at the
present state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernai import events
from kernai.agents.setup import NO_SYSTEM, System
from kernai.durable import outcomes
from kernai.durable.recorded_run import Recorded, Resumes, reading, sent_messages, system_in, without_system
from kernai.errors import ReplayDivergenceError, RunStoppedError, stopped
from kernai.jsonio.json_data import dumps, jsonable
from kernai.loop.effects import Cancelled
from kernai.loop.root import Gate
from kernai.values.message import Message
from kernai.values.result import StopReason

if TYPE_CHECKING:
    from kernai.agents.definition import Rules
    from kernai.durable.history import History
    from kernai.loop.run_state import Run
    from kernai.values.context import Context

LONGEST_SHOWN = 300


class ReplayCursor(Gate):
    """`at` is how many rows the loop has written again. Beyond the end of the record, the cursor answers as the live
    gate does; a run that only `compares` stops there.
    """

    __slots__ = ("_compared", "_compares", "_history", "_messages", "_rules", "_run", "_system", "at", "rows", "spent")

    def __init__(self, run: Run, rows: Sequence[Recorded], history: History, *, compares: bool) -> None:
        super().__init__(run.root.cancellation, run.root.budget)
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
        dropped = events.CallEndedRow, events.TaskEndedRow
        # skip what was written because the run stops here
        while end < len(self.rows) and isinstance(row := self.rows[end].row, dropped) and row.is_broken_off:
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
        failed = at > 0 and isinstance(self.rows[at - 1].row, events.ModelFailedRow) and reason == StopReason.ERROR
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

    def new_rules(self) -> Rules | None:
        """The current rules, if they differ from the last recorded ones."""
        rules = self._run.setup.rules
        return None if rules == self._rules[-1][1] else rules

    def system(self, run: Run) -> System:
        """The recorded system message. A stored recording has it only in rows where it changed."""
        if not self.is_on_record():
            return super().system(run)
        one = self.rows[self._written()]
        if (sent := system_in(one.row)) is not None:
            message = reading(one, outcomes.message, sent, run.context.media_store)
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
            compared = self._new_messages(row.messages, there)
        else:
            compared = _compared(row.json(), row), _compared(there.fields(), row)
        if compared[0] != compared[1]:
            raise divergence(recorded, *_differing(compared[1], compared[0]))

    def _new_messages(self, sent: Sequence[Any], recorded: events.MessagesSentRow) -> tuple[Any, Any]:
        """The messages that were not compared yet, without the system message."""
        since, from_here = recorded.since or 0, max(recorded.since or 0, 1)
        if from_here > max(self._compared, 1):
            return [f"since {self._compared}"], [f"since {since}"]
        self._compared = len(sent)
        return [jsonable(sent[at]) for at in range(from_here, len(sent))], without_system(recorded)


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
