"""Adapters for model vendors, over HTTP, with nothing but the standard library.

    from kernai import Agent, run
    from kernai_providers import resolve

    provider, model = resolve("anthropic/claude-sonnet-5")
    print(run(Agent(instructions="Be brief.", provider=provider, model=model), "Hello"))

`kernai` does not import this package. `HttpxTransport` is in `kernai_providers.httpx_transport`, because it needs the
extra `kernai[httpx]`.
"""

from kernai_providers.anthropic import AnthropicProvider
from kernai_providers.gemini import GeminiProvider
from kernai_providers.http_provider import HttpProvider
from kernai_providers.http_transport import HttpTransport
from kernai_providers.in_process import LlamaTransport, MemoryReply, MemoryTransport, MissingModelError
from kernai_providers.ollama import OllamaProvider
from kernai_providers.openai import OpenAIProvider, ResponsesProvider
from kernai_providers.request_checks import MissingKeyError, MissingSettingError
from kernai_providers.transport import (
    AsyncResponse,
    AsyncTransport,
    Request,
    Response,
    Timeouts,
    Transport,
    TransportError,
)
from kernai_providers.vendors import (
    VENDORS,
    CompatibleProvider,
    UnknownVendorError,
    Vendor,
    capabilities_of,
    configured,
    resolve,
)

__all__ = [
    "VENDORS", "AnthropicProvider", "AsyncResponse", "AsyncTransport", "CompatibleProvider", "GeminiProvider",
    "HttpProvider", "HttpTransport", "LlamaTransport", "MemoryReply", "MemoryTransport", "MissingKeyError",
    "MissingModelError", "MissingSettingError", "OllamaProvider", "OpenAIProvider", "Request", "Response",
    "ResponsesProvider", "Timeouts", "Transport", "TransportError", "UnknownVendorError", "Vendor", "capabilities_of",
    "configured", "resolve",
]
