"""`Plan`: a workflow of tasks, as a model writes it into a `plan` block."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

from kernai._util.api import Value, check_texts, check_type
from kernai.blocks.grammar import ASCII_SPACE
from kernai.jsonio.json_data import jsonable, loads
from kernai.values.limits import MAX_TASKS

STRATEGIES = ("parallel", "sequential", "mixed")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Task(Value):
    """One task: a sub-agent's input, and the ids of the tasks whose results it needs."""

    id: str
    input: str
    parallel: bool = False
    depends_on: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if type(self.depends_on) is not tuple:  # one id, or any list of ids
            given = [self.depends_on] if isinstance(self.depends_on, str) else self.depends_on
            object.__setattr__(self, "depends_on", tuple(check_texts("depends_on", given, "ids")))

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.id, "input": self.input, "parallel": self.parallel, "depends_on": list(self.depends_on)}


class PlanResult(NamedTuple):
    """The result of `Plan.validate`: a plan, or the reason why there is none, one of the words in docs/workflows.md."""

    plan: Plan | None
    reason: str | None

    @property
    def ok(self) -> bool:
        return self.plan is not None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Plan(Value):
    """Tasks in the order in which the model wrote them. `strategy` is ``parallel``, ``sequential`` or ``mixed``."""

    tasks: tuple[Task, ...]
    goal: str = ""
    strategy: str = "mixed"

    def __post_init__(self) -> None:
        tasks = [check_type(one, Task, "tasks must be Task objects") for one in self.tasks]
        object.__setattr__(self, "tasks", tuple(tasks))

    def to_dict(self) -> dict[str, Any]:
        return {"goal": self.goal, "strategy": self.strategy, "tasks": [task.to_dict() for task in self.tasks]}

    @classmethod
    def parse(cls, raw: str | Mapping[str, Any] | None) -> Plan | None:
        """The plan, or None if `validate` rejects it."""
        return cls.validate(raw).plan

    @classmethod
    def validate(cls, raw: str | Mapping[str, Any] | None, max_tasks: int = MAX_TASKS) -> PlanResult:
        """Checks a plan, given as JSON text or as a mapping. Never raises for anything that a model could write.

        Tasks without a non-blank `id` and `input` are dropped, as are dependencies on unknown tasks or on the task
        itself. A plan may have at most `max_tasks` tasks, and never more than 1,000.
        """
        if raw is None or (isinstance(raw, str) and not raw.strip(ASCII_SPACE)):
            return PlanResult(None, "blank")
        if isinstance(raw, str):
            try:
                raw = loads(raw)
            except ValueError:
                return PlanResult(None, "invalid_json")
        if not isinstance(raw, Mapping):
            return PlanResult(None, "not_a_hash")  # as the Ruby gem records it: Ruby calls an object a hash
        given = raw.get("tasks")
        if not isinstance(given, (list, tuple)):
            return PlanResult(None, "no_tasks")
        if not given:
            return PlanResult(None, "empty_tasks")
        if len(given) > min(max_tasks, MAX_TASKS):
            return PlanResult(None, "too_many_tasks")
        valid = [
            one for one in given if isinstance(one, Mapping)
            and all(isinstance(one.get(key), str) and one[key].strip(ASCII_SPACE) for key in ("id", "input"))
        ]
        if not valid:
            return PlanResult(None, "all_tasks_invalid")
        ids = {one["id"] for one in valid}
        if len(ids) < len(valid):
            return PlanResult(None, "duplicate_ids")
        tasks = tuple(_task(one, ids) for one in valid)
        try:
            TopologicalSorter({task.id: task.depends_on for task in tasks}).prepare()
        except CycleError:
            return PlanResult(None, "cyclic")
        goal, strategy = raw.get("goal"), raw.get("strategy")
        if not isinstance(goal, str):
            goal = "" if goal is None else json.dumps(jsonable(goal), ensure_ascii=False)
        strategy = next((known for known in STRATEGIES if known == strategy), "mixed")
        return PlanResult(Plan(tasks, goal, strategy), None)


def _task(one: Mapping[str, Any], ids: set[str]) -> Task:
    wanted = one.get("depends_on")
    named = wanted if isinstance(wanted, (list, tuple)) else [wanted]
    depends_on = tuple(w for w in named if isinstance(w, str) and w in ids and w != one["id"])
    return Task(one["id"], one["input"], one.get("parallel") is True, depends_on)
