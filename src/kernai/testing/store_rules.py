"""`StoreRules`: the contract of every `Store`, as a class of tests to subclass.

::

    class TestMyStore(StoreRules):
        def make(self) -> Store:
            return MyStore(...)

Each rule is a test method for pytest, or for unittest if `unittest.TestCase` is a second base. Write `make`; for a
store that outlives its process, also write `reopen`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from kernai import KernaiError, Media, RunConflictError, Store
from kernai._util.redaction import one_line
from kernai.durable.store import Entry
from kernai.events import ProgressRow, ResultRow, RunResumedRow, RunStartRow
from kernai.testing.contracts import at_once

Raised = TypeVar("Raised", bound=Exception)
WORKERS = 8
LONGEST_SHOWN = 2000

#: all kinds of JSON data, and texts with which stores have failed
HARD_DATA: Any = {
    "texts": ["", "\0", "a\0b", "\ud800", "\udfff x", "\U0001f600", "é", "e\u0301", "\r\n\u2028", "'\"\\;--"],
    "numbers": [0, -1, 2**63, -(2**70), 10**400, 0.1, 1e308, -5e-324, 1.0],
    "others": [None, True, False, [], {}, [[[]]]],
    "": {"\0": "a", "\ud800": "b", " ": "c"},
    "long": "x" * 100_000,
}

BAD_IDS = ("", ".", "..", ".hidden", "a/b", "a b", "a\n", "ä", "a\0", "a" * 129, "\ud800", "../a", "a:b")
#: similar ids, which must stay different runs
ALIKE_IDS = ("a", "A", "a.", "a-", "a_", "aa", "a.0", "-a", "_", "0", "00", "a" * 128)

RESULTS = (("final", "final"), ("interrupt", "waiting"), ("error", "error"), ("max_steps", "max_steps"))


def entry(
    kind: str = ProgressRow.type, data: Any = None, *, scope: str = "", at: str = "2026-11-20T10:00:00.000Z"
) -> Entry:
    """An entry as `Event.to_dict` returns it."""
    place = {"step": 0, "depth": 0, "task_id": None, "scope": scope, "run_id": "r", "timestamp": at}
    return {"event": kind, **place, "data": data}


class StoreRules:
    """The rules for every `Store`, with or without leases. Subclass it and write `make`."""

    def make(self) -> Store:
        """Returns a new store without runs."""
        raise NotImplementedError

    def reopen(self, store: Store) -> Store:
        """Returns a store with the same runs, as another process would open it. By default the store itself."""
        return store

    # ------------------------------------------------------------------------------------------------- entries

    def test_entries_come_back_in_the_order_in_which_they_were_appended(self) -> None:
        store = self.make()
        given = [entry(data=number) for number in range(25)]
        for first, last in ((0, 1), (1, 12), (12, 13), (13, 25)):
            store.append("r", first, given[first:last], [])
        _same(store.load("r"), given, "what was appended in four parts")
        _same(self.reopen(store).load("r"), given, "the same, opened again")

    def test_entries_come_back_as_they_were(self) -> None:
        store = self.make()
        given = [entry(data=HARD_DATA), entry(data=HARD_DATA["texts"]), {"of another kind": ["x"]}]
        store.append("r", 0, given, [])
        _same(self.reopen(store).load("r"), given, "entries with unusual data")

    def test_an_entry_that_is_changed_later_changes_nothing_in_the_store(self) -> None:
        store = self.make()
        given = [entry(data={"list": [1]})]
        store.append("r", 0, given, [])
        given[0]["data"]["list"].append("by the writer")
        loaded = store.load("r")
        loaded[0]["data"]["list"].append("by a reader")
        loaded.append(entry())
        _same(store.load("r"), [entry(data={"list": [1]})], "what was appended")

    def test_runs_are_kept_apart(self) -> None:
        store = self.make()
        for run_id in ALIKE_IDS:
            store.append(run_id, 0, [entry(data=run_id)], [_media(run_id)])
        for run_id in ALIKE_IDS:
            _same(store.load(run_id), [entry(data=run_id)], f"the run {run_id!r}")
            _same(store.load_media(run_id), [_media(run_id)], f"the media of {run_id!r}")

    def test_a_run_that_is_not_there_has_no_entries(self) -> None:
        store = self.make()
        _same((store.load("r"), store.load_media("r"), list(store.runs())), ([], [], []), "an empty store")

    def test_a_run_id_that_is_unfit_is_refused(self) -> None:
        store = self.make()
        for run_id in BAD_IDS:
            _raises(ValueError, partial(store.append, run_id, 0, [entry()], []), f"run_id {run_id!r}")
        _same(list(store.runs()), [], "the runs")

    # -------------------------------------------------------------------------------------------------- order

    def test_an_append_of_what_is_there_already_or_that_leaves_a_gap_is_a_conflict_and_writes_nothing(self) -> None:
        store = self.make()
        given = [entry(data=number) for number in range(3)]
        store.append("r", 0, given, [])
        before = list(store.runs())
        for seq in (0, 1, 2, 4, 100):
            late = [entry(ResultRow.type, {"stop_reason": "final"}, at="2027-01-01T00:00:00.000Z")] * 4
            _raises(RunConflictError, partial(store.append, "r", seq, late, [_media("x")]), f"entry {seq} of 3")
        _raises(RunConflictError, lambda: store.append("new", 1, [entry()], []), "entry 1 of a run that does not exist")
        _same((store.load("r"), store.load_media("r"), list(store.runs())), (given, [], before), "the run")

    def test_an_append_that_fails_half_way_keeps_nothing(self) -> None:
        store = self.make()
        store.append("r", 0, [entry(data="a")], [])
        with suppress(_BrokenError):
            store.append("r", 1, [entry(data="lost"), _Broken(entry())], [_media("x")])
        _same((store.load("r"), store.load_media("r")), ([entry(data="a")], []), "the run after an append that failed")
        store.append("r", 1, [entry(data="b")], [])
        _same(self.reopen(store).load("r"), [entry(data="a"), entry(data="b")], "the run after the next one")

    def test_of_workers_that_append_the_same_entry_exactly_one_wins(self) -> None:
        store = self.make()
        for seq in range(5):
            won: list[int] = []

            def work(number: int, seq: int = seq, won: list[int] = won) -> None:
                try:
                    store.append("r", seq, [entry(data=number)], [])
                except RunConflictError:
                    return
                won.append(number)

            _same(at_once(work, WORKERS), [], "what the workers raised")
            _same(len(won), 1, "how many workers won")
            _same([one["data"] for one in store.load("r")[seq:]], won, "what is in the store")

    def test_workers_with_runs_of_their_own_do_not_disturb_each_other(self) -> None:
        store = self.make()

        def work(number: int) -> None:
            for seq in range(10):
                store.append(f"run-{number}", seq, [entry(data=seq)], [_media(str(seq))])
                store.load(f"run-{number}")

        _same(at_once(work, WORKERS), [], "what the workers raised")
        for number in range(WORKERS):
            _same([one["data"] for one in store.load(f"run-{number}")], list(range(10)), f"run {number}")
        _same(len(list(store.runs())), WORKERS, "how many runs there are")

    # -------------------------------------------------------------------------------------------------- media

    def test_bytes_come_back_with_all_their_fields(self) -> None:
        store = self.make()
        given = [
            Media.from_bytes(bytes(range(256)), mime_type="image/png", metadata={"page": "1", "\ud800": ["\0", None]}),
            Media.from_bytes(b"", mime_type="text/plain", kind="document"),
        ]
        store.append("r", 0, [entry()], given)
        _same(self.reopen(store).load_media("r"), given, "the media")

    def test_a_url_comes_back_whole(self) -> None:
        store = self.make()
        given = Media.from_url("https://user@example.org/a.png?token=\ud800#part", metadata={"page": "1"})
        store.append("r", 0, [entry()], [given])
        _same(self.reopen(store).load_media("r"), [given], "the media")

    def test_a_file_is_kept_as_it_was_when_it_came(self) -> None:
        store = self.make()
        with TemporaryDirectory() as folder:
            path = Path(folder, "a.png")
            path.write_bytes(b"then")
            given = Media.from_file(path, metadata={"page": "1"})
            store.append("r", 0, [entry()], [given])
            path.write_bytes(b"now")
            store.append("r", 1, [entry()], [given])
        found = self.reopen(store).load_media("r")
        _same([one.to_dict() for one in found], [given.to_dict()], "the media")
        _same([one.read_bytes() for one in found], [b"then"], "the file, which was changed, appended again, removed")

    def test_a_file_that_cannot_be_read_stays_a_reference(self) -> None:
        store = self.make()
        with TemporaryDirectory() as folder:
            path = Path(folder, "none.png")
            given = Media.from_file(path)
            store.append("r", 0, [entry()], [given])
            found = self.reopen(store).load_media("r")
            _same([one.to_dict() for one in found], [given.to_dict()], "the media")
            _raises(KernaiError, found[0].read_bytes, "the bytes of a file that was never there")
            path.write_bytes(b"late")
            store.append("r", 1, [entry()], [given])
        _same([one.read_bytes() for one in self.reopen(store).load_media("r")], [b"late"], "the file, there at last")

    def test_media_that_come_twice_are_kept_once_and_in_order(self) -> None:
        store = self.make()
        first, second, third = (_media(text) for text in "zya")
        store.append("r", 0, [entry()], [first, second, first])
        store.append("r", 1, [entry()], [third, second])
        _same(self.reopen(store).load_media("r"), [first, second, third], "the media")

    # --------------------------------------------------------------------------------------------------- runs

    def test_runs_are_listed_newest_first(self) -> None:
        store = self.make()
        for run_id, at in (("b", "2026-11-20"), ("c", "2026-11-19"), ("d", "2026-11-21"), ("a", "2026-11-20")):
            store.append(run_id, 0, [entry(at=at)], [])
        _same([info.run_id for info in store.runs()], ["d", "a", "b", "c"], "the order")
        store.append("c", 1, [entry(at="2026-11-22")], [])
        _same([info.run_id for info in self.reopen(store).runs()], ["c", "d", "a", "b"], "the order")

    def test_a_run_is_listed_with_its_agent_and_its_last_time(self) -> None:
        store = self.make()
        store.append("r", 0, [entry(RunStartRow.type, {"agent": "\ud800 clerk"}, at="1")], [])
        store.append("r", 1, [entry(RunStartRow.type, {"agent": "helper"}, scope="0.0", at="2"), entry(at="3")], [])
        listed = [(one.run_id, one.agent, one.updated_at) for one in self.reopen(store).runs()]
        _same(listed, [("r", "\ud800 clerk", "3")], "the list")

    def test_the_status_follows_the_entries(self) -> None:
        store = self.make()
        of_a_sub_run = entry(ResultRow.type, {"stop_reason": "final"}, scope="0.0")
        steps = [(entry(RunStartRow.type, {"agent": "a"}), "running"), (of_a_sub_run, "running")]
        for reason, status in RESULTS:
            steps += [(entry(ResultRow.type, {"stop_reason": reason}), status), (of_a_sub_run, status)]
            steps += [(entry(RunResumedRow.type), "running")]
        for seq, (one, status) in enumerate(steps):
            store.append("r", seq, [one], [])
            # nobody works on the run, so a store with leases says "abandoned"
            listed = [info.status.replace("abandoned", "running") for info in self.reopen(store).runs()]
            _same(listed, [status], f"the status after entry {seq}")

    def test_a_run_that_is_deleted_is_gone(self) -> None:
        store = self.make()
        for run_id in ("r", "s"):
            store.append(run_id, 0, [entry(data=run_id)], [_media(run_id)])
        store.delete("r")
        store.delete("r")
        store.delete("never-there")
        found = self.reopen(store)
        _same((found.load("r"), found.load_media("r")), ([], []), "what was deleted")
        _same((found.load("s"), found.load_media("s")), ([entry(data="s")], [_media("s")]), "the other run")
        _same([info.run_id for info in found.runs()], ["s"], "the runs")
        _raises(RunConflictError, lambda: store.append("r", 1, [entry()], []), "a worker that continues it")
        store.append("r", 0, [entry(data="again")], [])
        _same(store.load("r"), [entry(data="again")], "a new run of the same id")


def _media(text: str) -> Media:
    return Media.from_bytes(text.encode(), mime_type="text/plain", metadata={"name": text})


def _same(found: Any, expected: Any, what: str) -> None:
    if found != expected:
        shown, wanted = (one_line(ascii(one), LONGEST_SHOWN) for one in (found, expected))
        hint = "; they differ in what is not shown here, such as the metadata of media" if shown == wanted else ""
        raise AssertionError(f"{what}: expected {wanted}, found {shown}{hint}")


def _raises(kind: type[Raised], act: Callable[[], object], what: str) -> Raised:
    try:
        act()
    except kind as error:
        return error
    raise AssertionError(f"{what}: expected {kind.__name__}, and nothing was raised")


class _BrokenError(Exception):
    """Raised by an entry that cannot be read."""


class _Broken(Entry):
    """An entry that cannot be read."""

    def _fail(self, *_: object) -> Any:
        raise _BrokenError

    __getitem__ = __iter__ = get = items = keys = values = _fail
