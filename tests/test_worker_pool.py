"""`WorkerPool` is bounded, and jobs that wait for other jobs never starve it."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from contextlib import closing
from functools import partial
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernai._util.worker_pool import Inbox, WorkerPool, in_worker
from tests.properties import examples
from tests.ways import PATIENCE

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def wait_for(ended: threading.Semaphore, count: int = 1) -> None:
    for _ in range(count):
        assert ended.acquire(timeout=PATIENCE), "the pool starves"


class Gauge:
    """Counts the jobs that run at the same time, and their maximum."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = self.most = 0

    def change(self, by: int) -> None:
        with self._lock:
            self.now += by
            self.most = max(self.most, self.now)


def test_queued_jobs_start_in_the_order_they_were_submitted() -> None:
    pool, order, done = WorkerPool(1), list[int](), threading.Semaphore(0)
    begin = threading.Event()

    def job(at: int) -> None:
        begin.wait(PATIENCE)
        order.append(at)
        done.release()

    for at in range(50):
        pool.submit(partial(job, at))
    begin.set()
    wait_for(done, 50)
    assert order == list(range(50))


Tree = list["Tree"]
TREES: st.SearchStrategy[Tree] = st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=4), max_leaves=25)


@pytest.mark.slow
@examples(2)
@given(tree=TREES, size=st.integers(1, 3))
def test_any_tree_of_jobs_that_wait_for_their_children_finishes_and_stays_within_the_bound(tree: Tree, size: int) -> None:
    pool, gauge = WorkerPool(size), Gauge()

    def job(children: Tree, done: threading.Semaphore) -> None:
        gauge.change(1)
        inner = threading.Semaphore(0)
        for child in children:
            pool.submit(partial(job, child, inner))
        gauge.change(-1)
        with pool.waiting():
            wait_for(inner, len(children))
        gauge.change(1)
        gauge.change(-1)
        done.release()

    whole = threading.Semaphore(0)
    with pool.waiting():  # outside of the pool's own threads, this gives no place away
        pool.submit(partial(job, tree, whole))
        wait_for(whole)
    assert gauge.most <= size


def test_a_job_that_has_finished_waiting_goes_before_a_queued_one() -> None:
    pool, order, done = WorkerPool(1), list[str](), threading.Semaphore(0)
    waiting, may_return = threading.Event(), threading.Event()

    def end(name: str) -> None:
        order.append(name)
        done.release()

    def waiter() -> None:
        with pool.waiting():
            waiting.set()
            may_return.wait(PATIENCE)
        end("waiter")

    def blocker() -> None:
        pool.submit(partial(end, "queued"))
        # the waiter asks for its place back before this job ends; otherwise the pool would have nothing to choose
        may_return.set()
        while not pool._returning:
            pass
        end("blocker")

    pool.submit(waiter)
    waiting.wait(PATIENCE)
    pool.submit(blocker)
    wait_for(done, 3)
    assert order == ["blocker", "waiter", "queued"]


def test_no_place_is_lost_when_several_become_free_before_a_waiter_wakes() -> None:
    pool, leave, queued_runs = WorkerPool(3), threading.Semaphore(0), threading.Event()
    pool._returning = 1  # a job that has finished waiting, and whose thread has not woken up yet
    for _ in range(2):
        pool.submit(partial(wait_for, leave))
    pool.submit(queued_runs.set)
    leave.release()
    try:
        assert queued_runs.wait(PATIENCE), "a job is queued although a place is free"
    finally:
        leave.release()


@pytest.mark.parametrize("has_threads", [True, False])
def test_an_error_while_waiting_gives_the_place_back_and_loses_no_queued_job(
    monkeypatch: pytest.MonkeyPatch, has_threads: bool
) -> None:
    pool, done = WorkerPool(1), threading.Semaphore(0)

    def job() -> None:
        pool.submit(done.release)
        if not has_threads:
            monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        with pytest.raises(OSError if has_threads else RuntimeError), pool.waiting():
            raise OSError("interrupted")
        done.release()

    pool.submit(job)
    wait_for(done, 2)
    with pool._place_free:
        assert pool._place_free.wait_for(lambda: pool._free == 1, PATIENCE)


def test_a_pool_that_keeps_its_threads_reuses_them_until_it_is_closed() -> None:
    pool, seen, done = WorkerPool(2, keep=True), list[threading.Thread](), threading.Semaphore(0)

    def job() -> None:
        seen.append(threading.current_thread())
        done.release()

    for _ in range(50):
        pool.submit(job)
        wait_for(done)
        while not pool._idle:  # soon the thread that has ended its job waits for the next one
            pass
    assert len(set(seen)) == 1
    assert seen[0].is_alive()
    together = threading.Barrier(3)
    for _ in range(2):
        pool.submit(lambda: together.wait(PATIENCE))  # not both for the thread that waits
    together.wait(PATIENCE)
    pool.close()
    seen[0].join(PATIENCE)
    assert not seen[0].is_alive()
    pool.submit(done.release)  # a job submitted after `close` still runs, in a thread that then ends
    wait_for(done)


def test_an_abandoned_worker_takes_no_place_and_no_further_job() -> None:
    pool, hangs, leave, done = WorkerPool(1, keep=True), threading.Event(), threading.Event(), threading.Semaphore(0)
    workers: list[threading.Thread] = []

    def hang() -> None:
        workers.append(threading.current_thread())
        hangs.set()
        leave.wait(PATIENCE)

    pool.submit(hang)
    assert hangs.wait(PATIENCE)
    pool.submit(done.release)
    for _ in range(2):
        pool.give_up_on(workers[0].ident or 0)
    pool.submit(done.release)
    wait_for(done, 2)
    leave.set()
    workers[0].join(PATIENCE)
    while not pool._idle:  # soon the worker that took its place waits for the next job
        pass
    assert pool._free == 1
    pool.close()


def test_a_place_is_free_again_if_its_thread_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, begun = WorkerPool(2), list[bool]()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        for _ in range(3):
            with pytest.raises(RuntimeError):
                pool.submit(partial(begun.append, True))
    done = threading.Barrier(3)
    for _ in range(2):
        pool.submit(lambda: done.wait(PATIENCE))
    done.wait(PATIENCE)
    assert not begun, "a job that was refused never runs"


def test_the_reader_of_an_inbox_is_woken_by_an_item() -> None:
    inbox, begun = Inbox[int](), time.monotonic()
    assert inbox.get(0.0) is None
    threading.Timer(0.02, inbox.put, [1]).start()
    assert inbox.get(PATIENCE) == 1
    assert time.monotonic() - begun < PATIENCE


# ------------------------------------------------------------------------------------------- from an event loop


@pytest.mark.parametrize("hold", [0.0, 0.000_01, 0.000_2, PATIENCE])
async def test_an_event_loop_gets_what_a_call_in_a_worker_returns_or_raises(hold: float) -> None:
    def give(what: object) -> object:
        if isinstance(what, BaseException):
            raise what
        return what

    with closing(WorkerPool(2, keep=True)) as pool:
        for value in ("text", None, [1], ValueError):
            assert await in_worker(pool, partial(give, value), hold=hold) is value
        with pytest.raises(OSError, match="no"):
            await in_worker(pool, partial(give, OSError("no")), hold=hold)
        # raised by the call itself, so it does not cancel the task that waits for it
        with pytest.raises(RuntimeError, match="CancelledError"):
            await in_worker(pool, partial(give, asyncio.CancelledError()), hold=hold)


async def test_a_call_that_ends_just_as_the_loop_turns_to_other_work_is_not_missed() -> None:
    pool, chance = WorkerPool(4, keep=True), random.Random(1)

    async def calls(_: int) -> list[int]:
        given = [(chance.randrange(3000), chance.choice((0.0, 0.000_01, 0.000_05, 0.000_2))) for _ in range(400)]
        came = [await in_worker(pool, partial(sum, range(size)), hold=hold) for size, hold in given]
        return [total for (size, _), total in zip(given, came, strict=True) if total != size * (size - 1) // 2]

    with closing(pool):
        async with asyncio.timeout(PATIENCE):
            assert await asyncio.gather(*map(calls, range(4))) == [[]] * 4


@pytest.mark.parametrize("hold, to_the_end", [(0.0, False), (0.000_2, False), (0.0, True)])
async def test_cancelling_the_wait_for_a_call_lets_the_call_finish(hold: float, to_the_end: bool) -> None:
    pool, begun, leave, ended = WorkerPool(1, keep=True), *(threading.Event() for _ in range(3))

    def call() -> None:
        begun.set()
        leave.wait(PATIENCE)
        ended.set()

    with closing(pool):
        waiting = asyncio.ensure_future(in_worker(pool, call, hold=hold, to_the_end=to_the_end, not_begun=OSError))
        await asyncio.sleep(0)
        assert begun.wait(PATIENCE)
        waiting.cancel()
        if to_the_end:
            asyncio.get_running_loop().call_soon(leave.set)
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert ended.is_set() == to_the_end
        if not to_the_end:  # the worker is still busy, so another call has not begun
            queued = asyncio.ensure_future(in_worker(pool, begun.clear, not_begun=OSError))
            asyncio.get_running_loop().call_soon(queued.cancel)
            with pytest.raises(OSError):
                await queued
        leave.set()
        assert await in_worker(pool, ended.is_set)
        assert begun.is_set(), "it was not made later either"
