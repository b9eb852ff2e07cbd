"""`Server`: the connections of a `PostgresStore` and its tenants' views. `migrate`: creates and updates the tables.

- Leases are renewed over a separate connection, since all connections of the pool may be in use.
- One connection listens for all watchers in this process.
- A forked child must not use its parent's connections: it closes its copies and opens new connections.
- Texts in the tables are JSON in ASCII, so they can contain NUL and lone surrogates, which PostgreSQL's own text and
  JSON cannot. Times are in seconds by the server's clock. A deleted run leaves a row without a status, with the numbers
  that must not be used again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Any
from weakref import WeakSet

import psycopg
from procrastinate.schema import SchemaManager
from psycopg import sql
from psycopg_pool import ConnectionPool

from kernai._util.api import Once
from kernai.errors import KernaiError
from kernai.interrupts import INTERRUPTS

#: how many seconds to keep retrying while the server is unavailable, and the pause between attempts
RETRY_SECONDS, RETRY_PAUSE = 10.0, 0.05
#: after how many seconds a pool starts a new series of attempts to connect; within a series, the waits grow
RECONNECT = 2.0
#: how many seconds a worker that stops, or a store that is closed, waits for a server that has stopped answering
LATE = 5.0
#: after how many milliseconds the server ends the transaction of a client that was suspended in it, and frees its locks
IDLE = 15_000
#: how many bytes of a name PostgreSQL keeps
LONGEST_NAME = 63
#: how often watchers also poll, in seconds
LOOKS = 2.0


class Connection(psycopg.Connection[Any]):
    """Reuses one cursor for appends: it caches how to convert parameters, which saves a third of an append's time."""

    @Once
    def appends(self) -> psycopg.Cursor[Any]:
        return self.cursor()


class Server:
    """The database's address, and the connections to it."""

    def __init__(self, conninfo: str, schema: str, pool_size: int) -> None:
        channel = f"kernai_{schema}"
        self.channel = channel if len(channel.encode()) <= LONGEST_NAME else schema
        self._conninfo, self._schema, self._pool_size = conninfo, schema, pool_size
        self._closed = False
        self.begin()
        _SERVERS.add(self)

    def begin(self) -> None:
        """Begins without connections, also in a forked child."""
        self._lock = threading.Lock()
        self._own = threading.local()  # the connection of this thread's transaction
        self._pool: ConnectionPool[Connection] | None = None
        self._separate: Connection | None = None
        self._separate_lock = threading.Lock()
        self._watchers: dict[threading.Event, str] = {}
        self._listener: threading.Thread | None = None

    def connect(self) -> Connection:
        connection = Connection.connect(self._conninfo, autocommit=True)
        self._configure(connection)
        return connection

    def _configure(self, connection: Connection) -> None:
        _CONNECTIONS.add(connection)
        settings = f"SET idle_in_transaction_session_timeout = {IDLE}; SET search_path TO {{}}, public"
        connection.execute(sql.SQL(settings).format(sql.Identifier(self._schema)))

    @property
    def own(self) -> Connection | None:
        """The connection of this thread's transaction, if it is in one."""
        return getattr(self._own, "connection", None)

    @contextmanager
    def connection(self, until: float) -> Iterator[Connection]:
        """Yields the connection of this thread's transaction, or a free one. Callers retry until `until`."""
        # not for long, so that the caller notices Ctrl-C
        seconds = min(max(until - time.monotonic(), RETRY_PAUSE), 0.5)
        with self._opened_pool().connection(seconds) if self.own is None else nullcontext(self.own) as connection:
            try:
                yield connection
            except psycopg.errors.ReadOnlySqlTransaction:  # the server has become a replica: connect again
                connection.close()
                raise

    def _opened_pool(self) -> ConnectionPool[Connection]:
        with self._lock:
            if self._closed:
                raise KernaiError("the store is closed")
            if self._pool is None:
                self._pool = ConnectionPool(
                    self._conninfo, min_size=1, max_size=self._pool_size, open=True, num_workers=1,
                    connection_class=Connection, kwargs={"autocommit": True}, configure=self._configure,
                    reconnect_timeout=RECONNECT,
                )
            return self._pool

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        before, until, connection = self.own, time.monotonic() + RETRY_SECONDS, None
        with ExitStack() as begun:
            while connection is None:
                try:
                    entered = begun.enter_context(self.connection(until))
                    begun.enter_context(entered.transaction())
                    connection = self._own.connection = entered
                except psycopg.OperationalError:  # a connection of the pool may have died since it was last used
                    if before is not None or time.monotonic() >= until:
                        raise
                    begun.close()
                    time.sleep(RETRY_PAUSE)
                    INTERRUPTS.look()
            begun.callback(setattr, self._own, "connection", before)
            yield connection

    @contextmanager
    def separate_connection(self) -> Iterator[None]:
        """Within the block, this thread uses the separate connection instead of the pool, except in a transaction."""
        if self.own is not None:
            yield
            return
        with self._separate_lock:
            try:
                self._opened_pool()  # raises an error if the store is closed
                self._separate = self._own.connection = self._separate or self.connect()
                yield
            except psycopg.Error as error:  # it cannot be opened
                raise KernaiError(str(error)) from error
            finally:
                self._own.connection = None
                if self._separate is not None and self._separate.closed:
                    self._separate = None

    @contextmanager
    def listening(self, note: str) -> Iterator[threading.Event]:
        """Yields an event that is set when the run is written to. One connection listens for the whole process."""
        news = threading.Event()
        with self._lock:
            self._watchers[news] = note
        self.listen()
        try:
            yield news
        finally:
            with self._lock:
                del self._watchers[news]

    def listen(self) -> None:
        with self._lock:
            if self._listener is None:
                self._listener = threading.Thread(target=self._listen, name="kernai-listen", daemon=True)
                self._listener.start()

    def _listen(self) -> None:
        """Listens for notifications until nobody watches."""
        try:
            with self.connect() as connection:
                connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self.channel)))
                heard: set[str] | None = None  # any run may have been written to before LISTEN
                while True:
                    with self._lock:
                        for news, note in self._watchers.items():
                            if heard is None or note in heard:
                                news.set()
                        if not self._watchers or self._closed:
                            self._listener = None
                            return
                    heard = {one.payload for one in connection.notifies(timeout=LOOKS, stop_after=1)}
        except psycopg.Error:  # watchers also poll, and restart the listener
            with self._lock:
                self._listener = None

    def close(self) -> None:
        with self._lock:
            pool, self._pool, self._closed = self._pool, None, True
        if pool is not None:
            pool.close()
        if self._separate_lock.acquire(timeout=LATE):  # waits for a renewal
            if self._separate is not None:
                self._separate.close()
            self._separate_lock.release()


_SERVERS: WeakSet[Server] = WeakSet()
_CONNECTIONS: WeakSet[Connection] = WeakSet()


def _in_child() -> None:
    for connection in _CONNECTIONS:
        with suppress(psycopg.Error, OSError):
            os.close(connection.fileno())  # the child's copy: nothing is sent, and the parent's stays open
    _CONNECTIONS.clear()
    for server in _SERVERS:
        server.begin()


if hasattr(os, "register_at_fork"):  # not on every system
    os.register_at_fork(after_in_child=_in_child)


# ---------------------------------------------------------------------------------------------------------- tables

#: the SQL that each version adds to the previous one
MIGRATIONS = (
    """
    CREATE TABLE meta (version integer NOT NULL);
    INSERT INTO meta VALUES (0);
    CREATE TABLE runs (
        tenant text COLLATE "C" NOT NULL, run_id text COLLATE "C" NOT NULL, status text COLLATE "C" NOT NULL,
        updated_at text COLLATE "C" NOT NULL, agent text COLLATE "C", parent text COLLATE "C", due text COLLATE "C",
        tags text[] NOT NULL, waiting text[] NOT NULL, info text NOT NULL, decisions text NOT NULL,
        entries bigint NOT NULL, token bigint NOT NULL, number bigint NOT NULL, holder text, seconds float8 NOT NULL,
        since float8 NOT NULL, until float8 NOT NULL, writer text, cancel text, watched float8 NOT NULL DEFAULT 0,
        queue text, lock text, PRIMARY KEY (tenant, run_id)) WITH (fillfactor = 70);
    CREATE INDEX runs_by_time ON runs (tenant, updated_at DESC, run_id) WHERE status <> '';
    CREATE INDEX runs_by_status ON runs (tenant, status, updated_at DESC, run_id);
    CREATE INDEX runs_held ON runs (tenant, run_id) WHERE holder IS NOT NULL;
    CREATE INDEX runs_by_tag ON runs USING gin (tags) WHERE tags <> '{}';
    CREATE INDEX runs_due ON runs (due) WHERE due IS NOT NULL;
    CREATE TABLE entries (
        tenant text COLLATE "C" NOT NULL, run_id text COLLATE "C" NOT NULL, seq bigint NOT NULL, entry text NOT NULL,
        PRIMARY KEY (tenant, run_id, seq));
    CREATE TABLE payloads (digest text COLLATE "C" PRIMARY KEY, payload bytea NOT NULL);
    CREATE TABLE media (
        tenant text COLLATE "C" NOT NULL, run_id text COLLATE "C" NOT NULL, id text COLLATE "C" NOT NULL,
        place bigint GENERATED ALWAYS AS IDENTITY, about text NOT NULL, digest text COLLATE "C" REFERENCES payloads,
        PRIMARY KEY (tenant, run_id, id));
    CREATE INDEX media_by_digest ON media (digest);
    """,
)
VERSION = len(MIGRATIONS)
OLDEST_SERVER = 140000


def prepare(connection: psycopg.Connection[Any], schema: str, *, create: bool) -> None:
    """With `create`, creates or updates the tables. Raises `KernaiError` if the server is too old, or if the tables do
    not have the version that this kernai knows.
    """
    if connection.info.server_version < OLDEST_SERVER:
        raise KernaiError(f"the server at {connection.info.host} is too old: kernai needs PostgreSQL 14 or later")
    if create:
        migrate(connection, schema)
    found = version_of(connection, schema)
    if found == VERSION:
        return
    if found is None:
        why, fix = "has no kernai tables", "make them with `kernai store migrate`, or pass create=True"
    elif found < VERSION:
        why, fix = f"has the tables of an older kernai (version {found}, not {VERSION})", "run `kernai store migrate`"
    else:
        why, fix = f"has the tables of a newer kernai (version {found}, not {VERSION})", "upgrade kernai"
    raise KernaiError(f"schema {schema!r} {why}: {fix}")


def version_of(connection: psycopg.Connection[Any], schema: str) -> int | None:
    """The version of the tables; None if they do not exist."""
    if connection.execute("SELECT to_regclass(format('%%I.meta', %s::text))", (schema,)).fetchone() == (None,):
        return None
    row = connection.execute("SELECT version FROM meta").fetchone()
    return None if row is None else int(row[0])


def migrate(connection: psycopg.Connection[Any], schema: str) -> None:
    """Creates or updates the tables. Several processes may do so at once."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('kernai migrate'))")
        before = version_of(connection, schema)
        if before is None:
            # only this schema, since workers of two stores must not share the jobs of one that is in `public`
            begin = "SET LOCAL search_path TO {0}"
            if connection.execute("SELECT to_regnamespace(quote_ident(%s))", (schema,)).fetchone() == (None,):
                begin = f"CREATE SCHEMA {{0}}; {begin}"  # IF NOT EXISTS would need the right to create one
            connection.execute(sql.SQL(begin).format(sql.Identifier(schema)))
        for statement in MIGRATIONS[before or 0:]:
            connection.execute(statement)
        if before is None or before < VERSION:
            connection.execute("UPDATE meta SET version = %s", (VERSION,))
        if connection.execute("SELECT to_regclass('procrastinate_jobs')").fetchone() == (None,):
            # in ASCII: its comments have dashes that a database with another encoding does not take
            connection.execute(SchemaManager.get_schema().encode("ascii", "replace"))
