"""Infers which rows of a format 1 recording were written only because the run stopped. Format 1 did not say so.

No other module knows this inference, and it can go when nobody has such recordings any more. A recording that a later
kernai has resumed needs no inference: its `run_resumed` lists what was left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kernai import events

if TYPE_CHECKING:
    from kernai.durable.recorded_run import Recorded

#: stop reasons of a sub-run that ended together with its root; every other reason was its own
WITH_THE_ROOT = frozenset({"cancelled", "timeout", "max_tokens", "max_cost", "max_calls", "interrupt"})


def stops(scopes: Mapping[str, Sequence[Recorded]]) -> dict[int, str]:
    """Returns the numbers of rows that were written only because the whole run stopped, each with the stop reason.

    `scopes` are the rows that count, by scope.
    """
    #: by scope, the number of the last row that begins something
    begun = {
        scope: max((one.seq for one in rows if isinstance(one.row, events.BEGUN)), default=-1)
        for scope, rows in scopes.items()
    }
    own_ends = {scope for scope, rows in scopes.items() if _has_own_end(scope, rows)}

    def is_settled(scope: str) -> bool:
        """Whether a run above continued after this scope's last row, or ended for a reason of its own."""
        last = scopes[scope][-1].seq
        return any(begun.get(above, -1) > last or above in own_ends for above in _above(scope))

    def ended_with_the_run(scope: str) -> bool:
        """Whether a sub-run began, and ended because its root did, or did not end."""
        return scope in scopes and (not isinstance(scopes[scope][-1].row, events.ResultRow) or was_stopped(scope))

    def was_stopped(scope: str) -> bool:
        has_end = isinstance(scopes[scope][-1].row, events.ResultRow)
        return has_end and scope not in own_ends and not is_settled(scope)

    def is_caused(scope: str, one: Recorded) -> bool:
        match one.row:
            case events.ResultRow() | events.WorkflowErrorRow():
                return was_stopped(scope)
            case events.ModelFailedRow() as row:
                return not scope or row.is_broken_off or was_stopped(scope)
            case events.TaskCompleteRow() as row:
                return bool(row.drained)
            case events.SkillErrorRow() | events.ProtocolErrorRow() | events.TaskErrorRow() as row:
                is_drained = isinstance(row, events.TaskErrorRow) and row.drained
                return bool(row.is_broken_off or is_drained) or ended_with_the_run(one.call)
        return False

    left_out: set[int] = set()
    for scope, rows in scopes.items():
        if not is_settled(scope):  # otherwise nothing is left out
            # a run that begins something has not been stopped yet
            caused = (one.seq for one in rows if one.seq > begun[scope] and is_caused(scope, one))
            first = next(caused, None)
            left_out.update(one.seq for one in rows if first is not None and one.seq >= first)
    starts = (events.TaskStartRow, events.SkillExecuteRow)
    never_began = {
        one.call for rows in scopes.values() for one in rows if one.seq in left_out and isinstance(one.row, starts)
    }
    for scope, rows in scopes.items():
        if not never_began.isdisjoint([scope, *_above(scope)]):
            left_out.update(one.seq for one in rows)
    last = scopes[""][-1].row
    reason = last.stop_reason if isinstance(last, events.ResultRow) else "cancelled"
    return dict.fromkeys(left_out, "cancelled" if reason == "final" else reason)


def _has_own_end(scope: str, rows: Sequence[Recorded]) -> bool:
    """Whether a run ended for a reason of its own, and not together with its root."""
    end = rows[-1].row
    if not isinstance(end, events.ResultRow):
        return False
    if not scope:
        return end.stop_reason == "final"
    return end.stop_reason not in WITH_THE_ROOT or bool(end.raised) or _exited(rows)


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
