"""`Reader`: reads one response, from the vendor's bytes to pieces of text and one `LlmResponse`.

Bytes become lines (`Lines`), for most vendors lines become events (`SseDecoder`), and a reader collects what they
contain. It decides two things: which text is part of the answer, and whether the vendor has ended the turn. Each vendor
has a subclass of `SseReader` (server-sent events) or `LineReader` (JSON lines) with `on_object`.

A line ends at LF, CR LF or CR alone, none of which JSON has inside a string. Other line breaks (U+2028, U+0085, a form
feed) are text. Each byte is searched once and copied a fixed number of times, whatever the size of chunks and lines.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from codecs import getincrementaldecoder
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kernai import LlmResponse, NativeCall, ProviderError, Usage
from kernai.values.llm_response import CUT, UNFINISHED, written
from kernai.values.message import placeholder
from kernai_providers.failures import MAX_CODE, MAX_RAW, REQUEST_IDS, at, failure_in_stream, one_line, redactor
from kernai_providers.native import Toolbox


class Lines:
    """Takes a body in chunks and returns its lines, even empty ones, without line ends. It never raises.

    A byte order mark at the start is dropped. Bytes that are not UTF-8 become U+FFFD (WHATWG Encoding, "UTF-8 decode").
    """

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8-sig")("replace")
        self._line: list[str] = []  # the pieces of the current line
        self._after_cr = False  # the last character was a CR, so an LF now belongs to it

    def feed(self, data: bytes) -> list[str]:
        """Returns the lines that end in these bytes. A CR ends its line, since the next byte may come much later."""
        text = self._decoder.decode(data)
        if text and (self._after_cr or "\r" in text):
            text = text.removeprefix("\n") if self._after_cr else text
            self._after_cr = text.endswith("\r")
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        *ended, rest = text.split("\n")
        if ended:
            ended[0] = "".join((*self._line, ended[0]))
            self._line.clear()
        if rest:
            self._line.append(rest)
        return ended

    def flush(self) -> list[str]:
        """Returns the last line if it has no line end. Call this at the end of the body.

        Such a line may have been cut off. If it is not JSON, it was.
        """
        rest = "".join((*self._line, self._decoder.decode(b"", final=True)))
        self._line.clear()
        return [rest] if rest else []


#: what a bare object contains if it is an error
_ERROR = re.compile(r'"error"\s*:\s*(?!null|false|""|\s)|"(type|object)"\s*:\s*"error"')


#: the `event` field of one event, or None, and its `data` lines joined by LF
ServerEvent: TypeAlias = tuple[str | None, str]


class SseDecoder:
    """Takes a body in chunks and returns its events (WHATWG HTML, "Interpreting an event stream"). It never raises.

    Of the fields only `event` and `data` are kept; `id` and `retry` are for a browser that reconnects. Three rules are
    relaxed on purpose: see `flush`; a field ``error: DATA``, which llama.cpp's server sent until the end of 2025, is an
    event `error`; and so is a bare JSON object that contains an error, with which Gemini ends a stream.

    An event is returned as soon as its blank line has arrived. Time is linear in the bytes, whatever the chunks.
    """

    def __init__(self) -> None:
        #: the lines of a body without any event; None after the first event
        self.instead: list[str] | None = []
        self._bare: list[str] = []  # lines that are no field
        self._lines = Lines()
        self._event: str | None = None
        self._data: list[str] = []

    def feed(self, data: bytes) -> list[ServerEvent]:
        return self._events(self._lines.feed(data))

    def flush(self) -> list[ServerEvent]:
        """Returns a last event with data but no blank line after it. Call this at the end of the body.

        The specification drops such an event, since it may have been cut off. But some servers end their last event
        with one line break or none, so all their answers would seem cut off. These streams contain JSON, and JSON that
        was cut off does not parse. So the event is returned, and the parser decides.
        """
        return self._events([*self._lines.flush(), ""])

    def _events(self, lines: list[str]) -> list[ServerEvent]:
        events: list[ServerEvent] = []
        for line in lines:
            name, _, value = line.partition(":")  # a comment is a field whose name is empty
            if name == "data":
                self._data.append(value.removeprefix(" "))
            elif name == "event":
                self._event = value.removeprefix(" ") or None
            elif name == "error":
                self._event = name
                self._data.append(value)
            elif line and name not in ("", "id", "retry"):
                self._bare.append(line)
            elif not line:
                bare = "\n".join(self._bare)
                events += [("error", bare)] if bare.startswith(("{", "[")) and _ERROR.search(bare) else []
                events += [(self._event, "\n".join(self._data))] if self._data else []
                if events:
                    self.instead = None
                elif self.instead is not None:
                    self.instead += self._bare
                self._event = None
                self._bare.clear()
                self._data.clear()
        return events

# -------------------------------------------------------------------------------------------------------------- readers

#: all vendors' finish reasons, since gateways pass on those of other vendors; any other one is "other"
FINISH_REASONS = {
    theirs: ours
    for ours, words in {
        # "eos", "eos_token" and "end" are from Together, servers of Hugging Face, and LM Studio
        "stop": "stop completed end_turn stop_sequence STOP eos eos_token end",
        "length": "length max_tokens max_output_tokens max_messages MAX_TOKENS CONTINUATION",
        "content_filter": (
            "content_filter SAFETY RECITATION BLOCKLIST PROHIBITED_CONTENT SPII MODEL_ARMOR IMAGE_SAFETY "
            "IMAGE_PROHIBITED_CONTENT IMAGE_RECITATION ESCALATION sensitive"  # the last is from Z.ai
        ),
        "tool": "tool_calls function_call tool_use",
        "refusal": "refusal",
        "context": "model_context_window_exceeded model_length",  # the last is from Mistral
    }.items()
    for theirs in words.split()
}
PREVIEW = 80
LARGEST_EXACT = 2**53  # beyond this, JSON numbers are not exact


#: index, type, name and text of a piece of a native call
CallText: TypeAlias = tuple[int, str, str | None, str]


@dataclass(slots=True)
class _Call:
    """A native call that is being received."""

    index: int
    name: str = ""
    id: str | None = None
    pieces: list[str] = field(default_factory=list)
    #: the type and name of its block, if its arguments can be shown while they arrive
    block: tuple[str, str | None] | None = None
    is_shown: bool = False
    #: for vendors that number the calls: whether a piece without a name has continued it, so a name begins another call
    is_continued: bool = False


class Reader(ABC):
    """Takes the body in chunks; returns pieces of the answer, and at the end the response."""

    decoder: type[Lines | SseDecoder]
    #: the vendor's name for the event that ends a turn, for the error if it is missing
    terminal: str
    #: whether it sends such an event; if not, a turn with a finish reason is complete when its stream ends
    done_marker = True

    def __init__(self, vendor: str, secrets: Sequence[str] = ()) -> None:
        self.vendor = vendor
        self._redact = redactor(secrets)
        self._decoder: Any = self.decoder()
        #: whether the vendor has ended the turn, so that nothing more has to be read
        self.complete = False
        self.finish_reason: str | None = None
        #: whether the model has called a tool in the vendor's own format, even if none was offered
        self.called_tool = False
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        #: these two are parts of the prompt's tokens
        self.cached_tokens: int | None = None
        self.cache_write_tokens: int | None = None
        #: in dollars, if the vendor says what it charged
        self.cost: float | None = None
        #: the model that answered, if the vendor says that it was another one
        self.answered_by: str | None = None
        self.metadata: dict[str, Any] = {}
        #: for native calls: what the model may call
        self.box: Toolbox | None = None
        #: whether any piece of the answer was returned
        self.has_given = False
        self._calls: dict[object, _Call] = {}
        #: for vendors that number the calls: the key of the newest one with each number
        self._newest: dict[object, object] = {}
        #: the pieces of the answer, or all of it, if the vendor's last event corrects them
        self._texts: list[str] = []
        self._last = ""  # the newest object of the stream
        self._reasoning: list[str] = []
        #: what else a subclass collects
        self._pieces: defaultdict[object, list[Any]] = defaultdict(list)
        #: pieces that were not returned yet
        self._new: list[str | CallText] = []
        #: joins surrogate pairs, whose second half may be in the next event
        self._characters = getincrementaldecoder("utf-16-le")("replace")

    @property
    def has_text(self) -> bool:
        """Whether any of the answer has arrived: text, or a native call."""
        return bool(self._texts or self._calls)

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def may_end(self) -> bool:
        """Whether the turn is complete if nothing more arrives."""
        return not self.done_marker and self.finish_reason is not None

    @property
    def usage(self) -> Usage | None:
        """The usage that the vendor has reported so far; None if it is unknown. Gateways that do not count report 0."""
        prompt, completion = self.prompt_tokens, self.completion_tokens
        if not (prompt or completion):
            return None
        cached, written = self.cached_tokens, self.cache_write_tokens
        return Usage(prompt, completion, cost=self.cost, cached_tokens=cached, cache_write_tokens=written)

    def begin(self, headers: Mapping[str, str]) -> None:
        if request_id := next(filter(None, map(headers.get, REQUEST_IDS)), None):
            self.metadata["request_id"] = request_id

    def feed(self, data: bytes) -> list[Any]:
        """Reads more of the body, or without data its end; returns pieces, `str` of text and `CallText` of calls."""
        for found in self._decoder.feed(data) if data else self._decoder.flush():
            if not self.complete:
                self.take(found)
        if self.complete or not data:
            self._give(self._characters.decode(b"", final=True))
        new, self._new = self._new, []
        self.has_given = self.has_given or bool(new)
        return new

    def check_complete(self) -> None:
        """Raises `ProviderError` if the vendor has not ended the turn."""
        if self.may_end and not self.complete:
            self.on_done()
        if not self.complete:
            raise self._incomplete(f"{self.terminal}: the answer was cut off", "cut")

    def response(self, latency_ms: int) -> LlmResponse:
        """Returns the whole turn. The answer is as the vendor sent it; its metadata shows no secret."""
        if self._reasoning:
            self.metadata["reasoning"] = whole_characters("".join(self._reasoning))
        metadata = self._redact.data(self.metadata)
        used = self.usage or Usage()
        text, reason = self.text, self.finish_reason
        blocks: list[NativeCall] | None = None
        ends_turn = None
        if self.box is not None:
            calls, is_cut = [call for call in self._calls.values() if call.name], reason in CUT
            blocks = [
                self.box.block(
                    call.name, "".join(call.pieces), call.id and self._redact.text(call.id),
                    is_cut=is_cut and call is calls[-1],
                )
                for call in calls
            ] or None
            text = text if blocks is None else written(text.rstrip(), blocks)
            ends_turn = None if reason is None else blocks is None and reason not in UNFINISHED
        return LlmResponse(
            text,
            latency_ms=latency_ms,
            prompt_tokens=used.prompt_tokens,
            completion_tokens=used.completion_tokens,
            finish_reason="tool" if self.called_tool and reason == "stop" else reason,
            metadata=metadata,
            cost=self.cost,
            model=self.answered_by and self._redact.text(self.answered_by),
            cached_tokens=self.cached_tokens,
            cache_write_tokens=self.cache_write_tokens,
            blocks=blocks,
            ends_turn=ends_turn,
        )

    # ------------------------------------------------------------------------------------------ for subclasses

    @abstractmethod
    def take(self, found: Any) -> None:
        """Handles one event or line of the body."""

    def on_object(self, found: dict[str, Any]) -> None:  # noqa: B027 - a subclass may handle lines or events instead
        """Handles one object of the stream, which is not an error. The `type` of an event is by default its name."""

    def on_done(self) -> None:
        """Handles the marker ``[DONE]``, which some gateways send after the answer of any vendor."""
        self.complete = self.may_end

    def say(self, text: object) -> None:
        if isinstance(text, str):
            self._give(self._characters.decode(text.encode("utf-16-le", "surrogatepass")))

    def named(self, kind: object, mime_type: object) -> str:
        """Returns a text in place of media that the model made; none in an answer that has a schema, so is JSON."""
        return placeholder(kind, mime_type) if self.box is None or self.box.output is None else ""

    def call(self, key: object, *, name: object = None, id: object = None, text: object = "") -> None:
        """Adds a native call, or more of one. `key` is the vendor's for it. Ignored if no tools were offered.

        `text` is a piece of the arguments; some vendors send them as an object.
        """
        self.called_tool = True
        if self.box is None:
            return
        call = self._calls.setdefault(key, _Call(len(self._calls)))
        if isinstance(name, str) and name and not call.name:
            call.name, call.block = name, self.box.streams(name)
        call.id = call.id or (id if isinstance(id, str) else None)
        piece = text if isinstance(text, str) else "" if text is None else json.dumps(text, ensure_ascii=False)
        if piece:
            call.pieces.append(piece)
        if call.block is not None and (piece or not call.is_shown):
            self._new.append((call.index, *call.block, piece if call.is_shown else "".join(call.pieces)))
            call.is_shown = True

    def keep(self, item: Mapping[str, Any], before: int | None = None) -> None:
        """Keeps reasoning that the vendor wants back before the call with this number; by default, the next call."""
        before = len(self._calls) if before is None else before
        self.metadata.setdefault("reasoning_items", []).append({**item, **({"at": before} if before else {})})

    def think(self, text: object) -> None:
        """Adds reasoning, which is kept in the metadata and is not part of the answer."""
        if isinstance(text, str) and text:
            self._reasoning.append(text)

    def thought_tokens(self, count: int | None) -> None:
        """Notes how many of the completion's tokens the model spent on thinking."""
        if count is not None:
            self.metadata["reasoning_tokens"] = count

    def note(self, found: object, **names: str) -> None:
        """Copies fields into the metadata, except empty ones and numbers; each keyword is our name for a field."""
        for ours, theirs in names.items():
            value = at(found, theirs)
            if isinstance(value, (str, list, dict)) and value:
                self.metadata[ours] = value

    def end_with(self, reason: str, why: object = None) -> None:
        """Sets the finish reason.

        The metadata keep the vendor's word, unless it means a normal end, and the vendor's explanation, `why`.
        """
        word, _, _ = reason.partition(":")  # Google: "content_filter: RECITATION"
        self.finish_reason = FINISH_REASONS.get(word, "other")
        self.metadata.pop("finish_reason", None)
        if self.finish_reason not in ("stop", reason):
            self.metadata["finish_reason"] = reason
        if isinstance(why, str) and why.strip():
            self.metadata["finish_message"] = why.strip()

    def finish(self, *, is_empty: bool = False) -> None:
        """Ends the turn. Raises `ProviderError` if the vendor sent no answer, not even an empty one."""
        if is_empty or not (self.has_text or self.finish_reason is not None):
            raise self._incomplete("an answer", "no_answer")
        self.complete = True

    def parsed(self, data: str) -> dict[str, Any]:
        """Parses a JSON object of the stream. Raises `ProviderError` for anything else."""
        if data.startswith("<"):
            raise self.error("the answer is a web page, not a stream: check base_url", "not_a_stream")
        value, what, self._last = None, "no JSON object", data
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            what = "not JSON"
        if isinstance(value, list) and len(value) == 1:
            value = value[0]  # as Gemini sends some of its errors
        if isinstance(value, dict):
            return value
        # secrets are hidden before the text is cut, so that no half of one is left
        shown = one_line(data, self._redact)
        start = repr(shown[:PREVIEW]) + ("…" if len(shown) > PREVIEW else "")
        raise self.error(f"the stream holds what is {what}: {start}", "invalid_json", retryable=True)

    def check_error(self, data: Mapping[str, Any]) -> None:
        """Raises `ProviderError` if an event of the stream contains an error, or is one."""
        # an empty object is an error, too, though it does not say which; an empty text is not
        contains_error = data.get("error") not in (None, False, "")
        if contains_error or "error" in (data.get("type"), data.get("object")):  # vLLM says the latter
            raise failure_in_stream(data if contains_error else {"error": data}, self.vendor, self._redact)

    def error(self, message: str, code: str, *, retryable: bool = False) -> ProviderError:
        return ProviderError(
            f"{self.vendor}: {one_line(message, self._redact)}",
            status=200, code=one_line(code, self._redact, MAX_CODE), retryable=retryable, vendor=self.vendor,
        )

    # -------------------------------------------------------------------------------------------------- inside

    def _incomplete(self, what: str, code: str) -> ProviderError:
        """Returns the error for a stream without this. Its last object may say why, unless an answer was on its way."""
        is_plain = self.has_text or (code == "cut" and "model" in self.metadata)
        last = "" if is_plain else one_line(self._last, self._redact, MAX_RAW)
        return self.error(f"the stream ended without {what}{last and f'; it sent {last}'}", code, retryable=True)

    def _give(self, text: str) -> None:
        if text:
            self._texts.append(text)
            self._new.append(text)


class SseReader(Reader):
    """Reads server-sent events.

    Some servers send an error as one JSON object, with status 200. Some declare such an object as a stream, or a stream
    as JSON, so the body decides which one it is.
    """

    decoder = SseDecoder

    def take(self, found: ServerEvent) -> None:
        event, text = found[0], found[1].strip()
        if event == "error":
            error = self.parsed(text or "{}")
            self.check_error(error if error.get("error") else {"error": error})
        elif text:  # proxies send empty events to keep a connection alive
            self.on_event(event, text)

    def check_complete(self) -> None:
        if text := "\n".join(self._decoder.instead or ()).strip():
            self.check_error(self.parsed(text))
            shown = one_line(text, self._redact, MAX_RAW)  # it may be an error of an unknown shape
            raise self.error(f"the server answered with one JSON object, not with a stream: {shown}", "not_a_stream")
        super().check_complete()

    def on_event(self, event: str | None, data: str) -> None:
        """Handles one event of the stream, by default an object or ``[DONE]``."""
        if data == "[DONE]":
            self.on_done()
            return
        found = self.parsed(data)
        self.check_error(found)
        found.setdefault("type", event)
        self.on_object(found)


class LineReader(Reader):
    """Reads one JSON object per line."""

    decoder = Lines

    def take(self, found: str) -> None:
        if text := found.strip():
            self.on_line(self.parsed(text))

    def on_line(self, data: dict[str, Any]) -> None:
        """Handles one object of the stream."""
        self.check_error(data)
        self.on_object(data)


def whole_characters(text: str) -> str:
    """Joins surrogate pairs. A lone surrogate, which cannot be encoded, becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def key_of(value: object) -> int | str | None:
    """Returns a vendor's index or id as a key for what arrives in pieces; None for anything else."""
    return value if isinstance(value, (int, str)) else None


def count_of(value: Any) -> int | None:
    """Returns a token count as the vendor reports it, also if it is written as 12.0; None for anything else."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return int(value) if is_number and 0 <= value <= LARGEST_EXACT and value == int(value) else None


def cost_of(usage: Mapping[str, Any]) -> float | None:
    """Returns the dollars charged, as reported by OpenRouter (its credits are dollars), or by Perplexity as a total.

    Returns None if the router uses a key of the user's own: then the cost is only the router's fee.
    """
    cost = usage.get("cost")
    if isinstance(cost, dict):
        cost = cost.get("total_cost")
    if usage.get("is_byok") is True or isinstance(cost, bool) or not isinstance(cost, (int, float)):
        return None
    return float(cost) if 0 <= cost <= LARGEST_EXACT else None


def sum_of(*counts: int | None) -> int | None:
    """Returns the sum of the known counts; None if the first one is unknown."""
    return None if counts[0] is None else sum(count for count in counts if count is not None)
