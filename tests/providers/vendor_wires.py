"""The wire formats of the four vendors, with one interface (`Wire`): ``WIRES["openai"]`` and so on.

::

    wire = WIRES["anthropic"]
    with WireServer([wire.rate_limit("retry-after", 2), wire.answer("Hel", "lo")]) as server:
        provider = AnthropicProvider(api_key="k", base_url=wire.base_url(server.url))
"""

from __future__ import annotations

from wire_anthropic import AnthropicWire
from wire_format import USAGE, Answering, Hint, Turn, Usage, Wire, pieces_of
from wire_gemini import GeminiWire
from wire_ollama import OllamaWire
from wire_openai import OpenAIWire
from wire_responses import ResponsesWire

__all__ = [
    "USAGE",
    "WIRES",
    "Answering",
    "AnthropicWire",
    "GeminiWire",
    "Hint",
    "OllamaWire",
    "OpenAIWire",
    "ResponsesWire",
    "Turn",
    "Usage",
    "Wire",
    "pieces_of",
]

ALL: tuple[Wire, ...] = (OpenAIWire(), ResponsesWire(), AnthropicWire(), GeminiWire(), OllamaWire())
WIRES: dict[str, Wire] = {wire.name: wire for wire in ALL}
