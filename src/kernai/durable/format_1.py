"""Recordings of format 1, which did not say what was written because a run stopped: here that is inferred.

Nothing else knows that format, and this module can go when nobody has such recordings any more. A recording that was
resumed by a later kernai needs no inference: what it left out is in its `run_resumed`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from kernai.loop.effects import task_scope

#: why a sub-run ended together with its root; for every other reason it ended for itself
WITH_THE_ROOT = frozenset({"cancelled", "timeout", "max_tokens", "max_cost", "max_calls", "interrupt"})
#: a run that is to stop writes none of these any more
BEGUN = frozenset({"input_added", "messages_sent", "skill_execute", "protocol_execute"})
CALL_OUTCOMES = ("skill_result", "skill_error", "protocol_result", "protocol_error")
#: written beside the loop, in no order that matters here
ASIDE = frozenset({
    "approval_requested", "approval_given", "in_flight", "context_saved", "model_restarted", "progress", "run_resumed",
})


class _OldRow(NamedTuple):
    seq: int
    entry: Mapping[str, Any]

    @property
    def type(self) -> str:
        return str(self.entry["event"])

    @property
    def data(self) -> Any:
        return self.entry.get("data")


def stops(entries: Sequence[Mapping[str, Any]], dropped: Collection[int], kinds: Collection[str]) -> dict[int, str]:
    """By its number, why an entry was written that was written because the whole run stopped.

    `dropped` are the numbers of those that no longer count, `kinds` the events that kernai knows. The entries fit them.
    """
    scopes: dict[str, list[_OldRow]] = {}
    for seq, entry in enumerate(entries):
        if seq not in dropped and entry["event"] in kinds and entry["event"] not in ASIDE:
            scopes.setdefault(entry.get("scope") or "", []).append(_OldRow(seq, entry))
    return _Inference(scopes).stops() if "" in scopes else {}


class _Inference:
    def __init__(self, scopes: dict[str, list[_OldRow]]) -> None:
        self._scopes = scopes
        self._is_over = is_over = self._ends()
        self._stopped = {
            scope for scope, rows in scopes.items()
            if rows[-1].type == "result" and _ended_with_the_root(scope, rows) and not is_over(scope)
        }

    def stops(self) -> dict[int, str]:
        left_out: list[int] = []
        kept: dict[str, list[_OldRow]] = {}
        for scope, rows in self._scopes.items():
            # what a run above continued without stays as it is
            cut = len(rows) if self._is_over(scope) else self._cut(scope, rows)
            kept[scope] = rows[:cut]
            left_out += [one.seq for one in rows[cut:]]
        for scope in self._begun_in(left_out):
            left_out += [one.seq for one in kept[scope]]
        last = self._scopes[""][-1]
        reason = str(last.data["stop_reason"]) if last.type == "result" else "cancelled"
        return dict.fromkeys(left_out, "cancelled" if reason == "final" else reason)

    def _ends(self) -> Callable[[str], bool]:
        """Says of a scope whether a run above it has continued after its end, or ended for itself."""
        begun: dict[str, int] = {}
        ended: dict[str, bool] = {}  # whether with the root
        for scope, rows in self._scopes.items():
            begun[scope] = max((one.seq for one in rows if one.type in BEGUN), default=-1)
            if rows[-1].type == "result":
                ended[scope] = _ended_with_the_root(scope, rows)

        def is_over(scope: str) -> bool:
            last = self._scopes[scope][-1].seq
            return any(begun.get(above, -1) > last or not ended.get(above, True) for above in _above(scope))

        return is_over

    def _cut(self, scope: str, rows: Sequence[_OldRow]) -> int:
        """Where what a stop caused begins in a scope; its length where there is no such thing."""
        # what began after something was begun by a run that continued
        begin = 1 + max((at for at, one in enumerate(rows) if one.type in BEGUN), default=-1)
        ended = scope in self._stopped
        for at in range(begin, len(rows)):
            one = rows[at]
            kind, data = one.type, one.data
            if kind == "result" and ended:
                return at
            if kind == "model_failed" and (ended or not scope or data.get("exception") is None):
                return at
            if kind == "workflow_error" and ended:
                return at
            if kind in ("task_complete", "task_error") and data.get("drained"):
                return at
            if kind in ("skill_error", "protocol_error", "task_error") and _is_broken_off(kind, data):
                return at
            if kind == "skill_error" and self._went_with(data["call_id"]):
                return at
            if kind == "task_error" and self._went_with(
                task_scope(scope, one.entry.get("step") or 0, data["task_id"])
            ):
                return at
        return len(rows)

    # the scope of an agent that was called is the id of the call
    def _went_with(self, child: str) -> bool:
        """Whether a sub-run began, and ended for its root did."""
        rows = self._scopes.get(child)
        return rows is not None and (child in self._stopped or rows[-1].type != "result")

    def _begun_in(self, dropped: Sequence[int]) -> list[str]:
        """The scopes that began with an entry that is left out, and those below them."""
        gone = set(dropped)
        begun = []
        for scope, rows in self._scopes.items():
            for one in rows:
                if one.seq in gone and one.type == "task_start":
                    begun.append(task_scope(scope, one.entry.get("step") or 0, one.data["task_id"]))
                elif one.seq in gone and one.type == "skill_execute":
                    begun.append(one.data["call_id"])
        return [scope for scope in self._scopes if any(scope == one or scope.startswith(one + "/") for one in begun)]


def _is_broken_off(kind: str, data: Mapping[str, Any]) -> bool:
    """Whether nothing came of a call, because the run was stopped."""
    if kind == "model_failed":
        return data.get("exception") is None
    return bool(data.get("interrupted") or data.get("not_run"))


def _above(scope: str) -> list[str]:
    """The scopes that a scope is within."""
    parts = scope.split("/") if scope else []
    return ["/".join(parts[:depth]) for depth in range(len(parts))]


def _ended_with_the_root(scope: str, rows: Sequence[_OldRow]) -> bool:
    """Of a scope whose last event is its `result`: whether it ended for the root was stopped."""
    last = rows[-1]
    reason = last.data["stop_reason"]
    if not scope:
        return bool(reason != "final")
    return reason in WITH_THE_ROOT and not last.data.get("raised") and not _exited(rows)


def _exited(rows: Sequence[_OldRow]) -> bool:
    """Whether a `SystemExit` of its own has ended a task, or a sub-run in one: that ends no more than the task."""
    for one in reversed(rows):
        if one.type == "llm_response" or one.entry.get("task_id") is None:
            return False
        if one.type in CALL_OUTCOMES and one.data.get("exception") == "SystemExit":
            return True
    return False
