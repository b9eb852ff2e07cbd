"""OpenAI's two formats on the wire: Chat Completions and the Responses API."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from wire_format import Called, Turn, Wire, data_of, sse


class OpenAIWire(Wire):
    """Chat Completions. `reasoning_field` is where compatible servers put what the model thinks."""

    name = "openai"
    model = "gpt-4o"
    base = "/v1"
    request_id_header = "x-request-id"
    finish_reasons: ClassVar = {
        "stop": "stop", "length": "length", "content_filter": "content_filter", "tool_calls": "tool",
        "function_call": "tool", "content_filter: RECITATION": "content_filter", "end": "stop", "max_tokens": "length",
        "STOP": "stop", "MAX_TOKENS": "length", "SAFETY": "content_filter", "stop_sequence": "stop", "eos_token": "stop",
    }  # fmt: skip
    codes: ClassVar = {400: "invalid_value", 401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}

    def __init__(self, reasoning_field: str = "reasoning_content") -> None:
        self._reasoning_field = reasoning_field

    def path(self, model: str) -> str:
        return "/v1/chat/completions"

    def opening(self, turn: Turn) -> list[bytes]:
        return [self._delta({"role": "assistant", "content": "", "refusal": None}, turn)]

    def middle(self, turn: Turn) -> list[bytes]:
        thoughts = [self._delta({self._reasoning_field: piece}, turn) for piece in turn.reasoning]
        return thoughts + [self._delta({"content": piece}, turn) for piece in turn.pieces]

    def ending(self, turn: Turn) -> list[bytes]:
        prompt, completion = turn.usage or (0, 0)
        thought = completion // 2 if turn.reasoning else 0
        usage = {
            "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": prompt // 3, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": thought, "audio_tokens": 0},
        }  # fmt: skip
        counted = [self._chunk([], turn, usage=usage)] if turn.usage else []
        return [self._delta({}, turn, self.own_finish(turn.finish)), *counted, sse("[DONE]")]

    def called(self, prose: str, calls: Sequence[Called], thought: str) -> list[bytes]:
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": prose or None}]
        deltas += [{self._reasoning_field: thought}] if thought else []
        for index, call in enumerate(calls):
            begun = {"index": index, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
            pieces = [{"index": index, "function": {"arguments": half}} for half in call.halves]
            deltas += [{"tool_calls": [piece]} for piece in (begun, *pieces)]
        return self.deltas(*deltas)

    def deltas(self, *deltas: Any, finish: str = "tool_calls", usage: Any = None) -> list[bytes]:
        turn = Turn(finish=finish)
        counted = [self._chunk([], turn, usage=usage)] if usage else []
        return [*(self._delta(delta, turn) for delta in deltas), *self.ending(turn)[:-1], *counted, sse("[DONE]")]

    def unknown(self) -> list[bytes]:
        turn = Turn()
        return [
            sse({"object": "chat.completion.related", "related_questions": ["a"]}),
            sse({"type": "keepalive", "content": "no"}, "brand.new"),
            b": a comment, as routers send while they wait\n\n",
            b"id: 7\nretry: 10\n\n",
            self._delta({"annotations": [{"type": "url"}], "content": None}, turn),
            self._delta({"audio": {"id": "a", "data": "no"}}, turn),
        ]

    def hollow(self) -> list[bytes]:
        turn = Turn()
        bare = json.loads(self._chunk([], turn).removeprefix(b"data: "))
        del bare["choices"]
        filters = {"prompt_filter_results": [{"prompt_index": 0, "content_filter_results": {}}]}
        return [
            self._chunk(None, turn), self._chunk([], turn, **filters), sse(bare), self._delta({"content": None}, turn),
            *(self._chunk([{"index": 0, **no_delta, "finish_reason": None}], turn) for no_delta in ({"delta": None}, {})),
        ]

    def errors(self) -> dict[str, list[bytes]]:
        error = json.loads(self.error_body(500, "the server had an error", "server_error"))
        failed, lost = (
            [{"index": 0, "delta": {"content": ""}, "finish_reason": reason}] for reason in ("error", "network_error"))
        return {
            "a chunk with an error": [sse(error)],
            "an error event": [sse(error, "error")],
            "finish_reason error": [self._chunk(failed, Turn()), sse("[DONE]")],
            "finish_reason network_error": [self._chunk(lost, Turn()), sse("[DONE]")],
        }

    def refusals(self) -> dict[str, tuple[list[bytes], str | None]]:
        return {"content_filter without text": (self.stream([], finish="content_filter"), "content_filter")}

    def no_candidates(self) -> list[bytes]:
        return [self._chunk([], Turn()), self._chunk(None, Turn()), sse("[DONE]")]

    def error_body(self, status: int, message: str = "no luck", code: str | None = None) -> bytes:
        code = code or self.codes.get(status)
        kind = {401: "authentication_error", 429: "requests"}.get(status, "server_error" if status >= 500 else "invalid_request_error")
        return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}, indent=2).encode()

    def text_in(self, event: bytes) -> str:
        choices = data_of(event).get("choices") or [{}]
        return (choices[0].get("delta") or {}).get("content") or ""

    def _delta(self, delta: dict[str, Any], turn: Turn, finish: str | None = None) -> bytes:
        return self._chunk([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}], turn)

    def _chunk(self, choices: list[dict[str, Any]] | None, turn: Turn, **more: Any) -> bytes:
        chunk = {
            "id": turn.request_id or "chatcmpl-CwXq7", "object": "chat.completion.chunk", "created": 1767225600,
            "model": "gpt-4o-2024-11-20", "service_tier": "default", "system_fingerprint": "fp_50cad350e4",
            "choices": choices, "usage": None,
            "obfuscation": "x9Qe1",  # padding, of changing length, against those who count the bytes
        }  # fmt: skip
        return sse(chunk | more)


# OpenAI's Responses API on the wire.


ENCRYPTED = "gAAAAABo-encrypted"


class ResponsesWire(OpenAIWire):
    """Named events; the last one holds the whole response, with its usage."""

    name = "openai-responses"
    model = "gpt-5-pro"
    finish_reasons: ClassVar = {"completed": "stop", "max_output_tokens": "length", "content_filter": "content_filter", "end": "other"}

    def path(self, model: str) -> str:
        return "/v1/responses"

    def opening(self, turn: Turn) -> list[bytes]:
        response = self._response(turn, "in_progress")
        begun = [named("response.created", response=response), named("response.in_progress", response=response)]
        return begun if turn.reasoning else begun + self._begin_message(0)

    def _begin_message(self, index: int) -> list[bytes]:
        part = {"type": "output_text", "text": "", "annotations": []}
        return [
            named("response.output_item.added", output_index=index, item=self._message("in_progress", [])),
            named("response.content_part.added", item_id="msg_1", output_index=index, content_index=0, part=part),
        ]

    def middle(self, turn: Turn) -> list[bytes]:
        events = []
        if turn.reasoning:
            item = {"type": "reasoning", "id": "rs_1", "summary": []}
            events.append(named("response.output_item.added", output_index=0, item=item))
            events += [
                named("response.reasoning_summary_text.delta", item_id="rs_1", output_index=0, summary_index=0, delta=one)
                for one in turn.reasoning
            ]
            events.append(named("response.output_item.done", output_index=0, item=self.thought(turn)))
        if turn.pieces:
            index = 1 if turn.reasoning else 0
            place = {"item_id": "msg_1", "output_index": index, "content_index": 0}
            events += self._begin_message(index) if turn.reasoning else []
            said = {**place, "logprobs": [], "obfuscation": "x9Qe"}
            events += [named("response.output_text.delta", **said, delta=piece) for piece in turn.pieces]
        return events

    def thought(self, turn: Turn) -> dict[str, Any]:
        """An item of reasoning, as it has to come back."""
        summary = [{"type": "summary_text", "text": "".join(turn.reasoning)}]
        return {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": ENCRYPTED}

    def ending(self, turn: Turn) -> list[bytes]:
        finish = self.own_finish(turn.finish)
        status = "completed" if finish == "completed" else "incomplete"
        response = self._response(turn, status, None if status == "completed" else {"reason": finish})
        text = "".join(turn.pieces)
        content = [{"type": "output_text", "text": text, "annotations": []}]
        response["output"] = [self._message(status, content)]
        if turn.usage:
            prompt, completion = turn.usage
            response["usage"] = {
                "input_tokens": prompt, "output_tokens": completion, "total_tokens": prompt + completion,
                "input_tokens_details": {"cached_tokens": prompt // 3, "cache_write_tokens": prompt // 4},
                "output_tokens_details": {"reasoning_tokens": completion // 2 if turn.reasoning else 0},
            }  # fmt: skip
        place = {"item_id": "msg_1", "output_index": 1 if turn.reasoning else 0, "content_index": 0}
        last = [named("response.output_text.done", **place, text=text, logprobs=[])] if turn.pieces else []
        return [*last, named(f"response.{status}", response=response)]

    def called(self, prose: str, calls: Sequence[Called], thought: str) -> list[bytes]:
        turn = Turn((prose,) if prose else (), reasoning=(thought,) if thought else ())
        events = [*self.opening(turn), *self.middle(turn)]
        output: list[dict[str, Any]] = []
        if prose:
            content = [{"type": "output_text", "text": prose, "annotations": []}]
            output.append(self._message("completed", content))
        for number, call in enumerate(calls, 5):
            item = {"type": "function_call", "id": f"fc_{number}", "call_id": call.id, "name": call.name, "arguments": ""}
            place = {"item_id": item["id"], "output_index": number}
            done = {**item, "arguments": call.arguments, "status": "completed"}
            events += [
                named("response.output_item.added", output_index=number, item={**item, "status": "in_progress"}),
                *(named("response.function_call_arguments.delta", **place, delta=half) for half in call.halves),
                named("response.function_call_arguments.done", **place, name=call.name, arguments=call.arguments),
                named("response.output_item.done", output_index=number, item=done),
            ]
            output.append(done)
        return [*events, named("response.completed", response=self._response(turn, "completed") | {"output": output})]

    def unknown(self) -> list[bytes]:
        return [
            named("response.brand_new.delta", delta="no"),
            named("response.function_call_arguments.delta", item_id="fc", output_index=3, delta="no"),
            named("response.queued", response=self._response(Turn(), "queued")),
            b": a comment\n\n",
        ]

    def hollow(self) -> list[bytes]:
        return [_delta(""), named("response.in_progress", response=self._response(Turn(), "in_progress"))]

    def errors(self) -> dict[str, list[bytes]]:
        said = {"code": "server_error", "message": "the server had an error"}
        failed = {**self._response(Turn(), "failed"), "error": said}
        error = named("error", **said, param=None)
        return {"an error event": [error], "a failed response": [named("response.failed", response=failed)]}

    def refusals(self) -> dict[str, tuple[list[bytes], str | None]]:
        place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        said = [named("response.refusal.delta", **place, delta=word) for word in ("I cannot ", "do that.")]
        return {"a refusal": ([*self.opening(Turn()), *said, *self.ending(Turn())], "refusal")}

    def no_candidates(self) -> list[bytes]:
        return [*self.opening(Turn()), named("response.completed", response=self._response(Turn(), "completed"))]

    def text_in(self, event: bytes) -> str:
        found = data_of(event)
        return str(found["delta"]) if found.get("type") == "response.output_text.delta" else ""

    def _message(self, status: str, content: list[Any]) -> dict[str, Any]:
        return {"type": "message", "id": "msg_1", "role": "assistant", "status": status, "content": content}

    def _response(self, turn: Turn, status: str, details: Any = None) -> dict[str, Any]:
        return {
            "id": turn.request_id or "resp_68", "object": "response", "created_at": 1767225600, "status": status,
            "model": "gpt-5-pro-2025-10-06", "output": [], "error": None, "incomplete_details": details, "usage": None,
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "instructions": None, "metadata": {},
            "temperature": 1.0, "top_p": 1.0,
        }  # fmt: skip


def named(event: str, **fields: Any) -> bytes:
    return sse({"type": event, "sequence_number": 1} | fields, event)


def responses(*events: tuple[str, Any], output: Sequence[Any] = (), why: str | None = None, usage: Any = None) -> list[bytes]:
    """A bare stream of the Responses API: these events, then the response with this output."""
    status = "incomplete" if why else "completed"
    response = {"id": "r", "status": status, "output": output, "incomplete_details": {"reason": why}, "usage": usage}
    return [*(named(f"response.{kind}", **fields) for kind, fields in events), named(f"response.{status}", response=response)]


def _delta(text: str) -> bytes:
    return named("response.output_text.delta", item_id="msg_1", output_index=0, content_index=0, delta=text, logprobs=[])
