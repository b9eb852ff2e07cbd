"""What the conformance package tests: a client that calls each tool of a server, and the skills that are served."""

from __future__ import annotations

from functools import partial
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

from kernai import Media, Skill, SkillContext, skill
from kernai.mcp import setup
from kernai.mcp.schemas import example
from tests.mcp.support import ask

CALLBACK = "http://localhost:3030/callback"


class Tokens:
    """A token store as a user would write it."""

    def __init__(self, client: OAuthClientInformationFull | None = None) -> None:
        self.tokens: OAuthToken | None = None
        self.client = client

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


def signing_in(url: str, scenario: str, context: dict[str, Any]) -> httpx2.Auth:
    """Sign in as a user's program would."""
    if scenario == "auth/client-credentials-basic":
        return ClientCredentialsOAuthProvider(url, Tokens(), context["client_id"], context["client_secret"])
    if scenario == "auth/client-credentials-jwt":
        signed = SignedJWTParameters(
            issuer=context["client_id"], subject=context["client_id"], signing_key=context["private_key_pem"],
            signing_algorithm=context.get("signing_algorithm", "ES256"),
        )
        return PrivateKeyJWTOAuthProvider(url, Tokens(), context["client_id"], signed.create_assertion_provider())
    browser = Browser()
    metadata = OAuthClientMetadata.model_validate({
        "client_name": "kernai", "redirect_uris": [CALLBACK], "grant_types": ["authorization_code", "refresh_token"],
    })
    registered = None if scenario != "auth/pre-registration" else OAuthClientInformationFull(
        client_id=context["client_id"], client_secret=context["client_secret"], redirect_uris=[AnyUrl(CALLBACK)],
        token_endpoint_auth_method="client_secret_basic",
    )
    return OAuthClientProvider(
        url, metadata, Tokens(registered), browser.open, browser.returned,
        client_metadata_url="https://conformance-test.local/client-metadata.json",
    )


def accept(_: Any, params: Any) -> ElicitResult:
    """Answer a form with its defaults, as if the user had sent it unchanged."""
    fields = params.requested_schema["properties"]
    return ElicitResult(action="accept", content={name: one["default"] for name, one in fields.items() if "default" in one})


def call_every_tool(url: str, scenario: str, context: dict[str, Any]) -> None:
    auth = {"it": signing_in(url, scenario, context)} if scenario.startswith("auth/") else None
    entry = {"url": url, "timeout": 20}
    with setup({"servers": {"it": entry}}, register=False, elicitation=accept, auth=auth) as adapter:
        ask(adapter, {"method": "tools/list"})
        tools = adapter._connections["it"].tools.found
        for name, tool in tools.items():
            arguments = example(tool.input_schema, {})
            if name == "json_schema_echo":  # the argument is the schema of the other tool
                arguments = {"schema": tools["json_schema_2020_12_tool"].input_schema}
            given = [one["arguments"] for one in context.get("toolCalls", []) if one["name"] == name]
            for one in given or [arguments]:
                ask(adapter, {"method": "tools/call", "params": {"name": name, "arguments": one}})


# --------------------------------------------------------------------------------------------------- the tools served

PICTURE = Media.from_bytes(b"\x89PNG\r\n\x1a\n", mime_type="image/png")
SOUND = Media.from_bytes(b"RIFF\0\0\0\0WAVE", mime_type="audio/wav")
TEXT = Media.from_bytes(b"This is an embedded resource content.", mime_type="text/plain")
DATA = Media.from_bytes(b'{"test":"data"}', mime_type="application/json")
GIVEN: dict[str, Any] = {
    "test_simple_text": "This is a simple text response for testing.",
    "test_image_content": PICTURE,
    "test_audio_content": SOUND,
    "test_embedded_resource": TEXT,
    "test_multiple_content_types": ["Multiple content types test:", PICTURE, DATA],
}


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
    test_tool_with_progress, test_error_handling,
    *(Skill(name, execute=partial(lambda given: given, given), description="Give it.", inputs={}) for name, given in GIVEN.items()),
]
