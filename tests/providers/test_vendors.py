"""`resolve`, vendor by vendor: the address, the key and the model that are used, and the errors if one is missing."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

import kernai_providers
from adapter_calls import ADAPTERS, HELLO, asked, bodies_to
from kernai import Agent, Cost, GenerationOptions, Model, ProviderError, execute
from kernai.values.model import Models
from kernai_providers import VENDORS, MemoryTransport, TransportError, capabilities_of, resolve
from kernai_providers.in_process import MemoryReply
from vendor_wires import WIRES

#: which variable may hold the whole address, and what is added to it
ADDRESSES = [
    ("openai", "OPENAI_BASE_URL", ""), ("azure", "AZURE_OPENAI_BASE_URL", ""), ("azure", "AZURE_OPENAI_ENDPOINT", "/openai/v1"),
    ("local", "LOCAL_BASE_URL", ""),
]  # fmt: skip
#: what a vendor needs besides its key
NEEDS: dict[str, dict[str, Any]] = {
    "azure": {"resource": "acme"}, "bedrock": {"region": "eu-west-1"}, "vertex": {"project": "p-1", "region": "europe-west4"},
    "local": {"base_url": "http://127.0.0.1:8000/v1/"},
}  # fmt: skip

PATHS = {
    "openai-responses": "/responses", "perplexity": "/responses", "anthropic": "/messages", "ollama": "/api/chat",
    "gemini": "/models/model-1:streamGenerateContent?alt=sse",
}


def address(name: str) -> str:
    """The base URL with the places of `NEEDS`."""
    vendor, needs = next(one for one in VENDORS if one.name == name), NEEDS.get(name, {})
    base_url = vendor.base_url or needs.get("base_url", "").rstrip("/") or vendor.adapter.default_base_url
    return base_url.format(host=f"{needs.get('region')}-aiplatform.googleapis.com", **needs) if vendor.places else base_url


URLS = {vendor.name: address(vendor.name) + PATHS.get(vendor.name, "/chat/completions") for vendor in VENDORS}
KEY_HEADERS = {"anthropic": "x-api-key", "gemini": "x-goog-api-key", "azure": "api-key"}


def key_of(provider: kernai_providers.HttpProvider, model: Model) -> str | None:
    """The key as it is sent, in whatever header."""
    headers = asked(provider, model).headers
    shown = [headers[name] for name in headers if name.lower() in ("authorization", *KEY_HEADERS.values())]
    return shown[0].removeprefix("Bearer ") if shown else None


# ------------------------------------------------------------------------------------------------- every vendor


@pytest.mark.parametrize("name,known", [(name, vendor) for vendor in VENDORS for name in vendor.names], ids=str)
def test_each_name_asks_its_vendor_and_shows_the_key_as_the_vendor_reads_it(name: str, known: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    vendor = known.name
    monkeypatch.setenv(known.variables[0], " key-from-environment\n")
    provider, model = resolve(f"{name}/model-1", **NEEDS.get(vendor, {}))
    request = asked(provider, model)
    assert (request.url, model.id) == (URLS[vendor], "perplexity/model-1" if vendor == "perplexity" else "model-1")
    header = KEY_HEADERS.get(vendor, "Authorization")
    assert request.headers[header] == ("" if vendor in KEY_HEADERS else "Bearer ") + "key-from-environment"
    assert sum("key-from-environment" in value for value in request.headers.values()) == 1
    assert provider.vendor == vendor
    assert type(provider) is known.adapter or (known.adapter, type(provider)) == (ADAPTERS["openai"], kernai_providers.CompatibleProvider)


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)
def test_key_variables_are_looked_at_in_their_order_and_blank_ones_are_passed_over(vendor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = NEEDS.get(vendor.name, {})
    for place, name in reversed(list(enumerate(vendor.variables))):
        monkeypatch.setenv(name, f"key-{place}")
        assert key_of(*resolve(f"{vendor.name}/m", **needs)) == f"key-{place}"
    assert key_of(*resolve(f"{vendor.name}/m", api_key="given", **needs)) == "given"
    for place, name in enumerate(vendor.variables[:-1]):
        monkeypatch.setenv(name, " \t\n")
        assert key_of(*resolve(f"{vendor.name}/m", **needs)) == f"key-{place + 1}"


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)
def test_a_missing_key_is_an_error_that_names_the_variables(vendor: Any) -> None:
    needs = NEEDS.get(vendor.name, {})
    if vendor.name in ("ollama", "local"):
        assert key_of(*resolve(f"{vendor.name}/m", **needs)) is None
        return
    with pytest.raises(kernai_providers.MissingKeyError) as caught:
        resolve(f"{vendor.name}/m", **needs)
    variables = " or ".join(vendor.variables)
    assert str(caught.value) == f"{vendor.name} needs a key: set the environment variable {variables}, or pass api_key= in Python"
    assert {ProviderError, ValueError} <= set(type(caught.value).__mro__)
    assert caught.value.code == "missing_key"


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)
def test_base_url_goes_before_everything_and_needs_no_place(vendor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for _, variable, _ in ADDRESSES:
        monkeypatch.setenv(variable, "https://elsewhere.example.com")
    provider, model = resolve(f"{vendor.name}/model-1", api_key="k", base_url="https://gate.example.com/x/")
    assert asked(provider, model).url == "https://gate.example.com/x" + PATHS.get(vendor.name, "/chat/completions")


@pytest.mark.parametrize("name,variable,added", ADDRESSES)
def test_a_variable_may_hold_the_whole_address_and_is_blamed_for_a_wrong_one(name: str, variable: str, added: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, " https://gate.example.com/x/ ")
    assert resolve(f"{name}/m", api_key="k")[0].base_url == "https://gate.example.com/x" + added
    monkeypatch.setenv(variable, f"https://gate.example.com/x{added}/")
    assert resolve(f"{name}/m", api_key="k")[0].base_url == "https://gate.example.com/x" + added
    for wrong in ("ftp://gate.example.com", "https://user:S3CRET@gate.example.com", "https://gate.example.com:port", "acme"):
        monkeypatch.setenv(variable, wrong)
        with pytest.raises(ValueError, match=variable) as caught:
            resolve(f"{name}/m", api_key="k")
        assert "S3CRET" not in str(caught.value)
    monkeypatch.setenv(variable, "  ")
    assert resolve(f"{name}/m", api_key="k", **NEEDS.get(name, {}))[0].base_url == address(name)


# ------------------------------------------------------------------------------------ region, project, resource

PLACES = [
    (vendor.name, place, variables, address(vendor.name).replace(NEEDS[vendor.name][place], "{0}"))
    for vendor in VENDORS for place, variables in vendor.places
]  # fmt: skip


@pytest.mark.parametrize("name,place,variables,url", PLACES)
def test_a_place_is_an_argument_or_a_variable(name: str, place: str, variables: tuple[str, ...], url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    others: dict[str, Any] = {one: value for one, value in NEEDS[name].items() if one != place}

    def reached(**given: Any) -> str:
        return resolve(f"{name}/m", api_key="k", **others, **given)[0].base_url

    for at, variable in reversed(list(enumerate(variables))):
        monkeypatch.setenv(variable, f"place-{at}")
        assert reached() == url.format(f"place-{at}")
    assert reached(**{place: "given-1"}) == url.format("given-1")
    assert reached(**{place: " given-1 "}) == url.format("given-1")
    for variable in variables:
        monkeypatch.setenv(variable, "  ")
    with pytest.raises(kernai_providers.MissingSettingError, match=re.escape(f"{name} needs {place}=")) as caught:
        reached()
    assert " or ".join(variables) in str(caught.value)
    assert caught.value.code == f"missing_{place}"


@pytest.mark.parametrize("name,place,variables,url", PLACES)
@pytest.mark.parametrize("value", ["evil.example.com/", "a@b", "a#", "a?b", "a:1", "a\r\nb", "a b", "é"])
def test_an_argument_for_the_base_url_cannot_change_its_host_or_path(name: str, place: str, variables: Any, url: str, value: str) -> None:
    try:
        reached = resolve(f"{name}/m", api_key="k", **{**NEEDS[name], place: value})[0].base_url
    except ValueError as error:
        assert place in str(error)  # noqa: PT017 - both ways are right
    else:
        assert place == "project", "in a host's name only letters, digits and hyphens make sense"
        assert re.fullmatch(url.format(r"[^/?#@\s]+"), reached)


def test_vertexs_places_that_are_not_one_region_have_hosts_of_another_form() -> None:
    for region, place in (("global", ""), ("eu", "eu.rep."), ("us", "us.rep.")):
        provider, _ = resolve("vertex/google/gemini-3.6-flash", api_key="k", project="p", region=region)
        assert provider.base_url == f"https://aiplatform.{place}googleapis.com/v1/projects/p/locations/{region}/endpoints/openapi"


def test_a_self_hosted_server_needs_a_base_url() -> None:
    with pytest.raises(kernai_providers.MissingSettingError, match=r"local needs an address: give base_url='http.*LOCAL_BASE_URL"):
        resolve("vllm/m")


# ------------------------------------------------------------------------------------------------ names, models


@pytest.mark.parametrize("name,vendor,id", [
    ("openai/gpt-4o", "openai", "gpt-4o"),
    ("openrouter/anthropic/claude-sonnet-4.5", "openrouter", "anthropic/claude-sonnet-4.5"),
    ("fireworks/accounts/fireworks/models/qwen3-30b", "fireworks", "accounts/fireworks/models/qwen3-30b"),
    ("OpenAI/GPT-4o", "openai", "GPT-4o"),
    (" groq / llama-3.1-8b ", "groq", "llama-3.1-8b"),
    ("together/x//y", "together", "x//y"),
])
def test_everything_after_the_first_slash_is_the_models_id(name: str, vendor: str, id: str) -> None:
    provider, model = resolve(name, api_key="k", **NEEDS.get(vendor, {}))
    assert (provider.vendor, model.id) == (vendor, id)


@pytest.mark.parametrize("name", ["gpt-4o", "openai", "", "/", "openai/", "openai/  ", "/gpt-4o", " /x"])
def test_a_name_without_vendor_or_model_says_what_one_looks_like(name: str) -> None:
    with pytest.raises(kernai_providers.UnknownVendorError, match=r"'openai/gpt-6-luna'.*known: openai, anthropic") as caught:
        resolve(name, api_key="k")
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize(
    "name,close",
    [("opnai", "openai"), ("antropic", "anthropic"), ("Mistal", "mistral"), ("open-router", "openrouter"), ("zzz", None), ("nope", None), ("azur", "azure")],
)
def test_an_unknown_vendor_is_an_error_with_a_close_name_and_all_names(name: str, close: str | None) -> None:
    with pytest.raises(kernai_providers.UnknownVendorError) as caught:
        resolve(f"{name}/m", api_key="sk-secret-1")
    said = str(caught.value)
    assert said.startswith(f"unknown vendor {name!r}")
    assert (f"did you mean {close!r}?" in said) if close else ("did you mean" not in said)
    assert all(re.search(rf"\b{vendor.name}\b", said) for vendor in VENDORS)
    assert f"resolve('local/m', base_url='https://...', api_key='...')" in said  # noqa: F541 - reads as it is shown
    assert "secret" not in said
    assert {ProviderError, ValueError} <= set(type(caught.value).__mro__)


def test_capabilities_come_from_the_family_and_can_be_overridden() -> None:
    def capabilities(name: str, **more: Any) -> tuple[str, ...]:
        return resolve(name, api_key="k", **more)[1].capabilities

    assert "vision" in capabilities("openrouter/openai/gpt-4o")
    assert capabilities("openai/nobody-knows-it") == ("text",)
    assert capabilities("openai/gpt-4o", capabilities=("text",)) == ("text",)
    assert capabilities("openai/nobody-knows-it", capabilities=["text", "audio_in"]) == ("text", "audio_in")
    assert capabilities("openai/gpt-4o", capabilities=()) == ()
    # as in Model itself, one word is a tuple of one
    assert capabilities("openai/gpt-4o", capabilities="vision") == ("vision",)
    with pytest.raises(ValueError, match="unknown capability 'sight'; known: text, vision"):
        capabilities("openai/gpt-4o", capabilities=("sight",))


@pytest.mark.parametrize(
    "server, place", [("llamacpp", ["grammar"]), ("vllm", ["structured_outputs", "grammar"]), ("sglang", ["ebnf"])]
)
def test_a_grammar_is_sent_in_the_field_of_that_kind_of_server(server: str, place: list[str]) -> None:
    provider, model = resolve("local/m", base_url="http://here/v1", grammar=server, transport=MemoryTransport(MemoryReply(400)))
    agent = Agent(instructions="", protocols=[], provider=provider, model=model, constrain=True)
    assert execute(agent, "Hello.").stop_reason == "error"
    (sent,) = bodies_to(provider)
    for name in place:
        sent = sent[name]
    assert sent == agent.grammar()


def test_only_servers_that_are_known_to_take_a_grammar_are_sent_one() -> None:
    assert resolve("local/m", base_url="http://here/v1")[0].grammar_field is None
    with pytest.raises(ValueError, match="grammar must be one of llamacpp, vllm, sglang, or None, got 'ollama'"):
        resolve("local/m", base_url="http://here/v1", grammar="ollama")
    with pytest.raises(TypeError, match="grammar is an option of local, not of groq"):
        resolve("groq/m", api_key="k", grammar="vllm")


def test_options_go_to_the_provider_or_the_model_and_an_unknown_one_is_an_error() -> None:
    provider, model = resolve("groq/m", api_key="k", headers={"X-A": "b"}, timeout=(3, 4), cost=(2.5, 10))
    request = asked(provider, model)
    assert (request.headers["X-A"], request.timeouts.connect, request.timeouts.read) == ("b", 3.0, 4.0)
    assert (model.cost, resolve("openai/gpt-4o", api_key="k")[1].cost) == (Cost(2.5, 10.0), None)
    for vendor, unknown in (("groq", "capabilites"), ("groq", "region"), ("anthropic", "done_marker"), ("azure", "region")):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{unknown}'"):
            resolve(f"{vendor}/m", api_key="k", **NEEDS.get(vendor, {}), **{unknown: "eu"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="name must be text such as 'openai/gpt-6-luna', got Model"):
        resolve(Model("openai/gpt-4o"))  # type: ignore[arg-type]  # the subject
    answer = WIRES["openai"].stream(["Hi"])[:-1]
    unmarked = MemoryTransport(*(MemoryReply(200, {}, [*answer, *end]) for end in ([], [TransportError("silent", "timeout")])))
    with pytest.raises(ProviderError, match=r"ended without .* pass done_marker=False.* the answer was cut off"):
        resolve("groq/m", api_key="k", transport=MemoryTransport(MemoryReply(200, {}, answer)), max_retries=0)[0].call(HELLO, model, GenerationOptions(), print)
    provider, model = resolve("groq/m", api_key="k", transport=unmarked, done_marker=False)
    assert [provider.call(HELLO, model, GenerationOptions(), print).content for _ in "12"] == ["Hi", "Hi"]


def test_configured_lists_the_vendors_whose_key_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernai_providers.configured() == []
    monkeypatch.setenv("XAI_API_KEY", "k")
    monkeypatch.setenv("GROQ_API_KEY", "  ")
    monkeypatch.setenv("GOOGLE_API_KEY", "k")
    assert [vendor.name for vendor in kernai_providers.configured()] == ["gemini", "gemini-openai", "xai"]


# ------------------------------------------------------------------------------------------------- OLLAMA_HOST


@pytest.mark.parametrize("host,url", [
    # as Ollama's own programs read it: a bare host has port 11434, a URL the port of its scheme
    ("myhost", "http://myhost:11434"),
    ("myhost:8080", "http://myhost:8080"),
    (" myhost:8080/ ", "http://myhost:8080"),
    ('"myhost"', "http://myhost:11434"),
    ("0.0.0.0", "http://127.0.0.1:11434"),
    ("0.0.0.0:8080", "http://127.0.0.1:8080"),
    ("http://0.0.0.0:8080", "http://127.0.0.1:8080"),
    (":8080", "http://localhost:8080"),
    ("[::1]", "http://[::1]:11434"),
    ("[::1]:8080", "http://[::1]:8080"),
    ("::1", "http://[::1]:11434"),
    ("[::]:8080", "http://[::1]:8080"),
    ("http://myhost", "http://myhost:80"),
    ("https://myhost", "https://myhost:443"),
    ("https://myhost/ollama/", "https://myhost:443/ollama"),
    ("  ", "http://localhost:11434"),
    ("ollama.com", "https://ollama.com:443"),
])
def test_ollama_host_is_read_as_ollama_reads_it(host: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", host)
    without_default_ports = re.compile(r"(?<=http:)(//[^/]*):80(?!\d)|(?<=https:)(//[^/]*):443(?!\d)")

    def plain(address: str) -> str:
        return without_default_ports.sub(lambda found: found[1] or found[2], address)

    assert plain(kernai_providers.OllamaProvider().base_url) == plain(url)
    assert resolve("ollama/m")[0].base_url == kernai_providers.OllamaProvider().base_url
    assert kernai_providers.OllamaProvider(base_url="http://given:1").base_url == "http://given:1"
    assert os.environ["OLLAMA_HOST"] == host


@pytest.mark.parametrize("host,says", [
    ("ftp://myhost", "begin with http"), ("user:secret@myhost", "no user or password"), ("my host", "white space"), ("myhost:port", "port is wrong"),
    ("myhost?key=secret", "no query"),
])  # fmt: skip
def test_an_invalid_ollama_host_is_an_error_that_names_the_variable(host: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", host)
    with pytest.raises(ValueError, match=f"OLLAMA_HOST .*{says}") as caught:
        kernai_providers.OllamaProvider()
    assert "secret" not in str(caught.value)


# What the list of families says of models that exist, by the names they have at their vendors.


def names(listed: str) -> list[str]:
    return listed.split()


TEXT = names("""
    gpt-3.5-turbo gpt-4 gpt-4-turbo-preview openai/gpt-oss-20b o1-mini-2024-09-12 o1-preview o3-mini-2025-01-31
    text-embedding-3-large gpt-4o-transcribe gpt-4o-mini-tts gpt-4o-search-preview ft:gpt-3.5-turbo-0125:acme::Ab1
    claude-2.1 claude-instant-1.2 anthropic.claude-v2:1 anthropic.claude-instant-v1
    gemini-embedding-001 gemma2:9b gemma-2-27b-it gemma3:1b google/gemma-3-1b-it gemma3:270m gemma3n:e4b
    llama3.2:1b meta-llama/Llama-3.3-70B-Instruct-Turbo qwen2.5-coder:32b Qwen/QwQ-32B qwen3-max mistral-large-2411 mistral-nemo kimi-k2-0905
    grok-3-mini grok-2-1212 grok-code-fast-1 sonar-deep-research command-a-03-2025 us.amazon.nova-micro-v1:0 phi-4 zai-org/GLM-4.5
""")

SEES = names("""
    gpt-4-turbo gpt-4-turbo-2024-04-09 gpt-4-vision-preview gemma3 gemma3:12b google/gemma-3-27b-it
    llava:13b llava-llama3 bakllava moondream minicpm-v:8b llama3.2-vision:11b meta-llama/Llama-3.2-11B-Vision-Instruct-Turbo
    llama4:scout meta-llama/llama-4-maverick-17b-128e-instruct accounts/fireworks/models/llama4-maverick-instruct-basic us.meta.llama4-scout-17b-instruct-v1:0
    pixtral-12b-2409 mistral-small-3.2-24b-instruct mistral-small3.1:24b mistral-small-2506 mistral-small-latest
    mistral-medium-3 mistral-medium-2508 mistral-medium-latest mistral-large-2512 magistral-small-1.2
    qwen2.5vl:7b Qwen/Qwen2.5-VL-32B-Instruct qwen-vl-max qwen3-vl-235b-a22b-instruct qvq-72b-preview Qwen/Qwen3.6-27B qwen3.5:9b
    accounts/fireworks/models/qwen2p5-vl-32b-instruct microsoft/phi-4-multimodal-instruct command-a-vision-07-2025
    grok-4-0709 x-ai/grok-4 grok-2-vision-1212 sonar sonar-pro sonar-reasoning-pro amazon.nova-lite-v1:0 us.amazon.nova-pro-v1:0
    amazon.nova-premier-v1:0 amazon.nova-2-lite-v1:0 glm-4v-9b glm-4.5v zai-org/GLM-4.6V internvl3-78b moonshotai/kimi-k2.6 kimi-k3
""")

READS = names("""
    gpt-4o-mini gpt-6-luna chatgpt-4o-latest gpt-4.1-nano-2025-04-14 gpt-5 GPT-5 openai/gpt-5.1 gpt-6.2-sol o1 o1-pro openai/o3 o4-mini-2025-04-16
    ft:gpt-4o-2024-08-06:acme::Ab1 claude-3-haiku-20240307 claude-3-7-sonnet@20250219 claude-opus-4-8 claude-mythos-preview
    anthropic/claude-sonnet-4.5 us.anthropic.claude-sonnet-4-20250514-v1:0 eu.anthropic.claude-3-7-sonnet-20250219-v1:0
""")

ALL_IN = names("gemini-1.5-pro gemini-2.0-flash-lite google/gemini-2.5-pro gemini-3-pro-preview models/gemini-2.5-flash gemini-flash-latest")

HEARS = names("gpt-4o-audio-preview gpt-4o-mini-audio-preview gpt-audio gpt-audio-mini gpt-4o-audio-preview-2024-12-17")
DRAWS = names("gemini-2.5-flash-image gemini-3-pro-image-preview google/gemini-2.5-flash-image-preview")

READING = ("text", "vision", "document_in")
EVERYTHING = ("text", "vision", "audio_in", "video_in", "document_in")


@pytest.mark.parametrize("id,capabilities", [
    *((id, ("text",)) for id in TEXT),
    *((id, ("text", "vision")) for id in SEES),
    *((id, READING) for id in READS),
    *((id, EVERYTHING) for id in ALL_IN),
    *((id, ("text", "audio_in", "audio_out")) for id in HEARS),
    *((id, (*EVERYTHING, "image_gen")) for id in DRAWS),
])
def test_a_model_that_exists_can_do_what_its_vendor_says(id: str, capabilities: tuple[str, ...]) -> None:
    assert capabilities_of(id) == capabilities
    assert capabilities_of(f"some/router/{id}") == capabilities


@pytest.mark.parametrize("name", [name for name in vars(Models) if name.isupper()])
def test_the_list_never_says_less_than_the_catalogue_of_the_core(name: str) -> None:
    model: Model = getattr(Models, name)
    # audio of gpt-4o is a model of its own by now
    assert set(model.capabilities) - {"audio_in", "audio_out"} <= set(capabilities_of(model.id))
