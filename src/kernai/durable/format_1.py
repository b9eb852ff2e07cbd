"""Infers which rows of a format 1 recording were written only because the run stopped. Format 1 did not say so.

No other module knows this inference, and it can go when nobody has such recordings any more. A recording that a later
kernai has resumed needs no inference: its `run_resumed` lists what was left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kernai import events
from kernai.loop.effects import task_scope

if TYPE_CHECKING:
    from kernai.durable.recorded_run import Recorded

#: stop reasons of a sub-run that ended together with its root; every other reason was its own
WITH_THE_ROOT = frozenset({"cancelled", "timeout", "max_tokens", "max_cost", "max_calls", "interrupt"})
#: rows that a run no longer writes once it is to stop
BEGUN = (events.InputAddedRow, events.MessagesSentRow, events.CallBegunRow)


def stops(scopes: Mapping[str, Sequence[Recorded]]) -> dict[int, str]:
    """Returns the numbers of rows that were written only because the whole run stopped, each with the stop reason.

    `scopes` are the rows that count, by scope.
    """
    return _Inference(scopes).stops() if "" in scopes else {}


class _Inference:
    def __init__(self, scopes: Mapping[str, Sequence[Recorded]]) -> None:
        self._scopes = scopes
        #: by scope, the number of the last row that begins something
        self._begun = {
            scope: max((one.seq for one in rows if isinstance(one.row, BEGUN)), default=-1)
            for scope, rows in scopes.items()
        }
        ended = {scope: end for scope, rows in scopes.items() if isinstance(end := rows[-1].row, events.ResultRow)}
        self._own_ends = {scope for scope, end in ended.items() if not self._ended_with_the_root(scope, end)}
        self._stopped = {scope for scope in ended.keys() - self._own_ends if not self._is_over(scope)}

    def stops(self) -> dict[int, str]:
        left_out: list[int] = []
        kept: dict[str, Sequence[Recorded]] = {}
        for scope, rows in self._scopes.items():
            # if a run above continued after this scope, nothing is left out
            cut = len(rows) if self._is_over(scope) else self._cut(scope, rows)
            kept[scope] = rows[:cut]
            left_out += [one.seq for one in rows[cut:]]
        for scope in self._begun_in(left_out):
            left_out += [one.seq for one in kept[scope]]
        last = self._scopes[""][-1].row
        reason = last.stop_reason if isinstance(last, events.ResultRow) else "cancelled"
        return dict.fromkeys(left_out, "cancelled" if reason == "final" else reason)

    def _is_over(self, scope: str) -> bool:
        """Whether a run above continued after this scope's last row, or ended for a reason of its own."""
        last = self._scopes[scope][-1].seq
        return any(self._begun.get(above, -1) > last or above in self._own_ends for above in _above(scope))

    def _cut(self, scope: str, rows: Sequence[Recorded]) -> int:
        """The index of a scope's first row that the stop caused; if there is none, the number of rows."""
        # a run that begins something has not been stopped yet, so skip everything up to the last row of that kind
        begin = 1 + max((at for at, one in enumerate(rows) if isinstance(one.row, BEGUN)), default=-1)
        return next((at for at in range(begin, len(rows)) if self._is_caused(scope, rows[at])), len(rows))

    def _is_caused(self, scope: str, one: Recorded) -> bool:
        match one.row:
            case events.ResultRow() | events.WorkflowErrorRow():
                return scope in self._stopped
            case events.ModelFailedRow() as row:
                return scope in self._stopped or not scope or row.is_broken_off
            case events.TaskCompleteRow() as row:
                return bool(row.drained)
            case events.SkillErrorRow() | events.ProtocolErrorRow() | events.TaskErrorRow() as row:
                is_broken_off = row.is_broken_off or (isinstance(row, events.TaskErrorRow) and row.drained)
                return bool(is_broken_off) or self._ended_with_the_run(_child(scope, one))
        return False

    def _ended_with_the_run(self, child: str) -> bool:
        """Whether a sub-run began, and ended because its root did."""
        rows = self._scopes.get(child)
        return rows is not None and (child in self._stopped or not isinstance(rows[-1].row, events.ResultRow))

    def _begun_in(self, dropped: Sequence[int]) -> list[str]:
        """The scopes that were started by a row that is left out, and all scopes below them."""
        gone = set(dropped)
        begun = [
            _child(scope, one) for scope, rows in self._scopes.items() for one in rows
            if one.seq in gone and isinstance(one.row, (events.TaskStartRow, events.SkillExecuteRow))
        ]
        return [scope for scope in self._scopes if any(scope == one or scope.startswith(one + "/") for one in begun)]

    def _ended_with_the_root(self, scope: str, end: events.ResultRow) -> bool:
        if not scope:
            return end.stop_reason != "final"
        return end.stop_reason in WITH_THE_ROOT and not end.raised and not _exited(self._scopes[scope])


def _child(scope: str, one: Recorded) -> str:
    """The scope of the sub-run that a row reports on, if there is one. For an agent, that is the id of the call."""
    row = one.row
    if isinstance(row, (events.TaskStartRow, events.TaskEndedRow)):
        return task_scope(scope, one.step, row.task_id)
    assert isinstance(row, (events.CallBegunRow, events.CallEndedRow))
    return row.call_id


def _above(scope: str) -> list[str]:
    """The scopes that contain this scope."""
    parts = scope.split("/") if scope else []
    return ["/".join(parts[:depth]) for depth in range(len(parts))]


def _exited(rows: Sequence[Recorded]) -> bool:
    """Whether a task, or a sub-run in one, ended by its own `SystemExit`, which does not end the whole run."""
    for one in reversed(rows):
        if isinstance(one.row, events.LlmResponseRow) or one.row.place[2] is None:
            return False
        if isinstance(one.row, events.CallEndedRow) and getattr(one.row, "exception", None) == "SystemExit":
            return True
    return False
