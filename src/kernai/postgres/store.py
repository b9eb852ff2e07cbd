"""`PostgresStore`: runs in PostgreSQL, for many machines at once.

- Most appends are one statement, and thus one transaction. It inserts or updates the run's row, provided that the
  number of entries and the lease are what the worker expects, and inserts the entries only if that succeeded. If no row
  matches, or there is more to do (a claim, or removing a used decision), the append is done in several steps under a
  lock on the row. That also shows why an append is refused.
- While the server is unavailable, everything is retried; appends as long as the lease may be valid. If an append was
  committed but its response was lost, the retry is recognised by its `writer`.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from hashlib import sha256
from typing import Any, Self, TypeVar, Unpack

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import PoolTimeout

from kernai._util.api import check_count, check_texts, check_type
from kernai.durable.lease import Lease, new_worker
from kernai.durable.run_head import Head, LeasedStore
from kernai.durable.store import ABANDONED, RUNNING, Codec, Entry, RunFilter, RunInfo, Terms, check_load, check_run_id
from kernai.errors import KernaiError, error_text
from kernai.interrupts import INTERRUPTS
from kernai.jsonio.json_data import dumps_data
from kernai.postgres.server import LONGEST_NAME, LOOKS, RETRY_PAUSE, RETRY_SECONDS, Connection, Server, prepare
from kernai.values.media import Media

T = TypeVar("T")

#: the pause between attempts at a server that is read-only, in seconds: each makes a connection
READ_ONLY_PAUSE = 1.0
#: default options of an address, so that a server that has vanished is noticed within 25 seconds:
#: without them the operating system waits for 15 minutes, or for hours if nothing was sent
CONNECTING = {"connect_timeout": "5", "keepalives_idle": "10", "keepalives_interval": "5", "tcp_user_timeout": "15000"}
#: how many seconds appends to a run send notifications after somebody has asked to watch it
WATCHED = 60.0
#: the name of the only Procrastinate task
TASK = "kernai"

#: an address with an @ or / before its last @
_UNESCAPED = re.compile(r"postgres(ql)?://[^?@/]*[@/][^?]*@")
NOW = "extract(epoch FROM clock_timestamp())::float8"
IS_DUE = """due <= to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')"""
_HEAD = ("entries", "token", "holder", "seconds", "since", "until", "number", "writer", "cancel")
LISTED = ("status", "updated_at", "agent", "parent", "due", "tags", "waiting", "info")
COLUMNS = ("decisions", *_HEAD, *LISTED)
#: the columns that `head_of` reads
SELECTED = f"info, decisions, {', '.join(_HEAD)}, {NOW}"
_ONE = f"SELECT {SELECTED} FROM runs WHERE tenant = %s AND run_id = %s"
_CANCELLED = f"""
SELECT run_id, {SELECTED} FROM runs WHERE tenant = %s AND run_id = ANY(%s)
    AND (cancel IS NOT NULL OR status IN ('cancelled', 'closed'))"""
_UPDATE = f"""
UPDATE runs SET {', '.join(f'{one} = %({one})s' for one in COLUMNS)}
WHERE tenant = %(tenant)s AND run_id = %(run_id)s"""
_ENTRIES = """
INSERT INTO entries SELECT %(tenant)s, %(run_id)s, %(first)s + place - 1, entry
FROM unnest(%(texts)b::text[]) WITH ORDINALITY AS one(entry, place)"""
_NOTIFY = "SELECT pg_notify(%(channel)s, %(note)s) FROM runs WHERE tenant = %(tenant)s AND run_id = %(run_id)s"
#: the first append to a new run; `since` and `until` are relative to the server's present time
_BEGIN = f"""
WITH head AS (
    INSERT INTO runs (tenant, run_id, {', '.join(COLUMNS)}) VALUES (%(tenant)s, %(run_id)s, {', '.join(
        f'{NOW} + %({one})s' if one in ('since', 'until') else f'%({one})s' for one in COLUMNS)})
    ON CONFLICT DO NOTHING RETURNING since, until),
written AS ({_ENTRIES}, head)
SELECT since, until FROM head"""
#: an append under a lease
_APPEND = f"""
WITH head AS (
    UPDATE runs SET {', '.join(f'{one} = %({one})s' for one in LISTED)}, entries = %(ends)s, writer = %(writer)s,
        until = {NOW} + %(seconds)s, holder = CASE WHEN NOT %(release)s THEN holder END,
        cancel = CASE WHEN NOT %(release)s THEN cancel END
    WHERE tenant = %(tenant)s AND run_id = %(run_id)s AND entries = %(first)s AND token = %(token)s
        AND holder IS NOT NULL AND decisions = '{{}}'
    RETURNING cancel, watched > {NOW} AS watched),
written AS ({_ENTRIES}, head)
SELECT cancel, CASE WHEN watched THEN pg_notify(%(channel)s, %(note)s) END FROM head"""
_QUEUE = "SELECT queue, lock FROM runs WHERE tenant = %s AND run_id = %s"
#: a fork goes to the queue of its parent, whose id is JSON
_INHERIT = """
UPDATE runs SET queue = source.queue, lock = source.lock FROM runs AS source
WHERE runs.tenant = %s AND runs.run_id = %s AND runs.queue IS NULL AND source.queue IS NOT NULL
    AND source.tenant = runs.tenant AND source.run_id = runs.parent::json #>> '{}'"""
_DEFER = f"""
SELECT procrastinate_defer_jobs_v1(ARRAY[ROW(%s, '{TASK}', 0, %s, %s, %s, NULL)::procrastinate_job_to_defer_v1])"""
_MEDIA = """
SELECT about, payload FROM media LEFT JOIN payloads USING (digest)
WHERE tenant = %s AND run_id = %s AND (%s::text[] IS NULL OR id = ANY(%s::text[])) ORDER BY place"""
_KEEP_MEDIA = """
INSERT INTO media (tenant, run_id, id, about, digest) VALUES (%s, %s, %s, %s, %s) ON CONFLICT (tenant, run_id, id)
DO UPDATE SET about = excluded.about, digest = excluded.digest
WHERE media.digest IS NULL AND excluded.digest IS NOT NULL"""  # a file that could not be read at first
_FORGET = (
    # a job that waits would keep one of the next run with this id from its queue
    """WITH run AS (UPDATE runs SET queue = NULL, lock = NULL WHERE tenant = %s AND run_id = %s
        RETURNING tenant, run_id),
    job AS (DELETE FROM procrastinate_jobs USING run WHERE queueing_lock = tenant || '/' || run_id AND status = 'todo'),
    entry AS (DELETE FROM entries USING run WHERE entries.tenant = run.tenant AND entries.run_id = run.run_id),
    gone AS (DELETE FROM media USING run WHERE media.tenant = run.tenant AND media.run_id = run.run_id RETURNING digest)
    SELECT array_agg(digest) FROM gone WHERE digest IS NOT NULL""",
    # waits for appends that use one of them
    "SELECT FROM payloads WHERE digest = ANY(%s::text[]) ORDER BY digest FOR UPDATE",
    """DELETE FROM payloads WHERE digest = ANY(%s::text[])
    AND NOT EXISTS (SELECT FROM media WHERE media.digest = payloads.digest)""",
)


class PostgresStore(LeasedStore):
    """Keeps runs in the PostgreSQL database at `conninfo`, in tables in `schema`. PostgreSQL 14 or later.

    `kernai store migrate` creates and updates the tables; so does `create`. `pool_size` is the maximum number of
    connections, not counting one for renewing leases and one for `watch`. `codec` encrypts entries and media. All
    threads may share one store; it survives a fork. Close it, or use it as a context manager.

    Raises `KernaiError` if the server cannot be reached, or if the tables are missing or have another version.
    """

    def __init__(
        self, conninfo: str, *, schema: str = "kernai", create: bool = False, pool_size: int = 10,
        codec: Codec | None = None,
    ) -> None:
        check_count("pool_size", pool_size)
        if not isinstance(schema, str) or not 0 < len(schema.encode()) <= LONGEST_NAME:  # PostgreSQL would cut it off
            raise ValueError(f"schema must be a name of at most {LONGEST_NAME} bytes, got {schema!r}")
        super().__init__(codec)
        check_type(create, bool, "create must be True or False")
        check_type(conninfo, str, "conninfo must be the address of a database")
        if _UNESCAPED.match(conninfo):  # part of a password would be taken for the host, and shown
            raise ValueError("conninfo: write @ and / in a name or password as %40 or %2F")
        try:
            known = conninfo_to_dict(conninfo)
        except psycopg.ProgrammingError as error:
            why = re.sub('"(.*)"', lambda found: found[0] if f"{found[1]}=" in conninfo else '"***"', str(error))
            raise ValueError(f"conninfo is not an address such as postgresql:///app: {why.strip()}") from None
        # in another encoding of a database, psycopg cannot send every text; in SQL_ASCII it returns bytes
        self.schema, self.conninfo = schema, make_conninfo("", **({"client_encoding": "UTF8"} | CONNECTING | known))
        #: set when this process must leave its runs to other workers
        self.stopping: threading.Event | None = None
        self.name = f"{known.get('host') or ''}/{known.get('dbname') or ''} ({schema})"
        self._server = Server(self.conninfo, schema, pool_size)
        try:
            with self._server.connect() as connection:
                prepare(connection, schema, create=create)
        except psycopg.Error as error:
            raise self._reported("open the store", error) from error

    def append(
        self, run_id: str, first_seq: int, entries: Sequence[Entry], media: Sequence[Media], **terms: Unpack[Terms]
    ) -> Lease | None:
        terms["writer"] = terms.get("writer") or new_worker()  # to recognise this append when it is retried
        texts, brought = self._sealed_append(run_id, entries, media, terms)
        info, lease = terms.get("info"), terms.get("lease")
        ends = first_seq + len(texts)
        given: dict[str, Any] = {
            "tenant": self._tenant, "run_id": run_id, "first": first_seq, "texts": texts,
            "channel": self._server.channel, "note": f"{self._tenant}/{run_id}",
        }

        at_once, begun = "", Head(RunInfo(run_id))
        if lease is None and first_seq == 0:
            begun.append(0, entries, **terms)
            at_once, given = _BEGIN, given | _row_of(begun)
        elif lease is not None and info is not None:
            more = {"ends": ends, "token": lease.token, "seconds": lease.seconds, "release": False, **terms}
            at_once, given = _APPEND, given | more | _listed(info)

        def work(connection: Connection) -> Lease | None:
            with connection.transaction() if brought else nullcontext():
                row = connection.appends.execute(at_once, given).fetchone() if at_once else None
                if row is not None:
                    self._keep_media(connection, run_id, brought)
                    if lease is not None:
                        return lease if row[0] is None else replace(lease, cancel=row[0])
                    begun.since, begun.until = row
                    return begun.lease_after(**terms)
            with connection.transaction():
                head = self._head(connection, run_id)
                if head.append(first_seq, entries, **terms):
                    self._keep(connection, head)
                    connection.execute(_ENTRIES, given)
                    self._keep_media(connection, run_id, brought)
                    connection.execute(f"{_NOTIFY} AND watched > {NOW}", given)
                return head.lease_after(**terms)

        retried_for = None if lease is None else lease.seconds
        return self._perform(f"append entries {first_seq} to {ends - 1} of run {run_id!r}", work, retried_for)

    def load(self, run_id: str, from_seq: int = 0, limit: int | None = None) -> list[Entry]:
        """See `RunStore.load`. Returns at most `limit` entries."""
        check_load(run_id, from_seq, limit)
        query = "SELECT entry FROM entries WHERE tenant = %s AND run_id = %s AND seq >= %s ORDER BY seq LIMIT %s"
        given = (self._tenant, run_id, from_seq, limit)
        texts = self._perform(f"load run {run_id!r}", lambda connection: connection.execute(query, given).fetchall())
        return [self._opened(text) for text, in texts]

    def load_media(self, run_id: str, ids: Iterable[str] | None = None) -> list[Media]:
        check_run_id(run_id)
        wanted = None if ids is None else check_texts("ids", ids, "ids")
        given = (self._tenant, run_id, wanted, wanted)
        doing = f"load the media of run {run_id!r}"
        rows = self._perform(doing, lambda connection: connection.execute(_MEDIA, given).fetchall())
        return [self._opened_media(about, payload) for about, payload in rows]

    def renew(self, lease: Lease) -> Lease:
        with self._server.separate_connection():
            return super().renew(lease)

    def cancel_requests(self, run_ids: Iterable[str]) -> dict[str, str]:
        given = (self._tenant, check_texts("run_ids", run_ids))
        with self._server.separate_connection():
            rows = self._perform("look", lambda connection: connection.execute(_CANCELLED, given).fetchall())
        return {run_id: why for run_id, *row in rows if (why := head_of(*row).why_cancelled()) is not None}

    def decide(self, run_id: str, call_id: str, decision: object) -> None:
        """See `RunStore.decide`. A run that was submitted to workers is continued at once."""
        with self.transaction():
            super().decide(run_id, call_id, decision)
            self.enqueue(run_id)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Makes everything that this thread does with the store in the ``with`` block one transaction."""
        try:
            with self._server.transaction() as connection:
                yield connection
        except psycopg.Error as error:
            raise self._reported("begin or end a transaction", error) from error

    def for_worker(self, tenant: str, stopping: threading.Event) -> Self:
        """A view for one tenant, or for none, whose runs are left to other workers once `stopping` is set."""
        view = self.tenant(tenant) if tenant != "" else object.__new__(type(self))
        vars(view).update({**vars(self), "_tenant": tenant, "stopping": stopping})
        return view

    def enqueue(self, run_id: str) -> bool:
        """Submits a job for a run of `Workers`, unless a job is already waiting. Returns whether there is a job now.

        Use it for a blocked run once the cause is fixed, and for a fork of such a run. The run stays blocked until a
        worker has taken it.
        """
        key = self._tenant, run_id

        def work(connection: Connection) -> bool:
            connection.execute(_INHERIT, key)
            row = connection.execute(_QUEUE, key).fetchone()
            if row is None or row[0] is None:
                return False
            job = (*row, "/".join(key), json.dumps({"tenant": self._tenant, "run_id": run_id}))
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
        check_run_id(run_id)

        def work(connection: Connection) -> T:
            if not writes:
                return change(self._head(connection, run_id, lock=False))
            with connection.transaction():
                head = self._head(connection, run_id)
                made = change(head)
                self._keep(connection, head)
                if not head.entries:
                    forget, *of_payloads = _FORGET
                    digests = connection.execute(forget, (self._tenant, run_id)).fetchone()
                    for statement in of_payloads:
                        connection.execute(statement, digests)
                return made

        return self._perform(f"look up or change run {run_id!r}", work)

    def _head(self, connection: Connection, run_id: str, *, lock: bool = True) -> Head:
        row = connection.execute(f"{_ONE} FOR UPDATE" if lock else _ONE, (self._tenant, run_id)).fetchone()
        return Head(RunInfo(run_id)) if row is None else head_of(*row)

    def _keep(self, connection: Connection, head: Head) -> None:
        connection.execute(_UPDATE, {"tenant": self._tenant, "run_id": head.info.run_id, **_row_of(head)})

    def _keep_media(
        self, connection: Connection, run_id: str, brought: Iterable[tuple[str, str, bytes | None]]
    ) -> None:
        for media_id, about, payload in brought:
            digest = None if payload is None else sha256(payload).hexdigest()
            if digest is not None:
                connection.execute("INSERT INTO payloads VALUES (%s, %s) ON CONFLICT DO NOTHING", (digest, payload))
            connection.execute(_KEEP_MEDIA, (self._tenant, run_id, media_id, about, digest))

    def _find(self, wanted: RunFilter, limit: int, after: RunInfo | None) -> list[RunInfo]:
        found: list[RunInfo] = []
        size = limit
        while True:
            listed = self._page(wanted, size, after)
            found += filter(wanted.matches, listed)
            # the query cannot tell whether a holder is alive, so fetch more in place of the runs that did not match
            if len(found) >= limit or len(listed) < size:
                return found[:limit]
            after, size = listed[-1], min(2 * size, 1000)

    def _page(self, wanted: RunFilter, limit: int, after: RunInfo | None) -> list[RunInfo]:
        depends_on_lease = wanted.status in (RUNNING, ABANDONED)
        conditions = {
            "holder IS NOT NULL OR status = 'running'": depends_on_lease,
            "status = %(status)s": wanted.status is not None and not depends_on_lease,
            "agent = %(agent)s": wanted.agent is not None,
            "parent = %(parent)s": wanted.parent is not None,
            "tags @> %(tags)s AND tags <> '{}'": wanted.tags,  # the condition of the index runs_by_tag
            "%(waiting)s = ANY(waiting)": wanted.waiting is not None,
            "updated_at < %(before)s": wanted.updated_before is not None,
            IS_DUE: wanted.due,
            "updated_at <= %(at)s": after is not None,
            "updated_at < %(at)s OR run_id > %(id)s": after is not None,
        }
        given = {
            "tenant": self._tenant, "limit": limit, "status": wanted.status, "before": wanted.updated_before,
            "agent": json.dumps(wanted.agent), "parent": json.dumps(wanted.parent), "tags": _tagged(wanted.tags),
            "waiting": json.dumps(wanted.waiting), "at": after and after.updated_at, "id": after and after.run_id,
        }
        listed = "".join(f" AND ({condition})" for condition, applies in conditions.items() if applies)
        where = f"tenant = %(tenant)s AND status <> ''{listed}"
        query = f"SELECT {SELECTED} FROM runs WHERE {where} ORDER BY updated_at DESC, run_id LIMIT %(limit)s"
        rows = self._perform("list the runs", lambda connection: connection.execute(query, given).fetchall())
        return [head_of(*row).shown() for row in rows]

    @contextmanager
    def _news_of(self, run_id: str) -> Iterator[Callable[[float], object]]:
        query = f"UPDATE runs SET watched = {NOW} + %s WHERE tenant = %s AND run_id = %s"
        given, marked = (WATCHED, self._tenant, run_id), -WATCHED
        with self._server.listening(f"{self._tenant}/{run_id}") as news:

            def wait(seconds: float) -> None:
                nonlocal marked
                if time.monotonic() - marked > WATCHED / 3:
                    marked = time.monotonic()
                    self._perform(f"watch run {run_id!r}", lambda connection: connection.execute(query, given))
                    return  # earlier entries sent no notification, so let the caller load once
                news.wait(min(seconds, LOOKS))
                news.clear()
                self._server.listen()

            yield wait

    # ------------------------------------------------------------------------------------------------------- the server

    def _perform(self, doing: str, work: Callable[[Connection], T], retried_for: float | None = None) -> T:
        """Runs `work` and returns its result, retrying while the server is unavailable."""
        server, until = self._server, time.monotonic() + (RETRY_SECONDS if retried_for is None else retried_for)
        while True:
            try:
                with server.connection(until) as connection:
                    return work(connection)
            except psycopg.Error as error:
                may_pass = isinstance(error, _MAY_PASS) and not isinstance(error, errors.ProgramLimitExceeded)
                if not may_pass or server.own is not None or time.monotonic() >= until:
                    raise self._reported(doing, error) from error
                time.sleep(READ_ONLY_PAUSE if isinstance(error, errors.ReadOnlySqlTransaction) else RETRY_PAUSE)
            INTERRUPTS.look()

    def _reported(self, doing: str, error: psycopg.Error) -> KernaiError:
        hint = "" if isinstance(error, psycopg.DataError) else _HINTS.get(error.sqlstate, "")
        why = _NO_CONNECTION if isinstance(error, PoolTimeout) else f"{error_text(error).strip()}{hint}"
        return KernaiError(f"cannot {doing} in {self.name}: {why}")


def head_of(info: str, decisions: str, *rest: Any) -> Head:
    """Creates a head from a row."""
    kept = dict(zip((*_HEAD, "now"), rest, strict=True))
    return Head(RunInfo.from_dict(json.loads(info)), decisions=json.loads(decisions), **kept)


def _row_of(head: Head) -> dict[str, Any]:
    row = {name: getattr(head, name) for name in _HEAD} | _listed(head.info) | {"decisions": json.dumps(head.decisions)}
    return row if head.entries else {**row, "status": ""}


def _listed(info: RunInfo) -> dict[str, Any]:
    """Returns the columns for searching runs, and the run's summary."""
    return {
        "status": info.status, "updated_at": info.updated_at, "agent": dumps_data(info.agent),
        "parent": dumps_data(info.parent), "tags": _tagged(info.tags),
        "due": min((one.until for one in info.pending if one.until is not None), default=None),
        "waiting": [dumps_data(one.skill) for one in info.pending], "info": dumps_data(info.to_dict()),
    }


def _tagged(tags: Mapping[str, str]) -> list[str]:
    return [json.dumps([name, value]) for name, value in tags.items()]


#: instead of the pool's own text, which has only the wait of the last try
_NO_CONNECTION = "got no connection in time (is the server running? If so, all are in use: pass a larger pool_size)"
#: errors of a server that is unavailable; the last kind if a process was suspended in a transaction, or of a replica
_MAY_PASS = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError)
_HINTS: dict[str | None, str] = {
    errors.InsufficientPrivilege.sqlstate:
        " (needed: USAGE on schema and sequences, SELECT, INSERT, UPDATE, DELETE on tables; to create them, CREATE)",
    errors.UndefinedTable.sqlstate: " (`kernai store migrate` makes the tables)",
    errors.ProgramLimitExceeded.sqlstate: " (a tag or a lock may have at most 2,600 bytes, an entry 1 GB)",
    errors.DiskFull.sqlstate: " (free some space and resume the run; what was appended before is safe)",
}
