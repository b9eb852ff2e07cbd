"""The rules for stores on kernai's own, and on stores of which each breaks one rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kernai import Media, MemoryStore, RunInfo, RunStore, SqliteStore, Store
from kernai.durable.sqlite_store import Durability
from kernai.durable.store import Entry
from kernai.testing import RunStoreRules, StoreRules


class Plain:
    """A store of a user's own: the five methods, and no leases."""

    def __init__(self) -> None:
        self._kept = MemoryStore()

    def append(self, run_id: str, first_seq: int, entries: Sequence[Entry], media: Sequence[Media]) -> None:
        self._kept.append(run_id, first_seq, entries, media)

    def load(self, run_id: str) -> list[Entry]:
        return self._kept.load(run_id)

    def load_media(self, run_id: str) -> list[Media]:
        return self._kept.load_media(run_id)

    def runs(self) -> list[RunInfo]:
        return list(self._kept.runs())

    def delete(self, run_id: str) -> None:
        self._kept.delete(run_id)


class TestPlainStore(StoreRules):
    def make(self) -> Store:
        return Plain()


class TestMemoryStore(StoreRules):
    def make(self) -> Store:
        return MemoryStore()


class TestLeasesInMemory(RunStoreRules):
    def make(self) -> RunStore:
        return MemoryStore()


class _InSqlite:
    durability: Durability = "process"

    @pytest.fixture(autouse=True)
    def _files(self, tmp_path: Path) -> Iterator[None]:
        self.folder = tmp_path
        self.stores: list[SqliteStore] = []
        yield
        for store in self.stores:
            store.close()

    def make(self) -> SqliteStore:
        return self._opened(self.folder / f"{len(self.stores)}.db")

    def reopen(self, store: Any) -> SqliteStore:
        assert isinstance(store, SqliteStore)
        return self._opened(Path(store.path))

    def _opened(self, path: Path) -> SqliteStore:
        self.stores.append(SqliteStore(path, durability=self.durability))
        return self.stores[-1]


class TestSqliteStoreThatSurvivesAPowerCut(_InSqlite, StoreRules):
    durability = "power"


class TestSqliteStoreThatSurvivesAKill(_InSqlite, StoreRules):
    pass


class TestLeasesInSqlite(_InSqlite, RunStoreRules):
    processes = True
