"""Shows a run to a person: what the model says on stdout, other events and the outcome on stderr."""

from __future__ import annotations

import json
import shlex
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TextIO

from kernai import events
from kernai._util.redaction import one_line, printable
from kernai.blocks.parser import Part, parts_of
from kernai.command_line import output
from kernai.command_line.output import DEBUG_HINT, NO, OK, PROVIDER, CommandError
from kernai.command_line.program import argument, group
from kernai.command_line.stores import call_line, continuing
from kernai.durable.store import WAITING
from kernai.errors import ProviderError, error_text
from kernai.inputs.answer_type import unfenced
from kernai.inputs.table import read_json
from kernai.jsonio.json_data import jsonable
from kernai.values.result import Result, StopReason, count, facts

#: the beginning of a line, with a value that is shortened to fit if there is one. No line is shown if it is empty.
Line = str | tuple[str, object]
Lines = dict[type[events.Row], Callable[[Any], Line]]

#: reasons for rejecting a plan that is an ordinary note; they are not shown
_NOTES = frozenset({"blank", "invalid_json", "not_a_hash", "no_tasks"})
_IN_FLIGHT = {"retry": "it is called again", "skip": "its outcome stays unknown"}
_VERBOSE_WIDTH = 2000
_FOR_VALUE = 30  # columns that the beginning of a line leaves for its value
_WHITE_SPACE = " \t\r\n"


def _decided(row: events.ApprovalGivenRow) -> Line:
    if row.decision == {"woken": True}:
        return f"call {row.call_id} is woken: nobody decided in time"
    word = "refused" if row.decision is False or isinstance(row.decision, str) else "approved"
    head = f"call {row.call_id} {word}{f' by {row.by}' if row.by else ''}"
    return head if isinstance(row.decision, bool) else (f"{head}:", row.decision)


def _in_flight(row: events.InFlightRow) -> Line:
    what = "it is not called again" if row.reason else _IN_FLIGHT.get(row.decision, row.decision)
    who, why = f", as {row.by} decided" if row.by else "", f": {row.reason}" if row.reason else ""
    return f"call {row.call_id} was interrupted; {what}{who}{why}"


_STEPS: Lines = {
    events.MessagesSentRow: lambda row: f"step {row.place[0]}",
    events.RunResumedRow: lambda row: f"the run continues after event {row.from_seq}",
}
_CALLS: Lines = {
    events.SkillExecuteRow: lambda row: (f"call {row.skill}", row.params),
    events.SkillResultRow: lambda row: (f"result of {row.skill}{_took(row)}:", row.result),
    events.SkillErrorRow: lambda row: (f"error of {row.skill or 'a command'}:", row.error),
    events.ProtocolExecuteRow: lambda row: (f"call {row.protocol}", row.request),
    events.ProtocolResultRow: lambda row: (f"result of {row.protocol}{_took(row)}:", row.result),
    events.ProtocolErrorRow: lambda row: (f"error of {row.protocol}:", row.error),
    events.BuiltinResultRow: lambda row: f"the model asked for {row.command}",
    events.BuiltinErrorRow: lambda row: row.error,
    events.WorkflowStartRow: lambda row: f"a workflow of {count(len(row.tasks), 'task')}",
    events.WorkflowErrorRow: lambda row: ("the workflow failed:", row.error),
    events.TaskStartRow: lambda row: (f"task {row.task_id}:", row.input),
    events.TaskCompleteRow: lambda row: (f"task {row.task_id} done{_took(row)}:", row.result),
    events.TaskErrorRow: lambda row: (f"task {row.task_id} failed{_took(row)}:", row.error),
    events.PlanRejectedRow: lambda row: "" if row.reason in _NOTES else f"the plan was rejected: {row.reason}",
    events.BlockIncompleteRow: lambda row: f"the model did not close its block of type {row.type_}",
    events.ForgedBlockRow: lambda row: f"the model wrote a {row.type_} block itself; it was ignored",
    events.QuotedCallRow: lambda row: (
        f"{row.name or row.type_} was not run: it is quoted from the result of {row.source}"
    ),
    events.DialectCallRow: lambda row: f"a call in the format {row.dialect}",
    events.InformationalOnlyRow: lambda row: f"the response held only {', '.join(row.kinds)}; corrected",
    events.StrayCloseRow: lambda _: "the answer contains its closing tag; corrected",
    events.AnswerRejectedRow: lambda row: ("the answer does not fit its type:", row.error),
    events.NoBlocksStallRow: lambda _: "the response held no block; corrected",
    events.ModelWaitingRow: lambda row: (f"asks the model again in {row.seconds:.1f} s:", row.reason),
    events.ModelRestartedRow: lambda _: "the model began its response again",
    events.ApprovalGivenRow: _decided,
    events.InFlightRow: _in_flight,
    events.ResultRow: lambda row: "the vendor cut the answer off" if row.truncated else "",
}
_MORE: Lines = {
    events.LlmResponseRow: lambda row: f"the model answered in {row.latency_ms / 1000:.1f} s" + (
        "" if row.total_tokens is None else f", {count(row.total_tokens, 'token')}"
    ),
    events.PlanRow: lambda row: ("plan:", row.text),
    events.JsonRow: lambda row: ("json:", row.text),
    events.ProgressRow: lambda row: ("progress:", row.data_),
    events.ApprovalRequestedRow: lambda row: (
        f"call {row.call_id}{f' of {row.skill}' if row.skill else ''} waits for a decision", row.reason
    ),
    events.TrustedValuesRow: lambda row: (f"call {row.call_id} of {row.skill} has trusted values:", row.sources),
    events.ContextSavedRow: lambda row: ("context saved:", row.value),
}


#: events that may follow a response before it is known whether its text is the answer
_BEFORE_VERDICT = (
    events.BlocksParsedRow, events.PlanRow, events.JsonRow, events.PlanRejectedRow, events.ForgedBlockRow,
    events.BlockIncompleteRow, events.FinalRow, events.DialectCallRow,
)


class Narrator:
    """An `on_event` callback that writes to stderr what the model says beside its answer, and a line for each call,
    task and correction.

    `steps` adds a line for each step, `verbose` adds more events and longer values, and `quiet` turns everything off.
    """

    #: the texts of the latest response that are on stdout
    shown: Sequence[str] = ()
    #: the prose and the final blocks of the latest response, or of the piece that came before it failed
    _texts: Sequence[Part] = ()

    def __init__(
        self, out: TextIO | None = None, *, steps: bool = False, verbose: bool = False, quiet: bool = False
    ) -> None:
        self._lines: Lines = {} if quiet else (_STEPS if steps else {}) | _CALLS | (_MORE if verbose else {})
        self._verbose, self._quiet = verbose, quiet
        # looked up now, because stdout is redirected while the agent's code runs
        self._out = sys.stdout if out is None else out
        self._line: list[str] = []  # what `TurnView` has written since the last line break

    def __call__(self, event: events.Event) -> None:
        row = event.row
        if not event.scope:
            self._show(row)
        line = self._lines[type(row)](row) if type(row) in self._lines else ""
        if not line:
            return
        head, value = (line, "") if isinstance(line, str) else line
        self.end_line()
        width = _VERBOSE_WIDTH if self._verbose else output.columns()
        indent = "" if isinstance(row, events.MessagesSentRow) else "  "
        scope = f"[{one_line(event.scope, width // 3)}] " if event.scope else ""
        text = f"{indent}{scope}"
        room = width - len(text)
        text += one_line(head, room if value == "" else max(room // 2, room - _FOR_VALUE))
        if value != "":
            text += " " + one_line(jsonable(value), width - len(text) - 1)
        is_warning = row.is_problem() or isinstance(row, (events.InFlightRow, events.ResultRow))
        output.note(text, "yellow" if is_warning else "dim")

    def end_line(self) -> None:
        """Ends an unfinished line on stdout, so that the next output starts on a new line."""

    def _show(self, row: events.Row) -> None:
        """Shows what the model says. If its text is an answer in a final block, only the rest of it is shown."""
        if isinstance(row, (events.LlmResponseRow, events.ModelFailedRow)):
            self._texts = [one for one in parts_of(row.content) if one.block is None or one.block.type == "final"]
        elif not isinstance(row, _BEFORE_VERDICT):
            if isinstance(row, events.ResultRow) and row.stop_reason == StopReason.FINAL:
                finals = [one for one in self._texts if one.block is not None]
                self._texts = [one for one in self._texts if finals and one is not finals[0]]
            for one in self._texts:
                if (text := one.content.strip(_WHITE_SPACE)) and not self._quiet:
                    output.note(text)
            self._texts = ()


class TurnView(Narrator):
    """For a terminal: writes text to `out` (stdout) as it arrives, without block markup and surrounding white space."""

    _block = ""
    _space = ""  # white space after the written text, which is written once more text follows

    def _show(self, row: events.Row) -> None:
        match row:
            case events.MessagesSentRow():
                self.shown = []
            case events.TextChunkRow():
                self._say(row.text)
            case events.BlockStartRow():
                self._block = row.type_
                self.end_line()
            case events.BlockContentRow() if self._block == "final":
                self._say(row.text)
            case events.BlockEndRow() | events.ModelRestartedRow():
                self.end_line()
            case events.BlocksParsedRow():
                self.end_line()
                if not self._quiet and {"final", "command"} <= {block["type"] for block in row.fields()}:
                    output.note("  the model answered before it saw the results; that answer is set aside", "yellow")

    def _say(self, text: str) -> None:
        text = self._space + text if self._line else text.lstrip(_WHITE_SPACE)
        new = text.rstrip(_WHITE_SPACE)
        self._space = text[len(new):]
        if new:
            self._line.append(new)
            self._out.write(printable(new))
            self._out.flush()

    def end_line(self) -> None:
        if self._line:
            self.shown = [*self.shown, "".join(self._line)]
            self._out.write("\n")  # which a terminal shows at once
        self._line, self._space = [], ""


def write_answer(result: Result[Any], view: Narrator) -> None:
    """Writes the answer to stdout, with a line break at its end, unless the view has shown it.

    For a terminal, it is the text without control characters. For a program, it is an unchanged text, or JSON without
    the code fence and mistakes with which it was accepted.
    """
    text = result.text or ""
    if not text or text.strip(_WHITE_SPACE) not in view.shown:
        if output.is_terminal(sys.stdout):
            text = printable(text)
        elif type(result.output) is str:
            text = result.output
        else:
            text = unfenced(text)
            with suppress(ValueError):  # such as a date without quotes
                value, _, repairs = read_json(text, repair=True)
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) if repairs else text
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
        sys.stdout.flush()


def summary(result: Result[Any], seconds: float) -> str:
    """One line about how a run ended and what it used. A run that waits has the status that `kernai runs` shows."""
    status, *used = facts(result)
    return f"{WAITING if result.pending else status}: {', '.join(used)}, {seconds:.1f} s"


def _took(row: Any) -> str:
    return f" ({row.duration_ms} ms)"


# ------------------------------------------------------------------------------------------------------ the outcome

_LIMITS = {StopReason.MAX_STEPS, StopReason.MAX_TOKENS, StopReason.MAX_COST, StopReason.MAX_CALLS, StopReason.TIMEOUT}


def failure_of(result: Result[Any], again: str | None = None) -> CommandError:
    """The error for a run without an answer. `again` is the command line that continues a run in a store."""
    error = result.error
    message = f"the run stopped: {result.stop_reason}" if error is None else error_text(error)
    hint, status = DEBUG_HINT, NO
    if result.stop_reason in _LIMITS:
        hint = f"--{result.stop_reason.replace('_', '-')} allows more"
    elif isinstance(error, ProviderError):
        hint, status = f"`kernai doctor` looks at keys and servers; {DEBUG_HINT}", PROVIDER
    if again is not None:
        is_closed = result.stop_reason == StopReason.CLOSED
        hint = f"`{again} --input TEXT` opens it; {hint}" if is_closed else f"`{again}` continues it; {hint}"
    return CommandError(message, hint, status)


def carried_out(
    start: Callable[[Narrator], Result], options: Namespace, *, again: str | None = None, replay: str = "",
    is_kept: Callable[[], bool] = lambda: True,
) -> int:
    """Starts a run, shows it, and returns the exit status.

    Progress and what skills print go to stderr. The answer goes to stdout, as it arrives if that is a terminal. `again`
    and `replay` are the command lines that continue and replay the run, if it is in a store and `is_kept` there. Raises
    `CommandError` if the run ends without an answer and does not wait for a decision.
    """
    started = time.monotonic()
    with continuing(again, replay, is_kept=is_kept), output.stdout_is_stderr() as out:
        kind = TurnView if output.is_terminal(out) and not options.json else Narrator
        view = kind(out, steps=True, verbose=options.verbose, quiet=options.quiet)
        try:
            result = start(view)
        finally:
            view.end_line()
    output.note(summary(result, time.monotonic() - started), quiet=options.quiet)
    if options.json:
        output.write_json(result.to_dict())
    elif result.ok:
        write_answer(result, view)
    if result.pending:
        for call in result.pending:
            output.note(f"waits for a decision: {printable(call.call_id)} {call_line(call)}", "yellow")
        first = shlex.quote(result.pending[0].call_id)  # in it are names of tasks, which the model chose
        asks = f", --approve {first}=ANSWER" if result.pending[0].reason else ""
        output.note(f"hint: {again} --approve {first}{asks}, or --refuse {first}=WHY", None)
        return output.UNDECIDED
    if not result.ok:
        raise failure_of(result, again) from result.error
    return OK


LOUDNESS = group(argument("--quiet -q", "show only answers and errors"), argument("--verbose -v", "show more detail"))
