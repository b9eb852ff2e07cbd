"""The cost of storing runs in PostgreSQL, and of finding some among a million.

Floors: an INSERT of the same texts and a commit, on the same server over the same kind of connection; for a step, two
of them. The server is the one of the tests, on a socket, with durable settings; its version and settings are printed.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from uuid import uuid4

import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import kernai
from bench_durable import ENTRIES, TEXTS
from kernai import Agent, MockProvider, Skill
from kernai.durable.store import RunInfo
from kernai.jsonio.json_data import dumps_data
from kernai.postgres import PostgresStore, Workers
from kernai.values.pending_calls import PendingCall
from support import Measure, compare, emit, timed
from tests.postgres.server import Server

STEPS = 20
SHOWN = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "work_mem", "wal_sync_method")
_FILL = """
INSERT INTO runs (tenant, run_id, status, updated_at, agent, tags, waiting, info, decisions, entries, token, number,
    seconds, since, until, due)
SELECT '', 'r' || n, CASE WHEN n %% 1000 = 0 THEN 'waiting' ELSE 'final' END,
    to_char(timestamp '2026-01-01' + n * interval '10 s', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), '"clerk"',
    ARRAY['["customer", "' || n %% 10000 || '"]'], CASE WHEN n %% 1000 = 0 THEN ARRAY['"pay"'] ELSE '{}' END,
    %(info)s, '{}', 4, 1, 0, 30, 0, 0, NULL FROM generate_series(1, %(count)s) AS n"""
_FILL_ENTRIES = """
INSERT INTO entries SELECT '', 'r' || n, seq, %(text)s
FROM generate_series(1, %(count)s) AS n, generate_series(0, 3) AS seq"""


def appending(store: PostgresStore, times: int) -> Measure:
    """Appends under a lease, as a run does, to a new run each time."""

    def append() -> None:
        run_id = uuid4().hex
        info = RunInfo(run_id, "clerk")
        lease = store.append(run_id, 0, ENTRIES, [], info=info, claim=("bench", 60.0))
        for seq in range(4, times * 4, 4):
            lease = store.append(run_id, seq, ENTRIES, [], info=info, lease=lease, writer=str(seq))

    return timed(append)


def inserting(connection: psycopg.Connection, times: int) -> Measure:
    def insert() -> None:
        for _ in range(times):
            connection.execute("INSERT INTO bare (text) SELECT unnest(%b::text[])", (TEXTS,))

    return timed(insert)


def stepping(store: PostgresStore) -> Measure:
    it = Agent(
        instructions="x", skills=[Skill("look", execute=lambda: "seen", inputs={})], max_steps=STEPS + 1,
        provider=MockProvider().on_call(lambda messages, _: (
            '<command name="look"></command>' if len(messages) < 2 * STEPS else "<final>done</final>"
        )),
    )

    def run() -> None:
        result = kernai.execute(it, "go", store=store)
        assert result.steps == STEPS, result

    return timed(run)


def deciding(store: PostgresStore, times: int) -> float:
    """The median time in seconds from a decision to the worker's call of the skill."""
    found: list[float] = []
    called = threading.Event()

    def pay() -> None:
        found.append(time.perf_counter())
        called.set()

    model = MockProvider().on_call(lambda messages, _: (
        '<command name="pay"></command>' if messages[-1].text == "go" else "<final>done</final>"
    ))
    it = Agent(instructions="x", provider=model, skills=[Skill("pay", execute=pay, inputs={}, approval=True)])
    workers = Workers(store, {"clerk": it}, concurrency=4)
    thread = threading.Thread(target=workers.run)
    thread.start()
    for at in range(times):
        handle = workers.submit("clerk", "go")
        handle.result(60)
        called.clear()
        began = time.perf_counter()
        store.decide(handle.run_id, "0.0", True)
        called.wait(60)
        found[at] -= began
    workers.stop()
    thread.join()
    return median(found)


def commits(server: Server, work: Callable[[], object]) -> int:
    """How many transactions have written data during `work`."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        def written() -> int:
            row = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
            assert row is not None
            return int(row[0])

        before = written()
        work()
        return written() - before - 1


def of_a_million(server: Server, count: int) -> None:
    opened = PostgresStore(server.dsn, schema="million", create=True)
    with opened as store, psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("SET search_path TO million")
        info = RunInfo("r", "clerk", "waiting", pending=(PendingCall("0.0", "pay", {"amount": 3}),))
        connection.execute(_FILL, {"count": count, "info": dumps_data(info.to_dict())})
        connection.execute(_FILL_ENTRIES, {"count": count, "text": TEXTS[0]})
        connection.execute("VACUUM ANALYZE runs")
        connection.execute("VACUUM ANALYZE entries")
        numbers = (number * 997 % count + 1 for number in itertools.count())  # 997 is a prime: each comes once
        works: dict[str, Callable[[], object]] = {
            'runs(status="waiting").page(50)': lambda: store.runs(status="waiting").page(50),
            'runs(tags={"customer": "77"}).page(50)': lambda: store.runs(tags={"customer": "77"}).page(50),
            "runs().page(50)": lambda: store.runs().page(50),
            "load": lambda: store.load(f"r{next(numbers)}"),
            "claim": lambda: store.claim(f"r{next(numbers)}", "bench", 60.0),
            "append of 4 entries": lambda: store.append(f"r{next(numbers)}", 4, ENTRIES, [], claim=("bench", 60.0)),
        }
        for name, work in works.items():
            work()
            emit(f"PostgresStore, {count:,} runs: {name}", median(timed(work)() for _ in range(100)), 0, "<= 20", "ms")
        for name, query in PLANS.items():
            rows = connection.execute(f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) {query}").fetchall()
            print(f"plan of {name}:", *(f"    {row[0]}" for row in rows), sep="\n", file=sys.stderr)


_LISTED = "SELECT info, decisions, entries FROM runs WHERE tenant = '' AND status <> ''"
_ORDER = "ORDER BY updated_at DESC, run_id LIMIT 50"
PLANS = {
    'runs(status="waiting")': f"{_LISTED} AND status = 'waiting' {_ORDER}",
    'runs(tags={"customer": "77"})': (
        f"""{_LISTED} AND tags @> ARRAY['["customer", "77"]'] AND tags <> '{{}}' {_ORDER}"""
    ),
    "runs()": f"{_LISTED} {_ORDER}",
    "load": "SELECT entry FROM entries WHERE tenant = '' AND run_id = 'r5' AND seq >= 0 ORDER BY seq",
    "append, claim": "UPDATE runs SET token = token WHERE tenant = '' AND run_id = 'r5' AND entries = 4 AND token = 1",
}


def main(*, quick: bool = False) -> None:
    """Emits a line for each figure; prints the plans of the queries on stderr."""
    if (why := Server.why_not()) is not None:
        print(f"PostgreSQL is not measured: {why}", file=sys.stderr)
        return
    rounds, times = (3, 50) if quick else (15, 100)
    with Server(durable=True, shared_buffers="256MB") as server:
        with psycopg.connect(server.dsn, autocommit=True) as bare, PostgresStore(server.dsn, create=True) as store:
            settings = [f"{name}={bare.execute(f'SHOW {name}').fetchone()[0]}" for name in SHOWN]  # type: ignore[index]  # there is one
            print(f"PostgreSQL {bare.info.server_version // 10000}, {', '.join(settings)}", file=sys.stderr)
            bare.execute("CREATE TABLE bare (id bigserial PRIMARY KEY, text text)")
            compare(
                "PostgresStore append of 4 entries", appending(store, times), inserting(bare, times),
                "<= 1.5", rounds=rounds, unit="us", per=times,
            )  # fmt: skip
            run = stepping(store)
            compare(
                "a step with PostgresStore, beside two commits", run, inserting(bare, 2 * STEPS),
                "<= 1.5", rounds=rounds, unit="us", per=STEPS,
            )  # fmt: skip
            emit(f"transactions of a run of {STEPS} steps", commits(server, run), 2 * STEPS, "<= 1", "")
            emit("from a decision to the call by a worker", deciding(store, times), 0, "<= 100", "ms")
        of_a_million(server, 20_000 if quick else 1_000_000)
