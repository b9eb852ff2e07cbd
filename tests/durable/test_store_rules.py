"""The rules for stores on kernai's own, and on stores of which each breaks one rule."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernai import Media, MemoryStore, RunBusyError, RunConflictError, RunInfo, RunStore, SqliteStore, Store
from kernai.durable.lease import Lease
from kernai.durable.sqlite_store import Durability
from kernai.durable.store import Entry, RunFilter
from kernai.testing import RunStoreRules, StoreRules
from kernai.testing.store_rules import BAD_IDS, WORKERS


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


# ------------------------------------------------------------------------------------------- one broken store a rule


class Reversed(Plain):
    def load(self, run_id: str) -> list[Entry]:
        return super().load(run_id)[::-1]


class NarrowText(Plain):
    def load(self, run_id: str) -> list[Entry]:
        def narrowed(value: Any) -> Any:
            if isinstance(value, str):
                return value.encode("utf-8", "replace").decode()
            if isinstance(value, list):
                return list(map(narrowed, value))
            return {key: narrowed(one) for key, one in value.items()} if isinstance(value, dict) else value

        return [narrowed(one) for one in super().load(run_id)]


class ByReference(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Entry] = []

    def append(self, run_id: str, first_seq: int, entries: Sequence[Entry], media: Sequence[Media]) -> None:
        self.entries += entries

    def load(self, run_id: str) -> list[Entry]:
        return list(self.entries)


class LowerCase(Plain):
    def append(self, run_id: str, first_seq: int, entries: Sequence[Entry], media: Sequence[Media]) -> None:
        super().append(run_id.lower(), first_seq, entries, media)


class Strict(Plain):
    def load(self, run_id: str) -> list[Entry]:
        raise KeyError(run_id)


class AnyId(Plain):
    def append(self, run_id: str, first_seq: int, entries: Sequence[Entry], media: Sequence[Media]) -> None:
        super().append(f"bad-{BAD_IDS.index(run_id)}", first_seq, entries, media)


class Overwrites(Plain):
    def append(self, run_id: str, first_seq: int, entries: Sequence[Entry], media: Sequence[Media]) -> None:
        before = self.load(run_id)
        if first_seq < len(before):
            self.delete(run_id)
            super().append(run_id, 0, [*before[:first_seq], *entries], media)
        else:
            super().append(run_id, first_seq, entries, media)


class FillsGaps(Plain):
    def append(self, run_id: str, first_seq: int, entries: Sequence[Entry], media: Sequence[Media]) -> None:
        super().append(run_id, min(first_seq, len(self.load(run_id))), entries, media)


class OneByOne(Plain):
    def append(self, run_id: str, first_seq: int, entries: Sequence[Entry], media: Sequence[Media]) -> None:
        for seq, one in enumerate(entries, first_seq):
            super().append(run_id, seq, [one], media)


class LooksAndThenWrites(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.all_have_looked = threading.Barrier(WORKERS)
        self.turn = threading.Lock()

    def append(self, run_id: str, first_seq: int, entries: Sequence[Entry], media: Sequence[Media]) -> None:
        if first_seq != len(self.load(run_id)):
            raise RunConflictError("late")
        self.all_have_looked.wait()
        with self.turn:
            super().append(run_id, len(self.load(run_id)), entries, media)


class SharesItsState(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.run_id = ""
        self.all_are_in = threading.Barrier(WORKERS)

    def append(self, run_id: str, first_seq: int, entries: Sequence[Entry], media: Sequence[Media]) -> None:
        self.run_id = run_id
        with suppress(threading.BrokenBarrierError):
            self.all_are_in.wait()
        self.all_are_in.abort()  # once is enough
        super().append(self.run_id, first_seq, entries, media)


class ChangesMedia(Plain):
    def changed(self, media: Media) -> Media:
        raise NotImplementedError

    def load_media(self, run_id: str) -> list[Media]:
        return [self.changed(one) for one in super().load_media(run_id)]


class ForgetsMetadata(ChangesMedia):
    def changed(self, media: Media) -> Media:
        return replace(media, metadata={})


class ShortensUrls(ChangesMedia):
    def changed(self, media: Media) -> Media:
        return Media.from_url(str(media.to_dict()["data"]), metadata=media.metadata)


class ReadsFilesLate(ChangesMedia):
    def changed(self, media: Media) -> Media:
        return replace(media, payload=None)


class NeedsFiles(Plain):
    def append(self, run_id: str, first_seq: int, entries: Sequence[Entry], media: Sequence[Media]) -> None:
        for one in media:
            one.read_bytes()
        super().append(run_id, first_seq, entries, media)


class SortsMedia(Plain):
    def load_media(self, run_id: str) -> list[Media]:
        return sorted(super().load_media(run_id), key=lambda one: one.id)


class OldestFirst(Plain):
    def runs(self) -> list[RunInfo]:
        return super().runs()[::-1]


class NoAgent(Plain):
    def runs(self) -> list[RunInfo]:
        return [replace(info, agent=None) for info in super().runs()]


class NeverEnds(Plain):
    def runs(self) -> list[RunInfo]:
        return [replace(info, status="running") for info in super().runs()]


class KeepsMedia(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.left: list[Media] = []

    def delete(self, run_id: str) -> None:
        self.left += super().load_media(run_id)
        super().delete(run_id)

    def load_media(self, run_id: str) -> list[Media]:
        return super().load_media(run_id) or self.left


BROKEN: dict[str, type[Store]] = {
    "entries_come_back_in_the_order_in_which_they_were_appended": Reversed,
    "entries_come_back_as_they_were": NarrowText,
    "an_entry_that_is_changed_later_changes_nothing_in_the_store": ByReference,
    "runs_are_kept_apart": LowerCase,
    "a_run_that_is_not_there_has_no_entries": Strict,
    "a_run_id_that_is_unfit_is_refused": AnyId,
    "an_append_of_what_is_there_already_is_a_conflict_and_writes_nothing": Overwrites,
    "an_append_that_leaves_a_gap_is_a_conflict_and_writes_nothing": FillsGaps,
    "an_append_that_fails_half_way_keeps_nothing": OneByOne,
    "of_workers_that_append_the_same_entry_exactly_one_wins": LooksAndThenWrites,
    "workers_with_runs_of_their_own_do_not_disturb_each_other": SharesItsState,
    "bytes_come_back_with_all_their_fields": ForgetsMetadata,
    "a_url_comes_back_whole": ShortensUrls,
    "a_file_is_kept_as_it_was_when_it_came": ReadsFilesLate,
    "a_file_that_cannot_be_read_stays_a_reference": NeedsFiles,
    "media_that_come_twice_are_kept_once_and_in_order": SortsMedia,
    "runs_are_listed_newest_first": OldestFirst,
    "a_run_is_listed_with_its_agent_and_its_last_time": NoAgent,
    "the_status_follows_the_entries": NeverEnds,
    "a_run_that_is_deleted_is_gone": KeepsMedia,
}


def test_there_is_a_broken_store_for_every_rule() -> None:
    assert {name.removeprefix("test_") for name in vars(StoreRules) if name.startswith("test_")} == set(BROKEN)


@pytest.mark.parametrize("rule", BROKEN)
def test_a_store_that_breaks_a_rule_is_caught(rule: str) -> None:
    class Rules(StoreRules):
        def make(self) -> Store:
            return BROKEN[rule]()

    with pytest.raises(Exception) as caught:
        getattr(Rules(), f"test_{rule}")()
    assert not isinstance(caught.value, NotImplementedError)


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


@pytest.mark.parametrize("rules", [StoreRules, RunStoreRules])
def test_the_rules_need_no_pytest(rules: Any) -> None:
    source = Path(rules.make.__code__.co_filename).read_text(encoding="utf-8")
    assert "import pytest" not in source
    assert all(one.endswith(" is not None") for one in re.findall(r"\bassert (.+)", source))  # `python -O` leaves them out
