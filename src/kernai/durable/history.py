"""`History`: what a recording says of calls, by their ids, and of scopes: the one place where a resumed run looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kernai.durable.recorded_run import BEGUN, Recorded, RecordedRun, TruncatedHistory
from kernai.events import CallBegunRow, CallEndedRow, ResultRow

if TYPE_CHECKING:
    from kernai.events import ApprovalGivenRow, ContextSavedRow
    from kernai.values.result import PendingCall, Usage


class History:
    """`past` is what the run continues from; of a run that nobody has recorded there is nothing."""

    def __init__(self, recorded: RecordedRun | None = None, past: TruncatedHistory | None = None) -> None:
        past = past or TruncatedHistory({})
        #: the rows of each scope
        self.scopes: Mapping[str, Sequence[Recorded]] = past.scopes
        self.length = 0 if recorded is None else recorded.length
        self.dropped = past.dropped
        #: calls that were announced and surely did not begin
        self.never_ran = past.never_ran
        #: calls that somebody was asked about and has not decided; answers that are not used up
        self.waiting: Mapping[str, PendingCall] = {} if recorded is None else recorded.waiting
        self.approvals: Mapping[str, ApprovalGivenRow] = {} if recorded is None else recorded.approvals
        #: by scope, what the host's context was last
        self.contexts: Mapping[str, ContextSavedRow] = {} if recorded is None else recorded.contexts
        self._decided = {} if recorded is None else recorded.decided
        self._in_flight = {} if recorded is None else recorded.in_flight
        self._past = past
        self.seams: Sequence[Recorded] = () if recorded is None else recorded.seams
        self._announced: set[str] = set()
        self._outcomes = dict(past.outcomes)
        for told in past.scopes.values():
            for one in told:
                if isinstance(one.row, CallBegunRow):
                    self._announced.add(one.row.call_id)
                elif isinstance(one.row, CallEndedRow):
                    self._outcomes[one.row.call_id] = one

    def of(self, scope: str) -> Sequence[Recorded]:
        """The rows of a scope."""
        return self.scopes.get(scope, ())

    def outcome_of(self, call_id: str) -> Recorded | None:
        """What came of a call."""
        return self._outcomes.get(call_id)

    def was_announced(self, call_id: str) -> bool:
        """Whether it is on record that a call was about to be made."""
        return call_id in self._announced

    def decision_on(self, call_id: str) -> ApprovalGivenRow | None:
        """What somebody decided on a call."""
        return self._decided.get(call_id)

    def in_flight(self, call_id: str) -> str | None:
        """What was decided on a call whose outcome was lost."""
        return self._in_flight.get(call_id)

    def wasted_on(self, call_id: str) -> Usage | None:
        """What a model call used before it was made again."""
        return self._past.wasted.get(call_id)

    def was_resumed_after(self, outcome: Recorded) -> bool:
        """Whether the run was resumed after the outcome of a call."""
        scope = outcome.scope
        after = (one for one in self.of(scope) if one.seq > outcome.seq and isinstance(one.row, (*BEGUN, ResultRow)))
        then = next(after, None)
        if then is not None and not isinstance(then.row, ResultRow):
            return True
        until = None if then is None else then.seq  # else a resume has undone that the scope had ended
        undone = self._past.undone.get(scope, ())
        return any(outcome.seq < ended and (until is None or ended < until) for ended in undone)
