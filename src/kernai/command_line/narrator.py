"""What happens in a run, told in short lines on stderr while it happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernai.command_line import output
from kernai.events import Event
from kernai.terminal_text import one_line
from kernai.values.json_data import jsonable
from kernai.values.result import Result, Usage

#: the style of a line, what it begins with, and the value that ends it, cut to the line; no beginning: nothing is told
Told = tuple[str, str, object]

#: a plan block that is a plain note is "rejected" with these; that is nothing to report
_NOTES = frozenset({"blank", "invalid_json", "not_a_hash", "no_tasks"})
_VERBOSE_WIDTH = 2000

_CALLS: dict[str, Callable[[Any], Told]] = {
    "skill_execute": lambda data: ("dim", f"call {data['skill']}", data["params"]),
    "skill_result": lambda data: ("dim", f"result of {data['skill']}{_took(data)}:", data["result"]),
    "skill_error": lambda data: ("yellow", f"error of {data['skill'] or 'a command'}:", data["error"]),
    "protocol_execute": lambda data: ("dim", f"call {data['protocol']}", data["request"]),
    "protocol_result": lambda data: ("dim", f"result of {data['protocol']}{_took(data)}:", data["result"]),
    "protocol_error": lambda data: ("yellow", f"error of {data['protocol']}:", data["error"]),
    "builtin_result": lambda data: ("dim", f"the model asked for {data['command']}", ""),
    "builtin_error": lambda data: ("yellow", data["error"], ""),
    "workflow_start": lambda data: ("dim", f"a workflow of {_count(len(jsonable(data)['tasks']), 'task')}", ""),
    "workflow_error": lambda data: ("yellow", "the workflow failed:", data["error"]),
    "task_start": lambda data: ("dim", f"task {data['task_id']}:", data["input"]),
    "task_complete": lambda data: ("dim", f"task {data['task_id']} done{_took(data)}:", data["result"]),
    "task_error": lambda data: ("yellow", f"task {data['task_id']} failed{_took(data)}:", data["error"]),
    "plan_rejected": lambda data: ("yellow", _rejected(data["reason"]), ""),
    "block_incomplete": lambda data: ("yellow", f"the model did not close its block of type {data['type']}", ""),
    "forged_block": lambda data: ("yellow", f"the model wrote a {data['type']} block itself; it was ignored", ""),
    "quoted_call": lambda data: ("yellow", _not_meant(data), ""),
    "dialect_call": lambda data: ("dim", f"a call in the format {data['dialect']}", ""),
    "informational_only": lambda data: ("yellow", f"the response held only {', '.join(data['kinds'])}; corrected", ""),
    "no_blocks_stall": lambda _: ("yellow", "the response held no block; corrected", ""),
    "model_restarted": lambda _: ("dim", "the model began its response anew", ""),
    "run_resumed": lambda data: ("dim", f"the run goes on, from event {data['from_seq']}", ""),
    "approval_given": lambda data: ("dim", f"call {data['call_id']} {_decided(data)}", _why(data["decision"])),
    "in_flight": lambda data: ("yellow", f"call {data['call_id']} {_settled(data['decision'])}", ""),
}
_MORE: dict[str, Callable[[Any], Told]] = {
    "llm_response": lambda data: ("dim", _answered(data), ""),
    "plan": lambda data: ("dim", "plan:", data),
    "json": lambda data: ("dim", "json:", data),
    "progress": lambda data: ("dim", "progress:", data["data"]),
    "approval_requested": lambda data: ("dim", f"{_call(data)} waits for a decision", data["reason"]),
    "context_saved": lambda data: ("dim", "context saved:", data),
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
        if event.type == "messages_sent":
            if self._steps:
                self._tell("", f"{where}step {event.step}", "dim")
            return
        if event.type == "run_resumed" and not self._steps:
            return  # each turn of a conversation that is kept
        teller = self._tellers.get(event.type)
        style, head, value = teller(event.data) if teller is not None else ("dim", "", "")
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


def _took(data: Any) -> str:
    return f" ({data['duration_ms']} ms)"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _not_meant(data: Any) -> str:
    return f"{data['name'] or data['type']} was not run: it stands in the result of {data['source']}"


def _rejected(reason: str) -> str:
    return "" if reason in _NOTES else f"the plan was rejected: {reason}"


def _settled(decision: str) -> str:
    then = {"retry": "it is made again", "skip": "its outcome stays unknown"}.get(decision, decision)
    return f"had begun when the run was broken off; {then}"


def _call(data: Any) -> str:
    return f"call {data['call_id']}" + (f" of {data['skill']}" if data["skill"] else "")


def _decided(data: Any) -> str:
    word = "refused" if data["decision"] is False or isinstance(data["decision"], str) else "approved"
    by = f" by {data['by']}" if data["by"] else ""
    return f"{word}{by}" if isinstance(data["decision"], bool) else f"{word}{by}:"


def _why(decision: Any) -> object:
    return "" if isinstance(decision, bool) else decision


def _answered(data: Any) -> str:
    tokens = data["total_tokens"]
    counted = "" if tokens is None else f", {_count(tokens, 'token')}"
    return f"the model answered in {data['latency_ms'] / 1000:.1f} s{counted}"
