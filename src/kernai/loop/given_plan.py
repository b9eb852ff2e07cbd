"""A run whose workflow the caller has written: its conversation is that of a run in which the model had written it."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from kernai.blocks.block import Block
from kernai.blocks.plan import Plan
from kernai.errors import LimitReachedError, error_text
from kernai.loop.effects import Effect
from kernai.loop.run_state import Run
from kernai.loop.workflow import run_workflow
from kernai.values.message import Message
from kernai.values.result import StopReason

if TYPE_CHECKING:
    from kernai.agents.agent import Agent

#: what ends a task and its root alike, for they share it
_SHARED = frozenset({StopReason.TIMEOUT, StopReason.MAX_CALLS, StopReason.MAX_TOKENS, StopReason.MAX_COST})


def run_given_plan(run: Run, plan: Plan) -> Generator[Effect, Any, str]:
    """Runs the plan as the run's first step; gives the results as JSON."""
    run.gate.check()
    if run.provider is None and not all(_has_provider(run.task_agents.get(task.id)) for task in plan.tasks):
        run.check_provider()  # else each task would fail for it, and the run would not
    run.steps = 1  # the next one is the model's, if the conversation goes on
    run.conversation.append(planned(plan.to_dict()))
    ended = yield from run_workflow(run, plan, ())
    run.gate.check()
    for result in ended.ends:
        if result.error is not None and result.stop_reason in _SHARED:
            raise LimitReachedError(error_text(result.error), result.stop_reason.value)
    run.output = results = json.dumps(ended.results, ensure_ascii=False)
    return results


def _has_provider(own: Agent[Any] | None) -> bool:
    return own is not None and (own.provider is not None or bool(own.middleware))


def planned(plan: Mapping[str, Any]) -> Message:
    """The plan as a model would have written it."""
    # a "<" inside a JSON string could end the block; its escape means the same
    return Message("assistant", str(Block("plan", None, json.dumps(plan).replace("<", "\\u003c"))))
