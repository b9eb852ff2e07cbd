"""Options of a model call in an effect: provider and model, timeout, and whether its text is streamed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

import kernai
from kernai import Agent, Event, Limits, LlmResponse, Message, Model, Provider, ProviderError, Recorder, Usage
from kernai.middleware import CallModel, Effect, Flow, retry
from kernai_providers import MemoryReply, MemoryTransport, OpenAIProvider
from tests.durable.durable_cases import replayed
from tests.loop.loop_cases import plan, task
from tests.middleware.asking import BOTH, FINAL, RETRYABLE, Script, agent_with, data_of, types
from tests.ways import PATIENCE, WAYS, Way, by_aexecute, by_astream, by_execute, by_stream, join_threads


def changed(**changes: Any) -> Callable[[Effect], Flow]:
    def middleware(effect: Effect) -> Flow:
        return (yield effect.replace(**changes) if isinstance(effect, CallModel) else effect)

    return middleware


def again(effect: CallModel) -> Flow:
    try:
        return (yield effect)
    except ProviderError:
        return (yield effect)


# ----------------------------------------------------------------------------------------------- the provider and model


@pytest.mark.parametrize("given, cost", [
    ({}, 0.2), ({"cost": 0.5}, 0.5), ({"cost": 0, "prompt_tokens": None, "completion_tokens": None}, 0),
    ({"cost": 0.5, "model": "other"}, 0.5), ({"model": "other"}, None), ({"model": "large"}, 0.2),
])
def test_a_reported_cost_takes_precedence_over_the_models_price(given: dict[str, Any], cost: float | None) -> None:
    response, recorder = LlmResponse("x", **{"prompt_tokens": 1000, "completion_tokens": 100, **given}), Recorder()
    agent = agent_with(Script(response), changed(), model=Model("large", cost=(100.0, 1000.0)))
    used = kernai.execute(agent, "go", recorder=recorder).usage
    assert (used.cost, used.model_calls) == (None if cost is None else pytest.approx(cost), 1)
    assert data_of(recorder, "llm_response")[0].get("model") == given.get("model")  # not that of the run, unless reported


# ------------------------------------------------------------------------------------------------- what is streamed


def shown(events: list[Event]) -> list[Any]:
    return [(one.type, one.data) for one in events if one.type in ("text_chunk", "model_restarted", "llm_response")]


@WAYS
@BOTH
def test_text_that_is_not_streamed_is_emitted_in_one_piece(way: Way, kind: type[Script]) -> None:
    live: list[Event] = []

    def upper(effect: CallModel) -> Flow:
        response = yield effect
        return LlmResponse(response.content.upper())

    way(agent_with(kind("a plain answer"), upper, changed(stream=False)), on_event=live.append)
    assert [(kind, data if kind == "text_chunk" else data["content"]) for kind, data in shown(live)] == [
        ("text_chunk", "A PLAIN ANSWER"), ("llm_response", "A PLAIN ANSWER"),
    ]  # fmt: skip


@WAYS
@BOTH
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "not streamed"])
def test_repeating_a_call_retracts_the_text_it_had_streamed(way: Way, kind: type[Script], streamed: bool) -> None:
    def agent() -> Agent:
        return agent_with(kind(RETRYABLE, "whole answer", pieces="half an ans"), again, changed(stream=streamed))

    live, recorder, unwatched = list[Event](), Recorder(), Recorder()
    assert way(agent(), recorder=recorder, on_event=live.append).text == "whole answer"
    first = [("text_chunk", "half an ans"), ("model_restarted", {"reason": "the model is called again"})] if streamed else []
    pieces = [("text_chunk", "whole "), ("text_chunk", "answer")] if streamed else [("text_chunk", "whole answer")]
    assert shown(live)[:-1] == first + pieces
    # the recording is the same whether or not anybody watches
    way(agent(), recorder=unwatched)
    assert types(unwatched) == types(recorder)
    assert ("model_restarted" in types(recorder)) is streamed


@WAYS
def test_repeating_a_call_that_had_streamed_nothing_retracts_nothing(way: Way) -> None:
    recorder = Recorder()
    assert way(agent_with(Script(RETRYABLE, FINAL), again), recorder=recorder).text == "done"
    assert "model_restarted" not in types(recorder)


FREE = LlmResponse(FINAL, prompt_tokens=0, completion_tokens=0)


def _asks_again(effect: CallModel) -> Flow:
    yield effect
    return (yield effect)


def _asks_twice_more(effect: CallModel) -> Flow:
    yield effect
    return (yield from _asks_again(effect))


def _judges(effect: CallModel) -> Flow:
    answer = yield effect
    yield effect
    return answer


def _changes(effect: CallModel) -> Flow:
    answer = yield effect
    return replace(answer, content=answer.content + " ")


def _makes_up(effect: CallModel) -> Flow:
    yield effect
    return FREE


def _refuses(effect: CallModel) -> Flow:
    yield effect
    raise kernai.Stop("guardrail", "no")


def _falls_back(effect: CallModel) -> Flow:
    yield effect
    try:
        return (yield effect)
    except ProviderError:
        return FREE


@WAYS
@pytest.mark.parametrize("middleware, first, limits, reason", [
    (again, RETRYABLE, Limits(max_calls=1), "max_calls"), (_judges, LlmResponse(FINAL), Limits(max_tokens=1), "max_tokens"),
    (_asks_twice_more, LlmResponse(FINAL), Limits(max_calls=2), "max_calls"),
])  # fmt: skip
def test_a_repeated_call_counts_against_the_limits(way: Way, middleware: Any, first: Any, limits: Limits, reason: str) -> None:
    agent, store = agent_with(Script(first), middleware), kernai.MemoryStore()
    result = way(agent, limits=limits, store=store, run_id="r")
    assert (result.stop_reason, type(result.error).__name__) == (reason, "LimitReachedError")
    assert replayed(agent, "r", store=store).usage == result.usage


@WAYS
@pytest.mark.parametrize("middleware, answers, tokens", [
    (_asks_again, (10, 200), (210, 2)), (_asks_again, (10, 10), (20, 2)), (_asks_twice_more, (10, 20, 200), (230, 3)), (_judges, (10, 200), (210, 2)), (_changes, (10,), (10, 1)), (_makes_up, (10,), (10, 2)),
    (_refuses, (10,), (10, 1)), (_falls_back, (10, None), (10, 2)),
])  # fmt: skip
def test_the_usage_of_each_response_is_counted_once_whatever_a_middleware_does(
    way: Way, middleware: Any, answers: Sequence[int | None], tokens: tuple[int, int]
) -> None:
    of = {one: LlmResponse(FINAL, prompt_tokens=one, completion_tokens=0) for one in answers if one is not None}
    said = [RETRYABLE if one is None else of[one] for one in answers]
    agent, store = agent_with(Script(*said), middleware), kernai.MemoryStore()
    result = way(agent, store=store, run_id="r")
    assert (result.usage.prompt_tokens, result.usage.model_calls) == tokens
    info = store.info("r")
    assert info is not None
    assert (info.usage.prompt_tokens, info.usage.model_calls) == tokens
    assert replayed(agent, "r", store=store).usage == result.usage
    # limits count the same: the caller's second model call is refused
    calls = LlmResponse('<block type="command" name="helper">{"input": "x"}</block>', prompt_tokens=0, completion_tokens=0)
    helper = agent_with(Script(*said), middleware).as_skill("helper", "helps")
    caller = Agent(instructions="", provider=Script(calls, FREE), skills=[helper])
    assert str(way(caller, limits=Limits(max_tokens=tokens[0])).error) == f"max_tokens={tokens[0]} is used up ({tokens[0]} tokens)"


# ------------------------------------------------------------------------------------------------- timeouts


class Waits(Provider):
    """Waits for its timeout and checks `on_chunk` meanwhile, as the adapters of kernai do."""

    def __init__(self) -> None:
        self.deadlines: list[float] = []

    def call(self, messages: Sequence[Message], model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
        self.deadlines.append(on_chunk.deadline)
        pause = threading.Event()
        while True:
            on_chunk("")
            pause.wait(0.001)


class AsyncWaits(Waits):
    async def acall(self, messages: Sequence[Message], model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
        self.deadlines.append(on_chunk.deadline)
        await asyncio.sleep(1000)
        raise AssertionError


@WAYS
@pytest.mark.parametrize("kind", [Waits, AsyncWaits], ids=["call", "acall"])
@pytest.mark.parametrize("limits", [None, Limits(timeout=1000)], ids=["no limit", "a later limit"])
def test_a_call_ends_at_its_own_timeout(way: Way, kind: type[Waits], limits: Limits | None) -> None:
    provider = kind()
    result = way(agent_with(provider, changed(timeout=0.02)), limits=limits)
    error = result.error
    assert isinstance(error, ProviderError)
    assert (str(error), error.code, error.retryable) == ("the model call took longer than 0.02 s", "timeout", True)
    assert None not in provider.deadlines  # a worker may have begun too late to call the provider


@WAYS
@pytest.mark.parametrize("kind", [Waits, AsyncWaits], ids=["call", "acall"])
def test_if_the_runs_deadline_is_earlier_the_run_ends(way: Way, kind: type[Waits]) -> None:
    result = way(agent_with(kind(), changed(timeout=1000)), limits=Limits(timeout=0.02))
    assert (result.stop_reason, isinstance(result.error, ProviderError)) == ("timeout", False)


@WAYS
@pytest.mark.parametrize("kind", [Waits, AsyncWaits], ids=["call", "acall"])
def test_only_the_call_that_timed_out_ends(way: Way, kind: type[Waits]) -> None:
    def for_one(effect: CallModel) -> Flow:
        if effect.scope == "0.a":
            return (yield effect.replace(provider=kind(), timeout=0.02))
        return (yield effect)

    first = plan(task("a", "x"), task("b", "y"), strategy="parallel")
    recorder = Recorder()
    assert way(agent_with(Script(first, "<final>fine</final>"), for_one), recorder=recorder).text == "fine"
    assert {one.scope: one.data["stop_reason"] for one in recorder.for_event("result")} == {
        "0.a": "error", "0.b": "final", "": "final",
    }  # fmt: skip


class Foreign(Provider):
    """Ignores `on_chunk` while it waits, then streams a text."""

    def __init__(self) -> None:
        self.entered, self.leave = threading.Event(), threading.Event()
        self.refused: BaseException | None = None

    def call(self, messages: Sequence[Message], model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
        self.entered.set()
        self.leave.wait(PATIENCE)
        try:
            on_chunk("late")
        except BaseException as error:
            self.refused = error
            raise
        return LlmResponse("late")


@pytest.fixture
def foreign() -> Iterator[Foreign]:
    made = Foreign()
    yield made
    made.leave.set()
    join_threads("kernai-worker")


@pytest.mark.parametrize("way", [by_aexecute, by_astream])
def test_under_asyncio_an_unresponsive_provider_is_abandoned_and_its_late_text_ignored(way: Way, foreign: Foreign) -> None:
    live: list[Event] = []

    def other(effect: CallModel) -> Flow:
        try:
            return (yield effect.replace(timeout=0.02))
        except ProviderError:
            foreign.leave.set()
            return (yield effect.replace(provider=Script(FINAL)))

    assert way(agent_with(foreign, other), on_event=live.append).text == "done"
    join_threads("kernai-worker")
    # to the provider, a run that has ended meanwhile counts as cancelled
    assert not foreign.entered.is_set() or isinstance(foreign.refused, (ProviderError, kernai.RunCancelledError))
    assert "late" not in [one.data for one in live]


class Late(Provider):
    def __init__(self, answer: LlmResponse | Exception) -> None:
        self.answer = answer

    def call(self, messages: Sequence[Message], model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
        while time.monotonic() <= on_chunk.deadline:
            pass
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("way", [by_execute, by_stream])
def test_in_threads_an_unresponsive_provider_is_waited_for(way: Way) -> None:
    assert way(agent_with(Late(LlmResponse(FINAL)), changed(timeout=0.01))).text == "done"
    result = way(agent_with(Late(OSError("broken off")), changed(timeout=0.01)))
    assert getattr(result.error, "code", None) == "timeout"
    assert isinstance(getattr(result.error, "__cause__", None), OSError)


class TimesOut(Script):
    async def acall(self, *given: Any) -> LlmResponse:
        raise TimeoutError("of the network")


@pytest.mark.parametrize("way", [by_aexecute, by_astream])
def test_a_timeout_error_of_the_provider_is_not_taken_for_that_of_the_call(way: Way) -> None:
    result = way(agent_with(TimesOut(FINAL), changed(timeout=1000)))
    assert str(result.error) == "TimesOut raised TimeoutError: of the network"


# -------------------------------------------------------------------------------------------- waiting for a retry


BUSY = MemoryReply(429, {"retry-after-ms": "10"}, b'{"error": {"code": "rate_limit_exceeded", "message": "slow down"}}')
HELLO = MemoryReply(
    200, {"content-type": "text/event-stream"},
    b'data: {"choices": [{"delta": {"content": "Hello."}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n',
)  # fmt: skip
WHY = "openai: HTTP 429 rate_limit_exceeded: slow down"


def busy_provider() -> Agent:
    transport = MemoryTransport(BUSY, BUSY, HELLO)
    return Agent(instructions="", provider=OpenAIProvider("k", transport=transport), model=Model("m"))


def busy_middleware() -> Agent:
    busy = ProviderError(WHY, retryable=True, retry_after=0.01)
    provider = kernai.MockProvider(*["Hello."] * 3).fail_on_step(0, busy).fail_on_step(1, busy)
    return Agent(instructions="", provider=provider, model=Model("m"), middleware=[retry()])


@WAYS
@pytest.mark.parametrize("make", [busy_provider, busy_middleware])
def test_a_wait_is_a_live_event_that_is_not_recorded(
    way: Way, make: Callable[[], Agent], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Event] = []
    recorder = Recorder()
    assert way(make(), on_event=seen.append, recorder=recorder).text == "Hello."
    waits = [event for event in seen if event.type == "model_waiting"]
    assert [event.data for event in waits] == [{"seconds": 0.01, "reason": WHY, "attempt": n} for n in (1, 2)]
    assert [(event.step, event.scope) for event in waits] == [(0, ""), (0, "")]
    assert not recorder.for_event("model_waiting")
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if "model.waiting" in line and "slow down" in line and "attempt=2" in line]
    caplog.set_level("ERROR", "kernai")
    store, recorder = kernai.MemoryStore(), Recorder()  # nobody watches, and the log has no warnings
    assert way(make(), store=store, run_id="r", recorder=recorder).text == "Hello."
    kept = [entry["event"] for entry in (*store.load("r"), *recorder.to_list())]
    assert "result" in kept
    assert "model_waiting" not in kept


def test_a_wait_is_logged_even_if_nobody_watches(caplog: pytest.LogCaptureFixture) -> None:
    by_execute(busy_provider())
    assert caplog.text.count("event=model.waiting") == 2


def test_a_provider_reports_usage_in_numbers_and_a_wait_with_seconds_and_a_reason() -> None:
    class Wrong(Provider):
        def call(self, messages: Any, model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
            for seconds, reason in (("1", "busy"), (1, OSError("busy"))):
                with pytest.raises(TypeError, match="waiting takes seconds"):
                    on_chunk.waiting(seconds, reason, 1)
            for wrong in (Usage(prompt_tokens=1.5), Usage(completion_tokens=True), Usage(cost=float("nan")), 5):  # type: ignore[arg-type]
                with pytest.raises((TypeError, ValueError), match=r"must be an int from 0 to|cost must be dollars|takes a Usage, got int"):
                    on_chunk.report_usage(wrong)
            return LlmResponse("Hello.")

    assert by_execute(Agent(instructions="", provider=Wrong())).text == "Hello."


def test_a_provider_does_not_wait_if_its_failed_attempt_has_used_up_a_limit() -> None:
    class Busy(Provider):
        def call(self, messages: Any, model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
            on_chunk.report_usage(Usage(9, 0, 9))
            on_chunk.attempt_failed()
            on_chunk.waiting(1, "busy", 1)
            raise AssertionError("it would wait")

    assert by_execute(Agent(instructions="", provider=Busy()), limits=Limits(max_tokens=5)).stop_reason == "max_tokens"
