"""Infers which entries of a format 1 recording were written only because the run stopped. Format 1 did not say so.

No other module knows this inference, and it can go when nobody has such recordings any more. A recording that a later
kernai has resumed needs no inference: its `run_resumed` lists what was left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from kernai.loop.effects import task_scope

#: stop reasons of a sub-run that ended together with its root; every other reason was its own
WITH_THE_ROOT = frozenset({"cancelled", "timeout", "max_tokens", "max_cost", "max_calls", "interrupt"})
#: events that a run no longer writes once it is to stop
BEGUN = frozenset({"input_added", "messages_sent", "skill_execute", "protocol_execute"})
CALL_OUTCOMES = ("skill_result", "skill_error", "protocol_result", "protocol_error")
#: events written outside the loop, whose order does not matter here
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
    """Returns the numbers of entries that were written only because the whole run stopped, each with the stop reason.

    `dropped` are the numbers of entries that no longer count, `kinds` the events that kernai knows. The data of all
    entries must already be checked.
    """
    scopes: dict[str, list[_OldRow]] = {}
    for seq, entry in enumerate(entries):
        if seq not in dropped and entry["event"] in kinds and entry["event"] not in ASIDE:
            scopes.setdefault(entry.get("scope") or "", []).append(_OldRow(seq, entry))
    return _Inference(scopes).stops() if "" in scopes else {}


class _Inference:
    def __init__(self, scopes: dict[str, list[_OldRow]]) -> None:
        self._scopes = scopes
        #: by scope, the number of the last entry that begins something
        self._begun = {
            scope: max((one.seq for one in rows if one.type in BEGUN), default=-1) for scope, rows in scopes.items()
        }
        ended = {scope: rows for scope, rows in scopes.items() if rows[-1].type == "result"}
        self._own_ends = {scope for scope, rows in ended.items() if not _ended_with_the_root(scope, rows)}
        self._stopped = {scope for scope in ended.keys() - self._own_ends if not self._is_over(scope)}

    def stops(self) -> dict[int, str]:
        left_out: list[int] = []
        kept: dict[str, list[_OldRow]] = {}
        for scope, rows in self._scopes.items():
            # if a run above continued after this scope, nothing is left out
            cut = len(rows) if self._is_over(scope) else self._cut(scope, rows)
            kept[scope] = rows[:cut]
            left_out += [one.seq for one in rows[cut:]]
        for scope in self._begun_in(left_out):
            left_out += [one.seq for one in kept[scope]]
        last = self._scopes[""][-1]
        reason = str(last.data["stop_reason"]) if last.type == "result" else "cancelled"
        return dict.fromkeys(left_out, "cancelled" if reason == "final" else reason)

    def _is_over(self, scope: str) -> bool:
        """Whether a run above continued after this scope's last entry, or ended for a reason of its own."""
        last = self._scopes[scope][-1].seq
        return any(self._begun.get(above, -1) > last or above in self._own_ends for above in _above(scope))

    def _cut(self, scope: str, rows: Sequence[_OldRow]) -> int:
        """The index of a scope's first entry that the stop caused; if there is none, the number of entries."""
        # a run that begins something has not been stopped yet, so skip everything up to the last entry of that kind
        begin = 1 + max((at for at, one in enumerate(rows) if one.type in BEGUN), default=-1)
        return next((at for at in range(begin, len(rows)) if self._is_caused(scope, rows[at])), len(rows))

    def _is_caused(self, scope: str, one: _OldRow) -> bool:
        """Whether an entry was written because the run stopped."""
        ended, data = scope in self._stopped, one.data
        match one.type:
            case "result" | "workflow_error":
                return ended
            case "model_failed":
                return ended or not scope or data.get("exception") is None
            case "task_complete":
                return bool(data.get("drained"))
            case "skill_error" | "protocol_error" | "task_error":
                is_broken_off = any(map(data.get, ("interrupted", "not_run", "drained")))
                return is_broken_off or self._ended_with_the_run(_child(scope, one))
        return False

    def _ended_with_the_run(self, child: str) -> bool:
        """Whether a sub-run began, and ended because its root did."""
        rows = self._scopes.get(child)
        return rows is not None and (child in self._stopped or rows[-1].type != "result")

    def _begun_in(self, dropped: Sequence[int]) -> list[str]:
        """The scopes that were started by an entry that is left out, and all scopes below them."""
        gone = set(dropped)
        begun = [
            _child(scope, one) for scope, rows in self._scopes.items() for one in rows
            if one.seq in gone and one.type in ("task_start", "skill_execute")
        ]
        return [scope for scope in self._scopes if any(scope == one or scope.startswith(one + "/") for one in begun)]


def _child(scope: str, one: _OldRow) -> str:
    """The scope of the sub-run that an entry reports on, if there is one. For an agent, that is the id of the call."""
    if "call_id" in one.data:
        return str(one.data["call_id"])
    return task_scope(scope, one.entry.get("step") or 0, one.data["task_id"])


def _above(scope: str) -> list[str]:
    """The scopes that contain this scope."""
    parts = scope.split("/") if scope else []
    return ["/".join(parts[:depth]) for depth in range(len(parts))]


def _ended_with_the_root(scope: str, rows: Sequence[_OldRow]) -> bool:
    """Whether a scope ended because the root was stopped. Its last event must be its `result`."""
    last = rows[-1]
    reason = last.data["stop_reason"]
    if not scope:
        return bool(reason != "final")
    return reason in WITH_THE_ROOT and not last.data.get("raised") and not _exited(rows)


def _exited(rows: Sequence[_OldRow]) -> bool:
    """Whether a task, or a sub-run in one, ended by its own `SystemExit`, which does not end the whole run."""
    for one in reversed(rows):
        if one.type == "llm_response" or one.entry.get("task_id") is None:
            return False
        if one.type in CALL_OUTCOMES and one.data.get("exception") == "SystemExit":
            return True
    return False
