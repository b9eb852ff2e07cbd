"""What happens in a run, told in short lines on stderr while it happens."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from kernai.command_line import output
from kernai.events import (
    ApprovalGivenRow,
    ApprovalRequestedRow,
    BlockContentRow,
    BlockEndRow,
    BlockIncompleteRow,
    BlocksParsedRow,
    BlockStartRow,
    BuiltinErrorRow,
    BuiltinResultRow,
    ContextSavedRow,
    DialectCallRow,
    Event,
    FinalRow,
    ForgedBlockRow,
    InFlightRow,
    InformationalOnlyRow,
    JsonRow,
    LlmResponseRow,
    MessagesSentRow,
    ModelRestartedRow,
    ModelWaitingRow,
    NoBlocksStallRow,
    PlanRejectedRow,
    PlanRow,
    ProgressRow,
    ProtocolErrorRow,
    ProtocolExecuteRow,
    ProtocolResultRow,
    QuotedCallRow,
    ResultRow,
    Row,
    RunResumedRow,
    SkillErrorRow,
    SkillExecuteRow,
    SkillResultRow,
    TaskCompleteRow,
    TaskErrorRow,
    TaskStartRow,
    TextChunkRow,
    WorkflowErrorRow,
    WorkflowStartRow,
)
from kernai.jsonio.json_data import jsonable
from kernai.terminal_text import one_line, printable
from kernai.values.result import Result, StopReason, Usage

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
    ModelWaitingRow: lambda row: ("yellow", f"asks the model again in {row.seconds:.1f} s:", row.reason),
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


_WHITE_SPACE = " \t\r\n"


class TurnView:
    """Takes the events of one run. Block markup is not shown; white space around a paragraph is left out."""

    def __init__(self, *, verbose: bool = False, quiet: bool = False) -> None:
        self._narrator = None if quiet else Narrator(steps=False, verbose=verbose, before=self.end_line)
        # as it is now: while the agent's code runs, what that prints is redirected
        self._out = sys.stdout
        self._block = ""
        self._held = ""
        self._in_line = False
        #: whether anything of the model was shown
        self.spoke = False

    def show(self, event: Event) -> None:
        """One event."""
        if not event.scope:
            self._show_text(event)
        if self._narrator is not None:
            self._narrator(event)

    def end_line(self) -> None:
        """Whatever comes next stands on a line of its own."""
        self._held = ""
        if self._in_line:
            self._in_line = False
            self._out.write("\n")
            self._out.flush()

    def _show_text(self, event: Event) -> None:
        row = event.row
        if isinstance(row, TextChunkRow):
            self._say(row.text)
        elif isinstance(row, BlockStartRow):
            self._block = row.type_
            self.end_line()
        elif isinstance(row, BlockContentRow):
            if self._block == "final":
                self._say(row.text)
        elif isinstance(row, (BlocksParsedRow, ModelRestartedRow)):
            self.end_line()
            if isinstance(row, BlocksParsedRow):
                self._tell_set_aside(row)

    def _tell_set_aside(self, parsed: BlocksParsedRow) -> None:
        types = [block["type"] for block in parsed.fields()]
        if "final" in types and "command" in types and self._narrator is not None:
            output.note("  the model answered before it had seen the results; that answer is set aside", "yellow")

    def _say(self, text: str) -> None:
        """Text without the white space that ends it, which is held back until more comes."""
        text = self._held + text
        if not self._in_line:
            text = text.lstrip(_WHITE_SPACE)
        shown = text.rstrip(_WHITE_SPACE)
        self._held = text[len(shown):]
        if shown:
            self.spoke = self._in_line = True
            self._out.write(printable(shown))
            self._out.flush()


#: what may come between the last words of an answer and the end of its turn
_UNDECIDED = (
    BlockEndRow, LlmResponseRow, BlocksParsedRow, PlanRow, JsonRow, PlanRejectedRow, ForgedBlockRow, BlockIncompleteRow,
    FinalRow, DialectCallRow, ModelWaitingRow,
)


class PipedTurn:
    """Takes the events of one run, as `TurnView` does."""

    def __init__(self, *, verbose: bool = False, quiet: bool = False) -> None:
        self._narrator = None if quiet else Narrator(steps=False, verbose=verbose)
        # as it is now: while the agent's code runs, what that prints is redirected
        self._out = sys.stdout
        self._block = ""
        #: paragraphs of the response that comes, and whether each is its `final` block
        self._said: list[tuple[bool, str]] = []
        #: whether there was an answer
        self.spoke = False

    def show(self, event: Event) -> None:
        """One event."""
        if not event.scope:
            self._take(event)
        if self._narrator is not None:
            self._narrator(event)

    def end_line(self) -> None:
        """Whatever comes next stands on a line of its own: here it always does."""

    def _take(self, event: Event) -> None:
        row = event.row
        if isinstance(row, TextChunkRow):
            self._hear(row.text, final=False)
        elif isinstance(row, BlockStartRow):
            self._block = row.type_
            self._said.append((self._block == "final", ""))
        elif isinstance(row, BlockContentRow):
            if self._block == "final":
                self._hear(row.text, final=True)
        elif isinstance(row, ModelRestartedRow):
            self._said.clear()
        elif isinstance(row, ResultRow):
            self._end(row)
        elif not isinstance(row, _UNDECIDED):
            self._tell([text for _, text in self._said])

    def _hear(self, text: str, *, final: bool) -> None:
        if not self._said or self._said[-1][0] != final:
            self._said.append((final, ""))
        self._said[-1] = (final, self._said[-1][1] + text)

    def _end(self, result: ResultRow) -> None:
        if result.stop_reason != StopReason.FINAL:
            self._tell([text for _, text in self._said])
            return
        # the answer is the first final block; without one, all that was said
        first = next((at for at, (final, _) in enumerate(self._said) if final), None)
        beside = [] if first is None else self._said[:first] + self._said[first + 1 :]
        self._tell([text for _, text in beside])
        answer = str(result.text).strip(_WHITE_SPACE)
        if answer:
            self.spoke = True
            self._out.write(answer + "\n")
            self._out.flush()

    def _tell(self, paragraphs: list[str]) -> None:
        self._said.clear()
        if self._narrator is not None:
            for paragraph in paragraphs:
                if text := paragraph.strip(_WHITE_SPACE):
                    output.note(text)
