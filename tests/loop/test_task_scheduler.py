"""`TaskScheduler`: which task may start, and the two ways to run the scheduler on its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernai import DeadlockError, Plan, Task, TaskScheduler
from tests.loop.loop_cases import Unprintable
from tests.properties import examples
from tests.ways import PATIENCE

STRATEGIES = ("parallel", "sequential", "mixed")


pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def task(id: str, *needs: str, parallel: bool = True) -> Task:
    return Task(id, f"do {id}", parallel=parallel, depends_on=needs)


def ids(tasks: list[Task]) -> list[str]:
    return [one.id for one in tasks]


DIAMOND = (task("a"), task("b", "a"), task("c", "a"), task("d", "b", "c"))


# ------------------------------------------------------------------------------------------- the decision


def test_the_plans_own_strategy_is_taken_unless_another_is_given() -> None:
    plan = Plan((task("a"), task("b")), strategy="sequential")
    assert ids(TaskScheduler(plan).start()) == ["a"]
    assert ids(TaskScheduler(plan, "parallel").start()) == ["a", "b"]


def test_tasks_that_wait_for_each_other_or_for_an_unknown_task_are_a_deadlock() -> None:
    for tasks in ([task("a", "b"), task("b", "a")], [task("a", "nobody")], [task("a", "a")]):
        with pytest.raises(DeadlockError, match=r"'?a"):
            TaskScheduler(tasks).start()
    scheduler = TaskScheduler([task("ok"), task("a", "b"), task("b", "a")])
    assert ids(scheduler.start()) == ["ok"]
    assert scheduler.start() == []
    scheduler.finish("ok", 1)
    with pytest.raises(DeadlockError, match="a, b"):
        scheduler.start()
    assert scheduler.ordered_results() == {"ok": 1}
    ran: list[str] = []
    with pytest.raises(DeadlockError):
        TaskScheduler([task("ok"), task("a", "b"), task("b", "a")]).run(lambda one, _: ran.append(one.id))
    assert ran == ["ok"]


@pytest.mark.parametrize("arguments, named, message", [
    (([task("a")], "quick"), {}, "strategy must be one of"), (([task("a")],), {"max_running": 0}, "max_running"),
    (([task("a"), task("a")],), {}, "same id"), ((["a"],), {}, "tasks must be Task objects"),
])
def test_a_callers_mistake_is_an_error(arguments: tuple[Any, ...], named: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        TaskScheduler(*arguments, **named)
    with pytest.raises(ValueError, match="max_workers must be a positive int"):
        TaskScheduler([task("a")]).run(lambda *_: pytest.fail("it is called"), max_workers=0)


def test_finishing_a_task_that_is_not_running_is_a_key_error() -> None:
    scheduler = TaskScheduler([task("a"), task("b", "a")])
    with pytest.raises(KeyError):
        scheduler.finish("b", 1)
    scheduler.start()
    scheduler.finish("a", 1)
    with pytest.raises(KeyError):
        scheduler.finish("a", 1)


# ------------------------------------------------------------------------------------------- as properties


@st.composite
def dags(draw: st.DrawFn) -> tuple[list[Task], str, int]:
    """A plan without cycles in a shuffled order, perhaps without tasks, a strategy, and how many may run at once."""
    size = draw(st.integers(0, 14))
    made = []
    for at in range(size):
        needs = draw(st.lists(st.integers(0, at - 1), max_size=4)) if at else []
        made.append(task(f"t{at}", *(f"t{one}" for one in needs), parallel=draw(st.booleans())))
    return draw(st.permutations(made)), draw(st.sampled_from(STRATEGIES)), draw(st.integers(1, 5))


def may_start(tasks: list[Task], strategy: str, most: int, running: list[Task], finished: list[str]) -> list[str]:
    """The rules, literally: tasks that may run beside others come first, then one of those that may not."""

    def is_single(one: Task) -> bool:
        return strategy == "sequential" or (strategy == "mixed" and not one.parallel)

    ready = [one for one in tasks if one.id not in finished and one not in running and set(one.depends_on) <= set(finished)]
    begun = [one for one in ready if not is_single(one)][: most - len(running)]
    if len(running) + len(begun) < most and not any(map(is_single, running)):
        begun += [one for one in ready if is_single(one)][:1]
    return [one.id for one in tasks if one in begun]


@examples(3)
@given(dag=dags(), choice=st.randoms(use_true_random=False))
def test_whatever_order_tasks_end_in_each_starts_as_soon_as_it_may(dag: tuple[list[Task], str, int], choice: Any) -> None:
    tasks, strategy, most = dag
    scheduler = TaskScheduler(tasks, strategy, max_running=most)
    finished: list[str] = []
    while not scheduler.done:
        expected = may_start(tasks, strategy, most, list(scheduler.running.values()), finished)
        begun = scheduler.start()
        assert ids(begun) == expected
        assert scheduler.start() == []
        assert all(list(scheduler.inputs_of(one)) == list(dict.fromkeys(one.depends_on)) for one in begun)
        ended = choice.choice(list(scheduler.running))
        scheduler.finish(ended, f"result of {ended}")
        finished.append(ended)
    assert scheduler.start() == []
    assert list(scheduler.ordered_results().items()) == [(one.id, f"result of {one.id}") for one in tasks]


@given(dag=dags())
def test_on_threads_and_on_asyncio_each_task_runs_once_with_its_inputs(dag: tuple[list[Task], str, int]) -> None:
    tasks, strategy, most = dag
    begun: list[str] = []

    def execute(one: Task, inputs: Mapping[str, Any]) -> str:
        assert inputs == {needed: f"result of {needed}" for needed in one.depends_on}
        begun.append(one.id)
        return f"result of {one.id}"

    async def aexecute(one: Task, inputs: Mapping[str, Any]) -> str:
        await asyncio.sleep(0)
        return execute(one, inputs)

    expected = [(one.id, f"result of {one.id}") for one in tasks]
    assert list(TaskScheduler(tasks, strategy, max_running=most).run(execute).items()) == expected
    assert sorted(begun) == sorted(one.id for one in tasks)
    assert list(asyncio.run(TaskScheduler(tasks, strategy, max_running=most).arun(aexecute)).items()) == expected


# ------------------------------------------------------------------------------------------- run and arun


async def _echo(one: Task, inputs: Mapping[str, Any]) -> Any:
    await asyncio.sleep(0)
    return [one.id, *inputs.values()]


def test_run_starts_tasks_at_once_in_a_bounded_number_of_workers() -> None:
    together = threading.Barrier(4)
    lock = threading.Lock()
    inside = most = 0

    def execute(one: Task, _: Mapping[str, Any]) -> str:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        if int(one.id) < 4:
            together.wait(PATIENCE)
        with lock:
            inside -= 1
        return one.id

    results = TaskScheduler([task(str(at)) for at in range(40)]).run(execute, max_workers=4)
    assert list(results) == [str(at) for at in range(40)]
    assert most == 4


@pytest.mark.parametrize("error, message", [
    (ValueError("oops"), "error: oops"), (SystemExit(3), "error: 3"), (Unprintable(), "error: Unprintable"),
    (StopIteration("oops"), "error: oops"), (asyncio.CancelledError("oops"), "error: oops"),
], ids=["error", "exit", "no text", "stop", "cancelled"])  # fmt: skip
def test_a_failed_task_has_its_error_as_result_and_does_not_affect_others(error: BaseException, message: str) -> None:
    def execute(one: Task, inputs: Mapping[str, Any]) -> Any:
        if one.id == "b":
            raise error
        return [one.id, *inputs]

    async def aexecute(one: Task, inputs: Mapping[str, Any]) -> Any:
        return execute(one, inputs)

    expected = {"a": ["a"], "b": message, "c": ["c", "a"], "d": ["d", "b", "c"]}
    assert TaskScheduler(DIAMOND).run(execute) == expected
    if isinstance(error, StopIteration):
        expected["b"] = "error: coroutine raised StopIteration"  # Python's own doing
    assert asyncio.run(TaskScheduler(DIAMOND).arun(aexecute)) == expected


async def test_cancelling_arun_ends_the_tasks_that_run() -> None:
    ended: list[str] = []
    begun = asyncio.Semaphore(0)

    async def execute(one: Task, _: Mapping[str, Any]) -> None:
        try:
            begun.release()
            await asyncio.Event().wait()
        finally:
            ended.append(one.id)

    running = asyncio.ensure_future(TaskScheduler([task("a"), task("b"), task("c", "a")]).arun(execute))
    await begun.acquire()
    await begun.acquire()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(ended) == ["a", "b"]


def test_a_function_that_cannot_do_a_task_is_refused() -> None:
    with pytest.raises(TypeError, match=r"execute must be a plain function of .*; arun takes async ones, got the async function <function _echo"):
        TaskScheduler(DIAMOND).run(_echo)
    wrong: Any
    assert asyncio.run(TaskScheduler(DIAMOND).arun(lambda one, _: one.id)) == {one.id: one.id for one in DIAMOND}, "a plain one"
    for wrong in (None, lambda one: one):
        for run in (TaskScheduler(DIAMOND).run, lambda one: asyncio.run(TaskScheduler(DIAMOND).arun(one))):
            with pytest.raises(TypeError, match=r"execute must be a (plain )?function of \(task, results\)"):
                run(wrong)
