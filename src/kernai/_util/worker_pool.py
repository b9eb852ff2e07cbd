"""`WorkerPool`: a bounded number of threads for the work of one run.

Guarantees: at most `size` jobs run at once; a job that waits for other jobs (inside `waiting()`) gives its place up
meanwhile, so nested work can never starve itself; a place that comes free goes first to a job that comes back from
waiting, then to the oldest queued job. Each job runs in a copy of the context variables of the thread that submitted
it. A thread without a job ends, or with `keep` waits for the next one until `close`.
Assumes: a job catches its own exceptions (drivers capture outcomes; delivering them is the parent's single job).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from kernai.errors import as_failure

if TYPE_CHECKING:
    import asyncio
    from queue import SimpleQueue

T = TypeVar("T")
Job = Callable[[], object]

DEFAULT_SIZE = 32


class WorkerPool:
    """At most `size` threads that work; those that wait do not count."""

    def __init__(self, size: int = DEFAULT_SIZE, *, keep: bool = False) -> None:
        from queue import SimpleQueue

        if not isinstance(size, int) or size < 1:
            raise ValueError(f"size must be a positive int, got {size!r}")
        self._lock = threading.Lock()
        self._place_free = threading.Condition(self._lock)  # those that come back from waiting wait here
        self._free = size
        self._returning = 0
        self._queue: deque[Job] = deque()  # jobs without a place,
        self._handed: SimpleQueue[Job | None] = SimpleQueue()  # and jobs that have one, for threads without a job,
        self._idle = 0  # of which as many wait there as nothing was handed to yet; None ends one
        self._members: set[int] = set()
        self._keep = keep

    def submit(self, job: Job) -> None:
        """Runs `job` in a worker as soon as there is a place."""
        in_context = partial(copy_context().run, job)
        with self._lock:
            self._queue.append(in_context)
            new = self._fill_places()
        self._start(new)

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
        self._free_place()
        try:
            yield
        finally:
            with self._lock:
                self._returning += 1
                self._place_free.wait_for(lambda: self._free > 0)
                self._returning -= 1
                self._free -= 1
                # places came free for several, and not all of them were wanted back
                new = self._fill_places()
            self._start(new)

    def give_up_on(self, worker: int) -> None:
        """Counts the thread `worker` as gone, for its job does not end; another one gets its place."""
        if worker in self._members:
            self._members.discard(worker)
            self._free_place()

    def close(self) -> None:
        """Ends threads that wait for a job, and the others when their jobs end. A job submitted later still runs."""
        with self._lock:
            self._keep = False
            for _ in range(self._idle):
                self._handed.put(None)
            self._idle = 0

    def _free_place(self) -> None:
        with self._lock:
            self._free += 1
            self._place_free.notify()
            new = self._fill_places()
        self._start(new)

    def _fill_places(self) -> list[Job]:
        """Under the lock: gives free places to queued jobs. Those for which no thread is there are given back."""
        new: list[Job] = []
        while self._queue and self._free > self._returning:
            self._free -= 1
            job = self._queue.popleft()
            if self._idle:
                self._idle -= 1
                self._handed.put(job)
            else:
                new.append(job)
        return new

    def _start(self, jobs: list[Job]) -> None:
        for at, job in enumerate(jobs):
            # daemonic: a skill that never ends must not keep the process from ending
            worker = threading.Thread(target=self._work, args=(job,), name="kernai-worker", daemon=True)
            try:
                worker.start()
            except RuntimeError:  # no thread can be had: the places that this job and those behind it had are free
                with self._lock:
                    self._free += len(jobs) - at
                    self._queue.extendleft(reversed(jobs[at + 1 :]))
                raise

    def _work(self, job: Job) -> None:
        me = threading.get_ident()
        self._members.add(me)
        try:
            following: Job | None = job
            while following is not None:
                following()
                following = self._next_job(me)
        finally:
            self._members.discard(me)

    def _next_job(self, me: int) -> Job | None:
        """This worker's next job; None ends the thread."""
        with self._lock:
            if me not in self._members:
                return None  # given up on: its place is another one's by now
            if self._queue and self._free >= self._returning:
                return self._queue.popleft()
            self._free += 1
            if self._returning:
                self._place_free.notify()
            if not self._keep:
                return None
            self._idle += 1
        return self._handed.get()


async def in_worker(
    pool: WorkerPool,
    call: Callable[[], T],
    *,
    hold: float = 0.0,
    to_the_end: bool = False,
    unbegun: type[BaseException] | None = None,
) -> T:
    """What `call` gives or raises, from a worker of `pool`. Cancelled, it leaves the call to end by itself.

    One that had no worker yet is not begun any more; `unbegun`, if given, is raised then.

    `to_the_end` waits for the call also when cancelled, and raises the cancellation behind it: not in a task of its
    own, which an event loop that ends would cancel as well.

    Not the event loop's own executor: that one is small, shared, and keeps a program from ending. For up to `hold`
    seconds the event loop does nothing else than wait for the call: a brief one is done sooner than it takes to put
    the loop to sleep and have it woken by another thread.
    """
    handed = _Call(call)
    pool.submit(handed.perform)
    cancelled: BaseException | None = None
    if not (hold and handed.ended.acquire(timeout=hold)):
        try:
            cancelled = await handed.wait(to_the_end=to_the_end)
        except BaseException:
            if handed.claim.acquire(blocking=False) and unbegun is not None:
                raise unbegun from None
            raise
    value = handed.result()
    if cancelled is not None:
        raise cancelled
    return value


class _Call(Generic[T]):
    """A call and what it came to. A future would not take every exception, and some as its own cancellation."""

    __slots__ = ("_call", "_error", "_value", "_waiting", "claim", "ended")

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._error: BaseException | None = None
        self._waiting: asyncio.Future[None] | None = None
        #: held by the worker that has begun the call, or by whoever no longer wants it
        self.claim = threading.Lock()
        #: held until the call has ended
        self.ended = threading.Lock()
        self.ended.acquire()

    def perform(self) -> None:
        """In the worker."""
        if not self.claim.acquire(blocking=False):
            return
        try:
            self._value = self._call()
        except BaseException as error:  # noqa: BLE001 - raised again on the event loop
            self._error = as_failure(error)
        self.ended.release()
        # whoever waits by now is woken; whoever is about to looks at `ended` once more
        waiting = self._waiting
        if waiting is not None:
            with suppress(RuntimeError):  # the event loop is closed: the call has outlived its run
                waiting.get_loop().call_soon_threadsafe(self._wake, waiting)

    async def wait(self, *, to_the_end: bool) -> BaseException | None:
        """Waits for the end, on the event loop; `to_the_end` gives the cancellation that came meanwhile."""
        import asyncio

        cancelled: BaseException | None = None
        while True:
            self._waiting = asyncio.get_running_loop().create_future()
            if self.ended.acquire(blocking=False):
                return cancelled
            try:
                await self._waiting
            except asyncio.CancelledError as error:
                if not to_the_end:
                    raise
                cancelled = error
            else:
                return cancelled

    @staticmethod
    def _wake(waiting: asyncio.Future[None]) -> None:
        if not waiting.done():
            waiting.set_result(None)

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value
