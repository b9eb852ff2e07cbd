"""Default models and list prices: facts that become outdated, kept in one place.

Written from memory in November 2026 and not compared with the vendors' pages: look there before a bill depends on it. A
vendor that is missing here has no default (Azure's models have the names that their owner gave them). A price that is
missing is unknown, and a cost that needs it is shown as unknown.
"""

from __future__ import annotations

import re

#: a capable and inexpensive model of each vendor, by the vendor's name in `kernai_providers.VENDORS`
DEFAULT_MODELS = {
    "openai": "gpt-4.1-mini",
    "openai-responses": "gpt-5-mini",
    "anthropic": "claude-sonnet-5",
    "gemini": "gemini-3.5-flash-lite",
    "ollama": "llama3.2",
    "baseten": "openai/gpt-oss-120b",
    "bedrock": "openai.gpt-oss-120b-1:0",
    "cerebras": "gpt-oss-120b",
    "cohere": "command-a-03-2025",
    "deepinfra": "openai/gpt-oss-120b",
    "deepseek": "deepseek-v4-flash",
    "fireworks": "accounts/fireworks/models/gpt-oss-120b",
    "gemini-openai": "gemini-3.5-flash-lite",
    "groq": "openai/gpt-oss-120b",
    "mistral": "mistral-medium-latest",
    "openrouter": "anthropic/claude-sonnet-5",
    "perplexity": "sonar",
    "together": "openai/gpt-oss-120b",
    "vercel": "anthropic/claude-sonnet-5",
    "vertex": "google/gemini-3.5-flash-lite",
    "xai": "grok-4.3",
}

#: dollars per million prompt and completion tokens, from the vendors' price lists
PRICES: dict[str, dict[str, tuple[float, float]]] = {
    "openai": {
        "gpt-4o": (2.5, 10.0),
        "gpt-4o-mini": (0.15, 0.6),
        "gpt-4.1": (2.0, 8.0),
        "gpt-4.1-mini": (0.4, 1.6),
        "gpt-4.1-nano": (0.1, 0.4),
        "gpt-5": (1.25, 10.0),
        "gpt-5-mini": (0.25, 2.0),
        "gpt-5-nano": (0.05, 0.4),
    },

    "anthropic": {
        "claude-sonnet-4": (3.0, 15.0),
        "claude-sonnet-5": (2.0, 10.0),
        "claude-sonnet-4-6": (3.0, 15.0),
        "claude-haiku-4-5": (1.0, 5.0),
        "claude-opus-4": (15.0, 75.0),
        "claude-opus-4-1": (15.0, 75.0),
        "claude-opus-4-5": (5.0, 25.0),
    },
    "gemini": {
        "gemini-3.5-flash-lite": (0.3, 2.5),
        "gemini-2.5-flash-lite": (0.1, 0.4),
        "gemini-2.5-pro": (1.25, 10.0),
    },
}

PRICES["openai-responses"] = PRICES["openai"]

#: a dated version costs as much as its model
_DATE = re.compile(r"-(\d{8}|\d{4}-\d{2}-\d{2})$")


def price_of(vendor: str, model_id: str) -> tuple[float, float] | None:
    """Dollars per million prompt and completion tokens; None if unknown."""
    return PRICES.get(vendor, {}).get(_DATE.sub("", model_id))
