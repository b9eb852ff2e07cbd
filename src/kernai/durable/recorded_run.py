"""`RecordedRun`: what a recording tells of one root run, read so that the run can go on.

A run that was stopped has told of things that a resume undoes: that the model failed, that a call was broken off, that
tasks ended for the run did. `rewound` leaves those out and keeps what really came of the work, so that nothing that was
done is done again. What a resume left out stands in its `run_resumed`, so every later reader leaves out the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kernai.blocks.runtime_blocks import neutralize, result_block
from kernai.durable.outcomes import CALL_OUTCOMES, exit_told, message, parts, response
from kernai.errors import INTERRUPTED, KernaiError, ReplayDivergenceError, error_text
from kernai.events import KINDS, ApprovalGivenRow, row_of
from kernai.loop.given_plan import planned
from kernai.loop.scopes import task_scope
from kernai.loop.workflow import RESULT_NAME
from kernai.recording.format import RECORDING_FORMAT
from kernai.values.message import Message, Part
from kernai.values.result import Result, StopReason, Usage

if TYPE_CHECKING:
    from kernai.values.media_store import MediaStore

#: why a sub-run ended together with its root; for every other reason it ended for itself
WITH_THE_ROOT = frozenset({"cancelled", "timeout", "max_tokens", "max_cost", "max_calls", "interrupt"})


#: a run that is to stop comes to none of these any more
BEGUN = frozenset({"input_added", "messages_sent", "skill_execute", "protocol_execute"})

#: what is read of events here, apart from being compared
_READ = {
    "result": ("stop_reason", "text", "steps", "usage", "error"),
    "llm_response": ("content",),
    "builtin_result": ("result",),
    "task_start": ("task_id",),
    "task_error": ("task_id",),
    "input_added": ("input",),
    "run_start": ("input", "metadata"),
    "approval_requested": ("call_id", "skill", "params", "reason", "metadata"),
    "approval_given": ("call_id", "decision"),
    "in_flight": ("call_id", "decision"),
    **dict.fromkeys(("skill_execute", "protocol_execute", *CALL_OUTCOMES), ("call_id",)),
}


class Recorded(NamedTuple):
    """One entry and its place in the recording."""

    seq: int
    entry: Mapping[str, Any]

    @property
    def type(self) -> str:
        return str(self.entry["event"])

    @property
    def data(self) -> Any:
        return self.entry.get("data")


T = TypeVar("T")


def read_of(one: Recorded, make: Callable[..., T], *given: Any) -> T:
    """What is made of an entry. `KernaiError` where it is not as this kernai writes it."""
    try:
        return make(*given)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        told = f"the recording is damaged: its event {one.seq} ({one.type}) cannot be read: {error_text(error)}"
        raise KernaiError(told) from error


@dataclass
class Rewound:
    """What a resume goes on from."""

    scopes: dict[str, list[Recorded]]
    #: the seqs that it leaves out
    dropped: list[int] = field(default_factory=list)
    #: what came of calls, by call id, told behind what is left out
    outcomes: dict[str, Recorded] = field(default_factory=dict)
    #: calls that were announced and surely did not begin
    never_ran: set[str] = field(default_factory=set)
    #: of what is left out: what model calls used, by call id, and by scope the seqs of its results
    wasted: dict[str, Usage] = field(default_factory=dict)
    undone: dict[str, list[int]] = field(default_factory=dict)


def _dropped_by(seam: Recorded) -> list[int]:
    """The seqs that a resume left out."""
    dropped = seam.data["dropped"]
    if not isinstance(dropped, list) or not all(type(seq) is int and 0 <= seq < seam.seq for seq in dropped):
        raise ValueError("'dropped' is a list of the numbers of events before it")
    return dropped


class RecordedRun:
    """The entries of a root run. `KernaiError` where they are no run, or of a format that is newer than this kernai."""

    def __init__(self, run_id: str, entries: Sequence[Mapping[str, Any]]) -> None:
        self.run_id = run_id
        self.length = len(entries)
        self._all = entries
        for seq, entry in enumerate(entries):
            if not isinstance(entry, Mapping) or not isinstance(entry.get("event"), str):
                raise KernaiError(f"the recording of run {run_id!r} is damaged: its entry {seq} is no event")
        seams = [Recorded(seq, entry) for seq, entry in enumerate(entries) if entry["event"] == "run_resumed"]
        self._dropped = dropped = {seq for seam in seams for seq in read_of(seam, _dropped_by, seam)}
        self.entries = [Recorded(seq, entry) for seq, entry in enumerate(entries) if seq not in dropped]
        self.scopes: dict[str, list[Recorded]] = {}
        #: by call id: requests that nobody has answered, answers that are not used up, the last answer of each call,
        #: and decisions on calls in flight
        self.waiting: dict[str, Mapping[str, Any]] = {}
        self.approvals: dict[str, ApprovalGivenRow] = {}
        self.decided: dict[str, ApprovalGivenRow] = {}
        self.in_flight: dict[str, str] = {}
        self._approved_at: dict[str, int] = {}
        #: by scope, what the host's context was last
        self.contexts: dict[str, Any] = {}
        for one in self.entries:
            read_of(one, self._read, one)
        root = self.scopes.get("")
        if not root or root[0].type != "run_start":
            raise KernaiError(f"the recording of run {run_id!r} does not begin with its run_start")
        self.start: Mapping[str, Any] = root[0].data
        found = self.start.get("format", 1)
        if not isinstance(found, int) or found > RECORDING_FORMAT:
            raise KernaiError(
                f"run {run_id!r} was recorded in format {found!r}, and this kernai reads up to {RECORDING_FORMAT}: "
                "update kernai to go on with it"
            )

    def _read(self, one: Recorded) -> None:
        kind, data, scope = one.type, one.data, str(one.entry.get("scope") or "")
        names = _READ.get(kind, ())
        missing = [name for name in names if not isinstance(data, Mapping) or name not in data]
        if missing:
            place = f"its event {one.seq} ({kind})"
            raise KernaiError(f"the recording of run {self.run_id!r} is damaged: {place} has no {missing[0]!r}")
        if any(name in ("call_id", "task_id") and not isinstance(data[name], str) for name in names):
            raise TypeError("an id is text")
        if kind == "run_start" and not isinstance(data["metadata"], Mapping | None):
            raise TypeError("metadata is an object")
        if kind in KINDS and KINDS[kind].role != "aside":
            self.scopes.setdefault(scope, []).append(one)
        if kind in CALL_OUTCOMES or kind in ("llm_response", "model_failed"):
            if _is_broken_off(kind, data):
                return  # it may be made again, by the decision that was given, or still waits for one
            call = data["call_id"] if kind in CALL_OUTCOMES else _model_call(one, scope)
            for known in (self.waiting, self.approvals, self.in_flight):
                known.pop(call, None)
        elif kind == "approval_requested":
            self.waiting[data["call_id"]] = data
            self.approvals.pop(data["call_id"], None)
        elif kind == "approval_given":
            self.waiting.pop(data["call_id"], None)
            self.approvals[data["call_id"]] = self.decided[data["call_id"]] = ApprovalGivenRow.read(data)
            self._approved_at[data["call_id"]] = one.seq
        elif kind == "in_flight":
            self.in_flight[data["call_id"]] = data["decision"]
        elif kind == "context_saved":
            self.contexts[scope] = data

    @property
    def result(self) -> Mapping[str, Any] | None:
        """What the root's `result` told, where it has ended."""
        last = self.scopes[""][-1]
        return last.data if last.type == "result" else None

    @property
    def is_finished(self) -> bool:
        return self.result is not None and self.result["stop_reason"] == "final"

    def final_result(self, media: MediaStore) -> Result[Any]:
        """How a run that is finished ended."""
        return read_of(self.scopes[""][-1], self._final_result, media)

    def _final_result(self, media: MediaStore) -> Result[Any]:
        told = self.scopes[""]
        sent: list[Any] = []  # without the system message
        answer, finish_reason = Message("assistant", ""), None
        for one in told:
            if one.type == "messages_sent":
                new, since = list(one.data), one.entry.get("since", 0)
                if not new or new[0].get("role") == "system":
                    new = new[1:]
                del sent[max(since - 1, 0):]
                sent += new
            elif one.type == "llm_response":
                answer = response(one.data).message()
                finish_reason = one.data.get("finish_reason")
        end = told[-1].data
        if not isinstance(end["text"], str):
            raise TypeError("text is text")
        messages = [*(message(one, media) for one in sent), answer]
        if not sent and "plan" in self.start:  # the caller's, in which no model was called by the root
            results = result_block(RESULT_NAME, neutralize(end["text"]))
            turn = Message("user", self.start["input"]), planned(self.start["plan"]), Message("user", results)
            messages = [*self.history(media), *turn]
        return Result(
            end["text"], StopReason(end["stop_reason"]), end["steps"], Usage(**end["usage"]), tuple(messages),
            self.run_id, finish_reason=finish_reason, truncated=end.get("truncated", False),
        )

    def sent(self) -> dict[tuple[str, str], tuple[int, Any]]:
        """By run and scope, how many messages were sent last, and the first of them; for `MessageNews`."""
        sent: dict[tuple[str, str], tuple[int, Any]] = {}
        for scope, told in self.scopes.items():
            count, system = 0, None
            for one in told:
                if one.type == "messages_sent":
                    new, since = one.data, one.entry.get("since")
                    has_system = bool(new) and new[0].get("role") == "system"
                    system = new[0] if has_system else system
                    count = len(new) if since is None else since + len(new) - has_system
            if count:
                sent[self.run_id, scope] = count, system
        return sent

    def seconds(self) -> float:
        """How long the run went on, without the time between its segments."""
        total, first, last = 0.0, None, None
        for seq, entry in enumerate(self._all):
            at = read_of(Recorded(seq, entry), lambda: datetime.fromisoformat(entry["timestamp"]))  # noqa: B023 - at once
            if first is None or entry["event"] == "run_resumed":
                total += (last - first).total_seconds() if first is not None and last is not None else 0.0
                first = at
            last = at
        return total + ((last - first).total_seconds() if first is not None and last is not None else 0.0)

    def history(self, media: MediaStore) -> list[Message]:
        """The messages from before the run."""
        return read_of(self.scopes[""][0], lambda: [message(one, media) for one in self.start.get("history") or ()])

    def input(self, media: MediaStore) -> tuple[Part, ...]:
        """What the run was given."""
        return self.added(self.scopes[""][0], media)

    def inputs(self, media: MediaStore) -> list[tuple[Part, ...]]:
        """What was added to it since."""
        return [self.added(one, media) for one in self.scopes[""] if one.type == "input_added"]

    def added(self, one: Recorded, media: MediaStore) -> tuple[Part, ...]:
        told = one.data["input"]
        return (told,) if isinstance(told, str) else read_of(one, parts, told, media)

    def whole(self) -> Rewound:
        """Everything, for a comparison; that the run waits is no decision of its own."""
        scopes = dict(self.scopes)
        if self.result is not None and self.result["stop_reason"] == "interrupt":
            scopes[""] = scopes[""][:-1]
        return self._without(Rewound(scopes), self._dropped)

    def before_ctrl_c(self, differs: ReplayDivergenceError) -> Rewound | None:
        """What stands before Ctrl-C, where that has ended the run and is why a replay `differs`.

        It may have fallen between any two events, so what was told since is no decision; how the run ended is one.
        """
        end = self.result
        if end is None or (end["stop_reason"], end["error"]) != (StopReason.CANCELLED, INTERRUPTED):
            return None
        rewound = self.rewound()
        # the loop ends there too, but otherwise
        was_over = differs.seq == self.scopes[""][-1].seq and not differs.expected.startswith("result")
        return rewound if rewound.dropped and differs.seq >= rewound.dropped[0] and not was_over else None

    def rewound(self) -> Rewound:
        """Without what was told because the run was stopped."""
        made = Rewound({})
        is_over = self._ends()
        stopped = {
            scope for scope, told in self.scopes.items()
            if told[-1].type == "result" and _ended_with_the_root(scope, told) and not is_over(scope)
        }
        for scope, told in self.scopes.items():
            # what a run above went on without stays as it is
            cut = len(told) if is_over(scope) else self._cut(scope, told, stopped)
            made.scopes[scope] = told[:cut]
            self._keep_outcomes(told[cut:], stopped, made)
        for scope in self._begun_in(made.dropped):
            for one in made.scopes.pop(scope, ()):
                made.dropped.append(one.seq)
        made.dropped.sort()
        return self._without(made, self._dropped.union(made.dropped))

    def _ends(self) -> Callable[[str], bool]:
        """Says of a scope whether a run above it has gone on behind its end, or ended for itself."""
        begun: dict[str, int] = {}
        ended: dict[str, bool] = {}  # whether with the root
        for scope, told in self.scopes.items():
            begun[scope] = max((one.seq for one in told if one.type in BEGUN), default=-1)
            if told[-1].type == "result":
                ended[scope] = _ended_with_the_root(scope, told)

        def is_over(scope: str) -> bool:
            last = self.scopes[scope][-1].seq
            return any(begun.get(above, -1) > last or not ended.get(above, True) for above in _above(scope))

        return is_over

    def _without(self, made: Rewound, dropped: Iterable[int]) -> Rewound:
        for seq in sorted(dropped):
            one = Recorded(seq, self._all[seq])
            scope = str(one.entry.get("scope") or "")
            used = read_of(one, row_of, one.entry).usage()
            if used is not None:
                call = _model_call(one, scope)
                made.wasted[call] = made.wasted.get(call, Usage()) + used
            elif one.type == "result":
                made.undone.setdefault(scope, []).append(seq)
        return made

    def _cut(self, scope: str, told: Sequence[Recorded], stopped: set[str]) -> int:
        """Where what a stop caused begins in a scope; its length where there is no such thing."""
        # what began behind something was begun by a run that went on
        begin = 1 + max((at for at, one in enumerate(told) if one.type in BEGUN), default=-1)
        ended = scope in stopped
        for at in range(begin, len(told)):
            one = told[at]
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
            if kind == "skill_error" and self._went_with(data["call_id"], stopped):
                return at
            if kind == "task_error" and self._went_with(
                task_scope(scope, one.entry.get("step") or 0, data["task_id"]), stopped
            ):
                return at
        return len(told)

    # the scope of an agent that was called is the id of the call
    def _went_with(self, child: str, stopped: set[str]) -> bool:
        """Whether a sub-run began, and ended for its root did."""
        told = self.scopes.get(child)
        return told is not None and (child in stopped or told[-1].type != "result")

    def _keep_outcomes(self, left_out: Iterable[Recorded], stopped: set[str], made: Rewound) -> None:
        for one in left_out:
            made.dropped.append(one.seq)
            data = one.data
            if one.type == "task_error" and data.get("not_run"):
                task = task_scope(str(one.entry.get("scope") or ""), one.entry.get("step") or 0, data["task_id"])
                made.never_ran.update(self._approved_below(task))
            elif one.type in CALL_OUTCOMES:
                if data.get("not_run"):
                    made.never_ran.update({data["call_id"]}, self._approved_below(data["call_id"]))
                elif not data.get("interrupted") and not self._went_with(data["call_id"], stopped):
                    made.outcomes[data["call_id"]] = one

    def _approved_below(self, scope: str) -> Iterable[str]:
        """The calls of a sub-run that were approved when the run was last taken up: it never began, so nor did they."""
        taken_up = max((one.seq for one in self.entries if one.type == "run_resumed"), default=-1)
        return [call for call, seq in self._approved_at.items() if call.startswith(f"{scope}/") and seq > taken_up]

    def _begun_in(self, dropped: Sequence[int]) -> list[str]:
        """The scopes that began with an entry that is left out, and those below them."""
        gone = set(dropped)
        begun = []
        for scope, told in self.scopes.items():
            for one in told:
                if one.seq in gone and one.type == "task_start":
                    begun.append(task_scope(scope, one.entry.get("step") or 0, one.data["task_id"]))
                elif one.seq in gone and one.type == "skill_execute":
                    begun.append(one.data["call_id"])
        return [scope for scope in self.scopes if any(scope == one or scope.startswith(one + "/") for one in begun)]


def is_broken_off(one: Recorded) -> bool:
    """Whether it tells of a call that came to nothing, because the run was stopped."""
    return one.type in (*CALL_OUTCOMES, "task_error") and _is_broken_off(one.type, one.data)


def _is_broken_off(kind: str, data: Mapping[str, Any]) -> bool:
    """Whether nothing came of a call, because the run was stopped."""
    if kind == "model_failed":
        return data.get("exception") is None
    return bool(data.get("interrupted") or data.get("not_run"))


def _model_call(one: Recorded, scope: str) -> str:
    step = one.entry.get("step")
    return f"{scope}/{step}" if scope else str(step)


def _above(scope: str) -> list[str]:
    """The scopes that a scope is within."""
    parts = scope.split("/") if scope else []
    return ["/".join(parts[:depth]) for depth in range(len(parts))]


def _ended_with_the_root(scope: str, told: Sequence[Recorded]) -> bool:
    """Of a scope whose last event is its `result`: whether it ended for the root was stopped."""
    last = told[-1]
    reason = last.data["stop_reason"]
    if not scope:
        return bool(reason != "final")
    return reason in WITH_THE_ROOT and not last.data.get("raised") and not _exited(told)


def _exited(told: Sequence[Recorded]) -> bool:
    """Whether a `SystemExit` of its own has ended a task, or a sub-run in one: that ends no more than the task."""
    for one in reversed(told):
        if one.type == "llm_response" or one.entry.get("task_id") is None:
            return False
        if one.type in CALL_OUTCOMES and exit_told(one.data):
            return True
    return False
