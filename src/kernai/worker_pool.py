"""`WorkerPool`: a bounded number of threads for the work of one run.

Guarantees: at most `size` jobs run at once; a job that waits for other jobs (inside `waiting()`) gives its place up
meanwhile, so nested work can never starve itself; a place that comes free goes first to a job that comes back from
waiting, then to the oldest queued job. Each job runs in a copy of the context variables of the thread that submitted
it. No thread outlives its work: there is nothing to shut down.
Assumes: a job catches its own exceptions (drivers capture outcomes; delivering them is the parent's single job).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import Generic, TypeVar

from kernai.errors import as_failure

T = TypeVar("T")

DEFAULT_SIZE = 32


class WorkerPool:
    """At most `size` threads that work; those that wait do not count."""

    def __init__(self, size: int = DEFAULT_SIZE) -> None:
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"size must be a positive int, got {size!r}")
        self._changed = threading.Condition(threading.Lock())
        self._free = size
        self._queue: deque[Callable[[], object]] = deque()
        self._returning = 0
        self._members: set[int] = set()

    def submit(self, job: Callable[[], object]) -> None:
        """Runs `job` in a worker as soon as there is a place."""
        context = copy_context()
        self._enqueue(lambda: context.run(job))

    def works_here(self) -> bool:
        """Whether the current thread is a worker of this pool."""
        return threading.get_ident() in self._members

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a wait for other jobs: the place is given up, and taken again afterwards.

        Outside of a worker of this pool it does nothing, for there is no place to give up.
        """
        if not self.works_here():
            yield
            return
        self._give_place()
        try:
            yield
        finally:
            with self._changed:
                self._returning += 1
                self._changed.wait_for(lambda: self._free > 0)
                self._returning -= 1
                self._free -= 1
                jobs = []
                while self._queue and self._free > self._returning:
                    # places came free for several, and not all of them were wanted back
                    self._free -= 1
                    jobs.append(self._queue.popleft())
            for job in jobs:
                self._start(job)

    def _enqueue(self, job: Callable[[], object]) -> None:
        with self._changed:
            if self._free <= self._returning:
                self._queue.append(job)
                return
            self._free -= 1
        self._start(job)

    def _start(self, job: Callable[[], object]) -> None:
        # daemonic: a skill that never ends must not keep the process from ending
        threading.Thread(target=self._work, args=(job,), name="kernai-worker", daemon=True).start()

    def _work(self, job: Callable[[], object]) -> None:
        me = threading.get_ident()
        self._members.add(me)
        try:
            following: Callable[[], object] | None = job
            while following is not None:
                following()
                following = self._next_job()
        finally:
            self._members.discard(me)

    def _next_job(self) -> Callable[[], object] | None:
        """This worker's next job; None gives the place back and ends the thread."""
        with self._changed:
            if self._queue and self._free >= self._returning:
                return self._queue.popleft()
            self._free += 1
            self._changed.notify()
            return None

    def _give_place(self) -> None:
        with self._changed:
            if not self._queue or self._free < self._returning:
                self._free += 1
                self._changed.notify()
                return
            job = self._queue.popleft()
        self._start(job)


async def in_worker(pool: WorkerPool, call: Callable[[], T]) -> T:
    """What `call` gives or raises, from a worker of `pool`. Cancelled, it leaves the call to end by itself.

    Not the event loop's own executor: that one is small, shared, and keeps a program from ending.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[_Captured[T]] = loop.create_future()

    def settle(captured: _Captured[T]) -> None:
        if not waiting.done():
            waiting.set_result(captured)

    def work() -> None:
        captured = _Captured(call)
        with suppress(RuntimeError):  # the event loop is closed: the call has outlived its run
            loop.call_soon_threadsafe(settle, captured)

    pool.submit(work)
    return (await waiting).result()


class _Captured(Generic[T]):
    """What a call came to. A future would not take every exception, and would take some for its own cancellation."""

    __slots__ = ("_error", "_value")

    def __init__(self, call: Callable[[], T]) -> None:
        self._error: BaseException | None = None
        try:
            self._value = call()
        except BaseException as error:  # noqa: BLE001 - raised again on the event loop
            self._error = as_failure(error)

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value
