"""Which model runs a scenario, and how the choice is explained."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kernai
from kernai_providers import VENDORS
from kit import known_providers
from kit.definition import Definition, UsageError
from kit.model_tables import DEFAULT_MODELS, PRICES, price_of
from kit.options import parse
from kit.provider_choice import Choice, choose
from tests.scenarios.scenario_process import KEYS, Demo
from wire_server import Reply, WireRequest, WireServer, plain

NOWHERE = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*KEYS, "PROVIDER", "MODEL", "LOCAL_BASE_URL", "HTTP_PROXY", "http_proxy"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OLLAMA_HOST", NOWHERE)
    monkeypatch.setattr(known_providers, "_REGISTERED", {})  # code on a page of the docs registers a provider


def chosen(monkeypatch: pytest.MonkeyPatch, *arguments: str, **environment: Any) -> Choice:
    """Choose a provider for the inventory, which has a bundled tape and here needs `capabilities`."""
    capabilities = environment.pop("capabilities", ("text",))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    definition = Definition("inventory_lookup", "", "", capabilities=capabilities)
    return choose(definition, parse(definition, arguments))


# --------------------------------------------------------------------------------------------------- the order


@pytest.mark.parametrize("arguments, environment, name, model, reason", [
    # the argument
    (["m", "openai"], {"OPENAI_API_KEY": "k", "PROVIDER": "groq"}, "openai", "m", "named on the command line"),
    (["m", "Claude"], {"ANTHROPIC_API_KEY": "k"}, "anthropic", "m", "named on the command line"),
    (["groq/a/b"], {"GROQ_API_KEY": "k"}, "groq", "a/b", "named on the command line"),
    (["gemini"], {"GEMINI_API_KEY": "k", "PROVIDER": "groq"}, "gemini", "gemini-3.5-flash-lite", "named on the command line"),
    (["openai/x", "openrouter"], {"OPENROUTER_API_KEY": "k"}, "openrouter", "openai/x", "named on the command line"),
    # the environment
    ([], {"PROVIDER": "groq", "GROQ_API_KEY": "k", "OPENAI_API_KEY": "k"}, "groq", "openai/gpt-oss-120b", "PROVIDER in the environment"),
    ([], {"PROVIDER": " xai ", "MODEL": "grok-9", "XAI_API_KEY": "k"}, "xai", "grok-9", "PROVIDER in the environment"),
    ([], {"MODEL": "mistral/m", "MISTRAL_API_KEY": "k", "OPENAI_API_KEY": "k"}, "mistral", "m", "MODEL in the environment"),
    # a vendor whose key is set
    ([], {"XAI_API_KEY": "k", "GROQ_API_KEY": "k"}, "groq", "openai/gpt-oss-120b", "GROQ_API_KEY is set"),
    (["m"], {"CO_API_KEY": "k"}, "cohere", "m", "CO_API_KEY is set"),
    ([], {"AZURE_OPENAI_API_KEY": "k", "XAI_API_KEY": "k"}, "xai", "grok-4.3",
     "XAI_API_KEY is set; skipped: azure has a key and no default model"),
    ([], {"PROVIDER": "ollama"}, "ollama", "llama3.2", "PROVIDER in the environment"),
    # the tape
    ([], {}, "tape", "hand-written", "no model vendor is configured"),
    ([], {"MODEL": "gpt"}, "tape", "hand-written", "no model vendor is configured; MODEL in the environment is not used"),
    ([], {"PROVIDER": "tape", "OPENAI_API_KEY": "k"}, "tape", "hand-written", "PROVIDER in the environment"),
    ([], {"PROVIDER": "tape", "MODEL": "gpt"}, "tape", "hand-written",
     "PROVIDER in the environment; MODEL in the environment is not used"),
    (["tape"], {"OPENAI_API_KEY": "k"}, "tape", "hand-written", "named on the command line"),
    (["--offline"], {"PROVIDER": "openai", "OPENAI_API_KEY": "k"}, "tape", "hand-written", "--offline"),
    ([], {"LOCAL_API_KEY": "k", "OLLAMA_API_KEY": "k"}, "tape", "hand-written", "no model vendor is configured"),
])
def test_the_choice_is_the_argument_then_the_environment_then_a_key_then_the_tape(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], environment: dict[str, str], name: str, model: str, reason: str
) -> None:
    found = chosen(monkeypatch, *arguments, **environment)
    assert (found.name, found.model.id, found.reason) == (name, model, reason)
    assert (found.tape is not None) == (name == "tape")


@pytest.mark.parametrize("arguments, environment, complaint", [
    (["m", "opena"], {}, "unknown provider 'opena': did you mean 'openai'? known are openai, anthropic"),
    ([], {"PROVIDER": "nobody-at-all"}, "unknown provider 'nobody-at-all': known are"),
    (["m", "openai"], {}, "openai needs a key: set OPENAI_API_KEY; --list-providers shows who has one"),
    (["m", "gemini"], {}, "gemini needs a key: set GEMINI_API_KEY or GOOGLE_API_KEY;"),
    (["openai/"], {"OPENAI_API_KEY": "k"}, "'openai/' lacks its model: name one, or say 'openai' alone"),
    (["m", "local"], {}, "LOCAL_BASE_URL"),
    (["m"], {}, "no model vendor is configured, so nothing can run 'm'"),
    (["smollm2/360m"], {}, "the only size is smollm2/135m"),
    (["", "azure"], {"AZURE_OPENAI_API_KEY": "k"}, "azure has no default model: name one"),
    (["m", "tape"], {}, "leave 'm' out"),
    (["m", "openai", "--tape", "x.json"], {}, "--tape replays a tape: leave 'm' out"),
    (["--tape", "none.json"], {}, "there is no tape none.json: make it with MODEL PROVIDER --save-tape, or by hand"),
    (["--capabilities", "text,sight"], {}, "no capability 'sight'; there are text, vision"),
])
def test_an_impossible_choice_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], environment: dict[str, str], complaint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        chosen(monkeypatch, *arguments, **environment)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------------------ capabilities

SEES = ("text", "vision")


def test_a_model_is_declared_with_the_capabilities_that_the_scenario_needs_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, "gpt-4o", "openai", OPENAI_API_KEY="k").model.capabilities == ("text",)
    assert chosen(monkeypatch, "gpt-4o", "openai", capabilities=SEES).model.capabilities == SEES
    with pytest.raises(UsageError, match=r"needs a model with vision, and mine of groq .*--capabilities text,vision"):
        chosen(monkeypatch, "mine", "groq", capabilities=SEES, GROQ_API_KEY="k")
    found = chosen(monkeypatch, "mine", "groq", "--capabilities", "text, vision", capabilities=SEES)
    assert found.model.capabilities == SEES


def test_a_vendor_whose_default_model_lacks_a_capability_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen(monkeypatch, capabilities=SEES, DEEPSEEK_API_KEY="k", XAI_API_KEY="k")
    assert (found.name, found.reason) == (
        "xai", "XAI_API_KEY is set; skipped: deepseek-v4-flash of deepseek cannot take text, vision",
    )


# ------------------------------------------------------------------------------------------- prices and tables


def test_a_chosen_model_has_its_listed_price_and_another_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(DEFAULT_MODELS) | set(PRICES) <= {vendor.name for vendor in VENDORS}
    for vendor, model, cost in (
        ("openai", "gpt-4o-mini-2024-07-18", (0.15, 0.6)), ("anthropic", "claude-sonnet-5-20260929", (2.0, 10.0)),
        ("openrouter", "gpt-4o-mini", None),
    ):
        assert price_of(vendor, model) == cost
    assert chosen(monkeypatch, "gpt-4.1", "openai", OPENAI_API_KEY="k").model.cost == kernai.Cost(2.0, 8.0)
    assert chosen(monkeypatch, "other", "openai").model.cost is None


# ------------------------------------------------------------------------------------------ registered providers


def test_a_registered_provider_is_chosen_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    model = kernai.Model("mine-1", ("text", "vision"), (1.0, 2.0))
    known_providers.register_provider("Mine", kernai.MockProvider, model)
    found = chosen(monkeypatch, PROVIDER="mine", capabilities=SEES)
    assert (found.name, found.model, type(found.provider)) == ("mine", model, kernai.MockProvider)
    other = chosen(monkeypatch, "mine-2", "mine")
    assert (other.model.id, other.model.cost) == ("mine-2", None)
    with pytest.raises(UsageError, match="needs a model with vision"):
        chosen(monkeypatch, "mine-2", "mine", capabilities=SEES)
    known_providers.register_provider("openai", kernai.MockProvider, "stand-in")  # a vendor's name
    found = chosen(monkeypatch, "openai")
    assert (found.model.id, type(found.provider)) == ("stand-in", kernai.MockProvider)


@pytest.mark.parametrize("factory, complaint", [
    (dict, "must give a Provider, got dict"),
    (lambda: kernai.MockProvider(str(1 / 0)), "failed: ZeroDivisionError: division by zero"),
])
def test_a_factory_that_makes_no_provider_is_named(monkeypatch: pytest.MonkeyPatch, factory: Any, complaint: str) -> None:
    known_providers.register_provider("mine", factory, "m")
    with pytest.raises(UsageError, match=f"factory of the provider 'mine' {complaint}"):
        chosen(monkeypatch, "mine")


@pytest.mark.parametrize("arguments, complaint", [
    *(((name, kernai.MockProvider, "m"), "one word") for name in ("a b", "a/b", "--x")),
    (("tape", kernai.MockProvider, "m"), "bundled tape"),
    (("mine", kernai.MockProvider(), "m"), "callable without arguments"),
    (("mine", kernai.MockProvider, ""), "model's id or a Model"),
])
def test_a_wrong_registration_is_an_error_at_the_call(arguments: tuple[Any, Any, Any], complaint: str) -> None:
    with pytest.raises((TypeError, ValueError), match=complaint):
        known_providers.register_provider(*arguments)


# -------------------------------------------------------------------------------------------------- servers


class Answers(WireServer):
    """A server on this machine and its answer for each path."""

    def __init__(self) -> None:
        super().__init__([self.answer])
        self.said: dict[str, tuple[int, str]] = {}

    def answer(self, request: WireRequest) -> Reply:
        status, text = self.said.get(request.path, (404, "{}"))
        return plain(text.replace("{auth}", request.headers.get("authorization", "")).encode(), status)

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")


@pytest.fixture
def server() -> Iterator[Answers]:
    with Answers() as made:
        yield made


def models(*names: str) -> tuple[int, str]:
    return 200, json.dumps({"models": [{"name": name} for name in names]})


@pytest.mark.parametrize("names, arguments, capabilities, model", [
    (["qwen3:8b", "llama3.2:latest"], [], ("text",), "llama3.2:latest"),
    (["nomic-embed-text:latest", "qwen3:8b"], [], ("text",), "qwen3:8b"),
    (["llama3.2:latest", "llava:13b"], [], ("text", "vision"), "llava:13b"),
    (["qwen3:8b", "gemma3:latest"], ["gemma3"], ("text",), "gemma3"),
])
def test_a_running_ollama_on_this_machine_is_chosen(
    monkeypatch: pytest.MonkeyPatch, server: Answers, names: list[str], arguments: list[str],
    capabilities: tuple[str, ...], model: str,
) -> None:
    server.said["/api/tags"] = models(*names)
    found = chosen(monkeypatch, *arguments, capabilities=capabilities, OLLAMA_HOST=server.host)
    assert (found.name, found.model.id) == ("ollama", model)
    assert found.reason == f"Ollama answers at http://{server.host}"


@pytest.mark.parametrize("answer, why", [
    ((200, "not JSON"), ""), ((500, '{"models": []}'), ""), ((200, '{"models": []}'), "; skipped: Ollama has no model for text"),
])
def test_an_ollama_without_a_fit_model_and_another_server_in_its_place_are_passed_over(
    monkeypatch: pytest.MonkeyPatch, server: Answers, answer: tuple[int, str], why: str
) -> None:
    server.said["/api/tags"] = answer
    found = chosen(monkeypatch, OLLAMA_HOST=server.host)
    assert (found.name, found.reason) == ("tape", f"no model vendor is configured{why}")


@pytest.mark.parametrize("host", ["10.255.255.1:11434", "ollama.example.com", "http://[bad"])
def test_an_ollama_on_another_machine_is_not_contacted_by_default(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    # tests/conftest.py raises for an address beyond this machine
    assert chosen(monkeypatch, OLLAMA_HOST=host).name == "tape"


def test_ollama_is_asked_for_the_models_that_it_has(monkeypatch: pytest.MonkeyPatch, server: Answers) -> None:
    server.said["/api/tags"] = models("qwen3:8b")
    assert chosen(monkeypatch, "", "ollama", OLLAMA_HOST=server.host).model.id == "qwen3:8b"
    with pytest.raises(UsageError, match="skipped: Ollama has no model gpt-4o, so nothing can run"):
        chosen(monkeypatch, "gpt-4o", OLLAMA_HOST=server.host)


# --------------------------------------------------------------------------------------------- on the command line

SECRET = "sk-very-secret-0123456789abcdef"


def test_the_providers_are_listed_with_their_models_and_whether_a_key_is_set(tmp_path: Path, server: Answers) -> None:
    server.said["/api/tags"] = models("qwen3:8b\x1b[31m")
    demo = Demo(tmp_path, "register_provider('mine', kernai.MockProvider, 'mine-1\\n\\x1b[31m')")
    done = demo.run("--list-providers", XAI_API_KEY=SECRET, LOCAL_BASE_URL="http://127.0.0.1:9", OLLAMA_HOST=server.host)
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line.split()[0]: " ".join(line.split()) for line in done.stdout.splitlines()}
    assert rows["mine"] == "mine mine-1 [31m registered"
    assert rows["xai"] == "xai grok-4.3 XAI_API_KEY is set"
    assert rows["groq"] == "groq openai/gpt-oss-120b no key: set GROQ_API_KEY"
    assert rows["local"] == "local none: name one LOCAL_BASE_URL is set"
    assert rows["ollama"] == f"ollama llama3.2 answers at http://{server.host}: qwen3:8b[31m"
    assert rows["smollm2"] == "smollm2 135m in this process"
    assert rows["tape"] == "tape as recorded there is none: make it with --save-tape"
    assert {vendor.name for vendor in VENDORS} <= set(rows)
    assert SECRET not in done.stdout


def test_the_choice_is_printed_with_its_reason(tmp_path: Path) -> None:
    more = "register_provider('mine', lambda: kernai.MockProvider('<final>It is 42.</final>'), 'mine\\n1\\x9b')"
    done = Demo(tmp_path, more).run(PROVIDER="mine")
    assert done.returncode == 0
    assert done.stdout.splitlines()[1] == "provider: mine mine 1 (PROVIDER in the environment)"
    assert "cost: unknown" in done.stdout


def test_the_failure_of_a_vendor_shows_no_key_anywhere(tmp_path: Path, server: Answers) -> None:
    server.said["/v1/chat/completions"] = (401, '{"error": {"message": "wrong key {auth}"}}')
    demo = Demo(tmp_path)
    record = tmp_path / "run.jsonl"
    done = demo.run("m", "local", "--record", record, LOCAL_BASE_URL=f"http://{server.host}/v1", LOCAL_API_KEY=SECRET)
    assert done.returncode == 1
    assert [request.path for request in server.requests] == ["/v1/chat/completions"]
    assert "FAILED: the run ended with error" in done.stdout
    written = "".join(path.read_text() for path in [record, *demo.logs.iterdir()])
    assert "wrong key" in written
    assert SECRET not in written + done.stdout + done.stderr
