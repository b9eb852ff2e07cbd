"""Tests call the adapters: over real sockets in every way, or in memory, once, for the request that they send.

::

    caller = Caller("anthropic", WAYS["acall on httpx"])
    with WireServer(caller.wire.answer("Hel", "lo")) as server:
        assert caller.ask(server).answer.content == "Hello"

Nothing here sleeps: tests wait for a signal from the server, or from the callback.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import kernai_providers
from kernai import GenerationOptions, LlmResponse, Message, Model, ProviderError
from kernai_providers import HttpProvider, HttpTransport, MemoryTransport, OpenAIProvider, Request, Transport, resolve
from kernai_providers.httpx_transport import HttpxTransport
from kernai_providers.in_process import MemoryReply
from vendor_wires import WIRES
from wire_format import Wire
from wire_server import WireServer

ADAPTERS: dict[str, type[HttpProvider]] = {
    "openai": OpenAIProvider, "openai-responses": kernai_providers.ResponsesProvider, "anthropic": kernai_providers.AnthropicProvider,
    "gemini": kernai_providers.GeminiProvider, "ollama": kernai_providers.OllamaProvider,
}  # fmt: skip

#: with characters that URLs and JSON escape; what must not be shown in any spelling is its core
CORE = "Q7xR2mVb9TzK4wLc"
KEY = f"sk-live/+{CORE}"
#: seconds: nothing on loopback takes so long, and a test that hangs fails
TIMEOUT = 15.0

_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # reading the system's authorities would take most of the time here

Watch = Callable[[str], Any]


class Interrupt(BaseException):
    """Ends a call although nothing is wrong, as a KeyboardInterrupt does."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to call: which transport, and whether `acall`."""

    name: str
    on_httpx: bool
    is_async: bool

    def transport(self) -> Transport:
        return HttpxTransport(ssl_context=_NO_TLS) if self.on_httpx else HttpTransport(ssl_context=_NO_TLS)


WAYS = {
    way.name: way
    for way in (
        Way("call", on_httpx=False, is_async=False),
        Way("acall in a thread", on_httpx=False, is_async=True),
        Way("acall on httpx", on_httpx=True, is_async=True),
    )
}
ASYNC_WAYS = [way for way in WAYS.values() if way.is_async]


def ways_in_turn(row: int) -> Iterator[tuple[str, Way]]:
    """Each vendor with one of the ways; the next row has other pairs.

    This is enough, since no adapter knows in which way it is called, and no transport whose answer it carries: each row
    is tried with each vendor, and, if all vendors have it, in each way.
    """
    ways = list(WAYS.values())
    for at, vendor in enumerate(ADAPTERS):
        yield vendor, ways[(row + at) % len(ways)]


@dataclass(slots=True)
class Outcome:
    pieces: list[str] = field(default_factory=list)
    looks: int = 0  # how often an empty piece asked whether the answer is still wanted
    response: LlmResponse | None = None
    error: BaseException | None = None

    @property
    def answer(self) -> LlmResponse:
        if self.error is not None:
            raise self.error
        assert self.response is not None
        return self.response

    @property
    def failure(self) -> ProviderError:
        assert isinstance(self.error, ProviderError), f"a ProviderError, not {self.error or self.response!r}"
        return self.error

    def watching(self, watch: Watch | None) -> Watch:
        def on_chunk(text: str) -> Any:
            if text:
                self.pieces.append(text)
            else:
                self.looks += 1
            return watch(text) if watch is not None else None

        return on_chunk


@dataclass(frozen=True, slots=True)
class Caller:
    vendor: str
    way: Way

    @property
    def wire(self) -> Wire:
        return WIRES[self.vendor]

    @property
    def model(self) -> Model:
        return Model(self.wire.model)

    def provider(self, server: WireServer | str, **options: Any) -> HttpProvider:
        """With retries that come at once, but for vendors who ask for a wait."""
        url = server if isinstance(server, str) else server.url
        given = {"api_key": KEY, "timeout": TIMEOUT, "max_retry_wait": 0.001, "transport": self.way.transport(), **options}
        return ADAPTERS[self.vendor](base_url=self.wire.base_url(url), **given)

    def ask(
        self, server: WireServer | str, watch: Watch | None = None, then: Callable[[], Any] | None = None, **options: Any
    ) -> Outcome:
        """One call with a provider of its own, of which nothing is left open afterwards."""
        return self.ask_often(1, server, watch, then, **options)[0]

    def ask_often(
        self, times: int, server: WireServer | str, watch: Watch | None = None, then: Callable[[], Any] | None = None, **options: Any
    ) -> list[Outcome]:
        """Calls one after the other, with one provider. `then` is called after each, while the provider is open."""

        async def main() -> list[Outcome]:
            outcomes = []
            async with self.provider(server, **options) as provider:
                for _ in range(times):
                    outcomes.append(await self.ask_within(provider, watch))
                    if then is not None:
                        await asyncio.to_thread(then)
            return outcomes

        return asyncio.run(main())

    async def ask_within(self, provider: HttpProvider, watch: Watch | None = None, text: str = "Grüß dich, 東京!") -> Outcome:
        """One call from the running loop; `call` in a thread."""
        outcome = Outcome()
        on_chunk = watch if isinstance(watch, Listener) else outcome.watching(watch)
        given = ((Message("system", "Be brief."), Message("user", text)), self.model, GenerationOptions(), on_chunk)
        try:
            outcome.response = await (provider.acall(*given) if self.way.is_async else asyncio.to_thread(provider.call, *given))
        except (Exception, Interrupt) as error:
            outcome.error = error
        return outcome


class Listener:
    """A driver's `on_chunk`, with the attributes that a waiting call reads. Raises `error` once the run is `over`."""

    def __init__(self, deadline: float | None = None, error: Exception | None = None) -> None:
        self.deadline = deadline
        self.over = threading.Event()
        self._error = error

    def cancelled(self) -> bool:
        return self.over.is_set()

    def __call__(self, text: str) -> None:
        if self._error is not None and self.over.is_set():
            raise self._error


def shows_key(text: str) -> bool:
    """Whether a text shows the key, or half of it."""
    return CORE[:8] in text or CORE[-8:] in text


def shown_by(error: BaseException) -> str:
    """Everything of an error, and of those it came from, that a log, an event or a traceback may show."""
    shown, one = ["".join(traceback.format_exception(error))], error
    while one is not None:
        fields = [value for name, value in vars(one).items() if name in ("code", "vendor", "kind", "reason")]
        shown += [str(one), repr(one), repr(fields)]
        one = one.__cause__ or one.__context__  # type: ignore[assignment]  # the last one came from none
    return "\n".join(shown)


# ---------------------------------------------------------------------------------------------------- in memory


def user(*content: Any) -> Message:
    return Message("user", content)


HELLO = (user("Hello"),)


def asked(
    provider: HttpProvider, model: Model | None = None, messages: Sequence[Message] = HELLO, generation: Any = None
) -> Request:
    """The one request of a call that the vendor refuses at once."""
    transport = MemoryTransport(MemoryReply(400))
    provider.transport = transport
    options = GenerationOptions.coerce(generation)
    with pytest.raises(ProviderError):
        provider.call(messages, model if model is not None else Model("m"), options, lambda piece: None)
    (request,) = transport.requests
    assert transport.open_responses == 0
    return request


def replying(vendor: str, *streams: Iterable[bytes | BaseException], **options: Any) -> HttpProvider:
    """One of the adapters; its vendor answers with these streams, the last one again and again."""
    kind = {"content-type": WIRES[vendor].media_type}
    transport = MemoryTransport(*(MemoryReply(200, kind, stream) for stream in streams))
    return ADAPTERS[vendor]("k", **{"transport": transport, "max_retries": 0, **options})


def bodies_to(provider: HttpProvider) -> list[Any]:
    assert isinstance(provider.transport, MemoryTransport)
    return [body_of(request) for request in provider.transport.requests]


def body_of(request: Request) -> Any:
    """The body, read as strictly as any vendor may: no other bytes than UTF-8, no NaN, no name twice."""
    return json.loads(request.body.decode("utf-8"), parse_constant=pytest.fail, object_pairs_hook=_once)


def sent(vendor: str, messages: Sequence[Message] = HELLO, generation: Any = None, **model: Any) -> Any:
    named = Model(model.pop("id", "model-1"), **model)
    return body_of(asked(resolve(f"{vendor}/{named.id}", api_key="test-key")[0], named, messages, generation))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({name for name, _ in pairs}) == len(pairs)
    return dict(pairs)
