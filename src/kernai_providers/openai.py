"""OpenAI's two wire formats: `OpenAIProvider` and `ResponsesProvider`.

Chat Completions, of OpenAI and compatible vendors: https://platform.openai.com/docs/api-reference/chat

The Responses API: https://platform.openai.com/docs/api-reference/responses. Nothing is stored at the vendor: each
request contains the whole conversation. A reasoning model sends its reasoning encrypted, and the vendor wants it back
before the answer that it led to. It is kept in the answer's `metadata` and in the conversation's `Message.reasoning`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

from kernai import GenerationOptions, Media, Message, Model
from kernai._util.api import check_type
from kernai_providers.exchange import Exchange
from kernai_providers.failures import at, failure_in_stream, objects
from kernai_providers.http_provider import EMPTY, IMAGE_TYPES, PDF, SAMPLING, HttpProvider, known, link, one_text
from kernai_providers.native import NEEDS_SIGNATURE, NO_SIGNATURE, AssistantTurn, Toolbox, UserTurn, is_whole
from kernai_providers.reader import SseReader, cost_of, count_of, key_of, sum_of, whole_characters

#: models that think before they answer, and accept only `max_completion_tokens`; those of them that accept `stop`
REASONING_MODEL = re.compile(r"(?:.*/)?(?:ft:)?(?:o\d|gpt-[5-9])(?![0-9a-z])")
STOPS = re.compile(r"(?:.*/)?(?:ft:)?(?:o1|o3-mini)")
#: models of OpenAI that exist only in its Responses API, in November 2026
RESPONSES_ONLY = re.compile(
    r"o\d-pro|o\d(?:-mini)?-deep-research|gpt-\d[\d.]*-(?:pro|codex)|codex-|computer-use"
    r"|gpt-(?:\d[\d.]*-(?:cyber|rosalind|astra-law)|daybreak-(?:blue|red)|rosalind-research)(?![a-z0-9])"
)
#: the first version that may not think before a call in Chat Completions, the first one whose requests may set the
#: lifetime of the cache, and the longer of the two lifetimes
CALLS_IN_RESPONSES, CACHE_LIFETIME, LONG_CACHE = (5, 4), (5, 6), "12h"

#: the field in which some compatible vendors send reasoning, and want it back with the model's calls; and those that
#: want it with each of the model's messages: with tools, they refuse a conversation in which one lacks the field
REASONING, WITH_EACH_MESSAGE = "reasoning_content", ("deepseek",)
#: the field in which OpenRouter sends reasoning, and wants it back; and the names of its texts, which come in pieces
DETAILS = "reasoning_details"
DETAIL_TEXTS = {"reasoning.text": "text", "reasoning.summary": "summary"}
#: the field of a call in which Google sends the signature of its reasoning, and wants it back
EXTRA = "extra_content"
GOOGLE = ("gemini-openai", "vertex")

AUDIO_FORMATS = {
    "audio/wav": "wav", "audio/x-wav": "wav", "audio/wave": "wav", "audio/vnd.wave": "wav",
    "audio/mpeg": "mp3", "audio/mp3": "mp3",
}

#: reported by routers, vLLM, DeepSeek and Z.ai when the answer was abandoned
BROKEN_OFF = ("error", "abort", "insufficient_system_resource", "network_error")


class OpenAIProvider(HttpProvider):
    """Chat Completions. For a compatible server pass `base_url=`, or use the table: `resolve("groq/MODEL")`.

    Without `base_url` the variable `OPENAI_BASE_URL` is used, as by the vendor's own client. Takes images (also https
    URLs), wav and mp3 audio, and PDF documents, if the model declares them. `done_marker=False`: for a server that ends
    its streams without ``[DONE]``; then the finish reason ends the turn. For everything else see `HttpProvider`.
    """

    vendor: str = "openai"
    default_base_url = "https://api.openai.com/v1"
    base_url_variable: str | None = "OPENAI_BASE_URL"
    endpoint = "/chat/completions"
    key_variables: tuple[str, ...] = ("OPENAI_API_KEY",)
    #: whether it is OpenAI's own API or Azure's: only these have a prompt cache and special rules for reasoning models
    is_openai: bool = True
    #: whether it takes the option to send usage in a stream
    stream_options: bool = True
    calls_natively = True
    enforces: Literal["nullable"] | None = "nullable"
    versions = re.compile(r"^(?:.*/)?(?:ft:)?gpt-(\d+)(?:\.(\d+))?(?![0-9a-z])")
    #: whether the format has the option `stop`
    has_stop = True

    def __init__(self, api_key: str | None = None, *, done_marker: bool = True, **options: Any) -> None:
        super().__init__(api_key, **options)
        self._done_marker = check_type(done_marker, bool, "done_marker must be True or False")

    def _exchange(
        self, messages: Sequence[Message], model: Model, generation: GenerationOptions, on_chunk: object
    ) -> Exchange:
        thinks = (GenerationOptions.coerce(generation).thinking or {}).get("effort") != "none"
        is_native = getattr(on_chunk, "tools", None) is not None
        # with a slash, the name is a router's, such as openai/gpt-5.5
        only_there = is_native and thinks and self.version_of(model) >= CALLS_IN_RESPONSES and "/" not in model.id
        has_both = type(self) is OpenAIProvider or self.vendor == "azure"  # other subclasses may have their own body
        sender: OpenAIProvider = self
        if has_both and (only_there or RESPONSES_ONLY.match(model.id)):
            # a copy in the other format: the same key, headers and transport, whatever the vendor
            sender = object.__new__(ResponsesProvider)
            vars(sender).update(vars(self), base_url=self.base_url.removesuffix(ResponsesProvider.endpoint))
        return super(OpenAIProvider, sender)._exchange(messages, model, generation, on_chunk)

    def body(self, messages: Sequence[Message], model: Model, generation: GenerationOptions) -> dict[str, Any]:
        body = self.chat(messages, model, lambda role, parts: {"role": role, "content": one_text(parts)})
        on_bedrock = self.vendor == "bedrock" and "openai." in model.id
        renamed = on_bedrock or (self.is_openai and REASONING_MODEL.match(model.id))
        limit = "max_completion_tokens" if renamed else "max_tokens"
        if self.stream_options:
            body["stream_options"] = {"include_usage": True}
        if generation.cache and self.is_openai:
            body["prompt_cache_key"] = cache_key(messages, model)
        body |= self.options(generation, **SAMPLING, stop="stop", effort="reasoning_effort", max_tokens=limit)
        if self.vendor == "deepseek" and body.get("reasoning_effort") == "none":  # which it ignores
            body["thinking"] = {"type": "disabled"}
            del body["reasoning_effort"]
        return body

    def mark_end(self, body: dict[str, Any], model: Model, generation: GenerationOptions) -> None:
        if self.is_openai and self.keeps_longer(generation, model) and body.get("messages"):
            message = body["messages"][-1]
            content = message["content"]
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            mark = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": LONG_CACHE}}
            message["content"] = [*parts[:-1], parts[-1] | mark]

    def keeps_longer(self, generation: GenerationOptions, model: Model) -> bool:
        """Whether the cache should last longer than by default, and requests to this model may say so."""
        return generation.cache == "1h" and self.version_of(model) >= CACHE_LIFETIME

    def offer(self, box: Toolbox, body: dict[str, Any]) -> None:
        if box.tools:
            body["tools"] = [{"type": "function", "function": box.function(name)} for name in box.tools]
        if box.answer is not None:
            schema = {"name": "answer", "schema": box.answer, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}

    def native_messages(self, turn: AssistantTurn | UserTurn, model: Model) -> Iterator[dict[str, Any]]:
        if isinstance(turn, AssistantTurn):
            text = "" if turn.calls and self.vendor == "mistral" else turn.text  # Mistral refuses text beside calls
            message: dict[str, Any] = {"role": "assistant", "content": text or (None if turn.calls else EMPTY)}
            message |= {REASONING: ""} if self.vendor in WITH_EACH_MESSAGE else {}
            # other vendors refuse these fields; older recordings do not say whose they are
            own = [item for item in turn.reasoning if item.get("vendor", self.vendor) == self.vendor]
            for item in own:
                message |= {REASONING: item["text"]} if item.get("type") == REASONING else {}
                message |= {DETAILS: item[DETAILS]} if item.get("type") == DETAILS else {}
            if turn.calls:
                extras = {item.get("at", 0): {EXTRA: item[EXTRA]} for item in own if EXTRA in item}
                if not extras and self.vendor in GOOGLE and NEEDS_SIGNATURE.match(model.id):
                    extras = {0: {EXTRA: {"google": {"thought_signature": NO_SIGNATURE}}}}
                message["tool_calls"] = [
                    {"id": call.id, "type": "function", "function": {
                        "name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
                     **extras.get(number, {})}
                    for number, call in enumerate(turn.calls)
                ]
            yield message
            return
        for result in turn.results:
            yield {"role": "tool", "tool_call_id": result.id, "content": result.marked}
        if parts := self.parts_after_results(turn):
            if turn.results and self.merges_roles:  # Mistral refuses a user's message after a result
                yield {"role": "assistant", "content": "OK"}
            yield {"role": "user", "content": one_text(self.encode(parts, model))}

    def refused_options(self, model: Model, generation: GenerationOptions) -> Sequence[str]:
        """Returns a thinking budget, which no model accepts, and what reasoning models reject."""
        thinking = generation.thinking or {}
        refused = ["thinking"] if "budget" in thinking else []
        reasons = self.is_openai and REASONING_MODEL.match(model.id) and "-chat" not in model.id
        if reasons and thinking.get("effort") != "none":
            refused += self.options(generation, **SAMPLING)
        if generation.stop and (not self.has_stop or (reasons and not STOPS.match(model.id))):
            refused.append("stop")
        return refused

    def encode_part(self, part: str | Media, model: Model) -> Any:
        if isinstance(part, str):
            return {"type": "text", "text": part}
        if part.kind == "image" and model.supports("vision"):
            url = link(part, *IMAGE_TYPES)
            return None if url is None else {"type": "image_url", "image_url": {"url": url}}
        if part.is_url:
            return None
        if part.kind == "audio" and model.supports("audio_in") and part.mime_type in AUDIO_FORMATS:
            audio = {"data": part.to_base64(), "format": AUDIO_FORMATS[part.mime_type]}
            return {"type": "input_audio", "input_audio": audio}
        if part.mime_type == PDF and model.supports("document_in"):
            return {"type": "file", "file": {"filename": f"{part.id}.pdf", "file_data": link(part, PDF)}}
        return None

    def reader(self) -> OpenAIReader:
        reader = OpenAIReader(self.vendor, self.secrets)
        reader.done_marker = self._done_marker
        return reader


class UsageReader(SseReader):
    """Reads the usage in both formats. They have different words for the prompt and the completion."""

    words = "prompt", "completion"

    def _on_usage(self, usage: object) -> None:
        """Takes the counts. Each replaces an earlier one, except for 0, which gateways send if unknown."""
        prompt, completion = (count_of(at(usage, f"{word}_tokens")) for word in self.words)
        inside, outside = (f"{word}_tokens_details" for word in self.words)
        if not isinstance(usage, dict) or (self.prompt_tokens and not prompt and not completion):
            return
        if prompt or not self.prompt_tokens:
            self.prompt_tokens = prompt
            # DeepSeek and Moonshot report it outside of the details
            places = ((inside, "cached_tokens"), ("prompt_cache_hit_tokens",), ("cached_tokens",))
            cached = (count_of(at(usage, *path)) for path in places)
            self.cached_tokens = next((count for count in cached if count is not None), None)
            self.cache_write_tokens = count_of(at(usage, inside, "cache_write_tokens"))
        self.cost = cost_of(usage)
        thought = count_of(at(usage, outside, "reasoning_tokens"))
        self.thought_tokens(thought)
        # xAI's completion excludes the reasoning, as the total shows
        known = (self.prompt_tokens, completion, thought)
        is_apart = None not in known and count_of(usage.get("total_tokens")) == sum_of(*known)
        self.completion_tokens = sum_of(completion, thought) if is_apart else completion


class OpenAIReader(UsageReader):
    """Chunks of Chat Completions, up to ``[DONE]``."""

    terminal = "[DONE]"

    def on_object(self, found: dict[str, Any]) -> None:
        # the last two are Perplexity's
        self.note(found, response_id="id", model="model", citations="citations", search_results="search_results")
        self._on_usage(found.get("usage"))
        self.check_error({"error": at(found, "x_groq", "error")})  # why Groq has stopped early
        for choice in objects(found.get("choices")):
            # there are several choices if `extra` asks for them; the first one is the answer
            if choice.get("index", 0) in (0, None):
                self._on_choice(choice)

    def _on_choice(self, choice: Mapping[str, Any]) -> None:
        self.check_error(choice)  # some routers put it here
        # some servers wrap a whole answer as a stream; Perplexity repeats the answer so far beside each piece of it
        delta = choice.get("delta") or (None if self.has_text else choice.get("message"))
        if isinstance(delta, dict):
            self._on_content(delta.get("content"))
            self.say(at(delta, "audio", "transcript"))
            for call in objects(delta.get("tool_calls")):
                self._on_call(call)
            for image in objects(delta.get("images")):  # from OpenRouter, as data URIs
                url = str(at(image, "image_url", "url"))
                self.say(self.named("image", url.removeprefix("data:").partition(";")[0]))
            self.think(delta.get("reasoning_content") or delta.get("reasoning"))
            if isinstance(delta.get(REASONING), str):
                self._pieces[REASONING].append(delta[REASONING])
            self._pieces[DETAILS] += objects(delta.get(DETAILS))
            if isinstance(delta.get("refusal"), str):
                self.metadata["refusal"] = self.metadata.get("refusal", "") + delta["refusal"]
        reason = choice.get("finish_reason")
        if reason in BROKEN_OFF:
            raise self.error("the model's server gave up in the middle of the answer", "error", retryable=True)
        if isinstance(reason, str) and reason:
            self.end_with(reason)
            self.terminal = "[DONE] (if this server never sends it, pass done_marker=False)"

    def _on_call(self, call: Mapping[str, Any]) -> None:
        name, index = at(call, "function", "name"), key_of(call.get("index"))
        key = self._newest.get(index)
        if name and (key is None or self._is_another(call, key)):
            key = self._newest[index] = len(self._calls)
        elif key is None:
            key = self._newest[index] = next(reversed(self._calls), 0)
        elif not name and key in self._calls:
            self._calls[key].is_continued = True
        self.call(key, name=name, id=call.get("id"), text=at(call, "function", "arguments"))
        if key in self._calls and isinstance(call.get(EXTRA), dict):
            self.keep({"type": EXTRA, "vendor": self.vendor, EXTRA: call[EXTRA]}, self._calls[key].index)

    def _is_another(self, piece: Mapping[str, Any], key: object) -> bool:
        """Whether a piece with a name begins another call than the newest one with its index.

        Some servers number no call, or each with 0. Others repeat the name in each piece: with the call's id, or as
        vLLM does for a forced call, without an id or with a new one. Such a call's arguments are not complete yet.
        """
        call, id = self._calls.get(key), piece.get("id")
        if call is None or not call.name or (id and id == call.id):
            return False
        if at(piece, "function", "name") != call.name or call.is_continued:
            return True
        begins = id or str(at(piece, "function", "arguments")).lstrip().startswith("{")
        return bool(begins) and is_whole("".join(call.pieces))

    def _on_content(self, content: object) -> None:
        """Handles a text, or parts, which Mistral's reasoning models send."""
        for part in content if isinstance(content, list) else (content,):
            if at(part, "type") == "thinking":
                for thought in objects(at(part, "thinking")) or [{"text": at(part, "thinking")}]:
                    self.think(thought.get("text"))
            else:
                self.say(part.get("text") if isinstance(part, dict) else part)

    def on_done(self) -> None:
        if self.metadata.get("refusal"):
            self.finish_reason = "refusal"
        self.finish()
        if self.box is not None and (self.called_tool or self.vendor in WITH_EACH_MESSAGE):
            if thought := self._pieces[REASONING]:
                self.keep({"type": REASONING, "text": "".join(thought), "vendor": self.vendor}, 0)
            if details := whole_details(self._pieces[DETAILS]):
                self.keep({"type": DETAILS, DETAILS: details, "vendor": self.vendor}, 0)


def whole_details(pieces: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns OpenRouter's details of the reasoning, with the pieces of each text as one."""
    details: list[dict[str, Any]] = []
    for (kind, _), found in groupby(pieces, lambda piece: (str(piece.get("type")), piece.get("index"))):
        same = list(found)
        if kind in DETAIL_TEXTS:
            whole = {name: value for piece in same for name, value in piece.items() if value is not None}
            texts = (piece.get(DETAIL_TEXTS[kind]) for piece in same)
            same = [whole | {DETAIL_TEXTS[kind]: "".join(text for text in texts if isinstance(text, str))}]
        details += same
    return details


def cache_key(messages: Sequence[Message], model: Model) -> str:
    """Returns a key that routes requests with the same instructions to where their prompt is cached."""
    shared = f"{model.id}\n{messages[0].text if messages else ''}".encode("utf-8", "replace")
    return f"kernai-{hashlib.sha256(shared).hexdigest()[:32]}"

# ---------------------------------------------------------------------------------------------------- the Responses API

#: whether a message is commentary or the final answer: models stop early if it is not sent back with the message
PHASE = "phase"
NEVER_REASONS = re.compile(r"(?:.*/)?(?:ft:)?(?:chat)?gpt-[34]")


class ResponsesProvider(OpenAIProvider):
    """The Responses API. `resolve` uses it for models that exist only there, and for ``"openai-responses/MODEL"``.

    Takes images and PDF documents (also https URLs), if the model declares them. It has no option `stop`. For
    everything else see `OpenAIProvider`.
    """

    vendor = "openai-responses"
    endpoint = "/responses"
    conversation_field = "input"
    takes_media_in_results = True
    has_stop = False

    def __init__(self, api_key: str | None = None, **options: Any) -> None:
        HttpProvider.__init__(self, api_key, **options)  # this API has no `done_marker`

    def body(self, messages: Sequence[Message], model: Model, generation: GenerationOptions) -> dict[str, Any]:
        spoken = [message for message in messages if message.role != "system"]
        system, turns = self.turns(messages, model)
        items: list[dict[str, Any]] = []
        for message, (role, parts) in zip(spoken, turns, strict=True):
            text = one_text(parts)
            said = AssistantTurn(text, [], message.reasoning)
            items += self.native_messages(said, model) if role == "assistant" else [{"role": role, "content": text}]
        options = self.options(generation, **SAMPLING, max_tokens="max_output_tokens") | {
            "instructions": system or None,
            "reasoning": self.options(generation, effort="effort") or None,
            "prompt_cache_key": cache_key(messages, model) if generation.cache else None,
            "prompt_cache_options": {"ttl": LONG_CACHE} if self.keeps_longer(generation, model) else None,
        }
        return {"model": model.id, "input": items, "stream": True, "store": False} | known(options)

    def mark_end(self, body: dict[str, Any], model: Model, generation: GenerationOptions) -> None:  # noqa: ARG002 - the base's parameter
        if REASONING_MODEL.match(model.id) or any(item.get("type") == "reasoning" for item in body["input"]):
            body["include"] = ["reasoning.encrypted_content"]

    def offer(self, box: Toolbox, body: dict[str, Any]) -> None:
        if box.tools:
            # in this API, a tool is strict unless it says otherwise
            body["tools"] = [{"type": "function", "strict": False, **box.function(name)} for name in box.tools]
        if box.answer is not None:
            body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": box.answer, "strict": True}}

    def native_messages(self, turn: AssistantTurn | UserTurn, model: Model) -> Iterator[dict[str, Any]]:
        if isinstance(turn, AssistantTurn):
            # another vendor cannot read it; some models reject reasoning, and may not know phases
            own = [item for item in turn.reasoning if item.get("vendor", self.vendor) == self.vendor]
            turn.reasoning = () if NEVER_REASONS.match(model.id) else own
            phases = [{PHASE: item[PHASE]} for item in turn.reasoning if item.get("type") == PHASE]
            yield from turn.thoughts(0, "reasoning")
            if turn.text or not turn.calls:
                yield {"role": "assistant", "content": turn.text or EMPTY, **(phases[-1] if phases else {})}
            for number, call in enumerate(turn.calls):
                yield from turn.thoughts(number, "reasoning") if number else ()
                arguments = json.dumps(call.arguments, ensure_ascii=False)
                yield {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments}
            return
        for result in turn.results:
            output: Any = self.encode([result.marked, *result.media], model) if result.media else result.marked
            yield {"type": "function_call_output", "call_id": result.id, "output": output}
        if parts := self.parts_after_results(turn):
            yield {"role": "user", "content": one_text(self.encode(parts, model))}

    def encode_part(self, part: str | Media, model: Model) -> Any:
        if isinstance(part, str):
            return {"type": "input_text", "text": part}
        if part.kind == "image" and model.supports("vision"):
            url = link(part, *IMAGE_TYPES)
            return None if url is None else {"type": "input_image", "image_url": url, "detail": "auto"}
        if part.mime_type == PDF and model.supports("document_in"):
            url = link(part, PDF)
            if not part.is_url:
                return {"type": "input_file", "filename": f"{part.id}.pdf", "file_data": url}
            return None if url is None else {"type": "input_file", "file_url": url}
        return None

    def reader(self) -> ResponsesReader:  # type: ignore[override]  # another format, the same vendor
        return ResponsesReader(self.vendor, self.secrets)


class PerplexityProvider(ResponsesProvider):
    """Perplexity's Agent API, which has the same format. For everything else see `ResponsesProvider`."""

    vendor = "perplexity"
    default_base_url = "https://api.perplexity.ai/v1"
    base_url_variable = None
    key_variables = ("PERPLEXITY_API_KEY", "PPLX_API_KEY")
    enforces = None


class ResponsesReader(UsageReader):
    """Events of the Responses API, up to the one with the whole response."""

    terminal = "response.completed"
    words = "input", "output"

    def on_object(self, found: dict[str, Any]) -> None:
        kind = str(found["type"])
        response, item, index = found.get("response"), found.get("item"), key_of(found.get("output_index"))
        self.note(response, response_id="id", model="model")
        self._on_usage(at(response, "usage"))
        if kind in ("response.output_text.delta", "response.output_text.done"):
            self._on_text(found, whole=kind.endswith("done"))
        elif kind == "response.refusal.delta" and isinstance(found.get("delta"), str):
            self.metadata["refusal"] = self.metadata.get("refusal", "") + found["delta"]
        elif kind == "response.refusal.done" and isinstance(found.get("refusal"), str):
            self.metadata["refusal"] = found["refusal"]
        elif kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
            self.think(found.get("delta"))
        elif kind == "response.output_item.done" and isinstance(item, dict):
            self._on_item(item, index)
        elif kind == "response.output_item.added" and at(item, "type") == "function_call":
            if self.box is not None and str(at(item, "name")) in self.box.tools:  # Perplexity runs some itself
                self.call(index, name=at(item, "name"), id=at(item, "call_id"))
        elif kind == "response.function_call_arguments.delta" and index in self._calls:
            self.call(index, text=found.get("delta"))
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            self._on_end(kind.removeprefix("response."), response if isinstance(response, dict) else {})

    def _on_item(self, item: Mapping[str, Any], index: object) -> None:
        """Handles a finished item. Reasoning is kept unchanged, but without its status."""
        kind = item.get("type")
        if results := objects(item.get("results")):  # from Perplexity, whose answer may have several searches
            self.metadata["search_results"] = self.metadata.get("search_results", []) + results
        self.called_tool = self.called_tool or kind in ("function_call", "custom_tool_call")
        if kind == "function_call":
            self.call(index, name=item.get("name"), id=item.get("call_id"))  # which may have been announced
            text, call = str(item.get("arguments") or ""), self._calls.get(index)
            if call is None or not call.pieces:
                self.call(index, text=text)
            elif text:  # the complete arguments count, not the pieces
                call.pieces = [text]
        if kind == "message" and isinstance(item.get(PHASE), str):
            self.keep({"type": PHASE, PHASE: item[PHASE]})
        if kind == "reasoning" and item.get("encrypted_content"):
            self.keep(known({name: item.get(name) for name in _REASONING_FIELDS}) | {"vendor": self.vendor})

    def _on_end(self, how: str, response: Mapping[str, Any]) -> None:
        if how == "failed":
            raise failure_in_stream({"error": response.get("error") or {}}, self.vendor, self._redact)
        # how it has ended, or else why it is incomplete
        self.end_with(str(at(response, "incomplete_details", "reason") or "") if how == "incomplete" else how)
        if how == "incomplete" and self.finish_reason == "stop":  # whatever a gateway gives as the reason
            self.finish_reason = "other"
        output = objects(response.get("output"))
        text = self._output(output)
        ids = {key: call.id for key, call in self._calls.items()}
        for number, item in enumerate(output):
            if item.get("type") == "function_call":
                key = next((key for key, id in ids.items() if id == item.get("call_id")), f"last {number}")
                ids.pop(key, None)  # several calls may have one id
                self._on_item(item, key)
        if how == "completed" and self.metadata.get("refusal"):
            self.finish_reason = "refusal"
        if not self.has_text:
            self.say(text)
        elif text != self.text:
            self._texts = [text]
        self.finish(is_empty=not (self.has_text or output or self.finish_reason != "stop"))

    def _on_text(self, found: Mapping[str, Any], *, whole: bool) -> None:
        """Handles a piece of a part of the output, or the whole part, which is all that some servers send."""
        text = found.get("text" if whole else "delta")
        if not isinstance(text, str):
            return
        part = self._pieces[key_of(found.get("output_index")), key_of(found.get("content_index"))]
        if not part or not whole:
            self.say(text)
        if whole:
            part.clear()
        part.append(text)

    def _output(self, output: Sequence[Mapping[str, Any]]) -> str:
        """Returns the text of the final output, which counts if the pieces differ. Notes a refusal in it."""
        texts = []
        for item in output:
            if item.get("type") == "image_generation_call":
                texts.append(self.named("image", f"image/{item.get('output_format') or 'png'}"))
            for part in objects(item.get("content")) if item.get("type") == "message" else ():
                if part.get("type") == "output_text":
                    texts.append(str(part.get("text") or ""))
                elif part.get("type") == "refusal":
                    self.metadata["refusal"] = str(part.get("refusal", ""))
        return whole_characters("".join(texts) or "".join("".join(part) for part in self._pieces.values()))


#: the fields of a reasoning item that the vendor accepts back
_REASONING_FIELDS = ("type", "id", "summary", "content", "encrypted_content")
