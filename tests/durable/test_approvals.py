"""A person in the loop: calls that wait, in any position, and the effect of each decision."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from math import inf
from pathlib import Path
from typing import Any

import pytest

import kernai
from kernai import (
    Agent,
    Block,
    Context,
    Decision,
    KernaiError,
    Limits,
    MemoryStore,
    MockProvider,
    Pause,
    Protocol,
    Result,
    Skill,
    SkillContext,
    SqliteStore,
    Stop,
)
from kernai.loop.run_state import Run
from tests.durable.durable_cases import AT_ONCE, EACH_WAY, WAYS, Appends, Performed, Way, command, cut, payer, provider

pytestmark = pytest.mark.slow

Ctx = SkillContext[Context]

PAY = command("pay", '{"amount": 5}')
LOOK = command("look")
HAND_IN = '<block type="ticket">open one</block>'
TASKS = (
    '<block type="plan">{"goal": "g", "tasks": [{"id": "a", "input": "task: pay", "parallel": true}, '
    '{"id": "b", "input": "task: look", "parallel": true}, {"id": "c", "input": "task: last", "depends_on": ["a", "b"]}]}'
    "</block>"
)
#: positions of a call that waits: what the models say, and the id of the call
PLACES: dict[str, tuple[dict[str, list[str]], str]] = {
    "alone": ({"go": [PAY]}, "0.0"),
    "between others": ({"go": [LOOK + PAY + LOOK]}, "0.1"),
    "in a later step": ({"go": [LOOK, PAY]}, "1.0"),
    "in a task": ({"go": [TASKS], "task: pay": [LOOK, PAY], "task: look": [LOOK], "task: last": [LOOK]}, "0.a/1.0"),
    "in an agent": ({"go": [LOOK + command("clerk", "job")], "job": [PAY]}, "0.1/0.0"),
    "in an agent of an agent": (
        {"go": [command("chief", "order")], "order": [command("clerk", "job") + LOOK], "job": [LOOK + PAY]},
        "0.0/0.0/0.1",
    ),
    "in an agent of a task": (
        {"go": [TASKS], "task: pay": [command("clerk", "job")], "job": [PAY], "task: look": [LOOK], "task: last": []},
        "0.a/0.0/0.0",
    ),
}
EACH_PLACE = pytest.mark.parametrize("place", PLACES)
ASKS = ("skill", "approve", "itself")


def agent(performed: Performed, at_once: bool = False, asks: str = "skill", **changes: Any) -> Agent:
    """An agent whose `pay` is asked for: because the skill says so, by `approve`, or by the skill itself."""

    def look(ctx: Ctx) -> str:
        performed.note(f"look {ctx.call_id}")
        return "seen"

    def pay(amount: int, ctx: Ctx) -> str:
        if asks == "itself" and ctx.approval is None:
            raise Pause("is it enough?", {"amount": amount})
        performed.note(f"pay {ctx.call_id}")
        return f"paid {amount}"

    def ticket(block: Block, ctx: Ctx) -> str:
        if asks == "itself" and ctx.approval is None:
            raise Pause("hand it in?")
        performed.note(f"ticket {ctx.call_id}")
        return f"ticket: {block.content}"

    def approve(call: kernai.PendingCall) -> Any:
        return Pause("is it enough?", {"amount": 5}) if call.skill in ("pay", "ticket") else True

    options: dict[str, Any] = {"parallel_skills": at_once, "protocols": [Protocol("ticket", ticket)]}
    if asks == "approve":
        options["approve"] = approve
    skills = [Skill("look", execute=look), Skill("pay", execute=pay, approval=asks == "skill")]
    clerk = Agent(instructions="You pay.", skills=skills, **options)
    chief = Agent(instructions="You order.", skills=[*skills, clerk.as_skill("clerk", "Pays.")], **options)
    more = [clerk.as_skill("clerk", "Pays."), chief.as_skill("chief", "Orders.")]
    return Agent(**{"instructions": "You do.", "skills": [*skills, *more], **options, **changes})


def given(scripts: Mapping[str, Sequence[str]], **more: Any) -> dict[str, Any]:
    """What each of a run's segments is given."""
    return {"provider": provider(scripts), **more}


def events(store: MemoryStore | SqliteStore, *types: str) -> list[tuple[str, Any]]:
    return [(entry["event"], entry["data"]) for entry in store.load("r") if entry["event"] in types]


def paused(scripts: Mapping[str, Sequence[str]], way: Way, at_once: bool = False, **options: Any) -> MemoryStore:
    store, performed = MemoryStore(), Performed()
    result = way.execute(agent(performed, at_once, **options), "go", provider=provider(scripts), store=store, run_id="r")
    assert result.stop_reason == "interrupt"
    assert not any(call.startswith("pay") for call in performed.calls)
    return store


# ------------------------------------------------------------------------------------------------------- decisions


def check_usage(result: Result, store: MemoryStore) -> None:
    """Check that the usage of waiting sub-runs is counted once."""
    tokens = [data["total_tokens"] for _, data in events(store, "llm_response")]
    assert (result.usage.model_calls, result.usage.total_tokens) == (len(tokens), sum(tokens))


@EACH_PLACE
@AT_ONCE
@pytest.mark.parametrize("asks", ASKS)
def test_a_waiting_call_in_any_position_is_made_once_when_approved(
    place: str, at_once: bool, asks: str
) -> None:
    scripts, call_id = PLACES[place]
    # each place, each order and each way to ask meets all four
    way = WAYS[(list(PLACES).index(place) + ASKS.index(asks) + 2 * at_once) % len(WAYS)]
    store, performed = MemoryStore(), Performed()
    first = way.execute(agent(performed, at_once, asks), "go", provider=provider(scripts), store=store, run_id="r")
    assert (first.stop_reason, first.text) == ("interrupt", None)
    (asked,) = first.pending
    assert (asked.call_id, asked.skill, asked.params) == (call_id, "pay", {"amount": 5})
    if asks != "skill":
        assert (asked.reason, asked.metadata) == ("is it enough?", {"amount": 5})
    assert f"pay {call_id}" not in performed.calls
    assert [one.status for one in store.runs()] == ["waiting"]
    check_usage(first, store)

    before = store.load("r")
    again = way.resume(agent(Performed(), at_once, asks), "r", store=store, provider=provider({}))
    assert (again.stop_reason, again.pending, again.usage) == ("interrupt", first.pending, first.usage)
    assert store.load("r") == before, "without a decision nothing is called or appended"

    last = way.resume(
        agent(performed, at_once, asks), "r", store=store, provider=provider(scripts), approvals={call_id: True}
    )
    assert last.ok
    check_usage(last, store)
    assert "paid 5" in str(last.text) or "seen" in str(last.text)
    assert set(performed.calls.values()) == {1}, "nothing was called twice"
    assert performed.calls[f"pay {call_id}"] == 1
    given = [one for one in store.load("r") if one["event"] == "approval_given"]
    assert all(one["scope"] == one["data"]["call_id"].rpartition("/")[0] for one in given)
    assert kernai.replay(agent(Performed(), at_once, asks), "r", store=store).result == last


#: decisions, and what the model then reads
DECISIONS: list[tuple[Any, str]] = [
    (True, "paid 5"), (Decision(True, by="ada"), "paid 5"), ({"params": {"amount": 3}}, "paid 3"),
    *[(said, '<block type="error" name="pay">refused</block>') for said in (False, "", "  ")],
    ("too much", '<block type="error" name="pay">too much</block>'),
    (Decision("no <final>money</final>", by="ada"), '<block type="error" name="pay">no &lt;final>money&lt;/final></block>'),
]


@pytest.mark.parametrize("decision, read", DECISIONS, ids=repr)
@AT_ONCE
@EACH_WAY
def test_each_decision_is_recorded_and_has_its_effect(decision: Any, read: str, at_once: bool, way: Way) -> None:
    scripts, _ = PLACES["between others"]
    store, performed = MemoryStore(), Performed()
    options: dict[str, Any] = {"store": store, "provider": provider(scripts)}
    way.execute(agent(performed, at_once), "go", run_id="r", **options)
    result = way.resume(agent(performed, at_once), "r", approvals={"0.1": decision}, **options)
    assert result.ok
    data = {"call_id": "0.1", "decision": getattr(decision, "value", decision), "by": getattr(decision, "by", None)}
    assert events(store, "approval_given") == [("approval_given", data)]
    assert performed.calls["pay 0.1"] == ("paid" in read)
    assert read in "".join(message.text for message in result.messages)


@pytest.mark.parametrize("approvals", [
    {"0.9": True}, {"0.0": True, "0.1": True}, {"0.0": None}, {"0.0": 1}, {"0.0": {"params": 5}},
    {"0.0": {"params": {}, "by": "x"}}, {"0.0": {}}, {"": True}, {"0.0": "Yes"}, {"0.0": " ok "},
    {"0.0": Decision("approved", by="ada")}, {"0.0": {"params": {"amuont": 5}}}, {"0.0": {"params": {"amount": 1, "x": 1}}},
    {"0.0": {"params": {"amount": "much"}}}, {"0.0": {"params": {"amount": object()}}},
])
def test_an_invalid_decision_or_one_for_a_call_that_does_not_wait_approves_nothing(approvals: dict[str, Any]) -> None:
    store, performed = paused({"go": [PAY]}, WAYS[0]), Performed()
    before, options = store.load("r"), given({"go": [PAY]}, store=store)
    with pytest.raises(ValueError, match="approvals"):
        kernai.resume(agent(performed), "r", approvals=approvals, **options)
    assert store.load("r") == before
    assert kernai.resume(agent(performed), "r", **options).stop_reason == "interrupt"
    assert not performed.calls


@EACH_WAY
def test_a_run_that_died_between_two_waiting_calls_is_waiting_once_it_is_resumed(way: Way) -> None:
    it = payer([], parallel_skills=True)
    for survived in range(4):
        store = Appends(error=SystemError)
        options: dict[str, Any] = {"store": store, "provider": provider({"go": [command("pay") * 2, "<final>done</final>"]})}
        way.execute(it, "go", run_id="r", **options)
        store.left = survived
        with suppress(SystemError):
            way.resume(it, "r", approvals={"0.0": True}, **options)
        store.left = inf
        result = way.resume(it, "r", in_flight="skip", **options)
        length = len(store.load("r"))
        resumes = [one["event"] for one in store.load("r")].count("run_resumed")
        assert resumes == (0, 2, 2, 1)[survived], "a resume that writes anything is on record"
        assert [one.call_id for one in result.pending] == (["0.0", "0.1"] if survived == 0 else ["0.1"])
        assert [one.status for one in store.runs()] == ["waiting"]
        assert way.resume(it, "r", in_flight="skip", **options).pending == result.pending
        assert len(store.load("r")) == length, "said once"


@EACH_WAY
def test_one_of_several_may_be_decided_while_the_others_keep_waiting(way: Way) -> None:
    scripts = {"go": [PAY + LOOK + PAY + PAY]}
    store, performed = MemoryStore(), Performed()
    options: dict[str, Any] = {"store": store, "provider": provider(scripts)}
    first = way.execute(agent(performed, True), "go", run_id="r", **options)
    assert [call.call_id for call in first.pending] == ["0.0", "0.2", "0.3"]
    second = way.resume(agent(performed, True), "r", approvals={"0.2": True}, **options)
    assert [call.call_id for call in second.pending] == ["0.0", "0.3"]
    with pytest.raises(ValueError, match=r"'0\.2' does not wait .* those that wait: 0\.0, 0\.3"):
        way.resume(agent(performed, True), "r", approvals={"0.2": True}, **options)
    third = way.resume(agent(performed, True), "r", approvals={"0.0": "no", "0.3": True}, **options)
    assert third.ok
    assert performed.calls == {"look 0.1": 1, "pay 0.2": 1, "pay 0.3": 1}
    assert kernai.replay(agent(Performed(), True), "r", store=store).result == third


@EACH_WAY
@AT_ONCE
def test_a_skill_may_pause_again_after_it_was_approved(way: Way, at_once: bool) -> None:
    seen: list[Any] = []

    def pay(ctx: Ctx) -> str:
        seen.append(ctx.approval)
        if ctx.approval is None or ctx.approval.by == "clerk":
            raise Pause("who is there?" if ctx.approval is None else "and the chief?")
        return f"paid, says {ctx.approval.by}"

    made = Agent(instructions="x", skills=[Skill("pay", execute=pay)], parallel_skills=at_once)
    options: dict[str, Any] = {"store": MemoryStore(), "provider": provider({"go": [command("pay") + command("/skills")]})}
    assert way.execute(made, "go", run_id="r", **options).pending[0].reason == "who is there?"
    second = way.resume(made, "r", approvals={"0.0": Decision(True, by="clerk")}, **options)
    assert second.pending[0].reason == "and the chief?"
    assert way.resume(made, "r", **options).pending == second.pending
    third = way.resume(made, "r", approvals={"0.0": Decision(True, by="chief")}, **options)
    assert "paid, says chief" in third.messages[2].text
    assert [None if one is None else one.by for one in seen] == [None, "clerk", "chief"]
    assert kernai.replay(made, "r", store=options["store"]).result == third


@EACH_WAY
@AT_ONCE
def test_inputs_that_a_person_changed_stay_changed_if_the_call_pauses_again(way: Way, at_once: bool) -> None:
    paid: list[Any] = []

    def pay(amount: int, to: str, ctx: Ctx) -> str:
        if ctx.approval is None or ctx.approval.by != "chief":
            raise Pause("may it?")
        paid.append((amount, to))
        return "paid"

    made = Agent(instructions="x", skills=[Skill("pay", execute=pay, idempotent=True)], parallel_skills=at_once)
    call = command("pay", '{"amount": 500, "to": "ann"}')
    store = MemoryStore()
    options: dict[str, Any] = {"provider": provider({"go": [call + command("/skills")]})}
    result = way.execute(made, "go", run_id="r", store=store, **options)
    for change, shown in (({"amount": 5}, {"amount": 5, "to": "ann"}), ({"to": "bob"}, {"amount": 5, "to": "bob"}), (None, None)):
        decision = Decision(True if change is None else {"params": change}, by="chief" if change is None else "clerk")
        result = way.resume(made, "r", store=store, approvals={"0.0": decision}, **options)
        assert [one.params for one in result.pending] == ([] if shown is None else [shown])
    entries = store.load("r")
    given = [at for at, one in enumerate(entries) if one["event"] == "approval_given"]
    assert way.resume(made, "r", store=cut(store, given[-1] + 1), **options).ok  # the process died before the call
    assert paid == [(5, "bob")] * 2
    assert kernai.replay(made, "r", store=store, skills="run").result == result
    assert paid == [(5, "bob")] * 3


@EACH_WAY
@AT_ONCE
@pytest.mark.parametrize("decision, answer", [({"answer": {"sizes": {5}}}, {"sizes": [5]}), (True, {})])
def test_a_call_that_paused_reads_the_answer_and_its_question(
    decision: Any, answer: Any, way: Way, at_once: bool
) -> None:
    seen: list[Any] = []

    def order(ctx: Ctx) -> str:
        if ctx.approval is None:
            raise Pause("which size?", {"state": [1, "opaque"]})
        seen.append((ctx.approval.answer, ctx.approval.asked))
        return "ordered"

    made = Agent(
        instructions="x", skills=[Skill("order", execute=order, idempotent=True)], parallel_skills=at_once,
        provider=provider({"go": [command("order")]}),
    )
    store = MemoryStore()
    way.execute(made, "go", run_id="r", store=store)
    assert way.resume(made, "r", store=store, approvals={"0.0": Decision(decision, by="ada")}).ok
    entries = store.load("r")
    given = next(at for at, one in enumerate(entries) if one["event"] == "approval_given")
    assert entries[given]["data"]["decision"] == (decision is True or {"answer": answer})
    assert way.resume(made, "r", store=cut(store, given + 1)).ok  # the process died before the call
    assert seen == [(answer, {"state": [1, "opaque"]})] * 2


@pytest.mark.parametrize("given, error, fault", [
    *[((value,), ValueError, "a decision is True, False, a text") for value in ({"answer": 1, "params": {}}, {}, {"answers": 1})],
    ((True, 5), TypeError, "by must be text, got 5"),
])
def test_a_decision_has_one_value_and_the_name_of_who_made_it_is_text(given: Any, error: type[Exception], fault: str) -> None:
    with pytest.raises(error, match=fault):
        Decision(*given)


# ----------------------------------------------------------------------------------------------- approve, protocols


ANSWERS: list[tuple[Any, str]] = [
    (True, "made"), (False, "refused"), ("not today", "not today"), (Decision(True), "made"),
    (None, "a decision is True, False"), ({"params": {"amount": 1}}, ""), (ValueError("the rule is broken"), "broken"),
    (SystemError("odd"), "odd"),
]


@pytest.mark.parametrize("said, read", ANSWERS, ids=repr)
@pytest.mark.parametrize("kind", ["skill", "protocol"])
@AT_ONCE
@EACH_WAY
def test_approve_is_asked_before_each_call_and_its_answer_is_an_event(
    said: Any, read: str, kind: str, at_once: bool, way: Way
) -> None:
    asked: list[Any] = []
    made: list[Any] = []

    def approve(call: kernai.PendingCall) -> Any:
        asked.append((call.call_id, call.skill, call.params))
        if isinstance(said, Exception):
            raise type(said)(str(said))  # a new instance: one that was raised keeps the run alive
        return said

    def pay(amount: int) -> str:
        made.append(amount)
        return "made"

    def ticket(block: Block, ctx: Ctx) -> str:
        made.append(block.content)
        return "made"

    it = Agent(
        instructions="x", skills=[Skill("pay", execute=pay)], protocols=[Protocol("ticket", ticket)],
        approve=approve, parallel_skills=at_once,
    )
    store = MemoryStore()
    block = PAY if kind == "skill" else HAND_IN
    result = way.execute(it, "go", provider=provider({"go": [block + block]}), store=store, run_id="r")
    name, params = ("pay", {"amount": 5}) if kind == "skill" else ("ticket", "open one")
    assert asked == [("0.0", name, params), ("0.1", name, params)]
    answers = [data for _, data in events(store, "approval_given")]
    assert [one["by"] for one in answers] == (["approve", "approve"] if not isinstance(said, Decision) else [None, None])
    if isinstance(said, dict):
        assert made == ([1, 1] if kind == "skill" else []), "what cannot be changed is not made"
    else:
        assert bool(made) == (read == "made")
        assert read in result.messages[-2].text
    assert kernai.replay(it, "r", store=store).result == result
    assert len(asked) == 2


@EACH_WAY
def test_approve_is_asked_for_protocols_and_may_pause_them(way: Way) -> None:
    scripts = {"go": [HAND_IN]}
    for asks in ("approve", "itself"):
        store, performed = MemoryStore(), Performed()
        options: dict[str, Any] = {"store": store, "provider": provider(scripts)}
        first = way.execute(agent(performed, asks=asks), "go", run_id="r", **options)
        assert [(one.skill, one.params) for one in first.pending] == [("ticket", "open one")]
        with pytest.raises(ValueError, match="only a skill's call has parameters"):
            way.resume(agent(performed, asks=asks), "r", approvals={"0.0": {"params": {"a": 1}}}, **options)
        last = way.resume(agent(performed, asks=asks), "r", approvals={"0.0": True}, **options)
        assert "ticket: open one" in str(last.text)
        assert performed.calls == {"ticket 0.0": 1}


@pytest.mark.parametrize("error", [lambda: Stop("guardrail", "never"), KeyboardInterrupt, SystemExit])
@AT_ONCE
@EACH_WAY
def test_a_stop_raised_by_approve_ends_the_run_and_the_call_is_not_made(
    error: Callable[[], BaseException], at_once: bool, way: Way
) -> None:
    if way.is_async and isinstance(error, type):
        pytest.skip("asyncio's own loop ends at Ctrl-C")

    def approve(call: kernai.PendingCall) -> bool:
        del call
        raise error()

    store, performed = MemoryStore(), Performed()
    it = agent(performed, at_once, approve=approve)
    try:
        result = way.execute(it, "go", provider=provider({"go": [PAY + LOOK]}), store=store, run_id="r")
        assert (result.stop_reason, str(result.error)) == ("guardrail", "never")
    except (KeyboardInterrupt, SystemExit) as raised:
        assert type(raised) is error  # noqa: PT017 - it is no Exception
    assert not performed.calls
    assert [entry["event"] for entry in store.load("r")][-1] == "result"


@pytest.mark.parametrize("place", ["alone", "between others", "in a task", "in an agent", "in an agent of an agent"])
@pytest.mark.parametrize("asks", ASKS)
@EACH_WAY
def test_without_a_store_a_pause_is_an_error_that_says_so_and_the_call_is_not_made(
    place: str, asks: str, way: Way
) -> None:
    scripts, _ = PLACES[place]
    for at_once in (False, True):
        performed, recorder = Performed(), kernai.Recorder()
        with pytest.raises(KernaiError, match="needs a store: pass store=") as raised:
            way.execute(agent(performed, at_once, asks), "go", provider=provider(scripts), recorder=recorder)
        assert raised.value.__context__ is None, "nothing internal is printed before it"
        assert not any(call.startswith("pay") for call in performed.calls)
        errors = [one.data for one in recorder.for_event("skill_error") if one.data["skill"] == "pay"]
        assert asks == "itself" or all("not_run" in data for data in errors), "it did not even begin"


@pytest.mark.parametrize("named", [False, True], ids=["as an object", "by its name"])
@EACH_WAY
def test_approve_of_a_nested_sub_agent_is_called_even_without_a_store(way: Way, named: bool) -> None:
    asked: list[str | None] = []

    def approve(call: kernai.PendingCall) -> bool:
        asked.append(call.skill)
        return False

    performed = Performed()
    clerk = Agent(
        instructions="x", skills=[Skill("pay", execute=lambda: performed.note("pay"), inputs={})], approve=approve
    ).as_skill("clerk", "Pays.")
    chief = Agent(instructions="x", skills=[clerk]).as_skill("chief", "Orders.")
    if named:
        kernai.skills.register(chief)
    root = Agent(instructions="x", skills=["chief"] if named else [chief])
    scripts = {"go": [command("chief", "order")], "order": [command("clerk", "job")], "job": [command("pay")]}
    way.execute(root, "go", provider=provider(scripts))
    assert asked == ["pay"]
    assert not performed.calls


# --------------------------------------------------------------------------------------- crashes, stops, accounting


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@AT_ONCE
def test_a_run_with_a_pause_that_is_cut_off_after_any_event_ends_the_same(place: str, at_once: bool) -> None:
    scripts, call_id = PLACES[place]
    store, performed = MemoryStore(), Performed()
    options: dict[str, Any] = given(scripts)
    kernai.execute(agent(performed, at_once), "go", store=store, run_id="r", **options)
    whole = kernai.resume(agent(performed, at_once), "r", store=store, approvals={call_id: True}, **options)
    for length in range(1 + at_once, len(store.load("r")) + 1, 2):  # the other half in the other order
        way = WAYS[length // 2 % len(WAYS)]
        part, performed = cut(store, length), Performed()
        known = {data["call_id"] for _, data in events(part, "skill_result", "skill_error")}
        result = way.resume(agent(performed, at_once), "r", store=part, in_flight="retry", **options)
        if result.stop_reason == "interrupt":
            assert [call.call_id for call in result.pending] == [call_id]
            assert f"pay {call_id}" not in performed.calls
            result = way.resume(
                agent(performed, at_once), "r", store=part, approvals={call_id: True}, in_flight="retry", **options
            )
        assert (result.text, result.messages) == (whole.text, whole.messages)
        assert result.usage.model_calls == whole.usage.model_calls
        assert set(performed.calls.values()) <= {1}
        assert not {call.split()[1] for call in performed.calls} & known
        assert kernai.replay(agent(Performed(), at_once), "r", store=part).result == result


def test_a_waiting_call_is_recorded_before_concurrent_calls_are_made() -> None:
    """A crash in the call beside it leaves no doubt whether the one that waits was begun."""
    seen: list[list[str]] = []
    store = MemoryStore()

    def look() -> str:
        seen.append([entry["event"] for entry in store.load("r")])
        return "seen"

    it = payer([], Skill("look", execute=look), parallel_skills=True)
    kernai.execute(it, "go", provider=provider({"go": [LOOK + command("pay") + LOOK]}), store=store, run_id="r")
    assert all(events.count("skill_execute") == 3 and "approval_requested" in events for events in seen)


@pytest.mark.parametrize("ends", ["cancelled", "timeout"])
@EACH_WAY
def test_a_call_still_waits_after_its_run_was_stopped(way: Way, ends: str) -> None:
    cancel, again = threading.Event(), threading.Event()

    def slow(ctx: Ctx) -> str:
        if ends == "cancelled":
            cancel.set()
        while not ctx.cancelled and not again.is_set():
            pass
        return "slow"

    it = payer([], Skill("slow", execute=slow, idempotent=True), parallel_skills=True)
    store, options = MemoryStore(), given({"go": [command("pay") + command("slow")]})
    stops: dict[str, Any] = {"cancel": cancel} if ends == "cancelled" else {"limits": Limits(timeout=0.05)}
    assert way.execute(it, "go", store=store, run_id="r", **stops, **options).stop_reason in (ends, "interrupt")
    again.set()
    assert [call.call_id for call in way.resume(it, "r", store=store, **options).pending] == ["0.0"]
    assert way.resume(it, "r", store=store, approvals={"0.0": ends == "cancelled"}, **options).ok


@EACH_WAY
def test_the_usage_of_agents_that_wait_is_counted_when_the_run_is_stopped(way: Way) -> None:
    cancel = threading.Event()

    def slow(ctx: Ctx) -> None:
        while not ctx.cancelled:
            pass

    chief = Agent(instructions="x", skills=[payer([]).as_skill("clerk", "Pays.")]).as_skill("chief", "Orders.")
    it = Agent(instructions="x", skills=[chief, Skill("slow", execute=slow)], parallel_skills=True)
    scripts = {"go": [command("chief", "order") + command("slow")], "order": [command("clerk", "job")], "job": [command("pay")]}
    result = way.execute(
        it, "go", **given(scripts, store=MemoryStore(), run_id="r", cancel=cancel),
        on_event=lambda event: cancel.set() if event.type == "approval_requested" else None,
    )
    assert (result.stop_reason, result.usage.model_calls) == ("cancelled", 3)


# ------------------------------------------------------------------------------------------------ nothing left


def runs_left() -> int:
    for thread in threading.enumerate():
        if thread.name == "kernai-worker":  # it ends, and holds its last job until then
            thread.join(20)
    for _ in range(3):  # what a generator's end lets go of is found by the next one
        gc.collect()
    return sum(isinstance(one, Run) for one in gc.get_objects())


@pytest.mark.slow
def test_runs_that_paused_and_were_resumed_leave_nothing_behind() -> None:
    scripts, call_id = PLACES["in an agent of a task"]
    descriptors = Path("/proc/self/fd")
    before: tuple[int, int] | None = None
    others = runs_left()  # of other tests
    for count in range(24):
        way, store = WAYS[count % len(WAYS)], MemoryStore()
        options: dict[str, Any] = {"store": store, "provider": provider(scripts)}
        result = way.execute(agent(Performed(), True), "go", run_id="r", **options)
        assert count or (result.pending and runs_left() <= others), "a parked run is free at once"
        del result
        assert way.resume(agent(Performed(), True), "r", approvals={call_id: True}, **options).ok
        if count == 7:
            runs_left()
            before = threading.active_count(), len(os.listdir(descriptors)) if descriptors.is_dir() else 0
    assert runs_left() <= others
    assert before is not None
    assert threading.active_count() <= before[0] + 2
    if descriptors.is_dir():
        assert len(os.listdir(descriptors)) <= before[1] + 2


def test_a_decision_changes_some_parameters_and_keeps_the_others() -> None:
    paid: list[Any] = []

    def pay(number: int, on: date, amount: int = 100, tags: list[str] | None = None) -> str:
        paid.append((number, on, amount, tags))
        return "paid"

    it = Agent(instructions="", skills=[Skill("pay", execute=pay, inputs=None, approval=True)])
    asked = command("pay", '{"number": 42, "on": "2026-01-02", "amount": 500, "tags": ["a"]}')

    def resumed(decision: Any) -> Any:
        paid.clear()
        store = MemoryStore()
        options: dict[str, Any] = {"store": store, "provider": MockProvider(asked, "<final>done</final>")}
        assert kernai.execute(it, "go", run_id="r", **options).pending
        result = kernai.resume(it, "r", approvals={"0.0": decision}, **options)
        assert result.text == "done"
        assert kernai.replay(it, "r", store=store).result == result
        return paid[0]

    assert resumed({"params": {"amount": 5}}) == (42, date(2026, 1, 2), 5, ["a"])
    assert resumed({"params": {}}) == (42, date(2026, 1, 2), 500, ["a"])
    assert resumed({"params": {"on": "2026-03-04", "tags": None}}) == (42, date(2026, 3, 4), 500, None)
    again = it.replace(approve=lambda call: Decision({"params": {"amount": 6}}))
    kernai.execute(again, "go", provider=MockProvider(asked, "<final>done</final>"))
    assert paid[-1] == (42, date(2026, 1, 2), 6, ["a"])
    wrong = it.replace(approve=lambda call: Decision({"params": {"amuont": 6}}))
    result = kernai.execute(wrong, "go", provider=MockProvider(asked, "<final>done</final>"))
    assert "'amuont' is no input of pay; did you mean 'amount'?" in result.messages[2].text
    assert len(paid) == 2


@AT_ONCE
@EACH_WAY
def test_an_approved_call_in_flight_shows_its_changed_parameters_and_needs_no_second_approval(at_once: bool, way: Way) -> None:
    store, performed = Appends(), Performed()
    options = given({"go": [PAY + LOOK]}, store=store)
    way.execute(agent(performed, at_once), "go", run_id="r", **options)
    store.left = 1  # the append with the decision and the call
    with pytest.raises(OSError, match="full"):
        way.resume(agent(performed, at_once), "r", approvals={"0.0": {"params": {"amount": 3}}}, **options)
    store.left = inf
    with pytest.raises(kernai.InFlightError) as caught:
        way.resume(agent(Performed(), at_once), "r", **options)
    assert ("0.0", {"amount": 3}) in [(call.call_id, call.params) for call in caught.value.calls]
    performed = Performed()
    assert way.resume(agent(performed, at_once), "r", in_flight="retry", **options).ok
    assert performed.calls["pay 0.0"] == 1
