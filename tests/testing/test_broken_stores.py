"""The rules for stores catch a store that breaks one of them."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial, wraps
from itertools import count
from pathlib import Path
from traceback import walk_stack, walk_tb
from typing import Any

import pytest

from kernai import Media, MemoryStore, RunBusyError, RunConflictError, RunInfo, SqliteStore
from kernai.durable.lease import Lease
from kernai.durable.store import Entry, RunFilter
from kernai.testing import RunStoreRules, StoreRules
from kernai.testing.store_rules import WORKERS, entry
from kernai.values.media import MediaReference
from kernai.values.pending_calls import PendingCall
from tests.durable.test_store_rules import Plain

# ---------------------------------------------------------------------- stores that answer one call of a rule wrongly

WRONG = RunInfo(
    "wrong", "wrong", "wrong", "wrong", "wrong", 99, pending=(PendingCall("wrong"),), tags={"wrong": ""}, why="wrong",
    number=99, length=99, decisions={"wrong": ""},
)


class OnePage(list[RunInfo]):
    def page(self, limit: int, after: RunInfo | None = None) -> list[RunInfo]:
        return [] if after else self


class Reference(MediaReference):
    def read_bytes(self) -> bytes:
        return b"wrong"


def another_lease(right: Lease | None) -> Lease | None:
    return right and replace(right, worker="wrong", cancel="wrong", number=99)


AGES = count(1)


def an_older_lease(right: Lease | None) -> Lease | None:
    return right and replace(right, token=right.token - next(AGES))


def another_call(right: RunInfo | None) -> RunInfo | None:
    return right and replace(right, length=99, pending=tuple(replace(one, reason="wrong") for one in right.pending))


#: by method, what a store may answer instead of what is right
WRONG_ANSWERS: dict[str, list[Callable[[Any], Any]]] = {
    "append": [another_lease, an_older_lease],
    "cancel_requests": [lambda right: {**right, "wrong": ""}],
    "claim": [another_lease, an_older_lease],
    "delete": [lambda right: right + 1],
    "info": [lambda right: WRONG, another_call],
    "load": [lambda right: [*right, entry(data={"agent": "wrong"})]],
    "load_media": [
        lambda right: [*right, Media.from_bytes(b"wrong", mime_type="text/plain")],
        lambda right: [Reference(one.to_dict()) for one in right],
    ],
    "renew": [another_lease],
    "runs": [lambda right: OnePage([*right, WRONG])],
    "watch": [
        lambda right: ({"data": "wrong"} for _ in right),
        lambda right: ({"data": "wrong"} if number else one for number, one in enumerate(right)),
    ],
}
Sites = dict[tuple[int, str], "Callable[[Any], Any] | None"]


class Answering:
    """A store that does what it should; its answer to a call is wrong, and it refuses nothing, where `sites` says so."""

    def __init__(self, right: Any, sites: Sites) -> None:
        self._right, self._sites = right, sites

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._right, name)

        @wraps(method)
        def call(*given: Any, **terms: Any) -> Any:
            frames = (frame for frame, _ in walk_stack(sys._getframe()) if "Rules." in frame.f_code.co_qualname)
            wrong = self._sites.setdefault((next(frames).f_lineno, name), None)
            try:
                answer = method(*given, **terms)
            except Exception:
                if wrong is None:
                    raise
                return None
            if name == "tenant":
                return Answering(answer, self._sites)
            return wrong(answer) if wrong else answer

        return call


def reported(rules: type[Any], rule: str) -> dict[int, str]:
    """What the rule says of stores that answer one of its calls wrongly, by its line that fails."""
    sites: Sites = {}
    kind = Plain if rules is StoreRules else MemoryStore

    class Rules(rules):  # type: ignore[misc]  # a variable
        def make(self) -> Any:
            return Answering(kind(), sites)

    def run() -> None:
        getattr(Rules(), f"test_{rule}")()

    run()
    found: dict[int, str] = {}
    for site in list(sites):
        for wrong in WRONG_ANSWERS.get(site[1], [lambda right: right]):
            sites[site] = wrong
            try:
                run()
            except AssertionError as error:
                lines = [at for frame, at in walk_tb(error.__traceback__) if "Rules." in frame.f_code.co_qualname]
                found.setdefault(lines[-1], str(error)[:100])
            except Exception:  # the rule cannot continue
                pass
            sites[site] = None
    return found


#: checks that such answers cannot fail: the faults below do
SUBTLE = {"the error", "the runs in pages of {limit}", "the decision", "what the workers raised"}


def checks_of(method: Callable[..., Any]) -> set[int]:
    """The lines of a rule's checks, and of those in the methods that it calls."""
    lines, first = inspect.getsourcelines(method)
    found: set[int] = set()
    for node in ast.walk(ast.parse(textwrap.dedent("".join(lines)))):
        match node:
            case ast.Call(func=ast.Name(id="_same" | "_raises" | "_busy"), args=[*_, said]):
                found |= {first + node.lineno - 1} if ast.unparse(said).strip("f'") not in SUBTLE else set()
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if name != "reopen":
                found |= checks_of(getattr(RunStoreRules, name, None) or getattr(StoreRules, name))
    return found


@pytest.mark.parametrize("rules, rule", [
    (rules, name.removeprefix("test_")) for rules in (StoreRules, RunStoreRules) for name in vars(rules)
    if name.startswith("test_") and "process" not in name  # a process would have stores of its own
])
def test_each_check_of_a_rule_fails_for_a_store_that_answers_it_wrongly(rules: type[Any], rule: str) -> None:
    assert reported(rules, rule).keys() >= checks_of(getattr(rules, f"test_{rule}"))


# ------------------------------------------------------------------------------------------------ stores with a fault


def broken(base: type[Any], **methods: Callable[..., Any]) -> type[Any]:
    """A class of stores with other methods, each of which receives the right one as its first argument."""

    def made(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda own, *given, **terms: method(partial(getattr(base, name), own), *given, **terms)

    return type("Broken", (base,), {name: made(name, method) for name, method in methods.items()})


def by_reference(into: Callable[[Any], Any], out_of: Callable[[Any], Any]) -> type[Any]:
    class ByReference(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.entries: list[Entry] = []

        def append(self, run_id: str, first_seq: int, entries: Sequence[Entry], media: Sequence[Media]) -> None:
            self.entries += into(entries)

        def load(self, run_id: str) -> list[Entry]:
            loaded: list[Entry] = out_of(self.entries)
            return loaded

    return ByReference


def starting_over(right: Any, run_id: str, first_seq: int, *given: Any) -> None:
    if first_seq == 0:
        right.args[0].delete(run_id)
    right(run_id, first_seq, *given)


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


class SkipsInPages(MemoryStore):
    def _find(self, wanted: RunFilter, limit: int, after: RunInfo | None) -> list[RunInfo]:
        found = super()._find(wanted, 1000, after)
        return [one for one in found if after is None or one.updated_at != after.updated_at][:limit]


class ClaimsLate(SqliteStore):
    """Looks whether the run is free, and claims it in another transaction."""

    def claim(self, run_id: str, worker: str, seconds: float) -> Lease:
        if (info := self.info(run_id)) is None or info.lease is not None:
            raise RunBusyError(run_id)
        os.write(looks := os.open(f"{self.path}-looks", os.O_CREAT | os.O_APPEND | os.O_RDWR), b"x")
        while os.stat(looks).st_size < 2:  # until another worker has looked, too
            time.sleep(0.001)
        self._change(run_id, lambda head: setattr(head, "holder", None))
        return super().claim(run_id, worker, seconds)


class SharesDecisions(MemoryStore):
    def info(self, run_id: str) -> RunInfo | None:
        info = super().info(run_id)
        return info and replace(info, decisions=self._runs["", run_id].head.decisions)


class KeepsTheDecisionItself(MemoryStore):
    def decide(self, run_id: str, call_id: str, decision: object) -> None:
        super().decide(run_id, call_id, decision)
        self._runs["", run_id].head.decisions[call_id]["decision"] = decision


def busy_without_a_holder(right: Any, run_id: str, worker: str, seconds: float) -> Any:
    try:
        return right(run_id, worker, seconds)
    except RunBusyError as error:
        raise RunBusyError(error.run_id) from None


def losing(right: Any, run_id: str, first_seq: int, *given: Any, **terms: Any) -> Any:
    return None if first_seq == 3 else right(run_id, first_seq, *given, **terms)


def refusing(right: Any, *given: Any, lease: Lease | None = None, **terms: Any) -> Any:
    if lease is not None:
        raise RunConflictError("no lease will do")
    return right(*given, **terms)


def by_the_clients_clock(right: Any, run_id: str) -> Any:
    run = right(run_id)
    run.head.now = time.time()
    return run


def latest(own: MemoryStore, lease: Lease) -> Lease:
    """The lease with the token of the run's current holder."""
    return replace(lease, token=own._runs["", lease.run_id].head.token)


#: what is wrong with a store, after the rule that finds it and what the rule says
FAULTS: list[tuple[str, str, type[Any]]] = [
    ("entries_come_back_as_they_were", "entries with unusual data", broken(
        Plain, load=lambda right, run_id: json.loads(json.dumps(right(run_id), ensure_ascii=False).encode("utf-8", "replace")))),
    *[
        ("an_entry_that_is_changed_later_changes_nothing_in_the_store", "what was appended", by_reference(into, out_of))
        for into, out_of in ((list, deepcopy), (deepcopy, list), (deepcopy, lambda entries: entries))
    ],
    ("runs_are_kept_apart", "run 'a' has 1 entries", broken(
        Plain, append=lambda right, run_id, *given: right(run_id.lower(), *given))),
    ("an_append_of_what_is_there_already_or_that_leaves_a_gap_is_a_conflict_and_writes_nothing", "entry 0 of 3", broken(Plain, append=starting_over)),
    ("a_url_comes_back_whole", "such as the metadata", broken(
        Plain, load_media=lambda right, run_id: [replace(one, metadata={}) for one in right(run_id)])),
    ("an_append_that_fails_half_way_keeps_nothing", "after an append that failed", OneByOne),
    ("of_workers_that_append_the_same_entry_exactly_one_wins", "how many workers won", LooksAndThenWrites),
    ("workers_with_runs_of_their_own_do_not_disturb_each_other", "run '?run-.", SharesItsState),
    ("a_run_that_somebody_has_claimed_cannot_be_claimed", "the error", broken(MemoryStore, claim=busy_without_a_holder)),
    ("a_wrong_clock_of_the_client_ends_no_lease", "claim of a run that somebody works on", broken(MemoryStore, _run=by_the_clients_clock)),
    ("a_lease_that_is_over_can_be_claimed", "claim of a run that somebody works on", broken(
        MemoryStore, release=lambda right, lease: right(latest(right.args[0], lease)))),
    ("a_lease_that_is_renewed_outlasts_its_first_end", "claim of a run that somebody works on", broken(
        MemoryStore, renew=lambda right, lease: lease)),
    ("a_lease_that_is_renewed_outlasts_its_first_end", "claim of a run that somebody works on", broken(
        MemoryStore, append=lambda right, *given, lease=None, **terms: right(
            *given, lease=lease and replace(lease, seconds=0.0), **terms))),
    *[(rule, "no lease will do", broken(MemoryStore, append=refusing)) for rule in (
        "a_lease_that_is_over_can_be_claimed", "a_claim_with_an_append_to_a_busy_run_writes_nothing",
    )],
    ("the_first_append_claims_and_the_last_gives_back", "is being worked on by first", broken(
        MemoryStore, append=lambda right, *given, release=False, **terms: right(*given, **terms))),
    ("an_append_that_is_repeated_is_no_conflict", "entry 0 was to be written: another worker has", broken(
        MemoryStore, append=lambda right, *given, writer=None, **terms: right(*given, **terms))),
    ("pages_have_every_run_once_and_in_order", "the runs in pages of 1", SkipsInPages),
    ("what_is_handed_in_or_out_may_be_changed", "the decision", SharesDecisions),
    ("what_is_handed_in_or_out_may_be_changed", "the decision", KeepsTheDecisionItself),
    ("tenants_see_their_own_runs", "entry 0", broken(MemoryStore, tenant=lambda right, name: right(name) and right.args[0])),
    ("the_lease_of_a_process_that_died_is_over", "is being worked on by somebody", broken(
        SqliteStore, claim=lambda right, run_id, worker, seconds: right(run_id, "somebody", seconds))),
    ("of_processes_that_claim_at_once_one_wins", "who has the run", ClaimsLate),
    ("of_processes_that_claim_at_once_one_wins", "what went wrong in a process", broken(
        SqliteStore, claim=lambda right, *given: 1 / 0)),
    ("of_processes_that_claim_at_once_one_wins", "how many processes have ended", broken(
        SqliteStore, claim=lambda right, *given: os._exit(1))),
    ("processes_that_append_lose_and_double_nothing", "the entries", broken(SqliteStore, append=losing)),
    ("processes_that_append_lose_and_double_nothing", "how many there are", broken(
        SqliteStore, runs=lambda right: [replace(info, length=1) for info in right()])),
]


@pytest.mark.parametrize("rule, said, faulty", FAULTS)
def test_a_fault_of_a_store_is_found(rule: str, said: str, faulty: type[Any], tmp_path: Path) -> None:
    in_file = issubclass(faulty, SqliteStore)

    class Rules(StoreRules if issubclass(faulty, Plain) else RunStoreRules):  # type: ignore[misc]  # either of them
        processes = in_file

        def make(self) -> Any:
            return faulty(tmp_path / "runs.db", durability="process") if in_file else faulty()

        def reopen(self, store: Any) -> Any:
            return self.make() if in_file else store

    with pytest.raises(Exception, match=said):
        getattr(Rules(), f"test_{rule}")()


def test_a_lease_that_does_not_expire_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("kernai.testing.run_store_rules.TIMEOUT", 0.0)
    longer = broken(MemoryStore, claim=lambda right, run_id, worker, _: right(run_id, worker, 1.0))
    test_a_fault_of_a_store_is_found("a_lease_that_is_over_can_be_claimed", "whether the lease has expired", longer, tmp_path)


@pytest.mark.parametrize("rules", [StoreRules, RunStoreRules])
def test_the_rules_need_no_pytest(rules: Any) -> None:
    source = Path(rules.make.__code__.co_filename).read_text(encoding="utf-8")
    assert "import pytest" not in source
    assert all(one.endswith(" is not None") for one in re.findall(r"\bassert (.+)", source))  # `python -O` leaves them out
