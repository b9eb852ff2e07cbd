"""Proxies from the environment, over sockets: the server plays the proxy, and the host behind it."""

from __future__ import annotations

import base64
import traceback
from dataclasses import replace
from typing import Any

import pytest

from kernai._util.network import proxy_url
from kernai_providers.request_checks import Endpoint, proxy_for, proxy_secrets
from kernai_providers.transport import Request
from transport_clients import REAL, client_of, failure, read
from wire_server import Authority, Close, Reply, WireServer, plain, tunnel

pytestmark = pytest.mark.slow

PASSWORD = "s3cret/p@ss"  # as it must be written in the URL: percent-encoded
CREDENTIALS = "me:s3cret%2Fp%40ss@"
BASIC = "Basic " + base64.b64encode(f"me:{PASSWORD}".encode()).decode()
KEY = "sk-for-the-vendor-only"


@pytest.fixture(params=REAL)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def request(scheme: str) -> Request:
    return Request("POST", f"{scheme}://vendor.test/v1/chat?a=b", {"X-Api-Key": KEY}, b"{}")


def use(monkeypatch: pytest.MonkeyPatch, variable: str, port: int, credentials: str = CREDENTIALS) -> None:
    monkeypatch.setenv(variable, f"http://{credentials}127.0.0.1:{port}")


@pytest.mark.parametrize("variable", ["http_proxy", "ALL_PROXY"])
def test_plain_http_is_asked_of_the_proxy_by_its_whole_url(monkeypatch: Any, kind: str, variable: str) -> None:
    with WireServer(plain(b"hello")) as server, client_of(kind) as client:
        use(monkeypatch, variable, server.port)
        for _ in range(2):
            assert read(client, request("http")) == (200, b"hello")
        sent = server.requests[0]
        assert sent.path.replace(":80/", "/") == "http://vendor.test/v1/chat?a=b"
        assert sent.headers["host"].removesuffix(":80") == "vendor.test"
        assert (sent.headers["proxy-authorization"], sent.headers["x-api-key"]) == (BASIC, KEY)
        assert server.accepts == 1


@pytest.mark.parametrize("host", ["vendor.test", "[fd00::7]"])
def test_https_goes_through_a_tunnel_that_the_proxy_cannot_look_into(monkeypatch: Any, kind: str, host: str) -> None:
    authority = Authority()
    script = [tunnel(authority.server(host.strip("[]"))), plain(b"hello"), plain(b"again")]
    with WireServer(script) as server, client_of(kind, authority.client()) as client:
        use(monkeypatch, "HTTPS_PROXY", server.port)
        asked = replace(request("https"), url=f"https://{host}/v1/chat?a=b")
        assert read(client, asked) == (200, b"hello")
        assert read(client, asked) == (200, b"again")
        connect, sent, _ = server.requests
        assert (connect.method, connect.path) == ("CONNECT", f"{host}:443")
        assert connect.headers["proxy-authorization"] == BASIC
        assert "x-api-key" not in connect.headers
        assert (sent.path, sent.headers["host"], sent.headers["x-api-key"]) == ("/v1/chat?a=b", host, KEY)
        assert "proxy-authorization" not in sent.headers
        assert server.accepts == 1


@pytest.mark.parametrize("proxy_name, host_name", [("127.0.0.1", "vendor.test"), ("other.test", "vendor.test"), (None, "other.test")])
def test_a_proxy_may_be_spoken_to_over_tls_with_tls_to_the_host_inside_and_each_certificate_counts(
    monkeypatch: Any, kind: str, proxy_name: str | None, host_name: str
) -> None:
    authority, body = Authority(), b"0123456789" * 20_000
    script = [tunnel(authority.server(host_name)), plain(body)]
    tls = authority.server(proxy_name) if proxy_name else None
    with WireServer(script, tls=tls) as server, client_of(kind, authority.client()) as client:
        monkeypatch.setenv("https_proxy", f"{'https' if tls else 'http'}://127.0.0.1:{server.port}")
        if "other.test" in (proxy_name, host_name):
            error = failure(lambda: client.send(request("https")))
            assert (error.kind, "certificate" in str(error), "vendor.test:443" in str(error)) == ("tls", True, True)
        else:
            assert read(client, replace(request("https"), body=body)) == (200, body)
            assert server.requests[1].body == body


@pytest.mark.parametrize(
    "answer, says", [
        (f"HTTP/1.1 407 {PASSWORD} is wrong, {BASIC}\r\n\r\n", "status 407"), (f"{PASSWORD} {BASIC}\r\n\r\n", "is of another kind"),
        ("HTTP/1.1 200 OK\r\n" + "X: y\r\n" * 20_000, "is of another kind"), ("", "closed"),
    ],
    ids=("refused", "garbage", "too long", "nothing"),
)  # fmt: skip
def test_a_proxy_that_repeats_its_password_puts_it_into_no_error(monkeypatch: Any, kind: str, answer: str, says: str) -> None:
    with WireServer(Reply(before=(answer.encode(), Close()))) as server, client_of(kind) as client:
        use(monkeypatch, "https_proxy", server.port)
        error = failure(lambda: client.send(request("https")))
    shown = "".join(traceback.format_exception(error))
    assert not any(secret in shown for secret in (PASSWORD, CREDENTIALS, BASIC, BASIC.split()[1], KEY))
    assert f"no connection to vendor.test:443 through the proxy 127.0.0.1:{server.port}: " in str(error)
    assert (error.kind, says in str(error)) == ("connect", True)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_cannot_be_reached_is_a_failed_connection(monkeypatch: Any, kind: str, scheme: str) -> None:
    with WireServer(plain(b"")) as server:
        pass
    use(monkeypatch, "ALL_PROXY", server.port)
    with client_of(kind) as client:
        error = failure(lambda: client.send(request(scheme)))
    assert error.kind == "connect"
    assert f" through the proxy 127.0.0.1:{server.port}: Connection refused" in str(error)
    assert PASSWORD not in "".join(traceback.format_exception(error))


@pytest.mark.parametrize("host, proxy, no_proxy, goes", [
    ("vendor.test", "http://proxy.test:3128", "", True),
    ("vendor.test", "proxy.test:3128", "", True),
    *((host, "http://proxy.test:3128", listed, goes) for host, listed, goes in (
        ("vendor.test", "vendor.test", False), ("api.vendor.test", "other.test,.vendor.test", False), ("api.vendor.test", "*.Vendor.test", False), ("my-vendor.test", "*.vendor.test", True),
        ("api.vendor.test", "other.test, *", False), ("vendor.test", "*.other.test,10.0.0.0/8", True), ("10.1.2.3", "a.test, 10.0.0.0/8", False),
        ("10.1.2.3", "10.9.9.9/8", False), ("11.1.2.3", "10.0.0.0/8", True), ("fd00::1", "fd00::/8", False), ("10.1.2.3", "fd00::/8", True),
        ("fd00::1", "fd00::1", False), ("fd00::1", "[fd00::1]", False), ("fd00::1", "[fd00::1]:443", False), ("fd00::2", "fd00::1", True))),
    ("vendor.test", " ", "", False),
    ("localhost", "http://proxy.test:3128", "", False),
    ("127.8.9.10", "http://proxy.test:3128", "", False),
    ("::1", "http://proxy.test:3128", "", False),
    ("10.0.0.1", "http://proxy.test:3128", "", True),
])  # fmt: skip
def test_the_environment_says_which_hosts_have_a_proxy(monkeypatch: Any, host: str, proxy: str, no_proxy: str, goes: bool) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    monkeypatch.setenv("no_proxy", no_proxy)
    to = Endpoint("https", host, 443)
    found = proxy_for(to)
    assert (found is not None) == goes == bool(proxy_url(f"https://me:{KEY}@{to.peer}"))
    assert found is None or (found.scheme, found.peer, found.authorization) == ("http", "proxy.test:3128", None)


@pytest.mark.parametrize("url", [f"http://{CREDENTIALS}", f"socks4://{CREDENTIALS}proxy.test:1", f"http://{CREDENTIALS}proxy.test:port", f"http://{CREDENTIALS}proxy test"])
def test_a_proxy_that_is_no_url_is_named_by_its_scheme_only(monkeypatch: Any, url: str) -> None:
    monkeypatch.setenv("https_proxy", url)
    error = failure(lambda: proxy_for(Endpoint("https", "vendor.test", 443)))
    assert (error.retryable, "for https is not a URL" in str(error)) == (False, True)
    assert "s3cret" not in "".join(traceback.format_exception(error))


def test_the_secrets_of_a_proxy_are_its_credentials_however_they_are_echoed_and_its_repr_holds_none(monkeypatch: Any) -> None:
    monkeypatch.setenv("https_proxy", f"http://{CREDENTIALS}proxy.test:3128")
    monkeypatch.setenv("http_proxy", "http://proxy.test:3128")
    assert "s3cret" not in repr(proxy_for(Endpoint("https", "vendor.test", 443)))
    assert proxy_secrets() == [BASIC.removeprefix("Basic "), f"me:{PASSWORD}", PASSWORD]
