"""Running a plan: every task is a sub-run of the same agent, started as soon as `TaskScheduler` says so."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple

from kernai.blocks.block import Block
from kernai.blocks.plan import Plan, Task
from kernai.blocks.runtime_blocks import neutralize, result_block
from kernai.errors import error_text
from kernai.events import (
    TaskCompleteRow,
    TaskErrorRow,
    TaskStartRow,
    WorkflowCompleteRow,
    WorkflowErrorRow,
    WorkflowStartRow,
)
from kernai.loop import corrections
from kernai.loop.effects import Cancelled, Completion, Effect, Join, NotPerformed, Spawn, SubRun, how_broken_off
from kernai.loop.run_state import Run
from kernai.loop.task_scheduler import TaskScheduler, failure
from kernai.values.result import Result

RESULT_NAME = "tasks"


class Ended(NamedTuple):
    """What came of a plan: the results by task, and how the sub-runs ended."""

    results: dict[str, str]
    ends: list[Result]


def run_workflow(run: Run, plan: Plan, beside: Sequence[Block]) -> Generator[Effect, Any, Ended]:
    """Runs the plan and tells the model its results; `beside` are the blocks that were not run for it."""
    workflow = _Workflow(run, plan)
    started = run.clock.monotonic()
    run.context.plan = plan
    run.context.task_results = {}
    run.write(WorkflowStartRow(**plan.to_dict()))
    try:
        yield from workflow.perform()
    except GeneratorExit:
        raise
    except BaseException as error:
        run.stop_if_interrupted(error)
        run.stops(error)
        try:
            yield from workflow.drain()
        finally:
            run.write(WorkflowErrorRow(error_text(error), _since(run, started)))
        raise
    results = workflow.scheduler.ordered_results()
    run.write(WorkflowCompleteRow(results, _since(run, started)))
    for told in results.values():
        run.quoted.record_untrusted(RESULT_NAME, told)
    run.inject(result_block(RESULT_NAME, neutralize(json.dumps(results, ensure_ascii=False))))
    if beside:
        run.inject(corrections.beside_workflow(beside))
    return Ended(results, workflow.ends)


class _Workflow:
    """The tasks of one plan while they run."""

    def __init__(self, run: Run, plan: Plan) -> None:
        self.run = run
        self.scheduler = TaskScheduler(plan)
        self.ends: list[Result] = []
        self._started: dict[str, float] = {}
        self._scopes: dict[str, str] = {}

    def perform(self) -> Generator[Effect, Any, None]:
        while not self.scheduler.done:
            for task in self.scheduler.start():
                yield from self._start(task)
            if self._started:
                self._end((yield Join()))

    def drain(self) -> Generator[Effect, Any, None]:
        """Waits for what still runs: a parent outlives its children. What was announced gets its end told."""
        try:
            while self._started:
                self._end((yield Join()))
        finally:
            for task_id in list(self._started):
                self._end(Completion(task_id, error=Cancelled()))

    def _start(self, task: Task) -> Generator[Effect, Any, None]:
        run = self.run
        run.write(TaskStartRow(task.id, task.input, task.depends_on))
        self._started[task.id] = run.clock.monotonic()
        try:
            child = run.for_task(task)
        except Exception as error:  # noqa: BLE001 - Context.child is the host's: its failure is this task's
            self._end(Completion(task.id, error=error))
            return
        except BaseException as error:
            self._end(Completion(task.id, error=error))
            raise
        self._scopes[task.id] = child.scope
        inputs = self.scheduler.inputs_of(task)
        for needed, told in inputs.items():
            child.quoted.record_untrusted(needed, told)
        try:
            yield Spawn(task.id, SubRun(child.scope, child.agent, (_input(task, inputs),)))
        except GeneratorExit:
            raise
        except BaseException as error:
            self._end(Completion(task.id, error=error if how_broken_off(error) is None else NotPerformed()))
            raise

    def _end(self, ended: Completion) -> None:
        run, task_id = self.run, ended.key
        duration = _since(run, self._started.pop(task_id))
        error = ended.error
        scope = self._scopes.pop(task_id, None)
        # counted also when the host's own code broke the task
        result = None if scope is None else run.end_of(scope)
        if result is not None:
            self.ends.append(result)
            error = error or result.error
        if error is None and result is not None and result.text is not None:
            outcome = result.text
            run.write(TaskCompleteRow(task_id, outcome, duration))
        else:
            broken_off = None if error is None else how_broken_off(error)
            if error is not None and broken_off is not None:
                run.stops(error, ends=False)
            text = "the task ended without an answer" if error is None else error_text(error)
            text = text if broken_off is None else "the run was stopped"
            outcome = failure(RuntimeError(text))
            run.write(TaskErrorRow(
                task_id, text, duration, not_run=broken_off == "not_run" or None,
                interrupted=broken_off == "interrupted" or None,
            ))
        self.scheduler.finish(task_id, outcome)
        run.context.task_results[task_id] = outcome


def _input(task: Task, results: Mapping[str, str]) -> str:
    """The results a task depends on, a blank line, and what it is to do."""
    wanted = neutralize(task.input)
    if not task.depends_on:
        return wanted
    blocks = [result_block(needed, neutralize(results[needed])) for needed in task.depends_on]
    return "\n".join(blocks) + "\n\n" + wanted


def _since(run: Run, started: float) -> int:
    return int((run.clock.monotonic() - started) * 1000)
