"""A person in the loop: calls that wait, in any position, and the effect of each decision."""

from __future__ import annotations

import gc
import threading
from contextlib import nullcontext, suppress
from datetime import date
from itertools import product
from math import inf
from typing import Any

import pytest

import kernai
from kernai import Agent, Block, Decision, KernaiError, Limits, Pause, Protocol, Result, Skill, SkillContext, Stop
from kernai.loop.run_state import Run
from kernai.middleware import redact
from tests.durable.durable_cases import AT_ONCE, EACH_WAY, WAYS, Appends, Performed, Stored, Way, command, payer
from tests.loop.loop_cases import plan, task
from tests.ways import join_threads

pytestmark = pytest.mark.slow

Ctx = SkillContext[kernai.Context]

PAY = command("pay", '{"amount": 5}')
LOOK = command("look")
HAND_IN = '<block type="ticket">open one</block>'
TASKS = plan(
    task("a", "task: pay", parallel=True), task("b", "task: look", parallel=True), task("c", "task: last", depends_on=["a", "b"]), strategy="mixed")
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


class Case(Stored):
    def __init__(self, way: Way, scripts: Any, at_once: bool = False, asks: str = "skill", store: Any = None, **changes: Any) -> None:
        self.performed = Performed()
        super().__init__(way, agent(self.performed, at_once, asks, **changes), scripts, store)

    def check_usage(self, result: Result[Any]) -> None:
        tokens = [one["total_tokens"] for one in self.data("llm_response")]
        assert (result.usage.model_calls, result.usage.total_tokens) == (len(tokens), sum(tokens))


# ------------------------------------------------------------------------------------------------------- decisions


@EACH_PLACE
@AT_ONCE
@pytest.mark.parametrize("asks", ASKS)
def test_a_waiting_call_in_any_position_is_made_once_when_approved(place: str, at_once: bool, asks: str) -> None:
    scripts, call_id = PLACES[place]
    # each place, each order and each way to ask is tried in all four ways to run
    way = WAYS[(list(PLACES).index(place) + ASKS.index(asks) + 2 * at_once) % len(WAYS)]
    run = Case(way, scripts, at_once, asks)
    first = run.execute()
    assert (first.stop_reason, first.text) == ("interrupt", None)
    (asked,) = first.pending
    assert (asked.call_id, asked.skill, asked.params) == (call_id, "pay", {"amount": 5})
    if asks != "skill":
        assert (asked.reason, asked.metadata) == ("is it enough?", {"amount": 5})
    assert f"pay {call_id}" not in run.performed.calls
    assert [one.status for one in run.store.runs()] == ["waiting"]
    run.check_usage(first)

    before = run.load()
    again = run.resume(provider=kernai.MockProvider())
    assert (again.stop_reason, again.pending, again.usage) == ("interrupt", first.pending, first.usage)
    assert run.load() == before, "without a decision nothing is called or appended"

    last = run.resume(approvals={call_id: True})
    assert last.ok
    run.check_usage(last)
    assert "paid 5" in str(last.text) or "seen" in str(last.text)
    assert set(run.performed.calls.values()) == {1}, "nothing was called twice"
    assert run.performed.calls[f"pay {call_id}"] == 1
    given = [one for one in run.load() if one["event"] == "approval_given"]
    assert all(one["scope"] == one["data"]["call_id"].rpartition("/")[0] for one in given)
    assert run.replay() == last


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
    run = Case(way, PLACES["between others"][0], at_once)
    run.execute()
    result = run.resume(approvals={"0.1": decision})
    assert result.ok
    given = {"call_id": "0.1", "decision": getattr(decision, "value", decision), "by": getattr(decision, "by", None)}
    assert run.data("approval_given") == [given]
    assert run.performed.calls["pay 0.1"] == ("paid" in read)
    assert read in "".join(message.text for message in result.messages)


@pytest.mark.parametrize("approvals", [
    {"0.9": True}, {"0.0": True, "0.1": True}, {"0.0": None}, {"0.0": 1}, {"0.0": {"params": 5}},
    {"0.0": {"params": {}, "by": "x"}}, {"0.0": {}}, {"": True}, {"0.0": "Yes"}, {"0.0": " ok "},
    {"0.0": Decision("Approved!", by="ada")}, {"0.0": {"params": {"amuont": 5}}}, {"0.0": {"params": {"amount": 1, "x": 1}}},
    {"0.0": {"params": {"amount": "much"}}}, {"0.0": {"params": {"amount": object()}}}, ["0.0"],
])
def test_an_invalid_decision_or_one_for_a_call_that_does_not_wait_approves_nothing(approvals: Any) -> None:
    run = Case(WAYS[0], {"go": [PAY]})
    run.execute()
    before = run.load()
    with pytest.raises((ValueError, TypeError), match=r"approvals[:[]|such as \{'0\.0': True\}"):
        run.resume(approvals=approvals)
    assert run.load() == before
    assert run.resume().stop_reason == "interrupt"
    assert not run.performed.calls


@EACH_WAY
def test_a_run_that_died_between_two_waiting_calls_is_waiting_once_it_is_resumed(way: Way) -> None:
    for survived in range(4):
        store = Appends(error=SystemError)
        run = Stored(way, payer([], parallel_skills=True), {"go": [command("pay") * 2, "<final>done</final>"]}, store)
        run.execute()
        store.left = survived
        with suppress(SystemError):
            run.resume(approvals={"0.0": True})
        store.left = inf
        result = run.resume(in_flight="skip")
        length = len(run.load())
        assert len(run.data("run_resumed")) == (0, 2, 2, 1)[survived], "a resume that writes anything is on record"
        assert [one.call_id for one in result.pending] == (["0.0", "0.1"] if survived == 0 else ["0.1"])
        assert [one.status for one in store.runs()] == ["waiting"]
        assert run.resume(in_flight="skip").pending == result.pending
        assert len(run.load()) == length, "said once"


@EACH_WAY
def test_one_of_several_may_be_decided_while_the_others_keep_waiting(way: Way) -> None:
    run = Case(way, {"go": [PAY + LOOK + PAY + PAY]}, at_once=True)
    first = run.execute()
    assert [call.call_id for call in first.pending] == ["0.0", "0.2", "0.3"]
    assert "seen" in first.messages[-1].text, "a run that continues from these messages does not look again"
    assert run.replay().messages == first.messages
    assert [call.call_id for call in run.resume(approvals={"0.2": True}).pending] == ["0.0", "0.3"]
    with pytest.raises(ValueError, match=r"'0\.2' does not wait .* those that wait: '0\.0', '0\.3'"):
        run.resume(approvals={"0.2": True})
    last = run.resume(approvals={"0.0": "no", "0.3": True})
    assert last.ok
    assert run.performed.calls == {"look 0.1": 1, "pay 0.2": 1, "pay 0.3": 1}
    assert run.replay() == last


@EACH_WAY
@AT_ONCE
def test_inputs_that_a_person_changed_stay_changed_if_the_call_pauses_again(way: Way, at_once: bool) -> None:
    paid: list[Any] = []

    def pay(amount: int, to: str, ctx: Ctx) -> str:
        if ctx.approval is None or ctx.approval.by != "chief":
            raise Pause("may it?" if ctx.approval is None else f"{ctx.approval.by} agrees")
        paid.append((amount, to))
        return "paid"

    made = Agent(instructions="x", skills=[Skill("pay", execute=pay, idempotent=True)], parallel_skills=at_once)
    run = Stored(way, made, {"go": [command("pay", '{"amount": 500, "to": "ann"}') + command("/skills")]})
    assert run.execute().pending[0].reason == "may it?"
    for change, shown in ({"amount": 5}, {"amount": 5, "to": "ann"}), ({"to": "bob"}, {"amount": 5, "to": "bob"}):
        (again,) = run.resume(approvals={"0.0": Decision({"params": change}, by="clerk")}).pending
        assert (again.params, again.reason) == (shown, "clerk agrees")
    result = run.resume(approvals={"0.0": Decision(True, by="chief")})
    assert not result.pending
    given = [at for at, one in enumerate(run.load()) if one["event"] == "approval_given"]
    assert run.cut(given[-1] + 1).resume().ok  # the process died before the call
    assert paid == [(5, "bob")] * 2
    assert run.replay(skills="run") == result
    assert paid == [(5, "bob")] * 3


@EACH_WAY
@AT_ONCE
@pytest.mark.parametrize("decision, answer", [({"answer": {"sizes": {5}}}, {"sizes": [5]}), (True, {}), ({"params": {}}, {})])
def test_a_call_that_paused_reads_the_answer_and_its_question(decision: Any, answer: Any, way: Way, at_once: bool) -> None:
    seen: list[Any] = []

    def order(ctx: Ctx) -> str:
        if ctx.approval is None:
            raise Pause("which size?", {"state": [1, "opaque"]})
        seen.append((ctx.approval.answer, ctx.approval.asked))
        return "ordered"

    made = Agent(instructions="x", skills=[Skill("order", execute=order, idempotent=True)], parallel_skills=at_once)
    run = Stored(way, made, {"go": [command("order")]})
    run.execute()
    assert run.resume(approvals={"0.0": Decision(decision, by="ada")}).ok
    assert [one["decision"] for one in run.data("approval_given")] == [{"answer": answer} if answer else decision]
    assert run.cut(run.index("approval_given") + 1).resume().ok  # the process died before the call
    assert seen == [(answer, {"state": [1, "opaque"]})] * 2


@pytest.mark.parametrize("given, error, fault", [
    *[((value,), ValueError, "a decision is True, False, a text") for value in ({"answer": 1, "params": {}}, {}, {"answers": 1})],
    ((True, 5), TypeError, "by must be text, got int"), ((True, "ann", 1), TypeError, "trusted must be True or False, got int"),
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

    skills, protocols = [Skill("pay", execute=pay)], [Protocol("ticket", ticket)]
    it = Agent(instructions="x", skills=skills, protocols=protocols, approve=approve, parallel_skills=at_once)
    run = Stored(way, it, {"go": [(PAY if kind == "skill" else HAND_IN) * 2]})
    result = run.execute()
    name, params = ("pay", {"amount": 5}) if kind == "skill" else ("ticket", "open one")
    assert asked == [("0.0", name, params), ("0.1", name, params)]
    by = [one["by"] for one in run.data("approval_given")]
    assert by == [None if isinstance(said, Decision) else "approve"] * 2
    if isinstance(said, dict):
        assert made == ([1, 1] if kind == "skill" else []), "what cannot be changed is not made"
    else:
        assert bool(made) == (read == "made")
        assert read in result.messages[-2].text
    assert run.replay() == result
    assert len(asked) == 2


@EACH_WAY
def test_approve_is_asked_for_protocols_and_may_pause_them(way: Way) -> None:
    named = '<block type="ticket" name="urgent">open one</block>'  # its handler reads the name, so the person must
    for asks, said, shown in (("approve", HAND_IN, "open one"), ("itself", HAND_IN, "open one"), ("approve", named, named)):
        run = Case(way, {"go": [said]}, asks=asks)
        assert [(one.skill, one.params) for one in run.execute().pending] == [("ticket", shown)]
        with pytest.raises(ValueError, match="only a skill's call has parameters"):
            run.resume(approvals={"0.0": {"params": {"a": 1}}})
        assert "ticket: open one" in str(run.resume(approvals={"0.0": True}).text)
        with pytest.raises(KernaiError, match="needs a store: pass store="):
            run.execute(store=None)
        assert run.performed.calls == {"ticket 0.0": 1}


@pytest.mark.parametrize("error, way", [
    *((Stop("guardrail", "never"), way) for way in WAYS), *product((KeyboardInterrupt(), SystemExit()), WAYS[:2]),
], ids=repr)  # asyncio's own loop ends at Ctrl-C
@AT_ONCE
def test_a_stop_raised_by_approve_ends_the_run_and_the_call_is_not_made(error: BaseException, at_once: bool, way: Way) -> None:
    def approve(call: kernai.PendingCall) -> bool:
        raise error

    run = Case(way, {"go": [PAY + LOOK]}, at_once, approve=approve)
    with nullcontext() if isinstance(error, Stop) else pytest.raises(type(error)):
        result = run.execute()
        assert (result.stop_reason, str(result.error)) == ("guardrail", "never")
    assert not run.performed.calls
    assert run.load()[-1]["event"] == "result"


@pytest.mark.parametrize("place", ["alone", "between others", "in a task", "in an agent", "in an agent of an agent"])
@pytest.mark.parametrize("asks", ASKS)
@EACH_WAY
def test_without_a_store_a_pause_is_an_error_that_says_so_and_the_call_is_not_made(place: str, asks: str, way: Way) -> None:
    for at_once in (False, True):
        run, recorder = Case(way, PLACES[place][0], at_once, asks, middleware=[redact("x")] * at_once), kernai.Recorder()
        with pytest.raises(KernaiError, match="needs a store: pass store=") as raised:
            run.execute(store=None, recorder=recorder)
        assert raised.value.__context__ is None, "nothing internal is printed before it"
        assert (raised.value.result is not None) == (asks == "approve")
        assert not any(call.startswith("pay") for call in run.performed.calls)
        errors = [one.data for one in recorder.for_event("skill_error") if one.data["skill"] == "pay"]
        assert asks == "itself" or all("not_run" in data for data in errors), "it did not even begin"
        kernai.replay(run.agent, recording=recorder.to_list())  # does not differ


class Equal(Agent):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal)

    __hash__ = Agent.__hash__


@pytest.mark.parametrize("named", [False, True], ids=["as an object", "by its name"])
@EACH_WAY
def test_approve_of_a_nested_sub_agent_is_called_even_without_a_store(way: Way, named: bool) -> None:
    asked: list[str | None] = []
    paid: list[Any] = []

    def approve(call: kernai.PendingCall) -> bool:
        asked.append(call.skill)
        return False

    clerk = payer(paid, approve=approve).as_skill("clerk", "Pays.")
    chief = Equal(instructions="x", skills=[clerk]).as_skill("chief", "Orders.")
    if named:
        kernai.skills.register(chief)
    root = Equal(instructions="x", skills=["chief"] if named else [chief])
    scripts = {"go": [command("chief", "order")], "order": [command("clerk", "job")], "job": [command("pay")]}
    Stored(way, root, scripts).execute(store=None)
    assert (asked, paid) == (["pay"], [])


# --------------------------------------------------------------------------------------- crashes, stops, accounting


@EACH_PLACE
@AT_ONCE
def test_a_run_with_a_pause_that_is_cut_off_after_any_event_ends_the_same(place: str, at_once: bool) -> None:
    scripts, call_id = PLACES[place]
    run = Case(WAYS[0], scripts, at_once)
    run.execute()
    whole = run.resume(approvals={call_id: True})
    start = (list(PLACES).index(place) + at_once) % 3  # of each third; other places and the other order begin with another
    for length in range(1 + start, len(run.load()) + 1, 3):
        again = Case(WAYS[length // 3 % len(WAYS)], scripts, at_once, store=run.cut(length).store)
        known = {data["call_id"] for data in again.data("skill_result", "skill_error")}
        result = again.resume(in_flight="retry")
        if result.stop_reason == "interrupt":
            assert [call.call_id for call in result.pending] == [call_id]
            assert f"pay {call_id}" not in again.performed.calls
            again.agent = agent(again.performed, at_once)  # in a new process
            result = again.resume(approvals={call_id: True}, in_flight="retry")
        assert (result.text, result.messages) == (whole.text, whole.messages)
        assert result.usage.model_calls == whole.usage.model_calls
        assert set(again.performed.calls.values()) <= {1}
        assert not {call.split()[1] for call in again.performed.calls} & known
        assert again.replay() == result


def test_a_waiting_call_is_recorded_before_concurrent_calls_are_made() -> None:
    """A crash in the call beside it leaves no doubt whether the one that waits was begun."""
    seen: list[list[str]] = []

    def look() -> str:
        seen.append([entry["event"] for entry in run.load()])
        return "seen"

    it = payer([], Skill("look", execute=look), parallel_skills=True)
    run = Stored(WAYS[0], it, {"go": [LOOK + command("pay") + LOOK]})
    run.execute()
    assert all(events.count("skill_execute") == 3 and "approval_requested" in events for events in seen)


@AT_ONCE
@EACH_WAY
def test_an_approved_call_in_flight_shows_its_changed_parameters_and_needs_no_second_approval(at_once: bool, way: Way) -> None:
    store = Appends()
    run = Case(way, {"go": [PAY + LOOK]}, at_once, store=store)
    run.execute()
    store.left = 1  # the append with the decision and the call
    with pytest.raises(OSError, match="full"):
        run.resume(approvals={"0.0": {"params": {"amount": 3}}})
    store.left = inf
    with pytest.raises(kernai.InFlightError) as caught:
        run.resume()
    assert ("0.0", {"amount": 3}) in [(call.call_id, call.params) for call in caught.value.calls]
    run.performed.calls.clear()
    assert run.resume(in_flight="retry").ok
    assert run.performed.calls["pay 0.0"] == 1


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
    run = Stored(way, it, {"go": [command("pay") + command("slow")]})
    stops: dict[str, Any] = {"cancel": cancel} if ends == "cancelled" else {"limits": Limits(timeout=0.05)}
    assert run.execute(**stops).stop_reason in (ends, "interrupt")
    again.set()
    assert [call.call_id for call in run.resume().pending] == ["0.0"]
    assert ([one.status for one in run.store.runs()], run.replay().stop_reason) == (["waiting"], "interrupt")
    assert run.resume(approvals={"0.0": ends == "cancelled"}).ok


@EACH_WAY
def test_the_usage_of_agents_that_wait_is_counted_when_the_run_is_stopped(way: Way) -> None:
    cancel = threading.Event()

    def slow(ctx: Ctx) -> None:
        while not ctx.cancelled:
            pass

    chief = Agent(instructions="x", skills=[payer([]).as_skill("clerk", "Pays.")]).as_skill("chief", "Orders.")
    it = Agent(instructions="x", skills=[chief, Skill("slow", execute=slow)], parallel_skills=True)
    scripts = {"go": [command("chief", "order") + command("slow")], "order": [command("clerk", "job")], "job": [command("pay")]}
    result = Stored(way, it, scripts).execute(
        cancel=cancel, on_event=lambda event: cancel.set() if event.type == "approval_requested" else None)
    assert (result.stop_reason, result.usage.model_calls) == ("cancelled", 3)


# ------------------------------------------------------------------------------------------------ nothing left


def runs_left() -> int:
    join_threads("kernai-worker")  # each refers to its last job until it ends
    for _ in range(3):  # objects that the end of a generator releases are found by the next collection
        gc.collect()
    return sum(isinstance(one, Run) for one in gc.get_objects())


def test_runs_that_paused_and_were_resumed_leave_nothing_behind() -> None:
    scripts, call_id = PLACES["in an agent of a task"]
    threads, others = inf, runs_left()  # of other tests
    for count in range(16):
        run = Case(WAYS[count % len(WAYS)], scripts, at_once=True)
        result = run.execute()
        assert count or (result.pending and runs_left() <= others), "a parked run is free at once"
        del result
        assert run.resume(approvals={call_id: True}).ok
        if count == 7:
            runs_left()
            threads = threading.active_count()
    assert runs_left() <= others
    assert threading.active_count() <= threads + 2


@EACH_WAY
def test_agents_that_have_answered_are_free_while_their_run_continues(way: Way) -> None:
    left: list[int] = []

    def look() -> None:
        gc.collect()
        left.append(sum(isinstance(one, Run) for one in gc.get_objects()))

    scripts = {"go": [LOOK, command("clerk", "job") * 3, command("clerk", "job"), LOOK], "job": []}
    it = Agent(instructions="x", skills=[Agent(instructions="x", skills=[]).as_skill("clerk", "Pays."), Skill("look", execute=look)])
    assert Stored(way, it, scripts).execute().ok
    assert left[1] <= left[0] + 1  # a thread that has just ended may still hold one of the four


def test_a_decision_changes_some_parameters_and_keeps_the_others() -> None:
    paid: list[Any] = []

    def pay(number: int, on: date, amount: int = 100, tags: list[str] | None = None) -> str:
        paid.append((number, on, amount, tags))
        return "paid"

    it = Agent(instructions="", skills=[Skill("pay", execute=pay, inputs=None, approval=True)])
    model = {"go": [command("pay", '{"number": 42, "on": "2026-01-02", "amount": 500, "tags": ["a"]}')]}
    for params, expected in (
        ({"amount": 5}, (42, date(2026, 1, 2), 5, ["a"])), ({}, (42, date(2026, 1, 2), 500, ["a"])),
        ({"on": "2026-03-04", "tags": None}, (42, date(2026, 3, 4), 500, None)),
    ):
        run = Stored(WAYS[0], it, model)
        assert run.execute().pending
        result = run.resume(approvals={"0.0": {"params": params}})
        assert (paid.pop(), run.replay()) == (expected, result)
    for params, read in ({"amount": 6}, "paid"), ({"amuont": 6}, "'amuont' is not an input of pay; did you mean 'amount'?"):
        def decide(call: kernai.PendingCall, params: dict[str, Any] = params) -> Decision:
            return Decision({"params": params})

        again = it.replace(approve=decide)
        assert read in Stored(WAYS[0], again, model).execute(store=None).messages[2].text
    assert paid == [(42, date(2026, 1, 2), 6, ["a"])]
