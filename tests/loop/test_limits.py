"""Limits: one budget per root run, shared by all its sub-runs."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import kernai
from kernai import Agent, Context, LimitReachedError, Limits, MockProvider, Model, Plan, Skill, StopReason, Task
from kernai.testing import ByHand
from kernai.values.result import Usage
from tests.loop.loop_cases import add, command, echo, plan, task
from tests.scripted import OnChunk, Scripted

PRICED = Model("priced", cost=(2.0, 10.0))
ECHO = command("echo", "x")


def tokens(prompt: int, completion: int) -> Callable[..., dict[str, int]]:
    return lambda *_: {"prompt_tokens": prompt, "completion_tokens": completion}


def by_hand(*turns: str, limits: Limits, agent: dict[str, Any] | None = None, **options: Any) -> ByHand:
    provider = options.pop("provider", None) or MockProvider(*turns).with_token_counter(tokens(80, 20))
    given = {"instructions": "", "skills": [echo], "provider": provider, "on_prose": "accept", **(agent or {})}
    return ByHand(Agent(**given), limits=limits, **options)


# -------------------------------------------------------------------------------------------- each limit trips


@pytest.mark.parametrize("limits, reason, steps, says", [
    (Limits(max_calls=0), StopReason.MAX_CALLS, 1, "max_calls=0"), (Limits(max_calls=5), StopReason.MAX_CALLS, 3, "max_calls=5"),
    (Limits(max_tokens=100), StopReason.MAX_TOKENS, 1, "max_tokens=100"), (Limits(max_cost=0), StopReason.MAX_COST, 1, "(0.000000 dollars)"),
    (Limits(max_tokens=101), StopReason.MAX_TOKENS, 2, "max_tokens=101"),
    (Limits(max_cost=0.00072), StopReason.MAX_COST, 2, "max_cost=0.00072"),
    (Limits(timeout=0), StopReason.TIMEOUT, 1, "timeout=0"), (Limits(max_depth=0), StopReason.MAX_STEPS, 4, "4 steps"),
    (Limits(repeated_calls=2), StopReason.LOOP, 2, "2"), (Limits(), StopReason.MAX_STEPS, 4, "4 steps"),
])  # fmt: skip
def test_each_limit_stops_a_run_with_its_reason_and_is_named(limits: Limits, reason: StopReason, steps: int, says: str) -> None:
    provider = MockProvider(ECHO).with_token_counter(tokens(80, 20))
    agent = Agent(instructions="", skills=[echo], model=PRICED, max_steps=4, provider=provider)
    recorder = kernai.Recorder()
    result = kernai.execute(agent, "Go.", limits=limits, recorder=recorder)
    assert (result.stop_reason, result.text, result.steps) == (reason, None, steps)
    assert recorder.entries[-1].stop == reason
    assert isinstance(result.error, LimitReachedError)
    assert isinstance(result.error, kernai.RunStoppedError)
    assert isinstance(result.error, kernai.MaxStepsReachedError) == (reason is StopReason.MAX_STEPS)
    assert result.error.reason == reason
    assert says in str(result.error)
    replayed = kernai.replay(agent, recording=recorder.entries).result
    assert replayed is not None
    assert type(replayed.error) is type(result.error)
    with pytest.raises(LimitReachedError) as caught:
        kernai.run(agent, "Go.", limits=limits)
    assert caught.value.result is not None
    assert caught.value.result.stop_reason == reason
    assert caught.value.result.messages == result.messages


def test_an_answer_within_the_limits_is_an_answer_and_a_run_that_starts_too_deep_has_none() -> None:
    deep = by_hand("done", limits=Limits(max_depth=2), context=Context(depth=3))
    assert (deep.run("Go.").stop_reason, deep.effects) == ("max_depth", [])
    limits = Limits(max_tokens=201, max_cost=0.001, max_calls=3, timeout=1000, repeated_calls=2)
    assert by_hand(ECHO, "done", limits=limits, agent={"model": PRICED}).run("Go.").text == "done"


def test_calls_of_model_skill_and_protocol_count_and_built_in_commands_do_not() -> None:
    kernai.protocols.register("oracle", lambda *_: "yes")
    turn = f'{command("/skills")}{command("nope")}{ECHO}<block type="oracle">?</block>'
    hand = by_hand(turn, "done", limits=Limits(max_calls=3))
    assert hand.run("Go.").stop_reason == "max_calls"
    assert [event.type for event in hand.events][-2:] == ["protocol_result", "result"]
    assert by_hand(turn, "done", limits=Limits(max_calls=4)).run("Go.").text == "done"


def test_a_limit_reached_among_concurrent_calls_leaves_no_call_without_an_outcome() -> None:
    hand = by_hand(
        ECHO + command("echo", "y") + command("echo", "z"), limits=Limits(max_calls=3), agent={"parallel_skills": True}
    )
    assert hand.run("Go.").stop_reason == "max_calls"
    calls = [(event.type, event.data["call_id"]) for event in hand.events if event.type.startswith("skill")]
    assert calls == [("skill_execute", "0.0"), ("skill_execute", "0.1"), ("skill_error", "0.0"), ("skill_error", "0.1")]
    assert [event.stop for event in hand.events if event.type == "skill_error"] == ["max_calls"] * 2


# ------------------------------------------------------------------------------------------------------- time


@pytest.mark.parametrize("ends", ["skill_result", "protocol_result", "protocol_error"])
def test_the_time_runs_out_between_calls_and_how_long_each_took_is_recorded_even_if_it_failed(ends: str) -> None:
    elapsed = [60.0]

    def wait(*_: Any) -> str:
        elapsed[0] += 5
        return "waited" if ends.endswith("result") else str(1 // 0)

    kernai.protocols.register("wait", wait)
    said, skill = command("wait") if "skill" in ends else '<block type="wait">?</block>', Skill("wait", execute=wait, inputs={})
    hand = by_hand(said * 3, limits=Limits(timeout=10), monotonic=lambda: elapsed[0], agent={"skills": [skill]})
    assert hand.run("Go.").stop_reason == "timeout"
    assert [event.data["duration_ms"] for event in hand.events if event.type == ends] == [5000] * 2


@pytest.mark.parametrize("swallows", [False, True])
def test_the_time_runs_out_in_the_middle_of_a_response(swallows: bool) -> None:
    shown: list[str] = []
    elapsed = [0.0]

    def script(_: object, on_chunk: OnChunk) -> str:
        for piece in "abc":
            elapsed[0] += 1
            try:
                on_chunk(piece)
            except Exception as error:
                if not swallows:  # some vendors' clients catch whatever a callback raises
                    raise RuntimeError("wrapped") from error
            else:
                shown.append(piece)
        return "abc"

    hand = by_hand(provider=Scripted(script), limits=Limits(timeout=3), monotonic=lambda: elapsed[0])
    result = hand.run("Go.")
    assert (result.stop_reason, shown) == ("timeout", ["a", "b"])
    assert isinstance(result.error, LimitReachedError)
    assert "llm_response" not in [event.type for event in hand.events]


# ----------------------------------------------------------------------------------------- tokens and dollars


def test_without_reported_usage_limits_count_a_token_per_four_characters_and_warn_once() -> None:
    agent: dict[str, Any] = {"instructions": "12345678", "skills": None, "on_prose": "accept", "protocols": []}
    # the first call: system 8, input 4, response 20 characters, so 8 tokens
    for most, reported, calls in ((8, {}, 1), (9, {}, 2), (9, {"prompt_tokens": 9}, 1)):
        provider = MockProvider("<final>12345".ljust(20)).with_token_counter(lambda *_, reported=reported: reported)
        hand = by_hand(provider=provider, limits=Limits(max_tokens=most), agent=agent)
        assert hand.run("Go!!").stop_reason == "max_tokens"
        assert provider.call_count == calls
        assert [name for name, _ in hand.warnings] == ["usage.estimated"]
        assert hand.warnings[0][1]["run_id"] == "run-1"


@pytest.mark.parametrize("limits, warned", [(Limits(max_calls=10), 0), (Limits(max_tokens=10**6), 1)])
def test_only_a_limit_on_tokens_has_them_estimated_and_an_estimate_is_no_usage(limits: Limits, warned: int) -> None:
    provider = MockProvider(plan(task("a"), task("b")), ECHO, "<final>A!</final>", ECHO, "<final>B!</final>", "<final>done</final>")
    hand = by_hand(provider=provider, limits=limits)
    assert hand.run("Go.").usage == Usage(model_calls=6)
    assert len(hand.warnings) == warned, "once for a run and all its tasks"
    hand = by_hand(provider=MockProvider(ECHO).with_token_counter(lambda *_: {"total_tokens": 50}), limits=Limits(max_tokens=100))
    assert (hand.run("Go.").steps, hand.warnings) == (2, []), "a total alone counts"
    used = {"prompt_tokens": 9, "completion_tokens": 1, "cached_tokens": 5, "cache_write_tokens": 2}
    hand = by_hand(provider=MockProvider(ECHO, "done").with_token_counter(lambda *_: used), limits=Limits())
    assert hand.run("Go.").usage == Usage(18, 2, 20, None, 2, 10, 4)


@pytest.mark.parametrize("usage, cost", [
    ({"prompt_tokens": 10, "completion_tokens": 4}, 10 * 2e-6 + 4 * 10e-6), ({"total_tokens": 14}, None),
    ({"prompt_tokens": 10}, None), ({}, None),
])  # fmt: skip
def test_a_cost_is_known_if_both_its_parts_are(usage: dict[str, int], cost: float | None) -> None:
    hand = by_hand(provider=MockProvider("done").with_token_counter(lambda *_: usage), limits=Limits(), agent={"model": PRICED})
    assert hand.run("Go.").usage.cost == pytest.approx(cost)


@pytest.mark.parametrize("usage, steps", [({"total_tokens": 100}, 3), ({}, 2)])
def test_a_cost_that_is_unknown_is_estimated_for_the_limit(usage: dict[str, int], steps: int) -> None:
    provider = MockProvider("<json>1</json>" + " " * 400).with_token_counter(lambda *_: usage)
    hand = by_hand(provider=provider, limits=Limits(max_cost=0.0019), agent={"model": PRICED})
    result = hand.run("Go.")
    assert (result.stop_reason, result.steps) == ("max_cost", steps)


def test_a_limit_on_cost_needs_a_price_at_the_start_of_a_call_of_an_agent() -> None:
    leaf = Agent(instructions="", model=Model("free?")).as_skill("leaf", "")
    hand = by_hand(command("leaf", "x"), "done", limits=Limits(max_cost=1), agent={"model": PRICED, "skills": [leaf]})
    assert hand.run("Go.").text == "done"
    assert ["free?" in event.data["error"] for event in hand.events if event.type == "skill_error"] == [True]


# ------------------------------------------------------------------------------------------------ repeated calls


ASK, ASK_NAMED = '<block type="oracle">?</block>', '<block type="oracle" name="n">?</block>'


@pytest.mark.parametrize("turns, most, stop, made", [
    ([ECHO + ECHO + command("echo", "y") + ECHO + ECHO, "done"], 3, "final", 5), ([ECHO, ECHO, ECHO, "done"], 3, "loop", 2),
    ([ECHO, command("echo", ' {"text": "x"}')], 2, "loop", 1), ([ASK + ASK_NAMED + ASK, "done"], 2, "final", 3), ([ASK + ASK, "done"], 2, "loop", 1),
])
def test_only_the_same_call_several_times_in_a_row_is_a_loop(turns: list[str], most: int, stop: str, made: int) -> None:
    kernai.protocols.register("oracle", lambda *_: "yes")
    hand = by_hand(*turns, limits=Limits(repeated_calls=most))
    assert hand.run("Go.").stop_reason == stop
    assert sum(event.type.endswith("_execute") for event in hand.events) == made


@pytest.mark.parametrize("turn", [
    command("nope", "x"), command("", "x"), command("/skills"), command("/nope"), '<block type="closed">?</block>',
    command("out_of_bounds", "x"), command("add", "no number"),
])  # fmt: skip
def test_repeated_refused_calls_and_built_in_commands_are_a_loop_too(turn: str) -> None:
    for name in ("oracle", "closed"):
        kernai.protocols.register(name, lambda *_: "yes")
    kernai.skills.register(Skill("out_of_bounds", execute=lambda: ""))
    agent = {"skills": [echo, add], "protocols": ["oracle"]}
    hand = by_hand(turn, limits=Limits(repeated_calls=3), agent=agent)
    assert (hand.run("Go.").stop_reason, hand.state.steps) == ("loop", 3)
    assert by_hand(turn, ECHO, turn, ECHO, "done", limits=Limits(repeated_calls=2), agent=agent).run("Go.").text == "done"


# ------------------------------------------------------------------------------------------- a caller's mistake


@pytest.mark.parametrize("name, value, error", [
    *[("max_tokens", wrong, TypeError) for wrong in ("10", 1.5, True)], ("max_tokens", -1, ValueError),
    ("max_cost", "1", TypeError), *[("max_cost", wrong, ValueError) for wrong in (-0.1, float("nan"))],
    *[("timeout", right, None) for right in (None, 0.5, float("inf"))], ("timeout", "1s", TypeError),
    *[("timeout", wrong, ValueError) for wrong in (-1, float("nan"))],
    ("max_calls", 2.0, TypeError), ("max_calls", "many", TypeError), ("max_depth", None, TypeError), ("max_depth", -1, ValueError),
    ("repeated_calls", 1, ValueError), ("repeated_calls", False, TypeError), ("max_cost", 1, None),
])  # fmt: skip
def test_an_error_names_the_wrong_limit(name: str, value: object, error: type[Exception] | None) -> None:
    if error is None:
        assert getattr(Limits(**{name: value}), name) == value  # type: ignore[arg-type]  # the point of the table
    else:
        with pytest.raises(error, match=name):
            Limits(**{name: value})  # type: ignore[arg-type]


def test_only_the_programs_own_error_says_how_to_raise_max_steps() -> None:
    look = Skill("look", execute=lambda: "seen")
    clerk = Agent(instructions="", provider=MockProvider(command("look")), skills=[look], max_steps=1)
    root = clerk.replace(skills=[clerk.as_skill("clerk", "Helps.")], provider=MockProvider(command("clerk", "go")))
    result = kernai.execute(root, "go")
    assert str(result.error).endswith(
        "used all its 1 steps without a final answer: raise Agent(max_steps=...), or continue with history=result.messages"
    )
    assert result.messages[2].text == (
        '<block type="error" name="clerk">the agent used all its 1 steps without a final answer</block>'
    )


# ----------------------------------------------------------------------------------------- without a limit of one's own


def endless(calls: list[str], at_once: int = 1) -> Agent:
    look = Skill("look", execute=lambda: calls.append("x"), inputs={})
    return Agent(instructions="", skills=[look], provider=MockProvider(command("look") * at_once), max_steps=10_000)


def test_each_input_of_a_session_may_make_500_calls_and_a_number_is_for_all_of_them() -> None:
    for limits, in_all in ((None, 1000), (Limits(max_calls=600), 600)):
        store, calls = kernai.MemoryStore(), list[str]()
        agent = endless(calls, at_once=99)
        made = [
            kernai.execute(agent, "Go.", store=store, run_id="r", limits=limits),
            kernai.resume(agent, "r", store=store, limits=limits),
            kernai.resume(agent, "r", store=store, input="More.", limits=limits),
        ]
        assert [one.stop_reason for one in made] == ["max_calls"] * 3
        spent = [event for event in store.load("r") if event["event"] in ("llm_response", "skill_result")]
        assert len(spent) == in_all
        assert kernai.replay(agent, "r", store=store).result is not None
        if limits is not None:  # another input has 500 calls, whatever the turns before it made
            made_before = len(calls)
            assert kernai.resume(agent, "r", store=store, input="More.").stop_reason == "max_calls"
            assert len(calls) == made_before + 495  # beside five model calls


def test_none_removes_the_limit_on_calls_and_so_does_a_plan_of_the_host() -> None:
    calls: list[str] = []
    agent = endless(calls).replace(max_steps=300)
    assert kernai.execute(agent, "Go.", limits=Limits(max_calls=None)).stop_reason == "max_steps"
    tasks = [Task(str(at), "do") for at in range(600)]
    answering = Agent(instructions="", provider=MockProvider("<final>x</final>"))
    assert kernai.execute_plan(answering, Plan(tuple(tasks), strategy="parallel")).ok
    stopped = kernai.execute_plan(answering, Plan(tuple(tasks), strategy="parallel"), limits=Limits(max_calls=500))
    assert stopped.stop_reason == "max_calls"


def test_concurrent_tasks_make_no_more_than_500_calls_together() -> None:
    calls: list[str] = []
    turns = MockProvider().on_call(
        lambda messages, _: plan(*map(task, map(str, range(50))), strategy="parallel") if len(messages) == 2 and messages[1].text == "Go."
        else command("look") * 7
    )
    result = kernai.execute(endless(calls).replace(provider=turns), "Go.")
    assert (result.stop_reason, turns.call_count + len(calls)) == ("max_calls", 500)
    assert str(result.error) == "the 500 calls of one input are used up: allow more with Limits(max_calls=...)"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_of_limits_knows_whether_calls_were_limited(copied: Callable[[Limits], Limits]) -> None:
    for limits in (Limits(), Limits(max_calls=None), Limits(max_calls=5)):
        assert copied(limits) == limits
    calls: list[str] = []
    assert kernai.execute(endless(calls), "Go.", limits=copied(Limits())).stop_reason == "max_calls"
