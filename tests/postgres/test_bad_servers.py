"""Servers that are down, misconfigured, full or cut off: errors are clear, and nothing is lost or done twice."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

import kernai
from kernai import Agent, KernaiError, MemoryStore, RunConflictError, Skill
from kernai.postgres import PostgresStore, Workers, store
from kernai.postgres.server import LONGEST_NAME
from kernai.testing.contracts import at_once
from kernai.testing.run_store_rules import started
from kernai.testing.store_rules import entry
from tests.durable.durable_cases import WAYS, Reversed, Way, command, provider, way_id
from tests.postgres.server import Server

SCRIPT = {"go": [command("act"), command("act"), "<final>done</final>"]}


def acting(act: Callable[..., Any]) -> kernai.Agent:
    return kernai.Agent(instructions="x", skills=[Skill("act", execute=act, inputs={})], provider=provider(SCRIPT))


@pytest.fixture(scope="module")
def own_server(server: Server) -> Iterator[Server]:
    """A server that tests may stop and start again, unlike `server`."""
    with Server(durable=True) as own:
        yield own


@pytest.fixture
def kept(server: Server, schema: str) -> Iterator[PostgresStore]:
    with PostgresStore(server.dsn, schema=schema, create=True) as made:
        yield made


def opened(server: Server, **options: Any) -> PostgresStore:
    return PostgresStore(server.dsn, create=True, **options)


def test_a_server_that_is_down_at_the_start_is_an_error_at_once_which_shows_no_password() -> None:
    why = r"(?s)cannot open the store in /tmp/kernai-nowhere/app \(kernai\): connection .*Is the server running[^(]*$"
    with pytest.raises(KernaiError, match=why) as caught:
        PostgresStore("postgresql://ann:s3cret@/app?host=/tmp/kernai-nowhere", create=True)
    assert "s3cret" not in f"{caught.value!r} {caught.value.__cause__!r}"


@pytest.mark.parametrize("given, error, message", [
    ({"conninfo": "://no address"}, ValueError, "not an address such as postgresql:///app: "),
    ({"conninfo": None}, TypeError, "conninfo must be the address of a database, got NoneType"),
    *[({"conninfo": "dbname=x", "pool_size": size}, ValueError, "pool_size must be a positive int, got") for size in (0, "9")],
    ({"conninfo": "dbname=x", "create": "no"}, TypeError, "create must be True or False, got str"),
    *[({"conninfo": "dbname=x", "schema": name}, ValueError, "schema must be a name of at most 63 bytes") for name in ("", "ü" * 32, None)],
])
def test_an_invalid_address_schema_or_pool_size_is_refused(given: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        PostgresStore(**given)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS[::2], ids=way_id)
def test_a_run_survives_a_server_that_is_killed_and_restarted(own_server: Server, schema: str, way: Way) -> None:
    calls: list[int] = []

    def act() -> None:
        calls.append(len(calls))
        own_server.kill()
        threading.Thread(target=own_server.start).start()

    with opened(own_server, schema=schema) as kept:
        assert way.execute(acting(act), "go", store=kept, run_id="r").text == "done"
        assert calls == [0, 1]
        with kernai.isolated():
            whole = MemoryStore()
            way.execute(acting(lambda: None), "go", store=whole, run_id="r")
        assert [one["event"] for one in kept.load("r")] == [one["event"] for one in whole.load("r")]


@pytest.mark.slow
def test_a_server_that_is_down_for_longer_than_the_lease_ends_the_run_which_can_be_resumed(own_server: Server, schema: str) -> None:
    calls: list[int] = []

    def act() -> None:
        calls.append(len(calls))
        if len(calls) == 1:
            own_server.kill()

    with opened(own_server, schema=schema) as kept:
        with pytest.raises(KernaiError, match=r"cannot append entries .* of run 'r' in .*|the lease on run 'r' may have expired"):
            kernai.execute(acting(act), "go", store=kept, run_id="r", lease=0.5)
        own_server.start()
        assert calls == [0]
        assert kernai.resume(acting(act), "r", store=kept, in_flight="skip", wait=20).text == "done"
        assert calls == [0, 1]


@pytest.mark.parametrize("way", WAYS[::2], ids=way_id)
def test_nothing_is_lost_or_written_twice_if_a_connection_is_cut_after_a_commit(
    kept: PostgresStore, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    cut, calls, perform = SimpleNamespace(left=1, cuts=0), list[int](), PostgresStore._perform

    def act() -> None:
        calls.append(len(calls))
        cut.left = 2

    def cut_off(own: PostgresStore, doing: str, work: Callable[..., Any], *given: Any) -> Any:
        def and_cut(connection: Any) -> Any:
            made = work(connection)
            if doing.startswith("append") and cut.left > 0:
                cut.left, cut.cuts = cut.left - 1, cut.cuts + 1
                raise psycopg.OperationalError("the connection was cut")  # the client does not learn that it succeeded
            return made

        return perform(own, doing, and_cut, *given)

    monkeypatch.setattr(PostgresStore, "_perform", cut_off)
    assert way.execute(acting(act), "go", store=kept, run_id="r").text == "done"
    assert (cut.cuts, calls) == (5, [0, 1])
    whole = MemoryStore()
    way.execute(acting(lambda: None), "go", store=whole, run_id="r")
    assert [one["event"] for one in kept.load("r")] == [one["event"] for one in whole.load("r")]
    cut.left = 1
    kernai.fork(kept, "r", at_step=1, run_id="f")
    cut.left = 1
    kept.close("f", "nobody needs it")
    assert (cut.cuts, kept.cancel_requests(["f", "r"])) == (7, {"f": "somebody cancelled the run"})


def test_a_transaction_begins_on_another_connection_if_the_pools_has_died(kept: PostgresStore, server: Server) -> None:
    with kept.transaction() as connection:
        died = connection.info.backend_pid
    with psycopg.connect(server.dsn) as other:
        other.execute("SELECT pg_terminate_backend(%s, 10000)", (died,))
    with kept.transaction():
        kept.append("r", 0, [started()], [])
    assert len(kept.load("r")) == 1


def test_a_store_connects_again_if_a_connection_leads_to_a_replica_after_a_failover(
    server: Server, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "READ_ONLY_PAUSE", 0)
    with opened(server, schema=schema, pool_size=1) as kept:
        lease = kept.append("r", 0, [started()], [], claim=("first", 60))
        assert lease is not None
        with kept.transaction() as connection:
            connection.execute("SET default_transaction_read_only = on")
        kept.append("r", 1, [entry()], [], lease=lease)
        with kept._server.separate_connection(), kept.transaction() as connection:
            connection.execute("SET default_transaction_read_only = on")
        with pytest.raises(KernaiError, match="read-only transaction"):  # its thread tries again soon
            kept.renew(lease)
        assert (kept.renew(lease).token, len(kept.load("r"))) == (lease.token, 2)


def test_an_append_is_repeated_if_its_process_was_suspended_in_a_transaction(
    server: Server, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_media, suspended = PostgresStore._keep_media, threading.Event()

    def suspend(own: PostgresStore, connection: Any, *given: Any) -> None:
        if not suspended.is_set():
            suspended.set()
            with psycopg.connect(server.dsn, autocommit=True) as other:
                found = "SELECT FROM pg_stat_activity WHERE pid = %s"
                while other.execute(found, (connection.info.backend_pid,)).rowcount:
                    other.execute("SELECT pg_sleep(0.01)")
        keep_media(own, connection, *given)

    monkeypatch.setattr("kernai.postgres.server.IDLE", 300)
    monkeypatch.setattr(PostgresStore, "_keep_media", suspend)
    with opened(server, schema=schema) as kept:
        kept.append("r", 0, [started()], [kernai.Media.from_bytes(b"x", mime_type="image/png")])
        assert len(kept.load("r")) == 1


def test_dead_servers_are_noticed_soon_unless_the_address_says_otherwise(server: Server, schema: str) -> None:
    with PostgresStore(f"{server.dsn}&connect_timeout=9", schema=schema, create=True) as kept, kept.transaction() as connection:
        given = connection.info.get_parameters()
    assert (given["connect_timeout"], given["tcp_user_timeout"]) == ("9", "15000")


def test_missing_older_or_newer_tables_are_an_error_that_says_what_to_do(server: Server, schema: str, monkeypatch: Any) -> None:
    with pytest.raises(KernaiError, match=f"schema '{schema}' has no kernai tables: make them with `kernai store migrate`"):
        PostgresStore(server.dsn, schema=schema)
    PostgresStore(server.dsn, schema=schema, create=True).close()
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"UPDATE {schema}.meta SET version = 99")
        with pytest.raises(KernaiError, match=r"a newer kernai \(version 99, not \d+\): upgrade kernai"):
            PostgresStore(server.dsn, schema=schema, create=True)
        connection.execute(f"DROP SCHEMA {schema} CASCADE; CREATE SCHEMA {schema}; CREATE TABLE {schema}.meta AS SELECT 0 AS version")
    with pytest.raises(KernaiError, match=r"an older kernai \(version 0, not \d+\): run `kernai store migrate`"):
        PostgresStore(server.dsn, schema=schema)
    monkeypatch.setattr("kernai.postgres.server.OLDEST_SERVER", 990000)
    with pytest.raises(KernaiError, match=r"is too old: kernai needs PostgreSQL 14 or later"):
        PostgresStore(server.dsn, schema=schema, create=True)


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_processes_may_create_the_tables_concurrently_whatever_encoding_the_database_has(server: Server, encoding: str) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {encoding} ENCODING '{encoding}' TEMPLATE template0")
    address = server.dsn.replace("/postgres?", f"/{encoding.lower()}?")
    PostgresStore(address, schema="public", create=True).close()  # its workers must not take the jobs of the other
    assert at_once(lambda number: PostgresStore(address, create=True).close(), 6) == []
    with PostgresStore(address) as kept, kept.transaction() as connection:
        assert Workers(kept, {"ä": Agent(instructions="")}).submit("ä", "grüße", run_id="r").info().agent == "ä"
        assert connection.execute("SELECT FROM kernai.procrastinate_jobs").rowcount == 1


def test_a_role_without_privileges_gets_an_error_that_names_them(server: Server, schema: str) -> None:
    with opened(server, schema=schema) as kept:
        kept.append("r", 0, [started()], [])
    role = f"poor_{schema}"
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN; CREATE SCHEMA {role} AUTHORIZATION {role}")
    poor = server.dsn.replace("kernai@", f"{role}@")
    PostgresStore(poor, schema=role, create=True).close()  # it may create tables there, but no schema
    with pytest.raises(KernaiError, match=r"permission denied for database .*to create them, CREATE\)"):
        PostgresStore(poor, schema=f"{role}2", create=True)
    with pytest.raises(KernaiError, match=rf"permission denied|schema '{schema}' has no tables"):
        PostgresStore(poor, schema=schema)
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}")
    with PostgresStore(poor, schema=schema) as reader:
        assert [one.run_id for one in reader.runs()] == ["r"]
        with pytest.raises(KernaiError, match=r"cannot append entries 1 to 1 of run 'r' in .*permission denied.*on schema and sequences, SELECT"):
            reader.append("r", 1, [entry()], [])
        assert len(reader.load("r")) == 1
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            for rights in ("USAGE ON ALL SEQUENCES", "INSERT, UPDATE, DELETE ON ALL TABLES"):
                connection.execute(f"GRANT {rights} IN SCHEMA {schema} TO {role}")
        assert Workers(reader, {"clerk": Agent(instructions="")}).submit("clerk", "go").info().status == "queued"


def test_an_exhausted_pool_is_an_error_that_says_so_while_leases_are_still_renewed(
    server: Server, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RETRY_SECONDS", 0.2)
    with opened(server, schema=schema, pool_size=1) as kept:
        lease = kept.append("r", 0, [started()], [], claim=("first", 60))
        assert lease is not None
        with kept.transaction(), ThreadPoolExecutor(1) as another:
            with pytest.raises(KernaiError, match=r": got no connection in time \(.* all are in use: pass a larger pool_size\)$"):
                another.submit(kept.load, "r").result()
            assert another.submit(kept.renew, lease).result().token == lease.token


def test_a_text_that_the_server_does_not_take_is_an_error_at_once(kept: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "RETRY_PAUSE", -1)  # fails if it tries again
    with pytest.raises(KernaiError, match=r"cannot append .*a tag or a lock may have at most 2,600 bytes"):
        kept.append("r", 0, [started(tags={"seed": os.urandom(2000).hex()})], [])
    with pytest.raises(KernaiError, match=r"cannot contain NUL \(0x00\) bytes$"):
        kept.load_media("r", ["a\0b"])


def test_a_closed_postgres_store_is_an_error_that_says_so(kept: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernai.postgres.server.LOOKS", 0.05)
    kept.append("r", 0, [started()], [])
    kept.renew(kept.claim("r", "worker", 60))
    news = kept.watch("r")
    next(news)
    separate, listener = kept._server._separate, kept._server._listener
    kept.close()
    kept.close()
    assert separate is not None
    assert separate.closed
    assert listener is not None
    assert listener.daemon, "the process may end"
    listener.join(20)
    assert not listener.is_alive(), "although somebody still watches"
    for act in (kept.load, lambda _: kept.append("r", 0, [started()], []), lambda _: list(kept.runs()), lambda one: kept.cancel_requests([one])):
        with pytest.raises(KernaiError, match="the store is closed"):
            act("r")


def test_a_run_in_a_schema_with_the_longest_name_can_be_watched(server: Server) -> None:
    with PostgresStore(server.dsn, schema="ü" * 31, create=True) as store:
        store.append("r", 0, [started()], [])
        assert len(list(store.watch("r", timeout=0.3))) == 1
        store.append("r", 1, [started()], [])


def test_watching_a_run_marks_it_only_now_and_then_and_waits_no_longer_than_asked(
    server: Server, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LOOKS", 60.0)
    later = [0.0]
    monkeypatch.setattr(store, "time", SimpleNamespace(sleep=time.sleep, monotonic=lambda: time.monotonic() + later[0]))
    marks, schema = [], schema.ljust(LONGEST_NAME, "_")
    with opened(server, schema=schema) as kept:
        kept.append("r", 0, [entry()], [])
        with kept._news_of("r") as wait, psycopg.connect(server.dsn) as connection:
            for later[0] in (0.0, 0.0, 0.0, store.WATCHED / 2):
                wait(0.0)
                marks.append(connection.execute(f"SELECT watched FROM {schema}.runs").fetchone())
            wait(1.0)  # until this process listens, unless it does already
            began = time.monotonic()
            kept.append("r", 1, [entry()], [])  # it notifies whoever watches
            wait(20.0)
            assert time.monotonic() - began < 10
        assert kept._server._watchers == {}, "nobody watches any more"
    assert marks[:3] == [marks[0]] * 3 != [(0.0,)] * 3
    assert marks[3] != marks[0], "the mark is renewed before it expires"


def test_a_transaction_is_written_completely_or_not_at_all(kept: PostgresStore) -> None:
    with pytest.raises(ZeroDivisionError), kept.transaction():
        lease = kept.append("r", 0, [started()], [], claim=("first", 60))
        assert lease is not None
        kept.renew(lease)
        kept.append("s", 0, [started()], [])
        Workers(kept, {"clerk": Agent(instructions="")}).submit("clerk", "go")
        raise ZeroDivisionError
    assert list(kept.runs()) == []
    with kept.transaction() as connection:
        assert connection.execute("SELECT FROM procrastinate_jobs").fetchone() is None
        kept.append("r", 0, [started()], [])
        with pytest.raises(RunConflictError):
            kept.append("r", 3, [entry()], [])
        kept.append("r", 1, [entry()], [])
    assert len(kept.load("r")) == 2
    with pytest.raises(KernaiError, match=r"canceling statement due to statement timeout$"), kept.transaction() as connection:
        connection.execute("SET LOCAL statement_timeout = 1; SELECT pg_sleep(9)")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_store_can_be_used_on_both_sides_of_a_fork(kept: PostgresStore) -> None:
    kept.append("parent", 0, [entry(data=0)], [])
    kept.cancel_requests(["parent"])  # uses a separate connection
    child = os.fork()
    try:
        own = "child" if child == 0 else "parent"
        for seq in range(child != 0, 20):
            kept.append(own, seq, [entry(data=seq)], [])
            assert [one["data"] for one in kept.load(own, seq)] == [seq]
        if child == 0:
            os._exit(0)
    finally:
        if child == 0:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [len(kept.load(run_id)) for run_id in ("parent", "child")] == [20, 20]


def test_payloads_are_shared_and_deleted_with_the_last_run_that_has_them(kept: PostgresStore) -> None:
    def payloads() -> Any:
        with kept.transaction() as connection:
            return connection.execute("SELECT count(*) FROM payloads").fetchone()

    picture = kernai.Media.from_bytes(b"x" * 1000, mime_type="image/png")
    for run_id in ("r", "s"):
        kept.append(run_id, 0, [started()], [picture])
    assert payloads() == (1,)
    kept.delete("r")
    assert kept.load_media("s") == [picture]
    kept.delete("s")
    assert payloads() == (0,)


def test_data_stored_with_a_codec_is_unreadable_without_it(server: Server, schema: str) -> None:
    kept = [kernai.Media.from_bytes(b"a secret picture", mime_type="image/png"), kernai.Media.from_url("https://example.org/?token=secret")]
    with opened(server, schema=schema, codec=Reversed()) as store:
        store.append("r", 0, [started(), entry(data="a secret text")], kept)
        assert (store.load("r")[1]["data"], [one.data for one in store.load_media("r")]) == ("a secret text", [one.data for one in kept])
    with psycopg.connect(server.dsn) as connection:
        for table in ("entries", "media", "payloads"):
            assert "secret" not in str(connection.execute(f"SELECT * FROM {schema}.{table}").fetchall())
    with PostgresStore(server.dsn, schema=schema) as store:
        assert [one.agent for one in store.runs()] == ["clerk"]
        for act in store.load, store.load_media:
            with pytest.raises(KernaiError, match="stored with a codec: use it in Python, from"):
                act("r")
