"""`SseDecoder`: server-sent events from bytes that are cut anywhere (WHATWG HTML, "Interpreting an event stream").

Of the fields only `event` and `data` are kept; `id` and `retry` serve a browser that connects anew. Three rules are
relaxed on purpose: `SseDecoder.flush` tells of one; a field ``error: DATA``, with which llama.cpp's server told of
errors until the end of 2025, is an event `error`; and so is a JSON object that stands bare between events and speaks of
an error, with which Gemini breaks off a stream.
"""

from __future__ import annotations

from typing import NamedTuple

from kernai_providers.ndjson import ByteLines

#: how the first line of a bare object may begin, and how each further one
_FIRST = (b"{", b"[")
_FURTHER = (*_FIRST, b"}", b"]", b" ", b"\t")


class ServerEvent(NamedTuple):
    """One event: its `event` field, None where there is none, and its `data` lines joined by LF."""

    event: str | None
    data: str


class SseDecoder:
    """Feed it a body; it gives the events. It never raises.

    An event is given as soon as its blank line is there. Bytes that are no UTF-8 become U+FFFD (WHATWG Encoding, "UTF-8
    decode"). Time is linear in the bytes, whatever the chunks.
    """

    __slots__ = ("_bare", "_data", "_event", "_lines")

    def __init__(self) -> None:
        self._bare: list[bytes] = []  # the lines of what may be a bare object
        self._lines = ByteLines()
        self._event: str | None = None
        self._data: list[str] = []

    def feed(self, data: bytes) -> list[ServerEvent]:
        """The events that end in these bytes."""
        return self._events(self._lines.feed(data))

    def flush(self) -> list[ServerEvent]:
        """At the end of the body: the event that no blank line ends, if it has data. The decoder is as new then.

        The specification drops it, for it may have been cut. But servers are about that end their last event with one
        line break or with none, and dropping it would make each of their answers a cut one. The data of these streams
        tell by themselves whether they are whole: JSON that was cut is no JSON. So the event is given, and whoever
        parses it finds out.
        """
        return self._events([*self._lines.flush(), b""])

    def _events(self, lines: list[bytes]) -> list[ServerEvent]:
        events = []
        data = self._data
        for line in lines:
            if line.startswith(b"data: "):
                data.append(line[6:].decode("utf-8", "replace"))
            elif line:
                self._field(line)
            else:
                if self._bare:
                    events += self._bare_error()
                if data:
                    events.append(ServerEvent(self._event, "\n".join(data)))
                    data.clear()
                self._event = None
        return events

    def _bare_error(self) -> list[ServerEvent]:
        text = b"\n".join(self._bare).decode("utf-8", "replace")
        self._bare = []
        return [ServerEvent("error", text)] if '"error"' in text else []

    def _field(self, line: bytes) -> None:
        if line[:1] in (_FURTHER if self._bare else _FIRST):  # no field that is known begins so
            self._bare.append(line)
            return
        name, _, value = line.decode("utf-8", "replace").partition(":")  # a comment is a field whose name is empty
        if name == "data":
            self._data.append(value)  # those with the space were taken by whoever calls
        elif name == "event":
            self._event = value.removeprefix(" ") or None
        elif name == "error":
            self._event = name
            self._data.append(value)
