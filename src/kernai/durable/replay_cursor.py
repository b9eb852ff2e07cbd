"""`ReplayCursor`: a scope's rows on record, and how far its loop has written them again.

While a scope is replayed this is its gate: it answers from the recording what the live gate answers for the present.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernai.agents.setup import NO_SYSTEM, System
from kernai.durable import outcomes
from kernai.durable.recorded_run import Recorded, has_system, is_broken_off, reading
from kernai.errors import RunStoppedError
from kernai.events import AnswerRejectedRow, MessagesSentRow, ModelFailedRow, ResultRow, RunResumedRow, RunStartRow
from kernai.loop.effects import Cancelled
from kernai.loop.root import Gate
from kernai.values.message import Message
from kernai.values.result import StopReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernai.agents.definition import Rules
    from kernai.loop.run_state import Run


class ReplayCursor(Gate):
    """`at` counts the rows that the loop has written again. At the end of the record it answers as the live gate does.

    A run that only `compares` stops there.
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
        #: the number of the call at the end of the record; -1 if it was counted after the record
        self.spent = -1

    @property
    def next(self) -> Recorded | None:
        """The row that the loop has to write next; None at the end of the record."""
        return self.rows[self.at] if self.at < len(self.rows) else None

    def _written(self) -> int:
        """How many rows the loop has written, those among them that were not compared yet."""
        return self.at + len(self._run.outbox.waiting)

    def is_on_record(self) -> bool:
        return self._written() < len(self.rows)

    def is_decided(self) -> bool:
        end = self._written()
        if end >= len(self.rows):
            if self._compares:
                raise Cancelled
            return False
        while is_broken_off(self.rows[end]):  # calls that were announced and dropped because the run stops here
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
        """The rules that hold after the record, if they have changed."""
        rules = self._run.setup.rules
        return None if rules == self._rules[-1][1] else rules

    def system(self, run: Run) -> System:
        """A stored recording has the system message only where it changed."""
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
    """The rules by which responses were judged, each with the number of its first row."""
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
    """The recorded messages of a conversation by their index, without the system message."""
    found: dict[int, tuple[Recorded, dict[str, object]]] = {}
    for one in rows:
        row = one.row
        if isinstance(row, MessagesSentRow):
            new = row.messages[1:] if has_system(row) else row.messages
            first = max((row.since or 0) - 1, 0)
            found.update((first + at, (one, message)) for at, message in enumerate(new))
    return found
