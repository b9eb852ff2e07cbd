"""Generation options on their way out: what each vendor calls them, and what is said of those that cannot be sent."""

from __future__ import annotations

import re
from typing import Any

import pytest

from asking import ADAPTERS, HELLO, asked, body_of, sent
from kernai import GenerationOptions, Model
from kernai_providers import AnthropicProvider, MemoryTransport, resolve
from kernai_providers.in_process import MemoryReply
from vendor_wires import WIRES


@pytest.mark.parametrize(
    "vendor,generation,adds",
    [
        ("openai", {"temperature": 0}, {"temperature": 0}),
        ("openai", {"thinking": {"effort": "high"}}, {"reasoning_effort": "high"}),
        ("openai", {"thinking": {"budget": 2000}}, {}),
        ("anthropic", {"temperature": 0}, {"temperature": 0}),
        ("anthropic", {"thinking": {"effort": "high"}}, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}),
        ("anthropic", {"cache": True}, {"cache_control": {"type": "ephemeral"}}),
        ("anthropic", {"cache": "1h"}, {"cache_control": {"type": "ephemeral", "ttl": "1h"}}),
        *((vendor, {"cache": False}, {}) for vendor in ADAPTERS),
        ("openai-responses", {"max_tokens": 7, "temperature": 0, "top_p": 0.5}, {"max_output_tokens": 7, "temperature": 0, "top_p": 0.5}),
        ("openai-responses", {"thinking": {"effort": "high"}}, {"reasoning": {"effort": "high"}}),
        ("openai-responses", {"thinking": {"budget": 2000}}, {}),
        ("openai-responses", {"stop": "END"}, {}),
        ("openai-responses", {"extra": {"store": True, "reasoning": {"summary": "auto"}}}, {"store": True, "reasoning": {"summary": "auto"}}),
        *((vendor, {"cache": True}, {}) for vendor in ("gemini", "ollama")),
        ("openai", {"stop": ["END", "\n\n"]}, {"stop": ["END", "\n\n"]}),
        ("anthropic", {"stop": "END"}, {"stop_sequences": ["END"]}),
        ("gemini", {"stop": ("END",)}, {"generationConfig": {"stopSequences": ["END"]}}),
        ("ollama", {"stop": "END"}, {"options": {"stop": ["END"]}}),
        ("anthropic", {"thinking": {"budget": 1024}}, {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 5120}),
        ("anthropic", {"thinking": {"budget": 1024}, "max_tokens": 1025}, {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1025}),
        ("gemini", {"temperature": 0}, {"generationConfig": {"temperature": 0}}),
        ("gemini", {"thinking": {"effort": "high"}}, {"generationConfig": {"thinkingConfig": {"thinkingLevel": "high"}}}),
        ("gemini", {"thinking": {"budget": 0}}, {"generationConfig": {"thinkingConfig": {"thinkingBudget": 0}}}),
        ("gemini", {"thinking": {"budget": -1}}, {"generationConfig": {"thinkingConfig": {"thinkingBudget": -1}}}),
        ("ollama", {"temperature": 0}, {"options": {"temperature": 0}}),
        ("ollama", {"thinking": {"effort": "low"}}, {"think": "low"}),
        ("ollama", {"thinking": {"budget": 2000}}, {"think": True}),
    ],
)
def test_options_are_called_as_the_vendor_calls_them(vendor: str, generation: Any, adds: dict[str, Any]) -> None:
    assert sent(vendor, generation=generation) == sent(vendor) | adds


ADAPTIVE_ALONE = ("claude-opus-4-7", "claude-opus-4-8", "claude-opus-5", "claude-sonnet-5-5", "anthropic/claude-haiku-5.5")
BY_BUDGET = ("claude-sonnet-4-5", "claude-haiku-4-5-20251001", "claude-opus-4-20250514", "claude-3-7-sonnet-20250219")


@pytest.mark.parametrize(
    "vendor,id,generation,left",
    [
        *(("anthropic", id, {"temperature": 0.5, "top_p": 0.9, "max_tokens": 9}, {"max_tokens": 9}) for id in ADAPTIVE_ALONE),
        *(("openai", id, {"temperature": 0.5, "stop": "x"}, {"stop": ["x"]}) for id in ("gpt-5", "o3", "gpt-6.1-sol")),
        *(("openai-responses", id, {"temperature": 0.5, "stop": "x"}, {}) for id in ("gpt-5", "o3-pro", "gpt-6.1-sol")),
    ],
)  # fmt: skip
def test_sampling_options_that_a_model_refuses_are_not_sent(vendor: str, id: str, generation: Any, left: Any) -> None:
    assert sent(vendor, generation=generation, id=id) == sent(vendor, id=id) | left


@pytest.mark.parametrize(
    "vendor,id,generation",
    [
        *(("anthropic", id, {"temperature": 0.5}) for id in (*BY_BUDGET, "claude-opus-4-6", "claude-sonnet-4-6", "other")),
        *(("openai", id, {"temperature": 0.5}) for id in ("gpt-4o", "gpt-5-chat-latest", "gpt-5.3-chat-latest")),
        *((vendor, "gpt-5.2", {"temperature": 0.5, "thinking": {"effort": "none"}}) for vendor in ("openai", "openai-responses")),
        ("openai-responses", "gpt-4o", {"temperature": 0.5}),
    ],
)  # fmt: skip
def test_sampling_options_are_sent_to_every_other_model(vendor: str, id: str, generation: Any) -> None:
    assert sent(vendor, generation=generation, id=id)["temperature"] == 0.5


def test_a_response_says_what_was_not_sent() -> None:
    wire = WIRES["anthropic"]
    transport = MemoryTransport(MemoryReply(200, {"content-type": "text/event-stream"}, wire.stream(["Hi"])))
    provider = AnthropicProvider("k", transport=transport)
    answer = provider.call(HELLO, Model("claude-opus-5"), GenerationOptions(temperature=0.5), print)
    assert answer.metadata["not_sent"] == ["temperature"]
    assert "not_sent" not in provider.call(HELLO, Model("claude-opus-5"), GenerationOptions(), print).metadata


@pytest.mark.parametrize(
    "id,thinking,says",
    [
        *((id, {"budget": 2000}, "takes no thinking budget") for id in ADAPTIVE_ALONE),
        *((id, {"effort": "high"}, "has no adaptive thinking") for id in BY_BUDGET),
    ],
)
def test_thinking_of_another_generation_of_models_is_an_error_that_names_the_other_way(
    id: str, thinking: Any, says: str
) -> None:
    provider = AnthropicProvider("k", transport=MemoryTransport(MemoryReply(400)))
    with pytest.raises(ValueError, match=says):
        provider.call(HELLO, Model(id), GenerationOptions(thinking=thinking), print)


@pytest.mark.parametrize(
    "id,name",
    [
        *((one, "max_completion_tokens") for one in (
            "o1", "o1-mini", "o1-pro", "o3", "o3-mini", "o4-mini", "o4-mini-2025-04-16", "gpt-5", "gpt-5-mini", "gpt-5.1",
            "openai/gpt-5", "ft:o4-mini-2025-04-16:acme::Ab1")),
        *((one, "max_tokens") for one in (
            "gpt-4o", "gpt-4.1-mini", "gpt-3.5-turbo", "gpt-4", "ft:gpt-4o-2024-08-06:acme::o1", "gpt-oss-120b", "o1x", "solo1")),
    ],
)  # fmt: skip
def test_openai_reasoning_models_get_the_new_name_of_the_limit(id: str, name: str) -> None:
    body = sent("openai", generation={"max_tokens": 7}, id=id)
    assert {one: body[one] for one in body if "tokens" in one} == {name: 7}


@pytest.mark.parametrize("name,limit", [("azure", "max_completion_tokens"), ("groq", "max_tokens"), ("openrouter", "max_tokens")])
def test_other_vendors_kept_the_old_name(name: str, limit: str) -> None:
    needs: dict[str, Any] = {"resource": "acme"} if name == "azure" else {}
    provider, model = resolve(f"{name}/o3", api_key="k", **needs)
    body = body_of(asked(provider, model, generation={"max_tokens": 7}))
    assert {one: body[one] for one in body if "tokens" in one} == {limit: 7}


@pytest.mark.parametrize(
    "generation,says",
    [
        ({"thinking": {"budget": 1023}}, "generation.thinking budget must be at least 1024 tokens, got 1023"),
        ({"thinking": {"budget": 4096}, "max_tokens": 4096}, "generation.thinking budget (4096) must be below max_tokens (4096)"),
    ],
)
def test_a_thinking_budget_that_anthropic_refuses_is_an_error_before_anything_is_sent(generation: Any, says: str) -> None:
    transport = MemoryTransport(MemoryReply(400))
    provider = AnthropicProvider("k", transport=transport)
    with pytest.raises(ValueError, match=re.escape(says)):
        provider.call(HELLO, Model("m"), GenerationOptions.coerce(generation), print)
    assert transport.requests == ()


@pytest.mark.parametrize("vendor", ADAPTERS)
def test_extra_is_laid_over_the_body_as_it_is(vendor: str) -> None:
    extra = {"model": "other", "stop": ["x", None, {"deep": [1.5, True]}], "temperature": None, "messages": [], "contents": []}
    body = sent(vendor, generation={"temperature": 0.5, "extra": extra})
    plain = sent(vendor, generation={"temperature": 0.5})
    assert body == plain | extra
    assert list(body)[: len(plain)] == list(plain)


@pytest.mark.parametrize("vendor,group", [("gemini", "generationConfig"), ("ollama", "options")])
def test_a_group_of_options_in_extra_adds_to_the_group_and_wins_over_it(vendor: str, group: str) -> None:
    def grouped(extra: Any, **generation: Any) -> Any:
        return sent(vendor, generation={**generation, "extra": {group: extra}})[group]

    assert grouped({"seed": 1}, temperature=0.5) == {"temperature": 0.5, "seed": 1}
    assert grouped({"temperature": 1, "seed": 1}, temperature=0.5) == {"temperature": 1, "seed": 1}
    assert grouped({"seed": 1}) == {"seed": 1}
    assert grouped(None, temperature=0.5) is None
    mine = {group: {"seed": 1}}
    sent(vendor, generation={"temperature": 0.5, "extra": mine})
    assert mine == {group: {"seed": 1}}


def deep(levels: int) -> Any:
    data: Any = []
    for _ in range(levels):
        data = [data]
    return data


def circle() -> Any:
    data: list[Any] = []
    data.append(data)
    return data


@pytest.mark.parametrize("vendor", ADAPTERS)
@pytest.mark.parametrize(
    "generation,names",
    [
        ({"extra": {"x": object()}}, "extra"),
        ({"extra": {"x": {1, 2}}}, "extra"),
        ({"extra": {"x": b"bytes"}}, "extra"),
        ({"extra": {("a", "b"): 1}}, "extra"),
        ({"extra": {"x": float("nan")}}, "extra"),
        ({"extra": {"x": circle()}}, "extra"),
        ({"extra": {"x": deep(100_000)}}, "extra"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": float("inf")}, "top_p"),
    ],
    ids=["object", "set", "bytes", "tuple as a key", "NaN", "circle", "deep", "temperature", "top_p"],
)
def test_what_json_cannot_say_is_an_error_that_names_the_option(vendor: str, generation: Any, names: str) -> None:
    transport = MemoryTransport(MemoryReply(400))
    provider = ADAPTERS[vendor]("k", transport=transport)
    with pytest.raises(ValueError, match=names):
        provider.call(HELLO, Model("m"), GenerationOptions.coerce(generation), print)
    assert transport.requests == ()
