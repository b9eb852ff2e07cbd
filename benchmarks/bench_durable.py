"""The cost of storing a run: appends of four entries of 300 bytes.

Floors: for `MemoryStore`, making their JSON texts and appending these to a list; for `SqliteStore`, an INSERT of the
same texts, which the store must make first, and a commit, with the same settings.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernai import MemoryStore, SqliteStore, Store
from kernai.durable.sqlite_store import Durability
from kernai.jsonio.json_data import dumps
from support import best_of, emit

ENTRY: dict[str, Any] = {
    "event": "skill_result", "step": 3, "depth": 0, "task_id": None, "scope": "", "run_id": "refund-42",
    "timestamp": "2026-11-20T10:00:00.000Z",
    "data": {"call_id": "3.0", "skill": "search", "result": "x" * 80, "duration_ms": 12},
}
ENTRY["data"]["result"] += "x" * (300 - len(dumps(ENTRY)))
ENTRIES = [ENTRY] * 4
TEXTS = [dumps(ENTRY)] * 4
SYNCHRONOUS: dict[Durability, str] = {"power": "FULL", "process": "NORMAL"}


def appending(store: Store, times: int) -> Callable[[], None]:
    """A function that appends to a new run each time it is called."""
    calls = iter(range(10**9))

    def append() -> None:
        run_id = f"run-{next(calls)}"
        for seq in range(0, times * len(ENTRIES), len(ENTRIES)):
            store.append(run_id, seq, ENTRIES, [])

    return append


def bare_database(path: Path, durability: Durability) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS[durability]}")
    connection.execute("CREATE TABLE texts (text TEXT)")
    return connection


def inserting(connection: sqlite3.Connection, times: int) -> Callable[[], None]:
    rows = [(text,) for text in TEXTS]

    def insert() -> None:
        for _ in range(times):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO texts (text) VALUES (?)", rows)
            connection.execute("COMMIT")

    return insert


def listing(times: int) -> Callable[[], None]:
    def append() -> None:
        kept: list[str] = []
        for _ in range(times):
            kept.extend(map(json.dumps, ENTRIES))

    return append


def compared(name: str, work: Callable[[], None], floor: Callable[[], None], times: int, rounds: int, aim: str) -> None:
    """Measures both in turns, so that a slow moment affects both."""
    ours = floors = float("inf")
    for _ in range(rounds):
        ours, floors = min(ours, best_of(work, 1)), min(floors, best_of(floor, 1))
    emit(name, ours / times * 1e6, floors / times * 1e6, ours / floors, aim, unit="µs")


def sqlite_figures(folder: Path, durability: Durability, times: int, rounds: int, aim: str) -> None:
    bare = bare_database(folder / f"bare-{durability}.db", durability)
    with SqliteStore(folder / f"runs-{durability}.db", durability) as store:
        name = f"SqliteStore append of 4 entries, {durability}"
        compared(name, appending(store, times), inserting(bare, times), times, rounds, aim)
    bare.close()


def main(*, quick: bool = False) -> None:
    """One line for each store. Files are in the working directory, since a temporary folder is often in memory."""
    rounds = 5 if quick else 30
    compared("MemoryStore append of 4 entries", appending(MemoryStore(), 200), listing(200), 200, rounds, "<= 2")
    with tempfile.TemporaryDirectory(dir=".") as folder:
        sqlite_figures(Path(folder), "process", 200, rounds, "<= 10")
        sqlite_figures(Path(folder), "power", 50, rounds, "<= 10")
