"""`RunStoreRules`: the contract of every `RunStore`, in addition to `StoreRules`. See `store_rules` for its use."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

from kernai import events
from kernai.durable.lease import Lease, new_worker
from kernai.durable.store import Entry, RunInfo, RunStore
from kernai.errors import KernaiError, RunBusyError, RunConflictError
from kernai.testing.store_rules import _media, _raises, _same, entry
from kernai.values.pending_calls import PendingCall, UntrustedValue
from kernai.values.result import Usage

PROCESSES = 8
TIMEOUT = 20.0  # seconds
AN_HOUR = 3600.0
USED = {"cost": 0.5, "model_calls": 2}


def started(agent: str | None = "clerk", *, at: str = "2026-11-20T10:00:00.000Z", **metadata: Any) -> Entry:
    """The first entry of a run."""
    data: Entry = {"run_id": "r", "input": "go", "history": [], "model": "m", "agent": agent, "metadata": metadata}
    return entry(events.RunStartRow.type, {**data, "format": 2}, at=at)


def ended(reason: str = "final", *, at: str = "2026-11-20T10:00:00.000Z") -> Entry:
    """The last entry of a run."""
    data = {"text": None, "stop_reason": reason, "steps": 1, "usage": USED, "error": None}
    return entry(events.ResultRow.type, data, at=at)


def asked(call_id: str = "0.0", skill: str = "pay", **more: Any) -> Entry:
    """The entry of a call that waits for a decision."""
    data = {"call_id": call_id, "skill": skill, "params": {"amount": 3}, "reason": "much", "metadata": {}, **more}
    return entry(events.ApprovalRequestedRow.type, data)


class RunStoreRules:
    """The rules for what a `RunStore` adds to a `Store`: leases, decisions, filters. Test it with `StoreRules`, too.

    Subclass it and write `make`. For a store that several processes can open, also write `reopen` and set `processes`.
    """

    #: whether other processes can use the store that `reopen` returns; if so, some rules fork
    processes = False

    def make(self) -> RunStore:
        """Returns a new store without runs."""
        raise NotImplementedError

    def reopen(self, store: RunStore) -> RunStore:
        """Returns a store with the same runs, as another process would open it. By default the store itself."""
        return store

    def _begun(self, *following: Entry) -> RunStore:
        """A store with a run that nobody works on. `following` are its entries after the first."""
        store = self.make()
        store.append("r", 0, [started(), *following], [])
        return store

    def _claimed(self) -> tuple[RunStore, Lease]:
        """A store with a run that "first" works on, and its lease."""
        store = self.make()
        lease = store.append("r", 0, [started()], [], claim=("first", AN_HOUR))
        assert lease is not None
        return store, lease

    # -------------------------------------------------------------------------------------------------- leases

    def test_a_run_that_somebody_has_claimed_cannot_be_claimed(self) -> None:
        store = self._begun()
        lease = store.claim("r", "first", AN_HOUR)
        _same((lease.run_id, lease.worker, lease.seconds, lease.cancel), ("r", "first", AN_HOUR, None), "the lease")
        busy = _busy(partial(self.reopen(store).claim, "r", "second", AN_HOUR))
        _same((busy.run_id, busy.holder, busy.since, busy.until), ("r", "first", lease.since, lease.until), "the error")
        store.release(lease)
        again = self.reopen(store).claim("r", "second", AN_HOUR)
        _same(again.token > lease.token, True, f"whether the claim {again.token} comes after {lease.token}")
        _raises(KernaiError, partial(store.claim, "never-there", "first", 1.0), "a claim of a run that does not exist")

    def test_an_append_under_an_older_lease_writes_nothing(self) -> None:
        store = self._begun()
        old = store.claim("r", "first", AN_HOUR)
        store.release(old)
        append = partial(store.append, "r", 1, [ended()], [_media("x")], lease=old)
        _raises(RunConflictError, append, "an append under a lease that was given back")
        new = store.claim("r", "second", AN_HOUR)
        _raises(RunConflictError, append, "an append under a lease that another has taken")
        _raises(RunConflictError, partial(store.append, "r", 1, [ended()], []), "an append without a lease")
        _raises(RunConflictError, partial(store.renew, old), "a renewal of a lease that another has taken")
        _same((store.load("r"), store.load_media("r")), ([started()], []), "the run")
        store.append("r", 1, [ended()], [], lease=new)
        _same(self.reopen(store).load("r"), [started(), ended()], "the run")

    def test_a_lease_that_is_over_can_be_claimed(self) -> None:
        store = self._begun()
        old = store.claim("r", "first", 0.01)
        new = _eventually(partial(self.reopen(store).claim, "r", "second", AN_HOUR))
        _raises(RunConflictError, partial(store.append, "r", 1, [ended()], [], lease=old), "the one who had it")
        store.release(old)
        _busy(partial(store.claim, "r", "third", AN_HOUR))
        store.append("r", 1, [ended()], [], lease=new)

    def test_the_first_append_claims_and_the_last_gives_back(self) -> None:
        store, lease = self._claimed()
        _same((lease.worker, lease.seconds), ("first", AN_HOUR), "the lease that the first append has taken")
        _busy(partial(store.claim, "r", "second", AN_HOUR))
        again = store.append("r", 1, [entry()], [], lease=lease)
        _same(again and again.token, lease.token, "the number of the claim")
        store.append("r", 2, [ended()], [], lease=again, release=True)
        store.release(store.claim("r", "second", AN_HOUR))

    def test_a_claim_with_an_append_to_a_busy_run_writes_nothing(self) -> None:
        store, held = self._claimed()
        for seq in (1, 2):
            _busy(partial(store.append, "r", seq, [ended()], [_media("x")], claim=("second", AN_HOUR)))
        _same((store.load("r"), store.load_media("r")), ([started()], []), "the run")
        store.append("r", 1, [ended()], [], lease=held)

    def test_a_lease_that_is_renewed_outlasts_its_first_end(self) -> None:
        store = self.make()
        for run_id in ("renewed", "appended", "other"):
            store.append(run_id, 0, [started()], [])
        renewed, appended = (store.claim(run_id, "first", 0.05) for run_id in ("renewed", "appended"))
        store.renew(replace(renewed, seconds=AN_HOUR))
        store.append("appended", 1, [entry()], [], lease=replace(appended, seconds=AN_HOUR))
        store.claim("other", "first", 0.05)
        _eventually(partial(store.claim, "other", "second", AN_HOUR))  # by then the others would have expired, too
        for run_id in ("renewed", "appended"):
            _busy(partial(store.claim, run_id, "second", AN_HOUR))

    def test_a_wrong_clock_of_the_client_ends_no_lease(self) -> None:
        from unittest.mock import patch  # slow to import

        store, right = self._begun(), time.time
        for wrong in (-2 * AN_HOUR, 2 * AN_HOUR):
            with patch("time.time", lambda wrong=wrong: right() + wrong):
                lease = store.claim("r", "first", AN_HOUR)
            with patch("time.time", lambda wrong=wrong: right() - wrong):  # the clock of another client
                _busy(partial(store.claim, "r", "second", AN_HOUR))
                store.release(lease)

    def test_an_append_that_is_repeated_is_no_conflict(self) -> None:
        store = self.make()
        made = [store.append("r", 0, [started()], [], claim=("first", AN_HOUR), writer=one) for one in ("a", "a")]
        _same(made[1], made[0], "the lease that was taken")
        for writer in ("b", "b"):  # the answer to the first was lost
            store.append("r", 1, [entry(data="b")], [_media("x")], lease=made[0], writer=writer)
        _same([one["data"] for one in store.load("r")[1:]], ["b"], "the entries")
        again = partial(store.append, "r", 1, [entry(data="c")], [], lease=made[0])
        _raises(RunConflictError, partial(again, writer="c"), "an append of the same entry that is another's")
        for writer in ("d", "d"):
            store.append("r", 2, [ended()], [], lease=made[0], release=True, writer=writer)
        _same(len(store.load("r")), 3, "how many entries there are")

    def test_the_lease_of_a_process_that_died_is_over(self) -> None:
        if not self.processes:
            return
        store = self._begun()
        (lease,) = self._forked(store, lambda own, _: own.claim("r", new_worker(), AN_HOUR).token, 1)
        _same(store.claim("r", "second", AN_HOUR).token > lease, True, "whether the next claim has a higher number")

    def test_of_processes_that_claim_at_once_one_wins(self) -> None:
        if not self.processes:
            return
        store = self._begun()

        def work(own: RunStore, number: int) -> bool:
            try:
                own.claim("r", f"worker {number}", AN_HOUR)
            except RunBusyError:
                return False
            return True

        _same(sorted(self._forked(store, work)), [False] * (PROCESSES - 1) + [True], "who has the run")

    def test_processes_that_append_lose_and_double_nothing(self) -> None:
        if not self.processes:
            return
        store = self._begun()

        def work(own: RunStore, number: int) -> int:
            done = 0
            while done < 5:  # noqa: PLR2004 - entries a process
                seq = len(own.load("r"))
                try:
                    own.append("r", seq, [entry(data=[number, done])], [], claim=(f"{number}", AN_HOUR), release=True)
                    done += 1
                except RunConflictError:
                    continue
            return done

        self._forked(store, work)
        found = sorted(one["data"] for one in store.load("r")[1:])
        _same(found, [[number, done] for number in range(PROCESSES) for done in range(5)], "the entries")
        _same([info.length for info in store.runs()], [1 + 5 * PROCESSES], "how many there are")

    def _forked(self, store: RunStore, work: Callable[[RunStore, int], Any], count: int = PROCESSES) -> list[Any]:
        """Runs `work` in `count` processes and returns their results. Each opens the store itself; then all start."""
        from multiprocessing import get_context  # slow to import, and most stores are for one process

        fork = get_context("fork")
        all_open, ended = fork.Barrier(count), fork.SimpleQueue()

        def child(number: int) -> None:
            try:
                own = self.reopen(store)
                all_open.wait(TIMEOUT)
                ended.put((work(own, number), None))
            except BaseException as error:  # noqa: BLE001 - the parent reports it
                ended.put((None, f"{type(error).__name__}: {error}"))

        children = [fork.Process(target=child, args=(number,), daemon=True) for number in range(count)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer Pythons warn about forking a process with threads
            for one in children:
                one.start()
        for one in children:
            one.join(TIMEOUT)
        results: list[tuple[Any, str | None]] = []
        while not ended.empty():
            results.append(ended.get())
        _same([failure for _, failure in results if failure], [], "what went wrong in a process")
        _same(len(results), count, "how many processes have ended")
        return [made for made, _ in results]

    # ------------------------------------------------------------------------------------------ looking at runs

    def test_a_run_is_loaded_from_any_entry_on(self) -> None:
        store = self.make()
        given = [entry(data=number) for number in range(5)]
        store.append("r", 0, given, [_media("a"), _media("b")])
        for seq in range(7):
            _same(self.reopen(store).load("r", seq), given[seq:], f"the entries from {seq} on")
        for ids in ([], [_media("b").id], [_media("b").id, "none", _media("a").id]):
            wanted = [one for one in (_media("a"), _media("b")) if one.id in ids]
            _same(store.load_media("r", ids), wanted, f"the media {ids}")

    def test_runs_are_found_by_what_is_asked(self) -> None:
        store = self.make()
        odd, common = {"customer": "7", "\0": "\udfff"}, {"customer": "7"}
        store.append("a", 0, [started("\ud800 clerk", tags=odd, at="2026-11-01"), ended(at="2026-11-01")], [])
        second = "2026-11-02"
        store.append("b", 0, [started(tags=common, at=second), asked(), ended("interrupt", at=second)], [])
        third = "2026-11-03"
        store.append("c", 0, [started(None, forked_from={"run_id": "a"}, at=third), ended("error", at=third)], [])
        store.append("d", 0, [started(at="2026-11-04")], [], claim=("first", AN_HOUR))
        cases: list[tuple[dict[str, Any], str]] = [
            ({}, "dcba"), ({"status": "final"}, "a"), ({"status": "waiting"}, "b"), ({"status": "running"}, "d"),
            ({"status": "abandoned"}, ""), ({"agent": "clerk"}, "db"), ({"agent": "\ud800 clerk"}, "a"),
            ({"tags": common}, "ba"), ({"tags": odd}, "a"), ({"tags": {"customer": "8"}}, ""),
            ({"waiting": "pay"}, "b"), ({"waiting": "buy"}, ""), ({"parent": "a"}, "c"),
            ({"updated_before": third}, "ba"), ({"agent": "clerk", "status": "waiting"}, "b"),
        ]
        for asked_for, expected in cases:
            found = "".join(info.run_id for info in self.reopen(store).runs(**asked_for))
            _same(found, expected, f"the runs with {asked_for}")
        _same([store.info(run_id) is None for run_id in ("a", "e")], [False, True], "which runs do not exist")
        held = store.claim("b", "second", AN_HOUR)
        listed = {status: [one.run_id for one in store.runs(status=status)] for status in ("running", "waiting")}
        _same(listed, {"running": ["d", "b"], "waiting": []}, "the runs while somebody works on one that waited")
        store.release(held)
        _same([one.run_id for one in store.runs(status="waiting")], ["b"], "the runs that wait")

    def test_pages_have_every_run_once_and_in_order(self) -> None:
        store = self.make()
        expected = [f"r{number}" for number in range(9)]
        for number, run_id in enumerate(expected):  # three of each time
            store.append(run_id, 0, [started(at=f"2026-11-{20 - number // 3}")], [])
        for limit in range(1, 11):
            runs, found = self.reopen(store).runs(), list[RunInfo]()
            while page := runs.page(limit, found[-1] if found else None):
                _same(len(page) <= limit, True, f"whether a page of {limit} runs has {len(page)}")
                found += page
            _same([info.run_id for info in found], expected, f"the runs in pages of {limit}")
        _raises(ValueError, lambda: store.runs().page(-1), "a page of less than one run")
        _same([info.run_id for info in store.runs()], expected, "all runs")
        store.claim("r8", "first", AN_HOUR)
        found = self.reopen(store).runs(status="running").page(1)
        _same([info.run_id for info in found], ["r8"], "a page of the runs that somebody works on")

    def test_what_is_listed_of_a_run_follows_its_entries(self) -> None:
        store = self.make()
        used = events.LlmResponseRow("x", 1, 10, 1, 11, None, {}, cost=0.25)
        answer = entry(used.type, used.fields(), at="3")
        sent = {**entry(events.MessagesSentRow.type, {"messages": []}, at="2"), "step": 1}
        store.append("r", 0, [started(at="1", tags={"a": "b"}), sent, answer], [])
        info = _info(self.reopen(store))
        listed = (info.agent, info.created_at, info.updated_at, info.steps, info.usage)
        _same(listed, ("clerk", "1", "3", 2, Usage(10, 1, 11, 0.25, 1)), "what is listed while it runs")
        _same((dict(info.tags), info.length, info.number, info.parent), ({"a": "b"}, 3, 0, None), "the rest of it")
        doubt = UntrustedValue("to", "eve", "which is in the result of `read_mail`")
        paused = asked("1.0", until="2026-11-21", untrusted=[doubt.to_dict()])
        store.append("r", 3, [paused, asked("1.1"), ended("interrupt")], [])
        _same([call.call_id for call in _info(store).pending], ["1.0", "1.1"], "the calls that wait")
        waits = PendingCall("1.0", "pay", {"amount": 3}, "much", {}, "2026-11-21", (doubt,))
        _same(_info(self.reopen(store)).pending[0], waits, "the first of them")
        given = entry(events.ApprovalGivenRow.type, {"call_id": "1.0", "decision": "too much", "by": "ann"})
        store.append("r", 6, [entry(events.RunResumedRow.type, {}), given, ended()], [])
        info = _info(store)
        left = [call.call_id for call in info.pending]
        _same((info.status, info.steps, info.usage.model_calls, left), ("final", 1, 2, ["1.1"]), "the end")
        store.append("copy", 0, store.load("r"), [])
        _same(_info(store, "copy").pending, info.pending, "the calls that wait in a copy of the run")

    def test_what_is_listed_can_be_given_with_an_append(self) -> None:
        store = self.make()
        info = RunInfo("r", "a", "queued", "9", tags={"x": "y"})
        store.append("r", 0, [started()], [], info=info)
        found = _info(self.reopen(store))
        listed = (found.agent, found.status, found.updated_at, dict(found.tags))
        _same(listed, ("a", "queued", "9", {"x": "y"}), "the list")

    def test_the_status_says_whether_somebody_works_on_the_run(self) -> None:
        store, lease = self._claimed()
        info = _info(self.reopen(store))
        _same((info.status, info.lease and info.lease.holder), ("running", "first"), "a run that is worked on")
        store.release(lease)
        _same((_info(store).status, _info(store).lease), ("abandoned", None), "a run that nobody works on")

    # -------------------------------------------------------------------------------------------------- people

    def test_a_decision_is_kept_until_it_is_recorded(self) -> None:
        store = self._begun(asked(), ended("interrupt"))
        store.decide("r", "0.0", "too little")
        store.decide("r", "0.0", "too much")
        kept = {"0.0": {"decision": "too much", "by": None}}
        _same(dict(_info(self.reopen(store)).decisions), kept, "the decisions")
        lease = store.append("r", 3, [entry(events.RunResumedRow.type, {})], [], claim=("first", AN_HOUR))
        _same(dict(_info(store).decisions), kept, "the decisions once the run is resumed")
        given = entry(events.ApprovalGivenRow.type, {"call_id": "0.0", "decision": "too much", "by": None})
        store.append("r", 4, [given, asked(), ended("interrupt")], [], lease=lease, release=True)
        _same(dict(_info(self.reopen(store)).decisions), {}, "the decisions when the same call waits again")

    def test_what_is_handed_in_or_out_may_be_changed(self) -> None:
        store = self.make()
        store.append("r", 0, [started(tags={"team": "a"}), asked(), ended("interrupt")], [])
        changes: dict[str, Any] = {"amount": {2}}  # a set becomes a list, as in the recording
        store.decide("r", "0.0", {"params": changes})
        before = _info(self.reopen(store))
        changes["amount"] = "more"
        info: Any = _info(store)
        for found in (info.tags, info.pending[0].params, info.pending[0].metadata, info.decisions["0.0"]["decision"]):
            found.clear()
        _same(before.decisions["0.0"]["decision"], {"params": {"amount": [2]}}, "the decision")
        _same(_info(store), before, "what is listed of the run")

    def test_a_decision_that_cannot_be_made_is_refused(self) -> None:
        store = self._begun(asked(), ended("interrupt"))
        for call_id, decision in (("0.1", "too much"), ("0.0", "yes"), ("0.0", {"amount": "3"})):
            _raises(ValueError, partial(store.decide, "r", call_id, decision), f"the decision {decision} on {call_id}")
        _raises(KernaiError, partial(store.decide, "never-there", "0.0", "too much"), "a decision without a run")
        _raises(KernaiError, partial(store.drop_decision, "never-there", "0.0", "because"), "a decision without a run")
        store.decide("r", "0.0", "too much")
        store.drop_decision("r", "0.0", "because")
        _same((dict(_info(store).decisions), _info(store).why), ({}, "because"), "the run when it was dropped")

    def test_a_run_can_be_blocked_until_somebody_decides(self) -> None:
        store, lease = self._claimed()
        _busy(partial(store.block, "r", "no agent"))
        store.release(lease)
        store.block("r", "the call was under way", [PendingCall("0.0", "pay", {})])
        info = _info(self.reopen(store))
        _same((info.status, info.why), ("blocked", "the call was under way"), "the run")
        _same([(call.call_id, call.reason) for call in info.pending], [("0.0", "the call was under way")], "its calls")
        store.decide("r", "0.0", "too much")
        store.append("r", 1, [entry(events.RunResumedRow.type, {})], [], claim=("first", AN_HOUR))
        info = _info(store)
        _same((info.status, info.why, info.pending), ("running", None, ()), "the run when it was resumed")

    def test_a_request_to_cancel_reaches_the_worker(self) -> None:
        store, lease = self._claimed()
        _same(dict(store.cancel_requests(["r", "never-there"])), {}, "the requests")
        self.reopen(store).request_cancel("r", "enough")
        _same(dict(store.cancel_requests(["r"])), {"r": "enough"}, "the requests")
        _same(store.renew(lease).cancel, "enough", "the cancellation in the renewed lease")
        again = store.append("r", 1, [entry()], [], lease=lease)
        _same(again and again.cancel, "enough", "the cancellation in the lease after an append")
        store.append("r", 2, [ended("cancelled")], [], lease=again, release=True)
        _same(store.claim("r", "second", AN_HOUR).cancel, None, "what is left of it when the run has ended")

    def test_a_run_is_closed_unless_somebody_works_on_it_and_none_of_its_calls_waits_then(self) -> None:
        store = self._begun(asked(), ended("interrupt"))
        lease = store.claim("r", "first", AN_HOUR)
        _busy(partial(store.close, "r", "old"))
        store.release(lease)
        store.close("r", "old")
        info = _info(store)
        _same((info.status, info.lease, len(store.load("r")), info.pending), ("closed", None, 4, ()), "the run")
        _same([one.run_id for one in store.runs(waiting="pay")], [], "the runs that wait for it")
        _raises(ValueError, partial(store.decide, "r", "0.0", "too much"), "a decision on a call of a closed run")

    # --------------------------------------------------------------------------------------- deleted runs, tenants

    def test_a_run_that_somebody_works_on_is_not_deleted(self) -> None:
        store, lease = self._claimed()
        _busy(partial(store.delete, "r"))
        _same(store.delete(updated_before="2027"), 0, "how many were deleted")
        store.release(lease)
        _same((store.delete("r"), store.delete("r")), (1, 0), "how many were deleted")
        _same((store.load("r"), list(store.runs())), ([], []), "what is left")

    def test_runs_are_deleted_by_age_and_status(self) -> None:
        store = self.make()
        old, new = "2024-11-20", "2026-11-20"
        for run_id, reason, at in (("a", "final", old), ("b", "error", old), ("c", "final", new), ("d", "error", new)):
            store.append(run_id, 0, [started(at=at), ended(reason, at=at)], [_media(run_id)])
        _raises(TypeError, store.delete, "to delete without saying what")
        _raises(TypeError, lambda: store.delete("a", status="error"), "to delete one run, and those of a status")
        _same(store.delete(updated_before="2025", status="final"), 1, "how many were deleted")
        _same([info.run_id for info in store.runs()], ["c", "d", "b"], "those that are left")
        _same(self.reopen(store).delete(status="error"), 2, "how many were deleted")
        _same([info.run_id for info in store.runs()], ["c"], "those that are left")
        _same((store.load_media("a"), store.load_media("c")), ([], [_media("c")]), "the media")

    def test_a_worker_of_a_deleted_run_cannot_write_into_a_new_one(self) -> None:
        store, old = self._claimed()
        store.release(old)
        store.delete("r")
        new = self.reopen(store).append("r", 0, [started("other")], [], claim=("second", AN_HOUR))
        assert new is not None
        _same(new.number, 1, "how often the id was used before")
        _raises(RunConflictError, partial(store.append, "r", 1, [ended()], [], lease=old), "the old worker")
        _same([one["data"]["agent"] for one in store.load("r")], ["other"], "the run")

    def test_tenants_see_their_own_runs(self) -> None:
        store = self.make()
        acme, emca = store.tenant("acme"), store.tenant("emca")
        for number, own in enumerate((store, acme, emca)):
            own.append("r", 0, [started(f"agent {number}")], [_media(str(number))])
            own.append(f"r{number}", 0, [started()], [])
        for number, own in enumerate((store, acme, self.reopen(store).tenant("emca"))):
            _same([one["data"]["agent"] for one in own.load("r")], [f"agent {number}"], f"the entries of {number}")
            _same(own.load_media("r"), [_media(str(number))], f"the media of {number}")
            _same({info.run_id for info in own.runs()}, {"r", f"r{number}"}, f"the runs of {number}")
        acme.delete("r")
        _same([own.info("r") is None for own in (store, acme, emca)], [False, True, False], "where it was deleted")
        for bad in ("", "a/b", ".x"):
            _raises(ValueError, partial(store.tenant, bad), f"the tenant {bad!r}")
        _raises(ValueError, partial(acme.tenant, "emca"), "a tenant's tenant")

    # ---------------------------------------------------------------------------------------- watching, due waits

    def test_entries_are_watched_as_they_come(self) -> None:
        store = self.make()
        store.append("r", 0, [entry(data="a"), entry(data="b")], [])
        found = self.reopen(store).watch("r", 1, timeout=TIMEOUT)
        _same(next(found)["data"], "b", "the entry that was there")
        store.append("r", 2, [entry(data="c"), entry(data="d")], [])
        _same([next(found)["data"], next(found)["data"]], ["c", "d"], "the entries that came")
        _same([one["data"] for one in store.watch("r", 3, timeout=0.001)], ["d"], "the last one, and then nothing")

    def test_waits_that_end_on_their_own_are_found(self) -> None:
        store = self._begun(asked(), ended("interrupt"))
        for run_id, until in (("past", "2026-01-01T00:00:00.000Z"), ("future", "2999-01-01T00:00:00.000Z")):
            store.append(run_id, 0, [started(), asked(until=until), ended("interrupt")], [])
        _same([info.run_id for info in self.reopen(store).runs(due=True)], ["past"], "the runs that are due")
        future = datetime.max.replace(tzinfo=timezone.utc)  # noqa: UP017 - as users write it
        _same(len(list(store.runs(updated_before=future))), 3, "the runs that were changed before then")


def _info(store: RunStore, run_id: str = "r") -> RunInfo:
    info = store.info(run_id)
    _same(info is not None, True, f"whether run {run_id} exists")
    return info  # type: ignore[return-value]  # the line above has checked it


def _busy(act: partial[Any]) -> RunBusyError:
    return _raises(RunBusyError, act, f"{act.func.__name__} of a run that somebody works on")


def _eventually(act: Callable[[], Any]) -> Any:
    """Returns the result of `act` as soon as the lease that prevents it has expired."""
    until = time.monotonic() + TIMEOUT
    while True:
        try:
            return act()
        except RunBusyError:
            _same(time.monotonic() < until, True, f"whether the lease has expired after {TIMEOUT} seconds")
