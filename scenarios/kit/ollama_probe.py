"""Whether an Ollama answers on this machine, and which models it has."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import kernai
from kernai.command_line.setup_command import models_of, ollama_at
from kernai_providers import OllamaProvider, capabilities_of
from kernai_providers.transport import TransportError
from kit.model_tables import DEFAULT_MODELS


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
    try:
        url = OllamaProvider().base_url
    except (kernai.KernaiError, ValueError):
        return Ollama("OLLAMA_HOST")
    if local and not _is_loopback(urlsplit(url).hostname or ""):
        return Ollama(url)
    try:
        models = models_of(ollama_at(url))
    except (TransportError, ValueError, RecursionError):
        models = None
    return Ollama(url, None if models is None else tuple(models))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
