"""`TaskScheduler`: which task of a plan may start now.

The decision is pure: it knows nothing of threads, models or time. The loop uses it for workflows. It can also be used
on its own, with `run` and `arun`.

- ``parallel``: a task may start as soon as its dependencies have finished.
- ``sequential``: one at a time, in the plan's order as far as dependencies allow.
- ``mixed``: tasks with the `parallel` flag start as soon as they can; of the others, only one runs at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import Any

from kernai._util.api import check_count, check_function
from kernai._util.worker_pool import DEFAULT_SIZE, WorkerPool, outcome_of
from kernai.blocks.plan import STRATEGIES, Plan, Task
from kernai.errors import DeadlockError, error_text

#: how many tasks of one workflow run at once
MAX_RUNNING = DEFAULT_SIZE

Execute = Callable[[Task, Mapping[str, Any]], Any]


class TaskScheduler:
    """Give it a `Plan`, or tasks and a strategy; then alternate `start` and `finish` until `done`.

    Raises `ValueError` for a duplicate id or an unknown strategy. A dependency on an unknown id is never met, so it
    leads to a `DeadlockError`; `Plan.validate` removes such dependencies.
    """

    def __init__(
        self, plan: Plan | Iterable[Task], strategy: str | None = None, *, max_running: int = MAX_RUNNING
    ) -> None:
        plan = plan if isinstance(plan, Plan) else Plan(plan)  # type: ignore[arg-type]  # it makes a tuple
        self.tasks, self.strategy = plan.tasks, plan.strategy if strategy is None else strategy
        if self.strategy not in STRATEGIES:
            raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}, got {self.strategy!r}")
        self.results: dict[str, Any] = {}
        self.running: dict[str, Task] = {}
        self._max_running = check_count("max_running", max_running)
        self._order = {task.id: at for at, task in enumerate(self.tasks)}
        if len(self._order) < len(self.tasks):
            raise ValueError("two tasks have the same id")
        self._sorter = TopologicalSorter({task.id: task.depends_on for task in self.tasks})
        with suppress(CycleError):  # tasks outside of the cycle can run
            self._sorter.prepare()
        # two queues, ordered by place in the plan: tasks that may run concurrently, and tasks that run one at a time
        self._free: list[int] = []
        self._single: list[int] = []
        self._queue_ready()

    @property
    def done(self) -> bool:
        """Whether every task has finished."""
        return len(self.results) == len(self.tasks)

    def start(self) -> list[Task]:
        """Returns the tasks to start now, in the plan's order. They count as running until `finish`.

        An empty list means that a running task has to finish first. Raises `DeadlockError` if tasks are left, but none
        is running or can start.
        """
        room = self._max_running - len(self.running)
        started = [heappop(self._free) for _ in range(min(room, len(self._free)))]
        if self._single and len(started) < room and not any(map(self._is_single, self.running.values())):
            started.append(heappop(self._single))
        if not started and not self.running and not self.done:
            left = [task.id for task in self.tasks if task.id not in self.results]
            raise DeadlockError(f"tasks wait for one another or for tasks that do not exist: {', '.join(left[:10])}")
        tasks = [self.tasks[at] for at in sorted(started)]
        self.running.update((task.id, task) for task in tasks)
        return tasks

    def finish(self, task_id: str, result: Any) -> None:
        """Records a running task's result. Raises `KeyError` if the task is not running."""
        del self.running[task_id]
        self.results[task_id] = result
        self._sorter.done(task_id)
        self._queue_ready()

    def ordered_results(self) -> dict[str, Any]:
        """Returns the results so far, in the plan's order."""
        return {task.id: self.results[task.id] for task in self.tasks if task.id in self.results}

    def inputs_of(self, task: Task) -> dict[str, Any]:
        """Returns the results of a task's dependencies, in the order in which the task names them."""
        return {needed: self.results[needed] for needed in task.depends_on}

    def run(self, execute: Execute, *, max_workers: int = DEFAULT_SIZE) -> dict[str, Any]:
        """Runs ``execute(task, results_of_its_dependencies)`` for every task, on threads.

        Returns the results in the plan's order. If `execute` raises, the task's result is ``"error: MESSAGE"``, and the
        other tasks continue.
        """
        from queue import SimpleQueue

        check_function("execute", execute, "(task, results); arun takes async ones", None, None)
        pool = WorkerPool(check_count("max_workers", max_workers))
        ended: SimpleQueue[tuple[str, Any]] = SimpleQueue()

        def perform(task: Task, inputs: Mapping[str, Any]) -> None:
            try:
                result = execute(task, inputs)
            except BaseException as error:  # noqa: BLE001 - the parent waits for a result from every task
                result = failure(error_text(error))
            ended.put((task.id, result))

        while not self.done:
            for task in self.start():
                pool.submit(partial(perform, task, self.inputs_of(task)))
            self.finish(*ended.get())
        return self.ordered_results()

    async def arun(self, execute: Execute) -> dict[str, Any]:
        """Like `run`, under asyncio, with an asyncio task for each task of the plan; `execute` may be async."""
        import asyncio

        check_function("execute", execute, "(task, results)", None, None, may_be_async=True)
        running: dict[asyncio.Task[tuple[Any, BaseException | None]], str] = {}

        async def perform(task: Task, inputs: Mapping[str, Any]) -> Any:
            result = execute(task, inputs)
            return await result if hasattr(result, "__await__") else result

        try:
            while not self.done:
                for task in self.start():
                    running[asyncio.ensure_future(outcome_of(perform(task, self.inputs_of(task))))] = task.id
                ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for one in ended:
                    result, error = one.result()
                    self.finish(running.pop(one), result if error is None else failure(error_text(error)))
        finally:
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        return self.ordered_results()

    def _is_single(self, task: Task) -> bool:
        return self.strategy == "sequential" or (self.strategy == "mixed" and not task.parallel)

    def _queue_ready(self) -> None:
        for task_id in self._sorter.get_ready():
            at = self._order.get(task_id)
            if at is not None:  # otherwise no task has that id, and those that depend on it never run
                heappush(self._single if self._is_single(self.tasks[at]) else self._free, at)


def failure(error: str) -> str:
    """Returns the result of a task that failed."""
    return f"error: {error}"
