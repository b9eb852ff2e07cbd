"""What vendors' SDKs of November 2026 added: fields, finish reasons and models that the older wires did not have."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

import kernai
from adapter_calls import ADAPTERS, HELLO, asked, bodies_to, body_of, replying, sent, user
from kernai import Agent, GenerationOptions, LlmResponse, Media, MemoryStore, Message, Model, ProviderError, skill
from kernai_providers import MemoryReply, MemoryTransport, OpenAIProvider, ResponsesProvider, capabilities_of, resolve
from vendor_wires import WIRES, anthropic, anthropic_text, gemini
from wire_format import Turn, sse
from wire_openai import ENCRYPTED, ResponsesWire, responses


def answered(vendor: str, body: Sequence[bytes], pieces: list[str] | None = None) -> LlmResponse:
    given = HELLO, Model("m"), GenerationOptions(), (pieces if pieces is not None else []).append
    return replying(vendor, body).call(*given)


def ran(vendor: str, body: Sequence[bytes], limits: kernai.Limits | None = None, **agent: Any) -> kernai.Result:
    given = {"instructions": "", "provider": replying(vendor, body), "model": Model("m"), **agent}
    return kernai.execute(Agent(**given), "Hi", limits=limits)


# ------------------------------------------------------------------------------------------------------ OpenAI

@pytest.mark.parametrize("name,adapter", [
    *((f"openai/{id}", ResponsesProvider) for id in (
        "o1-pro", "o3-pro-2025-06-10", "gpt-5-pro", "gpt-5.2-pro", "gpt-5.1-codex", "codex-mini-latest",
        "o4-mini-deep-research", "computer-use-preview", "gpt-5.6-cyber", "gpt-6-cyber", "gpt-6-rosalind",
        "gpt-6.2-astra-law", "gpt-daybreak-blue-latest", "gpt-daybreak-red-latest", "gpt-rosalind-research")),
    *((f"openai-responses/{id}", ResponsesProvider) for id in ("gpt-4o", "gpt-5")),
    *((f"openai/{id}", OpenAIProvider) for id in (
        "gpt-5", "gpt-4o", "o3", "o4-mini", "gpt-5-chat-latest", "gpt-6.1-sol", "gpt-6-cyberia")),
])  # fmt: skip
def test_models_that_only_the_responses_api_has_are_sent_there(name: str, adapter: type) -> None:
    provider, model = resolve(name, api_key="k")
    assert type(provider) is adapter
    assert model.id == name.partition("/")[2]
    assert provider.path(model) == ("/responses" if adapter is ResponsesProvider else "/chat/completions")


@pytest.mark.parametrize("id,effort,calls,path", [
    ("gpt-5.4", "low", "native", "responses"), ("ft:gpt-5.6-sol:acme", None, "native", "responses"),
    ("gpt-6.1-sol", "none", "native", "chat/completions"), ("gpt-6.1-sol", None, "blocks", "chat/completions"),
    ("gpt-5.3-codex", None, "blocks", "responses"),
    ("gpt-5.2", "low", "native", "chat/completions"), ("openai/gpt-6.1-sol", "low", "native", "chat/completions"),
])  # fmt: skip
def test_native_calls_of_models_that_think_go_where_openai_accepts_them(id: str, effort: Any, calls: Any, path: str) -> None:
    server, generation = MemoryTransport(MemoryReply(404), MemoryReply(404)), {"thinking": {"effort": effort}} if effort else {}
    for provider in (OpenAIProvider("k", base_url=f"https://h/v1/{path}", transport=server), resolve("azure/x", resource="r", api_key="k", transport=server)[0]):
        agent = Agent(instructions="", provider=provider, model=Model(id), skills=[], calls=calls, generation=generation)
        url = f"{provider.base_url.removesuffix('/responses')}/{path}"
        assert f"check the model's name and base_url: the request went to {url}" in str(kernai.execute(agent, "Hi").error)
        assert server.requests[-1].url == url
    assert [request.headers[name] for request, name in zip(server.requests, ("Authorization", "api-key"), strict=True)] == ["Bearer k", "k"]


@pytest.mark.parametrize("id, reasons", [("gpt-6-cyber", True), ("gpt-daybreak-blue-latest", False), ("gpt-rosalind-research", False)])
def test_named_models_that_reason_are_asked_as_such(id: str, reasons: bool) -> None:
    provider, model = resolve(f"openai/{id}", api_key="k")
    body = body_of(asked(provider, model, generation={"temperature": 0.5}))
    assert ("temperature" in body, "include" in body) == (not reasons, reasons)
    assert (capabilities_of(id) == ("text",)) is not reasons


def said(kind: str, **more: Any) -> tuple[str, Any]:
    """An event of the Responses API about the only part of its output."""
    return kind, {"item_id": "msg_1", "output_index": 0, "content_index": 0, **more}


def output(*parts: dict[str, Any]) -> list[Any]:
    return [{"type": "message", "role": "assistant", "content": list(parts)}]


def text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text}


@pytest.mark.parametrize("body,text,shown", [
    (responses(said("output_text.done", text="Hello."), output=output(text_part("Hello."))), "Hello.", ["Hello."]),
    (responses(said("output_text.done", text="Hello.")), "Hello.", ["Hello."]),
    (responses(output=output(text_part("Hel"), text_part("lo."))), "Hello.", ["Hello."]),
    (responses(said("output_text.delta", delta="Helo"), output=output(text_part("Hello."))), "Hello.", ["Helo"]),
    (responses(said("output_text.delta", delta="Helo"), said("output_text.done", text="Hello.")), "Hello.", ["Helo"]),
    (responses(said("output_text.delta", delta="Hello.")), "Hello.", ["Hello."]),
    (responses(said("output_text.delta", delta="Hello."), output=output({"type": "output_text", "text": None})), "Hello.", ["Hello."]),
])  # fmt: skip
def test_the_final_output_counts_however_it_was_streamed(body: list[bytes], text: str, shown: list[str]) -> None:
    pieces: list[str] = []
    response = answered("openai-responses", body, pieces)
    assert (response.content, pieces) == (text, shown)


@pytest.mark.parametrize("body", [
    responses(said("refusal.delta", delta="I can"), said("refusal.done", refusal="I cannot.")),
    responses(said("refusal.done", refusal="I cannot.")),
    responses(output=output({"type": "refusal", "refusal": "I cannot."})),
])
def test_a_refusal_is_recognised_in_any_position(body: list[bytes]) -> None:
    response = answered("openai-responses", body)
    assert (response.finish_reason, response.metadata["refusal"]) == ("refusal", "I cannot.")
    error = ran("openai-responses", body).error
    assert isinstance(error, ProviderError)
    assert "I cannot." in str(error)


def test_a_search_that_perplexity_runs_is_no_call_of_a_skill() -> None:
    # it is announced as a call, and ends as an item of another type
    run = {"type": "function_call", "name": "search_web", "call_id": "c", "arguments": "{}"}
    found = {"type": "search_results", "results": [{"url": "https://a.test"}]}
    said = (("output_item.added", {"output_index": 0, "item": run}), ("output_item.done", {"output_index": 0, "item": found}))
    transport = MemoryTransport(MemoryReply(200, {}, responses(*said, output=[found, *output(text_part("So."))], usage={"cost": {"total_cost": 0.5}})))
    provider, model = resolve("perplexity/sonar", api_key="k", transport=transport)
    result = kernai.execute(Agent(instructions="", provider=provider, model=model, skills=[echo], calls="native"), "Hi")
    assert (result.text, result.finish_reason, bodies_to(provider)[0]["model"]) == ("So.", "stop", "perplexity/sonar")


TALK = (Message("system", "Be brief."), user("Hello"), Message("assistant", "Hi."), user("Again"))


@pytest.mark.parametrize("vendor", ["openai", "openai-responses"])
def test_the_prompt_cache_is_keyed_by_what_all_requests_of_an_agent_share(vendor: str) -> None:
    def key(messages: Sequence[Message], model: str = "gpt-5.4", **generation: Any) -> Any:
        return sent(vendor, messages, generation, id=model).get("prompt_cache_key")

    first = key(TALK[:2], cache=True)
    assert first == key(TALK, cache=True) == key(TALK, cache="1h")
    assert first.startswith("kernai-")
    assert first != key([Message("system", "Be long."), *TALK[1:]], cache=True)
    assert first != key(TALK, "gpt-5.5", cache=True)
    assert key(TALK) is key(TALK, cache=False) is None


@pytest.mark.parametrize("model_id,takes", [("gpt-5.5", False), ("gpt-5.6-sol", True), ("gpt-6", True), ("gpt-4o", False)])
def test_models_that_take_a_lifetime_for_the_cache_get_the_longer_one(model_id: str, takes: bool) -> None:
    def body(vendor: str, cache: Any) -> Any:
        return sent(vendor, TALK, {"cache": cache}, id=model_id)

    longer = {"prompt_cache_options": {"ttl": "12h"}} if takes else {}
    assert body("openai-responses", "1h") == body("openai-responses", True) | longer
    chat, plain = body("openai", "1h"), body("openai", True)
    if takes:
        last = plain["messages"][-1]
        mark = {"mode": "explicit", "ttl": "12h"}
        last["content"] = [{"type": "text", "text": last["content"], "prompt_cache_breakpoint": mark}]
    assert chat == plain


@pytest.mark.parametrize("calls", ["blocks", "native"])
def test_the_end_of_a_prompt_with_an_image_is_its_last_part(calls: Any) -> None:
    image, provider = Media.from_bytes(b"x", mime_type="image/png"), replying("openai", WIRES["openai"].stream(["Hi"]))
    agent = Agent(instructions="x", provider=provider, model=Model("gpt-6", ("text", "vision")), calls=calls,
                  generation={"cache": "1h", "thinking": {"effort": "none"}})
    kernai.execute(agent, ["look", image, "closely"])
    system, asked = bodies_to(provider)[0]["messages"]
    assert [part["type"] for part in asked["content"]] == ["text", "image_url", "text"]
    assert ["prompt_cache_breakpoint" in part for part in [system, *asked["content"]]] == [False, False, False, True]


@pytest.mark.parametrize("vendor", ["groq", "openrouter", "mistral"])
def test_other_vendors_get_no_field_of_openais_cache(vendor: str) -> None:
    provider, model = resolve(f"{vendor}/gpt-6", api_key="k")
    assert "prompt_cache" not in json.dumps(body_of(asked(provider, model, TALK, {"cache": "1h"})))


# --------------------------------------------------------------------------------------------------- Anthropic


def test_a_fallback_block_says_which_model_answers() -> None:
    block = {"type": "fallback", "from": {"model": "claude-a"}, "to": {"model": "claude-b"}, "trigger": {"type": "refusal"}}
    body = anthropic({"type": "content_block_start", "index": 0, "content_block": block}, anthropic_text("Hi"))
    response = answered("anthropic", body)
    assert (response.content, response.model, response.metadata["model"]) == ("Hi", "claude-b", "claude-b")
    priced = Model("claude-a", cost=kernai.Cost(1.0, 1.0))
    assert ran("anthropic", body, model=priced).usage.cost is None  # the price is another model's


def test_what_anthropic_says_of_the_usage_and_the_end_is_kept() -> None:
    iterations = [{"type": "message", "input_tokens": 9, "output_tokens": 5}]
    usage = {"output_tokens_details": {"thinking_tokens": 3}, "iterations": iterations}
    details = {"type": "refusal", "category": "cyber", "explanation": "It asks for an exploit."}
    body = anthropic(stop="refusal", stop_details=details, usage=usage)
    response = answered("anthropic", body)
    kept = {name: response.metadata[name] for name in ("reasoning_tokens", "iterations", "stop_details")}
    assert kept == {"reasoning_tokens": 3, "iterations": iterations, "stop_details": details}
    error = ran("anthropic", body).error
    assert isinstance(error, ProviderError)
    assert (error.code, "It asks for an exploit." in str(error)) == ("refusal", True)


# ------------------------------------------------------------------------------------------------------ Gemini


def test_an_answer_to_be_continued_is_cut_off_and_keeps_its_token() -> None:
    body = gemini({"text": "Half"}, finish="CONTINUATION", continuationToken="dG9r")
    response = answered("gemini", body)
    assert (response.finish_reason, response.metadata["finish_reason"]) == ("length", "CONTINUATION")
    assert response.metadata["continuation_token"] == "dG9r"
    assert ran("gemini", body).truncated


# --------------------------------------------------------------------------------------------------- all of them

CITED = {"type": "web_search_result_location", "url": "https://a.test", "cited_text": "so"}
FOUND, GROUNDING = {"title": "A", "url": "https://a.test"}, {"groundingChunks": [{"web": {"uri": "https://a.test"}}]}


@pytest.mark.parametrize("vendor,body,sources", [
    ("anthropic", anthropic(anthropic_text("So."), *[{
        "type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": CITED}}] * 2), {"citations": [CITED, CITED]}),
    ("gemini", gemini({"text": "So."}, groundingMetadata=GROUNDING), {"grounding": GROUNDING}),
    ("openai-responses", responses(*[("output_item.done", {"item": {"results": [FOUND]}})] * 2, output=output(text_part("So."))), {"search_results": [FOUND, FOUND]}),
    ("openai", [sse({"choices": [], "citations": ["https://a.test"], "search_results": [FOUND]}), *WIRES["openai"].stream(["So."])],  # Perplexity's
     {"citations": ["https://a.test"], "search_results": [FOUND]}),
])
def test_the_sources_of_an_answer_are_kept(vendor: str, body: list[bytes], sources: dict[str, Any]) -> None:
    response = answered(vendor, body)
    assert (response.content, {**response.metadata, **sources}) == ("So.", response.metadata)


@skill(register=False)
def echo(text: str) -> str:
    """Gives it back."""
    return text


UNENDED: dict[str, tuple[str, list[bytes]]] = {
    "tool_calls": ("openai", WIRES["openai"].stream([], finish="tool_calls")),
    "steered": ("openai-responses", responses(why="steered")),
    "pause_turn": ("anthropic", anthropic(stop="pause_turn")),
    "compaction": ("anthropic", anthropic(stop="compaction")),
    "MALFORMED_FUNCTION_CALL": ("gemini", gemini(finish="MALFORMED_FUNCTION_CALL", finishMessage="Malformed: print(")),
    "UNEXPECTED_TOOL_CALL": ("gemini", gemini(finish="UNEXPECTED_TOOL_CALL")),
    "load": ("ollama", WIRES["ollama"].stream([], finish="load")),
}


@pytest.mark.parametrize("reason", UNENDED)
def test_an_empty_answer_that_ends_no_turn_is_an_error_with_the_vendors_reason(reason: str) -> None:
    vendor, body = UNENDED[reason]
    for skills, calls in (((), 1), ([echo], 2)):  # where it can call something it is corrected once
        result = ran(vendor, body, skills=skills or None)
        assert isinstance(result.error, ProviderError)
        assert (result.error.code, result.usage.model_calls, result.text) == (reason, calls, None)
        assert reason in str(result.error)
        assert ("print(" in str(result.error)) == (reason == "MALFORMED_FUNCTION_CALL")


@pytest.mark.parametrize("vendor", ADAPTERS)
def test_no_tokens_at_all_for_an_answer_are_an_unknown_number(vendor: str, caplog: pytest.LogCaptureFixture) -> None:
    body = WIRES[vendor].whole(Turn(("Hello.",), usage=(0, 0)))
    response = answered(vendor, body)
    assert (response.prompt_tokens, response.completion_tokens, response.total_tokens) == (None, None, None)
    result = ran(vendor, body, limits=kernai.Limits(max_tokens=10_000))
    assert (result.text, result.usage.total_tokens) == ("Hello.", None)
    assert "usage.estimated" in caplog.text


# OpenAI's Responses API: what only this wire format has.


WIRE = ResponsesWire()
PICTURE = Media.from_bytes(b"\x89PNG\r\n\x1a\n", mime_type="image/png")
PDF = Media.from_bytes(b"%PDF-1.7", mime_type="application/pdf")


def test_reasoning_is_asked_for_where_there_is_any() -> None:
    said = Message("assistant", "Hi.", reasoning=[WIRE.thought(Turn(reasoning=("hm",)))])
    for id, talk, wanted in (("gpt-5-pro", HELLO, True), ("gpt-4o", HELLO, False), ("mine", [*HELLO, said, *HELLO], True), ("gpt-4o", [*HELLO, said], False)):
        assert sent("openai-responses", talk, id=id).get("include") == (["reasoning.encrypted_content"] if wanted else None)


def test_encrypted_reasoning_goes_back_in_front_of_the_answer_it_led_to() -> None:
    turns = ('<block type="command" name="echo">a</block>', "<final>Done.</final>", "<final>Again.</final>")
    provider = replying("openai-responses", *(WIRE.whole(Turn((text,), reasoning=("hm",))) for text in turns))
    agent = Agent(instructions="", provider=provider, model=Model("gpt-5-pro"), skills=[echo])
    store = MemoryStore()
    first = kernai.execute(agent, "Go.", store=store, run_id="r")
    finished = kernai.resume(agent, "r", store=store)
    assert finished.messages == first.messages
    assert kernai.replay(agent, "r", store=store).result is not None
    kernai.resume(agent, "r", store=store, input="More.")
    thought = WIRE.thought(Turn(reasoning=("hm",)))
    assert thought["encrypted_content"] == ENCRYPTED
    last = bodies_to(provider)[-1]["input"]
    assert [item.get("type", item.get("role")) for item in last] == [
        "user", "reasoning", "assistant", "user", "reasoning", "assistant", "user"]
    assert [item for item in last if item.get("type") == "reasoning"] == [thought, thought]
