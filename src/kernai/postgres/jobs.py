"""Jobs of Procrastinate for runs that `Workers` continue, written in the transactions that change the runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from psycopg import errors

from kernai.durable.store import QUEUED, Entry, RunInfo
from kernai.postgres.rows import IS_DUE, SELECTED, head_of

if TYPE_CHECKING:
    from psycopg import Connection

    from kernai.postgres.store import PostgresStore
    from kernai.values.media import Media

#: Procrastinate's name for the only task there is
TASK = "kernai"
_RUN = "WHERE tenant = %s AND run_id = %s"
_DEFER = f"""
SELECT procrastinate_defer_jobs_v1(ARRAY[ROW(%s, '{TASK}', 0, %s, %s, %s, NULL)::procrastinate_job_to_defer_v1])"""
_LOCK = "SELECT pg_try_advisory_xact_lock(hashtext(%s))"
#: jobs whose worker may be dead, and those that failed or were broken off, with the run's row where it has not ended
_JOBS = f"""
SELECT job.args->>'tenant', job.args->>'run_id', job.id, job.status::text,
    coalesce(worker.last_heartbeat < now() - make_interval(secs => %s), true),
    coalesce((SELECT extract(epoch FROM max(at))::float8 FROM procrastinate_events
        WHERE job_id = job.id AND type = 'started'), 0), {SELECTED}
FROM procrastinate_jobs AS job LEFT JOIN procrastinate_workers AS worker ON worker.id = job.worker_id
LEFT JOIN runs ON tenant = job.args->>'tenant' AND run_id = job.args->>'run_id'
    AND runs.status IN ('queued', 'running', 'waiting', 'blocked')
WHERE job.queue_name = %s AND job.task_name = '{TASK}' AND job.status IN ('doing', 'failed', 'aborted')"""
#: runs that may be without a job: somebody worked on them outside of `Workers`, or they have waited long enough
_FORGOTTEN = f"""
SELECT tenant, run_id, {SELECTED} FROM runs
WHERE queue = %s AND (status = 'running' OR (status = 'waiting' AND {IS_DUE}))
    AND NOT EXISTS (SELECT FROM procrastinate_jobs
        WHERE queueing_lock = tenant || '/' || run_id AND procrastinate_jobs.status = 'todo')
    AND NOT EXISTS (SELECT FROM procrastinate_jobs
        WHERE queueing_lock = tenant || '/' || run_id AND procrastinate_jobs.status = 'doing')"""


def submit(
    store: PostgresStore, run_id: str, entry: Entry, media: Sequence[Media], *, queue: str, lock: str | None = None
) -> None:
    """Stores a run that has not begun, and its job, in one transaction. See `Workers.submit`."""
    info = replace(RunInfo(run_id).after([entry]), status=QUEUED)
    with store.transaction() as connection:
        store.append(run_id, 0, [entry], media, info=info)
        connection.execute(f"UPDATE runs SET queue = %s, lock = %s {_RUN}", (queue, lock, store.tenant_name, run_id))
        enqueue(connection, store.tenant_name, run_id)


def enqueue(connection: Connection[Any], tenant: str, run_id: str) -> bool:
    """Submits a job for a run that `Workers` continue, unless one is waiting already. Whether there is one."""
    row = connection.execute(f"SELECT queue, lock FROM runs {_RUN}", (tenant, run_id)).fetchone()
    if row is None or row[0] is None:
        return False
    job = (*row, f"{tenant}/{run_id}", json.dumps({"tenant": tenant, "run_id": run_id}))
    with suppress(errors.UniqueViolation), connection.transaction():
        connection.execute(_DEFER, job)
    return True


def submit_again(store: PostgresStore, queue: str, silent: float) -> int:
    """For runs of this queue that have not ended, whose worker died or failed, or whose time to wake has come: ends
    the old job, and submits another. Gives how many.

    A job's worker is dead if it was silent for so many seconds, and the run's lease is over. Only one caller at a time
    does something.
    """
    with store.transaction() as connection:
        if connection.execute(_LOCK, (f"kernai reaper {store.schema} {queue}",)).fetchone() == (False,):
            return 0
        found: set[tuple[str, str]] = set()
        for tenant, run_id, job, status, is_silent, began, *rest in connection.execute(_JOBS, (silent, queue)):
            head = head_of(*rest) if rest[0] is not None else None
            if status == "doing" and head is not None and (
                head.is_busy() or not (is_silent or (head.holder is not None and began <= head.since))
            ):
                continue
            connection.execute("DELETE FROM procrastinate_jobs WHERE id = %s", (job,))
            if head is not None:
                found.add((tenant, run_id))
        for tenant, run_id, *rest in connection.execute(_FORGOTTEN, (queue,)):
            if not head_of(*rest).is_busy():
                found.add((tenant, run_id))
        for tenant, run_id in sorted(found):
            enqueue(connection, tenant, run_id)
        return len(found)
