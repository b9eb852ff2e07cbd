"""What happens in a run, told in short lines on stderr while it happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernai.command_line import output
from kernai.events import (
    ApprovalGivenRow,
    ApprovalRequestedRow,
    BlockIncompleteRow,
    BuiltinErrorRow,
    BuiltinResultRow,
    ContextSavedRow,
    DialectCallRow,
    Event,
    ForgedBlockRow,
    InFlightRow,
    InformationalOnlyRow,
    JsonRow,
    LlmResponseRow,
    MessagesSentRow,
    ModelRestartedRow,
    NoBlocksStallRow,
    PlanRejectedRow,
    PlanRow,
    ProgressRow,
    ProtocolErrorRow,
    ProtocolExecuteRow,
    ProtocolResultRow,
    QuotedCallRow,
    Row,
    RunResumedRow,
    SkillErrorRow,
    SkillExecuteRow,
    SkillResultRow,
    TaskCompleteRow,
    TaskErrorRow,
    TaskStartRow,
    WorkflowErrorRow,
    WorkflowStartRow,
)
from kernai.jsonio.json_data import jsonable
from kernai.terminal_text import one_line
from kernai.values.result import Result, Usage

#: the style of a line, what it begins with, and the value that ends it, cut to the line; no beginning: nothing is told
Told = tuple[str, str, object]

#: a plan block that is a plain note is "rejected" with these; that is nothing to report
_NOTES = frozenset({"blank", "invalid_json", "not_a_hash", "no_tasks"})
_VERBOSE_WIDTH = 2000

_CALLS: dict[type[Row], Callable[[Any], Told]] = {
    SkillExecuteRow: lambda row: ("dim", f"call {row.skill}", row.params),
    SkillResultRow: lambda row: ("dim", f"result of {row.skill}{_took(row)}:", row.result),
    SkillErrorRow: lambda row: ("yellow", f"error of {row.skill or 'a command'}:", row.error),
    ProtocolExecuteRow: lambda row: ("dim", f"call {row.protocol}", row.request),
    ProtocolResultRow: lambda row: ("dim", f"result of {row.protocol}{_took(row)}:", row.result),
    ProtocolErrorRow: lambda row: ("yellow", f"error of {row.protocol}:", row.error),
    BuiltinResultRow: lambda row: ("dim", f"the model asked for {row.command}", ""),
    BuiltinErrorRow: lambda row: ("yellow", row.error, ""),
    WorkflowStartRow: lambda row: ("dim", f"a workflow of {_count(len(row.tasks), 'task')}", ""),
    WorkflowErrorRow: lambda row: ("yellow", "the workflow failed:", row.error),
    TaskStartRow: lambda row: ("dim", f"task {row.task_id}:", row.input),
    TaskCompleteRow: lambda row: ("dim", f"task {row.task_id} done{_took(row)}:", row.result),
    TaskErrorRow: lambda row: ("yellow", f"task {row.task_id} failed{_took(row)}:", row.error),
    PlanRejectedRow: lambda row: ("yellow", _rejected(row.reason), ""),
    BlockIncompleteRow: lambda row: ("yellow", f"the model did not close its block of type {row.type_}", ""),
    ForgedBlockRow: lambda row: ("yellow", f"the model wrote a {row.type_} block itself; it was ignored", ""),
    QuotedCallRow: lambda row: ("yellow", _not_meant(row), ""),
    DialectCallRow: lambda row: ("dim", f"a call in the format {row.dialect}", ""),
    InformationalOnlyRow: lambda row: ("yellow", f"the response held only {', '.join(row.kinds)}; corrected", ""),
    NoBlocksStallRow: lambda _: ("yellow", "the response held no block; corrected", ""),
    ModelRestartedRow: lambda _: ("dim", "the model began its response again", ""),
    RunResumedRow: lambda row: ("dim", f"the run goes on, from event {row.from_seq}", ""),
    ApprovalGivenRow: lambda row: ("dim", f"call {row.call_id} {_decided(row)}", _why(row.decision)),
    InFlightRow: lambda row: ("yellow", f"call {row.call_id} {_settled(row.decision)}", ""),
}
_MORE: dict[type[Row], Callable[[Any], Told]] = {
    LlmResponseRow: lambda row: ("dim", _answered(row), ""),
    PlanRow: lambda row: ("dim", "plan:", row.text),
    JsonRow: lambda row: ("dim", "json:", row.text),
    ProgressRow: lambda row: ("dim", "progress:", row.data_),
    ApprovalRequestedRow: lambda row: ("dim", f"{_call(row)} waits for a decision", row.reason),
    ContextSavedRow: lambda row: ("dim", "context saved:", row.state),
}


class Narrator:
    """An `on_event` that tells the events that are worth a line: calls, tasks, corrections, and with `steps` each step.

    `verbose` tells more of them, and to greater length. `before` is called ahead of each line.
    """

    def __init__(
        self, *, steps: bool = True, verbose: bool = False, before: Callable[[], object] | None = None
    ) -> None:
        self._before = before
        self._tellers = {**_CALLS, **(_MORE if verbose else {})}
        self._steps = steps
        self._verbose = verbose

    def __call__(self, event: Event) -> None:
        where = f"[{event.scope}] " if event.scope else ""
        row = event.row
        if isinstance(row, MessagesSentRow):
            if self._steps:
                self._tell("", f"{where}step {event.step}", "dim")
            return
        if isinstance(row, RunResumedRow) and not self._steps:
            return  # each turn of a conversation that is kept
        teller = self._tellers.get(type(row))
        style, head, value = teller(row) if teller is not None else ("dim", "", "")
        if head:
            self._tell(f"  {where}", head, style, jsonable(value))

    def _tell(self, before: str, head: str, style: str, value: object = "") -> None:
        width = _VERBOSE_WIDTH if self._verbose else output.columns()
        line = before[: width // 3] + one_line(head, width if value == "" else width // 2)
        if self._before is not None:
            self._before()
        output.note(line if value == "" else f"{line} {one_line(value, width - len(line) - 1)}", style)


def summary(result: Result[Any], seconds: float) -> str:
    """How a run ended and what it used, on one line."""
    return f"{result.stop_reason}: {_count(result.steps, 'step')}, {used(result.usage)}, {seconds:.1f} s"


def used(usage: Usage) -> str:
    """``2 model calls, 345 tokens, $0.0012``; what is unknown is left out."""
    parts = [_count(usage.model_calls, "model call")]
    if usage.total_tokens is not None:
        parts.append(_count(usage.total_tokens, "token"))
    if usage.cost is not None:
        parts.append(f"${usage.cost:.4f}")
    return ", ".join(parts)


def _took(row: Any) -> str:
    return f" ({row.duration_ms} ms)"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _not_meant(row: Any) -> str:
    return f"{row.name or row.type_} was not run: it stands in the result of {row.source}"


def _rejected(reason: str) -> str:
    return "" if reason in _NOTES else f"the plan was rejected: {reason}"


def _settled(decision: str) -> str:
    then = {"retry": "it is made again", "skip": "its outcome stays unknown"}.get(decision, decision)
    return f"had begun when the run was broken off; {then}"


def _call(row: Any) -> str:
    return f"call {row.call_id}" + (f" of {row.skill}" if row.skill else "")


def _decided(row: Any) -> str:
    word = "refused" if row.decision is False or isinstance(row.decision, str) else "approved"
    by = f" by {row.by}" if row.by else ""
    return f"{word}{by}" if isinstance(row.decision, bool) else f"{word}{by}:"


def _why(decision: Any) -> object:
    return "" if isinstance(decision, bool) else decision


def _answered(row: Any) -> str:
    tokens = row.total_tokens
    counted = "" if tokens is None else f", {_count(tokens, 'token')}"
    return f"the model answered in {row.latency_ms / 1000:.1f} s{counted}"
