"""Asks a provider once and gives the request: for tests of what is sent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from kernai import GenerationOptions, Message, Model, ProviderError
from kernai_providers import (
    AnthropicProvider,
    GeminiProvider,
    HttpProvider,
    MemoryTransport,
    OllamaProvider,
    OpenAIProvider,
    Request,
    ResponsesProvider,
)
from kernai_providers.in_process import MemoryReply

ADAPTERS: dict[str, type[HttpProvider]] = {
    "openai": OpenAIProvider, "openai-responses": ResponsesProvider, "anthropic": AnthropicProvider,
    "gemini": GeminiProvider, "ollama": OllamaProvider,
}  # fmt: skip


def user(*content: Any) -> Message:
    return Message("user", content)


HELLO = (user("Hello"),)


def asked(
    provider: HttpProvider, model: Model | None = None, messages: Sequence[Message] = HELLO, generation: Any = None
) -> Request:
    """The one request of a call that the vendor refuses at once."""
    transport = MemoryTransport(MemoryReply(400))
    provider.transport = transport
    options = GenerationOptions.coerce(generation)
    with pytest.raises(ProviderError):
        provider.call(messages, model if model is not None else Model("m"), options, lambda piece: None)
    (request,) = transport.requests
    assert transport.open_responses == 0
    return request


def body_of(request: Request) -> Any:
    """The body, read as strictly as any vendor may: no other bytes than UTF-8, no NaN, no name twice."""
    return json.loads(request.body.decode("utf-8"), parse_constant=pytest.fail, object_pairs_hook=_once)


def sent(vendor: str, messages: Sequence[Message] = HELLO, generation: Any = None, **model: Any) -> Any:
    """The body that one of the adapters sends."""
    named = Model(model.pop("id", "model-1"), **model)
    return body_of(asked(ADAPTERS[vendor](api_key="test-key"), named, messages, generation))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({name for name, _ in pairs}) == len(pairs)
    return dict(pairs)
