"""Commands that the runtime answers itself: ``/skills /protocols /workflow /tasks /read``. New ones go in `BUILTINS`.

Their output depends on what is registered at the time, so the loop asks its gate for it: a replay has the recorded one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernai.agents.instruction_builder import WORKFLOW_HELP
from kernai.blocks.block import neutralize
from kernai.jsonio.json_data import value_in
from kernai.registry.skill_registry import listing_of

if TYPE_CHECKING:
    from kernai.loop.run_state import Run


def _explain_workflows(run: Run) -> str:
    if not run.may_plan:
        why = "You are a sub-agent: your plans" if run.depth else "Your plans"
        return f"{why} are not run. For your information:\n\n{WORKFLOW_HELP}"
    return WORKFLOW_HELP


def _list_tasks(run: Run) -> str:
    context, results = run.context, run.context.task_results
    shown: dict[str, Any] = {
        "depth": context.depth,
        "goal": context.plan.goal if context.plan else None,
        "strategy": context.plan.strategy if context.plan else None,
        "tasks": [{**task.to_dict(), **_state(results, task.id)} for task in context.tasks],
        "task_results": {task.id: results[task.id] for task in context.tasks if task.id in results},
    }
    return neutralize(json.dumps(shown, ensure_ascii=False))


def _state(results: dict[str, Any], task_id: str) -> dict[str, Any]:
    result = results.get(task_id)
    is_failed = isinstance(result, str) and result.startswith("error: ")  # a typed answer is any JSON data
    ended = "failed" if is_failed else "done"
    return {"status": ended if task_id in results else "pending", "result": result}


def builtin_command(run: Run, name: str, content: str) -> str | None:
    """Returns the built-in command that a block calls, with its argument, or None if it calls none."""
    if name in BUILTINS:
        return name
    command, _, argument = name.partition(" ")
    if command != READ or run.agent.know_how is None:
        return None
    given = value_in(content)
    if isinstance(given, dict):  # the arguments of a native call
        content = f"{given.get('name') or ''} {given.get('file') or ''}"
    return " ".join(filter(None, [READ, argument.strip(), *content.split()]))


def run_builtin(run: Run, command: str) -> str:
    """Returns a command's output."""
    if command in BUILTINS:
        return BUILTINS[command](run)
    return str(run.agent.know_how.read(command.removeprefix(READ)))


READ = "/read"
BUILTINS: dict[str, Callable[[Run], str]] = {
    "/skills": lambda run: listing_of(run.skills.visible()),
    "/protocols": lambda run: json.dumps(
        [{"name": one.name, "documentation": one.documentation} for one in run.protocols.visible()], ensure_ascii=False
    ),
    "/workflow": _explain_workflows,
    "/tasks": _list_tasks,
}
#: commands whose output is the runtime's own text. Descriptions written by others count as read in any case, because
#: the model may see them in its system message (`Setup.foreign`)
LISTINGS = frozenset({"/skills", "/workflow"})

