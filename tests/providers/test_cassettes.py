"""Every adapter against answers that were recorded once: the network is closed, and no key is in any file."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from vcr.errors import CannotOverwriteExistingCassetteException

from asking import ADAPTERS
from cassettes import FOLDER, cassette, mode
from kernai import GenerationOptions, LlmResponse, Media, Message, Model, ProviderError
from kernai_providers import HttpProvider
from vendor_wires import WIRES, Wire
from wire_server import WireServer

KEY = "sk-cassette-0123456789"
EVERY = pytest.mark.parametrize("vendor", ADAPTERS)
PIXEL = Media.from_bytes(b"\x89PNG\r\n\x1a\n", mime_type="image/png")
HELLO = (Message("system", "Be brief."), Message("user", ["Grüß mich", PIXEL]))


@contextmanager
def provider_on(vendor: str, name: str, server: WireServer) -> Iterator[HttpProvider]:
    """The adapter at its own address; while recording without a real key, at the loopback server's."""
    adapter = ADAPTERS[vendor]
    real_key = next((os.environ[one] for one in adapter.key_variables if os.environ.get(one)), None)
    here = mode() == "all" and real_key is None
    base_url = WIRES[vendor].base_url(server.url) if here else adapter.default_base_url
    key = real_key if mode() == "all" and real_key is not None else KEY
    with cassette(f"{vendor}-{name}", adapter.default_base_url), adapter(key, base_url=base_url, max_retries=0) as it:
        yield it


def ask(provider: HttpProvider, wire: Wire, pieces: list[str], model_id: str | None = None) -> LlmResponse:
    model = Model(model_id or wire.model, ("text", "vision"))
    return provider.call(HELLO, model, GenerationOptions(max_tokens=64), pieces.append)


@EVERY
def test_an_answer_is_played_back_whole(vendor: str) -> None:
    wire, pieces = WIRES[vendor], list[str]()
    with WireServer(wire.answer("Grüß ", "dich, 世界!")) as server, provider_on(vendor, "answer", server) as provider:
        response = ask(provider, wire, pieces)
    # what it says is up to who was recorded
    assert "".join(pieces) == response.content != ""
    assert response.finish_reason in ("stop", "length")
    assert None not in (response.prompt_tokens, response.completion_tokens)


@EVERY
def test_a_refusal_is_played_back_as_the_error_it_was(vendor: str) -> None:
    wire = WIRES[vendor]
    with WireServer(wire.error(404, "no such model")) as server, provider_on(vendor, "missing", server) as provider, \
            pytest.raises(ProviderError, match=f"^{vendor}: HTTP 404") as raised:
        ask(provider, wire, [], "no-such-model")
    assert (raised.value.status, raised.value.retryable) == (404, False)


@EVERY
def test_a_request_that_was_not_recorded_is_not_made(vendor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VCR_RECORD", "none")
    adapter = ADAPTERS[vendor]
    with cassette(f"{vendor}-answer", adapter.default_base_url), adapter(KEY, max_retries=0) as provider, \
            pytest.raises(CannotOverwriteExistingCassetteException):
        provider.call((Message("user", "something else"),), Model("m"), GenerationOptions(), print)


@pytest.fixture(autouse=True)
def _closed_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """While cassettes are played back, not even this machine is reached."""
    if mode() == "none":
        def connect(self: socket.socket, address: Any) -> None:
            raise AssertionError(f"a cassette reached for {address!r}")

        monkeypatch.setattr(socket.socket, "connect", connect)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.name)
def test_no_cassette_holds_a_key_or_the_address_of_the_server_it_came_from(path: Path) -> None:
    text = path.read_text(encoding="utf-8").lower()
    assert [word for word in (KEY, "bearer", "api-key:", "127.0.0.1", "set-cookie") if word in text] == []
