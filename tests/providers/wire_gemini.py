"""Gemini streamGenerateContent on the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from wire_format import Turn, Wire, alternation_problems, data_of, retry_headers, sse, texts
from wire_server import Reply, WireRequest

MODEL = "model"  # the word for the assistant


class GeminiWire(Wire):
    """streamGenerateContent with alt=sse, whose lines end in CRLF. There is no terminal event beyond `finishReason`."""

    name = "gemini"
    model = "gemini-2.5-flash"
    base = "/v1beta"
    media_type = "text/event-stream"
    finish_reasons: ClassVar = {
        "STOP": "stop",
        "MAX_TOKENS": "length",
        "SAFETY": "content_filter",
        "RECITATION": "content_filter",
        "BLOCKLIST": "content_filter",
        "PROHIBITED_CONTENT": "content_filter",
        "SPII": "content_filter",
        "IMAGE_SAFETY": "content_filter",
        "LANGUAGE": "other",
        "MALFORMED_FUNCTION_CALL": "other",
        "OTHER": "other",
        "FINISH_REASON_UNSPECIFIED": "other",
    }
    codes: ClassVar = {
        400: "INVALID_ARGUMENT",
        401: "UNAUTHENTICATED",
        403: "PERMISSION_DENIED",
        404: "NOT_FOUND",
        429: "RESOURCE_EXHAUSTED",
        500: "INTERNAL",
        503: "UNAVAILABLE",
        504: "DEADLINE_EXCEEDED",
    }
    hints: ClassVar = {
        "retryDelay": "timed",
        "retryDelay in a list": "timed",
        "retry-after": "timed",
        "retry-after date": "timed",
        "none": "untimed",
        "quota per day": "final",
    }

    def path(self, model: str) -> str:
        return f"/v1beta/models/{model}:streamGenerateContent?alt=sse"

    def key_header(self, key: str) -> tuple[str, str]:
        return "x-goog-api-key", key

    def opening(self, turn: Turn) -> list[bytes]:
        return []

    def middle(self, turn: Turn) -> list[bytes]:
        thoughts: list[dict[str, Any]] = [{"text": piece, "thought": True} for piece in turn.reasoning]
        parts = thoughts + [{"text": piece} for piece in turn.pieces]
        return [self._chunk(turn, [part], (number, len(parts))) for number, part in enumerate(parts, 1)]

    def ending(self, turn: Turn) -> list[bytes]:
        part = {"text": turn.last} | ({"thoughtSignature": "CiQB"} if turn.reasoning else {})
        said = turn.pieces or turn.last
        return [self._chunk(turn, [part] if said else None, (1, 1), self.own_finish(turn.finish))]

    def unknown(self) -> list[bytes]:
        turn = Turn(usage=None)
        return [
            _event({"brandNew": {"text": "no"}}),
            self._chunk(turn, [{"executableCode": {"language": "PYTHON", "code": "no"}}], (1, 1)),
            self._chunk(turn, [{"brandNew": [{"text": "no"}]}], (1, 1), citationMetadata={"citationSources": []}),
            b": a comment\r\n\r\n",
        ]

    def hollow(self) -> list[bytes]:
        return [
            _event({"candidates": []}),
            _event({"candidates": None}),
            _event({"usageMetadata": {"promptTokenCount": 1}}),
            _event({"candidates": [{"index": 0}]}),
            _event({"candidates": [{"content": {"role": MODEL}, "index": 0}]}),
            _event({"candidates": [{"content": None, "index": 0}]}),
            _event({"candidates": [{"content": {"parts": None}, "index": 0}]}),
        ]

    def errors(self) -> dict[str, list[bytes]]:
        error = json.loads(self.error_body(503, "The model is overloaded"))
        return {"an error object": [_event(error)], "an error in a list": [_event([error])]}

    def refusals(self) -> dict[str, tuple[list[bytes], str | None]]:
        feedback = {"blockReason": "PROHIBITED_CONTENT", "safetyRatings": []}
        count = {"promptTokenCount": 70, "totalTokenCount": 70}
        blocked = _event({"promptFeedback": feedback, "usageMetadata": count, "modelVersion": self.model})
        return {
            "blockReason without a candidate": ([blocked], None),
            "SAFETY after text": (self.stream(["half"], finish="SAFETY"), "content_filter"),
            "SAFETY without text": (self.stream([], finish="SAFETY"), "content_filter"),
        }

    def no_candidates(self) -> list[bytes]:
        return [_event({"usageMetadata": {"promptTokenCount": 70, "totalTokenCount": 70}, "candidates": []})]

    def candidates(self, *answers: str, apart: bool = False) -> list[bytes]:
        """Several answers to one question, in one chunk or the last one first in chunks `apart`. The first counts."""
        rows = [
            {"content": {"parts": [{"text": text}], "role": MODEL}, "finishReason": "STOP", "index": number}
            for number, text in enumerate(answers)
        ]
        groups = [[row] for row in reversed(rows)] if apart else [rows]
        return [_event({"candidates": group, "usageMetadata": self._usage(Turn(), (1, 1))}) for group in groups]

    def broken_event(self) -> bytes:
        return b'data: {"candidates": [{"content": {"parts": [{"text": "hal\r\n\r\n'

    def error_body(self, status: int, message: str = "no luck", code: str | None = None) -> bytes:
        return self._error_body(status, message, code, [])

    def _error_body(self, status: int, message: str, code: str | None, details: Sequence[Any]) -> bytes:
        error = {"code": status, "message": message, "status": code or self.codes.get(status, "UNKNOWN")}
        return json.dumps({"error": error | ({"details": details} if details else {})}, indent=2).encode()

    def _rate_limit(self, hint: str, seconds: float) -> Reply:
        google = "type.googleapis.com/google.rpc."
        span = "Day" if hint == "quota per day" else "Minute"
        quota = {"quotaMetric": "generate_requests", "quotaId": f"GenerateRequestsPer{span}PerProjectPerModel-FreeTier"}
        details = [{"@type": f"{google}QuotaFailure", "violations": [quota]}, {"@type": f"{google}Help", "links": []}]
        if hint.startswith(("retryDelay", "quota")):
            details.append({"@type": f"{google}RetryInfo", "retryDelay": f"{seconds:g}s"})
        body = self._error_body(429, "You exceeded your current quota", None, details)
        reply = self.error(429, headers=retry_headers(hint, seconds))
        return Reply(429, reply.headers, (b"[%b]" % body if "list" in hint else body,), "length")

    def text_in(self, event: bytes) -> str:
        first = [row for row in data_of(event).get("candidates") or () if row.get("index", 0) == 0]
        parts = [part for row in first for part in (row.get("content") or {}).get("parts") or ()]
        return "".join(part.get("text", "") for part in parts if not part.get("thought"))

    def text_of(self, request: WireRequest) -> list[tuple[str, str]]:
        body = request.json
        system = [("system", texts(body["systemInstruction"]["parts"]))] if "systemInstruction" in body else []
        return system + [(_our_role(turn["role"]), texts(turn["parts"])) for turn in body["contents"]]

    def body_problems(self, body: Any) -> Iterator[str]:
        roles = [content["role"] for content in body.get("contents", ())]
        if set(roles) - {"user", MODEL}:
            yield f"unknown roles in {roles}"
        yield from alternation_problems(roles)

    def _chunk(
        self,
        turn: Turn,
        parts: list[dict[str, Any]] | None,
        at: tuple[int, int],
        finish: str | None = None,
        **more: Any,
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


def _our_role(role: str) -> str:
    return "assistant" if role == MODEL else role
