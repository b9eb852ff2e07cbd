"""The program that the conformance package tests.

With a URL it is a client that lists the tools of that server and calls each. Without one it is a server of the tools
that the package calls, and prints its URL.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from mcp_types import ElicitResult
from pydantic import AnyUrl

from kernai import Block, Media, Skill, SkillContext, skill
from kernai.mcp import Adapter, McpError, serve, setup
from kernai.mcp.schemas import example

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CONTEXT = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
CALLBACK = "http://localhost:3030/callback"


class Tokens:
    """A token store as a user would write it."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None
        if "client_id" in CONTEXT and SCENARIO == "auth/pre-registration":
            self.client = OAuthClientInformationFull(
                client_id=CONTEXT["client_id"], client_secret=CONTEXT["client_secret"], redirect_uris=[AnyUrl(CALLBACK)],
                token_endpoint_auth_method="client_secret_basic",
            )

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class Browser:
    """Signs in as a user would in a browser: opens the address and reads the code from the redirect."""

    location = ""

    async def open(self, url: str) -> None:
        async with httpx2.AsyncClient() as client:
            self.location = (await client.get(url, follow_redirects=False)).headers["location"]

    async def returned(self) -> AuthorizationCodeResult:
        found = {key: values[0] for key, values in parse_qs(urlsplit(self.location).query).items()}
        return AuthorizationCodeResult(code=found["code"], state=found.get("state"), iss=found.get("iss"))


def signing_in(url: str) -> httpx2.Auth:
    """Sign in as a user's program would."""
    warnings.filterwarnings("ignore", message="Omitting `issuer`")  # the package does not send it
    if SCENARIO == "auth/client-credentials-basic":
        return ClientCredentialsOAuthProvider(url, Tokens(), CONTEXT["client_id"], CONTEXT["client_secret"])
    if SCENARIO == "auth/client-credentials-jwt":
        signed = SignedJWTParameters(
            issuer=CONTEXT["client_id"], subject=CONTEXT["client_id"], signing_key=CONTEXT["private_key_pem"],
            signing_algorithm=CONTEXT.get("signing_algorithm", "ES256"),
        )
        return PrivateKeyJWTOAuthProvider(url, Tokens(), CONTEXT["client_id"], signed.create_assertion_provider())
    browser = Browser()
    metadata = OAuthClientMetadata.model_validate({
        "client_name": "kernai", "redirect_uris": [CALLBACK], "grant_types": ["authorization_code", "refresh_token"],
    })
    return OAuthClientProvider(
        url, metadata, Tokens(), browser.open, browser.returned,
        client_metadata_url="https://conformance-test.local/client-metadata.json",
    )


def accept(_: Any, params: Any) -> ElicitResult:
    """Answer a form with its defaults, as if the user had sent it unchanged."""
    fields = params.requested_schema["properties"]
    return ElicitResult(action="accept", content={name: one["default"] for name, one in fields.items() if "default" in one})


def ask(adapter: Adapter, method: str, **params: Any) -> str:
    try:
        content = json.dumps({"method": method, "params": params})
        answer = str(adapter.protocol.handler(Block("mcp", None, content), SkillContext(None)))
    except McpError as error:
        answer = f"error: {error}"
    print(method, params, answer, flush=True)
    return answer


def main(url: str) -> None:
    auth = {"it": signing_in(url)} if SCENARIO.startswith("auth/") else None
    entry = {"url": url, "timeout": 20}
    with setup({"servers": {"it": entry}}, register=False, elicitation=accept, auth=auth) as adapter:
        ask(adapter, "tools/list")
        tools = adapter._connections["it"].catalogue.tools
        for name, tool in tools.items():
            arguments = example(tool.input_schema, {})
            if name == "json_schema_echo":  # the argument is the schema of the other tool
                arguments = {"schema": tools["json_schema_2020_12_tool"].input_schema}
            given = [one["arguments"] for one in CONTEXT.get("toolCalls", []) if one["name"] == name]
            for one in given or [arguments]:
                ask(adapter, "tools/call", name=name, arguments=one)


# --------------------------------------------------------------------------------------------------- the tools served

PICTURE = Media.from_bytes(b"\x89PNG\r\n\x1a\n", mime_type="image/png")


@skill(register=False)
def test_simple_text() -> str:
    """Give a text."""
    return "This is a simple text response for testing."


@skill(register=False)
def test_image_content() -> Media:
    """Give an image."""
    return PICTURE


@skill(register=False)
def test_audio_content() -> Media:
    """Give a sound."""
    return Media.from_bytes(b"RIFF\0\0\0\0WAVE", mime_type="audio/wav")


@skill(register=False)
def test_embedded_resource() -> Media:
    """Give a document."""
    return Media.from_bytes(b"This is an embedded resource content.", mime_type="text/plain")


@skill(register=False)
def test_multiple_content_types() -> list[Any]:
    """Give a text, an image and a document."""
    return ["Multiple content types test:", PICTURE, Media.from_bytes(b'{"test":"data"}', mime_type="application/json")]


@skill(register=False)
def test_tool_with_progress(ctx: SkillContext[Any]) -> str:
    """Report progress."""
    for done in (0, 50, 100):
        ctx.emit({"progress": done, "total": 100})
    return "done"


@skill(register=False)
def test_error_handling() -> str:
    """Fail."""
    raise ValueError("This tool intentionally returns an error for testing")


SKILLS: list[Skill] = [
    test_simple_text, test_image_content, test_audio_content, test_embedded_resource,
    test_multiple_content_types, test_tool_with_progress, test_error_handling,
]

if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        serve(SKILLS, transport="http", port=0, on_ready=lambda url: print(url, flush=True))
