"""OpenAI Chat Completions on the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, ClassVar

from wire_format import Turn, Wire, data_of, retry_headers, sse, texts
from wire_server import Reply, WireRequest


class OpenAIWire(Wire):
    """Chat Completions. `reasoning_field` is where compatible servers put what the model thinks."""

    name = "openai"
    model = "gpt-4o"
    base = "/v1"
    request_id_header = "x-request-id"
    finish_reasons: ClassVar = {
        "stop": "stop",
        "length": "length",
        "content_filter": "content_filter",
        "tool_calls": "tool",
        "function_call": "tool",
    }
    codes: ClassVar = {400: "invalid_value", 401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}
    hints: ClassVar = {
        "retry-after-ms": "timed",
        "retry-after": "timed",
        "retry-after date": "timed",
        "x-ratelimit": "untimed",
        "none": "untimed",
        "x-should-retry: false": "final",
        "insufficient_quota": "final",
        "insufficient_quota 402": "final",
    }

    def __init__(self, reasoning_field: str = "reasoning_content") -> None:
        self._reasoning_field = reasoning_field

    def path(self, model: str) -> str:
        return "/v1/chat/completions"

    def key_header(self, key: str) -> tuple[str, str]:
        return "Authorization", f"Bearer {key}"

    def opening(self, turn: Turn) -> list[bytes]:
        return [self._delta({"role": "assistant", "content": "", "refusal": None}, turn)]

    def middle(self, turn: Turn) -> list[bytes]:
        thoughts = [self._delta({self._reasoning_field: piece}, turn) for piece in turn.reasoning]
        return thoughts + [self._delta({"content": piece}, turn) for piece in turn.pieces]

    def ending(self, turn: Turn) -> list[bytes]:
        prompt, completion = turn.usage or (0, 0)
        thought = completion // 2 if turn.reasoning else 0
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": prompt // 3, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": thought, "audio_tokens": 0},
        }
        counted = [self._chunk([], turn, usage=usage)] if turn.usage else []
        return [
            self._delta({"content": turn.last} if turn.last else {}, turn, self.own_finish(turn.finish)),
            *counted,
            sse("[DONE]"),
        ]

    def unknown(self) -> list[bytes]:
        turn = Turn()
        return [
            sse({"object": "chat.completion.citations", "citations": ["a"]}),
            sse({"type": "keepalive", "content": "no"}, "brand.new"),
            b": a comment, as routers send while they wait\n\n",
            b"id: 7\nretry: 10\n\n",
            self._delta({"annotations": [{"type": "url"}], "content": None}, turn),
            self._delta({"audio": {"id": "a", "transcript": "no"}}, turn),
        ]

    def hollow(self) -> list[bytes]:
        turn = Turn()
        bare = json.loads(self._chunk([], turn).removeprefix(b"data: "))
        del bare["choices"]
        filters = {"prompt_filter_results": [{"prompt_index": 0, "content_filter_results": {}}]}
        return [
            self._chunk(None, turn),
            self._chunk([], turn, **filters),
            sse(bare),
            self._delta({"content": None}, turn),
            self._chunk([{"index": 0, "delta": None, "finish_reason": None}], turn),
            self._chunk([{"index": 0, "finish_reason": None}], turn),
        ]

    def errors(self) -> dict[str, list[bytes]]:
        error = json.loads(self.error_body(500, "the server had an error", "server_error"))
        failed = [{"index": 0, "delta": {"content": ""}, "finish_reason": "error", "native_finish_reason": "error"}]
        return {
            "a chunk with an error": [sse(error)],
            "an error event": [sse(error, "error")],
            "finish_reason error": [self._chunk(failed, Turn()), sse("[DONE]")],
        }

    def refusals(self) -> dict[str, tuple[list[bytes], str | None]]:
        return {
            "content_filter after text": (self.stream(["half"], finish="content_filter"), "content_filter"),
            "content_filter without text": (self.stream([], finish="content_filter"), "content_filter"),
        }

    def no_candidates(self) -> list[bytes]:
        return [self._chunk([], Turn()), self._chunk(None, Turn()), sse("[DONE]")]

    def broken_event(self) -> bytes:
        return b'data: {"id":"chatcmpl-1","choices":[{"delta":{"content":"hal\n\n'

    def error_body(self, status: int, message: str = "no luck", code: str | None = None) -> bytes:
        code = code or self.codes.get(status)
        kind = {401: "authentication_error", 429: "requests"}.get(status)
        kind = (
            code
            if code == "insufficient_quota"
            else kind or ("server_error" if status >= 500 else "invalid_request_error")
        )
        return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}, indent=2).encode()

    def _rate_limit(self, hint: str, seconds: float) -> Reply:
        if hint.startswith("insufficient_quota"):
            status = 402 if "402" in hint else 429
            return self.error(status, "You exceeded your current quota", "insufficient_quota", {"retry-after": "1"})
        headers = retry_headers(hint, seconds)
        if hint == "x-ratelimit":
            headers |= {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": f"{seconds:g}s"}
        return self.error(429, "Rate limit reached", headers=headers)

    def text_in(self, event: bytes) -> str:
        choices = data_of(event).get("choices") or [{}]
        return (choices[0].get("delta") or {}).get("content") or ""

    def text_of(self, request: WireRequest) -> list[tuple[str, str]]:
        return [(message["role"], texts(message["content"])) for message in request.json["messages"]]

    def body_problems(self, body: Any) -> Iterator[str]:
        if not isinstance(body.get("model"), str):
            yield "no model"
        if body.get("stream") is not True:
            yield "stream is not true"
        if (body.get("stream_options") or {}).get("include_usage") is not True:
            yield "usage is not asked for"
        for message in body.get("messages") or [{}]:
            if message.get("role") not in ("system", "developer", "user", "assistant"):
                yield f"unknown role {message.get('role')!r}"

    def _delta(self, delta: dict[str, Any], turn: Turn, finish: str | None = None) -> bytes:
        return self._chunk([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}], turn)

    def _chunk(self, choices: list[dict[str, Any]] | None, turn: Turn, **more: Any) -> bytes:
        chunk = {
            "id": turn.request_id or "chatcmpl-CwXq7",
            "object": "chat.completion.chunk",
            "created": 1767225600,
            "model": "gpt-4o-2024-11-20",
            "service_tier": "default",
            "system_fingerprint": "fp_50cad350e4",
            "choices": choices,
            "usage": None,
            "obfuscation": "x9Qe1",  # padding, of changing length, against those who count the bytes
        }
        return sse(chunk | more)
