"""The table of vendors, `resolve`, which finds a model in it by name, and the capabilities of model families.

Most vendors speak OpenAI's Chat Completions: their entry is an address and the variable for the key. Addresses and
variables are the vendors' own, as documented in November 2026.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernai import Cost, Model, ProviderError
from kernai._util.api import check_type, likely
from kernai_providers.anthropic import AnthropicProvider
from kernai_providers.gemini import GeminiProvider
from kernai_providers.http_provider import HttpProvider
from kernai_providers.in_process import BASE_URL, LlamaTransport, smollm2_path
from kernai_providers.ollama import OllamaProvider
from kernai_providers.openai import RESPONSES_ONLY, OpenAIProvider, PerplexityProvider, ResponsesProvider
from kernai_providers.request_checks import MissingSettingError, checked_base_url, setting


class UnknownVendorError(ProviderError, ValueError):
    """No vendor of that name is in the table; the message lists those that are."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="unknown_vendor")


@dataclass(frozen=True, slots=True)
class Vendor:
    """One vendor: how to reach it, and where its key is."""

    name: str
    adapter: type[HttpProvider]
    variables: tuple[str, ...]
    #: with a `{name}` for each of `places`; if blank, the adapter's own
    base_url: str = ""
    aliases: tuple[str, ...] = ()
    #: parts of the address that only the user knows: the name of an argument of `resolve`, and variables for it
    places: tuple[tuple[str, tuple[str, ...]], ...] = ()
    #: variables for the whole address, each with a suffix to add to it
    base_url_variables: tuple[tuple[str, str], ...] = ()
    #: the header for the key, if it is not a bearer token
    key_header: str | None = None
    needs_key: bool = True
    #: whether it rejects consecutive messages of the same role
    merges_roles: bool = False
    #: the ids of native calls that it accepts; None for any usual one
    call_ids: re.Pattern[str] | None = None
    #: whether it supports the option to send usage in a stream; the others send usage anyway
    stream_options: bool = True
    #: whether its streams end with ``[DONE]``
    done_marker: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """Every name by which `resolve` knows it."""
        return (self.name, *self.aliases)


#: each server's field for a grammar in GBNF, as documented in November 2026; that of vLLM since 0.12
GRAMMAR_FIELDS = {"llamacpp": "grammar", "vllm": "structured_outputs.grammar", "sglang": "ebnf"}


class CompatibleProvider(OpenAIProvider):
    """Chat Completions of a vendor other than OpenAI. `grammar`: the kind of server, if it accepts a grammar.

    `options` are those of `OpenAIProvider`, and the places in the vendor's address.
    """

    def __init__(
        self, vendor: Vendor, api_key: str | None = None, *, grammar: str | None = None, **options: Any
    ) -> None:
        if not isinstance(vendor, Vendor):
            raise TypeError(f"vendor must be a Vendor; by name: resolve({f'{vendor}/MODEL'!r})")
        self.vendor: str = vendor.name
        self.key_variables = vendor.variables
        for name in ("needs_key", "key_header", "merges_roles", "stream_options"):
            setattr(self, name, getattr(vendor, name))
        if grammar is not None and grammar not in GRAMMAR_FIELDS:
            raise ValueError(f"grammar must be one of {', '.join(GRAMMAR_FIELDS)}, or None, got {grammar!r}")
        self.grammar_field = None if grammar is None else GRAMMAR_FIELDS[grammar]
        self.is_openai = vendor.name == "azure"
        self.enforces = "nullable" if self.is_openai else None
        self.call_ids = vendor.call_ids or self.call_ids
        places = {name: options.pop(name, None) for name, _ in vendor.places}
        if options.get("base_url") is None:
            options["base_url"] = _base_url(vendor, places)
        super().__init__(api_key, **{"done_marker": vendor.done_marker, **options})


def _like_openai(name: str, base_url: str, *variables: str, **more: Any) -> Vendor:
    return Vendor(name, OpenAIProvider, variables, base_url, **more)


#: a value that becomes part of a host's name
_PLACE = re.compile(r"[A-Za-z0-9-]+")
#: a value that becomes part of a path; an organisation's project may begin with its domain
_PROJECT_NAME = re.compile(r"(?:[a-z0-9.-]+:)?[A-Za-z0-9-]+")
_REGION = "region", ("AWS_REGION", "AWS_DEFAULT_REGION")
_PROJECT = "project", ("GOOGLE_CLOUD_PROJECT", "VERTEX_PROJECT")
_LOCATION = "region", ("GOOGLE_CLOUD_LOCATION", "GOOGLE_CLOUD_REGION", "VERTEX_LOCATION")

VENDORS = (
    Vendor("openai", OpenAIProvider, OpenAIProvider.key_variables),
    Vendor("anthropic", AnthropicProvider, AnthropicProvider.key_variables, aliases=("claude",)),
    Vendor("gemini", GeminiProvider, GeminiProvider.key_variables, aliases=("google",)),
    Vendor("ollama", OllamaProvider, OllamaProvider.key_variables, needs_key=False),
    Vendor("openai-responses", ResponsesProvider, ResponsesProvider.key_variables),
    _like_openai(
        "azure", "https://{resource}.openai.azure.com/openai/v1", "AZURE_OPENAI_API_KEY",
        aliases=("azure-openai",), key_header="api-key",
        places=(("resource", ("AZURE_OPENAI_RESOURCE", "AZURE_RESOURCE_NAME")),),
        base_url_variables=(("AZURE_OPENAI_BASE_URL", ""), ("AZURE_OPENAI_ENDPOINT", "/openai/v1")),
    ),
    _like_openai("baseten", "https://inference.baseten.co/v1", "BASETEN_API_KEY"),
    _like_openai(
        "bedrock", "https://bedrock-runtime.{region}.amazonaws.com/openai/v1", "AWS_BEARER_TOKEN_BEDROCK",
        places=(_REGION,),
    ),
    _like_openai("cerebras", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    _like_openai("cohere", "https://api.cohere.ai/compatibility/v1", "COHERE_API_KEY", "CO_API_KEY"),
    _like_openai("deepinfra", "https://api.deepinfra.com/v1/openai", "DEEPINFRA_API_KEY", "DEEPINFRA_TOKEN"),
    _like_openai("deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    _like_openai("fireworks", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    _like_openai(
        "gemini-openai", "https://generativelanguage.googleapis.com/v1beta/openai", *GeminiProvider.key_variables,
        aliases=("google-openai",),
    ),
    _like_openai("groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    _like_openai("mistral", "https://api.mistral.ai/v1", "MISTRAL_API_KEY", merges_roles=True, stream_options=False,
                 call_ids=re.compile("[A-Za-z0-9]{9}")),
    _like_openai("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    Vendor("perplexity", PerplexityProvider, PerplexityProvider.key_variables),
    _like_openai("together", "https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    _like_openai("vercel", "https://ai-gateway.vercel.sh/v1", "AI_GATEWAY_API_KEY", "VERCEL_OIDC_TOKEN"),
    _like_openai(
        "vertex", "https://{host}/v1/projects/{project}/locations/{region}/endpoints/openapi", "VERTEX_ACCESS_TOKEN",
        places=(_PROJECT, _LOCATION),
    ),
    _like_openai("xai", "https://api.x.ai/v1", "XAI_API_KEY", aliases=("grok",)),
    # vLLM, llama.cpp, LM Studio and similar servers
    _like_openai(
        "local", "", "LOCAL_API_KEY", aliases=("openai-compatible", "vllm", "llamacpp", "lmstudio"), needs_key=False,
        base_url_variables=(("LOCAL_BASE_URL", ""),), merges_roles=True,
    ),
)

BY_NAME = {name: vendor for vendor in VENDORS for name in vendor.names}
#: what runs a model in this process
IN_PROCESS = {
    name: Vendor(name, OpenAIProvider, (), BASE_URL, needs_key=False, merges_roles=True) for name in ("smollm2", "gguf")
}


def resolve(
    name: str,
    *,
    capabilities: Sequence[str] | None = None,
    cost: Cost | tuple[float, ...] | None = None,
    **options: Any,
) -> tuple[HttpProvider, Model]:
    """Returns a provider and a model for ``"vendor/model"``, for example ``resolve("anthropic/claude-sonnet-5")``.

    ``"smollm2/135m"`` and ``"gguf//PATH/TO.gguf"`` run a model in this process. They take `context` (tokens),
    `threads`, `timeout` and `chat_template`, and raise `MissingModelError` without the extra `kernai[local]`.

    - `capabilities`: by default those of the model's family in `FAMILIES`; text only if the family is unknown.
    - `cost`: dollars per million prompt and completion tokens.
    - `options` are passed to the provider (`api_key`, `base_url`, `timeout`, …). Some vendors take more: `resource`
      (azure), `region` (bedrock, vertex) and `project` (vertex), each also read from the vendor's own environment
      variable; and `grammar` (local), the kind of server for `Agent(constrain=True)`: ``"llamacpp"``, ``"vllm"`` or
      ``"sglang"``.

    Raises `UnknownVendorError`, which lists the known ones, or `MissingSettingError` (for a key, `MissingKeyError`),
    which says what to set. Each is a `ProviderError` and a `ValueError`.
    """
    given: Any = capabilities  # `Model` checks them
    vendor, model_id = split_name(name)
    if vendor.name in IN_PROCESS:
        return _in_process(vendor, model_id, options), Model(model_id, TEXT if given is None else given, cost)
    if vendor.name == "openai" and RESPONSES_ONLY.match(model_id):
        vendor = BY_NAME["openai-responses"]
    # Perplexity has models of other vendors, too
    model_id = f"perplexity/{model_id}" if vendor.name == "perplexity" and "/" not in model_id else model_id
    if "grammar" in options and vendor.name != "local":
        raise TypeError(f"grammar is an option of local, not of {vendor.name}")
    model = Model(model_id, capabilities_of(model_id) if given is None else given, cost)
    if vendor.adapter is OpenAIProvider and vendor.name != "openai":
        return CompatibleProvider(vendor, **options), model
    return vendor.adapter(**options), model


def _in_process(vendor: Vendor, model_id: str, options: dict[str, Any]) -> HttpProvider:
    is_smollm2 = vendor.name == "smollm2"
    if is_smollm2 and model_id != "135m":
        raise UnknownVendorError(f"the only size is smollm2/135m, got {model_id!r}; for a file: gguf//PATH/TO.gguf")
    timeout = options.pop("timeout", 600.0)
    transport = LlamaTransport(smollm2_path() if is_smollm2 else model_id, **options)
    provider = CompatibleProvider(vendor, grammar="llamacpp", transport=transport, max_retries=0, timeout=timeout)
    # SmolLM2's own template silently leaves tools out
    provider.calls_natively = not is_smollm2 or options.get("chat_template") is not None
    return provider


def configured() -> list[Vendor]:
    """Returns the vendors whose key is in the environment, in the table's order."""
    return [one for one in VENDORS if setting(*one.variables)[0]]


def split_name(name: str) -> tuple[Vendor, str]:
    """Returns the vendor and the model of a name such as ``"anthropic/claude-sonnet-5"``."""
    check_type(name, str, "name must be text such as 'openai/gpt-6-luna'")
    vendor_name, slash, model_id = name.strip().partition("/")
    known = ", ".join([*(one.name for one in VENDORS), *IN_PROCESS])
    if not slash or not vendor_name or not model_id.strip():
        raise UnknownVendorError(f"{name!r} is not 'vendor/model', such as 'openai/gpt-6-luna'; known: {known}")
    names = BY_NAME | IN_PROCESS
    vendor = names.get(vendor_name.strip().lower())
    if vendor is None:
        hint = likely(vendor_name, names) or "."
        raise UnknownVendorError(
            f"unknown vendor {vendor_name!r}{hint} Known: {known}. For any other server that speaks OpenAI's Chat "
            f"Completions: resolve('local/{model_id}', base_url='https://...', api_key='...')"
        )
    return vendor, model_id.strip()


def _base_url(vendor: Vendor, places: dict[str, Any]) -> str:
    """Returns the vendor's address with these places. Those that are not given are in variables."""
    for variable, suffix in vendor.base_url_variables:
        url, where = setting(variable)
        if url:
            url = checked_base_url(url, where)
            return url if url.endswith(suffix) else url + suffix
    if not vendor.base_url:
        variables = [f", or set the environment variable {name}" for name, _ in vendor.base_url_variables]
        raise MissingSettingError(
            f"{vendor.name} needs an address: give base_url='http://localhost:8000/v1'{''.join(variables)}",
            code="missing_base_url",
        )
    values = {name: _value(vendor, name, variables, places[name]) for name, variables in vendor.places}
    # https://cloud.google.com/vertex-ai/docs/general/locations: a region's name has a hyphen; "us" and "eu" are several
    region = values.get("region", "")
    place = f"{region}-aiplatform" if "-" in region else f"aiplatform.{region}.rep"
    host = f"{'aiplatform' if region == 'global' else place}.googleapis.com"
    return vendor.base_url.format_map({"host": host, **values})


def _value(vendor: Vendor, place: str, variables: tuple[str, ...], given: object) -> str:
    value = str(setting(*variables)[0] if given is None else given).strip()
    if not value:
        where = " or ".join(variables)
        raise MissingSettingError(
            f"{vendor.name} needs {place}=: give it to resolve, or set the environment variable {where}",
            code=f"missing_{place}",
        )
    if not (_PROJECT_NAME if place == "project" else _PLACE).fullmatch(value):
        raise ValueError(f"{place} must be letters, digits and hyphens, as {vendor.name} names it, got {value!r}")
    return value

# ---------------------------------------------------------------------------------------- capabilities by family
#
# The first pattern that matches the model's name counts, whoever serves the model; the part of the name before its last
# slash is ignored. A name that matches none is text-only; `resolve(..., capabilities=...)` overrides this. From the
# vendors' pages, last checked in November 2026.

TEXT = ("text",)
SEES = ("text", "vision")
READS = ("text", "vision", "document_in")
HEARS = ("text", "audio_in", "audio_out")
ALL_IN = ("text", "vision", "audio_in", "video_in", "document_in")


#: patterns for the start of model names, each with the capabilities of these models
FAMILIES = {
    # OpenAI
    r"gpt-.*(transcribe|tts|search|realtime)|gpt-daybreak": TEXT,
    r"gpt-4o.*audio|gpt-audio": HEARS,
    r"gpt-4o|chatgpt-4o|gpt-4\.1|gpt-[5-9]|o1(?!-mini|-preview)|o3(?!-mini)|o4": READS,
    r"gpt-4-turbo(?!-preview)|gpt-4-vision": SEES,
    # Anthropic
    r"claude-([3-9]|(?!instant|v\d)[a-z])": READS,
    # Google
    r"gemini-.*-image": (*ALL_IN, "image_gen"),
    r"gemini-(?!embedding)": ALL_IN,
    r"gemma-?3(?!n)(?!.*\b(1b|270m))|gemma-?[4-9]": SEES,
    # open weights, at any vendor
    r"llava|bakllava|moondream|minicpm-v|llama-?3[.-]2.*vision|llama-?4|pixtral|internvl|glm-4(\.[0-9])?v": SEES,
    r"qwen-?([0-9.p]*-?vl|3[.p][5-9](?!.*(max|coder)))|qvq|kimi-(k2[.p][5-9]|k[3-9])": SEES,
    r"phi-?4-multimodal|command-a-vision": SEES,
    r"mistral-(small-?(3\.[1-9]|25|latest)|medium-?(3|25|latest)|large-?(3|2512|latest))": SEES,
    r"magistral-(small-1\.[2-9]|(small|medium)-(2509|latest))": SEES,
    r"grok-(2-vision|vision|[4-9])": SEES,
    r"sonar(-pro|-reasoning|$)": SEES,
    r"nova-(2-)?(lite|pro|premier)": SEES,
}
#: prefixes of fine-tuned models, and of models in a cloud's catalogue, maybe with a region
_PREFIX = re.compile(r"ft:|([a-z]+\.)?(anthropic|meta|amazon|mistral|cohere|openai|google|qwen)\.")


def capabilities_of(model_id: str) -> tuple[str, ...]:
    """Returns a model's capabilities, judging by its name; text only if its family is unknown."""
    name = _PREFIX.sub("", model_id.rpartition("/")[2].lower())
    return next((capabilities for pattern, capabilities in FAMILIES.items() if re.match(pattern, name)), TEXT)
