"""`checked_plan`: a workflow that comes from the caller, checked before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from kernai._util.api import likely
from kernai.blocks.plan import STRATEGIES, Plan, Task
from kernai.jsonio.json_data import loads
from kernai.loop.corrections import why_rejected
from kernai.values.limits import MAX_TASKS

#: the forms in which a plan may be passed
GivenPlan = Plan | Mapping[str, Any] | Iterable[Task | Mapping[str, Any]] | str
NO_GOAL = "Run the plan."


def checked_plan(given: GivenPlan) -> Plan:
    """Returns the plan. Raises `ValueError` for anything that `Plan.validate` would silently drop or replace."""
    if isinstance(given, str):
        try:
            given = loads(given, unique_keys=True)
        except ValueError as error:
            raise ValueError(f"the plan is not valid JSON: {error}") from None
    if isinstance(given, Plan):
        raw: Mapping[str, Any] = given.to_dict()
    elif isinstance(given, Mapping):
        raw = given
    elif isinstance(given, Iterable) and not isinstance(given, (str, bytes)):
        raw = {"tasks": list(given)}
    else:
        raise TypeError(f"plan must be a Plan, a list of Tasks, a dict or JSON, got {type(given).__name__}")
    tasks = raw.get("tasks")
    if isinstance(tasks, (list, tuple)):
        tasks = [one.to_dict() if isinstance(one, Task) else one for one in tasks]
        raw = {**raw, "tasks": tasks}
    _check_keys("the plan", raw, Plan)
    plan, reason = Plan.validate(raw)
    if plan is None:
        raise ValueError(f"the plan cannot be run: {why_rejected(reason or '', MAX_TASKS)}")
    if raw.get("strategy", "mixed") not in STRATEGIES:
        raise ValueError(f"the plan's strategy must be one of {', '.join(STRATEGIES)}, got {raw['strategy']!r}")
    assert isinstance(tasks, list)
    if len(plan.tasks) < len(tasks):
        raise ValueError("the plan cannot be run: each task needs a non-blank id and input")
    for task, one in zip(plan.tasks, tasks, strict=True):
        _check_task(task, one)
    return plan


def _check_task(task: Task, given: Mapping[str, Any]) -> None:
    """Raises `ValueError` for anything that `Plan.validate` dropped from a task."""
    _check_keys(f"task {task.id!r}", given, Task)
    if type(given.get("parallel", False)) is not bool:
        raise ValueError(f"task {task.id!r}: parallel must be True or False, got {given['parallel']!r}")
    wanted = given.get("depends_on")
    wanted = [wanted] if isinstance(wanted, str) else [] if wanted is None else wanted
    if not isinstance(wanted, (list, tuple)):
        raise ValueError(f"task {task.id!r}: depends_on must be a list of ids, got {wanted!r}")  # noqa: TRY004 - JSON
    unknown = [name for name in wanted if name not in task.depends_on]
    if unknown:
        raise ValueError(f"task {task.id!r} cannot depend on {unknown[0]!r}: the plan has no other task with that id")


def _check_keys(what: str, given: Mapping[str, Any], kind: type[Plan | Task]) -> None:
    """Raises `ValueError` for a key that would be ignored, such as ``depend_on``."""
    known = [one.name for one in fields(kind)]
    for key in given:
        if key not in known:
            raise ValueError(f"{what} has no key {key!r}{likely(str(key), known, 'it may have')}")
