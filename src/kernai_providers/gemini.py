"""`GeminiProvider`: the Gemini API's `streamGenerateContent`.

https://ai.google.dev/api/generate-content
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from kernai import GenerationOptions, Media, Message, Model
from kernai.values.media import FALLBACK_MIME
from kernai_providers.failures import at, objects
from kernai_providers.http_provider import EMPTY, HttpProvider, heard_parts, known, media_reference
from kernai_providers.native import Heard, Said, Toolbox
from kernai_providers.reader import SseReader, count_of, sum_of

#: which capability lets a kind of media in
CAPABILITIES = {"image": "vision", "audio": "audio_in", "video": "video_in", "document": "document_in"}

FINISH_REASONS = {
    "STOP": "stop", "MAX_TOKENS": "length", "CONTINUATION": "length",
    **dict.fromkeys(
        (
            "SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR", "IMAGE_SAFETY",
            "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION",
        ),
        "content_filter",
    ),
}


#: what a signature of a call is among a message's reasoning
SIGNATURE = "thought_signature"


class GeminiProvider(HttpProvider):
    """The Gemini API. `base_url` may hold the version or not; the variable `GOOGLE_GEMINI_BASE_URL` may give it.

    Takes images, audio, video and documents (also by https and gs URLs), as far as the model declares them. Everything
    else: see `HttpProvider`.
    """

    vendor = "gemini"
    default_base_url = "https://generativelanguage.googleapis.com/v1beta"
    base_url_variable = "GOOGLE_GEMINI_BASE_URL"
    version_path = "/v1beta"
    conversation_field = "contents"
    key_variables: tuple[str, ...] = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    merges_roles = True
    takes_blank_text = False
    takes_media_of_assistant = True
    calls_natively = True

    def path(self, model: Model) -> str:
        """The model is part of the path."""
        name = model.id.removeprefix("models/")
        folder = "tunedModels" if name.startswith("tunedModels/") else "models"
        return f"/{folder}/{quote(name.removeprefix('tunedModels/'), safe='')}:streamGenerateContent?alt=sse"

    def auth(self, key: str) -> dict[str, str]:
        """A key in a header of the vendor's own; never in the URL."""
        return {"x-goog-api-key": key}

    def body(self, messages: Sequence[Message], model: Model, generation: GenerationOptions) -> dict[str, Any]:
        """The request as `streamGenerateContent` wants it."""
        system, turns = self.turns(messages, model)
        contents = [{"role": "model" if role == "assistant" else role, "parts": parts} for role, parts in turns]
        body: dict[str, Any] = {"contents": contents}
        if system:
            body["systemInstruction"] = {"parts": [{"text": system}]}
        thinking = generation.thinking or {}
        thinking_config = {"thinkingBudget": thinking.get("budget"), "thinkingLevel": thinking.get("effort")}
        config = {
            "temperature": generation.temperature,
            "topP": generation.top_p,
            "maxOutputTokens": generation.max_tokens,
            "stopSequences": generation.stop,
            "thinkingConfig": known(thinking_config) or None,
        }
        return body | ({"generationConfig": known(config)} if known(config) else {})

    def offer(self, box: Toolbox, body: dict[str, Any]) -> None:
        """Function declarations, and a schema of the response."""
        if box.tools:
            body["tools"] = [{"functionDeclarations": [
                {"name": name, "description": tool.description or name, "parametersJsonSchema": dict(tool.schema)}
                for name, tool in box.tools.items()
            ]}]
        if box.answer is not None:
            answer = {"responseMimeType": "application/json", "responseJsonSchema": dict(box.answer)}
            body["generationConfig"] = body.get("generationConfig", {}) | answer

    def answers_by_schema(self, schema: Mapping[str, Any], *, has_tools: bool) -> bool:
        """Only without tools: few models combine the two."""
        del schema
        return not has_tools

    def native_messages(self, turn: Said | Heard, model: Model) -> Iterator[dict[str, Any]]:
        """One content; none for a turn in which nothing was said."""
        if isinstance(turn, Said):
            signatures = {item["at"]: item["signature"] for item in turn.reasoning if item.get("type") == SIGNATURE}
            parts: list[Any] = [{"text": turn.text}] if turn.text else []
            for at, call in enumerate(turn.calls):
                part = {"functionCall": {"id": call.id, "name": call.name, "args": call.arguments}}
                parts.append(part | ({"thoughtSignature": signatures[at]} if at in signatures else {}))
            yield {"role": "model", "parts": parts or [{"text": EMPTY}]}
            return
        parts = [
            {"functionResponse": {"id": outcome.call.id, "name": outcome.call.name, "response": {
                "error" if outcome.is_error else "result": outcome.text}}}
            for outcome in turn.outcomes
        ]
        beside = [part for part in heard_parts(turn) if not isinstance(part, str) or part.strip()]
        if parts := parts + self.encode(beside, model):
            yield {"role": "user", "parts": parts}

    def encode_part(self, part: str | Media, model: Model) -> Any:
        """Text and every kind of media that the model declares; anything else becomes its placeholder."""
        if isinstance(part, str):
            return {"text": part}
        if not model.supports(CAPABILITIES[part.kind]):
            return None
        if not part.is_url:
            return {"inlineData": {"mimeType": part.mime_type, "data": part.to_base64()}}
        url = media_reference(part, ("https", "gs"))
        if url is None:
            return None
        # the fallback type means unknown; without a type the vendor detects it
        known = {} if part.mime_type == FALLBACK_MIME else {"mimeType": part.mime_type}
        return {"fileData": {**known, "fileUri": url}}

    def reader(self) -> GeminiReader:
        """A new reader for one answer."""
        return GeminiReader(self.vendor, self.secrets)


class GeminiReader(SseReader):
    """Chunks of `streamGenerateContent`, up to the body's end; there is no other end mark.

    A finish reason does not end it: one comes at the end of each round of a tool that the vendor itself runs (code
    execution, search), in each chunk of older models, and in empty chunks of gateways, before the text.
    """

    terminal = "a finishReason"
    _called = 0

    @property
    def may_end(self) -> bool:
        """Once there is a finish reason."""
        return self.finish_reason is not None

    def on_event(self, event: str | None, data: str) -> None:
        """One chunk."""
        del event
        if data == "[DONE]":  # of gateways, as elsewhere
            self.complete = self.may_end
            return
        chunk = self.parsed(data)
        self.check_error(chunk)
        self._keep(chunk)
        for candidate in objects(chunk.get("candidates")):
            # several candidates come where `extra` asks for them; the first is the answer
            if candidate.get("index", 0) in (0, None):
                self._on_candidate(candidate)
        if self.finish_reason is None:
            reason = at(chunk, "promptFeedback", "blockReason")
            if isinstance(reason, str) and reason:
                raise self.error(f"the prompt was blocked ({reason}); nothing was generated", reason)

    def check_complete(self) -> None:
        """The last finish reason counts."""
        self.complete = self.may_end
        super().check_complete()

    def _on_candidate(self, candidate: Mapping[str, Any]) -> None:
        for part in objects(at(candidate, "content", "parts")):
            (self.think if part.get("thought") is True else self.say)(part.get("text"))
            if "functionCall" in part:
                self._on_call(part)
        reason = candidate.get("finishReason")
        if isinstance(reason, str) and reason:
            self.end_with(reason, FINISH_REASONS, candidate.get("finishMessage"))
        self.note(candidate, continuation_token="continuationToken")  # noqa: S106 - a field's name

    def _on_call(self, part: Mapping[str, Any]) -> None:
        """A call comes whole. Its signature has to come back with it."""
        call, number = part["functionCall"], self._called
        if not isinstance(call, dict):
            return
        if self.box is not None and isinstance(part.get("thoughtSignature"), str):
            items = self.metadata.setdefault("reasoning_items", [])
            items.append({"type": SIGNATURE, "at": number, "signature": part["thoughtSignature"]})
        self._called += 1
        arguments = json.dumps(call.get("args") or {}, ensure_ascii=False)
        self.call(number, name=call.get("name"), id=call.get("id"), text=arguments)

    def _keep(self, chunk: Mapping[str, Any]) -> None:
        self.note(chunk, response_id="responseId", model="modelVersion")
        usage = chunk.get("usageMetadata")
        if not isinstance(usage, dict):
            return
        # cumulative: each chunk's replaces the one before
        prompt, tools = count_of(usage.get("promptTokenCount")), count_of(usage.get("toolUsePromptTokenCount"))
        self.prompt_tokens = sum_of(prompt, tools)
        thoughts = count_of(usage.get("thoughtsTokenCount"))
        self.completion_tokens = sum_of(count_of(usage.get("candidatesTokenCount")), thoughts)
        if "candidatesTokenCount" not in usage:
            self.completion_tokens = thoughts  # all of the answer was thinking
        self.cached_tokens = count_of(usage.get("cachedContentTokenCount"))
        self.thought_tokens(thoughts)
