"""`ReplayCursor`: a scope's recorded rows, and how many of them its loop has written again. `Comparison`: compares the
rows of a replay with the recorded ones.

While a scope is replayed, its cursor is its gate: it answers from the recording, where the live gate would look at the
present state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernai.agents.setup import NO_SYSTEM, System
from kernai.durable import outcomes
from kernai.durable.recorded_run import Recorded, has_system, is_broken_off, reading
from kernai.errors import ReplayDivergenceError, RunStoppedError
from kernai.events import AnswerRejectedRow, MessagesSentRow, ModelFailedRow, ResultRow, Row, RunResumedRow, RunStartRow
from kernai.jsonio.json_data import dumps, jsonable
from kernai.loop.effects import Cancelled
from kernai.loop.root import Gate
from kernai.values.message import Message
from kernai.values.result import StopReason

if TYPE_CHECKING:
    from kernai.agents.definition import Rules
    from kernai.loop.run_state import Run

LONGEST_SHOWN = 300


class ReplayCursor(Gate):
    """`at` is how many rows the loop has written again. Beyond the end of the record, the cursor answers as the live
    gate does; a run that only `compares` stops there.
    """

    __slots__ = ("_compares", "_messages", "_rules", "_run", "_system", "at", "rows", "spent")

    def __init__(
        self, run: Run, rows: Sequence[Recorded], seams: Sequence[Recorded] = (), *, compares: bool
    ) -> None:
        super().__init__(run.root.cancellation, run.root.budget)
        self.rows = rows
        self.at = 0
        self._run = run
        self._compares = compares
        self._system = NO_SYSTEM
        self._messages = _messages(rows)
        self._rules = _rules(run, rows, seams)
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
        end = self._written()
        if end >= len(self.rows):
            if self._compares:
                raise Cancelled
            return False
        while is_broken_off(self.rows[end]):  # announced calls that were dropped because the run stops here
            end += 1
            if end == len(self.rows):
                return True
        result = self.rows[end].row
        if isinstance(result, ResultRow) and self._stops_here(result, end):
            raise outcomes.stop(result)
        return True

    def _stops_here(self, result: ResultRow, at: int) -> bool:
        """Whether the run was stopped before its next step, and not by that step's outcome."""
        reason = result.stop_reason
        failed = at > 0 and isinstance(self.rows[at - 1].row, ModelFailedRow) and reason == StopReason.ERROR
        return reason != StopReason.FINAL and result.steps == self._run.steps and not failed

    def check(self) -> None:
        if not self.is_decided():
            super().check()

    def spend_call(self) -> None:
        if self.is_decided():
            self.spent = next(self._budget.calls)  # whatever the limits are now
        else:
            self.spent = -1
            super().spend_call()

    def check_depth(self, depth: int) -> None:
        if not self.is_decided():
            super().check_depth(depth)

    def why_stopped(self) -> RunStoppedError:
        end = next((one.row for one in self.rows[self._written():] if isinstance(one.row, ResultRow)), None)
        return super().why_stopped() if end is None else outcomes.stop_error(end)

    def output_check(self, run: Run, value: Any) -> str | None:
        if not self.is_on_record():
            if self._compares:
                raise Cancelled
            return super().output_check(run, value)
        row = self.rows[self._written()].row
        return row.error if isinstance(row, AnswerRejectedRow) else None

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
        one = next((one for one in self.rows[self.at:] if isinstance(one.row, MessagesSentRow)), None)
        if one is not None and isinstance(one.row, MessagesSentRow) and has_system(one.row):
            message = reading(one, outcomes.message, one.row.messages[0], run.context.media_store)
            self._system = System("", "", message, may_quote=True)
        return self._system

    def as_recorded(self, run: Run, message: Message) -> Message:
        recorded = self._messages.get(len(run.conversation.messages))
        if recorded is None or recorded[1].get("role") != message.role:
            return message
        known = {**recorded[1], "by": message.by}  # who wrote it is not recorded
        return reading(recorded[0], outcomes.message, known, run.context.media_store)


def _rules(run: Run, rows: Sequence[Recorded], seams: Sequence[Recorded]) -> list[tuple[int, Rules]]:
    """The rules for checking responses, each with the number of the first row to which they apply."""
    start = rows[0].row if rows else None
    if not isinstance(start, RunStartRow):
        return [(0, run.setup.rules)]
    return [
        (0, reading(rows[0], run.setup.rules.recorded, start.rules)),
        *[
            (one.seq, reading(one, run.setup.rules.recorded, one.row.rules[run.scope])) for one in seams
            if isinstance(one.row, RunResumedRow) and one.row.rules and run.scope in one.row.rules
        ],
    ]


def _messages(rows: Sequence[Recorded]) -> dict[int, tuple[Recorded, dict[str, object]]]:
    """The recorded messages of a conversation by index, without the system message."""
    found: dict[int, tuple[Recorded, dict[str, object]]] = {}
    for one in rows:
        row = one.row
        if isinstance(row, MessagesSentRow):
            new = row.messages[1:] if has_system(row) else row.messages
            first = max((row.since or 0) - 1, 0)
            found.update((first + at, (one, message)) for at, message in enumerate(new))
    return found


# ------------------------------------------------------------------------------------------------------ comparison


class Comparison:
    """Compares each row of one scope's replay with the recorded row."""

    def __init__(self) -> None:
        self._sent = 0

    def check(self, row: Row, recorded: Recorded) -> None:
        there = recorded.row
        if type(row) is not type(there) or row.place[:3] != there.place[:3]:
            expected, got = (f"{one.type} {shown(one.fields())}" for one in (there, row))
            raise divergence(recorded, expected, got)
        got, expected = self._data(row, there)
        if got != expected:
            raise divergence(recorded, *_differing(expected, got))

    def _data(self, row: Row, recorded: Row) -> tuple[Any, Any]:
        if isinstance(row, MessagesSentRow):
            assert isinstance(recorded, MessagesSentRow)
            return self._messages(row.messages, recorded)
        got, expected = row.json(), recorded.fields()
        if isinstance(got, dict) and isinstance(expected, Mapping):
            return _compared(got, row), _compared(expected, row)
        return got, expected

    def _messages(self, sent: Sequence[Any], recorded: MessagesSentRow) -> tuple[Any, Any]:
        """The messages that were not compared yet, without the system message."""
        since = recorded.since or 0
        new = recorded.messages[1:] if has_system(recorded) else recorded.messages
        from_here = max(since, 1)
        if from_here > max(self._sent, 1):
            return [f"since {self._sent}"], [f"since {since}"]
        self._sent = len(sent)
        return [jsonable(sent[at]) for at in range(from_here, len(sent))], new


def divergence(recorded: Recorded, expected: str, got: str) -> ReplayDivergenceError:
    """Returns an error that describes the first event that differs."""
    row = recorded.row
    scope = recorded.scope or "the root"
    return ReplayDivergenceError(
        f"the agent decides differently from the recording: event {recorded.seq} ({row.type}, step "
        f"{row.place[0]} of {scope})\n  recorded: {expected}\n  now:      {got}\n"
        "Use the agent that made the recording, or fork the run at an earlier step.",
        seq=recorded.seq, event=row.type, expected=expected, got=got,
    )


def _compared(data: Mapping[str, Any], row: Row) -> dict[str, Any]:
    compared = {key: one for key, one in data.items() if key not in row.uncompared}
    if row.is_worded and compared["error"] is not None:
        compared["error"] = "possibly worded differently"
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
