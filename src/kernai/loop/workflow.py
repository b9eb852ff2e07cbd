"""Running a plan: every task is a sub-run of the same agent, started as soon as `TaskScheduler` says so."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from kernai.blocks.block import Block
from kernai.blocks.plan import Plan, Task
from kernai.blocks.runtime_blocks import neutralize, result_block
from kernai.errors import error_text
from kernai.loop import corrections
from kernai.loop.calls import Loop
from kernai.loop.effects import Effect, Ended, NextEnded, Start
from kernai.loop.run_state import Scope
from kernai.loop.task_scheduler import TaskScheduler, failure

RESULT_NAME = "tasks"


def run_workflow(scope: Scope, plan: Plan, beside: Sequence[Block], loop: Loop) -> Generator[Effect, Any, None]:
    """Runs the plan and injects its results; `beside` are the blocks of the response that were not run for it."""
    workflow = _Workflow(scope, plan, loop)
    started = scope.clock.monotonic()
    scope.context.plan = plan
    scope.context.task_results = {}
    scope.emit("workflow_start", plan.to_dict())
    try:
        yield from workflow.run()
    except GeneratorExit:
        raise
    except BaseException as error:
        yield from workflow.drain()
        scope.emit("workflow_error", {"error": error_text(error), "duration_ms": _since(scope, started)})
        raise
    results = workflow.scheduler.ordered_results()
    scope.emit("workflow_complete", {"results": results, "duration_ms": _since(scope, started)})
    scope.inject(result_block(RESULT_NAME, neutralize(json.dumps(results, ensure_ascii=False))))
    if beside:
        scope.inject(corrections.beside_workflow(beside))


class _Workflow:
    """The tasks of one plan while they run."""

    def __init__(self, scope: Scope, plan: Plan, loop: Loop) -> None:
        self.scope = scope
        self.scheduler = TaskScheduler(plan)
        self._loop = loop
        self._started: dict[str, float] = {}
        self._children: dict[str, Scope] = {}

    def run(self) -> Generator[Effect, Any, None]:
        while not self.scheduler.done:
            for task in self.scheduler.start():
                yield from self._start(task)
            if self._started:
                self._end((yield NextEnded()))

    def drain(self) -> Generator[Effect, Any, None]:
        """Waits for what still runs: a parent outlives its children."""
        while self._started:
            self._end((yield NextEnded()))

    def _start(self, task: Task) -> Generator[Effect, Any, None]:
        scope = self.scope
        scope.emit("task_start", {"task_id": task.id, "input": task.input, "depends_on": list(task.depends_on)})
        begun = scope.clock.monotonic()
        try:
            child = scope.for_task(task)
        except Exception as error:  # noqa: BLE001 - Context.child is the host's: its failure is this task's
            self._started[task.id] = begun
            self._end(Ended(task.id, error=error))
            return
        self._children[task.id] = child
        self._started[task.id] = begun
        try:
            yield Start(task.id, self._loop(child, (_input(task, self.scheduler.inputs_of(task)),)), child.outbox)
        except GeneratorExit:
            raise
        except BaseException as error:
            # Ctrl-C while it was being started: nobody will report its end, but what was announced gets one
            self._end(Ended(task.id, error=error))
            raise

    def _end(self, ended: Ended) -> None:
        scope, task_id = self.scope, ended.key
        if task_id not in self._started:
            return  # it was interrupted while being started, and has been told then
        duration = _since(scope, self._started.pop(task_id))
        error = ended.error
        child = self._children.pop(task_id, None)
        result = child.result if child is not None else None
        if result is not None:
            # counted also when the host's own code broke the task
            scope.meter.add(result.usage)
            error = error or result.error
        if error is None and result is not None and result.text is not None:
            outcome = result.text
            scope.emit("task_complete", {"task_id": task_id, "result": outcome, "duration_ms": duration})
        else:
            text = error_text(error) if error is not None else "the task ended without an answer"
            outcome = failure(RuntimeError(text))
            scope.emit("task_error", {"task_id": task_id, "error": text, "duration_ms": duration})
        self.scheduler.finish(task_id, outcome)
        scope.context.task_results[task_id] = outcome


def _input(task: Task, results: Mapping[str, str]) -> str:
    """The results a task depends on, a blank line, and what it is to do."""
    wanted = neutralize(task.input)
    if not task.depends_on:
        return wanted
    blocks = [result_block(needed, neutralize(results[needed])) for needed in task.depends_on]
    return "\n".join(blocks) + "\n\n" + wanted


def _since(scope: Scope, started: float) -> int:
    return int((scope.clock.monotonic() - started) * 1000)
