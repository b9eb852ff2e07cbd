"""`PostgresStore`: runs in PostgreSQL, for many machines at once.

- Most appends are one statement, which is one transaction: the update of the run's row, under the conditions that its
  count of entries and its lease are what the worker takes them for, feeds the insert of the entries. Where no row fits,
  or there is more to do (media, a decision that is used up), the same is done step by step under the row's lock, and
  that says why an append is refused.
- While the server is away, everything is tried again, appends for as long as the lease may hold. An append that was
  committed although its answer was lost is recognised by its writer.
- Leases are renewed over a connection of their own: the pool may be used up.
- A forked child must not speak over its parent's connections: it closes its copies, and opens others.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import ConnectionPool, PoolTimeout

from kernai.durable.lease import Lease
from kernai.durable.run_head import Claim, Head, OpenedStore
from kernai.durable.store import (
    ABANDONED,
    QUEUED,
    RUNNING,
    Codec,
    Entry,
    RunFilter,
    RunInfo,
    check_append,
    check_run_id,
    kept,
)
from kernai.errors import KernaiError, RunConflictError, error_text
from kernai.interrupts import INTERRUPTS
from kernai.jsonio.json_data import dumps_data
from kernai.postgres.schema import OLDEST_SERVER, check_schema, migrate
from kernai.values.media import Media

if TYPE_CHECKING:
    from typing import Self

T = TypeVar("T")
Connection = psycopg.Connection[Any]

#: for how many seconds what fails because the server is away is tried again, and how long to wait in between
PATIENCE = 10.0
AGAIN = 0.05
#: after how many seconds a pool begins a new series of attempts to connect: within one it waits longer each time
RECONNECT = 2.0
#: after how many milliseconds the server ends the transaction of a client that was stopped in it, with its locks
IDLE = 15_000
#: how long somebody who watches is notified, and how often they look besides, in seconds
WATCHED, LOOKS = 60.0, 2.0

_NOW = "extract(epoch FROM clock_timestamp())::float8"
_IS_DUE = """due <= to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')"""
_HEAD = ("entries", "token", "holder", "seconds", "since", "until", "number", "writer", "cancel")
_LISTED = ("status", "updated_at", "agent", "parent", "due", "tags", "waiting", "info")
_SELECT = f"SELECT info, decisions, {', '.join(_HEAD)}, {_NOW} FROM runs"
_ONE = f"{_SELECT} WHERE tenant = %s AND run_id = %s"
_COLUMNS = ("tenant", "run_id", "decisions", *_HEAD, *_LISTED)
_INSERT = f"INSERT INTO runs ({', '.join(_COLUMNS)}) VALUES ({', '.join(f'%({one})s' for one in _COLUMNS)})"
_UPDATE = f"""
UPDATE runs SET {', '.join(f'{one} = %({one})s' for one in _COLUMNS[2:])}
WHERE tenant = %(tenant)s AND run_id = %(run_id)s"""
_ENTRIES = """
INSERT INTO entries SELECT %(tenant)s, %(run_id)s, %(first)s + place - 1, entry
FROM unnest(%(texts)b::text[]) WITH ORDINALITY AS one(entry, place)"""
_NOTIFY = "SELECT pg_notify(%(channel)s, %(note)s) FROM runs WHERE tenant = %(tenant)s AND run_id = %(run_id)s"
_APPEND = f"""
WITH head AS (
    UPDATE runs SET {', '.join(f'{one} = %({one})s' for one in _LISTED)}, entries = %(ends)s, writer = %(writer)s,
        until = {_NOW} + seconds, holder = CASE WHEN NOT %(release)s THEN holder END,
        cancel = CASE WHEN NOT %(release)s THEN cancel END
    WHERE tenant = %(tenant)s AND run_id = %(run_id)s AND entries = %(first)s AND token = %(token)s
        AND holder IS NOT NULL AND decisions = '{{}}'
    RETURNING cancel, watched > {_NOW} AS watched),
written AS ({_ENTRIES}, head)
SELECT cancel, CASE WHEN watched THEN pg_notify(%(channel)s, %(note)s) END FROM head"""
_MEDIA = """
SELECT about, payload FROM media LEFT JOIN payloads USING (digest)
WHERE tenant = %s AND run_id = %s AND (%s::text[] IS NULL OR id = ANY(%s::text[])) ORDER BY place"""
_KEEP_MEDIA = """
INSERT INTO media (tenant, run_id, id, about, digest) VALUES (%s, %s, %s, %s, %s) ON CONFLICT (tenant, run_id, id)
DO UPDATE SET about = excluded.about, digest = excluded.digest
WHERE media.digest IS NULL AND excluded.digest IS NOT NULL"""  # as `first_read`
_FORGET = (
    "UPDATE runs SET queue = NULL, lock = NULL WHERE tenant = %s AND run_id = %s",
    "DELETE FROM entries WHERE tenant = %s AND run_id = %s",
    """WITH gone AS (DELETE FROM media WHERE tenant = %s AND run_id = %s RETURNING digest)
    SELECT array_agg(digest) FROM gone WHERE digest IS NOT NULL""",
    """DELETE FROM payloads WHERE digest = ANY(%s::text[])
    AND NOT EXISTS (SELECT FROM media WHERE media.digest = payloads.digest)""",
)


class PostgresStore(OpenedStore):
    """Keeps runs in the PostgreSQL database at `conninfo`, in tables in `schema`. PostgreSQL 14 or later.

    The tables are made and brought up to date by `kernai store migrate`, or with `create`. `pool_size` is how many
    connections it uses at most, besides one that renews leases and one for those that `watch`. `codec` encrypts
    entries and media. One store serves all threads; it survives a fork. Close it, or use it as a context manager.

    `KernaiError` for a server that cannot be reached, and for tables that are missing or of another version.
    """

    def __init__(
        self, conninfo: str, *, schema: str = "kernai", create: bool = False, pool_size: int = 10,
        codec: Codec | None = None,
    ) -> None:
        if pool_size < 1:
            raise ValueError(f"pool_size must be at least 1, got {pool_size!r}")
        try:
            known = conninfo_to_dict(conninfo)
        except psycopg.ProgrammingError as error:
            raise ValueError(f"no address of a database: {error}") from None
        self.schema, self.conninfo = schema, conninfo
        #: set when this process is to leave its runs to other workers
        self.stopping: threading.Event | None = None
        self.name = f"{known.get('host') or ''}/{known.get('dbname') or ''} ({schema})"
        self.pool_size = pool_size
        self._codec = codec
        self._server = _Server(make_conninfo(conninfo, connect_timeout=5), schema, pool_size)
        with self._reporting("open the store"), self._server.connect() as connection:
            if connection.info.server_version < OLDEST_SERVER:
                raise KernaiError(f"{self.name} is too old: kernai needs PostgreSQL 14 or later")
            if create:
                migrate(connection, schema)
            check_schema(connection, schema)

    def append(
        self, run_id: str, first_seq: int, entries: Sequence[Entry], media: Sequence[Media], *,
        info: RunInfo | None = None, lease: Lease | None = None, claim: Claim | None = None, release: bool = False,
        writer: str | None = None,
    ) -> Lease | None:
        """See `RunStore.append`."""
        check_append(run_id, entries)
        texts = [self._sealed(dumps_data(entry)) for entry in entries]
        brought = [(one.id, *self._sealed_media(kept(one))) for one in media]
        given = {
            "tenant": self._tenant, "run_id": run_id, "first": first_seq, "texts": texts,
            "channel": self._server.channel, "note": f"{self._tenant}/{run_id}",
        }

        def at_once(connection: Connection) -> Lease | None:
            if lease is not None and info is not None and not brought:
                terms = {"ends": first_seq + len(texts), "writer": writer, "token": lease.token, "release": release}
                row = connection.execute(_APPEND, {**given, **terms, **_listed(info)}).fetchone()
                if row is not None:
                    return lease if row[0] is None else replace(lease, cancel=row[0])
            with connection.transaction():
                return step_by_step(connection)

        def step_by_step(connection: Connection) -> Lease | None:
            head, is_new = self._head(connection, run_id)
            if head.append(
                first_seq, entries, info=info, lease=lease, claim=claim, release=release, writer=writer
            ):
                self._keep(connection, head, is_new=is_new)
                connection.execute(_ENTRIES, given)
                self._keep_media(connection, run_id, brought)
                connection.execute(f"{_NOTIFY} AND watched > {_NOW}", given)
            return head.lease_after(lease, claim)

        patience = PATIENCE if lease is None else lease.seconds
        ends = first_seq + len(texts) - 1
        return self._perform(f"append entries {first_seq} to {ends} of run {run_id!r}", at_once, patience)

    def load(self, run_id: str, from_seq: int = 0) -> list[Entry]:
        """See `RunStore.load`."""
        check_run_id(run_id)
        query = "SELECT entry FROM entries WHERE tenant = %s AND run_id = %s AND seq >= %s ORDER BY seq"
        given = (self._tenant, run_id, from_seq)
        texts = self._perform(f"load run {run_id!r}", lambda connection: connection.execute(query, given).fetchall())
        return [self._opened(text) for text, in texts]

    def load_media(self, run_id: str, ids: Iterable[str] | None = None) -> list[Media]:
        """See `RunStore.load_media`."""
        check_run_id(run_id)
        wanted = None if ids is None else list(ids)
        given = (self._tenant, run_id, wanted, wanted)
        doing = f"load the media of run {run_id!r}"
        rows = self._perform(doing, lambda connection: connection.execute(_MEDIA, given).fetchall())
        return [self._opened_media(about, payload) for about, payload in rows]

    def renew(self, lease: Lease) -> Lease:
        """See `RunStore.renew`."""
        with self._server.aside():
            return super().renew(lease)

    def cancel_requests(self, run_ids: Iterable[str]) -> dict[str, str]:
        """See `RunStore.cancel_requests`."""
        query = "SELECT run_id, cancel FROM runs WHERE tenant = %s AND run_id = ANY(%s) AND cancel IS NOT NULL"
        given = (self._tenant, list(run_ids))
        with self._server.aside():
            return dict(self._perform("look", lambda connection: connection.execute(query, given).fetchall()))

    def decide(self, run_id: str, call_id: str, decision: object) -> None:
        """See `RunStore.decide`. A run that was submitted to workers is continued at once."""
        with self.transaction():
            super().decide(run_id, call_id, decision)
            self.enqueue(run_id)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Everything that this thread does with the store in the ``with`` block is one transaction."""
        with self._reporting("begin or end a transaction"), self._server.transaction() as connection:
            yield connection

    def for_worker(self, tenant: str, stopping: threading.Event) -> Self:
        """The view of a tenant, or of none, whose runs are left to other workers once `stopping` is set."""
        view = self.tenant(tenant) if tenant else object.__new__(type(self))
        vars(view).update({**vars(self), "_tenant": tenant, "stopping": stopping})
        return view

    def submit(
        self, run_id: str, entry: Entry, media: Sequence[Media], *, queue: str, lock: str | None = None
    ) -> None:
        """Stores a run that has not begun, and its job, in one transaction. See `Workers.submit`."""
        info = replace(RunInfo(run_id).after([entry]), status=QUEUED)
        with self.transaction() as connection:
            self.append(run_id, 0, [entry], media, info=info)
            connection.execute(
                "UPDATE runs SET queue = %s, lock = %s WHERE tenant = %s AND run_id = %s",
                (queue, lock, self._tenant, run_id),
            )
            self.enqueue(run_id)

    def submit_again(self, queue: str, silent: float) -> int:
        """For runs of this queue that have not ended, whose worker died or failed, or whose time to wake has come:
        ends the old job, and submits another. Gives how many.

        A job's worker is dead if it was silent for so many seconds, and the run's lease is over. Only one caller at a
        time does something.
        """
        with self.transaction() as connection:
            if connection.execute(_LOCK, (f"kernai reaper {self.schema} {queue}",)).fetchone() == (False,):
                return 0
            found: set[tuple[str, str]] = set()
            for tenant, run_id, job, status, is_silent, began, *rest in connection.execute(_JOBS, (silent, queue)):
                head = _head_of(*rest) if rest[0] is not None else None
                if status == "doing" and head is not None and (
                    head.is_busy() or not (is_silent or (head.holder is not None and began <= head.since))
                ):
                    continue
                connection.execute("DELETE FROM procrastinate_jobs WHERE id = %s", (job,))
                if head is not None:
                    found.add((tenant, run_id))
            for tenant, run_id, *rest in connection.execute(_FORGOTTEN, (queue,)):
                if not _head_of(*rest).is_busy():
                    found.add((tenant, run_id))
            for tenant, run_id in sorted(found):
                self.for_worker(tenant, threading.Event()).enqueue(run_id)
            return len(found)

    def enqueue(self, run_id: str) -> bool:
        """Submits a job for a run that `Workers` continue, unless one is waiting already. Whether there is one.

        Use it for a run that is blocked, once what blocked it is fixed.
        """
        def work(connection: Connection) -> bool:
            row = connection.execute(
                "SELECT queue, lock FROM runs WHERE tenant = %s AND run_id = %s", (self._tenant, run_id)
            ).fetchone()
            if row is None or row[0] is None:
                return False
            args = json.dumps({"tenant": self._tenant, "run_id": run_id})
            job = (row[0], row[1], f"{self._tenant}/{run_id}", args)
            with suppress(errors.UniqueViolation), connection.transaction():
                connection.execute(_DEFER, job)
            return True

        return self._perform(f"submit a job for run {run_id!r}", work)

    def _disconnect(self) -> None:
        self._server.close()

    def __repr__(self) -> str:
        return f"PostgresStore({self.name!r})"

    # ------------------------------------------------------------------------------------------------------- heads

    def _change(self, run_id: str, change: Callable[[Head], T], *, writes: bool = True) -> T:
        def work(connection: Connection) -> T:
            if not writes:
                return change(self._head(connection, run_id, lock=False)[0])
            with connection.transaction():
                head, is_new = self._head(connection, run_id)
                made = change(head)
                if not is_new:
                    self._keep(connection, head)
                if not head.entries:
                    self._forget(connection, run_id)
                return made

        return self._perform(f"look up or change run {run_id!r}", work)

    def _head(self, connection: Connection, run_id: str, *, lock: bool = True) -> tuple[Head, bool]:
        """The run's head, and whether it has no row yet."""
        query = f"{_ONE} FOR UPDATE" if lock else _ONE
        row = connection.execute(query, (self._tenant, run_id)).fetchone()
        if row is not None:
            return _head_of(*row), False
        (now,) = connection.execute(f"SELECT {_NOW}").fetchone() or (0.0,)
        return Head(RunInfo(run_id), now=now), True

    def _keep(self, connection: Connection, head: Head, *, is_new: bool = False) -> None:
        row = {name: getattr(head, name) for name in _HEAD}
        row |= {"tenant": self._tenant, "run_id": head.info.run_id, "decisions": json.dumps(head.decisions)}
        row |= _listed(head.info) if head.entries else {**_listed(head.info), "status": ""}
        connection.execute(_INSERT if is_new else _UPDATE, row)

    def _keep_media(
        self, connection: Connection, run_id: str, brought: Iterable[tuple[str, str, bytes | None]]
    ) -> None:
        for media_id, about, payload in brought:
            digest = None if payload is None else sha256(payload).hexdigest()
            if digest is not None:
                connection.execute("INSERT INTO payloads VALUES (%s, %s) ON CONFLICT DO NOTHING", (digest, payload))
            connection.execute(_KEEP_MEDIA, (self._tenant, run_id, media_id, about, digest))

    def _forget(self, connection: Connection, run_id: str) -> None:
        key = (self._tenant, run_id)
        connection.execute(_FORGET[0], key)
        connection.execute(_FORGET[1], key)
        connection.execute(_FORGET[3], connection.execute(_FORGET[2], key).fetchone())

    def _find(self, wanted: RunFilter, limit: int, after: RunInfo | None) -> list[RunInfo]:
        where = ["tenant = %(tenant)s", "status <> ''"]
        given: dict[str, Any] = {"tenant": self._tenant, "status": wanted.status, "limit": limit}
        if wanted.status in (RUNNING, ABANDONED):  # which is shown depends on the lease
            where.append("holder IS NOT NULL OR status = 'running'")
        elif wanted.status is not None:
            where.append("status = %(status)s")
        for name in ("agent", "parent"):
            if (value := getattr(wanted, name)) is not None:
                where.append(f"{name} = %({name})s")
                given[name] = json.dumps(value)
        if wanted.tags:
            where.append("tags @> %(tags)s AND tags <> '{}'")  # as the index has it
            given["tags"] = _tags(wanted.tags.items())
        if wanted.waiting is not None:
            where.append("%(waiting)s = ANY(waiting)")
            given["waiting"] = json.dumps(wanted.waiting)
        if wanted.updated_before is not None:
            where.append("updated_at < %(before)s")
            given["before"] = wanted.updated_before
        if wanted.due:
            where.append(_IS_DUE)
        if after is not None:
            where.append("(updated_at < %(at)s OR (updated_at = %(at)s AND run_id > %(id)s)) AND updated_at <= %(at)s")
            given |= {"at": after.updated_at, "id": after.run_id}
        query = f"{_SELECT} WHERE ({') AND ('.join(where)}) ORDER BY updated_at DESC, run_id LIMIT %(limit)s"

        def work(connection: Connection) -> list[RunInfo]:
            rows = connection.execute(query, given).fetchall()
            heads = [_head_of(*row) for row in rows]
            found = [head.shown() for head in heads if wanted.matches(head.shown())]
            if len(found) == len(rows) or len(rows) < limit:
                return found
            return [*found, *self._find(wanted, limit - len(found), heads[-1].info)]  # some were running, or dead

        return self._perform("list the runs", work)

    @contextmanager
    def _news_of(self, run_id: str) -> Iterator[Callable[[int, float], object]]:
        query = f"UPDATE runs SET watched = {_NOW} + %s WHERE tenant = %s AND run_id = %s"
        given, marked = (WATCHED, self._tenant, run_id), -WATCHED
        with self._server.listening(f"{self._tenant}/{run_id}") as news:

            def wait(_: int, seconds: float) -> None:
                nonlocal marked
                if time.monotonic() - marked > WATCHED / 3:
                    marked = time.monotonic()
                    self._perform(f"watch run {run_id!r}", lambda connection: connection.execute(query, given))
                    return  # what came before that was not notified
                news.wait(min(seconds, LOOKS))
                news.clear()
                self._server.listen()

            yield wait

    # ------------------------------------------------------------------------------------------------------- the server

    def _perform(self, doing: str, work: Callable[[Connection], T], patience: float = PATIENCE) -> T:
        """What `work` gives. Where the server is away, or another worker was faster, it is done again."""
        until = time.monotonic() + patience
        while True:
            with self._reporting(doing):
                try:
                    with self._server.connection(max(until - time.monotonic(), AGAIN)) as connection:
                        return work(connection)
                except (psycopg.OperationalError, psycopg.InterfaceError, errors.UniqueViolation):
                    if self._server.is_in_transaction() or time.monotonic() >= until:
                        raise
            time.sleep(AGAIN)
            INTERRUPTS.look()

    @contextmanager
    def _reporting(self, doing: str) -> Iterator[None]:
        """Turns what the database says into a `KernaiError`."""
        try:
            yield
        except errors.UniqueViolation as error:
            why = "another worker has begun that run just now"
            raise RunConflictError(f"cannot {doing} in {self.name}: {why}") from error
        except PoolTimeout as error:
            why = self._server.why_none(self.pool_size)
            raise KernaiError(f"cannot {doing} in {self.name}: {why}") from error
        except psycopg.Error as error:
            hint = next((text for kind, text in _HINTS.items() if isinstance(error, kind)), "")
            raise KernaiError(f"cannot {doing} in {self.name}: {error_text(error).strip()}{hint}") from error


_HINTS: dict[type[psycopg.Error], str] = {
    errors.InsufficientPrivilege: " (GRANT USAGE on the schema, and SELECT, INSERT, UPDATE, DELETE on its tables)",
    errors.UndefinedTable: " (`kernai store migrate` makes the tables)",
    errors.DiskFull: " (free some space and resume the run; what was appended before is safe)",
    psycopg.OperationalError: " (is the server running, and is this its address?)",
}
#: Procrastinate's name for the only task there is
TASK = "kernai"
_DEFER = f"""
SELECT procrastinate_defer_jobs_v1(ARRAY[ROW(%s, '{TASK}', 0, %s, %s, %s, NULL)::procrastinate_job_to_defer_v1])"""
_LOCK = "SELECT pg_try_advisory_xact_lock(hashtext(%s))"
#: jobs whose worker may be dead, and those that failed or were broken off, with the run's row where it has not ended
_JOBS = f"""
SELECT job.args->>'tenant', job.args->>'run_id', job.id, job.status::text,
    coalesce(worker.last_heartbeat < now() - make_interval(secs => %s), true),
    coalesce((SELECT extract(epoch FROM max(at))::float8 FROM procrastinate_events
        WHERE job_id = job.id AND type = 'started'), 0),
    info, decisions, {', '.join(_HEAD)}, {_NOW}
FROM procrastinate_jobs AS job LEFT JOIN procrastinate_workers AS worker ON worker.id = job.worker_id
LEFT JOIN runs ON tenant = job.args->>'tenant' AND run_id = job.args->>'run_id'
    AND runs.status IN ('queued', 'running', 'waiting', 'blocked')
WHERE job.queue_name = %s AND job.task_name = '{TASK}' AND job.status IN ('doing', 'failed', 'aborted')"""
#: runs that may be without a job: somebody worked on them outside of `Workers`, or they have waited long enough
_FORGOTTEN = f"""
SELECT tenant, run_id, info, decisions, {', '.join(_HEAD)}, {_NOW} FROM runs
WHERE queue = %s AND (status = 'running' OR (
    status = 'waiting' AND {_IS_DUE}))
    AND NOT EXISTS (SELECT FROM procrastinate_jobs
        WHERE queueing_lock = tenant || '/' || run_id AND procrastinate_jobs.status = 'todo')
    AND NOT EXISTS (SELECT FROM procrastinate_jobs
        WHERE queueing_lock = tenant || '/' || run_id AND procrastinate_jobs.status = 'doing')"""


def _tags(tags: Iterable[tuple[str, str]]) -> list[str]:
    return [json.dumps([name, value]) for name, value in tags]


def _listed(info: RunInfo) -> dict[str, Any]:
    """The columns by which runs are found, and what is shown of them."""
    return {
        "status": info.status, "updated_at": info.updated_at, "agent": json.dumps(info.agent),
        "parent": json.dumps(info.parent), "due": info.due_at(), "tags": _tags(info.tags.items()),
        "waiting": [json.dumps(one.skill) for one in info.pending], "info": dumps_data(info.to_dict()),
    }


def _head_of(info: str, decisions: str, *rest: Any) -> Head:
    *values, now = rest
    head = Head(RunInfo.from_dict(json.loads(info)), now=now, decisions=json.loads(decisions))
    for name, value in zip(_HEAD, values, strict=True):
        setattr(head, name, value)
    return head


# ------------------------------------------------------------------------------------------------------- connections


class _Server:
    """The connections of a store and of its tenants' views."""

    def __init__(self, conninfo: str, schema: str, pool_size: int) -> None:
        self.channel = f"kernai_{schema}"
        self._conninfo, self._schema, self._pool_size = conninfo, schema, pool_size
        self._begin()
        _SERVERS.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._own = threading.local()  # the connection of this thread's transaction
        self._pool: ConnectionPool[Connection] | None = None
        self._aside: Connection | None = None
        self._aside_lock = threading.Lock()
        self._watchers: dict[str, list[threading.Event]] = {}
        self._listener: threading.Thread | None = None
        self._closed = False

    def connect(self) -> Connection:
        connection = psycopg.connect(self._conninfo, autocommit=True)
        self._configure(connection)
        return connection

    def _configure(self, connection: Connection) -> None:
        _CONNECTIONS.add(connection)
        settings = f"SET idle_in_transaction_session_timeout = {IDLE}; SET search_path TO {{}}, public"
        connection.execute(sql.SQL(settings).format(sql.Identifier(self._schema)))

    def is_in_transaction(self) -> bool:
        return getattr(self._own, "connection", None) is not None

    @contextmanager
    def connection(self, patience: float) -> Iterator[Connection]:
        """That of this thread's transaction, or one of the pool."""
        own = getattr(self._own, "connection", None)
        if own is not None:
            yield own
            return
        with self._lock:
            if self._closed:
                raise KernaiError("the store is closed")
            if self._pool is None:
                self._pool = ConnectionPool(
                    self._conninfo, min_size=1, max_size=self._pool_size, open=True, num_workers=1,
                    kwargs={"autocommit": True}, configure=self._configure, reconnect_timeout=RECONNECT,
                )
            pool = self._pool
        found = self._taken(pool, time.monotonic() + patience)
        try:
            yield found
        finally:
            pool.putconn(found)

    @staticmethod
    def _taken(pool: ConnectionPool[Connection], until: float) -> Connection:
        while True:
            try:
                return pool.getconn(timeout=min(max(until - time.monotonic(), AGAIN), 0.5))
            except PoolTimeout:
                INTERRUPTS.look()
                if time.monotonic() >= until:
                    raise

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        with self.connection(PATIENCE) as connection, connection.transaction():
            before, self._own.connection = getattr(self._own, "connection", None), connection
            try:
                yield connection
            finally:
                self._own.connection = before

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What this thread does meanwhile is done over a connection that nobody else waits for."""
        with self._aside_lock:
            try:
                self._aside = self._own.connection = self._aside or self.connect()
                yield
            except (psycopg.Error, KernaiError) as error:
                if self._aside is not None and self._aside.broken:
                    self._aside = None
                raise error if isinstance(error, KernaiError) else KernaiError(str(error)) from error
            finally:
                self._own.connection = None

    def why_none(self, size: int) -> str:
        """Why the pool has no connection."""
        try:
            self.connect().close()
        except psycopg.Error as error:
            return f"{error_text(error).strip()} (is the server running, and is this its address?)"
        return f"all {size} connections are in use: pass a larger pool_size, or let fewer threads use the store"

    @contextmanager
    def listening(self, note: str) -> Iterator[threading.Event]:
        """An event that is set when the run is written to. One connection listens for all that watch in this
        process.
        """
        news = threading.Event()
        with self._lock:
            self._watchers.setdefault(note, []).append(news)
        self.listen()
        try:
            yield news
        finally:
            with self._lock:
                self._watchers[note].remove(news)
                if not self._watchers[note]:
                    del self._watchers[note]

    def listen(self) -> None:
        """Begins to listen, unless that is so."""
        with self._lock:
            if self._listener is None:
                self._listener = threading.Thread(target=self._listen, name="kernai-listen", daemon=True)
                self._listener.start()

    def _listen(self) -> None:
        """Until nobody has watched for a while."""
        try:
            with self.connect() as connection:
                connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self.channel)))
                with self._lock:
                    for news in chain.from_iterable(self._watchers.values()):
                        news.set()  # it may have been written to before
                while True:
                    for notify in connection.notifies(timeout=LOOKS, stop_after=1):
                        with self._lock:
                            for news in self._watchers.get(notify.payload, ()):
                                news.set()
                    with self._lock:
                        if not self._watchers or self._closed:
                            self._listener = None
                            return
        except psycopg.Error:  # whoever watches looks besides, and begins to listen again
            with self._lock:
                self._listener = None

    def close(self) -> None:
        with self._lock:
            pool, self._pool, self._closed = self._pool, None, True
        if pool is not None:
            pool.close()
        with self._aside_lock:
            aside, self._aside = self._aside, None
        if aside is not None:
            aside.close()

    def after_fork(self) -> None:
        closed = self._closed
        self._begin()
        self._closed = closed


_SERVERS: WeakSet[_Server] = WeakSet()
_CONNECTIONS: WeakSet[Connection] = WeakSet()


def _in_child() -> None:
    for connection in _CONNECTIONS:
        with suppress(psycopg.Error, OSError):
            os.close(connection.fileno())  # a copy: nothing is sent, and the parent goes on with its own
    _CONNECTIONS.clear()
    for server in _SERVERS:
        server.after_fork()


if hasattr(os, "register_at_fork"):  # not on every system
    os.register_at_fork(after_in_child=_in_child)
