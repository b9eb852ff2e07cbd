"""An adapter from scratch with only `http.client`. It uses Chat Completions, as OpenAI and most local servers do."""

import json
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from command_line import key_from, run_with
from kernai import LlmResponse, Media, Model, Provider, ProviderError


class ChatProvider(Provider):  # noqa: D101 - the module's docstring describes it
    def __init__(self, base_url: str | None) -> None:
        self.url = urlsplit(base_url or "https://api.openai.com/v1")
        self.headers = {"Authorization": f"Bearer {key_from('OPENAI_API_KEY')}", "Content-Type": "application/json"}

    def call(self, messages: Any, model: Model, generation: Any, on_chunk: Any) -> LlmResponse:
        body = {"model": model.id, "stream": True, "stream_options": {"include_usage": True}, **generation.extra}
        body["messages"] = [{"role": one.role, "content": self.encode(one.content, model)} for one in messages]
        connect = HTTPSConnection if self.url.scheme == "https" else HTTPConnection
        try:
            with closing(connect(self.url.netloc, timeout=60)) as http:  # closed also if the run is cancelled
                http.request("POST", f"{self.url.path}/chat/completions", json.dumps(body), self.headers)
                return self.read(http.getresponse(), on_chunk)
        except (OSError, HTTPException) as error:
            raise ProviderError(f"the connection failed: {error}", retryable=True) from error

    def read(self, response: HTTPResponse, on_chunk: Any) -> LlmResponse:
        if (status := response.status) != 200:
            raise ProviderError(f"HTTP {status}", status=status, retryable=status == 429 or status >= 500)
        text, name, reason, usage = "", "", None, dict[str, int]()
        for data in (line[5:].strip() for line in response if line.startswith(b"data:")):
            if data == b"[DONE]":
                tokens = usage.get("prompt_tokens"), usage.get("completion_tokens"), None  # the total is derived
                return LlmResponse(text, 0, *tokens, reason, {"model": name})
            event = json.loads(data)
            if event.get("error"):
                raise ProviderError(f"an error in the stream: {event['error']}", retryable=True)
            name, usage = event.get("model", name), event.get("usage") or usage
            for choice in event.get("choices") or ():
                if choice.get("finish_reason") in ("stop", "length", "content_filter"):
                    reason = choice["finish_reason"]
                piece = (choice.get("delta") or {}).get("content") or ""
                text += piece
                on_chunk(piece)  # raises to cancel the run: do not catch it
        raise ProviderError("the stream broke off", retryable=True)  # never a short answer

    def encode_part(self, part: str | Media, model: Model) -> Any:
        if isinstance(part, str):
            return {"type": "text", "text": part}
        url = part.data if part.is_url else f"data:{part.mime_type};base64,{part.to_base64()}"
        if part.kind != "image" or not model.supports("vision") or not str(url).startswith(("https:", "data:")):
            return None  # then the model reads a placeholder
        return {"type": "image_url", "image_url": {"url": url}}


if __name__ == "__main__":
    run_with(ChatProvider, __doc__, model="gpt-6-luna")
