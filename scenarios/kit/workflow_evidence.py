"""Reads from a recording what happened in its workflows, for the scenarios about sub-agents.

Nothing here depends on a particular scenario. This module reads events: which tasks ran and when, which calls each task
made, which plans were rejected; and it reads figures from an answer. Positions are places in the recording, so it takes
no clock to say which of two tasks ran first, or that both ran at the same time.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from harness import ExpectationError, Outcome

import kernai

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def rows_of(scenario: str, name: str) -> list[dict[str, str]]:
    """The rows of fixtures/SCENARIO/NAME.csv."""
    with (FIXTURES / scenario / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@dataclass(frozen=True)
class TaskRun:
    """One task of a workflow: the positions of its start and end, its result, and its whole input."""

    id: str
    depends_on: tuple[str, ...]
    started: int
    ended: int
    result: str
    failed: bool
    input: str

    def overlaps(self, other: TaskRun) -> bool:
        """Whether both were running at the same time."""
        return self.started < other.ended and other.started < self.ended


@dataclass(frozen=True)
class Workflow:
    """A plan as the kernel ran it: `plan` as in `workflow_start`, tasks in the order in which they ended."""

    plan: dict[str, Any]
    tasks: dict[str, TaskRun] = field(default_factory=dict)

    def needed_by(self, task_id: str) -> set[str]:
        """The ids of all tasks that a task waits for, directly or indirectly."""
        found: set[str] = set()
        left = list(self.tasks[task_id].depends_on)
        while left:
            needed = left.pop()
            if needed not in found:
                found.add(needed)
                left += self.tasks[needed].depends_on
        return found


def workflows_of(outcome: Outcome) -> list[Workflow]:
    """Every workflow of a run, in order, with the tasks that ended."""
    found: list[Workflow] = []
    starts: dict[str, tuple[int, kernai.Event]] = {}
    reports: dict[str, str] = {}
    for at, event in enumerate(outcome.events):
        if event.type == "workflow_start":
            found.append(Workflow(dict(event.data)))
        elif event.type == "task_start":
            starts[event.data["task_id"]] = (at, event)
        elif event.type == "run_start" and event.task_id is not None and event.depth == 1:
            reports[event.task_id] = str(event.data["input"])
        elif event.type in ("task_complete", "task_error"):
            task_id, failed = event.data["task_id"], event.type == "task_error"
            started, start = starts[task_id]
            result = event.data["error" if failed else "result"]
            found[-1].tasks[task_id] = TaskRun(
                task_id, tuple(start.data["depends_on"]), started, at, result, failed, reports.get(task_id, "")
            )
    return found


def first_workflow(outcome: Outcome) -> Workflow:
    """The workflow that ran first. Raises `ExpectationError` if none ran."""
    found = workflows_of(outcome)
    require(found, "no workflow was run")
    return found[0]


def last_workflow(outcome: Outcome) -> Workflow:
    """The workflow that ran last. Raises `ExpectationError` if none ran."""
    found = workflows_of(outcome)
    require(found, "no workflow was run")
    return found[-1]


def require_results_passed_on(workflow: Workflow) -> None:
    """Requires that each task began after its dependencies had ended, and received their results."""
    for task in workflow.tasks.values():
        for needed in (workflow.tasks[one] for one in task.depends_on):
            require(needed.ended < task.started, f"{task.id} began before {needed.id} had ended")
            require(f"{kernai.neutralize(needed.result)}</block>" in task.input, f"{task.id} was not given {needed.id}")


@dataclass(frozen=True)
class Call:
    """One call of a skill. `task` is None for a call of the root. A refused call has an `error` and no `value`."""

    task: str | None
    params: dict[str, Any]
    value: Any
    error: str | None
    started: int
    ended: int


def calls_of(outcome: Outcome, skill: str) -> list[Call]:
    """Every call of a skill that has ended, in the order in which they began; JSON results are parsed."""
    begun: dict[str, tuple[int, kernai.Event]] = {}
    calls = []
    for at, event in enumerate(outcome.events):
        if not event.type.startswith("skill_") or event.data["skill"] != skill:
            continue
        call_id = event.data["call_id"]
        if event.type == "skill_execute":
            begun[call_id] = (at, event)
        elif call_id in begun:
            started, call = begun[call_id]
            value = _value(event.data["result"]) if event.type == "skill_result" else None
            calls.append(Call(call.task_id, call.data["params"], value, event.data.get("error"), started, at))
    return sorted(calls, key=lambda call: call.started)


def _value(result: Any) -> Any:
    try:
        return json.loads(result)
    except (TypeError, ValueError):
        return result


def rejections_of(outcome: Outcome) -> list[tuple[str, str, str]]:
    """The scope, the reason and the text of every plan that was not run, in order."""
    return [(event.scope, event.data["reason"], event.data["raw"]) for event in outcome.of("plan_rejected")]


def plans_written(outcome: Outcome) -> list[str]:
    """The content of every plan block of the root, run or not."""
    written = [event.data for event in outcome.of("blocks_parsed") if event.scope == ""]
    return [block["content"] for blocks in written for block in blocks if block["type"] == "plan"]


def require_handed_on(plan: str, outcome: Outcome) -> None:
    """Requires that the root's first plan is this one. Ignores white space, which a copy may change."""
    written = plans_written(outcome)
    require(written, "no plan was written")
    require(written[0].split() == plan.split(), "the first plan is not the one that the user gave")


def figure(text: str, label: str) -> Decimal:
    """The last number on the last line `LABEL: ...` of an answer. Raises `ExpectationError` if there is none."""
    labelled = re.compile(rf"(?<!\w){re.escape(label)}[^\w\n]*:(.*)", re.IGNORECASE)
    for rest in reversed(labelled.findall(text)):
        if numbers := NUMBER.findall(rest):
            return Decimal(numbers[-1].replace(",", ""))
    raise ExpectationError(f"the answer has no line `{label}: ` with a figure")


def require_figures(text: str, due: Mapping[str, Decimal | int]) -> bool:
    """Whether an answer has every figure under its label. Raises an `ExpectationError` that lists wrong figures."""
    wrong = [f"{label} is {figure(text, label)}, due {value}" for label, value in due.items()
             if figure(text, label) != value]
    if wrong:
        raise ExpectationError("; ".join(wrong))
    return True


def require(holds: object, reason: str) -> None:
    """Raises `ExpectationError` with the reason unless the condition holds."""
    if not holds:
        raise ExpectationError(reason)


def overlapping(tasks: Sequence[TaskRun]) -> list[tuple[str, str]]:
    """The pairs of tasks that were running at the same time."""
    return [(one.id, two.id) for at, one in enumerate(tasks) for two in tasks[at + 1 :] if one.overlaps(two)]
