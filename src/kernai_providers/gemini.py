"""`GeminiProvider`: the Gemini API's `streamGenerateContent`.

https://ai.google.dev/api/generate-content
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from kernai import GenerationOptions, Media, Message, Model
from kernai.values.media import FALLBACK_MIME, kind_of
from kernai_providers.failures import at, objects
from kernai_providers.http_provider import EMPTY, SVG, HttpProvider, inline, known, media_reference
from kernai_providers.native import NEEDS_SIGNATURE, NO_SIGNATURE, AssistantTurn, Toolbox, UserTurn
from kernai_providers.reader import SseReader, count_of, sum_of

#: models that accept no system message
NO_SYSTEM = re.compile(r"(?:models/)?gemma-[1-3]")
#: the type of a call's signature in a message's reasoning
SIGNATURE = "thought_signature"


class GeminiProvider(HttpProvider):
    """The Gemini API. `base_url`, by default the variable `GOOGLE_GEMINI_BASE_URL`, may include the version or not.

    Takes images, audio, video and documents (also by https and gs URLs), if the model declares them. For everything
    else see `HttpProvider`.
    """

    vendor = "gemini"
    default_base_url = "https://generativelanguage.googleapis.com/v1beta"
    base_url_variable = "GOOGLE_GEMINI_BASE_URL"
    version_path = "/v1beta"
    conversation_field = "contents"
    key_variables: tuple[str, ...] = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    key_header = "x-goog-api-key"
    merges_roles = True
    takes_blank_text = False
    takes_media_of_assistant = True
    calls_natively = True
    enforces = "without tools"  # few models combine the two

    def path(self, model: Model) -> str:
        return f"/models/{quote(model.id.removeprefix('models/'), safe='')}:streamGenerateContent?alt=sse"

    def body(self, messages: Sequence[Message], model: Model, generation: GenerationOptions) -> dict[str, Any]:
        system, turns = self.turns(messages, model)
        if system and NO_SYSTEM.match(model.id):
            system, turns = "", self.turns([Message("user", system), *messages], model)[1]
        contents = [{"role": "model" if role == "assistant" else role, "parts": parts} for role, parts in turns]
        config = self.options(
            generation, temperature="temperature", top_p="topP", max_tokens="maxOutputTokens", stop="stopSequences")
        if thinking := self.options(generation, budget="thinkingBudget", effort="thinkingLevel"):
            config["thinkingConfig"] = thinking
        instruction = {"parts": [{"text": system}]} if system else None
        return known({"contents": contents, "systemInstruction": instruction, "generationConfig": config or None})

    def offer(self, box: Toolbox, body: dict[str, Any]) -> None:
        if box.tools:
            body["tools"] = [{"functionDeclarations": [
                {"name": name, "description": tool.description or name, "parametersJsonSchema": tool.schema}
                for name, tool in box.tools.items()
            ]}]
        if box.answer is not None:
            answer = {"responseMimeType": "application/json", "responseJsonSchema": box.answer}
            body["generationConfig"] = body.get("generationConfig", {}) | answer
        if [one["role"] for one in body["contents"][:1]] == ["model"]:  # the vendor refuses a call at the beginning
            body["contents"].insert(0, {"role": "user", "parts": [{"text": EMPTY}]})

    def native_messages(self, turn: AssistantTurn | UserTurn, model: Model) -> Iterator[dict[str, Any]]:
        if isinstance(turn, AssistantTurn):
            signed = [item for item in turn.reasoning if item.get("type") == SIGNATURE]
            signatures = {item.get("at", 0): item["signature"] for item in signed}
            if not signatures and NEEDS_SIGNATURE.match(model.id):
                signatures = {0: NO_SIGNATURE}  # of parallel calls, only the first one has a signature
            parts: list[Any] = self.encode([*([turn.text] if turn.text else []), *turn.media], model)
            for number, call in enumerate(turn.calls):
                part = {"functionCall": {"id": call.id, "name": call.name, "args": call.arguments}}
                parts.append(part | ({"thoughtSignature": signatures[number]} if number in signatures else {}))
            yield {"role": "model", "parts": parts or [{"text": EMPTY}]}
            return
        parts = [
            {"functionResponse": {"id": result.id, "name": result.name, "response": {
                "error" if result.is_error else "result": result.text}}}
            for result in turn.results
        ]
        if parts := parts + self.encode(self.parts_after_results(turn), model):
            yield {"role": "user", "parts": parts}

    def encode_part(self, part: str | Media, model: Model) -> Any:
        if isinstance(part, str):
            return {"text": part}
        if part.kind not in model.supported_media_inputs or part.mime_type == SVG:
            return None
        if not part.is_url:
            mime_type, data = inline(part)
            return {"inlineData": {"mimeType": mime_type, "data": data}}
        url = media_reference(part, ("https", "gs"))
        if url is None:
            return None
        # the fallback type means unknown; without a type the vendor detects it
        known = {} if part.mime_type == FALLBACK_MIME else {"mimeType": part.mime_type}
        return {"fileData": {**known, "fileUri": url}}

    def reader(self) -> GeminiReader:
        return GeminiReader(self.vendor, self.secrets)


class GeminiReader(SseReader):
    """Chunks of `streamGenerateContent`, up to the body's end; there is no other end marker.

    A finish reason does not end the turn; the last one counts. There is one after each round of a tool that the vendor
    itself runs (code execution, search), in each chunk of older models, and in gateways' empty chunks before the text.
    """

    terminal = "a finishReason"
    done_marker = False

    def on_object(self, found: dict[str, Any]) -> None:
        self._on_metadata(found)
        for candidate in objects(found.get("candidates")):
            # there are several candidates if `extra` asks for them; the first one is the answer
            if candidate.get("index", 0) in (0, None):
                self._on_candidate(candidate)
        if self.finish_reason is None:
            reason = at(found, "promptFeedback", "blockReason")
            if isinstance(reason, str) and reason:
                raise self.error(f"the prompt was blocked ({reason}); nothing was generated", reason)

    def _on_candidate(self, candidate: Mapping[str, Any]) -> None:
        for part in objects(at(candidate, "content", "parts")):
            is_thought = part.get("thought") is True
            (self.think if is_thought else self.say)(part.get("text"))
            if isinstance(part.get("functionCall"), dict):
                self._on_call(part)
            elif not is_thought and (mime_type := at(part.get("inlineData") or part.get("fileData"), "mimeType")):
                self.say(self.named(kind_of(str(mime_type)), mime_type))
        reason = candidate.get("finishReason")
        if isinstance(reason, str) and reason:
            self.end_with(reason, why=candidate.get("finishMessage"))
        self.note(candidate, continuation_token="continuationToken", grounding="groundingMetadata")  # noqa: S106 - names

    def _on_call(self, part: Mapping[str, Any]) -> None:
        """Handles a call, which arrives as a whole. Its signature has to be sent back with it."""
        call = part["functionCall"]
        if call.get("partialArgs") or call.get("willContinue"):
            raise self.error("calls in pieces are not supported: leave out streamFunctionCallArguments", "partial_call")
        if self.box is not None and isinstance(part.get("thoughtSignature"), str):
            self.keep({"type": SIGNATURE, "signature": part["thoughtSignature"]})
        self.call(len(self._calls), name=call.get("name"), id=call.get("id"), text=call.get("args") or {})

    def _on_metadata(self, chunk: Mapping[str, Any]) -> None:
        self.note(chunk, response_id="responseId", model="modelVersion")
        usage = chunk.get("usageMetadata")
        if not isinstance(usage, dict):
            return
        # cumulative: the usage of each chunk replaces the one before
        prompt, tools = count_of(usage.get("promptTokenCount")), count_of(usage.get("toolUsePromptTokenCount"))
        self.prompt_tokens = sum_of(prompt, tools)
        thoughts = count_of(usage.get("thoughtsTokenCount"))
        answer = usage.get("candidatesTokenCount", None if thoughts is None else 0)  # missing if all of it was thinking
        self.completion_tokens = sum_of(count_of(answer), thoughts)
        self.cached_tokens = count_of(usage.get("cachedContentTokenCount"))
        self.thought_tokens(thoughts)
