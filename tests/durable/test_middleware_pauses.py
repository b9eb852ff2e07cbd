"""Pauses that a middleware raises, from each hook, and what comes of each decision."""

from __future__ import annotations

from typing import Any

import pytest

import kernai
from kernai import Agent, Block, Context, KernaiError, MemoryStore, Pause, Protocol, Result, Skill, SkillContext, Stop
from kernai.middleware import CallModel, CallProtocol, CallSkill, Hooks, retry
from tests.durable.durable_cases import WAYS, Way, command, provider, way_id

Ctx = SkillContext[Context]
EACH_WAY = pytest.mark.parametrize("way", WAYS, ids=way_id)

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
@pytest.mark.parametrize("at_once", [False, True], ids=["in order", "at once"])
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
def test_what_a_middleware_paused_and_somebody_refused_is_not_made(way: Way, refusal: bool | str, kind: Any) -> None:
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
def test_a_decision_may_change_the_parameters_of_what_a_middleware_paused_and_the_middleware_sees_them(way: Way) -> None:
    seen: list[Any] = []

    def pause(effect: Any) -> Any:
        if isinstance(effect, CallSkill) and effect.skill == "pay":
            seen.append((dict(effect.arguments), effect.approval and effect.approval.by))
            if effect.approval is None:
                raise Pause("may it?")
        return (yield effect)

    case = Case(pause)
    way.execute(case.agent, "go", run_id="r", **case.options)
    with pytest.raises(ValueError, match="pass approvals"):
        way.resume(case.agent, "r", input="and now?", **case.options)
    less = kernai.Decision({"params": {"amount": 1}}, by="ann")
    assert way.resume(case.agent, "r", approvals={"0.0": less}, **case.options).ok
    assert seen == [({"amount": 5}, None), ({"amount": 1}, "ann")]
    assert case.done[0] == "pay 1"


@pytest.mark.parametrize("error", [Stop("guardrail", "late"), Pause("late"), ValueError("late")])
@EACH_WAY
def test_what_a_hook_raises_when_the_run_has_ended_changes_nothing(way: Way, error: BaseException) -> None:
    def end(self: Hooks, run: Any, result: Any) -> None:
        raise error

    case = Case(type("Late", (Hooks,), {"on_run_end": end})())
    assert way.execute(case.caller, "call", **case.options).ok


@EACH_WAY
def test_a_pause_where_no_call_can_wait_is_an_error_that_says_so(way: Way) -> None:
    def instructions(*_: Any) -> str:
        raise Pause("never")

    options = Case().options
    with pytest.raises(KernaiError, match="only a call can pause"):
        way.execute(Agent(instructions=instructions), "go", run_id="r", **options)
    planner = Agent(instructions="x", middleware=[pausing("on_run_start")])
    with pytest.raises(KernaiError, match="where no call can wait"):
        kernai.execute_plan(planner, TASKS, run_id="s", **options)


@EACH_WAY
def test_a_resumed_run_goes_through_its_middleware(way: Way) -> None:
    seen: list[str] = []

    def watching(effect: Any) -> Any:
        seen.append(effect.call_id)
        return (yield effect)

    case = Case(watching, pausing("before_tool"))
    result = way.execute(case.agent, "go", run_id="r", **case.options)
    while result.pending:
        result = way.resume(case.agent, "r", approvals={call.call_id: True for call in result.pending}, **case.options)
    assert seen == ["0", "0.0", "0.0", "0.1", "0.1", "0.2", "0.2", "1"]
