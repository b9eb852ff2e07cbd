"""What the vendors' wire formats have in common: a stream is an opening, a middle and an ending.

A vendor says how these look (`vendor_wires.py`); every complete, cut, broken or odd stream is put together from them
here, so that each case exists for each vendor. All of them are lists of events (SSE events, lines of NDJSON), ready to
be the body of a `Reply`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

from wire_server import Reply, plain

Usage: TypeAlias = tuple[int, int]

USAGE: Usage = (70, 50)


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model says. `finish` is one of our words, or the vendor's own."""

    pieces: Sequence[str] = ()
    usage: Usage | None = USAGE  # prompt and completion tokens; None: the vendor leaves them out
    finish: str = "stop"
    reasoning: Sequence[str] = ()
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Called:
    """A native call by the name that the vendor was given; `arguments` as JSON."""

    name: str
    arguments: str = "{}"
    id: str = ""

    @property
    def halves(self) -> tuple[str, str]:
        middle = len(self.arguments) // 2
        return self.arguments[:middle], self.arguments[middle:]


class Wire(ABC):
    """One vendor's wire format. The class attributes are what an adapter has to send and to understand."""

    name: ClassVar[str]
    model: ClassVar[str]
    base: ClassVar[str]  # the path of the vendor's base URL
    media_type: ClassVar[str] = "text/event-stream; charset=utf-8"
    request_id_header: ClassVar[str | None] = None
    finish_reasons: ClassVar[Mapping[str, str]]  # the vendor's word: ours
    codes: ClassVar[Mapping[int, str]] = {}  # the code that goes with a status

    # What a vendor says

    @abstractmethod
    def path(self, model: str) -> str:
        """The whole target of the request, with its query."""

    @abstractmethod
    def opening(self, turn: Turn) -> list[bytes]: ...

    @abstractmethod
    def middle(self, turn: Turn) -> list[bytes]: ...

    @abstractmethod
    def ending(self, turn: Turn) -> list[bytes]: ...

    @abstractmethod
    def unknown(self) -> list[bytes]:
        """Events that no adapter knows, each of which may stand anywhere in the middle."""

    @abstractmethod
    def hollow(self) -> list[bytes]:
        """Events that a good answer may contain and that carry nothing: empty or null `choices`, a ping."""

    @abstractmethod
    def errors(self) -> dict[str, list[bytes]]:
        """Every way to fail after HTTP 200, by name."""

    @abstractmethod
    def refusals(self) -> dict[str, tuple[list[bytes], str | None]]:
        """Every way to refuse, by name: the stream, and our word for its end; None where there is no end, so an error."""

    @abstractmethod
    def no_candidates(self) -> list[bytes]:
        """A stream that ends in good order and holds neither an answer nor a reason: an error."""

    @abstractmethod
    def error_body(self, status: int, message: str = "no luck", code: str | None = None) -> bytes: ...

    @abstractmethod
    def text_in(self, event: bytes) -> str:
        """The text of the answer that this event carries."""

    @abstractmethod
    def called(self, prose: str, calls: Sequence[Called], thought: str) -> list[bytes]:
        """A turn with native calls. Arguments come in two pieces where the vendor sends pieces."""

    # What follows from it

    def spoken(self, prose: str, calls: Sequence[Called], *, thought: str = "") -> list[bytes]:
        """Prose followed by native calls, or an answer."""
        if not calls:
            return self.stream([prose] if prose else [])
        named = [replace(call, id=call.id or f"call_{number}") for number, call in enumerate(calls)]
        return self.called(prose, named, thought)

    def stream(self, pieces: Sequence[str], usage: Usage | None = USAGE, finish: str = "stop") -> list[bytes]:
        """A whole answer."""
        return self.whole(Turn(pieces, usage, finish))

    def whole(self, turn: Turn) -> list[bytes]:
        return [*self.opening(turn), *self.middle(turn), *self.ending(turn)]

    def without_end(self, pieces: Sequence[str]) -> list[bytes]:
        """The body ends in good order, but the terminal event is missing."""
        turn = Turn(pieces)
        return [*self.opening(turn), *self.middle(turn)]

    def error_in_stream(self, pieces: Sequence[str], variant: str | None = None) -> list[bytes]:
        errors = self.errors()
        return [*self.without_end(pieces), *errors[variant or next(iter(errors))]]

    def own_finish(self, finish: str) -> str:
        """The vendor's word for one of ours; its own and unknown ones stay as they are."""
        if finish in self.finish_reasons:
            return finish
        return next((own for own, word in self.finish_reasons.items() if word == finish), finish)

    def reply(self, events: Sequence[bytes], request_id: str | None = None) -> Reply:
        """The events as the body of a 200, each in a piece of its own."""
        reply = Reply(headers=(("Content-Type", self.media_type), ("Cache-Control", "no-cache")), body=tuple(events))
        named = request_id is not None and self.request_id_header is not None
        return reply.with_headers({str(self.request_id_header): str(request_id)}) if named else reply

    def answer(self, *pieces: str, usage: Usage = USAGE) -> Reply:
        return self.reply(self.stream(pieces, usage))

    def error(
        self, status: int, message: str = "no luck", code: str | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """An error before any stream."""
        named = {self.request_id_header: "req_011"} if self.request_id_header else {}
        body = self.error_body(status, message, code)
        return plain(body, status, "application/json").with_headers({**named, **(headers or {})})

    def base_url(self, server_url: str) -> str:
        """The `base_url` of an adapter that shall talk to the server at `server_url`."""
        return server_url + self.base


def sse(data: Any, event: str | None = None, end: str = "\n") -> bytes:
    name = f"event: {event}{end}" if event else ""
    return f"{name}data: {data if isinstance(data, str) else dumps(data)}{end}{end}".encode()


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def data_of(event: bytes) -> Any:
    """The JSON object in an event of any vendor; an empty one when there is none."""
    text = event.decode()
    lines = [line.rstrip("\r").removeprefix("data:") for line in text.split("\n") if not line.startswith("event:")]
    try:
        data = json.loads("\n".join(lines))
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}
