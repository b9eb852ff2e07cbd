"""Signing in with a token that a program gets itself. OAuth as a whole is held by the conformance package's scenarios."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from kernai import skill
from kernai.mcp import McpConfigError, setup
from kernai.mcp.serving import Server
from tests.mcp.support import answering, call

TOKEN = "ghp_0123456789abcdefghij"


@skill(register=False)
def echo(text: str) -> str:
    """Say it again."""
    return text


class Bearer(httpx2.Auth):
    def __init__(self, *tokens: str) -> None:
        self.tokens = list(tokens)

    def auth_flow(self, request: httpx2.Request) -> Iterator[httpx2.Request]:  # type: ignore[override]
        request.headers["Authorization"] = f"Bearer {self.tokens[0]}"
        response: Any = yield request
        if response.status_code == 401 and len(self.tokens) > 1:
            self.tokens.pop(0)
            request.headers["Authorization"] = f"Bearer {self.tokens[0]}"
            yield request


def test_each_request_is_signed_and_a_token_may_be_renewed() -> None:
    with Server([echo], port=0, token=TOKEN) as server:
        servers = {"servers": {"it": {"url": server.url}}}
        with setup(servers, register=False, auth={"it": Bearer("expired", TOKEN)}) as adapter:
            assert call(adapter, "echo", text="hello").text == "hello"
        with setup(servers, register=False) as adapter:
            assert "HTTP status 401" in str(call(adapter, "echo", text="hello").error)


def test_a_token_that_was_not_configured_is_hidden_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    echo = lambda request, _: (200, "application/json", json.dumps({"you sent": request.headers["Authorization"]}))  # noqa: E731
    with answering(echo) as host:
        servers = {"servers": {"it": {"url": f"http://{host}/mcp", "timeout": 5}}}
        with setup(servers, register=False, auth={"it": Bearer(TOKEN)}) as adapter:
            error = str(call(adapter, "echo").error)
            assert adapter._connections is not None
            assert adapter._connections["it"].redactor.text(f"sent {TOKEN}") == "sent [header Authorization]"
    assert "cannot be reached" in error
    assert TOKEN not in error + caplog.text


@pytest.mark.parametrize("auth, kind, message", [
    ([1], TypeError, "auth must be a mapping from server names to httpx2.Auth, got list"),
    ({"it": "token"}, TypeError, r"auth\['it'\] must be an httpx2.Auth, such as the SDK's OAuthClientProvider, got str"),
    ({"other": Bearer("x")}, McpConfigError, r"auth\['other'\]: there is no server with a url of that name"),
    ({"local": Bearer("x")}, McpConfigError, r"auth\['local'\]: there is no server with a url of that name"),
])
def test_a_wrong_auth_is_refused_at_once(auth: Any, kind: type[Exception], message: str) -> None:
    servers = {"it": {"url": "http://host/mcp"}, "local": {"command": "true"}}
    with pytest.raises(kind, match=message):
        setup({"servers": servers}, register=False, auth=auth)
