"""Native calls on the wire: what each vendor sends for prose followed by calls or an answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vendor_wires import WIRES, Turn
from wire_format import dumps, sse


@dataclass(frozen=True, slots=True)
class Called:
    """A call by the name that the vendor was given; `arguments` as JSON."""

    name: str
    arguments: str = "{}"
    id: str = ""


def spoken(vendor: str, prose: str, calls: Sequence[Called], *, finish: str = "stop", thought: str = "") -> list[bytes]:
    """The stream of a turn. Arguments come in two pieces where the vendor sends pieces."""
    if not calls:
        return WIRES[vendor].whole(Turn((prose,) if prose else (), finish=finish))
    numbered = [
        Called(call.name, call.arguments, call.id or f"call_{number}") for number, call in enumerate(calls)
    ]
    return _SPOKEN[vendor](prose, numbered, thought)


def halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


def _openai(prose: str, calls: Sequence[Called], thought: str) -> list[bytes]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": prose or None}]
    deltas += [{"reasoning_content": thought}] if thought else []
    for index, call in enumerate(calls):
        first, second = halves(call.arguments)
        whole = {"index": index, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
        deltas.append({"tool_calls": [whole]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": part}}]} for part in (first, second)]
    return [*(_chunk(delta) for delta in deltas), _chunk({}, "tool_calls"), *_usage(), b"data: [DONE]\n\n"]


def _chunk(delta: Any, finish: str | None = None) -> bytes:
    return sse({
        "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    })  # fmt: skip


def _usage() -> list[bytes]:
    usage = {"prompt_tokens": 70, "completion_tokens": 50, "total_tokens": 120}
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o"}
    return [sse({**head, "choices": [], "usage": usage})]


def _responses(prose: str, calls: Sequence[Called], thought: str) -> list[bytes]:
    wire: Any = WIRES["openai-responses"]
    turn = Turn((prose,) if prose else (), reasoning=(thought,) if thought else ())
    events = [*wire.opening(turn), *wire.middle(turn)]
    output: list[dict[str, Any]] = []
    if prose:
        content = [{"type": "output_text", "text": prose, "annotations": []}]
        output.append({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content})
    for number, call in enumerate(calls, 5):
        item = {
            "type": "function_call", "id": f"fc_{number}", "call_id": call.id, "name": call.name, "arguments": "",
            "status": "in_progress",
        }  # fmt: skip
        place = {"item_id": item["id"], "output_index": number}
        done = {**item, "arguments": call.arguments, "status": "completed"}
        events.append(_named("response.output_item.added", output_index=number, item=item))
        events += [_named("response.function_call_arguments.delta", **place, delta=part) for part in halves(call.arguments)]
        events.append(_named("response.function_call_arguments.done", **place, name=call.name, arguments=call.arguments))
        events.append(_named("response.output_item.done", output_index=number, item=done))
        output.append(done)
    response = {**wire._response(turn, "completed"), "output": output}
    return [*events, _named("response.completed", response=response)]


def _named(event: str, **fields: Any) -> bytes:
    return sse({"type": event, "sequence_number": 1, **fields}, event)


def _anthropic(prose: str, calls: Sequence[Called], thought: str) -> list[bytes]:
    wire = WIRES["anthropic"]
    turn = Turn((prose,) if prose else (), reasoning=(thought,) if thought else ())
    events = [*wire.opening(turn), *wire.middle(turn)]
    for index, call in enumerate(calls, 2):
        block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        events.append(sse({"type": "content_block_start", "index": index, "content_block": block}, "content_block_start"))
        for part in halves(call.arguments):
            delta = {"type": "input_json_delta", "partial_json": part}
            events.append(sse({"type": "content_block_delta", "index": index, "delta": delta}, "content_block_delta"))
        events.append(sse({"type": "content_block_stop", "index": index}, "content_block_stop"))
    end = {"delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": {"output_tokens": 50}}
    return [*events, sse({"type": "message_delta", **end}, "message_delta"), sse({"type": "message_stop"}, "message_stop")]


def _gemini(prose: str, calls: Sequence[Called], thought: str) -> list[bytes]:
    parts: list[dict[str, Any]] = [{"text": thought, "thought": True}] if thought else []
    parts += [{"text": prose}] if prose else []
    for number, call in enumerate(calls):
        part: dict[str, Any] = {"functionCall": {"id": call.id, "name": call.name, "args": json.loads(call.arguments)}}
        parts.append(part | ({"thoughtSignature": "c2ln"} if thought and not number else {}))
    usage = {"promptTokenCount": 70, "candidatesTokenCount": 50, "totalTokenCount": 120}
    chunks = [{"candidates": [{"content": {"role": "model", "parts": [part]}, "index": 0}]} for part in parts]
    end = {"candidates": [{"content": {}, "finishReason": "STOP", "index": 0}], "usageMetadata": usage}
    return [sse(chunk) for chunk in (*chunks, end)]


def _ollama(prose: str, calls: Sequence[Called], thought: str) -> list[bytes]:
    head = {"model": "llama3.2", "created_at": "2026-11-24T00:00:00Z", "done": False}
    messages: list[dict[str, Any]] = [{"role": "assistant", "content": "", "thinking": thought}] if thought else []
    messages += [{"role": "assistant", "content": prose}] if prose else []
    for call in calls:
        function = {"name": call.name, "arguments": json.loads(call.arguments)}
        messages.append({"role": "assistant", "content": "", "tool_calls": [{"function": function}]})
    end: dict[str, Any] = {"message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop", "prompt_eval_count": 70,
           "eval_count": 50}
    return [dumps({**head, **part}).encode() + b"\n" for part in (*({"message": one} for one in messages), end)]


_SPOKEN = {
    "openai": _openai, "openai-responses": _responses, "anthropic": _anthropic, "gemini": _gemini, "ollama": _ollama,
}  # fmt: skip
