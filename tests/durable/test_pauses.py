"""Calls that wait: for a time, because a middleware raised a pause, and calls of agents that the host is asked about."""

from __future__ import annotations

import enum
from datetime import UTC, datetime, time, timedelta, timezone
from typing import Any

import pytest

import kernai
from kernai import Agent, Decision, KernaiError, MemoryStore, Pause, PendingCall, Protocol, Result, Skill, SkillContext
from kernai.middleware import CallModel, CallProtocol, CallSkill, Hooks, Stop, retry
from tests.durable.durable_cases import AT_ONCE, EACH_WAY, WAYS, Stored, Way, command, provider
from tests.durable.test_store_rules import Plain

Ctx = SkillContext[kernai.Context]

PAY, FAIL = command("pay", '{"amount": 5}'), command("fail")
SCRIPTS = {
    "go": [PAY + FAIL + '<block type="ticket">open one</block>', "<final>done</final>"],
    "call": [command("clerk", "go"), "<final>the clerk is done</final>"],
}
TASKS = [{"id": "a", "input": "go", "parallel": True}, {"id": "b", "input": "go", "parallel": True}]


class Case(Stored):
    """A run of an agent with a middleware, and what its calls did."""

    def __init__(self, way: Way, *middleware: Any, at_once: bool = False) -> None:
        self.done: list[str] = []

        def pay(amount: int) -> str:
            self.done.append(f"pay {amount}")
            return "paid"

        def fail() -> str:
            self.done.append("fail")
            raise LookupError("no such thing")

        def ticket(block: kernai.Block, ctx: Ctx) -> str:
            self.done.append("ticket")
            return "handed in"

        skills = [Skill("pay", execute=pay), Skill("fail", execute=fail)]
        protocols = [Protocol("ticket", ticket)]
        it = Agent(instructions="x", skills=skills, protocols=protocols, middleware=middleware, parallel_skills=at_once)
        super().__init__(way, it, SCRIPTS)


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
    case = Case(way, pausing(hook), at_once=at_once)
    result, waited = case.execute(), list[str]()
    while result.pending:
        for call in result.pending:
            assert (call.reason, call.metadata) == ("may it?", {"hook": hook})
            assert {"hook": hook} in [asked["metadata"] for asked in case.data("approval_requested")]
        before = case.load()
        assert (case.resume().pending, case.load()) == (result.pending, before)
        waited += [call.call_id for call in result.pending]
        result = case.resume(approvals={call.call_id: True for call in result.pending})
    assert (result.text, sorted(waited)) == ("done", WAITING[hook])
    made_twice = {"after_tool": ["pay 5", "ticket"], "on_error": ["fail"]}.get(hook, [])
    assert sorted(case.done) == sorted(["pay 5", "fail", "ticket", *made_twice]), "what was made before is made again"
    assert case.replay() == result


@pytest.mark.slow
@pytest.mark.parametrize("scopes", [["0.0"], ["0.a", "0.b"]], ids=["in an agent", "in tasks"])
@EACH_HOOK
@EACH_WAY
def test_a_pause_in_an_agent_or_in_tasks_waits_there(way: Way, hook: str, scopes: list[str]) -> None:
    case, agents = Case(way, pausing(hook)), dict[str, Any]()
    if scopes == ["0.0"]:
        case.agent, inner = Agent(instructions="y", skills=[case.agent.as_skill("clerk", "Does it.")]), case.agent
        result = case.execute("call")
    else:
        case.agent, inner = Agent(instructions="z"), case.agent
        agents = {"agents": {"a": inner, "b": inner}}
        result = kernai.execute_plan(case.agent, TASKS, run_id="r", store=case.store, provider=case.model, **agents)
    first = WAITING[hook][:1]
    assert sorted(call.call_id for call in result.pending) == [f"{scope}/{call}" for scope in scopes for call in first]
    while result.pending:
        result = case.resume(approvals={call.call_id: True for call in result.pending}, **agents)
    assert result.ok
    assert case.done.count("pay 5") == len(scopes) * (2 if hook == "after_tool" else 1)


@pytest.mark.parametrize("kind", [CallModel, CallSkill, CallProtocol])
@pytest.mark.parametrize("refusal", [False, enum.Enum("Why", {"POOR": "no money"}, type=str).POOR])  # type: ignore[attr-defined]
@EACH_WAY
def test_a_refused_call_that_a_middleware_paused_is_not_made(way: Way, refusal: Any, kind: Any) -> None:
    def pause(effect: Any) -> Any:
        if isinstance(effect, kind) and effect.approval is None:
            raise Pause("may it?")
        return (yield effect)

    case = Case(way, retry(), pause)
    result = case.execute()
    while result.pending:
        result = case.resume(approvals={one.call_id: refusal for one in result.pending})
    if kind is CallModel:
        assert (result.stop_reason, str(result.error), case.done) == ("guardrail", refusal or "refused", [])
        return
    assert result.ok
    assert ("pay 5" in case.done, "ticket" in case.done) == (kind is CallProtocol, kind is CallSkill)
    assert (refusal or "refused") in "".join(message.text for message in result.messages)
    assert case.replay() == result


@EACH_WAY
def test_a_middleware_sees_the_parameters_that_a_decision_changed(way: Way) -> None:
    seen: list[Any] = []

    def pause(effect: Any) -> Any:
        if isinstance(effect, CallSkill) and effect.skill == "pay":
            seen.append((dict(effect.arguments), effect.approval and effect.approval.by))
            if effect.approval is None:
                raise Pause("may it?", {"skill": "Payments", "params": "one"})  # shown to people, and nothing else
        return (yield effect)

    case = Case(way, pause)
    case.execute()
    assert case.resume(approvals={"0.0": Decision({"params": {"amount": 1}}, by="ann")}).ok
    assert seen == [({"amount": 5}, None), ({"amount": 1}, "ann")]
    assert case.done[0] == "pay 1"


@EACH_WAY
@AT_ONCE
@pytest.mark.parametrize("decided", ["", "flag", "pause"])
def test_a_skill_that_a_middleware_calls_instead_of_another_needs_its_own_approval(way: Way, at_once: bool, decided: str) -> None:
    def instead(effect: Any) -> Any:
        if decided == "pause" and isinstance(effect, CallSkill) and effect.approval is None:
            raise Pause("look?")
        return (yield effect.replace(skill="pay", arguments={"amount": 2}) if isinstance(effect, CallSkill) else effect)

    def pay(amount: int, ctx: Ctx) -> str:
        if not ctx.approval.answer:
            raise Pause("which account?")
        return f"{amount} from {ctx.approval.answer}"

    def noted(effect: Any) -> Any:
        try:
            return (yield effect)
        except Pause as pause:
            raise Pause(pause.reason, {"skill": "mine"}) from None

    skills = Skill("look", execute=str, inputs={"at": str}, approval=decided == "flag"), Skill("pay", execute=pay, approval=True)
    it = Agent(instructions="x", skills=skills, middleware=[noted, instead], parallel_skills=at_once)
    run = Stored(way, it, {"go": [command("look", "x"), "<final>done</final>"]})
    [asked] = run.execute().pending
    if decided:  # a decision on the other one's call is none on this
        [asked] = run.resume(approvals={asked.call_id: True}).pending
    assert (asked.reason, asked.skill, asked.params) == ("skill 'pay' needs approval", "pay", {"amount": 2})
    assert asked.metadata == {"skill": "mine"}  # its own
    with pytest.raises(ValueError, match="'at' is not an input of pay; it has amount"):
        run.resume(approvals={asked.call_id: {"params": {"at": "ship"}}})
    [asked] = run.resume(approvals={asked.call_id: {"params": {"amount": 3}}}).pending
    assert (asked.reason, run.resume().pending) == ("which account?", (asked,))
    result = run.resume(approvals={asked.call_id: {"answer": "savings"}})
    assert (result.text, "3 from savings" in result.messages[-2].text) == ("done", True)


@EACH_WAY
def test_a_decision_that_edits_a_call_of_a_skill_that_the_agent_no_longer_has_is_refused(way: Way) -> None:
    def instead(effect: Any) -> Any:
        return (yield effect.replace(skill="pay", arguments={"amount": 2}) if isinstance(effect, CallSkill) else effect)

    look, pay = (Skill(name, execute=str, inputs={"amount": int}, approval=name == "pay") for name in ("look", "pay"))
    run = Stored(way, Agent(instructions="x", skills=[look, pay], middleware=[instead]), {"go": [command("look", "1")]})
    run.execute()
    run.agent = run.agent.replace(skills=[look])
    with pytest.raises(ValueError, match=r"approvals\['0.0'\]: Skill 'pay' not found"):
        run.resume(approvals={"0.0": {"params": {"amount": 3}}})
    run.store.decide("r", "0.0", {"params": {"amount": 3}})
    assert [one.skill for one in run.resume().pending] == ["pay"], "it waits for another decision"


@EACH_WAY
def test_a_pause_or_an_answer_outside_of_a_call_is_an_error_that_says_so(way: Way) -> None:
    def instructions(*_: Any) -> str:
        raise raised

    raised: BaseException
    for raised in (Stop("final", "never"), Pause("never")):  # noqa: B007 - `instructions` raises it
        with pytest.raises(KernaiError, match="only a call can raise Pause or Stop"):
            Stored(way, Agent(instructions=instructions), SCRIPTS).execute()
    planner = Agent(instructions="x", middleware=[pausing("on_run_start")])
    with pytest.raises(KernaiError, match="where no call can wait"):
        kernai.execute_plan(planner, TASKS, provider=provider(SCRIPTS), run_id="s", store=MemoryStore())
    with pytest.raises(KernaiError, match=r"paused \(never\), and a pause needs a store: pass store="):
        Stored(way, Agent(instructions="x"), kernai.MockProvider().on_call(instructions)).execute(store=None)


NOW = datetime.now(UTC)
PAST, FUTURE = NOW - timedelta(hours=1), NOW + timedelta(hours=1)
STORES = pytest.mark.parametrize("store", [MemoryStore, Plain], ids=["with leases", "without"])


class Acts(Stored):
    """A run of a skill that pauses until each of these times in turn, and what it saw."""

    def __init__(self, way: Way, *until: datetime | None, store: Any = MemoryStore, **flags: Any) -> None:
        self.seen: list[tuple[Any, bool]] = []

        def act(ctx: SkillContext) -> str:
            self.seen.append((ctx.approval and ctx.approval.value, ctx.woken))
            if len(self.seen) <= len(until):
                raise Pause("later", until=until[len(self.seen) - 1])
            return "acted"

        it = Agent(instructions="x", skills=[Skill("act", execute=act, **flags)])
        super().__init__(way, it, {"go": [command("act"), "<final>done</final>"]}, store())

    def waits(self, **options: Any) -> bool:
        return (self.resume(**options) if self.load() else self.execute()).stop_reason == "interrupt"


@STORES
@EACH_WAY
def test_a_call_whose_time_has_come_is_made_again_without_a_decision(store: Any, way: Way) -> None:
    acts = Acts(way, PAST, PAST, store=store)
    assert [acts.waits(), acts.waits(), acts.waits()] == [True, True, False]
    assert [one["until"] for one in acts.data("approval_requested")] == [f"{PAST:%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"] * 2
    assert acts.seen == [(None, False), (None, True), (None, True)]
    assert acts.replay().text == "done"


@STORES
@EACH_WAY
def test_before_its_time_a_call_waits_unless_it_is_decided_on(store: Any, way: Way) -> None:
    acts = Acts(way, FUTURE, store=store)
    acts.execute()
    length = len(acts.load())
    assert acts.waits()
    assert (len(acts.seen), len(acts.load())) == (1, length)
    assert acts.resume(approvals={"0.0": True}).text == "done"
    assert acts.seen[1:] == [(True, False)]


@EACH_WAY
def test_a_decision_takes_precedence_over_a_time_that_has_come(way: Way) -> None:
    acts = Acts(way, PAST)
    acts.execute()
    assert [one.due for one in acts.store.runs(due=True)] == [("0.0",)]
    assert acts.resume(approvals={"0.0": "no"}).text == "done"
    assert len(acts.seen) == 1
    assert list(acts.store.runs(due=True)) == []


@EACH_WAY
def test_a_decision_that_is_made_while_the_call_is_about_to_be_woken_is_not_lost(way: Way) -> None:
    acts = Acts(way, PAST)
    acts.execute()
    length = len(acts.load())
    with pytest.raises(kernai.RunConflictError, match=r"somebody has just decided on 0\.0\. Nothing was written; resume it again"):
        acts.resume(on_event=lambda event: acts.store.decide("r", "0.0", "no") if event.type == "run_resumed" else None)
    assert (len(acts.load()), acts.resume().text, len(acts.seen)) == (length, "done", 1)


@EACH_WAY
def test_a_call_that_needs_approval_is_not_made_when_its_time_has_come(way: Way) -> None:
    made: list[str] = []

    def gate(effect: Any) -> Any:
        if not isinstance(effect, CallModel) and effect.approval is None:
            made.append("asked")
            raise Pause("may it?", until=PAST)
        return (yield effect)

    acts = Acts(way)
    acts.agent = acts.agent.replace(middleware=[gate])
    assert [acts.waits(), acts.waits()] == [True, True]
    assert (made, acts.seen) == (["asked", "asked"], [])
    assert acts.resume(approvals={"0.0": True}).text == "done"


@EACH_WAY
def test_a_call_that_was_approved_and_then_waited_needs_no_second_approval(way: Way) -> None:
    acts = Acts(way, PAST, approval=True)
    assert [acts.waits(), acts.waits(approvals={"0.0": True}), acts.waits()] == [True, True, False]
    assert acts.seen == [(True, False), (None, True)]


@EACH_WAY
def test_a_model_call_may_wait_for_a_time(way: Way) -> None:
    opens = [FUTURE, PAST]

    def office_hours(effect: Any) -> Any:
        if isinstance(effect, CallModel) and opens:
            raise Pause("closed", until=opens.pop())
        return (yield effect)

    acts = Acts(way)
    acts.agent = acts.agent.replace(middleware=[office_hours])
    assert [call.call_id for call in acts.execute().pending] == ["0"]
    assert acts.waits()  # it is still closed
    assert acts.resume(approvals={"0": True}).text == "done"


def test_a_run_whose_process_died_after_it_was_woken_is_woken_again() -> None:
    acts = Acts(WAYS[0], PAST, idempotent=True)
    assert [acts.waits(), acts.waits()] == [True, False]
    assert acts.cut(acts.index("approval_given") + 1).resume().text == "done"
    assert acts.seen == [(None, False), (None, True), (None, True)]


@STORES
@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=-9))], ids=str)
def test_the_latest_possible_time_counts_as_not_yet_come(store: Any, zone: timezone) -> None:
    acts = Acts(WAYS[0], datetime.max.replace(tzinfo=zone), store=store)
    assert [acts.waits(), acts.waits()] == [True, True]
    assert len(acts.seen) == 1


@pytest.mark.parametrize("until", ["2026-11-24", datetime(2026, 11, 24), time(tzinfo=UTC)])  # noqa: DTZ001 - the case
def test_a_time_without_a_zone_is_refused(until: Any) -> None:
    with pytest.raises(TypeError, match="until must be a datetime with a time zone"):
        Pause("later", until=until)


CLERKS = {
    "go": [command("clerk", "one") + command("clerk", "two"), "<final>done</final>"],
    "one": ["<final>first</final>"], "two": ["<final>second</final>"], "else": ["<final>another</final>"],
}


class Asked(Stored):
    def __init__(self, way: Way, said: Any, at_once: bool) -> None:
        self.asked: list[Any] = []

        def approve(call: PendingCall) -> Any:
            self.asked.append((call.call_id, call.skill, call.params))
            return said

        clerk = Agent(instructions="c").as_skill("clerk", "Does it.")
        super().__init__(way, Agent(instructions="x", skills=[clerk], approve=approve, parallel_skills=at_once), CLERKS)

    def scopes(self) -> set[str]:
        return {one["scope"] for one in self.load()} - {""}


@pytest.mark.parametrize("said, heard", [
    (True, ["first", "second"]), (False, ["refused"] * 2), ("not today", ["not today"] * 2),
    (Decision({"params": {"input": "else"}}), ["another"] * 2),
])  # fmt: skip
@AT_ONCE
@EACH_WAY
def test_approve_is_called_before_a_sub_agent_is_called(way: Way, at_once: bool, said: Any, heard: list[str]) -> None:
    case = Asked(way, said, at_once)
    result = case.execute()
    assert case.asked == [("0.0", "clerk", {"input": "one"}), ("0.1", "clerk", {"input": "two"})]
    assert [text in message.text for text, message in zip(heard, result.messages[2:4], strict=True)] == [True, True]
    assert case.scopes() == (set() if said in (False, "not today") else {"0.0", "0.1"})
    again = case.replay()
    assert (again, [one.by for one in again.messages]) == (result, [one.by for one in result.messages])


@pytest.mark.slow
@AT_ONCE
@EACH_WAY
def test_a_waiting_call_of_a_sub_agent_continues_as_decided_wherever_it_was_cut_off(way: Way, at_once: bool) -> None:
    case = Asked(way, Pause("may it?"), at_once)
    decisions: dict[str, Any] = {"0.0": {"params": {"input": "else"}}, "0.1": False}

    def decided(run: Stored, result: Result[Any]) -> Result[Any]:
        while result.pending:
            assert run.resume().pending == result.pending
            result = run.resume(approvals={call.call_id: decisions[call.call_id] for call in result.pending})
        return result

    first = case.execute()
    assert case.scopes() == set(), "nothing of it has begun"
    result = decided(case, first)
    texts = [message.text for message in result.messages]
    assert ("another" in texts[2], "refused" in texts[3]) == (True, True)
    assert case.scopes() == {"0.0"}
    for part in case.cuts():
        again = decided(part, part.resume())
        assert (again.text, again.messages) == (result.text, result.messages)
        assert part.replay() == again
