"""Reads from a recording what happened in its workflows, for the scenarios about sub-agents.

Nothing here depends on a particular scenario. This module reads events: which tasks ran and when, and which plans were
written. Positions are places in the recording, so it takes no clock to say which of two tasks ran first, or that both
ran at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from harness import Outcome, require

import kernai


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
        direct = self.tasks[task_id].depends_on
        return set(direct).union(*map(self.needed_by, direct))

    def require_results_passed_on(self) -> None:
        """Requires that each task began after its dependencies had ended, and received their results."""
        for task in self.tasks.values():
            for needed in (self.tasks[one] for one in task.depends_on):
                require(needed.ended < task.started, f"{task.id} began before {needed.id} had ended")
                given = f"{kernai.neutralize(needed.result)}</block>" in task.input
                require(given, f"{task.id} was not given {needed.id}")


def workflow_of(outcome: Outcome, at: int = -1) -> Workflow:
    """The workflow that ran last, or at another place, with the tasks that ended. Requires that one ran."""
    found: list[Workflow] = []
    starts: dict[str, tuple[int, kernai.Event]] = {}
    inputs: dict[str, str] = {}
    for place, event in enumerate(outcome.events):
        if event.type == "workflow_start":
            found.append(Workflow(dict(event.data)))
        elif event.type == "task_start":
            starts[event.data["task_id"]] = (place, event)
        elif event.type == "run_start" and event.task_id is not None and event.depth == 1:
            inputs[event.task_id] = str(event.data["input"])
        elif event.type in ("task_complete", "task_error"):
            task_id, failed = event.data["task_id"], event.type == "task_error"
            started, start = starts[task_id]
            result = event.data["error" if failed else "result"]
            found[-1].tasks[task_id] = TaskRun(
                task_id, tuple(start.data["depends_on"]), started, place, result, failed, inputs.get(task_id, "")
            )
    require(found, "no workflow was run")
    return found[at]


def overlapping(tasks: Sequence[TaskRun]) -> list[tuple[str, str]]:
    """The pairs of tasks that were running at the same time."""
    return [(one.id, two.id) for at, one in enumerate(tasks) for two in tasks[at + 1 :] if one.overlaps(two)]


def plans_written(outcome: Outcome) -> list[str]:
    """The content of every plan block of the root, run or not."""
    written = [event.data for event in outcome.of("blocks_parsed") if event.scope == ""]
    return [block["content"] for blocks in written for block in blocks if block["type"] == "plan"]


def require_handed_on(plan: str, outcome: Outcome, rejected_as: str | None = None) -> bool:
    """Requires that the root's first plan is this one, and that it was run, or rejected for this reason.

    Ignores white space, which a copy may change.
    """
    written = plans_written(outcome)
    require(written, "no plan was written")
    require(written[0].split() == plan.split(), "the first plan is not the one that the user gave")
    rejected = [(event.scope, event.data["reason"]) for event in outcome.of("plan_rejected")]
    as_due = rejected[:1] == [("", rejected_as)] if rejected_as else not rejected
    return require(as_due, f"the plans that were rejected: {rejected}")
