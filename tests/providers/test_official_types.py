"""The vendors' own clients: their types read what our loopback servers send, and take what our adapters send.

Each is skipped where that client is not installed: the dependency group `sdks`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import TypeAdapter

from asking import ADAPTERS, asked, body_of, user
from kernai import Media, Message, Model
from vendor_wires import WIRES, Turn
from wire_format import data_of

PICTURE = Media.from_bytes(b"\x89PNG\r\n\x1a\n", mime_type="image/png")
PDF = Media.from_bytes(b"%PDF-1.7", mime_type="application/pdf")
THOUGHT = WIRES["openai-responses"].thought(Turn(reasoning=("hm",)))  # type: ignore[attr-defined]  # it has one
TALK = (
    Message("system", "Be brief."), user("Look:", PICTURE, PDF), Message("assistant", "I see.", reasoning=[THOUGHT]),
    user("What?"),
)  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "openai": {"max_tokens": 5000, "temperature": 0.5, "top_p": 0.9, "stop": ["END"]},
    "openai-responses": {"max_tokens": 5000, "thinking": {"effort": "high"}},
    "anthropic": {"max_tokens": 5000, "thinking": {"effort": "high"}, "stop": ["END"], "cache": "1h"},
    "gemini": {"max_tokens": 5000, "temperature": 0.5, "stop": ["END"], "thinking": {"budget": 2000}},
    "ollama": {"max_tokens": 5000, "temperature": 0.5, "stop": ["END"], "thinking": {"effort": "high"}},
}
MODELS = {"openai": "gpt-4o", "openai-responses": "gpt-5-pro", "anthropic": "claude-opus-5"}
Check = Callable[[Any], object]


def whole(kind: Any) -> Check:
    """A check that leaves nothing for later: pydantic looks at what is iterable only when it is iterated."""
    adapter = TypeAdapter(kind)

    def look(value: Any) -> None:
        if isinstance(value, dict):
            value = value.values()
        elif not isinstance(value, list) and not hasattr(value, "__next__"):
            return
        for one in value:
            look(one)

    return lambda data: look(adapter.validate_python(data))


def of_openai() -> tuple[Check, Check]:
    types = pytest.importorskip("openai.types.chat")
    from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming

    return types.ChatCompletionChunk.model_validate, whole(CompletionCreateParamsStreaming)


def of_responses() -> tuple[Check, Check]:
    types = pytest.importorskip("openai.types.responses")
    from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

    return (
        TypeAdapter(types.ResponseStreamEvent).validate_python,
        whole(ResponseCreateParamsStreaming),
    )


def of_anthropic() -> tuple[Check, Check]:
    types = pytest.importorskip("anthropic.types")
    from anthropic.types.message_create_params import MessageCreateParamsStreaming

    event = TypeAdapter(types.RawMessageStreamEvent)
    return (
        lambda data: data["type"] == "ping" or event.validate_python(data),  # which their client passes over
        whole(MessageCreateParamsStreaming),
    )


def of_gemini() -> tuple[Check, Check]:
    types = pytest.importorskip("google.genai.types")

    def request(body: Any) -> None:
        for content in (*body["contents"], body["systemInstruction"]):
            types.Content.model_validate(content)
        types.GenerationConfig.model_validate(body["generationConfig"])

    return types.GenerateContentResponse.model_validate, request


def of_ollama() -> tuple[Check, Check]:
    ollama = pytest.importorskip("ollama")
    from ollama._types import ChatRequest

    return ollama.ChatResponse.model_validate, ChatRequest.model_validate


OFFICIAL = {
    "openai": of_openai, "openai-responses": of_responses, "anthropic": of_anthropic, "gemini": of_gemini,
    "ollama": of_ollama,
}  # fmt: skip


def official(vendor: str) -> tuple[Check, Check]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs to mend
        return OFFICIAL[vendor]()


@pytest.mark.slow
@pytest.mark.parametrize("vendor", OFFICIAL)
def test_the_vendors_own_types_read_what_our_servers_send(vendor: str) -> None:
    read, _ = official(vendor)
    for turn in (Turn(("Hel", "lo"), reasoning=("hm",)), Turn(), Turn(("Hel",), finish="length"), Turn(("x",), usage=None)):
        events = [data_of(event) for event in WIRES[vendor].whole(turn)]
        for data in filter(None, events):
            if vendor == "anthropic" and turn.usage is None:
                continue  # there it is always sent
            read(data)


@pytest.mark.slow
@pytest.mark.parametrize("vendor", OFFICIAL)
def test_the_vendors_own_types_take_what_our_adapters_send(vendor: str) -> None:
    _, take = official(vendor)
    model = Model(MODELS.get(vendor, "model-1"), ("text", "vision", "document_in"))
    body = body_of(asked(ADAPTERS[vendor]("k"), model, TALK, OPTIONS[vendor]))
    take(body)
    assert (THOUGHT["encrypted_content"] in str(body)) == (vendor == "openai-responses")
    take(body_of(asked(ADAPTERS[vendor]("k"), model, TALK, {"max_tokens": 10} if vendor != "gemini" else OPTIONS[vendor])))
