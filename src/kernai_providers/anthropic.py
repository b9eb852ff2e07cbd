"""`AnthropicProvider`: the Messages API.

https://docs.anthropic.com/en/api/messages
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from kernai import GenerationOptions, Media, Message, Model
from kernai_providers.failures import at, objects
from kernai_providers.http_provider import EMPTY, IMAGE_TYPES, SAMPLING, HttpProvider, inline, known, link, one_text
from kernai_providers.native import AssistantTurn, Toolbox, UserTurn, is_recursive
from kernai_providers.reader import SseReader, count_of, key_of, sum_of

#: `max_tokens` is required by the vendor, and counts thinking, too, even if the model decides how much it thinks
DEFAULT_MAX_TOKENS, ADAPTIVE_ALLOWANCE = 4096, 16_384
MIN_THINKING_BUDGET = 1024
#: the vendor compiles all strict schemas of a request into one grammar. It rejects the request if the grammar is too
#: large, as with seven small tools, or if the schemas have more unions than this
MOST_STRICT_TOOLS, MOST_UNIONS = 6, 16
#: the first version that accepts an effort for thinking, the first one that rejects a budget and sampling options, the
#: first one that thinks by default, and the first one that rejects a thought if the conversation before it has changed
#: (https://platform.claude.com/docs/build-with-claude/preserved-thinking); in November 2026
ADAPTIVE, ADAPTIVE_ONLY, ADAPTIVE_BY_DEFAULT, BOUND_THOUGHTS = (4, 6), (4, 7), (5, 0), (5, 1)
#: the vendor places the breakpoint itself, at the end of the conversation
_CACHE_CONTROL: Mapping[object, dict[str, str]] = {
    True: {"type": "ephemeral"}, "1h": {"type": "ephemeral", "ttl": "1h"},
}
#: the types of blocks with reasoning; and our own fields of one: how much of the text came before it, in characters,
#: and a digest of the request that it answered, as a number, since `redact` may find a match in a text
THINKING, AFTER, REQUEST = ("thinking", "redacted_thinking"), "after", "request"

#: the parts of the prompt's tokens: the reader's attribute, and the vendor's field
PROMPT_TOKENS = {
    "uncached_tokens": "input_tokens", "cache_write_tokens": "cache_creation_input_tokens",
    "cached_tokens": "cache_read_input_tokens",
}


class AnthropicProvider(HttpProvider):
    """The Messages API. `base_url`, by default the variable `ANTHROPIC_BASE_URL`, may include the version or not.

    Takes jpeg, png, gif and webp images and PDF (also https URLs), and text documents, if the model declares them.
    Without `generation.max_tokens` an answer has at most 4096 tokens, and 16384 more if the model decides how much it
    thinks, or the thinking budget. For everything else see `HttpProvider`.
    """

    vendor = "anthropic"
    default_base_url = "https://api.anthropic.com/v1"
    base_url_variable = "ANTHROPIC_BASE_URL"
    version_path = "/v1"
    endpoint = "/messages"
    key_variables: tuple[str, ...] = ("ANTHROPIC_API_KEY",)
    key_header = "x-api-key"
    extra_headers: Mapping[str, str] = {"anthropic-version": "2023-06-01"}
    merges_roles = True
    takes_blank_text = False
    takes_media_in_results = True
    calls_natively = True
    call_ids = re.compile(r"[A-Za-z0-9_-]{1,64}")
    input_names = re.compile(r"[A-Za-z0-9_.-]{1,64}")
    enforces = "closed"
    #: in an id such as ``claude-opus-4-6`` or ``claude-3-7-sonnet-20250219``
    versions = re.compile(r"claude-(?:[a-z]+-)?(\d+)(?:[-.](\d{1,2}))?(?!\d)")

    def body(self, messages: Sequence[Message], model: Model, generation: GenerationOptions) -> dict[str, Any]:
        system, turns = self.turns(messages, model)
        thinking = self._thinking(generation, model)
        budget = thinking.get("budget_tokens", 0) if thinking else 0
        adapts = "effort" in (generation.thinking or {}) or self.version_of(model) >= ADAPTIVE_BY_DEFAULT
        allowance = ADAPTIVE_ALLOWANCE if adapts else budget
        max_tokens = generation.max_tokens if generation.max_tokens is not None else DEFAULT_MAX_TOKENS + allowance
        if budget >= max_tokens:
            raise ValueError(f"generation.thinking budget ({budget}) must be below max_tokens ({max_tokens})")
        options = self.options(generation, **SAMPLING, stop="stop_sequences") | {
            "system": system or None,
            "thinking": thinking,
            "output_config": self.options(generation, effort="effort") or None,
            "cache_control": _CACHE_CONTROL.get(generation.cache),
        }
        return {
            "model": model.id,
            "max_tokens": max_tokens,
            "messages": [{"role": role, "content": one_text(parts)} for role, parts in turns],
            "stream": True,
        } | known(options)

    def _thinking(self, generation: GenerationOptions, model: Model) -> dict[str, Any] | None:
        version, asked, name = self.version_of(model), generation.thinking or {}, "generation.thinking"
        if "effort" in asked:
            if (0, 0) < version < ADAPTIVE:
                raise ValueError(f"{model.id} has no adaptive thinking: give {name} a budget, not an effort")
            return {"type": "adaptive"}
        budget = asked.get("budget")
        if budget is None:
            return None
        if version >= ADAPTIVE_ONLY:
            raise ValueError(f"{model.id} takes no thinking budget: give {name} an effort, such as 'medium'")
        if budget < MIN_THINKING_BUDGET:
            raise ValueError(f"{name} budget must be at least {MIN_THINKING_BUDGET} tokens, got {budget}")
        return {"type": "enabled", "budget_tokens": budget}

    def offer(self, box: Toolbox, body: dict[str, Any]) -> None:
        if box.tools:
            # with optional parameters a tool is not strict, since the vendor allows only few of them there
            commands = {name: tool.schema for name, tool in box.tools.items() if tool.type == "command"}
            closed = {name: schema for name, one in commands.items() if (schema := self.closed(one))}
            if len(closed) > MOST_STRICT_TOOLS or json.dumps([closed, box.answer]).count('"anyOf"') > MOST_UNIONS:
                closed = {}
            body["tools"] = [
                {"name": name, "description": tool.description, "input_schema": closed.get(name, tool.schema),
                 **({"strict": True} if name in closed else {})}
                for name, tool in box.tools.items()
            ]
        if box.answer is not None:
            answer = {"format": {"type": "json_schema", "schema": box.answer}}
            body["output_config"] = body.get("output_config", {}) | answer
        # a thought is left out for another model, and for newer ones if what was sent before it differs now, as after a
        # summary, or is unknown, as in a recording of 0.2.0, whose instructions had other words
        is_bound = self.version_of(Model(body["model"])) >= BOUND_THOUGHTS
        sent = sha256(json.dumps([body["model"], is_bound and [body.get("system"), body.get("tools")]]).encode())
        for message in body["messages"]:
            now = int.from_bytes(sent.digest()[:6])
            unknown = None if is_bound else now
            message["content"] = [
                one for one in message["content"] if one["type"] not in THINKING or one.pop(REQUEST, unknown) == now]
            sent.update(json.dumps(message).encode() if is_bound else b"")
        box.request = {REQUEST: int.from_bytes(sent.digest()[:6])}
        said = [part["type"] for message in body["messages"][-2:-1] for part in message["content"]]
        if "tool_use" in said and "thinking" not in said[0] and body.get("thinking", {}).get("type") == "enabled":
            del body["thinking"]  # the vendor would reject calls without thinking, which another model has made

    def closed(self, schema: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns a schema for the strict mode; None for a recursive one, which the vendor rejects there."""
        return None if is_recursive(schema) else super().closed(schema)

    def native_messages(self, turn: AssistantTurn | UserTurn, model: Model) -> Iterator[dict[str, Any]]:
        if isinstance(turn, AssistantTurn):
            content: list[Any] = []  # thoughts have to be sent back in the place where they were
            said = 0
            for thought in turn.thoughts(0, *THINKING):
                after = thought.pop(AFTER, 0)
                content += [*_text(turn.text[said:after]), thought]
                said = after
            rest = turn.text[said:]
            content += _text(rest if rest.strip() or turn.calls else EMPTY)  # the vendor rejects a thought at the end
            for number, call in enumerate(turn.calls):
                content += turn.thoughts(number, *THINKING) if number else []
                content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments})
            yield {"role": "assistant", "content": content}
            return
        content = [
            {"type": "tool_result", "tool_use_id": result.id, "is_error": result.is_error,
             "content": self.encode([(result.text.strip() and result.text) or EMPTY, *result.media], model)}
            for result in turn.results
        ]
        if content := content + self.encode(self.parts_after_results(turn), model):
            yield {"role": "user", "content": content}

    def refused_options(self, model: Model, generation: GenerationOptions) -> Sequence[str]:
        """Returns the sampling options, which models reject while they think, and always since version 4.7."""
        rejects = generation.thinking is not None or self.version_of(model) >= ADAPTIVE_ONLY
        return list(self.options(generation, **SAMPLING)) if rejects else ()

    def encode_part(self, part: str | Media, model: Model) -> Any:
        if isinstance(part, str):
            return {"type": "text", "text": part}
        sees = part.kind == "image" and model.supports("vision")
        reads = part.kind == "document" and model.supports("document_in")
        source: dict[str, Any] | None = None
        if sees or (reads and part.mime_type == "application/pdf"):
            if not part.is_url:
                mime_type, data = inline(part)
                if reads or mime_type in IMAGE_TYPES:
                    source = {"type": "base64", "media_type": mime_type, "data": data}
            elif (url := link(part)) is not None:
                source = {"type": "url", "url": url}
        elif reads and part.mime_type.startswith("text/") and not part.is_url:
            text = part.read_bytes().decode("utf-8", "replace")
            source = {"type": "text", "media_type": "text/plain", "data": text}
        return None if source is None else {"type": part.kind, "source": source}

    def reader(self) -> AnthropicReader:
        return AnthropicReader(self.vendor, self.secrets)


class AnthropicReader(SseReader):
    """Events of the Messages API, up to `message_stop`."""

    terminal = "message_stop"
    #: tokens of the prompt that the cache neither had nor got
    uncached_tokens: int | None = None
    #: where the thought that is being received begins among the pieces of the reasoning
    _thought: int | None = None

    def on_object(self, found: dict[str, Any]) -> None:
        """Handles one event. Unknown types are ignored, as the vendor asks of its clients."""
        kind, index = found["type"], key_of(found.get("index"))
        message, block, delta = map(found.get, ("message", "content_block", "delta"))
        if kind == "content_block_delta" and isinstance(delta, dict):
            self._on_delta(delta, index)
        elif kind == "content_block_start" and isinstance(block, dict):
            self._on_block(block, index)
        elif kind == "message_start" and isinstance(message, dict):
            self.note(message, response_id="id", model="model")
            self._on_usage(message.get("usage"))
        elif kind == "message_delta":
            self._on_end(found)
        elif kind == "message_stop":
            self.finish()

    def _on_block(self, block: Mapping[str, Any], index: object) -> None:
        kind = block.get("type")
        self._newest.pop(index, None)  # gateways reuse indexes
        if kind == "text":
            self.say(block.get("text"))
        elif kind == "tool_use":
            self._newest[index] = key = len(self._calls)
            self.call(key, name=block.get("name"), id=block.get("id"), text=block.get("input") or None)
        elif kind == "fallback" and isinstance(at(block, "to", "model"), str):  # another model answers from here on
            self.answered_by = self.metadata["model"] = block["to"]["model"]
        elif self.box is not None and kind == "thinking":
            self._thought = len(self._reasoning)
        elif self.box is not None and kind == "redacted_thinking":
            self._keep_thought(block)

    def _on_delta(self, delta: Mapping[str, Any], index: object) -> None:
        kind = delta.get("type")
        if kind == "text_delta":
            self.say(delta.get("text"))
        elif kind == "citations_delta":
            self.metadata.setdefault("citations", []).extend(objects([delta.get("citation")]))
        elif kind == "thinking_delta":
            self.think(delta.get("thinking"))
        elif kind == "input_json_delta" and index in self._newest:  # not for a tool that the vendor runs
            self.call(self._newest[index], text=delta.get("partial_json"))
        elif kind == "signature_delta" and self._thought is not None:  # a thought's last event
            thinking, signature = "".join(self._reasoning[self._thought :]), str(delta.get("signature") or "")
            self._keep_thought({"type": "thinking", "thinking": thinking, "signature": signature})
            self._thought = None

    def _keep_thought(self, block: Mapping[str, Any]) -> None:
        after = 0 if self._calls else len(self.text.lstrip())
        self.keep({**block, **({AFTER: after} if after else {}), **(self.box.request if self.box else {})})

    def _on_end(self, found: Mapping[str, Any]) -> None:
        reason, details = at(found, "delta", "stop_reason"), at(found, "delta", "stop_details")
        self.note(found.get("delta"), stop_details="stop_details")
        if isinstance(reason, str):
            self.end_with(reason, why=at(details, "explanation"))
        self._on_usage(found.get("usage"))

    def _on_usage(self, usage: object) -> None:
        """Takes the cumulative counts. Each replaces an earlier one, except for 0, which gateways send if unknown."""
        # the first count is that of the answer so far: it is used if the answer breaks off, and never as its total
        self.completion_tokens = count_of(at(usage, "output_tokens"))
        for ours, theirs in PROMPT_TOKENS.items():
            count = count_of(at(usage, theirs))
            if count is not None and (count or getattr(self, ours) is None):
                setattr(self, ours, count)
        self.thought_tokens(count_of(at(usage, "output_tokens_details", "thinking_tokens")))
        self.note(usage, iterations="iterations")
        self.prompt_tokens = sum_of(self.uncached_tokens, self.cache_write_tokens, self.cached_tokens)


def _text(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}] if text.strip() else []
