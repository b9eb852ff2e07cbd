"""What a call costs, by usage as the vendors send it and by the formulas on their price pages."""

from __future__ import annotations

import json
from typing import Any

import pytest

import kernai
from asking import ADAPTERS
from kernai import Agent, Cost, Model
from kernai_providers import MemoryReply, MemoryTransport
from vendor_wires import WIRES

RATES = Cost(3.0, 15.0, cache_read=0.3, cache_write=3.75)

NO_CHARGES: tuple[Any, ...] = (None, True, -1, "0.5", [], {}, float("inf"), float("nan"), 10**400)

#: vendor, usage as it is sent, and dollars per million by the vendor's own way to count
BILLS: dict[str, tuple[str, dict[str, Any], float]] = {
    "OpenAI, nothing cached": ("openai", {"prompt_tokens": 1000, "completion_tokens": 200, "total_tokens": 1200}, 1000 * 3 + 200 * 15),
    "OpenAI, cached": (
        "openai",
        {"prompt_tokens": 10_000, "completion_tokens": 200, "total_tokens": 10_200, "prompt_tokens_details": {"cached_tokens": 9000}},
        1000 * 3 + 9000 * 0.3 + 200 * 15,
    ),
    "OpenAI, reasoning is in the completion": (
        "openai",
        {"prompt_tokens": 100, "completion_tokens": 500, "total_tokens": 600, "completion_tokens_details": {"reasoning_tokens": 400}},
        100 * 3 + 500 * 15,
    ),
    "xAI, reasoning beside the completion": (
        "openai",
        {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 550, "completion_tokens_details": {"reasoning_tokens": 400}},
        100 * 3 + 450 * 15,
    ),
    "DeepSeek, hits and misses": (
        "openai",
        {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010, "prompt_cache_hit_tokens": 900, "prompt_cache_miss_tokens": 100},
        900 * 0.3 + 100 * 3 + 10 * 15,
    ),
    "Moonshot": ("openai", {"prompt_tokens": 1000, "completion_tokens": 10, "cached_tokens": 512}, 512 * 0.3 + 488 * 3 + 150),
    "OpenRouter, read and written": (
        "openai",
        {"prompt_tokens": 1000, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 600, "cache_write_tokens": 300}},
        100 * 3 + 600 * 0.3 + 300 * 3.75 + 150,
    ),
    "OpenRouter says what it charged": (
        "openai",
        {"prompt_tokens": 194, "completion_tokens": 2, "cost": 0.95, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.9}},
        950_000,
    ),
    "OpenRouter, on the user's own key": ("openai", {"prompt_tokens": 100, "completion_tokens": 2, "cost": 0.0, "is_byok": True}, 100 * 3 + 2 * 15),
    "Perplexity, a fee for each request": (
        "openai",
        {"prompt_tokens": 9, "completion_tokens": 100, "cost": {"input_tokens_cost": 0.00001, "request_cost": 0.005, "total_cost": 0.00511}},
        5110,
    ),
    **{
        f"a charge that is none: {cost!s:.9}": ("openai", {"prompt_tokens": 10, "completion_tokens": 2, "cost": cost}, 60)
        for cost in NO_CHARGES
    },
    "OpenRouter, Responses": ("openai-responses", {"input_tokens": 10, "output_tokens": 2, "cost": 0.25}, 250_000),
    "Responses": (
        "openai-responses",
        {
            "input_tokens": 10_000, "input_tokens_details": {"cached_tokens": 8000, "cache_write_tokens": 1000},
            "output_tokens": 300, "output_tokens_details": {"reasoning_tokens": 250}, "total_tokens": 10_300,
        },
        1000 * 3 + 8000 * 0.3 + 1000 * 3.75 + 300 * 15,
    ),
    "Anthropic": (
        "anthropic",
        {"input_tokens": 50, "cache_creation_input_tokens": 2000, "cache_read_input_tokens": 9000, "output_tokens": 120},
        50 * 3 + 2000 * 3.75 + 9000 * 0.3 + 120 * 15,
    ),
    "Gemini, thoughts and tools": (
        "gemini",
        {
            "promptTokenCount": 5000, "cachedContentTokenCount": 4000, "candidatesTokenCount": 100,
            "thoughtsTokenCount": 300, "toolUsePromptTokenCount": 50, "totalTokenCount": 5450,
        },
        1050 * 3 + 4000 * 0.3 + 400 * 15,
    ),
    "Gemini, thoughts alone": (
        "gemini", {"promptTokenCount": 10, "thoughtsTokenCount": 300, "totalTokenCount": 310}, 10 * 3 + 300 * 15,
    ),
    "Ollama": ("ollama", {"prompt_eval_count": 26, "eval_count": 290}, 26 * 3 + 290 * 15),
}  # fmt: skip


def stream_with(vendor: str, usage: dict[str, Any]) -> list[bytes]:
    """The vendor's stream of a short answer, with the usage replaced."""
    wire = WIRES[vendor]
    body = []
    for event in wire.stream(["Hi"]):
        text = event.decode()
        start = text.find("{")
        if start < 0 or "DONE" in text:
            body.append(event)
            continue
        data, end = json.JSONDecoder().raw_decode(text[start:])
        for holder in (data, data.get("message"), data.get("response")):
            if isinstance(holder, dict) and isinstance(holder.get("usage"), dict):
                holder["usage"] = usage if vendor != "anthropic" or "message" in data else {"output_tokens": usage["output_tokens"]}
        if "usageMetadata" in data:
            data["usageMetadata"] = usage
        if "eval_count" in data:
            data |= usage
        body.append((text[:start] + json.dumps(data) + text[start + end :]).encode())
    return body


@pytest.mark.parametrize("name", BILLS)
def test_the_cost_follows_the_vendors_formula(name: str) -> None:
    vendor, usage, millionths = BILLS[name]
    kind = "application/x-ndjson" if vendor == "ollama" else "text/event-stream"
    transport = MemoryTransport(MemoryReply(200, {"content-type": kind}, stream_with(vendor, usage)))
    provider = ADAPTERS[vendor]("k", transport=transport)
    agent = Agent(instructions="", provider=provider, model=Model("m", cost=RATES))
    result = kernai.execute(agent, "Hi.")
    assert result.text == "Hi"
    assert result.usage.cost == pytest.approx(millionths / 1_000_000, abs=1e-7)
    assert result.usage.prompt_tokens is not None
    assert (result.usage.cached_tokens or 0) + (result.usage.cache_write_tokens or 0) <= result.usage.prompt_tokens


def test_a_rate_that_is_not_given_is_that_of_the_prompt() -> None:
    assert Cost(2.0, 10.0).of(1000, 100, cached=500, written=300) == pytest.approx(0.003)
    assert Cost(2.0, 10.0, cache_read=0.0).of(1000, 0, cached=1000) == 0
    assert Model("m", cost=(2.0, 10.0, 0.5, None)).cost == Cost(2.0, 10.0, 0.5)  # type: ignore[arg-type]  # as a Cost


@pytest.mark.parametrize("cost", [(1,), (1, 2, 3), (1, 2, 3, 4, 5), (1, None), (-1, 2), ("1", 2), (1, float("inf")), (1, True)])
def test_a_price_that_is_none_is_refused(cost: Any) -> None:
    with pytest.raises(ValueError, match="cost must be Cost"):
        Model("m", cost=cost)
