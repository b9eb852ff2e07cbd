"""Only the worker that holds the lease of a run may work on it."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from itertools import chain, repeat
from math import inf
from typing import Any

import pytest

import kernai
from kernai import Agent, MemoryStore, MockProvider, RunBusyError, RunConflictError, Skill, SkillContext, SqliteStore
from kernai.durable import lease as leases
from kernai.durable.lease import Lease, is_dead, new_worker, shown_worker
from kernai.middleware import retry
from tests.durable.durable_cases import EACH_WAY, WAYS, Appends, Stored, Way, command, payer, provider
from tests.durable.test_store_rules import Plain
from tests.values.test_json_data import Named

PATIENCE = 20.0
SCRIPT = {"go": [command("act"), command("act"), "<final>done</final>"]}


def acting(act: Callable[..., Any], **changes: Any) -> Agent:
    skill = Skill("act", execute=act, inputs={}, idempotent=changes.pop("idempotent", False))
    return Agent(**{"instructions": "x", "skills": [skill], "provider": provider(SCRIPT), **changes})


def info_of(store: MemoryStore | SqliteStore, run_id: str = "r") -> kernai.RunInfo:
    info = store.info(run_id)
    assert info is not None
    return info


@EACH_WAY
def test_a_run_is_busy_for_other_workers_until_its_worker_ends(way: Way) -> None:
    store, seen, other = MemoryStore(), list[str](), MockProvider("<final>other</final>")
    cancelled = threading.Event()
    cancelled.set()

    def act() -> None:
        before, info = store.load("r"), info_of(store)
        assert info.lease is not None
        with pytest.raises(ValueError, match="seconds must be a number of seconds above 0 and below 1,000,000, got inf"):
            store.claim("r", "other", inf)
        with pytest.raises(TypeError, match="cancel must have is_set"):
            way.resume(acting(act, provider=other), "r", store=store, wait=9e5, cancel=3)
        with pytest.MonkeyPatch.context() as patched, pytest.raises(RunBusyError, match=rf"by process {os.getpid()} on") as caught:
            patched.setattr(store, "load", pytest.fail)  # a long run is not loaded each time, only to find it busy
            way.resume(acting(act, provider=other), "r", store=store, input="and this?", wait=9e5, cancel=cancelled)
        assert (caught.value.since, caught.value.until) == (info.lease.since, info.lease.until)
        assert store.load("r") == before
        seen.append(info.status)

    assert way.execute(acting(act), "go", store=store, run_id="r").text == "done"
    assert (seen, other.calls) == (["running", "running"], [])
    assert (info_of(store).status, info_of(store).lease) == ("final", None)


@EACH_WAY
def test_a_resume_can_wait_until_other_workers_have_ended_and_continues_from_there(way: Way, monkeypatch: Any) -> None:
    store, agent = MemoryStore(), Agent(instructions="x", provider=MockProvider("<final>1</final>"))
    way.execute(agent, "a", store=store, run_id="r")
    looked, append, busy, late = store.info, store.append, store.claim("r", "ann", 30), ["b"]

    def info(run_id: str) -> Any:
        found = looked(run_id)
        store.release(busy)
        return found

    def continued(*given: Any, **named: Any) -> Any:
        if late:  # when the resume has loaded the run
            kernai.resume(agent, "r", store=store, input=late.pop())
        return append(*given, **named)

    store.info, store.append = info, continued  # type: ignore[method-assign]
    result = way.resume(agent, "r", store=store, input="c", wait=PATIENCE)
    assert [message.text for message in result.messages[::2]] == ["a", "b", "c"]
    late.append("d")
    monkeypatch.setattr(leases, "boottime", chain([0.0], repeat(31.0)).__next__)
    with pytest.raises(RunConflictError):  # for so long, it may have had the run itself, and written its input
        way.resume(agent, "r", store=store, input="e", wait=PATIENCE)


@pytest.mark.parametrize("option", ["lease", "wait"])
@pytest.mark.parametrize("value", [-1, float("inf"), float("nan"), "30", True])
def test_an_invalid_number_of_seconds_for_a_lease_is_refused(option: str, value: object) -> None:
    run = Stored(WAYS[0], acting(lambda: None))
    assert run.execute(lease=None).ok
    with pytest.raises((TypeError, ValueError), match=f"{option} must be a number of seconds above 0"):
        kernai.resume(run.agent, "r", **{"store": run.store, option: value})
    with pytest.raises(TypeError, match="lease needs the store that keeps the run"):
        kernai.execute(acting(lambda: None), "go", lease=5)


class Renewing(MemoryStore):
    """Asks `answer` about each renewal first, by its number."""

    def __init__(self, answer: Callable[[int], object]) -> None:
        super().__init__()
        self.answer, self.count = answer, 0

    def renew(self, lease: Lease) -> Lease:
        self.count += 1
        self.answer(self.count)
        return super().renew(lease)


# ------------------------------------------------------------------------------------------------- a lease that is lost


@EACH_WAY
@pytest.mark.parametrize("cancel, ends", [
    (None, "final"), (lambda store, lease: store.request_cancel("r"), "cancelled"),
    (lambda store, lease: [store.release(lease), store.close("r", "why")], "closed"),
])
def test_a_worker_suspended_for_longer_than_its_lease_writes_nothing_and_makes_no_call(
    way: Way, monkeypatch: pytest.MonkeyPatch, cancel: Any, ends: str
) -> None:
    store, calls, right = Renewing(lambda number: None), [], leases.boottime

    def act(ctx: SkillContext) -> None:
        if cancel is not None:
            cancel(store, info_of(store).lease)
        monkeypatch.setattr(leases, "boottime", lambda: right() + 31)
        monkeypatch.setattr(store, "release", store.renew)  # to count it, too: an expired lease is not released
        leases.LEASES._renew_or_check(list(leases.LEASES._held))  # renews no lease that may be another's by now
        calls.append(ctx.cancelled)

    it = acting(act)
    with pytest.raises(RunConflictError, match=r"the lease on run 'r' may have expired: it lasts 30 s and was last renewed 31 s ago"):
        way.execute(it, "go", store=store, run_id="r")
    monkeypatch.undo()
    assert (calls, store.count) == ([cancel is not None], 0)
    assert "skill_result" not in [one["event"] for one in store.load("r")]
    assert way.resume(acting(lambda: None), "r", store=store, in_flight="skip").stop_reason == ends


@EACH_WAY
def test_a_worker_whose_run_was_taken_by_another_writes_nothing_and_makes_no_call(way: Way) -> None:
    store, calls = MemoryStore(), []

    def act() -> None:
        calls.append("act")
        lease = info_of(store).lease
        assert lease is not None
        store.release(lease)
        store.claim("r", "another", 60)

    with pytest.raises(RunConflictError, match="another has the run now"):
        way.execute(acting(act), "go", store=store, run_id="r")
    assert calls == ["act"]
    assert [one["event"] for one in store.load("r")][-1] == "skill_execute"
    assert info_of(store).status == "running"  # the other's lease is left alone


@EACH_WAY
def test_a_worker_suspended_between_two_attempts_does_not_repeat_the_model_call(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, right = [], leases.boottime

    def fails(messages: Any, model: Any) -> str:
        calls.append("model")
        monkeypatch.setattr(leases, "boottime", lambda: right() + 31)
        raise kernai.ProviderError("busy", retryable=True, retry_after=0)

    it = acting(print, provider=MockProvider().on_call(fails), middleware=[retry(attempts=5)])
    with pytest.raises(RunConflictError, match="may have expired"):
        way.execute(it, "go", store=MemoryStore(), run_id="r")
    assert calls == ["model"]


@pytest.mark.parametrize("failure, why", [
    (RunConflictError("another has it"), "another has it"), (ConnectionError("the store is away"), "may have expired"),
])  # fmt: skip
def test_a_renewal_that_fails_ends_the_run_before_its_next_call(monkeypatch: pytest.MonkeyPatch, failure: Exception, why: str) -> None:
    right = leases.boottime

    def fail(number: int) -> None:
        raise failure

    def act() -> None:
        for passed in (11, 31):
            monkeypatch.setattr(leases, "boottime", lambda passed=passed: right() + passed)
            leases.LEASES._renew_or_check(list(leases.LEASES._held))

    with pytest.raises(RunConflictError, match=why) as caught:
        kernai.execute(acting(act), "go", store=Renewing(fail), run_id="r")
    assert failure in (caught.value, caught.value.__cause__)


@pytest.mark.parametrize("way, is_away", [*((way, False) for way in WAYS), *((way, True) for way in WAYS if way.listens)])
def test_a_lease_is_renewed_during_a_long_call_even_if_the_store_was_down(way: Way, is_away: bool) -> None:
    def answer(renewed: threading.Event, number: int) -> None:
        if is_away and number <= 2:
            raise (kernai.KernaiError, ConnectionError)[number - 1]("the store is away")
        if number == (3 if is_away else 4):  # by the fourth, the first lease has expired
            renewed.set()

    def cancel_requests(run_ids: Any) -> Any:
        raise ConnectionError("the store is away")

    def is_renewed(renewed: threading.Event) -> bool:
        store, texts = Renewing(partial(answer, renewed)), list[str | None]()
        if is_away:
            store.cancel_requests = cancel_requests  # type: ignore[method-assign]
        options: Any = {"store": store, "run_id": "r", "lease": 3 if is_away else 0.3}
        outer = acting(lambda: texts.append(way.execute(acting(lambda: renewed.wait(PATIENCE)), "go", **options).text))
        kernai.execute(outer, "go", store=MemoryStore(), run_id="outer")  # its longer lease is not due that soon
        return (texts, renewed.is_set()) == (["done"], True)

    assert any(is_renewed(threading.Event()) for _ in range(3))  # a busy machine may be too slow for so short a lease


@EACH_WAY
@pytest.mark.parametrize("gives_back, heard_of", [(True, True), (False, True), (True, False)])
def test_a_run_that_fails_can_be_resumed_at_once(way: Way, gives_back: bool, heard_of: bool) -> None:
    class Fails(Appends):
        def release(self, lease: Lease) -> None:
            if not gives_back:
                raise OSError("the disk is full")
            super().release(lease)

    store = Fails(1) if heard_of else Fails(0, after=True)  # the claim was made, and the answer was lost
    with pytest.raises(OSError, match="full"):
        way.execute(acting(lambda: None), "go", store=store, run_id="r")
    store.left = inf
    assert way.resume(acting(lambda: None), "r", store=store).text == "done"


def test_the_lease_of_a_closed_stream_is_given_back_and_a_refused_run_has_none() -> None:
    store = MemoryStore()
    events = kernai.stream(acting(lambda: None), "go", store=store, run_id="r")
    for event in events:
        if event.type == "skill_execute":
            break
    events.close()
    assert info_of(store).lease is None
    known = set(leases._GONE)
    with pytest.raises(RunConflictError, match="choose another run_id"):
        kernai.execute(acting(lambda: None), "go", store=store, run_id="r")
    assert known == leases._GONE, "a refused run was never held"


# ------------------------------------------------------------------------------------------------------ who is dead


def test_only_a_process_that_has_ended_counts_as_dead() -> None:
    host, pid, start, machine, number = new_worker().split(":")
    named = [sys.executable, "-c", "from kernai.durable.lease import new_worker; print(new_worker())"]
    with subprocess.Popen(named, stdout=subprocess.PIPE, text=True) as child:
        gone = str(child.stdout and child.stdout.read()).strip()
        if start:  # only Linux tells a zombie from a process
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            assert is_dead(gone)
    assert is_dead(gone)
    assert is_dead(f"{host}:{pid}:1:{machine}:{number}")  # its number was given to another process
    assert not is_dead(new_worker())
    assert not is_dead(gone.replace(machine, "another machine"))
    assert not is_dead(":".join(["h", "1", "0" if start else "", "", "0"]))
    assert not is_dead("a worker of a user's own: 7")
    assert shown_worker(gone).startswith("process ")
    assert shown_worker("somebody") == "somebody"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_renews_nothing_of_its_parent() -> None:
    store, children = MemoryStore(), []

    def act() -> None:
        child = os.fork()
        if child == 0:
            os._exit(len(list(leases.LEASES._held)))
        children.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of forks beside threads
        kernai.execute(acting(act), "go", store=store, run_id="r")
    assert children == [0, 0]


def test_a_run_whose_event_loop_was_closed_keeps_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # pytest's keeps the error, whose frames refer to the run
    store, looked, dropped, begun = MemoryStore(), threading.Event(), threading.Event(), asyncio.Event()
    store.cancel_requests = lambda run_ids: looked.set() or {}  # type: ignore[method-assign, func-returns-value]

    async def act() -> None:
        begun.set()
        await asyncio.Event().wait()

    loop = asyncio.new_event_loop()
    task = loop.create_task(kernai.aexecute(acting(act), "go", store=store, run_id="r"))
    loop.run_until_complete(asyncio.wait_for(begun.wait(), PATIENCE))
    loop.close()
    del task, loop
    weakref.finalize(next(one for one in leases.LEASES._held if one.store is store), dropped.set)
    leases.LEASES._sooner.set()
    assert looked.wait(PATIENCE)
    # the thread that looked may still refer to the run
    assert any(gc.collect() >= 0 and dropped.wait(0.1) for _ in range(200))


# ----------------------------------------------------------------------------------------------- what others want of it


@EACH_WAY
@pytest.mark.parametrize("lease", [1.5, 30])
def test_a_cancel_request_from_elsewhere_ends_the_run_with_its_reason(way: Way, lease: float) -> None:
    store = Renewing(lambda number: None)

    def act(ctx: SkillContext) -> str:
        for reason in ("the customer has left", ""):
            store.request_cancel("r", reason)
        asked = threading.Event()
        leases.LEASES._sooner.set()
        while not ctx.cancelled:
            asked.wait(0.001)
        return "noticed"

    result = way.execute(acting(act), "go", store=store, run_id="r", lease=lease)
    assert lease < 2 or store.count == 0, "it is not renewed before a third of its time is over"
    assert (result.stop_reason, str(result.error)) == ("cancelled", "the run was cancelled: the customer has left")
    assert info_of(store).status == "cancelled"
    assert store.cancel_requests(["r"]) == {"r": "somebody cancelled the run"}, "for a worker that was suspended"
    assert way.resume(acting(lambda: None), "r", store=store, in_flight="skip").text == "done"  # the lease was released


PAYING = {"go": [command("pay", '{"amount": 3}'), "<final>done</final>"]}


@EACH_WAY
@pytest.mark.parametrize("decision, passed, paid", [
    (True, {}, [3]), (False, {}, []), ({"params": {"amount": 2}}, {}, [2]), (True, {"0.0": "no"}, []),
])
def test_a_stored_decision_is_used_by_a_resume_without_its_own(
    way: Way, decision: Any, passed: dict[str, str], paid: list[object]
) -> None:
    done: list[object] = []
    run = Stored(way, payer(done), PAYING)
    run.execute()
    run.store.decide("r", "0.0", kernai.Decision(decision, by="ann"))
    assert run.resume(approvals=passed).text == "done"
    (given,) = run.data("approval_given")
    assert (given["decision"], given["by"]) == (passed.get("0.0", decision), None if passed else "ann")
    assert (done, dict(info_of(run.store).decisions)) == (paid, {})


@EACH_WAY
def test_an_invalid_stored_decision_is_dropped_and_the_run_waits_and_says_why(way: Way) -> None:
    done: list[object] = []
    run = Stored(way, payer(done), PAYING)
    run.execute()
    run.store.decide("r", "0.0", {"params": {"sum": 2}})
    length = len(run.load())
    result = run.resume()
    assert (result.stop_reason, [call.call_id for call in result.pending], done) == ("interrupt", ["0.0"], [])
    info = info_of(run.store)
    assert (info.status, dict(info.decisions), info.length) == ("waiting", {}, length)
    assert "approvals['0.0']: 'sum' is not an input of pay" in str(info.why)
    run.store.decide("r", "0.0", {"params": {"sum": 2}})
    with pytest.raises(ValueError, match=r"input: the run waits for a decision on 0\.0"):  # otherwise it would be lost
        run.resume(input="and now?")
    run.store.decide("r", "0.0", True)
    with pytest.raises(ValueError, match=r"approvals\['0\.0'\]: 'sum' is not an input of pay"):  # the caller's own decision
        run.resume(approvals={"0.0": {"params": {"sum": 2}}})
    assert run.resume(input="and now?").text == "and now?"
    assert info_of(run.store).why is None


@EACH_WAY
@pytest.mark.parametrize("decision, calls, read", [
    (True, 1, "as before"), ("it was done by hand", 0, "it was done by hand"), (False, 0, "outcome of this call is unknown"),
])
def test_a_call_in_flight_can_be_decided_on_like_an_approval(way: Way, decision: bool | str, calls: int, read: str) -> None:
    made: list[str] = []

    def act(ctx: SkillContext) -> str:
        made.append(ctx.call_id)
        return "as before"

    whole = Stored(way, acting(act))
    whole.execute()
    run = whole.cut(whole.index("skill_execute") + 1)  # it was killed within its first call
    made.clear()
    with pytest.raises(kernai.InFlightError) as caught:
        run.resume()
    run.store.block("r", str(caught.value), caught.value.calls)
    assert [(one.status, one.pending[0].skill) for one in run.store.runs(status="blocked")] == [("blocked", "act")]
    with pytest.raises(ValueError, match="make it again as it was"):
        run.store.decide("r", "0.0", {"params": {}})
    run.store.decide("r", "0.0", kernai.Decision(decision, by="ann"))
    result = run.resume()
    assert (result.text, made.count("0.0"), info_of(run.store).pending) == ("done", calls, ())
    assert read in result.messages[2].text
    given: dict[str, Any] = {"call_id": "0.0", "decision": "retry" if decision is True else "skip", "by": "ann"}
    assert run.data("in_flight") == [given | ({"reason": decision} if isinstance(decision, str) else {})]
    again = run.cut(run.index("in_flight") + 1)  # it died before the model could read it
    assert again.resume(in_flight="retry").messages == result.messages


# ------------------------------------------------------------------------------------------------------- other stores


@EACH_WAY
def test_a_store_without_leases_keeps_runs(way: Way) -> None:
    store, it = Plain(), acting(lambda: None)
    assert way.execute(it, "go", store=store, run_id="r").text == "done"
    with pytest.raises(RunConflictError):
        way.execute(it, "go", store=store, run_id="r")
    assert way.resume(it, "r", store=store).text == "done"
    assert [one.status for one in store.runs()] == ["final"]


def test_a_key_is_never_used_twice() -> None:
    store, keys = MemoryStore(), list[str]()

    def act(ctx: SkillContext) -> None:
        keys.append(ctx.idempotency_key)

    for where in (store, store, store.tenant(Named.N)):
        kernai.execute(acting(act), "go", store=where, run_id=Named.N)
        where.delete(Named.N)
    assert keys == ["n:0.0", "n:1.0", "n~1:0.0", "n~1:1.0", "n/n:0.0", "n/n:1.0"]
