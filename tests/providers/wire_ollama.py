"""Ollama /api/chat on the wire."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from wire_format import Turn, Wire, data_of, dumps
from wire_server import WireRequest


class OllamaWire(Wire):
    """/api/chat: one JSON object a line, written by Go, which escapes < > and &."""

    name = "ollama"
    model = "llama3.2"
    base = ""
    media_type = "application/x-ndjson"
    finish_reasons: ClassVar = {"stop": "stop", "length": "length", "load": "other", "unload": "other", "": "stop"}

    def path(self, model: str) -> str:
        return "/api/chat"

    def key_header(self, key: str) -> tuple[str, str]:
        return "Authorization", f"Bearer {key}"

    def opening(self, turn: Turn) -> list[bytes]:
        return []

    def middle(self, turn: Turn) -> list[bytes]:
        thoughts = [_line(message={"role": "assistant", "content": "", "thinking": piece}) for piece in turn.reasoning]
        return thoughts + [_line(message={"role": "assistant", "content": piece}) for piece in turn.pieces]

    def ending(self, turn: Turn) -> list[bytes]:
        finish = self.own_finish(turn.finish)
        final: dict[str, Any] = {"done": True} | ({"done_reason": finish} if finish else {})
        final |= {"total_duration": 4_883_583_458, "load_duration": 1_334_875_125}  # nanoseconds
        if turn.usage:
            prompt, completion = turn.usage
            final |= {"prompt_eval_count": prompt, "prompt_eval_duration": 342_546_000}
            final |= {"eval_count": completion, "eval_duration": 4_535_599_000}
        return [_line(message={"role": "assistant", "content": turn.last}, **final)]

    def unknown(self) -> list[bytes]:
        return [
            _line(status="pulling manifest", brand_new={"content": "no"}),
            _line(message={"role": "assistant", "content": "", "brand_new": "no"}),
            b"\n",
        ]

    def hollow(self) -> list[bytes]:
        return [
            _line(message=None),
            _line(),
            _line(message={"role": "assistant"}),
            _line(message={"role": "assistant", "content": None}),
            _line(message={"role": "assistant", "content": "", "tool_calls": None}),
        ]

    def errors(self) -> dict[str, list[bytes]]:
        return {"an error line": [b'{"error":"an error was encountered while running the model: CUDA error"}\n']}

    def refusals(self) -> dict[str, tuple[list[bytes], str | None]]:
        return {}

    def no_candidates(self) -> list[bytes]:
        return [_line(message=None)]

    def broken_event(self) -> bytes:
        return b'{"model":"llama3.2","message":{"role":"assistant","content":"hal\n'

    def error_body(self, status: int, message: str = "no luck", code: str | None = None) -> bytes:
        return dumps({"error": message}).encode()

    def text_in(self, event: bytes) -> str:
        return (data_of(event).get("message") or {}).get("content") or ""

    def text_of(self, request: WireRequest) -> list[tuple[str, str]]:
        return [(message["role"], message["content"]) for message in request.json["messages"]]

    def body_problems(self, body: Any) -> Iterator[str]:
        if not isinstance(body.get("model"), str):
            yield "no model"
        if body.get("stream") is False:
            yield "stream is false"
        for message in body.get("messages") or [{}]:
            if message.get("role") not in ("system", "user", "assistant"):
                yield f"unknown role {message.get('role')!r}"
            if not isinstance(message.get("content"), str):
                yield "the content of a message is not a string"


def _line(**fields: Any) -> bytes:
    line = dumps({"model": "llama3.2", "created_at": "2026-01-01T00:00:00.123456789Z", "done": False} | fields)
    for char in "<>&":
        line = line.replace(char, f"\\u{ord(char):04x}")
    return line.encode() + b"\n"
