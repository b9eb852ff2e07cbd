"""How a run is shown: drawn on a terminal, as plain text anywhere else; each event is a label and one line of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import kernai
from kernai._util.redaction import one_line, printable
from kernai.values.result import dollars as amount
from kit.definition import Definition, Outcome
from kit.provider_choice import Choice
from kit.run import Run
from kit.standard_output import is_drawn_on

WIDTH = 150  # characters shown of one value
ERROR_WIDTH = 500  # an error is worth reading whole
VERDICT_WIDTH = 2000  # of a fault or a note, on one line: text quoted in it must not look like lines of the report

Line = tuple[str, str]


def count(tokens: int | None) -> str:
    """A number of tokens, or a text if it is unknown."""
    return "unknown" if tokens is None else f"{tokens:,}"


def dollars(cost: float | None) -> str:
    """A price in dollars, or a text if it is unknown, since 0 would be wrong."""
    return "unknown" if cost is None else amount(cost)


def calls_line(outcome: Outcome, kind: str) -> str:
    """The number of calls of a ``skill`` or a ``protocol``, including calls that could not begin; blank if none."""
    begun, failed = ({event.data["call_id"] for event in outcome.of(f"{kind}_{end}")} for end in ("execute", "error"))
    number = len(begun | failed)
    return f"{number}, {len(failed)} failed" if number else ""


def _named(label: str, who: str, what: str, width: int = WIDTH) -> Callable[[Any], Line]:
    """A line that begins with a name, such as that of a skill or a task."""
    return lambda data: (label, f"{one_line(data[who] or 'no name', WIDTH)}: {one_line(data[what], width)}")


def _value(label: str, key: str | None = None, before: str = "") -> Callable[[Any], Line]:
    return lambda data: (label, before + one_line(data if key is None else data[key], WIDTH))


def _block(label: str) -> Callable[[Any], Line]:
    return lambda data: (label, f"{one_line(data['type'], WIDTH)} block: {one_line(data['content'], WIDTH)}")


def _tokens(data: Any) -> Line:
    return "model", f"{count(data['prompt_tokens'])} tokens in, {count(data['completion_tokens'])} out"


def _tasks(number: int) -> str:
    return f"{number} task{'s' * (number != 1)}"


def _workflow(data: Any) -> Line:
    tasks = data.get("tasks") or []
    ids = ", ".join(str(task.get("id")) for task in tasks)
    return "workflow", one_line(f"{_tasks(len(tasks))}, {data.get('strategy')}: {ids}", WIDTH)


def _task_start(data: Any) -> Line:
    after = ", ".join(map(str, data["depends_on"]))
    text = f"{data['task_id']} starts" + (f" after {after}" if after else "")
    return "task", one_line(f"{text}: {data['input']}", WIDTH)


def _complete(data: Any) -> Line:
    results = data["results"]
    failed = sum(isinstance(one, str) and one.startswith("error: ") for one in results.values())
    return "workflow", f"complete: {_tasks(len(results))}, {failed} failed"


def _decision(data: Any) -> Line:
    said = data["decision"]
    answer = ("approved" if said else "refused") if isinstance(said, bool) else said
    return "decided", one_line(f"{data['by'] or 'somebody'} on call {data['call_id']}: {answer}", WIDTH)


#: the text of each kind of event; other kinds are not shown
LINES: Mapping[str, Callable[[Any], Line]] = {
    "llm_response": _tokens,
    "plan": _value("plan"),
    "plan_rejected": _value("plan", "reason", "counts as notes: "),  # the plan itself comes next
    "json": _value("json"),
    "skill_execute": lambda data: ("call", f"{one_line(data['skill'], WIDTH)} {one_line(data['params'], WIDTH)}"),
    "skill_result": _named("result", "skill", "result"),
    "skill_error": _named("error", "skill", "error", ERROR_WIDTH),
    "protocol_execute": _named("protocol", "protocol", "request"),
    "protocol_result": _named("answer", "protocol", "result"),
    "protocol_error": _named("error", "protocol", "error", ERROR_WIDTH),
    "progress": _value("progress", "data"),
    "builtin_result": _named("built-in", "command", "result"),
    "builtin_error": _named("error", "command", "error", ERROR_WIDTH),
    "workflow_start": _workflow,
    "workflow_complete": _complete,
    "workflow_error": _value("error", "error", "workflow: "),
    "task_start": _task_start,
    "task_complete": _named("done", "task_id", "result"),
    "task_error": _named("error", "task_id", "error", ERROR_WIDTH),
    "forged_block": _block("forged"),
    "block_incomplete": _block("cut off"),
    "informational_only": _value("stalled", "kinds", "nothing but "),
    "no_blocks_stall": _value("stalled", "prose_preview"),
    "answer_rejected": _value("answer rejected", "error"),
    "model_restarted": _value("restart", "reason"),
    "model_waiting": lambda data: ("waits", one_line(f"{data['seconds']:.1f} s: {data['reason']}", ERROR_WIDTH)),
    "approval_requested": lambda data: ("waits", one_line(f"{data['skill'] or 'the model'} {data['call_id']}", WIDTH)),
    "approval_given": _decision,
    "in_flight": lambda data: ("resumed", one_line(f"call {data['call_id']} was under way: {data['decision']}", WIDTH)),
    "run_resumed": lambda data: ("resumed", f"from event {data['from_seq']}"),
    "final": _value("final"),
}


def line_of(event: kernai.Event) -> Line | None:
    """Label and text of an event; None for one that is not shown."""
    make = LINES.get(event.type)
    return None if make is None else make(event.data)


def place_of(event: kernai.Event) -> str:
    """Step and scope, as a heading."""
    return f"step {event.step}" + (f" of {one_line(event.scope, WIDTH)}" if event.scope else "")


# ------------------------------------------------------------------------------------------------------------- the view


LABEL = 9


def say(text: str = "") -> None:
    """Print text of any origin, immediately."""
    print(printable(text), flush=True)


class PlainView:
    """Prints a run as it happens; as `on_event` it takes one event after the other."""

    def __init__(self) -> None:
        self._place = ""

    def begin(self, definition: Definition, choice: Choice) -> None:
        """Say what is about to run, and on which model."""
        say(f"{definition.name}: {definition.description}")
        for line in choice.lines_of(definition.real):
            say(line)

    def __call__(self, event: kernai.Event) -> None:
        """Print one event, under a heading when its step is new."""
        line = line_of(event)
        if line is None:
            return
        if self._place != place_of(event):
            self._place = place_of(event)
            say(f"\n{self._place}")
        say(f"    {line[0]:{LABEL}} {line[1]}")

    def live(self) -> AbstractContextManager[None]:
        """Does nothing, since this view draws nothing that must be removed again."""
        return nullcontext()

    def report(self, run: Run, files: Sequence[str]) -> None:
        """Print the outcome; the last line is the verdict."""
        outcome, result = run.outcome, run.outcome.result
        protocols = calls_line(outcome, "protocol")
        say("\nanswer:")
        say("\n".join(f"    {line}" for line in printable(outcome.text or "none").splitlines()))
        say(
            f"\nstop: {result.stop_reason}; steps: {result.steps}; "
            f"skill calls: {calls_line(outcome, 'skill') or 'none'}; "
            f"{f'protocol calls: {protocols}; ' if protocols else ''}"
            f"tokens: {count(result.usage.prompt_tokens)} in, {count(result.usage.completion_tokens)} out; "
            f"cost: {dollars(result.usage.cost)}; {run.seconds:.2f} s"
        )
        for line in [*(one_line(f"note: {note}", VERDICT_WIDTH) for note in run.notes), *files]:
            say(line)
        for fault in run.faults:
            say(one_line(f"FAILED: {fault}", VERDICT_WIDTH))
        if run.passed:
            say(run.success_line)


# ----------------------------------------------------------------------------------------------------------- the choice


def view_for(*, plain: bool) -> PlainView:
    """The view for standard output."""
    if not is_drawn_on(plain=plain):
        return PlainView()
    from kit.rich_view import RichView

    return RichView()
