"""What real vendors said and take: cassettes, and the types of their own clients.

A cassette is what a vendor said once, kept in a file and played back without a network. A test asks for one by name.
Played back, nothing is reached, and a request that differs from the recorded one in its address or its body is an
error. ``VCR_RECORD=all`` records again: from the vendor where its key is set, else from a server on loopback that
speaks its format.
"""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
import vcr
from pydantic import TypeAdapter

from adapter_calls import ADAPTERS, asked, body_of, user
from kernai import GenerationOptions, LlmResponse, Media, Message, Model, ProviderError, execute
from kernai_providers import HttpProvider
from test_native_calls import MODELS, TAPES, Price, Server, search, spoken
from vendor_wires import WIRES
from wire_format import Turn, Wire, data_of
from wire_server import WireServer

FOLDER = Path(__file__).parent / "cassettes"
#: whether cassettes are recorded again
RECORDING = os.environ.get("VCR_RECORD") == "all"
KEY_HEADERS = ("authorization", "x-api-key", "x-goog-api-key", "api-key", "proxy-authorization", "cookie")
#: of an answer: what names an account, or changes with each recording without being looked at
DROPPED = ("set-cookie", "openai-organization", "openai-project", "anthropic-organization-id", "cf-ray", "date")


@contextmanager
def cassette(name: str, address: str) -> Iterator[Any]:
    """Plays `name` back, or records it. Requests are kept as if they had gone to `address`, wherever they went."""
    path = FOLDER / f"{name}.yaml"
    if RECORDING:
        path.unlink(missing_ok=True)
    elif not path.is_file():
        pytest.fail(
            f"there is no cassette {path.name}; record it with: "
            f"VCR_RECORD=all python3 dev.py test tests/providers/test_cassettes.py -k {name.partition('-')[0]}"
        )
    recorder = vcr.VCR(
        record_mode=vcr.mode.ALL if RECORDING else vcr.mode.NONE, match_on=("method", "uri", "body"), filter_headers=list(KEY_HEADERS),
        before_record_request=lambda request: _addressed(request, address), before_record_response=_plain,
    )
    with recorder.use_cassette(str(path)) as played:
        yield played


def _addressed(request: Any, address: str) -> Any:
    target, vendor = urlsplit(request.uri), urlsplit(address)
    request.uri = urlunsplit((vendor.scheme, vendor.netloc, target.path, target.query, ""))
    return request


def _plain(response: dict[str, Any]) -> dict[str, Any]:
    headers = response["headers"]
    return {**response, "headers": {name: value for name, value in headers.items() if name.lower() not in DROPPED}}


# Every adapter against answers that were recorded once: the network is closed, and no key is in any file.


KEY = "sk-cassette-0123456789"
EVERY = pytest.mark.parametrize("vendor", ADAPTERS)
PIXEL = Media.from_bytes(b"\x89PNG\r\n\x1a\n", mime_type="image/png")
HELLO = (Message("system", "Be brief."), Message("user", ["Grüß mich", PIXEL]))


@contextmanager
def provider_on(vendor: str, name: str, server: WireServer) -> Iterator[HttpProvider]:
    """The adapter at its own address; while recording without a real key, at the loopback server's."""
    adapter = ADAPTERS[vendor]
    real_key = next((os.environ[one] for one in adapter.key_variables if os.environ.get(one)), None)
    here = RECORDING and real_key is None
    base_url = WIRES[vendor].base_url(server.url) if here else adapter.default_base_url
    key = real_key if RECORDING and real_key is not None else KEY
    with cassette(f"{vendor}-{name}", adapter.default_base_url), adapter(key, base_url=base_url, max_retries=0) as it:
        yield it


def ask(provider: HttpProvider, wire: Wire, pieces: list[str], model_id: str | None = None) -> LlmResponse:
    model = Model(model_id or wire.model, ("text", "vision"))
    return provider.call(HELLO, model, GenerationOptions(max_tokens=64), pieces.append)


@EVERY
def test_a_recorded_answer_and_a_recorded_error_are_played_back_completely(vendor: str) -> None:
    wire, pieces = WIRES[vendor], list[str]()
    with WireServer([wire.answer("Grüß ", "dich, 世界!"), wire.error(404, "no such model")]) as server:
        with provider_on(vendor, "answer", server) as provider:
            response = ask(provider, wire, pieces)
        with provider_on(vendor, "missing", server) as provider, \
                pytest.raises(ProviderError, match=f"^{vendor}: HTTP 404") as raised:
            ask(provider, wire, [], "no-such-model")
    # what it says is up to who was recorded
    assert "".join(pieces) == response.content != ""
    assert response.finish_reason in ("stop", "length")
    assert None not in (response.prompt_tokens, response.completion_tokens)
    assert (raised.value.status, raised.value.retryable) == (404, False)


@pytest.fixture(autouse=True)
def _closed_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """While cassettes are played back, not even this machine is reached."""
    if not RECORDING:
        def connect(self: socket.socket, address: Any) -> None:
            raise AssertionError(f"a cassette reached for {address!r}")

        monkeypatch.setattr(socket.socket, "connect", connect)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.name)
def test_no_cassette_holds_a_key_or_the_address_of_the_server_it_came_from(path: Path) -> None:
    text = path.read_text(encoding="utf-8").lower()
    assert [word for word in (KEY, "bearer", "api-key:", "127.0.0.1", "set-cookie") if word in text] == []


# The vendors' own clients: their types read what our loopback servers send, and take what our adapters send.


PDF = Media.from_bytes(b"%PDF-1.7", mime_type="application/pdf")
THOUGHT = WIRES["openai-responses"].thought(Turn(reasoning=("hm",)))  # type: ignore[attr-defined]  # it has one
TALK = (
    Message("system", "Be brief."), user("Look:", PIXEL, PDF), Message("assistant", "I see.", reasoning=[THOUGHT]),
    user("What?"),
)  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "openai": {"max_tokens": 5000, "temperature": 0.5, "top_p": 0.9, "stop": ["END"]},
    "openai-responses": {"max_tokens": 5000, "thinking": {"effort": "high"}},
    "anthropic": {"max_tokens": 5000, "thinking": {"effort": "high"}, "stop": ["END"], "cache": "1h"},
    "gemini": {"max_tokens": 5000, "temperature": 0.5, "stop": ["END"], "thinking": {"budget": 2000}},
    "ollama": {"max_tokens": 5000, "temperature": 0.5, "stop": ["END"], "thinking": {"effort": "high"}},
}
Check = Callable[[Any], object]


#: their types of an event and of a request
OFFICIAL = {
    "openai": ("openai.types.chat ChatCompletionChunk", "openai.types.chat.completion_create_params CompletionCreateParamsStreaming"),
    "openai-responses": (
        "openai.types.responses ResponseStreamEvent", "openai.types.responses.response_create_params ResponseCreateParamsStreaming"),
    "anthropic": (
        "anthropic.types RawMessageStreamEvent", "anthropic.types.message_create_params MessageCreateParamsStreaming"),
    "gemini": ("google.genai.types GenerateContentResponse", "google.genai.types Content"),
    "ollama": ("ollama ChatResponse", "ollama._types ChatRequest"),
}  # fmt: skip


def check_of(name: str) -> Check:
    """A check that leaves nothing for later: pydantic looks at what is iterable only when it is iterated."""
    module, kind = name.split()
    adapter = TypeAdapter(getattr(pytest.importorskip(module, reason=f"needs the types of {module}"), kind))

    def look(value: Any) -> None:
        if isinstance(value, dict):
            value = value.values()
        elif not isinstance(value, list) and not hasattr(value, "__next__"):
            return
        for one in value:
            look(one)

    return lambda data: look(adapter.validate_python(data))


def official(vendor: str) -> tuple[Check, Check]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs to mend
        read, take = map(check_of, OFFICIAL[vendor])
        if vendor != "gemini":
            return read, take
        configure = check_of("google.genai.types GenerationConfig")

    def request(body: Any) -> None:
        for content in (*body["contents"], body["systemInstruction"]):
            take(content)
        configure(body["generationConfig"])

    return read, request


@pytest.mark.slow
@pytest.mark.parametrize("vendor", OFFICIAL)
def test_the_types_of_the_vendors_clients_accept_what_our_servers_and_adapters_send(vendor: str) -> None:
    read, take = official(vendor)
    turns = [Turn(("Hel", "lo"), reasoning=("hm",)), Turn(), Turn(("Hel",), finish="length")]
    turns += [Turn(("x",), usage=None)] if vendor != "anthropic" else []  # which always sends it
    for event in (event for turn in turns for event in WIRES[vendor].whole(turn)):
        read_event(read, event)
    model = Model(MODELS.get(vendor, "model-1"), ("text", "vision", "document_in"))
    body = body_of(asked(ADAPTERS[vendor]("k"), model, TALK, OPTIONS[vendor]))
    take(body)
    assert (THOUGHT["encrypted_content"] in str(body)) == (vendor == "openai-responses")
    # native calls
    runs: list[tuple[Sequence[str], dict[str, Any]]] = [
        *((TAPES[tape], {}) for tape in ("several calls", "a picture", "a built-in command")),
        *((['{"amount": 2.5, "currency": "EUR"}'], {"output": Price, "skills": skills}) for skills in ([search], None)),
    ]
    for texts, options in runs:
        server = Server(vendor, texts, thought="Hm.")
        execute(server.agent(generation={"max_tokens": 5000}, **options), "Go.")
        for body in server.bodies:
            take(body)
        for event in (event for text in texts for event in spoken(vendor, text, thought="Hm.")):
            read_event(read, event)


def read_event(read: Check, event: bytes) -> None:
    data = data_of(event)
    if data and data.get("type") != "ping":  # which Anthropic's client passes over
        read(data)
