"""OpenAI's Responses API on the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, ClassVar

from wire_format import Turn, data_of, sse, texts
from wire_openai import OpenAIWire
from wire_server import WireRequest

ENCRYPTED = "gAAAAABo-encrypted"


class ResponsesWire(OpenAIWire):
    """Named events; the last one holds the whole response, with its usage."""

    name = "openai-responses"
    model = "gpt-5-pro"
    finish_reasons: ClassVar = {
        "completed": "stop",
        "max_output_tokens": "length",
        "content_filter": "content_filter",
    }

    def path(self, model: str) -> str:
        return "/v1/responses"

    def opening(self, turn: Turn) -> list[bytes]:
        response = self._response(turn, "in_progress")
        begun = [_named("response.created", response=response), _named("response.in_progress", response=response)]
        return begun if turn.reasoning else begun + self._begin_message(0)

    def _begin_message(self, index: int) -> list[bytes]:
        item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "in_progress", "content": []}
        part = {"type": "output_text", "text": "", "annotations": []}
        return [
            _named("response.output_item.added", output_index=index, item=item),
            _named("response.content_part.added", item_id="msg_1", output_index=index, content_index=0, part=part),
        ]

    def middle(self, turn: Turn) -> list[bytes]:
        events = []
        if turn.reasoning:
            item = {"type": "reasoning", "id": "rs_1", "summary": []}
            events.append(_named("response.output_item.added", output_index=0, item=item))
            events += [
                _named("response.reasoning_summary_text.delta", item_id="rs_1", output_index=0, summary_index=0, delta=one)
                for one in turn.reasoning
            ]
            events.append(_named("response.output_item.done", output_index=0, item=self.thought(turn)))
        if turn.pieces:
            index = 1 if turn.reasoning else 0
            place = {"item_id": "msg_1", "output_index": index, "content_index": 0}
            events += self._begin_message(index) if turn.reasoning else []
            events += [
                _named("response.output_text.delta", **place, delta=piece, logprobs=[], obfuscation="x9Qe")
                for piece in turn.pieces
            ]
        return events

    def thought(self, turn: Turn) -> dict[str, Any]:
        """An item of reasoning, as it has to come back."""
        summary = [{"type": "summary_text", "text": "".join(turn.reasoning)}]
        return {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": ENCRYPTED}

    def ending(self, turn: Turn) -> list[bytes]:
        finish = self.own_finish(turn.finish)
        status = "completed" if finish == "completed" else "incomplete"
        last = [_delta(turn.last)] if turn.last else []
        response = self._response(turn, status, None if status == "completed" else {"reason": finish})
        text = "".join(turn.pieces) + turn.last
        content = [{"type": "output_text", "text": text, "annotations": []}]
        response["output"] = [
            {"type": "message", "id": "msg_1", "role": "assistant", "status": status, "content": content}
        ]
        if turn.usage:
            prompt, completion = turn.usage
            response["usage"] = {
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": prompt // 3, "cache_write_tokens": prompt // 4},
                "output_tokens": completion,
                "output_tokens_details": {"reasoning_tokens": completion // 2 if turn.reasoning else 0},
                "total_tokens": prompt + completion,
            }
        if turn.pieces:
            place = {"item_id": "msg_1", "output_index": 1 if turn.reasoning else 0, "content_index": 0}
            last.append(_named("response.output_text.done", **place, text=text, logprobs=[]))
        return [*last, _named(f"response.{status}", response=response)]

    def unknown(self) -> list[bytes]:
        return [
            _named("response.brand_new.delta", delta="no"),
            _named("response.function_call_arguments.delta", item_id="fc", output_index=3, delta="no"),
            _named("response.queued", response=self._response(Turn(), "queued")),
            b": a comment\n\n",
        ]

    def hollow(self) -> list[bytes]:
        return [_delta(""), _named("response.in_progress", response=self._response(Turn(), "in_progress"))]

    def errors(self) -> dict[str, list[bytes]]:
        said = {"code": "server_error", "message": "the server had an error"}
        failed = {**self._response(Turn(), "failed"), "error": said}
        return {
            "an error event": [_named("error", **said, param=None)],
            "a failed response": [_named("response.failed", response=failed)],
        }

    def refusals(self) -> dict[str, tuple[list[bytes], str | None]]:
        place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        said = [_named("response.refusal.delta", **place, delta=word) for word in ("I cannot ", "do that.")]
        return {
            "content_filter after text": (self.stream(["half"], finish="content_filter"), "content_filter"),
            "a refusal": ([*self.opening(Turn()), *said, *self.ending(Turn())], "refusal"),
        }

    def no_candidates(self) -> list[bytes]:
        return [*self.opening(Turn()), _named("response.completed", response=self._response(Turn(), "completed"))]

    def broken_event(self) -> bytes:
        return b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"hal\n\n'

    def text_in(self, event: bytes) -> str:
        found = data_of(event)
        return str(found["delta"]) if found.get("type") == "response.output_text.delta" else ""

    def text_of(self, request: WireRequest) -> list[tuple[str, str]]:
        body = request.json
        system = [("system", body["instructions"])] if body.get("instructions") else []
        return system + [(one["role"], texts(one["content"])) for one in body["input"] if "role" in one]

    def body_problems(self, body: Any) -> Iterator[str]:
        if not isinstance(body.get("model"), str):
            yield "no model"
        if body.get("stream") is not True or body.get("store") is not False:
            yield "stream is not true, or store is not false"
        for item in body.get("input") or [{}]:
            if item.get("type") != "reasoning" and item.get("role") not in ("user", "assistant"):
                yield f"unknown item {json.dumps(item)[:80]}"

    def _response(self, turn: Turn, status: str, details: Any = None) -> dict[str, Any]:
        return {
            "id": turn.request_id or "resp_68", "object": "response", "created_at": 1767225600, "status": status,
            "model": "gpt-5-pro-2025-10-06", "output": [], "error": None, "incomplete_details": details, "usage": None,
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "instructions": None, "metadata": {},
            "temperature": 1.0, "top_p": 1.0,
        }  # fmt: skip


def _named(event: str, **fields: Any) -> bytes:
    return sse({"type": event, "sequence_number": 1} | fields, event)


def _delta(text: str) -> bytes:
    return _named("response.output_text.delta", item_id="msg_1", output_index=0, content_index=0, delta=text, logprobs=[])
