"""`Workers`: lets any machine work on runs, with Procrastinate jobs in the store's own database.

- A job only says "continue run X"; the recording says what there is to do. So an extra job does no harm, since only one
  worker can hold the run's lease. A run and its job, or a decision and its job, are written in one transaction.
- A thread in each worker, the reaper, also goes by the recording. If a worker has died, it ends the old job and submits
  another in one transaction. It also wakes runs whose `Pause(until=...)` has passed. Only one reaper works at a time.
- A run that no worker can continue is blocked, with the reason, until a person decides. Nothing is guessed.
- Runs block, so each has a daemon thread: a call that outlasts the grace time does not keep the process alive.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from itertools import islice
from math import inf
from typing import Any

import procrastinate
import psycopg
from procrastinate.exceptions import ConnectorException
from psycopg import sql

from kernai import Agent, KernaiError, MediaStore, Message, Result, RunBusyError, RunConflictError, StopReason, resume
from kernai._util.api import check_count, check_function, check_seconds, check_texts, check_type
from kernai._util.worker_pool import WorkerPool, in_worker
from kernai.durable.lease import end_run
from kernai.durable.recorded_run import RecordedRun
from kernai.durable.run_head import WRONG_TIMEOUT, Head
from kernai.durable.store import ABANDONED, BLOCKED, QUEUED, RUNNING, UNFINISHED, WAITING, Entry, RunInfo, check_load
from kernai.errors import InFlightError, ReplayDivergenceError, described, error_text, no_run
from kernai.events import Event, ResultRow, RunResumedRow
from kernai.postgres.server import LATE, RECONNECT
from kernai.postgres.store import IS_DUE, SELECTED, TASK, WATCHED, PostgresStore, head_of
from kernai.recording.recorder import expand
from kernai.runs.resume_request import recorded_result
from kernai.runs.run_request import LEASE, ResumeOptions, RunRequest, UserInput

_LOG = logging.getLogger("kernai.workers")
#: seconds between two rounds of the reaper, and between two checks for changes without a notification, such as a job
#: whose lock has become free
ROUND, POLL = 2.0, 1.0
#: how often a run may be continued after its worker has ended, without going on: it may be what ends them
MOST_DEATHS = 10

_SET_QUEUE = "UPDATE runs SET queue = %s, lock = %s WHERE tenant = %s AND run_id = %s"
_LOCK = "SELECT pg_try_advisory_xact_lock(hashtext(%s))"
#: jobs whose worker may be dead, and jobs that failed or were aborted, each with the run's row if it exists
_JOBS = f"""
SELECT job.args->>'tenant', job.args->>'run_id', job.id, job.status::text,
    coalesce(worker.last_heartbeat < now() - make_interval(secs => %s), true),
    coalesce((SELECT extract(epoch FROM max(at))::float8 FROM procrastinate_events
        WHERE job_id = job.id AND type = 'started'), 0), {SELECTED}
FROM procrastinate_jobs AS job LEFT JOIN procrastinate_workers AS worker ON worker.id = job.worker_id
LEFT JOIN runs ON tenant = job.args->>'tenant' AND run_id = job.args->>'run_id' AND runs.status <> ''
WHERE job.queue_name = %s AND job.task_name = '{TASK}' AND job.status IN ('doing', 'failed', 'aborted')"""
#: runs that may lack a job: somebody worked on them outside of `Workers`, or their wait has ended
_FORGOTTEN = f"""
SELECT tenant, run_id, {SELECTED} FROM runs
WHERE queue = %s AND (status = 'running' OR (status = 'waiting' AND ({IS_DUE} OR decisions <> '{{}}')))
    AND NOT EXISTS (SELECT FROM procrastinate_jobs
        WHERE queueing_lock = tenant || '/' || run_id AND procrastinate_jobs.status = 'todo')
    AND NOT EXISTS (SELECT FROM procrastinate_jobs
        WHERE queueing_lock = tenant || '/' || run_id AND procrastinate_jobs.status = 'doing')"""


class Workers:
    """Submits runs to a `PostgresStore`, and works on them. `agents` are the agents that runs may use, by name.

    `concurrency` is how many runs this process works on at once. It submits runs to its `queue`, and only takes them
    from there. `options` is called with a run's `RunInfo` and returns the options for its `resume`, such as the context
    and limits. If a run's agent has lost protections since the run was recorded, the run is blocked, and the reason
    lists their keys; those in `accept` are allowed. `lease` is how many seconds a run stays with a worker that no
    longer renews its lease; `grace` is how many seconds `run` waits for calls in progress when it is stopped.
    """

    def __init__(
        self, store: PostgresStore, agents: Mapping[str, Agent[Any]], *, concurrency: int = 50, queue: str = "kernai",
        options: Callable[[RunInfo], ResumeOptions] | None = None, accept: Iterable[str] = (), lease: float = LEASE,
        grace: float = 30.0,
    ) -> None:
        tenant = check_type(store, PostgresStore, "store must be a PostgresStore").tenant_name
        if tenant:  # its runs would be submitted to no tenant
            raise ValueError(f"store is the view of {tenant!r}: pass the store itself, and submit(tenant={tenant!r})")
        for one in check_type(agents, Mapping, "agents must be a mapping of names to agents").values():
            check_type(one, Agent, "agents must be a mapping of names to agents", " in it")
        check_count("concurrency", concurrency)
        if not isinstance(queue, str) or not queue:  # from it, a worker would never get a run
            raise ValueError(f"queue must be a name, got {queue!r}")
        if options is not None:
            check_function("options", options, "the run's RunInfo", None)
        self.agents = {name: agent.replace(name=name) for name, agent in agents.items()}
        self._store, self._concurrency, self._queue = store, concurrency, queue
        self._options = (lambda _: {}) if options is None else options
        self._lease, self._grace = check_seconds("lease", lease), check_seconds("grace", grace)
        self._accept, self._stopping = check_texts("accept", accept, "keys"), threading.Event()
        #: the same view for all runs of a tenant, so that one query looks for requests to cancel any of them
        self._view = lru_cache(partial(store.for_worker, stopping=self._stopping))
        self._break_off: Callable[[], object] = lambda: None
        self._threads = WorkerPool(concurrency)

    # ---------------------------------------------------------------------------------------------------- for callers

    def submit(
        self, agent: str, input: UserInput, *, run_id: str | None = None, tags: Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None, history: Iterable[Message | Mapping[str, Any]] = (),
        lock: str | None = None, tenant: str = "",
    ) -> RunHandle:
        """Stores a run and its job in one transaction, for a worker to begin.

        Raises `RunConflictError` if the run exists, `KernaiError` for an unknown agent. Runs with the same `lock`, such
        as ``"customer:7"``, are worked on one after the other. ``store.runs(tags=...)`` finds the run by its `tags`.
        """
        if agent not in self.agents:
            raise KernaiError(_unknown(agent, self.agents))
        check_type(lock, str | None, "lock must be a name")
        check_type(tags, Mapping | None, "tags must be a mapping of names to values")
        if tags:
            metadata = {**(metadata or {}), "tags": dict(tags)}
        store = self._view(tenant)
        request = RunRequest(self.agents[agent], input, {
            "run_id": run_id, "metadata": metadata, "history": history, "store": store,
        })
        run_id, (entry, media) = request.run_id, request.first_entry()
        info = replace(RunInfo(run_id).after([entry]), status=QUEUED)
        with store.transaction() as connection:
            store.append(run_id, 0, [entry], media, info=info)
            connection.execute(_SET_QUEUE, (self._queue, lock, tenant, run_id))
            store.enqueue(run_id)
        return RunHandle(store, run_id, self.agents)

    def handle(self, run_id: str, *, tenant: str = "") -> RunHandle:
        """Returns the handle of a run that was submitted earlier, by any process."""
        return RunHandle(self._view(tenant), run_id, self.agents)

    # ----------------------------------------------------------------------------------------------------- the worker

    def run(self, *, wait: bool = True) -> None:
        """Works on runs until `stop`, SIGTERM or Ctrl-C; without `wait`, until no job can begin: a lock may keep some.

        When it is stopped, its runs begin no further calls. Once the calls in progress have ended and are recorded,
        other workers continue the runs. If Procrastinate's worker fails, for example because the database was
        unavailable, it is started again. After `stop`, another `run` returns at once.
        """
        done = threading.Event()
        reaper = threading.Thread(target=self._reap_until, args=(done,), name="kernai-reaper", daemon=True)
        reaper.start()
        is_main = threading.current_thread() is threading.main_thread()
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT) if is_main}
        try:
            asyncio.run(self._work(before, wait=wait))
        finally:
            done.set()
            for number, handler in before.items():  # asyncio leaves the defaults behind
                signal.signal(number, handler or signal.SIG_DFL)
            reaper.join(LATE)  # unless the server has stopped answering

    def stop(self) -> None:
        """Makes `run` return. May be called from any thread."""
        self._stopping.set()
        with suppress(RuntimeError):  # the event loop of a `run` that has returned
            self._break_off()

    async def _work(self, signals: Iterable[signal.Signals], *, wait: bool) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_report)
        for number in signals:
            with suppress(NotImplementedError):  # on Windows
                loop.add_signal_handler(number, self.stop)
        while not self._stopping.is_set():
            working = asyncio.ensure_future(self._work_once(wait=wait))
            self._break_off = partial(loop.call_soon_threadsafe, _cancel_once, working, self._grace + LATE)
            if self._stopping.is_set():  # it was set just now
                working.cancel()
            try:
                await working
            except asyncio.CancelledError:
                if not self._stopping.is_set():
                    raise
            except (psycopg.Error, ConnectorException) as error:
                _LOG.warning("the worker has failed and starts again: %s", error_text(error.__cause__ or error))
                await asyncio.sleep(POLL)
            else:
                if not wait:
                    return

    async def _work_once(self, *, wait: bool) -> None:
        async def configure(opened: psycopg.AsyncConnection[Any]) -> None:
            await opened.execute(sql.SQL("SET search_path TO {}, public").format(sql.Identifier(self._store.schema)))
            await opened.commit()

        app = procrastinate.App(connector=procrastinate.PsycopgConnector(
            conninfo=self._store.conninfo, min_size=1, max_size=4, configure=configure, timeout=5.0,
            reconnect_timeout=RECONNECT,
        ))

        @app.task(name=TASK, queue=self._queue)
        async def work(tenant: str, run_id: str) -> None:
            await in_worker(self._threads, lambda: self._continue(tenant, run_id))

        try:
            await app.open_async()
            await app.run_worker_async(
                queues=[self._queue], concurrency=self._concurrency, wait=wait, install_signal_handlers=False,
                shutdown_graceful_timeout=self._grace, delete_jobs="successful", fetch_job_polling_interval=POLL,
                update_heartbeat_interval=self._lease / 3, stalled_worker_timeout=self._lease,
            )
        finally:  # even if opening was cancelled: a half-open pool would keep the event loop from ending
            await app.close_async()

    def _continue(self, tenant: str, run_id: str) -> None:
        """Works on a run until it ends or waits."""
        store, length = self._view(tenant), 0
        while (info := store.info(run_id)) is not None and info.status in UNFINISHED:
            # continue here: the job for a decision made in the meantime may have been used up already
            if length and (info.length == length or not (info.decisions or info.due)):
                return
            length = info.length
            if self._stopping.is_set():  # the job was fetched just before
                store.enqueue(run_id)
                return
            agent = self.agents.get(info.agent or "")
            if agent is None:
                _block(store, run_id, _unknown(info.agent, self.agents))
                return
            if info.status == ABANDONED:
                last = store.load(run_id, max(info.length - 2 * MOST_DEATHS, 0))
                if sum(one["event"] == RunResumedRow.type for one in last) >= MOST_DEATHS:
                    why = f"{MOST_DEATHS} workers ended at this point, perhaps because of the run: find out why, then"
                    _block(store, run_id, f"{why} store.enqueue({run_id!r}) continues it")
                    return
            try:
                options: ResumeOptions = check_type(self._options(info), Mapping, "options must return a dict")
                options = {"lease": self._lease, **options, "store": store}
                resume(agent, run_id, accept=self._accept, **options)
            except RunConflictError:
                if self._stopping.is_set():
                    store.enqueue(run_id)
                return  # otherwise another worker has the run
            except InFlightError as error:
                calls = ", ".join(f"{call.call_id} ({call.skill})" for call in error.calls)
                why = f"its worker ended during {calls}, which may have taken effect: approve to call again, or refuse"
                _block(store, run_id, why, error)
                return
            except Exception as error:
                if isinstance(error.__cause__, psycopg.Error):  # this may be transient
                    raise  # the job fails, and the reaper submits another
                _block(store, run_id, described(error), error)
                return

    def _reap_until(self, done: threading.Event) -> None:
        while True:
            try:
                submit_again(self._store, self._queue, self._lease)
            except Exception as error:  # noqa: BLE001 - the next round tries again
                _LOG.warning("the reaper: %s", error_text(error))
            if done.wait(ROUND):
                return


def submit_again(store: PostgresStore, queue: str, silent: float) -> int:
    """Ends the old job and submits another for each unfinished run of this queue whose worker died or failed, or that
    is due. Returns the number of jobs submitted.

    A job's worker counts as dead if it has been silent for `silent` seconds and the run's lease has expired. Only one
    caller at a time does anything.
    """
    with store.transaction() as connection:
        if connection.execute(_LOCK, (f"kernai reaper {store.schema} {queue}",)).fetchone() == (False,):
            return 0
        found: set[tuple[str, str]] = set()
        for tenant, run_id, job, status, is_silent, began, *rest in connection.execute(_JOBS, (silent, queue)):
            head = _head(run_id, rest)
            if head is None:
                continue
            is_open = head.info.status in UNFINISHED
            is_lost = is_silent or (head.holder is not None and began <= head.since)
            # a worker that has just ended the run is about to end the job
            is_in_work = head.is_busy() or not is_lost if is_open else head.now < head.until
            if status == "doing" and is_in_work:
                continue
            connection.execute("DELETE FROM procrastinate_jobs WHERE id = %s", (job,))
            if is_open:
                found.add((tenant, run_id))
        for tenant, run_id, *rest in connection.execute(_FORGOTTEN, (queue,)):
            if (head := _head(run_id, rest)) is not None and not head.is_busy():
                found.add((tenant, run_id))
        for tenant, run_id in sorted(found):
            (store.tenant(tenant) if tenant else store).enqueue(run_id)
        return len(found)


def _head(run_id: str, row: Sequence[Any]) -> Head | None:
    """The head of a run, an ended one if it has no row; None if the row is unreadable: other runs must not wait."""
    try:
        return head_of(*row) if row[0] is not None else Head(RunInfo(run_id, status="deleted"))
    except Exception as error:  # noqa: BLE001 - whatever is in it
        _LOG.warning("the reaper: run %s cannot be read: %s", run_id, described(error))
        return None


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Logs a line instead of the traceback that Procrastinate leaves behind if it could not end a job."""
    if isinstance(error := context.get("exception"), ConnectorException):
        why, _, _ = error_text(error.__cause__ or error).partition("\n")  # behind it, the server says where it was
        _LOG.warning("could not end a job; another worker may have its run: %s", why)
    else:
        loop.default_exception_handler(context)


def _cancel_once(task: asyncio.Task[None], latest: float) -> None:
    """Cancels a task, and again only after `latest` seconds, if it waits for the server: a second cancellation keeps
    Procrastinate's worker from waiting for calls in progress.
    """
    if not task.cancelling():
        task.cancel()
        task.get_loop().call_later(latest, _insist, task)


def _insist(task: asyncio.Task[None]) -> None:
    """Cancels a task again and again: each time, only one wait for a server that does not answer ends."""
    if task.cancel():  # False once it has ended
        task.get_loop().call_later(LATE, _insist, task)


class RunHandle:
    """A submitted run, in any process that can reach the store."""

    def __init__(self, store: PostgresStore, run_id: str, agents: Mapping[str, Agent[Any]]) -> None:
        self.run_id, self._store, self._agents = run_id, store, agents

    def info(self) -> RunInfo:
        """The run's summary. Raises `KernaiError` if the run does not exist."""
        if info := self._store.info(self.run_id):
            return info
        raise no_run(self.run_id)

    def events(self, from_seq: int = 0) -> Iterator[Event]:
        """Yields the run's stored events, then new ones, until the run has ended. Pauses of the run do not end it.

        Raises `KernaiError` if the run does not exist, or is deleted.
        """
        check_load(self.run_id, from_seq)
        yield from map(Event.from_dict, islice(expand(self._entries(), f"run {self.run_id!r}"), from_seq, None))

    def _entries(self) -> Iterator[Entry]:
        seq = 0
        while (info := self.info()).status in UNFINISHED or seq < info.length:
            for entry in self._store.watch(self.run_id, seq, timeout=WATCHED / 3):
                seq += 1
                yield entry
                if seq >= info.length and entry["event"] == ResultRow.type:
                    break  # perhaps the run has ended

    def result(self, timeout: float | None = None) -> Result[Any]:
        """Waits until the run has ended or waits for a decision, and returns its `Result`.

        Raises `TimeoutError` after `timeout` seconds, and `KernaiError` if the run is blocked.
        """
        until = inf if timeout is None else time.monotonic() + check_type(timeout, int | float, WRONG_TIMEOUT)
        while _is_for_workers(info := self.info()):
            left = min(until - time.monotonic(), POLL)
            if not left > 0:  # also if it is NaN
                raise TimeoutError(f"run {self.run_id!r} has not ended after {timeout} s; it is {info.status}")
            next(self._store.watch(self.run_id, info.length, timeout=left), None)
        if info.status == BLOCKED:
            raise KernaiError(f"run {self.run_id!r} is blocked: {info.why}")
        agent = self._agents.get(info.agent or "")
        if agent is None:
            raise KernaiError(_unknown(info.agent, self._agents))
        if info.status in (StopReason.FINAL, StopReason.CLOSED):
            # rebuilt from the recording; of the agent, only the type of its output counts
            return resume(agent, self.run_id, store=self._store)
        try:
            ended = recorded_result(agent, self.run_id, self._store)
        except ReplayDivergenceError:  # the agent has changed since
            ended = RecordedRun(self.run_id, self._store.load(self.run_id)).final_result(MediaStore())
        return self.result(max(until - time.monotonic(), 0)) if ended is None else ended  # it was continued just now

    def cancel(self, reason: str = "") -> None:
        """Ends the run: as ``cancelled`` if a worker has it, which may take seconds, else at once as ``closed``."""
        end_run(self._store, self.run_id, reason)


def _unknown(agent: str | None, known: Iterable[str]) -> str:
    return f"this worker has no agent {agent!r}; it has {', '.join(map(repr, known)) or 'none'}"


def _is_for_workers(info: RunInfo) -> bool:
    """Whether a worker has the run, or will claim it."""
    if info.status == WAITING:
        return bool(info.decisions or info.due)
    if info.status == BLOCKED:
        return any(one.metadata.get("in_flight") and one.call_id in info.decisions for one in info.pending)
    return info.status in (QUEUED, RUNNING, ABANDONED)


def _block(store: PostgresStore, run_id: str, why: str, error: Exception | None = None) -> None:
    info, how = store.info(run_id), "has ended"
    with suppress(RunBusyError):
        if info is not None and info.status in UNFINISHED:
            store.block(run_id, why, error.calls if isinstance(error, InFlightError) else ())
            how = "is blocked"
        # a KernaiError says enough without a traceback
        _LOG.warning("run %s %s: %s", run_id, how, why, exc_info=None if isinstance(error, KernaiError) else error)
