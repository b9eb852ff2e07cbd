"""The rules for stores on kernai's own, and on stores of which each breaks one rule."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
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


def broken(base: type[Any], **methods: Callable[..., Any]) -> type[Any]:
    """A kind of store with other methods, which are given the right one first."""

    def made(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda own, *given, **terms: method(partial(getattr(base, name), own), *given, **terms)

    return type("Broken", (base,), {name: made(name, method) for name, method in methods.items()})


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


class NeedsFiles(Plain):
    def append(self, run_id: str, first_seq: int, entries: Sequence[Entry], media: Sequence[Media]) -> None:
        for one in media:
            one.read_bytes()
        super().append(run_id, first_seq, entries, media)


class KeepsMedia(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.left: list[Media] = []

    def delete(self, run_id: str) -> None:
        self.left += super().load_media(run_id)
        super().delete(run_id)

    def load_media(self, run_id: str) -> list[Media]:
        return super().load_media(run_id) or self.left


def strict(right: Any, run_id: str) -> Any:
    raise KeyError(run_id)


def changing_media(change: Callable[[Media], Media]) -> type[Any]:
    return broken(Plain, load_media=lambda right, run_id: [change(one) for one in right(run_id)])


def changing_runs(**changes: Any) -> type[Any]:
    return broken(Plain, runs=lambda right: [replace(info, **changes) for info in right()])


BROKEN: dict[str, type[Any]] = {
    "entries_come_back_in_the_order_in_which_they_were_appended": broken(Plain, load=lambda right, run_id: right(run_id)[::-1]),
    "entries_come_back_as_they_were": NarrowText,
    "an_entry_that_is_changed_later_changes_nothing_in_the_store": ByReference,
    "runs_are_kept_apart": broken(Plain, append=lambda right, run_id, *given: right(run_id.lower(), *given)),
    "a_run_that_is_not_there_has_no_entries": broken(Plain, load=strict),
    "a_run_id_that_is_unfit_is_refused": broken(
        Plain, append=lambda right, run_id, *given: right(f"bad-{BAD_IDS.index(run_id)}", *given)),
    "an_append_of_what_is_there_already_is_a_conflict_and_writes_nothing": Overwrites,
    "an_append_that_leaves_a_gap_is_a_conflict_and_writes_nothing": FillsGaps,
    "an_append_that_fails_half_way_keeps_nothing": OneByOne,
    "of_workers_that_append_the_same_entry_exactly_one_wins": LooksAndThenWrites,
    "workers_with_runs_of_their_own_do_not_disturb_each_other": SharesItsState,
    "bytes_come_back_with_all_their_fields": changing_media(lambda media: replace(media, metadata={})),
    "a_url_comes_back_whole": changing_media(
        lambda media: Media.from_url(str(media.to_dict()["data"]), metadata=media.metadata)),
    "a_file_is_kept_as_it_was_when_it_came": changing_media(lambda media: replace(media, payload=None)),
    "a_file_that_cannot_be_read_stays_a_reference": NeedsFiles,
    "media_that_come_twice_are_kept_once_and_in_order": broken(
        Plain, load_media=lambda right, run_id: sorted(right(run_id), key=lambda one: one.id)),
    "runs_are_listed_newest_first": broken(Plain, runs=lambda right: right()[::-1]),
    "a_run_is_listed_with_its_agent_and_its_last_time": changing_runs(agent=None),
    "the_status_follows_the_entries": changing_runs(status="running"),
    "a_run_that_is_deleted_is_gone": KeepsMedia,
}


def test_there_is_a_broken_store_for_every_rule() -> None:
    assert {name.removeprefix("test_") for name in vars(StoreRules) if name.startswith("test_")} == set(BROKEN)


@pytest.mark.parametrize("rule", BROKEN)
def test_a_store_that_breaks_a_rule_is_caught(rule: str) -> None:
    class Rules(StoreRules):
        def make(self) -> Store:
            store: Store = BROKEN[rule]()
            return store

    with pytest.raises(Exception) as caught:
        getattr(Rules(), f"test_{rule}")()
    assert not isinstance(caught.value, (AttributeError, NotImplementedError, TypeError))


# ------------------------------------------------------------------------------------------- copies with a fault each


class ForgetsATombstone(MemoryStore):
    def delete(self, *given: Any, **asked: Any) -> int:
        deleted = super().delete(*given, **asked)
        self._runs = {key: run for key, run in self._runs.items() if run.head.entries}
        return deleted


class SkipsInPages(MemoryStore):
    def _find(self, wanted: RunFilter, limit: int, after: RunInfo | None) -> list[RunInfo]:
        found = super()._find(wanted, 1000, after)
        return [one for one in found if after is None or one.updated_at != after.updated_at][:limit]


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


class ClaimsLate(SqliteStore):
    """Looks whether the run is free, and claims it in another transaction."""

    def claim(self, run_id: str, worker: str, seconds: float) -> Lease:
        if (info := self.info(run_id)) is None or info.lease is not None:
            raise RunBusyError(run_id)
        time.sleep(0.01)  # what may pass there
        self._change(run_id, lambda head: setattr(head, "holder", None))
        return super().claim(run_id, worker, seconds)


class DropsDecisions(MemoryStore):
    """Takes a decision for used as soon as somebody resumes the run."""

    def append(self, *given: Any, **terms: Any) -> Any:
        made = super().append(*given, **terms)
        self._runs["", given[0]].head.decisions = {}
        return made


class SharesDecisions(MemoryStore):
    def info(self, run_id: str) -> RunInfo | None:
        info = super().info(run_id)
        return info and replace(info, decisions=self._runs["", run_id].head.decisions)


def latest(own: MemoryStore, lease: Lease) -> Lease:
    """The lease as whoever has the run by now would have it."""
    return replace(lease, token=own._runs["", lease.run_id].head.token)


#: by the rule that finds it, what is wrong with a store
FAULTS: list[tuple[str, type[Any]]] = [
    # looks how many entries there are, and writes in another transaction
    ("an_append_that_is_repeated_is_no_conflict", broken(
        MemoryStore, append=lambda right, run_id, seq, *given, **terms: right(run_id, len(right.args[0].load(run_id)), *given, **terms))),
    ("an_append_under_an_older_lease_writes_nothing", broken(MemoryStore, append=lambda right, *given, lease=None, **terms: right(
        *given, lease=lease and latest(right.args[0], lease), **terms))),
    ("a_wrong_clock_of_the_client_ends_no_lease", broken(MemoryStore, _now=lambda right: time.time())),
    ("a_worker_of_a_deleted_run_cannot_write_into_a_new_one", ForgetsATombstone),
    ("a_run_is_loaded_from_any_entry_on", broken(MemoryStore, load=lambda right, run_id, seq=0: right(run_id, seq and seq + 1))),
    ("pages_have_every_run_once_and_in_order", SkipsInPages),
    ("runs_are_found_by_what_is_asked", broken(
        MemoryStore, _find=lambda right, *given: sorted(right(*given), key=lambda info: info.run_id))),
    ("who_gives_back_an_older_lease_leaves_the_new_one_alone", broken(
        MemoryStore, release=lambda right, lease: right(latest(right.args[0], lease)))),
    ("an_append_that_is_repeated_is_no_conflict", broken(
        MemoryStore, append=lambda right, *given, writer=None, **terms: right(*given, **terms))),
    ("a_lease_that_is_renewed_outlasts_its_first_end", broken(MemoryStore, renew=lambda right, lease: lease)),
    ("an_append_under_an_older_lease_writes_nothing", broken(
        MemoryStore, renew=lambda right, lease: right(latest(right.args[0], lease)))),
    ("a_decision_is_kept_until_it_is_recorded", KeepsDecisions),
    ("a_decision_is_kept_until_it_is_recorded", DropsDecisions),
    ("what_is_handed_in_or_out_may_be_changed", SharesDecisions),
    ("the_status_says_whether_somebody_works_on_the_run", broken(
        MemoryStore, info=lambda right, run_id: replace(right(run_id), status="running"))),
    ("a_run_that_somebody_works_on_is_not_deleted", DeletesWhatIsWorkedOn),
    ("tenants_see_their_own_runs", broken(MemoryStore, tenant=lambda right, name: right(name) and right.args[0])),
    ("the_lease_of_a_process_that_died_is_over", broken(
        SqliteStore, claim=lambda right, run_id, worker, seconds: right(run_id, "somebody", seconds))),
    ("a_request_to_cancel_reaches_the_worker", broken(MemoryStore, cancel_requests=lambda right, run_ids: {})),
    ("of_processes_that_claim_at_once_one_wins", ClaimsLate),
]


@pytest.mark.parametrize("rule, faulty", FAULTS)
def test_a_fault_in_a_copy_of_a_store_is_found(rule: str, faulty: type[Any], tmp_path: Path) -> None:
    class Rules(RunStoreRules):
        processes = issubclass(faulty, SqliteStore)

        def make(self) -> RunStore:
            return faulty(tmp_path / "runs.db", durability="process") if issubclass(faulty, SqliteStore) else faulty()

        def reopen(self, store: RunStore) -> RunStore:
            return self.make() if issubclass(faulty, SqliteStore) else store

    with pytest.raises(Exception) as caught:
        getattr(Rules(), f"test_{rule}")()
    assert not isinstance(caught.value, (AttributeError, NotImplementedError, TypeError))


def test_a_store_that_raises_in_a_worker_is_caught_even_if_it_has_written() -> None:
    def append(right: Callable[..., object], *given: Any) -> None:
        right(*given)
        if threading.current_thread() is not threading.main_thread():
            raise OSError("the disk is gone")

    class Rules(StoreRules):
        def make(self) -> Store:
            store: Store = broken(Plain, append=append)()
            return store

    with pytest.raises(OSError, match="the disk is gone"):
        Rules().test_workers_with_runs_of_their_own_do_not_disturb_each_other()


@pytest.mark.parametrize("rules", [StoreRules, RunStoreRules])
def test_the_rules_need_no_pytest(rules: Any) -> None:
    source = Path(rules.make.__code__.co_filename).read_text(encoding="utf-8")
    assert "import pytest" not in source
    assert all(one.endswith(" is not None") for one in re.findall(r"\bassert (.+)", source))  # `python -O` leaves them out
