"""A run's usage is counted and limited across every resume, and a run that is stopping calls nothing."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

import kernai
from kernai import (
    Agent,
    Limits,
    LlmResponse,
    MemoryStore,
    Message,
    Model,
    Pause,
    Provider,
    ProviderError,
    Recorder,
    Skill,
    Usage,
)
from kernai.middleware import retry
from tests.durable.durable_cases import WAYS, Way, command, cut, way_id

EACH_WAY = pytest.mark.parametrize("way", WAYS, ids=way_id)
PRICED = Model("priced", cost=(1.0, 2.0))
DOWN = "DOWN"


class Script(Provider):
    """Answers in turn, with what it used; `DOWN` breaks off, after the vendor has counted the prompt."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked = 0

    def call(self, messages: Sequence[Message], model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer == DOWN:
            on_chunk.report_usage(Usage(prompt_tokens=100, completion_tokens=7))
            raise ProviderError("down", retryable=True)
        return LlmResponse(answer, prompt_tokens=10, completion_tokens=1, total_tokens=12)


TWICE = retry(2, first_wait=0)
CLERK = Agent(instructions="c", model=PRICED).as_skill("clerk", "Counts.")
#: an agent's changes, what the model says in each segment (the inputs of turns in brackets), and the calls of it all
BILLS: dict[str, tuple[dict[str, Any], list[tuple[str, ...] | list[str]], tuple[int, int]]] = {
    "failed once": ({}, [(DOWN,), ("<final>ok</final>",)], (1, 1)),
    "failed three times": ({}, [(DOWN,), (DOWN,), (DOWN,), ("<final>ok</final>",)], (3, 1)),
    "each try of each segment": ({"middleware": [TWICE]}, [(DOWN,), (DOWN,), (DOWN, "<final>ok</final>")], (5, 1)),
    "in a later step": ({"skills": [CLERK]}, [(command("/skills"), DOWN), ("<final>ok</final>",)], (1, 2)),
    "in a later turn": (
        {}, [(DOWN,), ("<final>one</final>",), ["more"], (DOWN,), (DOWN,), ("<final>ok</final>",)], (3, 2),
    ),
    "after an agent was called": (
        {"skills": [CLERK]}, [(command("clerk", "x"), "<final>sub</final>", DOWN), ("<final>ok</final>",)], (1, 3),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("bill", BILLS)
@EACH_WAY
def test_the_usage_of_failed_calls_stays_on_the_bill(bill: str, way: Way) -> None:
    changes, segments, (failed, made) = BILLS[bill]
    it, store, recorder = Agent(instructions="x", model=PRICED, **changes), MemoryStore(), Recorder()
    options: dict[str, Any] = {"store": store, "recorder": recorder}
    result, again = None, {}
    for segment in segments:
        if isinstance(segment, list):
            again = {"input": segment[0]}
            continue
        if result is None:
            result = way.execute(it, "go", run_id="r", provider=Script(*segment), **options)
        else:
            result = way.resume(it, "r", provider=Script(*segment), **options, **again)
            again = {}
        replayed = kernai.replay(it, "r", store=store).result
        assert replayed is not None
        assert replayed.usage == result.usage
    assert result is not None
    assert result.ok
    used = result.usage
    assert (used.prompt_tokens, used.completion_tokens) == (100 * failed + 10 * made, 7 * failed + made)
    assert used.model_calls == failed + made
    assert used.cost == pytest.approx((114 * failed + 12 * made) / 1e6)
    assert recorder.token_usage().model_calls == failed + made, "no event counts it twice"
    assert way.resume(it, "r", store=store).usage == used
    for length in range(1, len(store.load("r"))):
        part = cut(store, length)
        kernai.replay(it, "r", store=part)
    if failed > 1 and not changes:
        kernai.fork(store, "r", at_step=result.steps - 1, run_id="s")
        forked = way.resume(it, "s", store=store, provider=Script("<final>else</final>"))
        assert kernai.replay(it, "s", store=store).result == forked


def test_what_failed_attempts_used_counts_against_the_limits_before_the_next_one() -> None:
    it = Agent(instructions="x", model=PRICED, middleware=[retry(9, first_wait=0)])
    down = Script(DOWN)
    result = kernai.execute(it, "go", provider=down, limits=Limits(max_tokens=250))
    assert (result.stop_reason, down.asked) == ("max_tokens", 3)


@pytest.mark.parametrize(
    "limits", [Limits(max_tokens=107), Limits(max_cost=0.0001), Limits(max_calls=0), Limits(timeout=0)]
)
@EACH_WAY
def test_a_model_is_not_called_again_where_a_limit_is_used_up_by_what_failed(limits: Limits, way: Way) -> None:
    it, store = Agent(instructions="x", model=PRICED), MemoryStore()
    way.execute(it, "go", store=store, run_id="r", provider=Script(DOWN))
    fine = Script("<final>ok</final>")
    for _ in range(2):
        stopped = way.resume(it, "r", store=store, provider=fine, limits=limits)
        replayed = kernai.replay(it, "r", store=store).result
        assert replayed is not None
        assert (stopped.ok, replayed.stop_reason, replayed.usage) == (False, stopped.stop_reason, stopped.usage)
    assert fine.asked == 0
    result = way.resume(it, "r", store=store, provider=fine, limits=Limits(max_calls=1))
    assert (result.ok, result.usage.model_calls) == (True, 2)


@pytest.mark.parametrize("at_once", [False, True])
@EACH_WAY
def test_a_run_that_is_to_stop_makes_no_call_that_was_approved_and_the_next_resume_does(way: Way, at_once: bool) -> None:
    paid: list[str] = []
    stopped = threading.Event()
    stopped.set()

    def pay(what: str) -> str:
        paid.append(what)
        return "paid"

    it = Agent(instructions="x", skills=[Skill("pay", execute=pay, approval=True)], parallel_skills=at_once)
    options: dict[str, Any] = {"store": MemoryStore(), "provider": Script(command("pay", "a") + command("pay", "b"), "<final>x</final>")}
    waiting = {call.call_id: True for call in way.execute(it, "go", run_id="r", **options).pending}
    result = way.resume(it, "r", cancel=stopped, approvals=waiting, **options)
    assert (result.stop_reason, paid) == ("cancelled", [])
    assert kernai.replay(it, "r", store=options["store"]).result is not None
    result = way.resume(it, "r", **options)
    if not at_once:
        assert paid == ["a"]
        result = way.resume(it, "r", approvals={"0.1": True}, **options)
    assert (result.ok, sorted(paid)) == (True, ["a", "b"])


@EACH_WAY
def test_a_run_that_is_cancelled_while_somebody_is_asked_does_not_make_the_call(way: Way) -> None:
    paid: list[str] = []
    stopped = threading.Event()

    def approve(call: kernai.PendingCall) -> bool:
        stopped.set()
        return True

    it = Agent(instructions="x", skills=[Skill("pay", execute=lambda: paid.append("x"), inputs={})], approve=approve)
    asked = Script(command("pay"), "<final>x</final>")
    assert way.execute(it, "go", provider=asked, cancel=stopped).stop_reason == "cancelled"
    assert paid == []


@EACH_WAY
def test_a_model_call_that_was_approved_is_not_made_by_a_run_that_is_to_stop(way: Way) -> None:
    def pausing(effect: Any) -> Any:
        if isinstance(effect, kernai.middleware.CallModel) and effect.approval is None:
            raise Pause("dear")
        return (yield effect)

    it, store, fine = Agent(instructions="x", middleware=[pausing]), MemoryStore(), Script("<final>ok</final>")
    way.execute(it, "go", store=store, run_id="r", provider=fine)
    stopped = threading.Event()
    stopped.set()
    result = way.resume(it, "r", store=store, provider=fine, approvals={"0": True}, cancel=stopped)
    assert (result.stop_reason, fine.asked) == ("cancelled", 0)
    assert way.resume(it, "r", store=store, provider=fine).ok
