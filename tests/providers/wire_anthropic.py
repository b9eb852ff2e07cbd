"""Anthropic Messages on the wire."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from wire_format import Turn, Wire, alternation_problems, data_of, dumps, retry_headers, sse, texts
from wire_server import Reply, WireRequest


class AnthropicWire(Wire):
    """Messages. Usage is split over two events, and the cached tokens are counted beside the others."""

    name = "anthropic"
    model = "claude-sonnet-4-5"
    base = "/v1"
    request_id_header = "request-id"
    finish_reasons: ClassVar = {
        "end_turn": "stop",
        "stop_sequence": "stop",
        "max_tokens": "length",
        "tool_use": "tool",
        "refusal": "refusal",
        "model_context_window_exceeded": "context",
        "pause_turn": "other",
    }
    codes: ClassVar = {
        400: "invalid_request_error",
        401: "authentication_error",
        402: "billing_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        504: "timeout_error",
        529: "overloaded_error",
    }
    hints: ClassVar = {
        "retry-after": "timed",
        "retry-after date": "timed",
        "anthropic-ratelimit": "untimed",
        "none": "untimed",
        "x-should-retry: false": "final",
        "credit_balance": "final",
        "credit_balance 402": "final",
    }

    def path(self, model: str) -> str:
        return "/v1/messages"

    def key_header(self, key: str) -> tuple[str, str]:
        return "x-api-key", key

    def text_at_end(self, pieces: Sequence[str]) -> list[bytes]:
        return self.stream(pieces)  # the last events have no place for text

    def opening(self, turn: Turn) -> list[bytes]:
        prompt, _ = turn.usage or (0, 0)
        written, read = prompt // 4, prompt // 3
        usage = {
            "input_tokens": prompt - written - read,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": read,
            "output_tokens": 1,  # so far; what counts comes at the end
            "service_tier": "standard",
        }
        message: dict[str, Any] = {
            "id": turn.request_id or "msg_01A7",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-4-5-20250929",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }
        if turn.usage:
            message["usage"] = usage
        return [_named("message_start", message=message), _named("ping")]

    def middle(self, turn: Turn) -> list[bytes]:
        events = []
        if turn.reasoning:
            events.append(_block_start(0, {"type": "thinking", "thinking": "", "signature": ""}))
            events += [_block_delta(0, "thinking_delta", thinking=piece) for piece in turn.reasoning]
            events += [_block_delta(0, "signature_delta", signature="EqQB"), _named("content_block_stop", index=0)]
        index = _text_index(turn)
        if turn.pieces:
            events.append(_block_start(index, {"type": "text", "text": ""}))
            events += [_block_delta(index, "text_delta", text=piece) for piece in turn.pieces]
        return events

    def ending(self, turn: Turn) -> list[bytes]:
        _, completion = turn.usage or (0, 0)
        finish = self.own_finish(turn.finish)
        delta = {"stop_reason": finish, "stop_sequence": "\n\nEND" if finish == "stop_sequence" else None}
        final = {"delta": delta, "usage": {"output_tokens": completion}} if turn.usage else {"delta": delta}
        stop = [_named("content_block_stop", index=_text_index(turn))] if turn.pieces else []
        return [*stop, _named("message_delta", **final), _named("message_stop")]

    def unknown(self) -> list[bytes]:
        return [
            _named("message_heartbeat", text="no"),
            _block_delta(0, "brand_new_delta", text="no", brand_new={"a": [1]}),
            _block_delta(0, "citations_delta", citation={"cited_text": "no"}),
            b": a comment\n\n",
            _named("ping", brand_new=True),
        ]

    def hollow(self) -> list[bytes]:
        return [_named("ping"), _block_delta(0, "text_delta", text=""), _named("ping")]

    def errors(self) -> dict[str, list[bytes]]:
        return {
            code: [_named("error", error={"type": code, "message": "it broke"}, request_id="req_011")]
            for code in ("overloaded_error", "api_error", "rate_limit_error")
        }

    def refusals(self) -> dict[str, tuple[list[bytes], str | None]]:
        return {
            "refusal after text": (self.stream(["half"], finish="refusal"), "refusal"),
            "refusal without text": (self.stream([], finish="refusal"), "refusal"),
        }

    def no_candidates(self) -> list[bytes]:
        return [*self.opening(Turn()), _named("message_stop")]

    def broken_event(self) -> bytes:
        return b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"hal\n\n'

    def error_body(self, status: int, message: str = "no luck", code: str | None = None) -> bytes:
        error = {"type": code or self.codes.get(status, "api_error"), "message": message}
        return dumps({"type": "error", "error": error, "request_id": "req_011"}).encode()

    def _rate_limit(self, hint: str, seconds: float) -> Reply:
        if hint.startswith("credit_balance"):
            said = "Your credit balance is too low to access the API"
            return self.error(402, said) if "402" in hint else self.error(429, said, headers={"retry-after": "1"})
        headers = retry_headers(hint, seconds)
        if hint == "anthropic-ratelimit":
            headers |= {"anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-requests-limit": "50"}
        return self.error(429, "This request would exceed your rate limit", headers=headers)

    def text_in(self, event: bytes) -> str:
        delta = data_of(event).get("delta") or {}
        return str(delta["text"]) if delta.get("type") == "text_delta" else ""

    def text_of(self, request: WireRequest) -> list[tuple[str, str]]:
        body = request.json
        system = [("system", texts(body["system"]))] if body.get("system") else []
        return system + [(message["role"], texts(message["content"])) for message in body["messages"]]

    def problems(self, request: WireRequest, key: str | None = None, model: str | None = None) -> list[str]:
        version = [] if request.headers.get("anthropic-version") == "2023-06-01" else ["no anthropic-version"]
        return version + super().problems(request, key, model)

    def body_problems(self, body: Any) -> Iterator[str]:
        if not isinstance(body.get("model"), str):
            yield "no model"
        if body.get("stream") is not True:
            yield "stream is not true"
        if not isinstance(body.get("max_tokens"), int):
            yield "no max_tokens"
        roles = [message["role"] for message in body.get("messages", ())]
        if set(roles) - {"user", "assistant"}:
            yield f"unknown roles in {roles}"
        yield from alternation_problems(roles)


def _named(event: str, **fields: Any) -> bytes:
    return sse({"type": event, **fields}, event)


def _block_start(index: int, block: dict[str, str]) -> bytes:
    return _named("content_block_start", index=index, content_block=block)


def _block_delta(index: int, kind: str, **fields: Any) -> bytes:
    return _named("content_block_delta", index=index, delta={"type": kind, **fields})


def _text_index(turn: Turn) -> int:
    return 1 if turn.reasoning else 0
