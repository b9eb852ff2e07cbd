"""Runs a plan: each task is a sub-run, started as soon as `TaskScheduler` allows.

The plan comes from the model, or from the caller (`run_given_plan`). A caller's plan is added to the conversation as if
the model had written it.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from kernai.agents.definition import TYPED_TASKS
from kernai.blocks.block import Block, neutralize, result_block
from kernai.blocks.plan import Plan, Task
from kernai.errors import LimitReachedError, error_text
from kernai.events import (
    TaskCompleteRow,
    TaskEndedRow,
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
from kernai.values.message import Message
from kernai.values.result import Result, StopReason

RESULT_NAME = "tasks"
#: stop reasons that a task shares with its root
_SHARED = frozenset({StopReason.TIMEOUT, StopReason.MAX_CALLS, StopReason.MAX_TOKENS, StopReason.MAX_COST})


def run_workflow(
    run: Run, plan: Plan, not_run: Sequence[Block], block: Block | None = None
) -> Generator[Effect, Any, RunningTasks]:
    """Runs the plan of `block` and injects its results; `not_run` are blocks that are not run because of the plan."""
    workflow = RunningTasks(run, plan, is_given=block is None)
    started = run.clock.monotonic()
    run.context.plan = plan
    run.context.task_results = {}
    run.write(WorkflowStartRow(**plan.to_dict()))
    try:
        yield from workflow.perform()
    except GeneratorExit:
        raise
    except BaseException as error:
        run.stops_all(error)
        try:
            yield from workflow.drain()
        finally:
            run.write(WorkflowErrorRow(error_text(error), run.ms_since(started)))
        raise
    results = workflow.scheduler.ordered_results()
    run.write(WorkflowCompleteRow(results, run.ms_since(started)))
    for result in results.values():
        run.quoted.record_untrusted(RESULT_NAME, _text_of(result))
    if workflow.failed and run.gate.rules(run).on_prose != "accept":  # "accept" is as in the gem: results alone
        run.warnings += (corrections.failed_tasks([one for one in results if one in workflow.failed], len(results)),)
    run.inject(result_block(RESULT_NAME, neutralize(json.dumps(results, ensure_ascii=False))), block, by="tool")
    if not_run:
        run.inject(corrections.not_run_with_workflow(not_run))
    return workflow


def run_given_plan(run: Run, plan: Plan) -> Generator[Effect, Any, str]:
    """Runs the caller's plan as the run's first step; returns the results as JSON."""
    run.gate.check()
    own = [run.task_agents.get(task.id) for task in plan.tasks]
    if run.provider is None and not all(one and (one.provider is not None or one.middleware) for one in own):
        run.require_provider()  # otherwise each task would fail, but not the run
    run.steps = 1  # the next step is the model's, if the conversation continues
    run.messages.append(planned(plan.to_dict()))
    workflow = yield from run_workflow(run, plan, ())
    run.gate.check()
    for result in workflow.ends.values():
        if result.error is not None and result.stop_reason in _SHARED:
            raise LimitReachedError(error_text(result.error), result.stop_reason.value)
    results = workflow.scheduler.ordered_results()
    run.output = {one: text if one in workflow.failed else workflow.ends[one].output for one, text in results.items()}
    return json.dumps(results, ensure_ascii=False)


def planned(plan: Mapping[str, Any]) -> Message:
    """Returns the plan as a model would have written it."""
    # a "<" inside a JSON string could end the block; its escape means the same
    return Message("assistant", str(Block("plan", None, json.dumps(plan).replace("<", "\\u003c"))))


class RunningTasks:
    """The tasks of one plan while they run, and their results: JSON data from a typed agent, otherwise text.

    `is_given`: the caller wrote the plan, not the model.
    """

    def __init__(self, run: Run, plan: Plan, *, is_given: bool) -> None:
        self.run = run
        self._is_given = is_given
        self.scheduler = TaskScheduler(plan)
        #: the results of the tasks' runs, by task id
        self.ends: dict[str, Result[Any]] = {}
        self.failed: set[str] = set()
        #: when each running task was started
        self._running: dict[str, float] = {}

    def perform(self) -> Generator[Effect, Any, None]:
        while not self.scheduler.done:
            for task in self.scheduler.start():
                yield from self._start(task)
            if self._running:
                self._end((yield Join()))

    def drain(self) -> Generator[Effect, Any, None]:
        """Waits for the running tasks, because a parent outlives its children. Every announced task gets an outcome."""
        try:
            while self._running:
                self._end((yield Join()))
        finally:
            for task_id in list(self._running):
                self._end(Completion(task_id, error=Cancelled()))

    def _start(self, task: Task) -> Generator[Effect, Any, None]:
        run = self.run
        run.write(TaskStartRow(task.id, task.input, task.depends_on))
        self._running[task.id] = run.clock.monotonic()
        try:
            child = run.child(run.task_agents.get(task.id), task=task, is_given=self._is_given)
        except Exception as error:  # noqa: BLE001 - `Context.child` is user code: if it fails, this task fails
            self._end(Completion(task.id, error=error))
            return
        except BaseException as error:
            run.stops_all(error)
            self._end(Completion(task.id, error=error))
            raise
        inputs = self.scheduler.inputs_of(task)
        for needed, result in inputs.items():
            child.quoted.record_untrusted(needed, _text_of(result))
        try:
            yield Spawn(task.id, SubRun(child.scope, child.agent, (_input(task, inputs),)))
        except GeneratorExit:
            raise
        except BaseException as error:
            self._end(Completion(task.id, error=error if how_broken_off(error) is None else NotPerformed()))
            raise

    def _end(self, ended: Completion) -> None:
        run, task_id = self.run, ended.key
        duration, error = run.ms_since(self._running.pop(task_id)), ended.error
        # the usage counts even if the user's own code broke the task
        result = run.end_of(task_id=task_id)
        if result is not None:
            self.ends[task_id] = result
            error = error or result.error
        if error is None:
            assert result is not None
            assert result.text is not None
            outcome = self._data_of(task_id, result)
            row: TaskEndedRow = TaskCompleteRow(task_id, result.text, duration)
        else:
            marks: dict[str, Any] = {}
            text = error_text(error)
            if (broken_off := how_broken_off(error)) is not None:
                run.stops(error, ends=False)
                text, marks[broken_off] = "the run was stopped", True
            outcome = failure(text)
            self.failed.add(task_id)
            row = TaskErrorRow(task_id, text, duration, **marks)
        row.input = self.scheduler.running[task_id].input
        run.write(row)
        self.scheduler.finish(task_id, outcome)
        run.context.task_results[task_id] = outcome

    def _data_of(self, task_id: str, result: Result[Any]) -> Any:
        """Returns a task's answer: its text, or the data of a typed answer."""
        own = self.run.task_agents.get(task_id)
        is_text = own is None or own.answer_type is None or own.answer_type.is_text
        if own is None or is_text or self.run.gate.rules(self.run).answers < TYPED_TASKS:
            return result.text
        return json.loads(own.answer_text(result))


def _text_of(result: Any) -> str:
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def _input(task: Task, results: Mapping[str, Any]) -> str:
    """Returns a task's input: the results it depends on, a blank line, and its own text."""
    wanted = neutralize(task.input)
    if not task.depends_on:
        return wanted
    blocks = [result_block(needed, neutralize(_text_of(results[needed]))) for needed in task.depends_on]
    return "\n".join(blocks) + "\n\n" + wanted
