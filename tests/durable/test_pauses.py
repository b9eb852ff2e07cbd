"""Calls that wait: for a time, because a middleware raised a pause, and calls of agents that the host is asked about."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import kernai
from kernai import (
    Agent,
    Block,
    Context,
    Decision,
    KernaiError,
    MemoryStore,
    Pause,
    PendingCall,
    Protocol,
    Result,
    RunStore,
    Skill,
    SkillContext,
)
from kernai.middleware import CallModel, CallProtocol, CallSkill, Hooks, retry
from tests.durable.durable_cases import AT_ONCE, EACH_WAY, Way, command, cut, provider, replayed, share_of
from tests.durable.test_store_rules import Plain

Ctx = SkillContext[Context]

PAY, FAIL = command("pay", '{"amount": 5}'), command("fail")
SCRIPTS = {
    "go": [PAY + FAIL + '<block type="ticket">open one</block>', "<final>done</final>"],
    "call": [command("clerk", "go"), "<final>the clerk is done</final>"],
}
TASKS = [{"id": "a", "input": "go", "parallel": True}, {"id": "b", "input": "go", "parallel": True}]


class Case:
    """An agent with a middleware, and what its calls did."""

    def __init__(self, *middleware: Any, at_once: bool = False) -> None:
        self.done: list[str] = []

        def pay(amount: int, ctx: Ctx) -> str:
            self.done.append(f"pay {amount}")
            return "paid"

        def fail(ctx: Ctx) -> str:
            self.done.append("fail")
            raise LookupError("no such thing")

        def ticket(block: Block, ctx: Ctx) -> str:
            self.done.append("ticket")
            return "handed in"

        skills = [Skill("pay", execute=pay), Skill("fail", execute=fail)]
        self.agent = Agent(
            instructions="x", skills=skills, protocols=[Protocol("ticket", ticket)], middleware=middleware,
            parallel_skills=at_once,
        )
        self.caller = Agent(instructions="y", skills=[self.agent.as_skill("clerk", "Does it.")])
        self.options: dict[str, Any] = {"store": MemoryStore(), "provider": provider(SCRIPTS)}

    def events(self, *types: str) -> list[Any]:
        return [one["data"] for one in self.options["store"].load("r") if one["event"] in types]


def pausing(hook: str) -> Hooks:
    """Hooks one of which pauses, until somebody has agreed."""

    def pause(self: Hooks, ctx: Any, *error: Exception) -> None:
        if hook.startswith("on_run") or ctx.effect.approval is None:
            raise Pause("may it?", {"hook": hook})

    made: Hooks = type("Pausing", (Hooks,), {hook: pause})()
    return made


#: by hook, the calls that wait in turn, where they are made in order
WAITING = {
    "on_run_start": ["0"],
    "before_model": ["0", "1"],
    "after_model": ["0", "1"],
    "before_tool": ["0.0", "0.1", "0.2"],
    "after_tool": ["0.0", "0.2"],  # the failing one never reaches it
    "on_error": ["0.1"],
    "on_run_end": [],
}
EACH_HOOK = pytest.mark.parametrize("hook", WAITING)


@pytest.mark.slow
@AT_ONCE
@EACH_HOOK
@EACH_WAY
def test_a_pause_from_any_hook_waits_and_continues_once_approved(way: Way, hook: str, at_once: bool) -> None:
    case = Case(pausing(hook), at_once=at_once)
    result, waited = way.execute(case.agent, "go", run_id="r", **case.options), list[str]()
    while result.pending:
        for call in result.pending:
            assert (call.reason, call.metadata) == ("may it?", {"hook": hook})
            assert {"hook": hook} in [asked["metadata"] for asked in case.events("approval_requested")]
        before = case.options["store"].load("r")
        again = way.resume(case.agent, "r", **case.options)
        assert (again.pending, case.options["store"].load("r")) == (result.pending, before)
        waited += [call.call_id for call in result.pending]
        result = way.resume(case.agent, "r", approvals={call.call_id: True for call in result.pending}, **case.options)
    assert (result.text, sorted(waited)) == ("done", WAITING[hook])
    made_twice = {"after_tool": ["pay 5", "ticket"], "on_error": ["fail"]}.get(hook, [])
    assert sorted(case.done) == sorted(["pay 5", "fail", "ticket", *made_twice]), "what was made before is made again"
    assert kernai.replay(case.agent, "r", store=case.options["store"]).result == result


@pytest.mark.slow
@EACH_HOOK
@EACH_WAY
def test_a_pause_in_an_agent_or_in_tasks_waits_there(way: Way, hook: str) -> None:
    for scopes in (["0.0"], ["0.a", "0.b"]):
        case = Case(pausing(hook))
        agents: dict[str, Any] = {}
        if scopes == ["0.0"]:
            it = case.caller
            result: Result[Any] = way.execute(it, "call", run_id="r", **case.options)
        else:
            it, agents = Agent(instructions="z"), {"agents": {"a": case.agent, "b": case.agent}}
            result = kernai.execute_plan(it, TASKS, run_id="r", **agents, **case.options)
        first = WAITING[hook][:1]
        assert sorted(call.call_id for call in result.pending) == [f"{scope}/{call}" for scope in scopes for call in first]
        while result.pending:
            decided = {call.call_id: True for call in result.pending}
            result = way.resume(it, "r", approvals=decided, **agents, **case.options)
        assert result.ok
        assert case.done.count("pay 5") == len(scopes) * (2 if hook == "after_tool" else 1)


@pytest.mark.parametrize("kind", [CallModel, CallSkill, CallProtocol])
@pytest.mark.parametrize("refusal", [False, "no money"])
@EACH_WAY
def test_a_refused_call_that_a_middleware_paused_is_not_made(way: Way, refusal: bool | str, kind: Any) -> None:
    def pause(effect: Any) -> Any:
        if isinstance(effect, kind) and effect.approval is None:
            raise Pause("may it?")
        return (yield effect)

    case = Case(retry(), pause)
    (call,) = way.execute(case.agent, "go", run_id="r", **case.options).pending[:1]
    result = way.resume(case.agent, "r", approvals={call.call_id: refusal}, **case.options)
    if kind is CallModel:
        assert (result.stop_reason, str(result.error), case.done) == ("guardrail", refusal or "refused", [])
        return
    while result.pending:  # the call behind it
        result = way.resume(case.agent, "r", approvals={one.call_id: refusal for one in result.pending}, **case.options)
    assert result.ok
    assert ("pay 5" in case.done, "ticket" in case.done) == (kind is CallProtocol, kind is CallSkill)
    assert str(refusal or "refused") in "".join(message.text for message in result.messages)
    assert kernai.replay(case.agent, "r", store=case.options["store"]).result == result


@EACH_WAY
def test_a_middleware_sees_the_parameters_that_a_decision_changed(way: Way) -> None:
    seen: list[Any] = []

    def pause(effect: Any) -> Any:
        if isinstance(effect, CallSkill) and effect.skill == "pay":
            seen.append((dict(effect.arguments), effect.approval and effect.approval.by))
            if effect.approval is None:
                raise Pause("may it?")
        return (yield effect)

    case = Case(pause)
    way.execute(case.agent, "go", run_id="r", **case.options)
    less = kernai.Decision({"params": {"amount": 1}}, by="ann")
    assert way.resume(case.agent, "r", approvals={"0.0": less}, **case.options).ok
    assert seen == [({"amount": 5}, None), ({"amount": 1}, "ann")]
    assert case.done[0] == "pay 1"


@EACH_WAY
def test_a_pause_outside_of_a_call_is_an_error_that_says_so(way: Way) -> None:
    def instructions(*_: Any) -> str:
        raise Pause("never")

    options = Case().options
    with pytest.raises(KernaiError, match="only a call can pause"):
        way.execute(Agent(instructions=instructions), "go", run_id="r", **options)
    planner = Agent(instructions="x", middleware=[pausing("on_run_start")])
    with pytest.raises(KernaiError, match="where no call can wait"):
        kernai.execute_plan(planner, TASKS, run_id="s", **options)


NOW = datetime.now(UTC)
PAST, FUTURE = NOW - timedelta(hours=1), NOW + timedelta(hours=1)
SCRIPT = {"go": [command("act"), "<final>done</final>"]}


@pytest.fixture(params=[MemoryStore, Plain])
def store(request: pytest.FixtureRequest) -> Any:
    return request.param()


class Acts:
    """A skill that pauses until each of these times in turn, and what it saw."""

    def __init__(self, *until: datetime | None, **flags: Any) -> None:
        self.seen: list[tuple[Any, bool]] = []

        def act(ctx: SkillContext) -> str:
            self.seen.append((ctx.approval and ctx.approval.value, ctx.woken))
            if len(self.seen) <= len(until):
                raise Pause("later", until=until[len(self.seen) - 1])
            return "acted"

        self.agent = Agent(instructions="x", skills=[Skill("act", execute=act, **flags)], provider=provider(SCRIPT))


@EACH_WAY
def test_a_call_whose_time_has_come_is_made_again_without_a_decision(store: Any, way: Way) -> None:
    acts = Acts(PAST, PAST)
    for _ in range(2):
        result = way.execute(acts.agent, "go", store=store, run_id="r") if not acts.seen else way.resume(
            acts.agent, "r", store=store)
        assert [call.until for call in result.pending] == [PAST.isoformat(timespec="milliseconds").replace("+00:00", "Z")]
    assert way.resume(acts.agent, "r", store=store).text == "done"
    assert acts.seen == [(None, False), (None, True), (None, True)]
    assert replayed(Acts().agent, "r", store=store).text == "done"


@EACH_WAY
def test_before_its_time_a_call_waits_unless_it_is_decided_on(store: Any, way: Way) -> None:
    acts = Acts(FUTURE)
    way.execute(acts.agent, "go", store=store, run_id="r")
    length = len(store.load("r"))
    assert way.resume(acts.agent, "r", store=store).stop_reason == "interrupt"
    assert (len(acts.seen), len(store.load("r"))) == (1, length)
    assert way.resume(acts.agent, "r", store=store, approvals={"0.0": True}).text == "done"
    assert acts.seen[1:] == [(True, False)]


@EACH_WAY
def test_a_decision_takes_precedence_over_a_time_that_has_come(way: Way) -> None:
    acts, store = Acts(PAST), MemoryStore()
    way.execute(acts.agent, "go", store=store, run_id="r")
    assert [one.due for one in store.runs(due=True)] == [("0.0",)]
    assert way.resume(acts.agent, "r", store=store, approvals={"0.0": "no"}).text == "done"
    assert len(acts.seen) == 1
    assert list(store.runs(due=True)) == []


@EACH_WAY
def test_a_call_that_needs_approval_is_not_made_when_its_time_has_come(way: Way) -> None:
    made: list[str] = []
    store: RunStore = MemoryStore()

    def gate(effect: Any) -> Any:
        if not isinstance(effect, CallModel) and effect.approval is None:
            made.append("asked")
            raise Pause("may it?", until=PAST)
        return (yield effect)

    acts = Acts()
    gated = acts.agent.replace(middleware=[gate])
    way.execute(gated, "go", store=store, run_id="r")
    assert way.resume(gated, "r", store=store).stop_reason == "interrupt"
    assert (made, acts.seen) == (["asked", "asked"], [])
    assert way.resume(gated, "r", store=store, approvals={"0.0": True}).text == "done"


@EACH_WAY
def test_a_call_that_was_approved_and_then_waited_needs_no_second_approval(way: Way) -> None:
    acts, store = Acts(PAST, approval=True), MemoryStore()
    assert way.execute(acts.agent, "go", store=store, run_id="r").stop_reason == "interrupt"
    assert way.resume(acts.agent, "r", store=store, approvals={"0.0": True}).stop_reason == "interrupt"
    assert way.resume(acts.agent, "r", store=store).text == "done"
    assert acts.seen == [(True, False), (None, True)]


@EACH_WAY
def test_a_model_call_may_wait_for_a_time(way: Way) -> None:
    store, opens = MemoryStore(), [FUTURE, PAST]

    def office_hours(effect: Any) -> Any:
        if isinstance(effect, CallModel) and opens:
            raise Pause("closed", until=opens.pop())
        return (yield effect)

    it = Acts().agent.replace(middleware=[office_hours])
    assert [call.call_id for call in way.execute(it, "go", store=store, run_id="r").pending] == ["0"]
    assert way.resume(it, "r", store=store).stop_reason == "interrupt"  # it is still closed
    assert way.resume(it, "r", store=store, approvals={"0": True}).text == "done"


def test_a_run_whose_process_died_after_it_was_woken_is_woken_again() -> None:
    whole, store, acts = MemoryStore(), MemoryStore(), Acts(PAST, idempotent=True)
    kernai.execute(acts.agent, "go", store=whole, run_id="r")
    kernai.resume(acts.agent, "r", store=whole)
    entries = whole.load("r")
    woken = [one["event"] for one in entries].index("approval_given")
    store.append("r", 0, entries[:woken + 1], [])
    again = Acts(idempotent=True)
    assert kernai.resume(again.agent, "r", store=store).text == "done"
    assert again.seen == [(None, True)]


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=-9))], ids=str)
def test_the_latest_possible_time_counts_as_not_yet_come(store: Any, zone: timezone) -> None:
    acts = Acts(datetime.max.replace(tzinfo=zone))
    assert kernai.execute(acts.agent, "go", store=store, run_id="r").stop_reason == "interrupt"
    assert kernai.resume(acts.agent, "r", store=store).stop_reason == "interrupt"
    assert len(acts.seen) == 1


@pytest.mark.parametrize("until", ["2026-11-24", datetime(2026, 11, 24), 5.0])  # noqa: DTZ001 - the case
def test_a_time_without_a_zone_is_refused(until: Any) -> None:
    with pytest.raises(TypeError, match="until must be a datetime with a time zone"):
        Pause("later", until=until)


CLERKS = {
    "go": [command("clerk", "one") + command("clerk", "two"), "<final>done</final>"],
    "one": ["<final>first</final>"], "two": ["<final>second</final>"], "else": ["<final>another</final>"],
}


class Asked:
    def __init__(self, said: Any, at_once: bool) -> None:
        self.asked: list[Any] = []

        def approve(call: PendingCall) -> Any:
            self.asked.append((call.call_id, call.skill, call.params))
            return said

        clerk = Agent(instructions="c").as_skill("clerk", "Does it.")
        self.agent = Agent(instructions="x", skills=[clerk], approve=approve, parallel_skills=at_once)
        self.options: dict[str, Any] = {"store": MemoryStore(), "provider": provider(CLERKS)}

    def scopes(self) -> set[str]:
        return {one["scope"] for one in self.options["store"].load("r")} - {""}


@pytest.mark.parametrize("said, heard", [
    (True, ["first", "second"]), (False, ["refused"] * 2), ("not today", ["not today"] * 2),
    (Decision({"params": {"input": "else"}}), ["another"] * 2),
])  # fmt: skip
@AT_ONCE
@EACH_WAY
def test_approve_is_called_before_a_sub_agent_is_called(way: Way, at_once: bool, said: Any, heard: list[str]) -> None:
    case = Asked(said, at_once)
    result = way.execute(case.agent, "go", run_id="r", **case.options)
    assert case.asked == [("0.0", "clerk", {"input": "one"}), ("0.1", "clerk", {"input": "two"})]
    assert [text in message.text for text, message in zip(heard, result.messages[2:4], strict=True)] == [True, True]
    assert case.scopes() == (set() if said in (False, "not today") else {"0.0", "0.1"})
    assert kernai.replay(case.agent, "r", store=case.options["store"]).result == result


@pytest.mark.slow
@AT_ONCE
@EACH_WAY
def test_a_waiting_call_of_a_sub_agent_continues_as_decided_wherever_it_was_cut_off(way: Way, at_once: bool) -> None:
    case = Asked(Pause("may it?"), at_once)
    result = way.execute(case.agent, "go", run_id="r", **case.options)
    assert case.scopes() == set(), "nothing of it has begun"
    decisions: dict[str, Any] = {"0.0": {"params": {"input": "else"}}, "0.1": False}
    while result.pending:
        assert way.resume(case.agent, "r", **case.options).pending == result.pending
        given = {call.call_id: decisions[call.call_id] for call in result.pending}
        result = way.resume(case.agent, "r", approvals=given, **case.options)
    texts = [message.text for message in result.messages]
    assert ("another" in texts[2], "refused" in texts[3]) == (True, True)
    assert case.scopes() == {"0.0"}
    entries = case.options["store"].load("r")
    for length in share_of(way, range(1, len(entries))):
        part = {**case.options, "store": cut(case.options["store"], length)}
        again = way.resume(case.agent, "r", **part)
        while again.pending:
            again = way.resume(case.agent, "r", approvals={one.call_id: decisions[one.call_id] for one in again.pending}, **part)
        assert (again.text, again.messages) == (result.text, result.messages)
        assert kernai.replay(case.agent, "r", store=part["store"]).result == again
