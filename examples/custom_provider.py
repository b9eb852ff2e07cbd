"""A provider of your own: a small HTTP client that streams, and distinguishes a broken stream from a short answer.

The "vendor" is a server in this process; it sends one JSON object per line and ends with `{"done": true}`.
"""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import kernai
from kernai import GenerationOptions, LlmResponse, Media, Message, Model, ProviderError

# --------------------------------------------------------------------------------------------------- the provider


class LineProvider(kernai.Provider):
    """Speaks to a server that streams JSON lines."""

    def __init__(self, url: str) -> None:
        self.url = url

    def call(
        self,
        messages: Sequence[Message],
        model: Model,
        generation: GenerationOptions,
        on_chunk: Callable[[str], object],
    ) -> LlmResponse:
        """One turn. Raises `ProviderError` for any failure."""
        turns = [{"role": one.role, "content": self.encode(one.content, model)} for one in messages]
        body = json.dumps({"model": model.id, "messages": turns, **generation.to_dict()}).encode()
        try:
            with closing(urllib.request.urlopen(urllib.request.Request(self.url, body), timeout=60)) as lines:  # noqa: S310
                return self._read(lines, on_chunk)
        except urllib.error.HTTPError as error:
            error.close()
            raise ProviderError(f"HTTP {error.code}", status=error.code, retryable=error.code >= 500) from error
        except OSError as error:
            raise ProviderError(f"the connection failed: {error}", retryable=True) from error

    def _read(self, lines: Any, on_chunk: Callable[[str], object]) -> LlmResponse:
        pieces: list[str] = []
        for line in lines:
            event = json.loads(line)
            if event.get("done"):
                return LlmResponse("".join(pieces), prompt_tokens=event["in"], completion_tokens=event["out"])
            pieces.append(event["text"])
            on_chunk(event["text"])  # raises to cancel the run: do not catch it; `closing` closes the connection
        raise ProviderError("the stream broke off", retryable=True)  # never a short answer

    def encode_part(self, part: str | Media, model: Model) -> Any:
        """This vendor wraps text and accepts images; everything else becomes a placeholder."""
        if isinstance(part, str):
            return {"text": part}
        if part.kind == "image" and model.supports("vision") and not part.is_url:
            return {"image": part.to_base64(), "mime": part.mime_type}
        return None


# --------------------------------------------------------------------------------------------------- the "vendor"


class Vendor(BaseHTTPRequestHandler):
    """Answers the question in the last message; the word "crash" makes it hang up in the middle."""

    def do_POST(self) -> None:
        """One completion."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked = json.dumps(request["messages"][-1]["content"])
        self.send_response(200)
        self.end_headers()
        for text in ("<final>You sent ", asked, "</final>"):
            self.wfile.write(json.dumps({"text": text}).encode() + b"\n")
            if "crash" in asked:
                return
        self.wfile.write(b'{"done": true, "in": 12, "out": 7}\n')

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Vendor)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    agent = kernai.Agent(
        instructions="Answer.",
        provider=LineProvider(f"http://127.0.0.1:{server.server_port}"),
        model=Model("line-1", ("text", "vision"), cost=(1.0, 2.0)),
    )
    image = Media.from_bytes(b"\x89PNG", mime_type="image/png")
    sound = Media.from_bytes(b"RIFF", mime_type="audio/wav")

    result = kernai.execute(agent, ["these:", image, sound])
    print(result.text)
    print(f"{result.usage.total_tokens} tokens, {result.usage.cost:.6f} dollars")

    broken = kernai.execute(agent, "crash")
    assert isinstance(broken.error, ProviderError)
    print(f"{broken.stop_reason}: {broken.error} (retryable: {broken.error.retryable})")
    server.shutdown()
    server.server_close()
