"""The rules for stores on kernai's own, and on stores of which each breaks one rule."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import kernai
from kernai import Agent, Media, MemoryStore, MockProvider, RunInfo, RunStore, SqliteStore, Store
from kernai.durable.store import Entry
from kernai.testing import RunStoreRules, StoreRules


class Plain:
    """A store as a user may write it: the five methods, without leases."""

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


@pytest.mark.parametrize("filters, error, message", [
    ({"status": "waitin"}, ValueError, "no run can have the status 'waitin'; did you mean 'waiting'"),
    ({"status": "interrupt"}, ValueError, "no run can have the status 'interrupt'; there are running, "),
    ({"updated_before": "90d"}, ValueError, "a time as text must be a date, or like 2026-11-20T10:00:00.000Z, got '90d'"),
    ({"updated_before": "2026-11-20T10:00:00+02:00"}, ValueError, "or like 2026-11-20T10:00:00.000Z"),
    ({"updated_before": datetime.fromisoformat("2026-01-01")}, ValueError, "a time needs its zone, such as datetime.now(timezone.utc)"),
    ({"updated_before": timedelta(days=90)}, TypeError, "a time must be a datetime with its zone"),
    ({"agent": Agent(instructions="")}, TypeError, "agent must be a name"),
    ({"waiting": True}, TypeError, "waiting must be a name"),
    ({"tags": ["order"]}, TypeError, "tags must be a mapping"),
])  # fmt: skip
def test_a_filter_that_can_match_no_run_is_an_error(filters: dict[str, Any], error: type[Exception], message: str) -> None:
    """Text is compared with the times of runs: before "90d" are all."""
    store = MemoryStore()
    kernai.execute(Agent(instructions="", provider=MockProvider("hi")), "go", store=store, run_id="r")
    with pytest.raises(error, match=re.escape(message)):
        store.runs(**filters)
    if filters.keys() <= {"status", "updated_before"}:
        with pytest.raises(error, match=re.escape(message)):
            store.delete(**filters)
    assert [info.run_id for info in store.runs(updated_before="2999", status="final")] == ["r"]


def test_a_run_is_found_by_the_value_of_its_tag() -> None:
    """A run's tags are kept as texts."""
    store = MemoryStore()
    order: Any = enum.Enum("order", {"LAST": 43})
    tagged = {"tags": {"order": order.LAST}}
    kernai.execute(Agent(instructions=""), "go", store=store, run_id="r", metadata=tagged, provider=MockProvider("hi"))
    for value in (43, "43", order.LAST):
        assert [info.run_id for info in store.runs(tags={"order": value})] == ["r"]  # type: ignore[dict-item]  # the point
    assert (bool(store.runs(status="final")), bool(store.runs(status="blocked"))) == (True, False)


def test_a_run_that_is_claimed_after_it_was_listed_is_not_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    store.append("r", 0, [{"event": "progress"}], [])
    find, claims = store._find, iter([("r", "first", 30.0)])
    monkeypatch.setattr(store, "_find", lambda *given: (find(*given), [store.claim(*one) for one in claims])[0])
    assert store.delete(updated_before="2999") == 0


@pytest.mark.parametrize("act, error, message", [
    *((lambda store, seq=seq: next(store.watch("r", seq)), ValueError, "from_seq must be 0 or a positive int") for seq in (-1, True, "1", None)),
    (lambda store: store.tenant("acme").append("r", 1, [{"event": "progress"}], [], claim=(7, 30.0)), TypeError, "worker must be a name, got int"),
    (lambda store: next(store.watch("r", timeout="1")), TypeError, "timeout must be a number of seconds, got str"),
    (lambda store: store.load_media("r", "abc"), TypeError, "ids must be a list of ids: write ids=['abc']"),
    (lambda store: store.tenant("acme").request_cancel("r", 7), TypeError, "reason must be text, got int"),
    (lambda store: store.request_cancel("acme/r"), ValueError, "run_id must be 1 to 128 of the characters"),
])  # fmt: skip
def test_an_argument_that_no_run_can_have_is_refused(act: Any, error: type[Exception], message: str, tmp_path: Path) -> None:
    """A `SqliteStore` keeps a tenant's run as TENANT/RUN."""
    with SqliteStore(tmp_path / "runs.db") as kept:
        for store in (MemoryStore(), kept):
            store.tenant("acme").append("r", 0, [{"event": "progress"}], [])
            with pytest.raises(error, match=re.escape(message)):
                act(store)


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
    @pytest.fixture(autouse=True)
    def _files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr("kernai.durable.store.PAGE", 2)  # pages grow, up to 8000
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
        self.stores.append(SqliteStore(path, durability="process"))
        return self.stores[-1]


class TestSqliteStore(_InSqlite, StoreRules):
    pass


class TestLeasesInSqlite(_InSqlite, RunStoreRules):
    processes = True
