"""`WorkerPool`: a bounded number of threads for the work of one run.

Guarantees: at most `size` jobs run at once. While a job waits for other jobs (inside `waiting()`), it gives up its
place, so nested work cannot block itself. A free place goes first to a job that returns from waiting, then to the
oldest queued job. Each job runs in a copy of the context variables of the thread that submitted it. A thread without a
job ends; with `keep`, it waits for the next job until `close`.
Assumes: a job catches its own exceptions (drivers capture outcomes, and the parent delivers them).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kernai.errors import as_failure

if TYPE_CHECKING:
    import asyncio
    from queue import SimpleQueue

T = TypeVar("T")
Job = Callable[[], object]

DEFAULT_SIZE = 32


class Inbox(Generic[T]):
    """A queue for one reader. Before Python 3.13, `SimpleQueue.get` hangs if a signal handler outlasts its timeout."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._changed = threading.Lock()

    def put(self, item: T) -> None:
        self._items.append(item)
        with suppress(RuntimeError):  # it is free already
            self._changed.release()

    def get(self, timeout: float) -> T | None:
        """The next item; None if there is none for `timeout` seconds, or for less."""
        if not self._items:
            self._changed.acquire(timeout=timeout)
        return self._items.popleft() if self._items else None


class WorkerPool:
    """Runs jobs in threads. At most `size` of these work; threads that wait for other jobs do not count."""

    def __init__(self, size: int = DEFAULT_SIZE, *, keep: bool = False) -> None:
        from queue import SimpleQueue

        self._lock = threading.Lock()
        self._place_free = threading.Condition(self._lock)  # jobs that return from waiting wait here
        self._free = size
        self._returning = 0
        self._queue: deque[Job] = deque()  # jobs that have no place yet
        self._handed: SimpleQueue[Job | None] = SimpleQueue()  # jobs for idle threads; None ends such a thread
        self._idle = 0  # the number of idle threads without a job in `_handed`
        self._members: set[int] = set()
        self._keep = keep

    def submit(self, job: Job) -> None:
        """Runs `job` in a worker as soon as a place is free. `RuntimeError`: no thread can be started for it."""
        with self._lock:
            self._queue.append(partial(copy_context().run, job))
            try:
                self._fill_places()
            except RuntimeError:
                self._queue.pop()
                raise

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Gives up this worker's place inside its ``with`` block, in which a job waits for other jobs.

        Outside of this pool's workers it does nothing.
        """
        if threading.get_ident() not in self._members:
            yield
            return
        try:
            self._free_place()
            yield
        finally:
            with self._lock:
                self._returning += 1
                self._place_free.wait_for(lambda: self._free > 0)
                self._returning -= 1
                self._free -= 1

    def give_up_on(self, worker: int) -> None:
        """Counts the thread `worker` as lost, since its job does not end. Another thread gets its place."""
        if worker in self._members:
            self._members.discard(worker)
            self._free_place()

    def close(self) -> None:
        """Ends idle threads now, and the others when their jobs end. A job submitted later still runs."""
        with self._lock:
            self._keep = False
            for _ in range(self._idle):
                self._handed.put(None)
            self._idle = 0

    def _free_place(self) -> None:
        with self._lock:
            self._free += 1
            self._place_free.notify()
            self._fill_places()

    def _fill_places(self) -> None:
        """Gives free places to queued jobs, which idle threads or new ones run. The caller holds the lock."""
        while self._queue and self._free > self._returning:
            self._free -= 1  # first, since Ctrl-C may be raised when the thread has started
            job = self._queue.popleft()
            if self._idle:
                self._idle -= 1
                self._handed.put(job)
            else:
                try:
                    # daemonic: a skill that never ends must not keep the process from ending
                    threading.Thread(target=self._work, args=([job],), name="kernai-worker", daemon=True).start()
                except RuntimeError:
                    self._free += 1
                    self._queue.appendleft(job)
                    raise

    def _work(self, jobs: list[Job]) -> None:
        me = threading.get_ident()
        self._members.add(me)
        try:
            following: Job | None = jobs.pop()  # out of a list, since a thread keeps its arguments
            while following is not None:
                following()
                del following  # an idle thread must not keep the run of its last job alive
                following = self._next_job(me)
        finally:
            self._members.discard(me)

    def _next_job(self, me: int) -> Job | None:
        """This worker's next job; None ends the thread."""
        with self._lock:
            if me not in self._members:
                return None  # it was given up on, and another thread has its place
            # this place goes to a queued job only if there are enough free places for all jobs that return
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
    pool: WorkerPool, call: Callable[[], T], *, hold: float = 0.0, to_the_end: bool = False,
    not_begun: type[BaseException] | None = None,
) -> T:
    """Makes a call in a worker of `pool`. Returns or raises what `call` returns or raises.

    If this is cancelled, the call is left to end on its own. If it has no worker yet, it is not started, and the error
    `not_begun` is raised, if given. With `to_the_end`, waits for the call even when cancelled, and then raises the
    cancellation. (A separate task would not help: an event loop that ends cancels its tasks.)

    The event loop's own executor is not used: it is small, shared, and keeps a program from ending. For up to `hold`
    seconds, the event loop only waits for the call, since a short call ends sooner than another thread can wake the
    loop. If no thread can be started, raises `RuntimeError`.
    """
    import asyncio

    claim = threading.Lock()  # held by the worker that makes the call, or by this task once it no longer wants it
    ended = threading.Lock()  # held until the call has ended
    ended.acquire()
    # a future's own outcome is not used: it does not accept every exception, and takes some for its own cancellation
    value: Any = None
    failure: BaseException | None = None
    cancelled: BaseException | None = None
    woken: asyncio.Future[None] | None = None

    def perform() -> None:
        nonlocal value, failure
        if not claim.acquire(blocking=False):
            return
        try:
            value = call()
        except BaseException as error:  # noqa: BLE001 - raised again
            failure = as_failure(error)
        ended.release()
        # wakes a task that waits by now; a task that is about to wait will check `ended` once more
        if (waiting := woken) is not None:
            with suppress(RuntimeError):  # the event loop is closed: the call has outlived its run
                waiting.get_loop().call_soon_threadsafe(_wake, waiting)

    pool.submit(perform)
    if not (hold and ended.acquire(timeout=hold)):
        woken = asyncio.get_running_loop().create_future()
        while not ended.acquire(blocking=False):
            try:
                await woken
            except BaseException as error:
                if not (to_the_end and isinstance(error, asyncio.CancelledError)):
                    if claim.acquire(blocking=False) and not_begun is not None:
                        raise not_begun from None
                    raise
                cancelled, woken = error, asyncio.get_running_loop().create_future()
    if (raised := cancelled if failure is None else failure) is None:
        return value  # type: ignore[no-any-return]  # the call's own
    try:
        raise raised
    finally:  # their tracebacks refer to this frame; without the cycle, a run is freed at once
        del failure, cancelled, raised


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


async def outcome_of(awaitable: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """Returns the result and the exception, one of them None. If raised, SystemExit would end the whole event loop."""
    import asyncio

    try:
        return await awaitable, None
    except asyncio.CancelledError as error:
        this = asyncio.current_task()
        if this is not None and this.cancelling():
            raise
        # this task was not cancelled, but something that it awaited
        return None, error if error.args else asyncio.CancelledError("it awaited something that was cancelled")
    except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
        return None, error
