"""`HttpProvider`: what all adapters share — the exchange, the transport, and the encoding of messages.

An adapter defines four things: the address (`path`), the header with the key (`auth`), the request's body (`body`),
and how to read the response (`reader`).
"""

from __future__ import annotations

import asyncio
import json
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self
from urllib.parse import urlsplit

from kernai import GenerationOptions, LlmResponse, Media, Message, Model, Provider, Tools
from kernai._util.api import Closing, NotCopied, check_count, check_methods, check_seconds
from kernai._util.worker_pool import WorkerPool, in_worker
from kernai.values.message import Part
from kernai_providers.exchange import Exchange, Turn, aperform, perform
from kernai_providers.failures import Recipient, RetryPolicy
from kernai_providers.http_transport import HttpTransport
from kernai_providers.native import AssistantTurn, NativeRules, Toolbox, UserTurn, conversation
from kernai_providers.reader import Reader, whole_characters
from kernai_providers.request_checks import checked_base_url, checked_headers, key_from, merged, proxy_secrets, setting
from kernai_providers.transport import AsyncTransport, Request, Timeouts, Transport

MAX_RESPONSE_BYTES = 64 * 1024 * 1024
#: seconds
MAX_CONNECT = 10.0

#: the end of an address that includes the API's version
VERSION = re.compile(r"/v\d+(?:(?:alpha|beta)\d*)?$")

#: the options for sampling, and the names that most vendors give them
SAMPLING = {"temperature": "temperature", "top_p": "top_p"}
#: sent for a message without content, which vendors reject
EMPTY = "(empty)"
PDF = "application/pdf"
#: how the images that OpenAI and Anthropic accept begin in base64
IMAGE_STARTS = {"iVBORw": "image/png", "/9j/": "image/jpeg", "R0lGOD": "image/gif", "UklGR": "image/webp"}
IMAGE_TYPES = tuple(IMAGE_STARTS.values())
#: an image that is text, which no vendor reads
SVG = "image/svg+xml"


class HttpProvider(Closing, NotCopied, NativeRules, Provider):
    """A vendor's models over HTTP. One instance serves many threads and runs at the same time.

    - `api_key`: by default the value of the vendor's environment variable, read now. If there is none, this raises
      `MissingKeyError`, which is a `ValueError`.
    - `base_url`: another server with the same API.
    - `timeout`: seconds the vendor may be silent (120), or a pair of seconds to connect (10) and to be silent.
    - `max_retries`: how often a call is repeated that failed before its first piece (2).
    - `headers`: sent with each request; they override the adapter's own.
    - `max_retry_wait`: if the vendor asks to wait longer than so many seconds (60), the call fails immediately.
    - `max_response_bytes`: a larger response raises `ProviderError`.
    - `transport`: by default an `HttpTransport` of this provider's own. With an asynchronous one (`HttpxTransport`),
      `acall` is native; otherwise it runs `call` in a worker thread.

    Connections are kept open between calls. `with` or `async with` closes them at the end.
    """

    _HOLDS = "connections and a key"
    #: the vendor's name in errors
    vendor: str
    default_base_url: str
    #: an environment variable for another address, which the vendor's own client reads too
    base_url_variable: str | None = None
    #: added to an address without a path: some vendors' clients expect the version in the address, others add it
    version_path: str = ""
    #: the request's path below `base_url`; removed from an address that ends with it
    endpoint: str = ""
    #: environment variables for the key; the first one that is set counts
    key_variables: tuple[str, ...]
    needs_key: bool = True
    #: the header with the key, if it is not a bearer token; and headers that the vendor needs besides
    key_header: str | None = None
    extra_headers: Mapping[str, str] = {}
    #: whether the vendor requires that roles alternate
    merges_roles: bool = False
    #: whether it accepts text that is only white space
    takes_blank_text: bool = True
    #: whether messages of the assistant may contain media
    takes_media_of_assistant: bool = False
    #: whether the result of a native call may contain media
    takes_media_in_results: bool = False
    #: the body's field for the conversation
    conversation_field: str = "messages"
    #: the numbers of the version in a model's name, for adapters that ask for it
    versions: re.Pattern[str]

    def __init__(
        self,
        api_key: str | None = None,
        *,
        base_url: str | None = None,
        timeout: float | tuple[float, float] = 120.0,
        max_retries: int = 2,
        headers: Mapping[str, str] | None = None,
        max_retry_wait: float = 60.0,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        transport: Transport | None = None,
    ) -> None:
        self._headers = checked_headers(headers)
        url = self._default_base_url() if base_url is None else checked_base_url(base_url)
        url = url.removesuffix(self.endpoint)
        self.base_url = url if urlsplit(url).path else url + self.version_path
        # with headers that authenticate no key is needed; and a gateway with a key of its own must not get the vendor's
        ours = {"authorization", *map(str.lower, self.auth("key"))}
        variables = () if any(name.lower() in ours for name in self._headers) else self.key_variables
        self._key = key_from(api_key, variables, self.vendor, is_needed=self.needs_key)
        self._timeouts = _timeouts(timeout)
        self._retries = RetryPolicy(max_retries=max_retries, max_retry_wait=max_retry_wait)
        self._max_response_bytes = check_count("max_response_bytes", max_response_bytes)
        transport = HttpTransport() if transport is None else transport
        self.transport: Transport = check_methods(transport, "transport must have send and close", "send", "close")

    def close(self) -> None:
        """Closes idle connections. The provider may be used again."""
        self.transport.close()

    async def aclose(self) -> None:
        """Closes idle connections, including those of an asynchronous transport for the running event loop."""
        self.transport.close()
        if isinstance(self.transport, AsyncTransport):
            await self.transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(base_url={self.base_url!r})"

    def call(
        self,
        messages: Sequence[Message],
        model: Model,
        generation: GenerationOptions,
        on_chunk: Callable[[str], object],
    ) -> LlmResponse:
        """Performs one turn, streamed. A failed request or an incomplete answer raises `ProviderError`.

        Options that cannot be sent raise `ValueError`, a media file that cannot be read `KernaiError`.
        """
        exchange = self._exchange(messages, model, generation, on_chunk)
        return perform(Turn(exchange, self.transport, on_chunk, blocking=True))

    async def acall(
        self, messages: Sequence[Message], model: Model, generation: GenerationOptions, on_chunk: Callable[[str], Any]
    ) -> LlmResponse:
        """Performs one turn under asyncio, otherwise like `call`. If cancelled, closes the connection immediately."""
        exchange = self._exchange(messages, model, generation, on_chunk)
        if isinstance(self.transport, AsyncTransport):
            return await aperform(Turn(exchange, self.transport, on_chunk, blocking=False))
        turn = Turn(exchange, self.transport, on_chunk, blocking=True)
        try:
            return await in_worker(WorkerPool(), lambda: perform(turn))
        except asyncio.CancelledError:
            turn.abort()
            raise

    # -------------------------------------------------------------------------------------------- for adapters

    def path(self, model: Model) -> str:
        """Returns the request's path below `base_url`, with its query; by default `endpoint`, for every model."""
        del model
        return self.endpoint

    def auth(self, key: str) -> dict[str, str]:
        """Returns the headers with the key."""
        return {"Authorization": f"Bearer {key}"} if self.key_header is None else {self.key_header: key}

    @abstractmethod
    def body(self, messages: Sequence[Message], model: Model, generation: GenerationOptions) -> dict[str, Any]:
        """Returns the request's JSON body, without `generation.extra`."""

    def native_body(
        self, messages: Sequence[Message], model: Model, generation: GenerationOptions, box: Toolbox
    ) -> dict[str, Any]:
        """Returns the body for native calls: `body` of the system text, with the turns and what the model may call."""
        body = self.body([Message("system", system_of(messages))], model, generation)
        for turn in conversation(messages, box):
            if isinstance(turn, AssistantTurn) and not self.takes_media_of_assistant:
                turn.text = "\n".join(filter(None, [turn.text, *map(self.fallback_for, turn.media)]))
            body[self.conversation_field] += self.native_messages(turn, model)
        self.offer(box, body)
        return body

    def native_messages(self, turn: AssistantTurn | UserTurn, model: Model) -> Iterable[dict[str, Any]]:
        """Returns one turn as the vendor's messages. For adapters that set `calls_natively`."""
        raise NotImplementedError

    def offer(self, box: Toolbox, body: dict[str, Any]) -> None:
        """Adds what the model may call, and the schema of its answer. For adapters that set `calls_natively`."""
        raise NotImplementedError

    def mark_end(self, body: dict[str, Any], model: Model, generation: GenerationOptions) -> None:
        """Adds what depends on the whole conversation, such as a mark at its end for the vendor's cache."""

    def refused_options(self, model: Model, generation: GenerationOptions) -> Sequence[str]:
        """Returns options that are set but that this model would reject. They are not sent; `metadata` lists them."""
        del model, generation
        return ()

    @abstractmethod
    def reader(self) -> Reader:
        """Creates a reader for one response."""

    def turns(self, messages: Sequence[Message], model: Model) -> tuple[str, list[tuple[str, list[Any]]]]:
        """Returns the system text, and each other message as its role and its encoded parts.

        If the vendor requires that roles alternate, consecutive messages of one role become one, with a blank line
        between their texts.
        """
        turns: list[tuple[str, list[Any]]] = []
        for message in messages:
            if message.role == "system":
                continue
            # many vendors refuse an empty message of the assistant, such as that of a model that only thought
            said = list(message.content) if message.role == "user" or message.text.strip() else []
            if message.role == "assistant" and not self.takes_media_of_assistant:
                said = [one if isinstance(one, str) else self.fallback_for(one) for one in said]
            parts = self.encode(self._without_blanks(said) or [EMPTY], model)
            if self.merges_roles and turns and turns[-1][0] == message.role:
                before = turns[-1][1]
                if "text" in before[-1] and "text" in parts[0]:
                    parts[0] = parts[0] | {"text": f"{before.pop()['text']}\n\n{parts[0]['text']}"}
                before += parts
            else:
                turns.append((message.role, parts))
        return system_of(messages), turns

    def chat(
        self, messages: Sequence[Message], model: Model, write: Callable[[str, list[Any]], dict[str, Any]]
    ) -> dict[str, Any]:
        """Returns a body with the system text as its first message. `write` makes a message of a role and its parts."""
        system, turns = self.turns(messages, model)
        first = [{"role": "system", "content": system}] if system else []
        return {"model": model.id, "messages": [*first, *(write(*turn) for turn in turns)], "stream": True}

    def parts_after_results(self, turn: UserTurn) -> list[Part]:
        """Returns what follows the results of a turn: media that a result cannot contain, then everything else.

        Blank texts are left out if the vendor refuses them; if there is nothing else in the turn, `EMPTY` is sent.
        """
        media = [] if self.takes_media_in_results else [part for result in turn.results for part in result.media]
        parts = [*media, *turn.parts]
        return self._without_blanks(parts) or ([EMPTY] if parts and not turn.results else [])

    def version_of(self, model: Model) -> tuple[int, int]:
        """Returns the version in a model's name; (0, 0) if it has none."""
        found = self.versions.search(model.id)
        return (0, 0) if found is None else (int(found[1]), int(found[2] or 0))

    @staticmethod
    def options(generation: GenerationOptions, **names: str) -> dict[str, Any]:
        """Returns the options that are set, and parts of `thinking`. Each keyword is the vendor's name for one."""
        given = {**generation.to_dict(), **(generation.thinking or {})}
        return {theirs: given[ours] for ours, theirs in names.items() if ours in given}

    # -------------------------------------------------------------------------------------------------- inside

    def _without_blanks(self, parts: list[Part]) -> list[Part]:
        return [one for one in parts if self.takes_blank_text or not isinstance(one, str) or one.strip()]

    def _exchange(
        self, messages: Sequence[Message], model: Model, generation: GenerationOptions, on_chunk: object
    ) -> Exchange:
        options = GenerationOptions.coerce(generation)
        if refused := self.refused_options(model, options):
            unset: dict[str, Any] = dict.fromkeys(refused)
            options = replace(options, **unset)
        tools: Tools | None = getattr(on_chunk, "tools", None) if self.calls_natively else None
        box = None if tools is None else Toolbox(tools, self)
        if tools is None or box is None:
            body = self.body(messages, model, options)
        else:
            body = self.native_body(tools.messages(messages), model, options, box)
        self.mark_end(body, model, options)
        extra = options.extra
        if isinstance(extra.get("tools"), (list, tuple)):
            extra = {**extra, "tools": [*body.get("tools", ()), *extra["tools"]]}  # the agent's, then the vendor's own
        body = _with_extra(body, extra)
        ours = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        ours |= {**self.extra_headers, **(self.auth(self._key) if self._key is not None else {})}
        headers = merged(ours, self._headers)
        url, sent = self.base_url + self.path(model), _json(body)
        # not by a `fallback_for` of a subclass, which may be slow or raise: these media may have been sent
        instead = {Provider.fallback_for(self, one) for message in messages for one in message.media}
        not_sent = [*refused, *sorted(text for text in instead if text.encode() in sent)]

        def new_reader() -> Reader:
            reader = self.reader()
            reader.box, reader.metadata = box, reader.metadata | ({"not_sent": [*not_sent]} if not_sent else {})
            return reader

        request = Request("POST", url, headers, sent, self._timeouts, self._max_response_bytes)
        to = Recipient(self.vendor, url, " or ".join(self.key_variables) or None, self.secrets)
        return Exchange(request, new_reader, self._retries, to)

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not appear in any error: the key, values of the caller's headers, and passwords of proxies."""
        after_scheme = (value.partition(" ")[2].strip() for value in self._headers.values())  # as in "Bearer KEY"
        return tuple(filter(None, (self._key, *self._headers.values(), *after_scheme, *proxy_secrets())))

    def _default_base_url(self) -> str:
        """Returns the address if the caller gives none. Raises `ValueError` if a variable has an invalid one."""
        url, where = setting(self.base_url_variable)
        if url:
            # the vendors' own clients, which read it too, append their version to any path
            url = checked_base_url(url, where).removesuffix(self.endpoint)
            return url if VERSION.search(urlsplit(url).path) else url + self.version_path
        return self.default_base_url


def system_of(messages: Sequence[Message]) -> str:
    """Returns all system text."""
    return "\n\n".join(message.text for message in messages if message.role == "system" and message.text.strip())


def known(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that are set."""
    return {name: value for name, value in options.items() if value is not None}


def one_text(parts: list[Any]) -> Any:
    """Returns a message's parts, joined if all are texts: many servers accept a list only if it has media."""
    if all("text" in part for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def media_reference(media: Media, schemes: tuple[str, ...] = ("https",)) -> str | None:
    """Returns a media URL if it may be passed to the vendor, else None.

    URLs with other schemes could address the vendor's own network.
    """
    url = media.data
    if not isinstance(url, str) or " " in url or not url.isprintable():
        return None
    return url if url.partition("://")[0].lower() in schemes and "://" in url else None


def inline(media: Media) -> tuple[str, str]:
    """Returns the MIME type and the payload in base64. An image has the type of its data: vendors reject another."""
    data, mime_type = media.to_base64(), media.mime_type
    if media.kind == "image":
        mime_type = next((known for start, known in IMAGE_STARTS.items() if data.startswith(start)), mime_type)
    return mime_type, data


def link(media: Media, *types: str) -> str | None:
    """Returns the URL, or the payload as a data URI if it has one of these types; None if neither may be sent."""
    if media.is_url:
        return None if media.mime_type == SVG else media_reference(media)
    mime_type, data = inline(media)
    return f"data:{mime_type};base64,{data}" if mime_type in types else None


def _with_extra(ours: Any, theirs: Any) -> Any:
    """Merges objects at every level: setting one of Ollama's `options` must not drop the temperature among them."""
    if not isinstance(ours, dict) or not isinstance(theirs, Mapping):
        return theirs
    return {**ours, **{name: _with_extra(ours.get(name), one) for name, one in theirs.items()}}


def _json(body: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(body, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"a value in generation (extra, temperature, top_p) cannot be written as JSON: {error}"
        ) from error
    return whole_characters(text).encode()  # half an emoji, cut off somewhere: vendors would reject the whole request


def _timeouts(timeout: float | tuple[float, float]) -> Timeouts:
    pair = timeout if isinstance(timeout, tuple) else (timeout, timeout)
    if len(pair) != 2:  # noqa: PLR2004 - a pair
        raise ValueError(f"timeout must be seconds, or a pair of them (to connect, to be silent), got {timeout!r:.60}")
    connect, read = (check_seconds("timeout", one) for one in pair)
    # a single number is for the model's silence; a host that cannot be reached should fail sooner
    return Timeouts(float(connect) if pair is timeout else min(MAX_CONNECT, float(connect)), float(read))
