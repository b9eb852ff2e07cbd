"""`ResponsesProvider`: OpenAI's Responses API, the second of its wire formats.

https://platform.openai.com/docs/api-reference/responses

Nothing is stored at the vendor: each request holds the whole conversation. A model that reasons gives its reasoning
along, encrypted; the vendor asks for it back, in front of the answer that it led to. It travels in the answer's
`metadata` and in the conversation's `Message.reasoning`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kernai import GenerationOptions, Media, Message, Model
from kernai_providers.failures import at, failure_in_stream, objects
from kernai_providers.http_provider import EMPTY, data_uri, heard_parts, known, media_reference, system_of
from kernai_providers.native import Heard, Said, Toolbox, conversation, strict
from kernai_providers.openai import IMAGE_TYPES, LONG_CACHE, REASONING_MODEL, OpenAIProvider, cache_key, keeps_longer
from kernai_providers.reader import SseReader, cost_of, count_of, key_of, whole_characters

#: how a response has ended, or else why it is incomplete
FINISH_REASONS = {
    "completed": "stop", "max_output_tokens": "length", "max_tokens": "length", "max_messages": "length",
    "content_filter": "content_filter",
}
ENCRYPTED = "reasoning.encrypted_content"


class ResponsesProvider(OpenAIProvider):
    """The Responses API. `resolve` takes it for models that exist only there, and for ``"openai-responses/MODEL"``.

    Takes images (also https URLs) and PDF documents (likewise), as far as the model declares them. It knows no `stop`.
    Everything else: see `OpenAIProvider`.
    """

    vendor = "openai-responses"
    endpoint = "/responses"

    def body(self, messages: Sequence[Message], model: Model, generation: GenerationOptions) -> dict[str, Any]:
        """The request as the Responses API wants it."""
        spoken = [message for message in messages if message.role != "system"]
        system, turns = self.turns(messages, model)
        items: list[dict[str, Any]] = []
        for message, (role, parts) in zip(spoken, turns, strict=True):
            items += _reasoning(message.reasoning)
            items.append({"role": role, "content": _content(role, parts)})
        return self._request(messages, system, items, model, generation)

    def native_body(
        self, messages: Sequence[Message], model: Model, generation: GenerationOptions, box: Toolbox
    ) -> dict[str, Any]:
        """The same with tools."""
        items = [item for turn in conversation(messages, box) for item in self._native_items(turn, model)]
        body = self._request(messages, system_of(messages), items, model, generation)
        if box.tools:
            # here the vendor takes a tool for a strict one that does not say otherwise
            body["tools"] = [
                {"type": "function", "strict": False, **self.tool(name, tool)} for name, tool in box.tools.items()
            ]
        if box.by_schema and box.output is not None:
            schema = strict(box.output, nullable=False)
            body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}}
        return body

    def _native_items(self, turn: Said | Heard, model: Model) -> Iterator[dict[str, Any]]:
        if isinstance(turn, Said):
            thoughts = [item for item in turn.reasoning if item.get("type") == "reasoning"]
            yield from _reasoning([item for item in thoughts if not item.get("at")])
            if turn.text or not turn.calls:
                yield {"role": "assistant", "content": turn.text or EMPTY}
            for at, call in enumerate(turn.calls):
                yield from _reasoning([item for item in thoughts if at and item.get("at") == at])
                arguments = json.dumps(call.arguments, ensure_ascii=False)
                yield {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments}
            return
        for outcome in turn.outcomes:
            output: Any = self.encode([outcome.marked, *outcome.media], model) if outcome.media else outcome.marked
            yield {"type": "function_call_output", "call_id": outcome.call.id, "output": output}
        if parts := heard_parts(turn, media_in_results=True):
            yield {"role": "user", "content": _content("user", self.encode(parts, model))}

    def _request(
        self, messages: Sequence[Message], system: str, items: list[dict[str, Any]], model: Model,
        generation: GenerationOptions,
    ) -> dict[str, Any]:
        effort = (generation.thinking or {}).get("effort")
        options = {
            "instructions": system or None,
            "temperature": generation.temperature,
            "top_p": generation.top_p,
            "max_output_tokens": generation.max_tokens,
            "reasoning": None if effort is None else {"effort": effort},
            "include": [ENCRYPTED] if REASONING_MODEL.match(model.id) or items_reason(items) else None,
            "prompt_cache_key": cache_key(messages, model) if generation.cache else None,
            "prompt_cache_options": {"ttl": LONG_CACHE} if keeps_longer(generation, model) else None,
        }
        return {"model": model.id, "input": items, "stream": True, "store": False} | known(options)

    def refused_options(self, model: Model, generation: GenerationOptions) -> Sequence[str]:
        """Those of `OpenAIProvider`; no model takes `stop` here."""
        return [*super().refused_options(model, generation), *(["stop"] if generation.stop else [])]

    def encode_part(self, part: str | Media, model: Model) -> Any:
        """Text, images, PDF; anything else becomes its placeholder."""
        if isinstance(part, str):
            return {"type": "input_text", "text": part}
        if part.kind == "image" and model.supports("vision"):
            url = media_reference(part) if part.is_url else data_uri(part) if part.mime_type in IMAGE_TYPES else None
            return None if url is None else {"type": "input_image", "image_url": url, "detail": "auto"}
        if part.mime_type == "application/pdf" and model.supports("document_in"):
            if not part.is_url:
                return {"type": "input_file", "filename": f"{part.id}.pdf", "file_data": data_uri(part)}
            url = media_reference(part)
            return None if url is None else {"type": "input_file", "file_url": url}
        return None

    def reader(self) -> ResponsesReader:  # type: ignore[override]  # another format, the same vendor
        """A new reader for one answer."""
        return ResponsesReader(self.vendor, self.secrets)


class ResponsesReader(SseReader):
    """Events of the Responses API, up to the one that holds the response whole."""

    terminal = "response.completed"

    def __init__(self, vendor: str, secrets: Sequence[str] = ()) -> None:
        super().__init__(vendor, secrets)
        #: the ids of native calls, by their index in the output
        self._ids: dict[object, object] = {}
        #: the pieces of each part of the output, by its indexes
        self._parts: dict[tuple[Any, Any], list[str]] = {}

    def on_event(self, event: str | None, data: str) -> None:
        """One event; types that are not known are passed over."""
        found = self.parsed(data)
        kind = str(found.get("type", event))
        if kind == "error":
            self.check_error(found if found.get("error") else {"error": found})
        self.check_error(found)
        response, index = found.get("response"), key_of(found.get("output_index"))
        if isinstance(response, dict):
            self._keep(response)
        if kind in ("response.output_text.delta", "response.output_text.done"):
            self._on_text(found, whole=kind.endswith("done"))
        elif kind == "response.refusal.delta" and isinstance(found.get("delta"), str):
            self.metadata["refusal"] = self.metadata.get("refusal", "") + found["delta"]
        elif kind == "response.refusal.done" and isinstance(found.get("refusal"), str):
            self.metadata["refusal"] = found["refusal"]
        elif kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
            self.think(found.get("delta"))
        elif kind == "response.output_item.done":
            self._on_item(found.get("item"), index)
        elif kind == "response.output_item.added":
            self._on_call(found.get("item"), index)
        elif kind == "response.function_call_arguments.delta":
            if index in self._ids:
                self.call(index, text=found.get("delta"))
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            self._on_end(kind.removeprefix("response."), response if isinstance(response, dict) else {})

    def _on_call(self, item: object, index: object) -> None:
        if isinstance(item, dict) and item.get("type") == "function_call":
            self._ids[index] = item.get("call_id")
            self.call(index, name=item.get("name"), id=item.get("call_id"))

    def _on_item(self, item: object, index: object) -> None:
        """A finished item. Reasoning is kept as it came, without its status."""
        kind = item.get("type") if isinstance(item, dict) else None
        self.called_tool = self.called_tool or kind in ("function_call", "custom_tool_call")
        if isinstance(item, dict) and kind == "function_call":
            if index not in self._ids:
                self._on_call(item, index)
            self.call_was(index, str(item.get("arguments") or ""))
        if isinstance(item, dict) and kind == "reasoning" and item.get("encrypted_content"):
            self.keep({name: item[name] for name in _REASONING_FIELDS if item.get(name) is not None})

    def _on_end(self, how: str, response: Mapping[str, Any]) -> None:
        if how == "failed":
            raise failure_in_stream({"error": response.get("error") or {}}, self.vendor, secrets=self.secrets)
        self.end_with(
            str(at(response, "incomplete_details", "reason") or "") if how == "incomplete" else how, FINISH_REASONS)
        output = objects(response.get("output"))
        text = self._output(output)
        for number, item in enumerate(output):
            if item.get("type") == "function_call":
                index = next((index for index, id in self._ids.items() if id == item.get("call_id")), f"last {number}")
                self._on_item(item, index)
        if how == "completed" and self.metadata.get("refusal"):
            self.finish_reason = "refusal"
        if not self.has_text:
            self.say(text)
        elif text != self.text:
            self.final_text = text
        if not self.has_text and how == "completed" and not output and self.finish_reason == "stop":
            raise self.error("the stream ended without any output", "no_answer", retryable=True)
        self.complete = True

    def _on_text(self, found: Mapping[str, Any], *, whole: bool) -> None:
        """A piece of a part of the output, or the whole part, which is all that some servers send."""
        text = found.get("text" if whole else "delta")
        if not isinstance(text, str):
            return
        part = self._parts.setdefault((key_of(found.get("output_index")), key_of(found.get("content_index"))), [])
        if not part or not whole:
            self.say(text)
        if whole:
            part.clear()
        part.append(text)

    def _output(self, output: Sequence[Mapping[str, Any]]) -> str:
        """The text of the final output, which counts where the pieces differ; a refusal in it is noted."""
        texts = []
        for item in output:
            for part in objects(item.get("content")) if item.get("type") == "message" else ():
                if part.get("type") == "output_text":
                    texts.append(str(part.get("text", "")))
                elif part.get("type") == "refusal":
                    self.metadata["refusal"] = str(part.get("refusal", ""))
        return whole_characters("".join(texts or ["".join(part) for part in self._parts.values()]))

    def _keep(self, response: Mapping[str, Any]) -> None:
        # an error in a failed response is raised with that event
        self.note(response, response_id="id", model="model")
        usage = response.get("usage")
        if not isinstance(usage, dict):
            return
        self.prompt_tokens = count_of(usage.get("input_tokens"))
        self.completion_tokens = count_of(usage.get("output_tokens"))
        self.cost = cost_of(usage)
        self.cached_tokens = count_of(at(usage, "input_tokens_details", "cached_tokens"))
        self.cache_write_tokens = count_of(at(usage, "input_tokens_details", "cache_write_tokens"))
        self.thought_tokens(count_of(at(usage, "output_tokens_details", "reasoning_tokens")))


#: of an item of reasoning, what the vendor takes back
_REASONING_FIELDS = ("type", "id", "summary", "content", "encrypted_content")


def _reasoning(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Items of reasoning as the vendor takes them back; those of other vendors are left out."""
    own = [item for item in items if item.get("type") == "reasoning"]
    return [{name: one for name, one in item.items() if name != "at"} for item in own]


def items_reason(items: Sequence[Mapping[str, Any]]) -> bool:
    """Whether reasoning is among the items of a conversation."""
    return any(item.get("type") == "reasoning" for item in items)


def _content(role: str, parts: list[Any]) -> Any:
    """Texts alone become one: what the assistant said must not be called an input."""
    if role == "assistant" or all(part["type"] == "input_text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts
