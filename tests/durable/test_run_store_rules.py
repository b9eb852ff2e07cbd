"""The rules for stores with leases, on kernai's own, and on copies with a fault in each."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernai import MemoryStore, RunBusyError, RunInfo, RunStore, SqliteStore
from kernai.durable.lease import Lease
from kernai.durable.store import Entry, RunFilter
from kernai.testing import RunStoreRules


class TestMemoryStore(RunStoreRules):
    def make(self) -> RunStore:
        return MemoryStore()


class TestSqliteStore(RunStoreRules):
    processes = True

    @pytest.fixture(autouse=True)
    def _files(self, tmp_path: Path) -> Iterator[None]:
        self.folder = tmp_path
        self.stores: list[SqliteStore] = []
        yield
        for store in self.stores:
            store.close()

    def make(self) -> SqliteStore:
        return self._opened(self.folder / f"{len(self.stores)}.db")

    def reopen(self, store: RunStore) -> SqliteStore:
        assert isinstance(store, SqliteStore)
        return self._opened(Path(store.path))

    def _opened(self, path: Path) -> SqliteStore:
        self.stores.append(SqliteStore(path, durability="process"))
        return self.stores[-1]


# ------------------------------------------------------------------------------------------- copies with a fault each


class LosesAnUpdate(MemoryStore):
    """Looks how many entries there are, and writes in another transaction."""

    def append(self, run_id: str, first_seq: int, *given: Any, **terms: Any) -> Any:
        return super().append(run_id, len(self.load(run_id)), *given, **terms)


class HasNoFence(MemoryStore):
    def append(self, *given: Any, lease: Lease | None = None, **terms: Any) -> Any:
        return super().append(*given, lease=lease and replace(lease, token=self._runs["", given[0]].head.token), **terms)


class GoesByTheClientsClock(MemoryStore):
    def _now(self) -> float:
        return time.time()


class ForgetsATombstone(MemoryStore):
    def delete(self, *given: Any, **asked: Any) -> int:
        deleted = super().delete(*given, **asked)
        self._runs = {key: run for key, run in self._runs.items() if run.head.entries}
        return deleted


class LeavesAGap(MemoryStore):
    def load(self, run_id: str, from_seq: int = 0) -> list[Entry]:
        return super().load(run_id, from_seq and from_seq + 1)


class SkipsInPages(MemoryStore):
    def _find(self, wanted: RunFilter, limit: int, after: RunInfo | None) -> list[RunInfo]:
        found = super()._find(wanted, 1000, after)
        return [one for one in found if after is None or one.updated_at != after.updated_at][:limit]


class SortsByIdAlone(MemoryStore):
    def _find(self, wanted: RunFilter, limit: int, after: RunInfo | None) -> list[RunInfo]:
        return sorted(super()._find(wanted, limit, after), key=lambda info: info.run_id)


class AnybodyGivesBack(MemoryStore):
    def release(self, lease: Lease) -> None:
        super().release(replace(lease, token=self._runs["", lease.run_id].head.token))


class TakesARepetitionForAConflict(MemoryStore):
    def append(self, *given: Any, writer: str | None = None, **terms: Any) -> Any:
        return super().append(*given, **terms)


class NeverRenews(MemoryStore):
    def renew(self, lease: Lease) -> Lease:
        return lease


class RenewsForAnybody(MemoryStore):
    def renew(self, lease: Lease) -> Lease:
        return super().renew(replace(lease, token=self._runs["", lease.run_id].head.token))


class KeepsDecisions(MemoryStore):
    def append(self, *given: Any, **terms: Any) -> Any:
        kept = dict(self._runs["", given[0]].head.decisions) if ("", given[0]) in self._runs else {}
        made = super().append(*given, **terms)
        self._runs["", given[0]].head.decisions = kept
        return made


class DeletesWhatIsWorkedOn(MemoryStore):
    def delete(self, *given: Any, **asked: Any) -> int:
        for run in self._runs.values():
            run.head.holder = None
        return super().delete(*given, **asked)


class MixesTenants(MemoryStore):
    def tenant(self, name: str) -> Any:
        super().tenant(name)
        return self


class CannotTellTheDead(SqliteStore):
    def claim(self, run_id: str, worker: str, seconds: float) -> Lease:
        return super().claim(run_id, "somebody", seconds)


class MissesRequests(MemoryStore):
    def cancel_requests(self, run_ids: Iterable[str]) -> dict[str, str]:
        return {}


class ClaimsLate(SqliteStore):
    """Looks whether the run is free, and claims it in another transaction."""

    def claim(self, run_id: str, worker: str, seconds: float) -> Lease:
        if (info := self.info(run_id)) is None or info.lease is not None:
            raise RunBusyError(run_id)
        time.sleep(0.01)  # what may pass there
        self._change(run_id, lambda head: setattr(head, "holder", None))
        return super().claim(run_id, worker, seconds)


FAULTS: dict[type[MemoryStore | SqliteStore], str] = {
    LosesAnUpdate: "an_append_that_is_repeated_is_no_conflict",
    HasNoFence: "an_append_under_an_older_lease_writes_nothing",
    GoesByTheClientsClock: "a_wrong_clock_of_the_client_ends_no_lease",
    ForgetsATombstone: "a_worker_of_a_deleted_run_cannot_write_into_a_new_one",
    LeavesAGap: "a_run_is_loaded_from_any_entry_on",
    SkipsInPages: "pages_have_every_run_once_and_in_order",
    SortsByIdAlone: "runs_are_found_by_what_is_asked",
    AnybodyGivesBack: "who_gives_back_an_older_lease_leaves_the_new_one_alone",
    TakesARepetitionForAConflict: "an_append_that_is_repeated_is_no_conflict",
    NeverRenews: "a_lease_that_is_renewed_outlasts_its_first_end",
    RenewsForAnybody: "an_append_under_an_older_lease_writes_nothing",
    KeepsDecisions: "a_decision_is_kept_until_it_is_recorded",
    DeletesWhatIsWorkedOn: "a_run_that_somebody_works_on_is_not_deleted",
    MixesTenants: "tenants_see_their_own_runs",
    CannotTellTheDead: "the_lease_of_a_process_that_died_is_over",
    MissesRequests: "a_request_to_cancel_reaches_the_worker",
    ClaimsLate: "of_processes_that_claim_at_once_one_wins",
}


@pytest.mark.parametrize("faulty", FAULTS, ids=lambda faulty: faulty.__name__)
def test_a_fault_in_a_copy_of_a_store_is_found(faulty: type[MemoryStore | SqliteStore], tmp_path: Path) -> None:
    class Rules(RunStoreRules):
        processes = issubclass(faulty, SqliteStore)

        def make(self) -> RunStore:
            return faulty(tmp_path / "runs.db", durability="process") if issubclass(faulty, SqliteStore) else faulty()

        def reopen(self, store: RunStore) -> RunStore:
            return self.make() if issubclass(faulty, SqliteStore) else store

    with pytest.raises(Exception) as caught:
        getattr(Rules(), f"test_{FAULTS[faulty]}")()
    assert not isinstance(caught.value, (AttributeError, NotImplementedError, TypeError))


def test_the_rules_need_no_pytest() -> None:
    source = Path(RunStoreRules.make.__code__.co_filename).read_text(encoding="utf-8")
    assert "import pytest" not in source
