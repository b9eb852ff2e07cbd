"""The tables of a `PostgresStore`, and how they are made and brought up to date.

Texts are JSON in ASCII, so that they hold what PostgreSQL's own text and JSON do not: NUL and lone surrogates. Times
are seconds of the server's clock. A deleted run leaves its row, with the numbers that must not be used again, and no
status.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from procrastinate.schema import SchemaManager

from kernai.errors import KernaiError

if TYPE_CHECKING:
    from psycopg import Connection

#: what each version adds to the one before
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


def check_schema(connection: Connection, schema: str) -> None:
    """`KernaiError` unless the tables are there, in the version that this kernai knows."""
    found = version_of(connection, schema)
    if found == VERSION:
        return
    if found is None:
        why, fix = "has no tables of kernai's", "make them with `kernai store migrate`, or pass create=True"
    elif found < VERSION:
        why, fix = f"has the tables of an older kernai (version {found}, not {VERSION})", "run `kernai store migrate`"
    else:
        why, fix = f"has the tables of a newer kernai (version {found}, not {VERSION})", "upgrade kernai"
    raise KernaiError(f"schema {schema!r} {why}: {fix}")


def version_of(connection: Connection, schema: str) -> int | None:
    """The version of the tables, None where there are none."""
    if connection.execute("SELECT to_regclass(format('%%I.meta', %s::text))", (schema,)).fetchone() == (None,):
        return None
    row = connection.execute("SELECT version FROM meta").fetchone()
    return None if row is None else int(row[0])


def migrate(connection: Connection, schema: str) -> int | None:
    """Makes the tables, or brings them up to date; gives the version that was there. Several processes may do so."""
    from psycopg import sql

    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('kernai migrate'))")
        before = version_of(connection, schema)
        if before is None:
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
        for statement in MIGRATIONS[before or 0:]:
            connection.execute(statement)
        if before is None or before < VERSION:
            connection.execute("UPDATE meta SET version = %s", (VERSION,))
        if connection.execute("SELECT to_regclass('procrastinate_jobs')").fetchone() == (None,):
            connection.execute(SchemaManager.get_schema())
    return before
