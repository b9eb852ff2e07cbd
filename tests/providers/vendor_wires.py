"""The wire formats of the vendors, with one interface (`Wire`): ``WIRES["openai"]`` and so on.

::

    wire = WIRES["anthropic"]
    with WireServer([wire.error(503), wire.answer("Hel", "lo")]) as server:
        provider = AnthropicProvider(api_key="k", base_url=wire.base_url(server.url))
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from wire_format import Called, Turn, Wire, data_of, dumps, sse
from wire_openai import OpenAIWire, ResponsesWire


class AnthropicWire(Wire):
    """Messages. Usage is split over two events, and cached tokens are counted separately from the others."""

    name = "anthropic"
    model = "claude-sonnet-4-5"
    base = "/v1"
    request_id_header = "request-id"
    finish_reasons: ClassVar = {
        "end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool", "refusal": "refusal",
        "model_context_window_exceeded": "context", "pause_turn": "other",
    }  # fmt: skip
    codes: ClassVar = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}

    def path(self, model: str) -> str:
        return "/v1/messages"

    def opening(self, turn: Turn) -> list[bytes]:
        prompt, _ = turn.usage or (0, 0)
        written, read = prompt // 4, prompt // 3
        usage = {
            "input_tokens": prompt - written - read, "cache_creation_input_tokens": written, "cache_read_input_tokens": read,
            "output_tokens": 1,  # so far; what counts comes at the end
        }  # fmt: skip
        message: dict[str, Any] = {
            "id": turn.request_id or "msg_01A7", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5-20250929",
            "content": [], "stop_reason": None, "stop_sequence": None, **({"usage": usage} if turn.usage else {}),
        }  # fmt: skip
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

    def called(self, prose: str, calls: Sequence[Called], thought: str) -> list[bytes]:
        turn = Turn((prose,) if prose else (), reasoning=(thought,) if thought else ())
        events = [*self.opening(turn), *self.middle(turn)]
        for index, call in enumerate(calls, 2):
            events.append(_block_start(index, {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}))
            events += [_block_delta(index, "input_json_delta", partial_json=half) for half in call.halves]
            events.append(_named("content_block_stop", index=index))
        return [*events, *self.ending(Turn(finish="tool_use"))]

    def unknown(self) -> list[bytes]:
        return [
            _named("message_heartbeat", text="no"),
            _block_delta(0, "brand_new_delta", text="no", brand_new={"a": [1]}),
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
        return {"refusal without text": (self.stream([], finish="refusal"), "refusal")}

    def no_candidates(self) -> list[bytes]:
        return [*self.opening(Turn()), _named("message_stop")]

    def error_body(self, status: int, message: str = "no luck", code: str | None = None) -> bytes:
        error = {"type": code or self.codes.get(status, "api_error"), "message": message}
        return dumps({"type": "error", "error": error, "request_id": "req_011"}).encode()

    def text_in(self, event: bytes) -> str:
        delta = data_of(event).get("delta") or {}
        return str(delta["text"]) if delta.get("type") == "text_delta" else ""

def _named(event: str, **fields: Any) -> bytes:
    return sse({"type": event, **fields}, event)


def _block_start(index: int, block: dict[str, Any]) -> bytes:
    return _named("content_block_start", index=index, content_block=block)


def _block_delta(index: int, kind: str, **fields: Any) -> bytes:
    return _named("content_block_delta", index=index, delta={"type": kind, **fields})


def _text_index(turn: Turn) -> int:
    return 1 if turn.reasoning else 0


# Gemini streamGenerateContent on the wire.


MODEL = "model"  # the word for the assistant


class GeminiWire(Wire):
    """streamGenerateContent with alt=sse, whose lines end in CRLF. There is no terminal event beyond `finishReason`."""

    name = "gemini"
    model = "gemini-2.5-flash"
    base = "/v1beta"
    media_type = "text/event-stream"
    finish_reasons: ClassVar = {
        "STOP": "stop", "MAX_TOKENS": "length", "SAFETY": "content_filter", "RECITATION": "content_filter",
        "BLOCKLIST": "content_filter", "PROHIBITED_CONTENT": "content_filter", "SPII": "content_filter",
        "IMAGE_SAFETY": "content_filter", "ESCALATION": "content_filter", "LANGUAGE": "other", "MALFORMED_FUNCTION_CALL": "other", "OTHER": "other",
        "FINISH_REASON_UNSPECIFIED": "other",
    }  # fmt: skip
    codes: ClassVar = {
        400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE",
    }  # fmt: skip

    def path(self, model: str) -> str:
        return f"/v1beta/models/{model}:streamGenerateContent?alt=sse"

    def opening(self, turn: Turn) -> list[bytes]:
        return []

    def middle(self, turn: Turn) -> list[bytes]:
        thoughts: list[dict[str, Any]] = [{"text": piece, "thought": True} for piece in turn.reasoning]
        parts = thoughts + [{"text": piece} for piece in turn.pieces]
        return [self._chunk(turn, [part], (number, len(parts))) for number, part in enumerate(parts, 1)]

    def ending(self, turn: Turn) -> list[bytes]:
        part = {"text": ""} | ({"thoughtSignature": "CiQB"} if turn.reasoning else {})
        return [self._chunk(turn, [part] if turn.pieces else None, (1, 1), self.own_finish(turn.finish))]

    def called(self, prose: str, calls: Sequence[Called], thought: str) -> list[bytes]:
        parts: list[dict[str, Any]] = [{"text": thought, "thought": True}] if thought else []
        parts += [{"text": prose}] if prose else []
        for number, call in enumerate(calls):
            part = {"functionCall": {"id": call.id, "name": call.name, "args": json.loads(call.arguments)}}
            parts.append(part | ({"thoughtSignature": "c2ln"} if thought and not number else {}))
        turn = Turn()
        return [*(self._chunk(turn, [part], (1, 1)) for part in parts), *self.ending(turn)]

    def unknown(self) -> list[bytes]:
        turn = Turn(usage=None)
        return [
            _event({"brandNew": {"text": "no"}}),
            self._chunk(turn, [{"executableCode": {"language": "PYTHON", "code": "no"}}], (1, 1)),
            self._chunk(turn, [{"brandNew": [{"text": "no"}]}], (1, 1), citationMetadata={"citationSources": []}),
            b": a comment\r\n\r\n",
        ]

    def hollow(self) -> list[bytes]:
        empty: list[Any] = [{}, {"content": {"role": MODEL}}, {"content": None}, {"content": {"parts": None}}]
        chunks: list[Any] = [[], None, *([candidate | {"index": 0}] for candidate in empty)]
        return [*(_event({"candidates": one}) for one in chunks), _event({"usageMetadata": {"promptTokenCount": 1}})]

    def errors(self) -> dict[str, list[bytes]]:
        error = json.loads(self.error_body(503, "The model is overloaded"))
        return {"an error object": [_event(error)], "an error in a list": [_event([error])]}

    def refusals(self) -> dict[str, tuple[list[bytes], str | None]]:
        feedback = {"blockReason": "PROHIBITED_CONTENT", "safetyRatings": []}
        count = {"promptTokenCount": 70, "totalTokenCount": 70}
        blocked = _event({"promptFeedback": feedback, "usageMetadata": count, "modelVersion": self.model})
        return {
            "blockReason without a candidate": ([blocked], None),
            "SAFETY without text": (self.stream([], finish="SAFETY"), "content_filter"),
        }

    def no_candidates(self) -> list[bytes]:
        return [_event({"usageMetadata": {"promptTokenCount": 70, "totalTokenCount": 70}, "candidates": []})]

    def error_body(self, status: int, message: str = "no luck", code: str | None = None) -> bytes:
        error = {"code": status, "message": message, "status": code or self.codes.get(status, "UNKNOWN")}
        return json.dumps({"error": error}, indent=2).encode()

    def text_in(self, event: bytes) -> str:
        first = [row for row in data_of(event).get("candidates") or () if row.get("index", 0) == 0]
        parts = [part for row in first for part in (row.get("content") or {}).get("parts") or ()]
        return "".join(part.get("text", "") for part in parts if not part.get("thought"))

    def _chunk(
        self, turn: Turn, parts: list[dict[str, Any]] | None, at: tuple[int, int], finish: str | None = None, **more: Any
    ) -> bytes:
        candidate: dict[str, Any] = {"content": {"parts": parts, "role": MODEL}} if parts else {"content": {}}
        candidate |= {"finishReason": finish} if finish else {}
        chunk: dict[str, Any] = {"candidates": [candidate | {"index": 0} | more]}
        if turn.usage:
            chunk["usageMetadata"] = self._usage(turn, at)
        return _event(chunk | {"modelVersion": self.model, "responseId": turn.request_id or "mAJmaa7y"})

    def _usage(self, turn: Turn, at: tuple[int, int]) -> dict[str, Any]:
        """What was used up to this chunk: each one repeats what the ones before it said."""
        prompt, completion = turn.usage or (0, 0)
        thought = completion // 2 if turn.reasoning else 0
        so_far = (completion - thought) * at[0] // at[1]
        usage = {"promptTokenCount": prompt, "candidatesTokenCount": so_far, "totalTokenCount": prompt + so_far}
        return usage | ({"thoughtsTokenCount": thought} if thought else {})


def _event(data: Any) -> bytes:
    return sse(json.dumps(data, ensure_ascii=False), end="\r\n")


# Ollama /api/chat on the wire.


class OllamaWire(Wire):
    """/api/chat: one JSON object a line, written by Go, which escapes < > and &."""

    name = "ollama"
    model = "llama3.2"
    base = ""
    media_type = "application/x-ndjson"
    finish_reasons: ClassVar = {"stop": "stop", "length": "length", "load": "other", "unload": "other", "": "stop"}

    def path(self, model: str) -> str:
        return "/api/chat"

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
        return [_line(message={"role": "assistant", "content": ""}, **final)]

    def called(self, prose: str, calls: Sequence[Called], thought: str) -> list[bytes]:
        messages: list[dict[str, Any]] = [{"content": "", "thinking": thought}] if thought else []
        messages += [{"content": prose}] if prose else []
        for call in calls:
            function = {"name": call.name, "arguments": json.loads(call.arguments)}
            messages.append({"content": "", "tool_calls": [{"function": function}]})
        return [*(_line(message={"role": "assistant", **one}) for one in messages), *self.ending(Turn())]

    def unknown(self) -> list[bytes]:
        return [
            _line(status="pulling manifest", brand_new={"content": "no"}),
            _line(message={"role": "assistant", "content": "", "brand_new": "no"}),
            b"\n",
        ]

    def hollow(self) -> list[bytes]:
        empty: list[Any] = [{}, {"content": None}, {"content": "", "tool_calls": None}]
        return [_line(), _line(message=None), *(_line(message={"role": "assistant"} | one) for one in empty)]

    def errors(self) -> dict[str, list[bytes]]:
        return {"an error line": [b'{"error":"an error was encountered while running the model: CUDA error"}\n']}

    def refusals(self) -> dict[str, tuple[list[bytes], str | None]]:
        return {}

    def no_candidates(self) -> list[bytes]:
        return [_line(message=None)]

    def error_body(self, status: int, message: str = "no luck", code: str | None = None) -> bytes:
        return dumps({"error": message}).encode()

    def text_in(self, event: bytes) -> str:
        return (data_of(event).get("message") or {}).get("content") or ""

def _line(**fields: Any) -> bytes:
    line = dumps({"model": "llama3.2", "created_at": "2026-01-01T00:00:00.123456789Z", "done": False} | fields)
    for char in "<>&":
        line = line.replace(char, f"\\u{ord(char):04x}")
    return line.encode() + b"\n"


# Bare streams: what these vendors send around whatever a test is about.


def anthropic(*events: Any, stop: str = "end_turn", usage: Any = None, start: Any = None, **delta: Any) -> list[bytes]:
    message: Any = {"id": "m", "role": "assistant", "model": "m", "content": [], "usage": start or {"input_tokens": 9, "output_tokens": 1}}
    first = {"type": "message_start", "message": message}
    last = {"type": "message_delta", "delta": {"stop_reason": stop, **delta}, "usage": {"output_tokens": 5, **(usage or {})}}
    return [sse(one, one["type"]) for one in (first, *events, last, {"type": "message_stop"})]


def anthropic_text(text: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}


def gemini(*parts: Any, finish: str = "STOP", usage: Any = None, **candidate: Any) -> list[bytes]:
    chunks = [{"candidates": [{"content": {"parts": [one]}, "index": 0}]} for one in parts]
    last = {"content": {}, "finishReason": finish, "index": 0, **candidate}
    return [sse(one) for one in (*chunks, {"candidates": [last], "usageMetadata": usage or {"promptTokenCount": 7}})]


def ollama(*messages: Any, reason: str = "stop", **usage: int) -> list[bytes]:
    lines = [{"message": {"role": "assistant", "content": "", **one}, "done": False} for one in messages]
    return [dumps(one).encode() + b"\n" for one in (*lines, {"done": True, "done_reason": reason, **usage})]


ALL: tuple[Wire, ...] = (OpenAIWire(), ResponsesWire(), AnthropicWire(), GeminiWire(), OllamaWire())
WIRES: dict[str, Wire] = {wire.name: wire for wire in ALL}
