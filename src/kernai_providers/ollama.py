"""`OllamaProvider`: models on one's own machine, by Ollama's own API.

https://github.com/ollama/ollama/blob/main/docs/api.md
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from kernai import GenerationOptions, Media, Message, Model
from kernai_providers.http_provider import HttpProvider
from kernai_providers.reader import LineReader, count_of
from kernai_providers.request_checks import checked_base_url

LOCAL = "http://localhost:11434"
DEFAULT_PORT = 11434
FINISH_REASONS = {"stop": "stop", "length": "length", "": "stop"}


class OllamaProvider(HttpProvider):
    """Ollama's `/api/chat`.

    Needs no key; one from `OLLAMA_API_KEY` is sent where there is one. `base_url`: by default `OLLAMA_HOST`, else
    ``http://localhost:11434``. Takes images in files or bytes, where the model declares them. Everything else: see
    `HttpProvider`.
    """

    vendor = "ollama"
    default_base_url = LOCAL
    key_variables: tuple[str, ...] = ("OLLAMA_API_KEY",)
    needs_key = False
    endpoint = "/api/chat"

    def auth(self, key: str) -> dict[str, str]:
        """A bearer key, for a server behind a gateway."""
        return {"Authorization": f"Bearer {key}"}

    def body(self, messages: Sequence[Message], model: Model, generation: GenerationOptions) -> dict[str, Any]:
        """The request as `/api/chat` wants it."""
        system, turns = self.turns(messages, model)
        body: dict[str, Any] = {
            "model": model.id,
            "messages": [
                *([{"role": "system", "content": system}] if system else []),
                *(_message(role, parts) for role, parts in turns),
            ],
            "stream": True,
        }
        options = {
            "temperature": generation.temperature, "top_p": generation.top_p, "num_predict": generation.max_tokens,
            "stop": generation.stop,
        }
        known = {name: value for name, value in options.items() if value is not None}
        if known:
            body["options"] = known
        if generation.thinking is not None:
            body["think"] = generation.thinking.get("effort", True)
        return body

    def encode_part(self, part: str | Media, model: Model) -> Any:
        """Text and images; a URL is not fetched, so it becomes its placeholder."""
        if isinstance(part, str):
            return {"text": part}
        if part.kind == "image" and model.supports("vision") and not part.is_url:
            return {"image": part.to_base64()}
        return None

    def reader(self) -> OllamaReader:
        """A new reader for one answer."""
        return OllamaReader(self.vendor, self.secrets)

    def _default_base_url(self) -> str:
        host = os.environ.get("OLLAMA_HOST", "").strip()
        return _url_of(host) if host else self.default_base_url


class OllamaReader(LineReader):
    """Lines of `/api/chat`, up to ``"done": true``."""

    terminal = '"done": true'

    def on_line(self, data: dict[str, Any]) -> None:
        """One line."""
        self.check_error(data)
        self.note(data, model="model")
        message = data.get("message")
        if isinstance(message, dict):
            self.say(message.get("content"))
            self.think(message.get("thinking"))
            self.called_tool = self.called_tool or bool(message.get("tool_calls"))
        if data.get("done") is not True:
            return
        reason = data.get("done_reason")
        self.end_with(reason if isinstance(reason, str) else "", FINISH_REASONS)
        self.prompt_tokens = count_of(data.get("prompt_eval_count"))
        self.completion_tokens = count_of(data.get("eval_count"))
        self.complete = True


def _message(role: str, parts: list[Any]) -> dict[str, Any]:
    """Texts become one, images stand beside it: this API's content is text alone."""
    message: dict[str, Any] = {"role": role, "content": "".join(part.get("text", "") for part in parts)}
    images = [part["image"] for part in parts if "image" in part]
    return message | ({"images": images} if images else {})


def _url_of(host: str) -> str:
    """`OLLAMA_HOST` as Ollama's own client reads it: a host, host:port or URL.

    Without a scheme the port is 11434, with one it is the scheme's own. What a server listens on, 0.0.0.0 or [::], is
    this machine.
    """
    host = host.strip("\"'")
    scheme, found, rest = host.partition("://")
    if not found:
        scheme, rest = "http", f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host
    address, slash, path = rest.partition("/")
    name, _, port = address.rpartition(":") if re.search(r":\d*$", address) and not address.endswith("]") else (
        address, "", "")
    name = {"": "localhost", "0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(name, name)  # noqa: S104 - see above
    port = port or ("" if found else str(DEFAULT_PORT))
    url = f"{scheme}://{name}{port and ':' + port}{slash}{path}"
    return checked_base_url(url, "the environment variable OLLAMA_HOST")
