"""The arguments of a provider's constructor, and errors about wrong ones, which come at once and show no secret."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from typing import Any

import pytest

import kernai_providers
from adapter_calls import ADAPTERS, HELLO, asked
from kernai import GenerationOptions, Model, ProviderError
from kernai_providers import HttpTransport, MemoryTransport, OpenAIProvider, resolve
from kernai_providers.httpx_transport import HttpxTransport
from kernai_providers.in_process import MemoryReply

KEY_HEADERS = dict.fromkeys(ADAPTERS, "Authorization") | {"anthropic": "x-api-key", "gemini": "x-goog-api-key"}
SECRET = "sk-S3CRET-0123456789"


def key_of(vendor: str, provider: kernai_providers.HttpProvider) -> str | None:
    shown = asked(provider).headers.get(KEY_HEADERS[vendor])
    return None if shown is None else shown.removeprefix("Bearer ")


def said_of(make: Callable[[], Any], *kinds: type[Exception]) -> str:
    """All that an error says, its causes and its traceback's lines included."""
    with pytest.raises(kinds) as caught:
        make()
    return "".join(traceback.format_exception_only(caught.value)) + repr(caught.value) + repr(caught.value.__cause__)


# ------------------------------------------------------------------------------------------------------- the key


BAD = ["\x00", "\n", "\r\n", "\x7f", "\x1b", "\x85", "é", "ключ", "\u200b", "\ufeff", "😀", "\ud83d"]


@pytest.mark.parametrize("key,kind,says", [
    *((key, ValueError, "api_key contains a character that no key has")
      for bad in BAD for key in (f"sk-S3{bad}CRET", f"{SECRET}{bad}x")),
    *((blank, ValueError, "leave api_key out") for blank in ("", "  ", "\n")),
    (b"sk-S3CRET", TypeError, "api_key must be text, got bytes"), (["sk-S3CRET"], TypeError, "api_key must be text, got list"),
])  # fmt: skip
def test_a_key_that_no_vendor_can_have_is_an_error_that_does_not_show_it(key: Any, kind: type[Exception], says: str) -> None:
    said = said_of(lambda: OpenAIProvider(key), kind)
    assert says in said
    assert not any(part in said for part in ("S3", "CRET", "0123"))


@pytest.mark.parametrize("vendor", ADAPTERS)
def test_the_key_is_read_from_the_environment_when_the_provider_is_made_and_never_again(vendor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = ADAPTERS[vendor].key_variables[0]
    monkeypatch.setenv(variable, f" {SECRET}\n")
    provider = ADAPTERS[vendor]()
    monkeypatch.setenv(variable, "sk-another-0123456789")
    assert key_of(vendor, provider) == SECRET
    monkeypatch.delenv(variable)
    assert key_of(vendor, provider) == SECRET
    for given in (f" {SECRET}", f"\t{SECRET}\r\n"):
        assert key_of(vendor, ADAPTERS[vendor](given)) == key_of(vendor, ADAPTERS[vendor](api_key=given)) == SECRET


@pytest.mark.parametrize("vendor", ADAPTERS)
@pytest.mark.parametrize("header", ["Authorization", "authorization", "the vendor's"])
def test_headers_that_authenticate_need_no_key_and_the_environments_key_is_not_sent(vendor: str, header: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = KEY_HEADERS[vendor].upper() if header == "the vendor's" else header
    provider = ADAPTERS[vendor](headers={name: "Bearer gateway"})
    assert asked(provider).headers[name] == "Bearer gateway"
    # whoever authenticates at a gateway has not asked for the vendor's key to be shown to it
    monkeypatch.setenv(ADAPTERS[vendor].key_variables[0], SECRET)
    provider = ADAPTERS[vendor](headers={name: "Bearer gateway"}, base_url="https://gateway.example.com")
    assert SECRET not in str(asked(provider).headers)


# ----------------------------------------------------------------------------------------------------- headers


@pytest.mark.parametrize("headers", [
    *({"X-Token": f"S3CRET{bad}0123"} for bad in BAD),
    *({name: SECRET} for name in ("", " ", "X Token", "X-Token:", "X-Tök", "X\nToken", f"Authorization: Bearer {SECRET}", "X\x00", "(x)")),
    5, "abc", [1], {"X-A": 1}, {1: "x"}, {"X-A": b"x"}, {"X-A": None},
    {"X-A": SECRET, "x-a": SECRET}, {"Content-Length": SECRET}, {"transfer-encoding": SECRET},
])  # fmt: skip
def test_headers_that_cannot_be_sent_are_an_error_at_once_that_shows_no_value(headers: Any) -> None:
    said = said_of(lambda: OpenAIProvider("k", headers=headers), ValueError, TypeError)
    assert "headers" in said
    assert ("X-Token" in said) == (list(headers) == ["X-Token"] if isinstance(headers, dict) else False)
    assert not any(part in said for part in ("S3CRET", "0123"))


# ---------------------------------------------------------------------------------------------------- base_url


@pytest.mark.parametrize("given,url", [
    ("https://example.com", "https://example.com"),
    (" https://example.com/v1//\n", "https://example.com/v1"),
    ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
    ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
])
def test_requests_are_sent_to_base_url(given: str, url: str) -> None:
    provider = OpenAIProvider("k", base_url=given)
    assert provider.base_url == url
    assert asked(provider).url == f"{url}/chat/completions"


@pytest.mark.parametrize("url", [
    "", "  ", "example.com", "//example.com", "ftp://example.com", "file:///etc", "https://", "https:///v1", "http://:80", "https:example.com",
    "https://example.com?x=1", "https://example.com/#a", "https://example.com/v1?", "https://example.com/v1#",
    "https://exa mple.com", "https://example.com/a b", "https://example.com/\x00", "https://exa\nmple.com", "https://bücher.example", "https://example.com/ü",
    "http://example.com:99999", "http://example.com:0", "http://example.com:port", "http://example.com:-1", "http://[::1", "http://[nonsense]",
    5, b"https://example.com", True, ["https://example.com"],
    f"https://user:{SECRET}@example.com/v1", f"https://{SECRET}@example.com", f"https://:{SECRET}@example.com", f"https://example.com/?key={SECRET}",
    f"https://example.com/#{SECRET}", f"ftp://user:{SECRET}@example.com", f"https://user:{SECRET}@", f"https://u:{SECRET}@exa mple.com", f"https://u:{SECRET}@h:port",
    f"https://user:{SECRET}@ex\u2100mple.com", f"https://user:{SECRET}", f"https://user:{SECRET}@[::1", f"example.com/v1?key={SECRET}", f"h/#{SECRET}",
])  # fmt: skip
def test_an_invalid_base_url_is_an_error_that_names_it_and_shows_no_secret(url: Any) -> None:
    said = said_of(lambda: OpenAIProvider("k", base_url=url), ValueError, TypeError)
    assert "base_url" in said
    assert SECRET not in said


# --------------------------------------------------------------------------------------------------- the others


@pytest.mark.parametrize("timeout,connect,read", [(120, 10.0, 120.0), (5, 5.0, 5.0), ((30, 600), 30.0, 600.0), (0.5, 0.5, 0.5)])
def test_timeouts_are_one_number_or_a_pair(timeout: Any, connect: float, read: float) -> None:
    timeouts = asked(OpenAIProvider("k", timeout=timeout)).timeouts
    assert (timeouts.connect, timeouts.read) == (connect, read)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "arguments",
    [
        *({"timeout": one} for one in (0, -1, NAN, INF, None, True, "5", (), (1,), (1, 2, 3), (0, 1), (1, None), [1, 2], 1e10, 10**400, (1e12, 1))),
        *({"max_retries": one} for one in (-1, 1.5, True, None, "2", NAN)),
        *({"max_retry_wait": one} for one in (-1, NAN, INF, None, "60")),
        *({"max_response_bytes": one} for one in (0, -1, 1.5, True, None, "64")), {"done_marker": "false"},
        *({"transport": one} for one in (5, "http", object(), HttpTransport, MemoryTransport)),
    ],
    ids=lambda arguments: re.sub(" at 0x[0-9a-f]+", "", repr(arguments)),  # which would differ between workers
)  # fmt: skip
def test_a_wrong_argument_is_an_error_at_once_that_names_it(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    assert re.search(rf"\b{name}\b", said_of(lambda: OpenAIProvider("k", **arguments), ValueError, TypeError))


@pytest.mark.parametrize("arguments", [
    *({"max_idle": one} for one in (-1, 1.5, None)), *({"idle_seconds": one} for one in (-1, NAN, None, "5")), {"ssl_context": "cert.pem"},
])  # fmt: skip
@pytest.mark.parametrize("transport", [HttpTransport, HttpxTransport])
def test_a_wrong_argument_of_a_transport_is_an_error_at_once_that_names_it(transport: Any, arguments: dict[str, Any]) -> None:
    assert next(iter(arguments)) in said_of(lambda: transport(**arguments), ValueError, TypeError)


def test_a_compatible_provider_says_how_it_is_made_and_that_it_needs_an_address() -> None:
    a_text = kernai_providers.Vendor("acme", OpenAIProvider, "_", "https://a")  # type: ignore[arg-type]  # the shell's variable for the program
    for vendor, why in (("groq", "resolve"), (a_text, r"write key_variables=\['_'\]")):
        with pytest.raises(TypeError, match=why):
            kernai_providers.CompatibleProvider(vendor)  # type: ignore[arg-type]  # the subject
    with pytest.raises(kernai_providers.MissingSettingError, match=r"acme needs an address: give base_url='http://localhost:8000/v1'$"):
        kernai_providers.CompatibleProvider(kernai_providers.Vendor("acme", OpenAIProvider, ()), "k")


def test_max_response_bytes_is_a_bound() -> None:
    head = {"content-type": "text/event-stream"}
    for size, kept in ((99, False), (100, True)):
        transport = MemoryTransport(MemoryReply(200, head, [b":" + b"x" * 97 + b"\n\n"]))
        with pytest.raises(ProviderError) as caught:
            OpenAIProvider("k", transport=transport, max_response_bytes=size, max_retries=0).call(HELLO, Model("m"), GenerationOptions(), str)
        assert caught.value.code == ("cut" if kept else "response_too_large")


# ------------------------------------------------------------------------------------------------------ secrets


@pytest.mark.parametrize("vendor", ADAPTERS)
def test_no_repr_of_a_provider_or_its_parts_shows_its_secrets(vendor: str) -> None:
    provider = ADAPTERS[vendor](SECRET, headers={"X-Token": "T0KEN-0123456789"}, base_url="https://example.com/v1")
    request = asked(provider)
    exchange = provider._exchange(HELLO, Model("m"), GenerationOptions(), None)
    for shown in (provider, request, exchange, exchange.retries, provider.transport, provider.call, provider.reader()):
        for text in (repr(shown), str(shown), f"{shown}"):
            assert SECRET not in text
            assert "T0KEN" not in text
    assert repr(provider) == f"{type(provider).__name__}(base_url='https://example.com/v1')"


# ---------------------------------------------------------------------------------------------- the version in it

VARIABLES = {"anthropic": "ANTHROPIC_BASE_URL", "gemini": "GOOGLE_GEMINI_BASE_URL", "openai": "OPENAI_BASE_URL"}


@pytest.mark.parametrize("vendor, given, base, by_variable", [
    *((vendor, given, version, version) for vendor, version in (("anthropic", "/v1"), ("gemini", "/v1beta")) for given in ("", "/", version)),
    # in its variable the vendor's own client puts the version after any path
    ("anthropic", "/v1/account/proxy", "/v1/account/proxy", "/v1/account/proxy/v1"), ("anthropic", "/proxy/v1", "/proxy/v1", "/proxy/v1"),
    # the path of a request is removed from a copied address
    ("openai", "/v1/chat/completions", "/v1", "/v1"), ("openai-responses", "/v1/responses/", "/v1", None),
    ("anthropic", "/v1/messages", "/v1", "/v1"), ("anthropic", "/proxy/messages/", "/proxy", "/proxy/v1"), ("ollama", "/api/chat", "", None),
])  # fmt: skip
def test_a_base_url_may_include_the_version_and_the_path_of_a_request_or_not(
    vendor: str, given: str, base: str, by_variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = ADAPTERS[vendor]("k", base_url=f"https://gateway.example{given}")
    assert provider.base_url == f"https://gateway.example{base}"
    assert asked(provider).url.startswith(f"https://gateway.example{base}{provider.endpoint}")
    if by_variable is not None:
        monkeypatch.setenv(VARIABLES[vendor], f"https://gateway.example{given}")
        assert ADAPTERS[vendor]("k").base_url == f"https://gateway.example{by_variable}"
    monkeypatch.setenv("LOCAL_BASE_URL", "http://localhost:8000/v1/chat/completions")
    assert resolve("local/m")[0].base_url == "http://localhost:8000/v1"
