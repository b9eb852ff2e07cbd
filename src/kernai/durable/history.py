"""`History`: the part of a recording that a run continues from. A resume or a replay looks up everything here.

A stopped run has written rows only because of the stop: the model failed, a call was broken off, tasks ended with the
run. These rows have the stop's reason, and `truncated` leaves them out. It keeps the real outcomes of calls, so that
nothing is done twice. `run_resumed` records which rows a resume left out, so every later reader leaves out the same.

`fork` copies a run up to a step, to continue differently from there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from kernai import events
from kernai.durable.recorded_run import Facts, Recorded, RecordedRun, Resumes, model_call, reading
from kernai.durable.store import Store, check_store
from kernai.errors import INTERRUPTED, ReplayDivergenceError
from kernai.values.result import StopReason, Usage

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
                self.wasted.setdefault(model_call(one), []).append(used or Usage())
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
        # the loop also ends at that row, but differently
        was_over = differs.seq == recorded.scopes[""][-1].seq and not differs.expected.startswith("result")
        return None if was_over else before

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


def fork(store: Store, source: str, *, at_step: int, run_id: str) -> str:
    """Copies a run up to the start of step `at_step` to the new `run_id`, and returns that id. Then `resume` it.

    Steps are counted from 0; at step 0 only the input is copied. Raises `KernaiError` if the store does not have the
    run, `ValueError` for a step that the run did not reach, `RunConflictError` if the new id is taken.
    """
    check_store(store)
    entries = store.load(source)
    recorded = RecordedRun(source, entries)
    begins = {one.step: one.seq for one in recorded.scopes[""] if isinstance(one.row, events.MessagesSentRow)}
    if type(at_step) is not int or at_step not in begins:
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
