"""`LlmResponse`: what is known of a turn, and that nothing unknown is made up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

import kernai
from kernai import Agent, LlmResponse, MemoryStore, Message, MockProvider, Model, NativeCall, Provider
from kernai.values.llm_response import FINISH_REASONS


@pytest.mark.parametrize("prompt, completion, given, total", [
    (10, 5, None, 15), (0, 0, None, 0), (10, None, None, None), (None, 5, None, None), (None, None, None, None),
    (None, None, 20, 20), (10, None, 20, 20),
    (10, 5, 20, 20),  # a vendor may count more than the two, reasoning for one
])
def test_the_total_is_derived_where_both_halves_are_known(
    prompt: int | None, completion: int | None, given: int | None, total: int | None
) -> None:
    made = LlmResponse("x", prompt_tokens=prompt, completion_tokens=completion, total_tokens=given)
    assert (made.prompt_tokens, made.completion_tokens, made.total_tokens) == (prompt, completion, total)


def test_only_finish_reasons_of_the_vocabulary_are_taken() -> None:
    made = LlmResponse("text")
    assert (made.content, made.latency_ms, made.finish_reason, made.metadata) == ("text", 0, None, {})
    for reason in (*FINISH_REASONS, None):
        assert LlmResponse("x", finish_reason=reason).finish_reason == reason
    for reason in ("", "end_turn", "STOP", "max_tokens"):
        with pytest.raises(ValueError, match="finish_reason must be None or one of stop, length"):
            LlmResponse("x", finish_reason=reason)


@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens", "cache_write_tokens"])
@pytest.mark.parametrize("count", ["5", 5.0, -1, True, [5], 2**64])
def test_a_count_that_is_no_count_is_refused_by_name(name: str, count: Any) -> None:
    with pytest.raises(TypeError, match=fr"{name} must be an int from 0 to 2\*\*63, or None for unknown, got"):
        LlmResponse("x", **{name: count})


@pytest.mark.parametrize("wrong, message", [
    ({"content": None}, "content must be str, got"), ({"content": b"x"}, "content must be str, got"),
    ({"latency_ms": "5"}, "latency_ms must be a number of milliseconds, at least 0, got '5'"),
    ({"latency_ms": float("nan")}, "latency_ms must be a number"), ({"latency_ms": -1.5}, "latency_ms must be a number"),
    ({"metadata": ["id"]}, "metadata must be a mapping, got list"),
    ({"blocks": [{"type": "command"}]}, r"blocks must be a list of blocks with text as content, got \[{'type'"),
    *(({"blocks": wrong}, "blocks must be a list of") for wrong in ([NativeCall("command", "x", None)], 5, iter(()))),  # type: ignore[arg-type]
    ({"prompt_tokens": 2**63, "completion_tokens": 1}, "total_tokens must be an int from 0"),
    ({"model": Model("x")}, "model must be a model's id or None, got Model"),
    *(({"cost": cost}, "cost must be dollars") for cost in (-1, "1", True, float("inf"), float("nan"), 2**64)),
])  # fmt: skip
def test_what_a_recording_could_not_hold_is_refused_by_name(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        LlmResponse(**{"content": "x", **wrong})


def test_a_run_whose_provider_measures_in_floats_and_has_no_metadata_can_be_resumed() -> None:
    measured: Any = {"latency_ms": 5.7, "metadata": None}

    class Measures(MockProvider):
        def call(self, *given: Any) -> LlmResponse:
            return replace(super().call(*given), **measured)

    unmeasured: Any = {"latency_ms": None}
    assert LlmResponse("x", **unmeasured).latency_ms == 0
    agent, store = Agent(instructions="x", provider=Measures("one", "two")), MemoryStore()
    kernai.execute(agent, "go", store=store, run_id="r")
    assert kernai.resume(agent, "r", store=store, input="go on").text == "two"
    assert [entry["data"]["latency_ms"] for entry in store.load("r") if entry["event"] == "llm_response"] == [5, 5]


def test_a_provider_may_add_fields_and_a_constructor_of_its_own() -> None:
    @dataclass
    class Mine(LlmResponse):
        request_id: str = ""

    made = Mine("hi", prompt_tokens=1, completion_tokens=2, request_id="r")
    assert (made.total_tokens, made.request_id) == (3, "r")
    with pytest.raises(TypeError, match="prompt_tokens"):
        Mine("hi", prompt_tokens=-1)

    class Half(LlmResponse):
        def __init__(self, messages: Sequence[Message]) -> None:
            text, reason = ("One ", "length") if len(messages) == 2 else ("two", "stop")
            super().__init__(text, finish_reason=reason)

    class Halves(Provider):
        def call(self, messages: Sequence[Message], *_: Any) -> LlmResponse:
            return Half(messages)

    assert kernai.execute(Agent(instructions="", on_truncated="continue"), "Hi.", provider=Halves()).text == "One two"
