"""What the vendors would be sent of a run, built by their own adapters; nothing is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator

import kernai
from harness import Outcome
from kernai_providers import (
    AnthropicProvider,
    GeminiProvider,
    HttpProvider,
    OllamaProvider,
    OpenAIProvider,
    ResponsesProvider,
)

ADAPTERS: tuple[type[HttpProvider], ...] = (
    OpenAIProvider, ResponsesProvider, AnthropicProvider, GeminiProvider, OllamaProvider,
)


def request_bodies(outcome: Outcome, *capabilities: str) -> Iterator[tuple[str, str]]:
    """For each family of vendors its name, and as JSON the body of a request with this run's conversation, to a model
    that can do `capabilities` beside text.
    """
    model = kernai.Model("any", ("text", *capabilities))
    for adapter in ADAPTERS:
        with adapter(api_key="not-needed") as provider:
            body = provider.body(outcome.result.messages, model, kernai.GenerationOptions())
        yield adapter.__name__.removesuffix("Provider"), json.dumps(body)
