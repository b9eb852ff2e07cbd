"""`RecordedRun`: the recording of one root run, with every entry parsed into its row once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import count
from typing import Any, NamedTuple, TypeVar

from kernai import events
from kernai.blocks.block import final_block, neutralize, result_block
from kernai.durable import format_1
from kernai.durable.approvals import REPLACES, Call, CallRefusedError, Decision, as_edited, decided
from kernai.durable.outcomes import Outcome, message, parts, payload, response
from kernai.errors import KernaiError, RunStoppedError, SkillInputError, Stop, error_text, no_run, stopped
from kernai.inputs.table import Repair
from kernai.loop import corrections
from kernai.loop.builtin_commands import LISTINGS
from kernai.loop.effects import task_scope
from kernai.loop.run_state import Run, input_message
from kernai.loop.workflow import RESULT_NAME, planned
from kernai.values.media import MediaStore
from kernai.values.message import InputPart, Message
from kernai.values.pending_calls import PendingCall
from kernai.values.result import Result, StopReason, Usage

T = TypeVar("T")


class Recorded(NamedTuple):
    """One row and its place in the recording."""

    seq: int
    row: events.Row

    @property
    def step(self) -> int:
        return self.row.place[0] or 0

    @property
    def scope(self) -> str:
        return self.row.place[3]

    @property
    def call(self) -> str:
        """The call or task that the row is about: the id of the call, the scope of the task. Else empty."""
        if isinstance(self.row, (events.TaskStartRow, events.TaskEndedRow)):
            return task_scope(self.scope, self.step, self.row.task_id)
        return getattr(self.row, "call_id", "")

    @property
    def model_call(self) -> str:
        """The id of the model call in whose step the row was written."""
        return f"{self.scope}/{self.step}" if self.scope else str(self.step)

    @property
    def system(self) -> Mapping[str, Any] | None:
        """The system message in the row, if any. A row with only new messages has it only if it changed."""
        first = next(iter(self.row.messages), None) if isinstance(self.row, events.MessagesSentRow) else None
        return first if first is not None and first.get("role") == "system" else None

    @property
    def messages(self) -> Sequence[Any]:
        """The messages in the row without the system message."""
        assert isinstance(self.row, events.MessagesSentRow)
        return self.row.messages if self.system is None else self.row.messages[1:]


Resumes = Sequence[tuple[Recorded, events.RunResumedRow]]


def reading(one: Recorded, make: Callable[..., T], *given: Any) -> T:
    """Calls `make` on data from the row. Raises `KernaiError` if the row does not contain what kernai writes."""
    try:
        return make(*given)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise _damage(one.row.place[4], one.seq, one.row.type, error) from error


def _damage(run_id: str, seq: int, kind: str, error: Exception) -> KernaiError:
    fault = f"its event {seq} ({kind}) cannot be read: {error_text(error)}"
    return KernaiError(f"the recording of run {run_id!r} is damaged: {fault}")


class Facts:
    """What a recording contains apart from what its loops decided, such as approvals and saved contexts."""

    def __init__(self) -> None:
        #: by call id: calls that wait for a decision, decisions that were not used yet, and those on calls in flight
        self.waiting: dict[str, PendingCall] = {}
        self.approvals: dict[str, Decision] = {}
        self.in_flight: dict[str, events.InFlightRow] = {}
        #: by call id, all decisions so far, in order
        self.decided: dict[str, list[Decision]] = {}
        #: by scope, the last saved state of the host's context
        self.contexts: dict[str, events.ContextSavedRow] = {}
        #: by scope, the rows that name trusted values beyond those in the conversation
        self.trusted: dict[str, list[Recorded]] = {}

    def note(self, one: Recorded) -> None:
        row = one.row
        if isinstance(row, (events.RunStartRow, events.TrustAddedRow, events.ApprovalGivenRow)):
            self.trusted.setdefault(one.scope, []).append(one)
        if isinstance(row, (events.CallEndedRow, events.LlmResponseRow, events.ModelFailedRow)):
            if not isinstance(row, events.LlmResponseRow) and row.is_broken_off:
                return  # the call may be made again under its decision, or still waits for one
            call = row.call_id if isinstance(row, events.CallEndedRow) else one.model_call
            for known in (self.waiting, self.approvals, self.in_flight):
                known.pop(call, None)
        elif isinstance(row, events.ApprovalRequestedRow):
            self.waiting[row.call_id] = PendingCall.from_dict(row.fields())
            self.approvals.pop(row.call_id, None)
        elif isinstance(row, events.ApprovalGivenRow):
            waited = self.waiting.pop(row.call_id, None)
            decision = Decision(row.decision, row.by)
            self.approvals[row.call_id] = decision = decision if waited is None else decision.about(waited)
            self.decided.setdefault(row.call_id, []).append(decision)
        elif isinstance(row, events.InputAddedRow):
            for earlier in (self.waiting, self.approvals, self.in_flight):
                earlier.clear()
        elif isinstance(row, events.InFlightRow):
            self.in_flight[row.call_id] = row
        elif isinstance(row, events.ContextSavedRow):
            self.contexts[one.scope] = row

    def agreed(self, call_id: str) -> Decision | None:
        """What people have decided last."""
        return next((one for one in reversed(self.decided.get(call_id, ())) if not one.is_woken), None)

    def as_agreed(self, run: Run, call: Call) -> Call | None:
        """Returns a call with the decisions on it; None if it was refused."""
        decision = self.agreed(call.call_id)
        try:
            made = as_edited(run, call, self.decided.get(call.call_id, ()))
            return made if decision is None else decided(run, made, decision)
        except (CallRefusedError, SkillInputError, ValueError, Stop):
            return None


class RecordedRun:
    """The entries of a root run. Raises `KernaiError` if there are none, if they are no run, or in a newer format."""

    def __init__(self, run_id: str, entries: Sequence[Mapping[str, Any]]) -> None:
        self.run_id = run_id
        if not entries:
            raise no_run(run_id)
        for seq, entry in enumerate(entries):
            if not isinstance(entry, Mapping) or not isinstance(entry.get("event"), str):
                raise KernaiError(f"the recording of run {run_id!r} is damaged: its entry {seq} is not an event")
        format_2 = self._check_formats(entries)
        self.all = [Recorded(seq, self._row(seq, entry)) for seq, entry in enumerate(entries)]
        self.resumes = [(one, one.row) for one in self.all if isinstance(one.row, events.RunResumedRow)]
        self.dropped = dropped = {seq for one, row in self.resumes for seq in reading(one, _dropped_by, one.seq, row)}
        for _, row in self.all[:format_2]:
            if isinstance(row, events.ApprovalGivenRow) and isinstance(row.decision, dict):
                row.decision = {**row.decision, REPLACES: True}
        self.facts = Facts()
        self.scopes: dict[str, list[Recorded]] = {}
        for one in self.all:
            if one.seq in dropped:
                continue
            reading(one, self.facts.note, one)
            if one.row.role != "aside":
                self.scopes.setdefault(one.scope, []).append(one)
        root = self.scopes.get("")
        start = root[0].row if root else None
        if not isinstance(start, events.RunStartRow):
            raise KernaiError(f"the recording of run {run_id!r} does not begin with its run_start")
        self.start = start
        if format_2 == len(entries):
            for seq, reason in format_1.stops(self.scopes).items():
                row = self.all[seq].row
                row.place = (*row.place[:5], reason)

    def _check_formats(self, entries: Sequence[Mapping[str, Any]]) -> int:
        """The number of the first entry in format 2; if all are in format 1, the length of the recording."""
        begins = len(entries)
        for seq, entry in enumerate(entries):
            if entry["event"] in (events.RunStartRow.type, events.RunResumedRow.type) and not entry.get("scope"):
                data = entry.get("data")
                number = data.get("format", 1) if isinstance(data, Mapping) else 1
                if not isinstance(number, int) or number > events.RECORDING_FORMAT:
                    raise KernaiError(
                        f"run {self.run_id!r} was recorded in format {number!r}, and this kernai reads up to "
                        f"{events.RECORDING_FORMAT}: update kernai to resume it"
                    )
                begins = min(begins, seq) if number > 1 else begins
        return begins

    def _row(self, seq: int, entry: Mapping[str, Any]) -> events.Row:
        try:
            return events.row_of(entry)
        except (TypeError, ValueError) as error:
            raise _damage(self.run_id, seq, entry["event"], error) from error

    @property
    def definition(self) -> Mapping[str, Any] | None:
        """The definition of the agent that wrote the end of the recording; None if not recorded, as in format 1."""
        return next((row for _, row in reversed(self.resumes) if row.definition), self.start).definition

    def repairs(self) -> list[tuple[int, Repair]]:
        """The recorded `repair` rules, each with the number of the first row to which it applies; none in format 1."""
        resumed = [(one, (row.rules or {}).get("")) for one, row in self.resumes]
        rules = [(self.scopes[""][0], self.start.rules), *resumed]
        return [(one.seq, found) for one, given in rules for found in reading(one, _repair_in, given)]

    @property
    def result(self) -> events.ResultRow | None:
        last = self.scopes[""][-1].row
        return last if isinstance(last, events.ResultRow) else None

    @property
    def is_closed(self) -> bool:
        return self.result is not None and self.result.stop_reason == StopReason.CLOSED

    @property
    def waiting(self) -> dict[str, PendingCall]:
        """The calls that wait for a decision, by call id. In a closed run none does."""
        return {} if self.is_closed else self.facts.waiting

    @property
    def needs_input(self) -> bool:
        """Whether the run can only continue with another input."""
        return self.is_closed or (self.result is not None and self.result.stop_reason == StopReason.FINAL)

    def final_result(self, media: MediaStore) -> Result[Any]:
        """The result of a run that has an end, from its rows alone."""
        return reading(self.scopes[""][-1], self._final_result, media)

    def _final_result(self, media: MediaStore) -> Result[Any]:
        history, end = self.start.history, self.result
        assert end is not None
        if not isinstance(end.text, str) and end.stop_reason == StopReason.FINAL:
            raise TypeError("its 'text' is not text")
        sent = sent_messages(self.scopes[""])
        messages: list[Message] = []
        for at, (one, recorded) in enumerate(sent):
            added = one.row.input if isinstance(one.row, events.InputAddedRow) else None
            given = self.start.input if at == len(history) else added
            signature = _signature(recorded, history[at] if at < len(history) else None, given)
            messages.append(message({**recorded, **signature}, media))
        rows = [row for _, row in self.scopes[""]]
        responses = [row for row in rows if isinstance(row, events.LlmResponseRow)]
        last = rows[max((at for at, row in enumerate(rows) if isinstance(row, events.MessagesSentRow)), default=0):]
        answer = [response(row).message() for row in last if isinstance(row, events.LlmResponseRow)]
        calls = [row for row in last if isinstance(row, (events.CallBegunRow, Outcome))]
        # one of the calls may have ended the run with an answer
        final = [row.text for row in last if isinstance(row, events.FinalRow) and (calls or not answer)]
        is_native = bool(answer) and answer[0].blocks is not None
        answer += [payload(one, media, at if is_native else None) for at, one in _outcomes(calls)]
        messages += answer + [Message("assistant", final_block(text)) for text in final]
        if not sent:  # the root called no model
            messages = [*self.history(media), *(input_message(one, "user") for one in self.inputs(media))]
            if self.start.plan is not None and end.text is not None:
                results = result_block(RESULT_NAME, neutralize(end.text)) + self._failed_tasks(end.text)
                messages += [planned(self.start.plan), Message("user", results, by="tool")]
        error = None if end.error is None else RunStoppedError(end.error)
        if error is not None and end.stop_reason not in (StopReason.ERROR, StopReason.INTERRUPT, StopReason.CLOSED):
            error = stopped(end.stop_reason, str(error))
        return Result(
            end.text, StopReason(end.stop_reason), end.steps, Usage(**end.usage_), tuple(messages), self.run_id,
            error, tuple(self.waiting.values()), truncated=bool(end.truncated),
            finish_reason=responses[-1].finish_reason if responses else None,
        )

    def _failed_tasks(self, results: str) -> str:
        """What the results of the caller's plan say of the tasks that failed."""
        failed = {row.task_id for _, row in self.scopes[""] if isinstance(row, events.TaskErrorRow)}
        names = [one for one in json.loads(results) if one in failed]
        rules = next((one[""] for _, row in reversed(self.resumes) if "" in (one := row.rules or {})), self.start.rules)
        if not names or (rules or {}).get("on_prose") == "accept":
            return ""
        return f"\n{corrections.failed_tasks(names, len(json.loads(results)))}"

    def sent(self) -> dict[str, dict[str, tuple[int, Any, object]]]:
        """The number of messages last sent, and the system message, by run and scope; for `MessageDelta`."""
        sent: dict[str, tuple[int, Any, object]] = {}
        for scope, rows in self.scopes.items():
            if messages := sent_messages(rows):
                systems = (one.system for one in reversed(rows) if one.system is not None)
                sent[scope] = len(messages) + 1, next(systems, None), None
        return {self.run_id: sent}

    def seconds(self) -> float:
        """How long the run took, without the time between its segments."""
        segments: list[list[datetime]] = []
        for one in self.all:
            if isinstance(one.row, events.ResultRow) and one.row.stop_reason == StopReason.CLOSED:
                continue  # it may have waited for days
            if not segments or isinstance(one.row, events.RunResumedRow):
                segments.append([])
            segments[-1].append(reading(one, datetime.fromisoformat, one.row.at))
        # not until the last time, which is before the first one if somebody set the clock back
        return sum((max(times) - times[0]).total_seconds() for times in segments)

    def history(self, media: MediaStore) -> list[Message]:
        return reading(self.scopes[""][0], lambda: [message(one, media) for one in self.start.history])

    def inputs(self, media: MediaStore) -> list[tuple[InputPart, ...]]:
        """The first input, and those that were added later."""
        kinds = (events.RunStartRow, events.InputAddedRow)
        return [parts_of(one, one.row.input, media) for one in self.scopes[""] if isinstance(one.row, kinds)]


def _outcomes(calls: Iterable[events.CallBegunRow | Outcome]) -> list[tuple[int, Outcome]]:
    """The outcomes of a response's calls, by the number of the call. Those of built-in commands are numbered here."""
    last: dict[int, events.CallBegunRow | Outcome] = {
        int(one.call_id.rpartition(".")[2]): one for one in calls
        if isinstance(one, (events.CallBegunRow, events.CallEndedRow))
    }
    free = (number for number in count() if number not in last)
    last |= {next(free): one for one in calls if isinstance(one, (events.BuiltinResultRow, events.BuiltinErrorRow))}
    return [
        (number, one) for number, one in sorted(last.items())
        if isinstance(one, Outcome) and not getattr(one, "not_run", None)
    ]


def _repair_in(rules: Mapping[str, Any] | None) -> list[Repair]:
    found = [rules["repair"]] if rules and "repair" in rules else []
    if found and found[0] not in (True, False, "json"):
        raise ValueError(f"its rule 'repair' is {found[0]!r}")
    return found


def _dropped_by(seq: int, resume: events.RunResumedRow) -> Sequence[int]:
    if not all(type(one) is int and 0 <= one < seq for one in resume.dropped):
        raise ValueError("its 'dropped' is not a list of the numbers of earlier events")
    return resume.dropped


def sent_messages(rows: Iterable[Recorded]) -> list[tuple[Recorded, Mapping[str, Any]]]:
    """The recorded messages of a conversation without the system message, each with the row that has it.

    An input that was added later comes with the row of the input, because `messages_sent` does not say who wrote what.
    """
    found: list[tuple[Recorded, Mapping[str, Any]]] = []
    inputs: dict[int, Recorded] = {}
    added: list[Recorded] = []  # more than one if a turn ended before it sent anything
    for one in rows:
        if isinstance(one.row, events.InputAddedRow):
            added.append(one)
        elif isinstance(one.row, events.MessagesSentRow):
            del found[max((one.row.since or 0) - 1, 0):]
            found += [(one, message) for message in one.messages]
            inputs.update(zip(range(len(found) - len(added), len(found)), added, strict=True))
            added = []
    return [(inputs.get(at, one), message) for at, (one, message) in enumerate(found)]


_PERHAPS_RUNTIME = ('<block type="error"', *(f'<block type="result" name="{name}"' for name in sorted(LISTINGS)))


def _signature(
    sent: Mapping[str, Any], earlier: Mapping[str, Any] | None, given: str | Sequence[Any] | None
) -> dict[str, Any]:
    """Who wrote a sent message, and which of its parts are marked as from outside.

    `earlier` is the message in the history, if it comes from there; `given` is the user's input, if it is one. Any
    other user message came from a call, unless it begins with an error or a listing, which the runtime may have
    written.
    """
    if earlier is not None:
        return {name: earlier[name] for name in ("by", "outside", "native") if name in earlier}
    if given is not None:
        parts_given = [] if isinstance(given, str) else given
        marked = [at for at, part in enumerate(parts_given) if isinstance(part, Mapping) and "outside" in part]
        return {"by": "user", "outside": marked}
    is_unsure = sent["role"] != "user" or Message.from_dict(sent).text.startswith(_PERHAPS_RUNTIME)
    return {} if is_unsure else {"by": "tool"}


def parts_of(one: Recorded, given: str | Sequence[Any], media: MediaStore) -> tuple[InputPart, ...]:
    """Parses a recorded input."""
    return (given,) if isinstance(given, str) else reading(one, parts, given, media)
