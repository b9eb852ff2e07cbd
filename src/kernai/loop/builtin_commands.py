"""The commands the runtime answers itself: ``/skills /protocols /workflow /tasks``. Add one to `BUILTINS`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from kernai.agents.instruction_builder import WORKFLOW_HELP
from kernai.blocks.runtime_blocks import error_block, neutralize, result_block
from kernai.loop.run_state import Scope
from kernai.registry.skill_registry import REGISTRY as skills


def _list_skills(scope: Scope) -> str:
    return skills.listing(scope.skills.visible(), model=scope.model)


def _list_protocols(scope: Scope) -> str:
    spoken = [{"name": one.name, "documentation": one.documentation} for one in scope.protocols.visible()]
    return json.dumps(spoken, ensure_ascii=False)


def _explain_workflows(scope: Scope) -> str:
    if scope.depth:
        return f"You are a sub-agent: your plans are not run. For your information:\n\n{WORKFLOW_HELP}"
    return WORKFLOW_HELP


def _list_tasks(scope: Scope) -> str:
    context = scope.context
    told: dict[str, Any] = {
        "depth": context.depth,
        "goal": context.plan.goal if context.plan else None,
        "strategy": context.plan.strategy if context.plan else None,
        "tasks": [{**task.to_dict(), **_state(context.task_results, task.id)} for task in context.tasks],
        "task_results": context.task_results,
    }
    return neutralize(json.dumps(told, ensure_ascii=False))


def _state(results: dict[str, str], task_id: str) -> dict[str, str | None]:
    result = results.get(task_id)
    if result is None:
        return {"status": "pending", "result": None}
    return {"status": "failed" if result.startswith("error: ") else "done", "result": result}


BUILTINS: dict[str, Callable[[Scope], str]] = {
    "/skills": _list_skills,
    "/protocols": _list_protocols,
    "/workflow": _explain_workflows,
    "/tasks": _list_tasks,
}


def run_builtin(scope: Scope, command: str) -> str:
    """The block to inject for a command that begins with ``/``."""
    answer = BUILTINS.get(command)
    if answer is None:
        error = f"Unknown command '{command}'"
        scope.emit("builtin_error", {"command": command, "error": error})
        return error_block(command, error)
    result = answer(scope)
    scope.emit("builtin_result", {"command": command, "result": result})
    return result_block(command, result)
