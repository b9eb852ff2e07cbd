"""Runs that continued after one part was stopped for a reason of its own: resumed after any cut, they repeat nothing. A
worker that is asked to stop keeps the outcomes of what it has begun, begins nothing more, and gives its runs back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

import kernai
from kernai import Agent, Context, Limits, MemoryStore, MockProvider, ProviderError, RunConflictError, Skill, Stop
from kernai.middleware import CallModel, CallSkill
from tests.durable.durable_cases import EACH_WAY, WAYS, Performed, Stored, Way, agent, command, payer, provider
from tests.loop.loop_cases import plan, task

Ctx = kernai.SkillContext[Context]


def stops(store: MemoryStore) -> list[tuple[str, str, str]]:
    """The scope and type of each event that was written because the run stopped, and why it did."""
    return [(one["scope"], one["event"], one["stop"]) for one in store.load("r") if "stop" in one]


@EACH_WAY
def test_a_stop_beside_a_waiting_call_ends_the_run_once_the_call_is_decided(way: Way) -> None:
    def guard() -> str:
        raise Stop("guardrail", "not that")

    paid: list[int] = []
    it = payer(paid, Skill("guard", execute=guard), parallel_skills=True)
    run = Stored(way, it, {"go": [command("pay") + command("guard"), "<final>done</final>"]})
    assert run.execute().pending
    assert run.resume().pending
    result = run.resume(approvals={"0.0": True})
    assert (result.stop_reason, str(result.error), paid) == ("guardrail", "not that", [1])
    assert run.replay().stop_reason == "guardrail"
    assert run.resume().text == "done", "it was resumed after the stop"


@EACH_WAY
def test_an_answer_beside_calls_that_were_broken_off_does_not_end_the_run(way: Way) -> None:
    def finish() -> str:
        raise Stop("final", "enough")

    paid, cancel = list[int](), threading.Event()
    skills = Skill("finish", execute=finish, idempotent=True), Skill("last", execute=cancel.set)
    it = payer(paid, *skills, parallel_skills=True)
    run = Stored(way, it, {"go": [command("pay") + command("finish") + command("last")]})
    assert run.execute(cancel=cancel).stop_reason == "cancelled"
    assert (run.resume(approvals={"0.0": True}).text, paid, run.replay().text) == ("enough", [1], "enough")


CLERK_WAITS = {"go": [command("clerk", "sub"), "<final>done</final>"], "sub": [command("halt"), "<final>counted</final>"]}
STOPPED_IN_A_CLERK: dict[str, Sequence[tuple[str, str]]] = {
    "cancelled": [("0.0", "result"), ("", "skill_error"), ("", "result")],
    "max_calls": [("0.0", "result"), ("", "skill_error"), ("", "result")],
    "max_steps": [],
    **dict.fromkeys(("a Stop: guardrail", "a Stop: interrupt", "a Stop: timeout", "a Stop: max_calls"), ()),
}


@pytest.mark.parametrize("why", STOPPED_IN_A_CLERK)
def test_a_resume_leaves_out_exactly_the_events_written_because_the_run_stopped(why: str) -> None:
    """The clerk ends for that reason, after its first call."""
    stop, done = threading.Event(), list[str]()

    def halt() -> str:
        done.append("halt")
        if why == "cancelled":
            stop.set()
        if why.startswith("a Stop"):
            raise Stop(why.rsplit(maxsplit=1)[-1], "a reason of its own")
        return "halted"

    clerk = Agent(instructions="c", skills=[Skill("halt", execute=halt, inputs={})], max_steps=1 if why == "max_steps" else 9)
    run = Stored(WAYS[0], Agent(instructions="x", skills=[clerk.as_skill("clerk", "Halts.")]), CLERK_WAITS)
    expected = STOPPED_IN_A_CLERK[why]
    assert run.execute(cancel=stop, limits=Limits(max_calls=4) if why == "max_calls" else None).ok is not bool(expected)
    assert stops(run.store) == [(scope, event, why) for scope, event in expected]
    numbers = [at for at, one in enumerate(run.load()) if "stop" in one]
    assert run.resume().text == "done"
    assert [one["dropped"] for one in run.data("run_resumed")] == ([numbers] if expected else [])
    assert done == ["halt"]


@pytest.mark.parametrize("how", ["provider", "instructions", "guardrail", "repeated_calls", "timeout"])
def test_whatever_ends_the_root_is_a_stop_of_the_whole_run(how: str) -> None:
    def answer(*_: Any) -> str:
        if how == "provider":
            raise ProviderError("down")
        return command("halt")

    def halt() -> str:
        if how == "guardrail":
            raise Stop("guardrail", "no")
        return "halted"

    def instructions(context: Context) -> str:
        if how == "instructions":
            raise LookupError("gone")
        return "x"

    store = MemoryStore()
    limits = Limits(repeated_calls=2, timeout=0 if how == "timeout" else None)
    it = Agent(instructions=instructions, skills=[Skill("halt", execute=halt, inputs={})])
    with suppress(LookupError):
        kernai.execute(it, "go", run_id="r", store=store, limits=limits, provider=kernai.MockProvider().on_call(answer))
    reason = {"provider": "error", "instructions": "error", "repeated_calls": "loop"}.get(how, how)
    failed = [("", "model_failed", reason)] if how == "provider" else []
    assert stops(store) == [*failed, ("", "result", reason)]
    again: Any = kernai.replay(it.replace(instructions="x"), "r", store=store).result
    assert (again.stop_reason, str(again.error)) == (reason, store.load("r")[-1]["data"]["error"])


class OddError(BaseException):
    """No `Exception`, and none of ours."""


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("how", ["timeout", "cancelled", "max_calls", "interrupt", "guardrail"])
def test_calls_made_after_a_part_stopped_are_not_repeated(how: str, at_once: bool) -> None:
    """The first call is of a sub-agent that stops for the reason `how`."""
    calls: list[str] = []

    def look(at: int, ctx: Ctx) -> str:
        calls.append(ctx.call_id)
        return f"seen {at}"

    def stop(why: str, ctx: Ctx) -> str:
        calls.append(ctx.call_id)
        raise Stop(why, "a reason of its own")

    clerk = Agent(instructions="c", skills=[Skill("stop", execute=stop)]).as_skill("clerk", "Stops.")
    it = Agent(instructions="x", skills=[Skill("look", execute=look), clerk], parallel_skills=at_once)
    run = Stored(WAYS[0], it, {
        "go": [command("clerk", "sub") + command("look", "2"), command("look", "3"), command("look", "4"), "<final>done</final>"],
        "sub": [command("stop", how), "<final>never</final>"],
    })
    assert (run.execute().ok, stops(run.store)) == (True, [])
    for length in range(1 + at_once, len(run.load()), 2):  # the other half in the other order
        part = run.cut(length)
        part.way = WAYS[length // 2 % len(WAYS)]
        announced = {one["call_id"] for one in part.data("skill_execute")}
        calls.clear()
        resumed = part.resume(in_flight="skip")
        assert (resumed.text, part.replay()) == ("done", resumed)
        assert not announced & set(calls)


@EACH_WAY
def test_a_run_ended_by_a_stop_continues_when_resumed_and_an_unfinished_stop_is_final(way: Way) -> None:
    def stop() -> str:
        raise Stop("guardrail", "not this")

    skills = [Skill("stop", execute=stop), Skill("wait", execute=lambda: "waited")]
    it = Agent(instructions="x", skills=skills, parallel_skills=True)
    run = Stored(way, it, {"go": [command("stop") + command("wait"), "<final>continued</final>"]})
    assert run.execute().stop_reason == "guardrail"
    part = run.cut(run.index("skill_error") + 1)
    for _ in range(2):
        stopped = part.resume(in_flight="skip")
        assert (stopped.stop_reason, str(stopped.error)) == ("guardrail", "not this"), "decided, and the process died"
        part = part.cut(len(part.load()) - 1)
    result = run.resume()
    assert (result.text, run.replay()) == ("continued", result)


@pytest.mark.parametrize("way", [WAYS[0], WAYS[2]])
def test_a_call_that_began_beside_others_is_never_recorded_as_not_run(way: Way) -> None:
    begun = threading.Barrier(2)
    calls: list[str] = []

    def look(ctx: Ctx) -> str:
        calls.append(ctx.call_id)
        begun.wait(20)
        return "seen"

    def interrupted(effect: Any) -> Any:
        outcome = yield effect
        if isinstance(effect, CallSkill):
            raise OddError
        return outcome

    it = Agent(instructions="x", skills=[Skill("look", execute=look)], middleware=[interrupted], parallel_skills=True)
    run = Stored(way, it, {"go": [command("look") * 2]})
    with pytest.raises(OddError):
        run.execute()
    assert (sorted(calls), [one.get("interrupted") for one in run.data("skill_error")]) == (["0.0", "0.1"], [True, True])


@pytest.mark.parametrize("place", ["skill", "sub-agent", "model"])
@EACH_WAY
def test_a_run_continues_and_replays_after_a_task_ended_by_a_system_exit(way: Way, place: str) -> None:
    calls: list[str] = []

    def leave(ctx: Ctx) -> str:
        calls.append(ctx.call_id)
        raise SystemExit(3)

    def look(ctx: Ctx) -> str:
        calls.append(ctx.call_id)
        return "seen"

    def asking(effect: Any) -> Any:
        if place == "model" and isinstance(effect, CallModel) and effect.scope == "0.a":
            raise SystemExit(3)
        return (yield effect)

    skills = [Skill("leave", execute=leave, idempotent=True), Skill("look", execute=look, idempotent=True)]
    clerk = Agent(instructions="c", skills=skills).as_skill("clerk", "Leaves.")
    run = Stored(way, Agent(instructions="x", skills=[*skills, clerk], middleware=[asking]), {
        "go": [plan(task("a", "task"), task("b", "other"), strategy="parallel"), command("look"), "<final>done</final>"], "other": [command("look"), "<final>b</final>"],
        "task": [command("clerk", "sub") if place == "sub-agent" else command("leave"), "<final>never</final>"],
        "sub": [command("leave"), "<final>never</final>"],
    })
    whole = run.execute()
    assert (whole.text, run.replay()) == ("done", whole)
    assert '"a": "error: 3"' in whole.messages[2].text
    assert run.cut(len(run.load())).resume(input="more").ok
    for part in run.cuts():
        calls.clear()
        ended = {one["call_id"] for one in part.data("skill_result", "skill_error")}
        result = part.resume()
        assert [message.text for message in result.messages] == [message.text for message in whole.messages]
        assert ended.isdisjoint(calls)
        assert part.replay() == result


def overspend() -> str:
    raise type("OverBudget", (Stop,), {})("guardrail", "over budget")


def down(effect: Any) -> Any:
    if isinstance(effect, CallModel):
        raise TimeoutError("slow")
    return (yield effect)


class Down(kernai.Provider):
    """Fails as a provider does that does not know of `ProviderError`."""

    def call(self, *_: Any) -> kernai.LlmResponse:
        raise TimeoutError("slow")


#: sub-agents that fail, and the limits of the run
FAILING: dict[str, tuple[Agent, Limits | None]] = {
    "a provider that raises what it likes": (Agent(instructions="c", provider=Down()), None),
    "a middleware that does": (Agent(instructions="c", middleware=[down]), None),
    "a stop of one's own kind": (Agent(instructions="c", skills=[Skill("spend", execute=overspend)]), None),
    "a loop of calls that are refused": (Agent(instructions="c", skills=[]), Limits(repeated_calls=2)),
}


@EACH_WAY
@pytest.mark.parametrize("name", FAILING)
def test_a_run_can_continue_after_its_sub_agent_failed(name: str, way: Way) -> None:
    failing, limits = FAILING[name]
    run = Stored(way, payer([], failing.as_skill("clerk", "Fails.")), {
        "go": [command("clerk", "sub"), command("pay"), "<final>done</final>"], "sub": [command("spend")] * 3})
    ran = run.execute(limits=limits)
    assert ran.stop_reason == "interrupt"
    assert run.replay().stop_reason == "interrupt"
    result = run.resume(approvals={"1.0": True})
    assert (result.text, result.messages[:3]) == ("done", ran.messages[:3])
    again = run.replay()
    assert (again.text, again.messages) == ("done", result.messages)


def test_a_replayed_provider_failure_is_the_same_error() -> None:
    it, store = Agent(instructions="x", provider=Down()), MemoryStore()
    live = kernai.execute(it, "go", store=store, run_id="r").error
    again = Stored(WAYS[0], it, store=store).replay().error
    assert (type(again), str(again)) == (type(live), str(live)) == (ProviderError, "Down raised TimeoutError: slow")


PATIENCE = 60.0


class Leaving(MemoryStore):
    """A store as `Workers` have it, which they stop by setting `stopping`."""

    def __init__(self) -> None:
        super().__init__()
        self.stopping = threading.Event()


def model(said: list[str], before: Callable[[], object], scripts: Any = None) -> MockProvider:
    """That of `durable_cases`. `before` is called before an answer is given."""
    inner = provider(scripts) if scripts else provider()

    def answer(messages: Any, model: Any) -> Any:
        made = inner.call(messages, model, kernai.GenerationOptions(), lambda piece: None)
        said.append(made.content)
        before()
        return made

    return MockProvider().on_call(answer)


class Noting(Performed):
    def __init__(self, after: Callable[[], object]) -> None:
        super().__init__()
        self._after = after

    def note(self, what: str) -> None:
        super().note(what)
        self._after()


def events(store: MemoryStore) -> list[tuple[str, str]]:
    """What is on record, in an order that does not depend on parallel work, without the events of resumes."""
    return sorted((one["scope"], one["event"]) for one in store.load("r") if one["event"] != "run_resumed")


@EACH_WAY
def test_stopping_a_worker_at_any_moment_loses_no_outcome_and_repeats_no_call(way: Way) -> None:
    whole, answers, effects = MemoryStore(), list[str](), Performed()
    way.execute(agent(effects), "do everything", provider=model(answers, lambda: None), store=whole, run_id="r")
    count = len(answers) + effects.calls.total()
    for number in range(1 + WAYS.index(way), count + 1, len(WAYS)):
        store, said = Leaving(), list[str]()
        performed = Noting(lambda: stop())

        def stop(number: int = number, event: threading.Event = store.stopping, said: list[str] = said, noted: Noting = performed) -> None:
            if len(said) + noted.calls.total() >= number:
                event.set()

        it = agent(performed, idempotent=())
        with suppress(RunConflictError):  # it may have been the last one
            way.execute(it, "do everything", provider=model(said, stop), store=store, run_id="r")
        (info,) = store.runs()
        assert (info.status, info.lease) == ("final" if number == count else "abandoned", None)
        assert sum(one["event"] == "llm_response" for one in store.load("r")) == len(said)
        store.stopping = threading.Event()
        assert way.resume(it, "r", provider=model(said, lambda: None), store=store).text == "all is done"
        assert (sorted(said), performed.calls) == (sorted(answers), effects.calls)
        assert events(store) == events(whole)


PLAN = plan(task("a", "task one", parallel=True), task("b", "task two", parallel=True), task("c", "task one", depends_on=["a"]), strategy="mixed")
TASKS = {
    "task one": ["<final>one</final>"], "task two": [command("act") * 2, "<final>two</final>"], "go": [PLAN, "<final>done</final>"],
}


@EACH_WAY
def test_parallel_tasks_end_their_model_calls_and_begin_nothing_when_the_worker_stops(way: Way) -> None:
    store, said, acted = Leaving(), list[str](), list[int]()
    both = threading.Barrier(2)

    def stop() -> None:
        if len(said) > 1:
            both.wait(PATIENCE)
            store.stopping.set()

    def tasks(before: Callable[[], object]) -> Agent[Any]:
        skills = [Skill("act", execute=lambda: acted.append(1), inputs={})]
        return Agent(instructions="x", skills=skills, provider=model(said, before, TASKS), parallel_skills=True)

    with pytest.raises(RunConflictError, match="run 'r' is left to another worker: this one is stopping"):
        way.execute(tasks(stop), "go", store=store, run_id="r")
    assert (len(said), acted) == (3, [])
    assert sum(one["event"] == "llm_response" for one in store.load("r")) == 3
    assert not any(one["event"] == "skill_execute" for one in store.load("r"))
    (info,) = store.runs()
    assert (info.status, info.lease) == ("abandoned", None)
    store.stopping.clear()
    assert way.resume(tasks(lambda: None), "r", store=store).text == "done"
    assert (len(said), acted) == (6, [1, 1])
    assert kernai.replay(tasks(lambda: None), "r", store=store).result is not None
