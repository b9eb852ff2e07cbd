"""Which local model servers answer: Ollama, and those that speak OpenAI's Chat Completions, at their usual ports.

Only what is on this machine is asked, and what the user has named in `OLLAMA_HOST` or `LOCAL_BASE_URL`; no key is sent,
and they are reached as an adapter would reach them. All are asked at once, for a second.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from kernai.command_line.finding import Finding
from kernai.errors import KernaiError
from kernai_providers.http_transport import HttpTransport
from kernai_providers.ollama import OllamaProvider
from kernai_providers.openai import OpenAIProvider
from kernai_providers.request_parts import checked_base_url
from kernai_providers.transport import Request, Timeouts, TransportError

PATIENCE = 1.0  # seconds
MAX_BYTES = 1_000_000
#: where servers listen unless they are told otherwise, with what `resolve` calls them
USUAL = (
    ("vllm", "http://127.0.0.1:8000/v1"),
    ("llamacpp", "http://127.0.0.1:8080/v1"),
    ("lmstudio", "http://127.0.0.1:1234/v1"),
)
_MOST_MODELS = 5


class Server(NamedTuple):
    """Where one is looked for: its base URL, the path that lists models, and the variable that named it, if any."""

    name: str
    url: str
    path: str
    list_key: str
    id_key: str
    variable: str | None = None


def check_servers() -> list[Finding]:
    """Each server that answers, and each that was named and does not."""
    findings: list[Finding] = []
    servers: list[Server] = []
    for name, variable in (("ollama", "OLLAMA_HOST"), ("local", "LOCAL_BASE_URL")):
        try:
            servers += _named(name, variable)
        except (KernaiError, ValueError):
            # in words that cannot hold any of the value: it may carry a password
            problem = f"{variable} must be an address such as http://127.0.0.1:8000, without user, password and query"
            findings.append(Finding("servers", name, f"{variable} is no address", good=False, problem=problem))
    named = {server.url for server in servers}
    servers += [Server(name, url, "/models", "data", "id") for name, url in USUAL if url not in named]
    with ThreadPoolExecutor(max_workers=len(servers) or 1) as pool:
        for found in pool.map(_check, servers):
            findings += found
    return findings


def _named(name: str, variable: str) -> Iterator[Server]:
    given = os.environ.get(variable, "").strip()
    if name == "ollama":
        provider = OllamaProvider(api_key="none is sent")
        provider.close()
        yield Server(name, provider.base_url, "/api/tags", "models", "name", variable if given else None)
    elif given:
        url = checked_base_url(given, variable).removesuffix(OpenAIProvider.endpoint)
        yield Server(name, url, "/models", "data", "id", variable)


def _check(server: Server) -> list[Finding]:
    shown = shown_url(server.url)
    try:
        models = _models(server)
    except (TransportError, ValueError, RecursionError) as error:
        if server.variable is None and server.name != "ollama":
            return []
        silent = isinstance(error, TransportError) and (error.retryable or error.kind in ("tls", "unwanted"))
        told = "does not answer" if silent else f"answers, but not as {server.name} does"
        problem = None if server.variable is None else f"{server.variable} names a server that {told}"
        return [Finding("servers", server.name, f"{shown} {told}", good=False, problem=problem)]
    more = f" and {len(models) - _MOST_MODELS} more" if len(models) > _MOST_MODELS else ""
    told = ", ".join(models[:_MOST_MODELS]) or "no models"
    return [Finding("servers", server.name, f"{shown} answers: {told}{more}", good=True)]


def _models(server: Server) -> list[str]:
    """The ids of its models; raises where it does not answer, or with something else."""
    until = time.monotonic() + PATIENCE
    request = Request(
        "GET", server.url + server.path, {"Accept": "application/json"}, timeouts=Timeouts(PATIENCE, PATIENCE),
        max_bytes=MAX_BYTES, unwanted=lambda: time.monotonic() >= until,
    )
    with closing(HttpTransport()) as transport, closing(transport.send(request)) as response:
        if response.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return ["(it wants a key)"]
        data: Any = json.loads(b"".join(response))
    listed = data.get(server.list_key) if isinstance(data, dict) else None
    if not isinstance(listed, list):
        raise ValueError("no list of models")  # noqa: TRY004 - as for text that is no JSON at all
    return [str(one.get(server.id_key)) for one in listed if isinstance(one, dict)]


def shown_url(url: str) -> str:
    """A URL without user, password, query and fragment."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"
