"""What a call costs, by usage as the vendors send it, by the formulas on their price pages, and by a list of prices."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from typing import Any

import pytest

import kernai
from adapter_calls import ADAPTERS, replying
from kernai import Agent, Cost, MemoryStore, Model, Recorder, Result, Usage
from kernai_providers import VENDORS, MemoryReply, MemoryTransport, resolve
from kernai_providers.reader import Reader
from tests.ways import by_aexecute, by_execute
from vendor_wires import WIRES, anthropic, anthropic_text, gemini, ollama
from wire_format import Turn
from wire_openai import OpenAIWire, responses

RATES = Cost(3.0, 15.0, cache_read=0.3, cache_write=3.75)

NO_CHARGES: tuple[Any, ...] = (None, True, -1, "0.5", [], {}, float("inf"), float("nan"), 10**400)


def chat(prompt: int, completion: int, **more: Any) -> tuple[str, dict[str, Any]]:
    return "openai", {"prompt_tokens": prompt, "completion_tokens": completion, **more}


#: vendor and usage as it is sent, and dollars per million by the vendor's own way to count
BILLS: dict[str, tuple[tuple[str, dict[str, Any]], float]] = {
    "OpenAI, cached": (chat(10_000, 200, total_tokens=10_200, prompt_tokens_details={"cached_tokens": 9000}), 1000 * 3 + 9000 * 0.3 + 200 * 15),
    "OpenAI, reasoning is in the completion": (
        chat(100, 500, total_tokens=600, completion_tokens_details={"reasoning_tokens": 400}), 100 * 3 + 500 * 15),
    "xAI, reasoning beside the completion": (
        chat(100, 50, total_tokens=550, completion_tokens_details={"reasoning_tokens": 400}), 100 * 3 + 450 * 15),
    "DeepSeek, hits and misses": (
        chat(1000, 10, total_tokens=1010, prompt_cache_hit_tokens=900, prompt_cache_miss_tokens=100), 900 * 0.3 + 100 * 3 + 10 * 15),
    "Moonshot": (chat(1000, 10, cached_tokens=512), 512 * 0.3 + 488 * 3 + 150),
    "OpenRouter, read and written": (
        chat(1000, 10, prompt_tokens_details={"cached_tokens": 600, "cache_write_tokens": 300}), 100 * 3 + 600 * 0.3 + 300 * 3.75 + 150),
    "OpenRouter says what it charged": (chat(194, 2, cost=0.95, is_byok=False, cost_details={"upstream_inference_cost": 0.9}), 950_000),
    "OpenRouter, on the user's own key": (chat(100, 2, cost=0.0, is_byok=True), 100 * 3 + 2 * 15),
    "Perplexity, a fee for each request": (
        chat(9, 100, cost={"input_tokens_cost": 0.00001, "request_cost": 0.005, "total_cost": 0.00511}), 5110),
    **{f"a charge that is none: {cost!s:.9}": (chat(10, 2, cost=cost), 60) for cost in NO_CHARGES},
    "OpenRouter, Responses": (("openai-responses", {"input_tokens": 10, "output_tokens": 2, "cost": 0.25}), 250_000),
    "Responses, hits beside the details": (("openai-responses", {"input_tokens": 10, "output_tokens": 2, "prompt_cache_hit_tokens": 4}), 6 * 3 + 4 * 0.3 + 30),
    "Responses": (
        ("openai-responses", {
            "input_tokens": 10_000, "input_tokens_details": {"cached_tokens": 8000, "cache_write_tokens": 1000},
            "output_tokens": 300, "output_tokens_details": {"reasoning_tokens": 250}, "total_tokens": 10_300}),
        1000 * 3 + 8000 * 0.3 + 1000 * 3.75 + 300 * 15),
    "Anthropic": (
        ("anthropic", {"input_tokens": 50, "cache_creation_input_tokens": 2000, "cache_read_input_tokens": 9000, "output_tokens": 120}),
        50 * 3 + 2000 * 3.75 + 9000 * 0.3 + 120 * 15),
    "Gemini, thoughts and tools": (
        ("gemini", {
            "promptTokenCount": 5000, "cachedContentTokenCount": 4000, "candidatesTokenCount": 100,
            "thoughtsTokenCount": 300, "toolUsePromptTokenCount": 50, "totalTokenCount": 5450}),
        1050 * 3 + 4000 * 0.3 + 400 * 15),
    "Gemini, thoughts alone": (
        ("gemini", {"promptTokenCount": 10, "thoughtsTokenCount": 300, "totalTokenCount": 310}), 10 * 3 + 300 * 15),
    "Ollama": (("ollama", {"prompt_eval_count": 26, "eval_count": 290}), 26 * 3 + 290 * 15),
}  # fmt: skip


def stream_with(vendor: str, usage: dict[str, Any]) -> list[bytes]:
    """The vendor's stream of a short answer with this usage."""
    said = ("output_text.delta", {"output_index": 0, "content_index": 0, "delta": "Hi"})
    return {
        "openai": lambda: OpenAIWire().deltas({"content": "Hi"}, finish="stop", usage=usage),
        "openai-responses": lambda: responses(said, usage=usage),
        "anthropic": lambda: anthropic(
            anthropic_text("Hi"), start=usage, usage={"output_tokens": usage["output_tokens"]}),
        "gemini": lambda: gemini({"text": "Hi"}, usage=usage),
        "ollama": lambda: ollama({"content": "Hi"}, **usage),
    }[vendor]()


@pytest.mark.parametrize("name", BILLS)
def test_the_cost_follows_the_vendors_formula(name: str) -> None:
    (vendor, usage), millionths = BILLS[name]
    provider = replying(vendor, stream_with(vendor, usage))
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


# What a call had used before it was cancelled or failed: whatever the vendor had said by then counts.


MODEL = Model("m", cost=(2.0, 10.0, 0.5, 3.0))


def events_of(vendor: str) -> list[bytes]:
    return WIRES[vendor].whole(Turn(("Hel", "lo"), usage=(900, 60)))


def known(vendor: str, events: list[bytes]) -> Usage | None:
    reader: Reader = ADAPTERS[vendor]("k").reader()
    reader.begin({"content-type": WIRES[vendor].media_type})
    for event in events:
        reader.feed(event)
    return reader.usage


ENDS = (by_execute, "cancelled"), (by_execute, "cut"), (by_aexecute, "cancelled")
#: each vendor's stream ends in each way; which event is the last one makes no difference to how it ends
CUTS = [(vendor, at, *ENDS[at % 3]) for vendor in ADAPTERS for at in range(len(events_of(vendor)))]


@pytest.mark.parametrize("vendor,at,run,how", CUTS)
def test_a_run_that_ends_in_any_event_of_a_stream_keeps_what_was_reported(
    vendor: str, at: int, run: Callable[..., Result], how: str
) -> None:
    events, cancel, recorder = events_of(vendor), threading.Event(), Recorder()

    def pieces() -> Iterator[bytes]:
        yield from events[:at]
        if how == "cut":
            return
        cancel.set()
        yield b": nothing\n\n" if vendor != "ollama" else b"\n"

    agent = Agent(instructions="", provider=replying(vendor, pieces()), model=MODEL)
    result = run(agent, recorder=recorder, cancel=cancel)
    assert result.stop_reason == ("error" if how == "cut" else "cancelled")
    expected = known(vendor, events[:at])
    (failed,) = recorder.for_event("model_failed")
    if expected is None:
        assert (result.usage, failed.data["prompt_tokens"]) == (Usage(), None)
        return
    assert (result.usage.prompt_tokens, result.usage.completion_tokens, result.usage.cached_tokens) == (
        expected.prompt_tokens, expected.completion_tokens, expected.cached_tokens)
    assert (result.usage.model_calls, result.usage.cost) == (1, failed.data["cost"])
    assert failed.data["prompt_tokens"] == expected.prompt_tokens
    assert result.usage.cost is not None
    assert recorder.token_usage() == result.usage


def test_the_usage_of_a_retried_attempt_is_counted_and_recorded() -> None:
    """Anthropic counts the prompt in its first event; then it is overloaded, and the adapter asks again."""
    wire = WIRES["anthropic"]
    head = {"content-type": "text/event-stream"}
    failing = [*wire.opening(Turn(usage=(1200, 0))), *wire.errors()["overloaded_error"]]
    transport = MemoryTransport(
        MemoryReply(200, {**head, "retry-after-ms": "1"}, failing),
        MemoryReply(200, head, wire.whole(Turn(("Hello",), usage=(1200, 30)))),
    )
    provider = ADAPTERS["anthropic"]("k", transport=transport)
    store, recorder = MemoryStore(), Recorder()
    agent = Agent(instructions="", provider=provider, model=MODEL)
    result = kernai.execute(agent, "Hi.", store=store, run_id="r", recorder=recorder)
    assert (result.text, len(transport.requests)) == ("Hello", 2)
    (event,) = recorder.for_event("llm_response")
    assert event.data["prompt_tokens"] == 1200
    assert event.data["given_up"]["prompt_tokens"] == 1200
    assert (result.usage.prompt_tokens, result.usage.model_calls) == (2400, 2)
    assert recorder.token_usage() == result.usage
    replayed = kernai.replay(agent, "r", store=store).result
    assert replayed is not None
    assert replayed.usage == result.usage
    provider.transport = transport = MemoryTransport(MemoryReply(200, head, failing))
    result = kernai.execute(agent, "Hi.", limits=kernai.Limits(max_tokens=1000))  # used up: no further attempt
    assert (result.stop_reason, result.usage.prompt_tokens, len(transport.requests)) == ("max_tokens", 1200, 1)


# Prices from the list of genai-prices, which is data that ages.


@pytest.fixture
def prices() -> Any:
    pytest.importorskip("genai_prices", reason="prices need pip install genai-prices")
    return importlib.import_module("kernai_providers.prices")


def test_a_price_is_that_of_the_list_and_says_of_which_day(prices: Any) -> None:
    price = prices.price_of("anthropic/claude-sonnet-4-5", now=datetime(2026, 11, 24, tzinfo=UTC))
    assert isinstance(price, prices.Price)
    assert (price.cost.input, price.cost.output, price.cost.cache_read, price.cost.cache_write) == (3.0, 15.0, 0.3, 3.75)
    assert date(2026, 1, 1) < price.as_of <= datetime.now(UTC).date()
    assert price.source.startswith("genai-prices ")
    provider, model = resolve("anthropic/claude-sonnet-4-5", api_key="k", cost=price.cost)
    assert model.cost == price.cost
    provider.close()


def test_a_price_by_the_length_of_the_prompt_says_that_it_is_the_lowest(prices: Any) -> None:
    names = ("gemini/gemini-2.5-pro", "gemini/models/gemini-2.5-pro", "vertex/google/gemini-2.5-pro", "openai/gpt-4o-mini")
    price, *same, other = (prices.price_of(name, now=datetime(2026, 11, 24, tzinfo=UTC)) for name in names)
    assert (price.is_tiered, other.is_tiered, price.cost.input) == (True, False, 1.25)
    assert same == [price, price]


def test_a_list_that_was_downloaded_is_of_the_day_of_the_download(prices: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from genai_prices.data_snapshot import DataSnapshot, get_snapshot

    day = datetime(2031, 2, 3, tzinfo=UTC)
    updated = DataSnapshot(providers=get_snapshot().providers, from_auto_update=True, timestamp=day)
    monkeypatch.setattr(prices, "get_snapshot", lambda: updated)
    assert prices.price_of("openai/gpt-4o").as_of == day.date()


@pytest.mark.parametrize("name", ["openai/gpt-99-nobody", "ollama/llama3.2", "local/x", "smollm2/135m", "gguf//m.gguf"])
def test_a_model_that_is_not_in_the_list_has_no_price(prices: Any, name: str) -> None:
    assert prices.price_of(name) is None


def test_most_vendors_are_found_in_the_list(prices: Any) -> None:
    from genai_prices.data_snapshot import get_snapshot

    known = {provider.id for provider in get_snapshot().providers}
    ours = {prices._VENDORS.get(vendor.name, vendor.name) for vendor in VENDORS}
    assert ours - known <= {"ollama", "local", "vercel", "deepinfra"}


@pytest.mark.parametrize("module, missing", [("prices", "genai_prices"), ("httpx_transport", "httpx")])
def test_without_its_package_the_import_says_what_to_install(module: str, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == missing] + [missing]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"kernai_providers.{module}", raising=False)
    with pytest.raises(ImportError, match=rf'pip install "kernai\[{module.partition("_")[0]}\]"'):
        importlib.import_module(f"kernai_providers.{module}")
