"""Calls in progress when a run was interrupted: nobody knows whether they took effect."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from math import inf
from typing import Any

import pytest

import kernai
from kernai import Agent, Block, Context, InFlightError, MemoryStore, PendingCall, Protocol, Skill, SkillContext
from kernai.durable.durable_run import UNKNOWN_OUTCOME
from kernai.durable.store import Entry
from kernai.middleware import CallProtocol, CallSkill
from tests.durable.durable_cases import EACH_WAY, WAYS, Appends, Performed, Stored, Way, agent, command, cut, provider
from tests.loop.loop_cases import plan, task

OUTCOMES = ("skill_result", "skill_error", "protocol_result", "protocol_error")


def in_flight(entries: Sequence[Entry], of_all: Sequence[Entry]) -> set[str]:
    """The calls in flight by definition: announced and without an outcome; not agents, nor calls with wrong parameters."""
    wrong = {
        one["data"]["call_id"] for one in of_all
        if one["event"] == "skill_error" and one["data"]["exception"] == "SkillInputError"
    }
    begun = {
        one["data"]["call_id"] for one in entries
        if one["event"] == "protocol_execute" or (one["event"] == "skill_execute" and one["data"]["skill"] != "ask_clerk")
    }
    return begun - {one["data"]["call_id"] for one in entries if one["event"] in OUTCOMES} - wrong


def cuts(whole: MemoryStore, way: Way) -> list[tuple[int, set[str]]]:
    """This way's share of the lengths at which calls are in flight, with these calls."""
    entries = whole.load("r")
    found = [(length, in_flight(entries[:length], entries)) for length in range(1, len(entries) + 1)]
    assert max(len(calls) for _, calls in found) > 1, "several at once"
    return [(length, calls) for length, calls in found if calls][WAYS.index(way)::len(WAYS)]


@pytest.mark.slow
@EACH_WAY
def test_by_default_a_resume_reports_all_calls_in_flight_and_changes_nothing(whole: MemoryStore, way: Way) -> None:
    for length, calls in cuts(whole, way):
        store, performed = cut(whole, length), Performed()
        before = store.load("r")
        with pytest.raises(InFlightError) as caught:
            way.resume(agent(performed, idempotent=()), "r", store=store, provider=provider())
        assert {call.call_id for call in caught.value.calls} == calls
        for call in caught.value.calls:
            assert call.call_id in str(caught.value)
            assert call.skill in ("look", "fail", "many", "picture", "nothing", "ticket")
        assert store.load("r") == before
        assert not performed.calls


@pytest.mark.slow
@pytest.mark.parametrize("verdict", ["skip", "retry", "function"])
@EACH_WAY
def test_each_verdict_on_a_call_in_flight_is_recorded_and_has_its_effect(whole: MemoryStore, way: Way, verdict: str) -> None:
    def said(call: PendingCall) -> str:
        return "skip" if call.skill in ("look", "ticket") else "retry"

    for length, calls in cuts(whole, way):
        store, performed = cut(whole, length), Performed()
        entries = store.load("r")
        names = {e["data"]["call_id"]: e["data"].get("skill", "ticket") for e in entries if e["event"].endswith("_execute")}
        result = way.resume(
            agent(performed, idempotent=()), "r", store=store, provider=provider(),
            in_flight=said if verdict == "function" else verdict,
        )
        assert result.ok
        wanted = {call: said(PendingCall(call, names[call])) if verdict == "function" else verdict for call in calls}
        recorded = [one["data"] for one in store.load("r") if one["event"] == "in_flight"]
        assert {one["call_id"]: one["decision"] for one in recorded} == wanted
        for call, decision in wanted.items():
            assert performed.calls[f"r:{call}"] == (decision == "retry")
            if decision == "skip":
                outcome = [e for e in store.load("r")[length:] if e["event"] in OUTCOMES and e["data"]["call_id"] == call]
                assert [one["data"]["error"] for one in outcome] == [UNKNOWN_OUTCOME]
        assert set(performed.calls.values()) <= {1}
        if not way.listens:  # a callback changes nothing on record
            kernai.replay(agent(Performed(), idempotent=()), "r", store=store)


def test_a_skipped_call_stays_skipped_when_the_run_is_interrupted_again() -> None:
    store, calls = one_in_flight()
    dying = Appends(0, after=True)
    dying._runs = store._runs
    run = Stored(WAYS[0], it(calls), {"go": [command("pay")]}, dying)
    with pytest.raises(OSError, match="full"):
        run.resume(in_flight="skip")
    for verdict in ("fail", "retry"):
        assert run.cut(len(store.load("r"))).resume(in_flight=verdict).ok
    assert not calls
    run.store, _ = one_in_flight()
    assert run.resume(in_flight="retry").ok
    killed = run.cut(run.index("in_flight") + 1)
    assert killed.resume(in_flight="skip").ok
    assert [one["decision"] for one in killed.data("in_flight")] == ["retry", "skip"]


def fails(call: PendingCall) -> str:
    raise LookupError(call.call_id, call.skill, call.params)


@pytest.mark.parametrize("verdict, error", [
    *[(verdict, "in_flight must") for verdict in ("again", None, True, lambda call: "perhaps", lambda call: None, lambda: "skip", 5)],
    (fails, r"\('0\.0', 'pay', {'amount': 1}\)"),
])
@EACH_WAY
def test_any_other_verdict_is_the_callers_mistake_and_changes_nothing(way: Way, verdict: Any, error: str) -> None:
    store, calls = one_in_flight()
    before = store.load("r")
    with pytest.raises((ValueError, TypeError) if verdict is not fails else LookupError, match=error):
        way.resume(it(calls), "r", store=store, provider=provider({"go": []}), in_flight=verdict)
    assert store.load("r") == before
    assert not calls


@EACH_WAY
def test_an_idempotent_skill_is_always_called_again_with_the_same_key(way: Way) -> None:
    for verdict in ("fail", "skip"):
        store, calls = one_in_flight(idempotent=True)
        assert calls == []
        scripts = {"go": [command("pay")]}
        result = way.resume(it(calls, idempotent=True), "r", store=store, provider=provider(scripts), in_flight=verdict)
        assert result.ok
        assert calls == ["r:0.0"]


def it(calls: list[str], *, idempotent: bool = False) -> Agent:
    def pay(ctx: SkillContext[Context], amount: int = 1) -> str:
        calls.append(ctx.idempotency_key)
        return f"paid {amount}"

    return Agent(instructions="x", skills=[Skill("pay", execute=pay, idempotent=idempotent)])


def one_in_flight(*, idempotent: bool = False) -> tuple[MemoryStore, list[str]]:
    """A run that was broken off in its only call."""
    store, calls = MemoryStore(), list[str]()
    scripts = {"go": [command("pay")]}
    kernai.execute(it(calls, idempotent=idempotent), "go", provider=provider(scripts), store=store, run_id="r")
    at = [entry["event"] for entry in store.load("r")].index("skill_execute")
    return cut(store, at + 1), []


def test_a_crash_in_a_call_stopped_before_it_began_is_reported_on_resume() -> None:
    paid: list[int] = []

    def pay(amount: int) -> str:
        paid.append(amount)
        store.left = 0 if len(paid) == 1 else inf
        return "paid"

    store, stop = Appends(), threading.Event()
    run = Stored(WAYS[0], Agent(instructions="x", skills=[Skill("pay", execute=pay)]), {"go": [command("pay", "30")]}, store)
    stopped = run.execute(cancel=stop, on_event=lambda event: stop.set() if event.type == "skill_execute" else None)
    assert (stopped.stop_reason, paid) == ("cancelled", []), "the run was stopped before the call began"
    with pytest.raises(OSError, match="full"):
        run.resume()
    store.left = inf
    with pytest.raises(InFlightError):
        run.resume()
    assert paid == [30]


def test_approved_calls_of_tasks_stopped_before_they_began_are_made_on_resume() -> None:
    tasks = plan(task("a", "task a"), task("b", "task b"), strategy="parallel")
    paid, stop = list[int](), threading.Event()
    pay = Skill("pay", execute=lambda amount: paid.append(amount), inputs={"amount": int}, approval=True)
    it = Agent(instructions="x", skills=[pay])
    run = Stored(WAYS[0], it, {
        "go": [tasks, "<final>done</final>"], "task a": [command("pay", "1")], "task b": [command("pay", "2")],
    })
    pending = run.execute().pending
    stopped = run.resume(
        approvals={call.call_id: True for call in pending}, cancel=stop,
        on_event=lambda event: stop.set() if event.type == "approval_given" else None,
    )
    assert (stopped.stop_reason, paid, len(pending)) == ("cancelled", [], 2)
    assert run.resume().text == "done"
    assert sorted(paid) == [1, 2]
    assert run.replay() is not None


@EACH_WAY
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("kind", [CallSkill, CallProtocol])
def test_a_call_that_a_middleware_makes_instead_is_only_repeated_if_a_person_says_so(way: Way, at_once: bool, kind: type) -> None:
    def instead(effect: Any) -> Any:
        if isinstance(effect, CallSkill):
            effect = effect.replace(skill="pay") if kind is CallSkill else CallProtocol("", effect.call_id, "pay", Block("pay", ""))
        return (yield effect)

    paid: list[str] = []
    skills = Skill("look", execute=str, inputs={}, idempotent=True), Skill("pay", execute=lambda: paid.append(""), inputs={})
    pay = Protocol("pay", lambda block, ctx: paid.append(""))
    it = Agent(instructions="x", skills=skills, protocols=[pay], middleware=[instead], parallel_skills=at_once)
    run = Stored(way, it, {"go": [command("look"), "<final>done</final>"]})
    assert (run.execute().text, len(paid)) == ("done", 1)
    killed = run.cut(run.index("skill_execute") + 1)
    for _ in range(2):  # the second time after it was approved
        [asked] = killed.resume().pending
        assert ("'pay' may have been called" in asked.reason, asked.skill, len(paid)) == (True, "pay", 1)
        again = killed.cut(len(killed.load()))
        assert again.resume(approvals={asked.call_id: True}).text == "done"
        killed, paid[1:] = again.cut(again.index("approval_given") + 1), []
    assert (killed.resume(in_flight="retry").text, len(paid)) == ("done", 2)
