"""Effects go through the list, outermost first, under every driver; mistakes in a middleware are clear errors."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import kernai
from kernai import Agent, Input, LlmResponse, MockProvider, Protocol, ProviderError, Recorder, Skill, aexecute, skill
from kernai.loop.effects import Join, Raise
from kernai.middleware import CallModel, CallProtocol, CallSkill, Effect, Flow, Sleep
from kernai.middleware.chain import through
from kernai.testing import ByHand
from tests.loop.loop_cases import CASES, Case, command, plan, task
from tests.loop.test_loop import set_up
from tests.middleware.asking import FINAL, Script, data_of, echo, fail, types
from tests.ways import PATIENCE, WAYS, Way, by_execute, by_stream

ECHO = '<block type="echo">x</block>'


def passing(effect: Effect) -> Flow:
    return (yield effect)


def noting(notes: list[Any], name: str) -> Callable[[Any], Flow]:
    def middleware(effect: CallModel | CallSkill | CallProtocol) -> Flow:
        notes.append((name, "in", type(effect).__name__, effect.call_id))
        outcome = yield effect
        notes.append((name, "out", type(effect).__name__, effect.call_id))
        return outcome

    return middleware


def for_skills(make: Callable[[CallSkill], Flow]) -> Callable[[Effect], Flow]:
    def middleware(effect: Effect) -> Flow:
        return (yield from make(effect)) if isinstance(effect, CallSkill) else (yield effect)

    return middleware


def agent_with(*middleware: Any, provider: Any = None, **options: Any) -> Agent:
    given: dict[str, Any] = {"instructions": "x", "skills": [echo, fail], "middleware": middleware}
    given["provider"] = provider or MockProvider(command("echo", "hello"), FINAL)
    return Agent(**given | options)


# ----------------------------------------------------------------------------------------------- what a middleware sees


@WAYS
@pytest.mark.parametrize("parallel", [False, True], ids=["in order", "parallel"])
def test_a_middleware_sees_the_calls_of_every_scope(way: Way, parallel: bool) -> None:
    helper = Agent(instructions="h", skills=[echo], provider=MockProvider(command("echo", "in"), FINAL))
    calls = ECHO + command("echo", "x") + command("helper", "y")
    agent = agent_with(
        provider=MockProvider(plan(task("a", "x")), "<final>task</final>", calls, FINAL),
        skills=[echo, helper.as_skill("helper", "Helps.")],
        protocols=[Protocol("echo", lambda block, ctx: block.content)],
        parallel_skills=parallel,
    )
    notes: list[Any] = []
    assert way(agent.replace(middleware=[noting(notes, "m")])).text == "done"
    assert sorted((kind, call_id) for _, where, kind, call_id in notes if where == "in") == [
        ("CallModel", "0"), ("CallModel", "0.a/0"), ("CallModel", "1"), ("CallModel", "1.2/0"), ("CallModel", "1.2/1"),
        ("CallModel", "2"), ("CallProtocol", "1.0"), ("CallSkill", "1.1"), ("CallSkill", "1.2/0.0"),
    ]  # fmt: skip


@WAYS
def test_a_sub_agents_list_of_middleware_replaces_the_callers(way: Way) -> None:
    inner: list[Any] = []
    outer: list[Any] = []

    def helper(name: str, middleware: Any) -> Any:
        made = Agent(instructions="h", provider=MockProvider("<final>helped</final>"), middleware=middleware)
        return made.as_skill(name, "Helps.")

    skills = [helper("own", [noting(inner, "inner")]), helper("none", []), helper("callers", None)]
    calls = command("own", "x") + command("none", "x") + command("callers", "x")
    way(agent_with(noting(outer, "outer"), provider=MockProvider(calls, FINAL), skills=skills))
    assert {call_id for *_, call_id in inner} == {"0.0/0"}
    assert {call_id for *_, call_id in outer} == {"0", "0.2/0", "1"}


# --------------------------------------------------------------------------------------------- what a middleware may do


def shout(effect: CallSkill) -> Flow:
    result = yield effect.replace(arguments={**effect.arguments, "text": "rewritten"})
    return result.upper()


def rescue(effect: CallSkill) -> Flow:
    try:
        return (yield effect)
    except ValueError as error:
        return f"rescued: {error}"


def twice(effect: CallSkill) -> Flow:
    return [(yield effect), (yield effect)]


def refuse(effect: CallSkill) -> Flow:
    raise PermissionError("not today")
    yield


@WAYS
@pytest.mark.parametrize("middleware, call, results, errors", [
    (shout, command("echo", "hello"), ["REWRITTEN"], []), (rescue, command("fail", "why"), ["rescued: why"], []),
    (twice, command("echo", "hello"), ['["hello", "hello"]'], []), (refuse, command("echo", "hello"), [], ["not today"]),
])  # fmt: skip
def test_a_middleware_may_change_a_call_and_its_outcome(way: Way, middleware: Any, call: str, results: list[str], errors: list[str]) -> None:
    recorder = Recorder()
    assert way(agent_with(for_skills(middleware), provider=MockProvider(call, FINAL)), recorder=recorder).text == "done"
    assert [one["result"] for one in data_of(recorder, "skill_result")] == results
    assert [one["error"] for one in data_of(recorder, "skill_error")] == errors


@WAYS
def test_a_middleware_may_answer_without_any_provider_and_if_none_does_the_error_says_so(way: Way) -> None:
    def fixture(effect: Effect) -> Flow:
        return LlmResponse("<final>from a fixture</final>")
        yield

    recorder = Recorder()
    agent = Agent(instructions="x", middleware=[fixture])
    assert way(agent, recorder=recorder).text == "from a fixture"
    assert types(recorder) == ["run_start", "messages_sent", "llm_response", "blocks_parsed", "final", "result"]
    result = way(agent.replace(middleware=[passing]))
    assert (result.stop_reason, "no provider is set" in str(result.error)) == ("error", True)


@WAYS
def test_a_middleware_may_make_another_call_first(way: Way) -> None:
    def first(effect: CallModel) -> Flow:
        if not isinstance(effect, CallModel):
            return (yield effect)
        looked = yield CallSkill(effect.scope, effect.call_id, "echo", {"text": "looked up"})
        return LlmResponse(f"<final>{looked}</final>")

    assert way(agent_with(first)).text == "looked up"


def test_a_call_that_is_dropped_while_it_is_performed_ends_quietly() -> None:
    flow = through(ByHand(agent_with(passing)).state, CallSkill("", "0.0", "echo", {}))
    next(flow)
    flow.close()


async def test_while_a_run_sleeps_the_event_loop_does_other_work() -> None:
    begun, cancel, slept = asyncio.Event(), asyncio.Event(), list[str]()

    def wait(effect: CallSkill) -> Flow:
        begun.set()
        yield Sleep(PATIENCE / 4)
        slept.append("to the end")
        return (yield effect)

    running = asyncio.ensure_future(aexecute(agent_with(for_skills(wait)), "go", cancel=cancel))
    await begun.wait()
    cancel.set()
    assert (await running).stop_reason == "cancelled"
    assert slept == []


@WAYS
@pytest.mark.parametrize("by", ["timeout", "cancel", "spawned"])
def test_a_sleep_ends_when_the_run_must_stop(way: Way, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended, slept, pause = threading.Event(), [], threading.Event(), time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: slept.set() or pause(seconds))  # type: ignore[func-returns-value]

    def wait(effect: CallSkill) -> Flow:
        begun.set()
        try:
            yield Sleep(1000)
        except BaseException as error:
            ended.append(type(error).__name__)
            raise

    recorder = Recorder()
    options: dict[str, Any] = {"limits": kernai.Limits(timeout=0.2)} if by == "timeout" else {"cancel": begun}
    calls = MockProvider(command("echo", "a") * (2 if by == "spawned" else 1), FINAL)
    agent = agent_with(for_skills(wait), provider=calls, parallel_skills=by == "spawned")
    result = way(agent, recorder=recorder, **options)
    assert result.stop_reason == ("timeout" if by == "timeout" else "cancelled")
    assert {*ended} <= {"Cancelled", "CancelledError"}
    assert slept.is_set() or by != "timeout" or way not in (by_execute, by_stream), "it does not keep a processor busy"
    assert len(data_of(recorder, "skill_error")) == len(data_of(recorder, "skill_execute"))


# ------------------------------------------------------------------------------------ a middleware that changes nothing


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_middleware_that_passes_everything_on_changes_nothing(case: Case) -> None:
    def run(*middleware: Any) -> tuple[Any, ...]:
        hand = ByHand(set_up(case, 7).replace(middleware=middleware), history=case.history, limits=case.limits)
        result = hand.run(*case.input)
        asked = [(type(one), getattr(one, "scope", None)) for one in hand.effects]
        events = [one.to_dict() for one in hand.events]
        for start in (one["data"] for one in events if one["event"] == "run_start"):
            start.pop("definition", None)  # it has the names of the agent's middleware
        return asked, events, result.to_dict(), type(result.error)

    assert run(passing, passing, passing) == run()


def test_middleware_is_nested_like_functions_and_only_calls_go_through_it() -> None:
    def rested(effect: CallSkill) -> Flow:
        yield Sleep(0)
        return (yield from twice(effect))

    notes: list[Any] = []
    hand = ByHand(agent_with(noting(notes, "outer"), for_skills(rested), noting(notes, "inner")))
    assert hand.run("go").text == "done"
    assert [(name, where) for name, where, kind, _ in notes if kind != "CallModel"] == [
        ("outer", "in"), *[("inner", "in"), ("inner", "out")] * 2, ("outer", "out"),
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------- misuse


def forgetful(effect: Effect) -> Flow:
    yield effect


def silent(effect: Effect) -> Flow:
    return None
    yield


def sleepy(effect: Effect) -> Flow:
    yield Sleep(0)


def raises_at_once(effect: Effect) -> Any:
    raise TypeError("raised at once")


def plain(effect: Effect) -> Any:
    return "a value"


def changing(**changes: Any) -> Callable[[Effect], Flow]:
    def middleware(effect: Effect) -> Flow:
        return (yield effect.replace(**changes))

    return middleware


def yields(value: Any) -> Callable[[Effect], Flow]:
    def middleware(effect: Effect) -> Flow:
        return (yield value)

    return middleware


MISUSES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no return": (forgetful, "forgetful returned nothing: end it with `return (yield effect)`"),
    **{one.__name__: (one, f"{one.__name__} returned nothing: end it with") for one in (silent, sleepy)},
    "no generator": (plain, "plain gave str, not a generator"),
    "raises at once": (raises_at_once, "raised at once"),
    "yields a value": (yields("a value"), "a middleware may yield CallModel, CallSkill, CallProtocol or Sleep, not str"),
    **{f"yields {type(one).__name__}": (yields(one), f"not {type(one).__name__}") for one in (Join(), Raise(ValueError()), CallSkill)},
}
EACH_MISUSE = pytest.mark.parametrize("misuse, says", MISUSES.values(), ids=MISUSES)


@WAYS
@pytest.mark.parametrize("misuse, says", [
    *MISUSES.values(),
    (changing(model="small"), "model must be a Model, not text: write Model('small')"),
    (changing(provider=MockProvider), "provider must be an instance: write MockProvider(...)"),
    (changing(messages=[{"role": "user", "content": "Hi."}]), "messages must be a list of Messages, got dict"),
    (changing(timeout=float("nan")), "timeout must be a number of"),
])
def test_a_mistake_at_a_model_call_ends_the_run_with_a_clear_error(way: Way, misuse: Any, says: str) -> None:
    result = way(agent_with(passing, misuse, passing))
    assert isinstance(result.error, ProviderError)
    assert str(result.error).startswith(("a middleware raised TypeError: ", "a middleware raised ValueError: "))
    assert says in str(result.error)


def test_an_outer_middleware_may_correct_the_mistake_of_an_inner_one() -> None:
    def mend(effect: Effect) -> Flow:
        try:
            return (yield effect)
        except TypeError:
            return LlmResponse("<final>mended</final>")

    assert ByHand(agent_with(mend, forgetful)).run("go").text == "mended"


@WAYS
@EACH_MISUSE
def test_a_mistake_at_a_skill_call_fails_only_that_call(way: Way, misuse: Any, says: str) -> None:
    def middleware(effect: Effect) -> Any:
        return misuse(effect) if isinstance(effect, CallSkill) else passing(effect)

    middleware.__qualname__ = misuse.__name__
    recorder = Recorder()
    assert way(agent_with(middleware), recorder=recorder).text == "done"
    assert [says in one["error"] for one in data_of(recorder, "skill_error")] == [True]


@WAYS
@pytest.mark.parametrize("answer", ["<final>x</final>", 3])
def test_a_middleware_that_returns_anything_but_a_response_is_an_error(way: Way, answer: Any) -> None:
    def middleware(effect: Effect) -> Flow:
        yield effect
        return answer

    result = way(agent_with(middleware))
    assert str(result.error) == f"a middleware returned {type(answer).__name__}, not an LlmResponse"


@WAYS
def test_a_middleware_that_swallows_the_error_of_a_call_must_return_an_outcome(way: Way) -> None:
    def swallowing(effect: Effect) -> Flow:
        try:
            return (yield effect)
        except ValueError:
            pass

    recorder = Recorder()
    assert way(agent_with(swallowing, provider=Script(command("fail", "x"), FINAL)), recorder=recorder).text == "done"
    assert ["swallowing returned nothing" in one["error"] for one in data_of(recorder, "skill_error")] == [True]


@WAYS
@pytest.mark.parametrize("change, fault", [
    ({"arguments": {"number": 42}}, None), ({"arguments": {"number": "43"}}, "number: expected integer"),
    ({"arguments": {"amuont": 9}}, "'amuont' is not an input of pay; did you mean 'amount'?"),
    ({"skill": "refund", "arguments": {"number": 1}}, None),
    ({"skill": "refund", "arguments": {"number": 1, "amount": 7}}, "'amount' is not an input of refund"),
    ({"skill": "refund", "arguments": {}}, "number: required"),
])
def test_arguments_changed_by_a_middleware_are_validated_and_the_others_stay(
    way: Way, change: dict[str, Any], fault: str | None
) -> None:
    def pay(number: int, amount: int = 5) -> str:
        return f"paid {amount} for {number}"

    def refund(number: int, reason: str) -> str:
        return f"{number}: {reason}"

    recorder, inputs = Recorder(), {"number": int, "reason": Input(str, default="none")}
    skills = [Skill("pay", execute=pay), Skill("refund", execute=refund, inputs=inputs)]
    calls = MockProvider(command("pay", '{"number": 1, "amount": 7}'), FINAL)
    way(agent_with(for_skills(lambda effect: (yield effect.replace(**change))), passing, provider=calls, skills=skills), recorder=recorder)
    errors = [one["error"] for one in data_of(recorder, "skill_error")]
    assert [fault in error for error in errors] if fault else errors == []
    results = [] if fault else ["1: none" if "skill" in change else "paid 7 for 42"]
    assert [one["result"] for one in data_of(recorder, "skill_result")] == results


@WAYS
def test_the_failed_provider_is_named_even_if_there_is_middleware(way: Way) -> None:
    result = way(agent_with(passing, provider=Script(KeyError("slot"))))
    assert str(result.error) == "Script raised KeyError: 'slot'"
    assert isinstance(getattr(result.error, "__cause__", None), KeyError)


@WAYS
def test_a_middleware_that_swallows_the_end_of_the_run_does_not_keep_it_running(way: Way) -> None:
    cancel = threading.Event()

    @skill(register=False)
    def last() -> str:
        cancel.set()
        return "seen"

    def swallow(effect: Effect) -> Flow:
        try:
            return (yield effect)
        except BaseException:
            return "swallowed"

    calls = MockProvider(command("last") + command("last"), FINAL)
    result = way(agent_with(swallow, provider=calls, skills=[last]), cancel=cancel)
    assert result.stop_reason == "cancelled"


async def asynchronous(effect: Effect) -> Any:
    return effect


async def yielding(effect: Effect) -> AsyncIterator[Effect]:
    yield effect


class Instance:
    def __call__(self, effect: Effect) -> Flow:
        return (yield effect)


@pytest.mark.parametrize("wrong, says", [
    (passing, "middleware must be a list or None, got function"),
    (Instance(), "must be a list or None, got Instance"),
    ([3], r"a middleware must be a plain function of the effect \(a plain generator, also under asyncio\), got 3"),
    ([lambda: None], "a middleware must be a function of the effect .*: too many positional arguments"),
    ([Instance], r"must hold instances: write Instance\(\)"),
    ([asynchronous], "a middleware must be a plain function .* got the async function <function asynchronous"),
    ([yielding], "a middleware must be a plain function .* got the async function <function yielding"),
])
def test_an_object_that_cannot_be_a_middleware_is_an_error_at_once(wrong: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        Agent(instructions="x", middleware=wrong)
