"""Whether an Ollama answers on this machine, and what it has. https://github.com/ollama/ollama/blob/main/docs/api.md"""

from __future__ import annotations

import http.client
import ipaddress
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import kernai
from kit.model_tables import DEFAULT_MODELS

SECONDS = 1.0  # a server on this machine that takes longer to list its models is of no use for a run
MOST_BYTES = 1_000_000


@dataclass(frozen=True)
class Ollama:
    """A server that was looked for at `url`; `models` is None where it does not answer."""

    url: str
    models: tuple[str, ...] | None = None

    def has(self, model: str) -> bool:
        """Whether the model is there, with or without its tag."""
        return any(model in (one, one.removesuffix(":latest")) for one in self.models or ())

    def model_for(self, capabilities: Sequence[str]) -> str | None:
        """The default model where it is there, else the first that can do this; None when none can."""
        from kernai_providers import capabilities_of

        default = DEFAULT_MODELS["ollama"]
        able = [
            one for one in self.models or ()
            if "embed" not in one and set(capabilities) <= set(capabilities_of(one))
        ]
        return next((one for one in able if one.partition(":")[0] == default), able[0] if able else None)


def look(*, local: bool = True) -> Ollama:
    """Ask the server at `OLLAMA_HOST`, by default port 11434 of this machine, for its models.

    With `local` one beyond this machine is not asked. Nothing is raised: whatever fails is no answer.
    """
    from kernai_providers import OllamaProvider

    try:
        url = OllamaProvider().base_url
    except (kernai.KernaiError, ValueError):
        return Ollama("OLLAMA_HOST")
    place = urlsplit(url)
    host = place.hostname or ""
    if local and not _is_loopback(host):
        return Ollama(url)
    make = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
    connection = make(host, place.port, timeout=SECONDS)
    try:
        connection.request("GET", f"{place.path.rstrip('/')}/api/tags")
        with connection.getresponse() as response:
            said = json.loads(_body(response, time.monotonic() + SECONDS))
            return Ollama(url, _names(said) if response.status == http.HTTPStatus.OK else None)
    except (OSError, http.client.HTTPException, ValueError, RecursionError):
        return Ollama(url)
    finally:
        connection.close()


def _body(response: http.client.HTTPResponse, latest: float) -> bytes:
    """As much of an answer as arrives until then: one that drips has no end that is worth waiting for."""
    pieces: list[bytes] = []
    while (piece := response.read1(MOST_BYTES)) and sum(map(len, pieces)) < MOST_BYTES and time.monotonic() < latest:
        pieces.append(piece)
    return b"".join(pieces)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _names(found: object) -> tuple[str, ...] | None:
    """The models' names in the answer; None when it is no answer of Ollama's."""
    models = found.get("models") if isinstance(found, dict) else None
    if not isinstance(models, list):
        return None
    names = [one.get("name") for one in models if isinstance(one, dict)]
    return tuple(name for name in names if isinstance(name, str) and name.strip())
