"""The cost of storing a run: appends of four entries of 300 bytes.

Floors: for `MemoryStore`, making their JSON texts and appending these to a list; for `SqliteStore`, an INSERT of the
same texts, which the store must make first, and a commit, with the same settings.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from pathlib import Path
from typing import Any
from uuid import uuid4

from kernai import MemoryStore, SqliteStore, Store
from kernai.durable.sqlite_store import Durability
from kernai.jsonio.json_data import dumps
from support import Measure, compare, timed

ENTRY: dict[str, Any] = {
    "event": "skill_result", "step": 3, "depth": 0, "task_id": None, "scope": "", "run_id": "refund-42",
    "timestamp": "2026-11-20T10:00:00.000Z",
    "data": {"call_id": "3.0", "skill": "search", "result": "x" * 80, "duration_ms": 12},
}
ENTRY["data"]["result"] += "x" * (300 - len(dumps(ENTRY)))
ENTRIES = [ENTRY] * 4
TEXTS = [dumps(ENTRY)] * 4
SYNCHRONOUS: dict[Durability, str] = {"power": "FULL", "process": "NORMAL"}


def appending(store: Store, times: int) -> Measure:
    """Appends to a new run each time."""

    def append() -> None:
        run_id = uuid4().hex
        for seq in range(0, times * len(ENTRIES), len(ENTRIES)):
            store.append(run_id, seq, ENTRIES, [])

    return timed(append)


def bare_database(path: Path, durability: Durability) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS[durability]}")
    connection.execute("CREATE TABLE texts (text TEXT)")
    return connection


def inserting(connection: sqlite3.Connection, times: int) -> Measure:
    rows = [(text,) for text in TEXTS]

    def insert() -> None:
        for _ in range(times):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO texts (text) VALUES (?)", rows)
            connection.execute("COMMIT")

    return timed(insert)


def listing(times: int) -> Measure:
    def append() -> None:
        kept: list[str] = []
        for _ in range(times):
            kept.extend(map(json.dumps, ENTRIES))

    return timed(append)


def sqlite_figures(folder: Path, durability: Durability, times: int, rounds: int) -> None:
    bare = bare_database(folder / f"bare-{durability}.db", durability)
    with SqliteStore(folder / f"runs-{durability}.db", durability) as store:
        compare(
            f"SqliteStore append of 4 entries, {durability}", appending(store, times), inserting(bare, times),
            "<= 10", rounds=rounds, unit="us", per=times,
        )  # fmt: skip
    bare.close()


def main(*, quick: bool = False) -> None:
    """One line for each store. Files are in the working directory, since a temporary folder is often in memory."""
    rounds = 5 if quick else 30
    compare(
        "MemoryStore append of 4 entries", appending(MemoryStore(), 200), listing(200),
        "<= 2", rounds=rounds, unit="us", per=200,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(dir=".") as folder:
        sqlite_figures(Path(folder), "process", 200, rounds)
        sqlite_figures(Path(folder), "power", 50, rounds)
