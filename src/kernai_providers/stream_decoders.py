"""`LineDecoder` and `SseDecoder`: JSON lines and server-sent events from chunks that are split anywhere.

Both use `ByteLines` and follow one rule: a line ends at LF, CR LF or CR alone. In UTF-8 neither byte is ever part
of a character, and in JSON neither is inside a string; so lines are found first and decoded whole. What looks like a
line break elsewhere (U+2028, U+0085, a form feed) is text.

Each byte is searched once and copied a fixed number of times, whatever the size of chunks and lines.
"""

from __future__ import annotations

from typing import NamedTuple

BOM = b"\xef\xbb\xbf"
# as numbers: `in` is then a single memchr
_LF, _CR = b"\n\r"


class ByteLines:
    """Takes a body in chunks and returns its lines as bytes, without line ends, empty lines too. It never raises.

    A byte order mark at the start is dropped.
    """

    __slots__ = ("_after_cr", "_begun", "_line")

    def __init__(self) -> None:
        self._line: list[bytes] = []  # the pieces of the current line
        self._begun = False  # whether a line was returned: the first one may have a byte order mark
        self._after_cr = False  # the last byte was a CR, so an LF now belongs to it

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that end in these bytes."""
        if _CR in data or (self._after_cr and data):
            data = self._with_plain_ends(data)
        if _LF not in data:
            if data:
                self._line.append(data)
            return []
        lines = data.split(b"\n")
        if self._line:
            self._line.append(lines[0])
            lines[0] = b"".join(self._line)
        rest = lines.pop()
        self._line = [rest] if rest else []
        if not self._begun:
            self._begun = True
            lines[0] = lines[0].removeprefix(BOM)
        return lines

    def flush(self) -> list[bytes]:
        """At the end of the body: the last line, if it has no line end. Resets the decoder."""
        rest = b"".join(self._line)
        if not self._begun:
            rest = rest.removeprefix(BOM)
        self._line = []
        self._begun = self._after_cr = False
        return [rest] if rest else []

    def _with_plain_ends(self, data: bytes) -> bytes:
        """CR and CR LF become LF. A CR ends its line at once, since the next byte may arrive much later."""
        if self._after_cr:
            data = data.removeprefix(b"\n")
        self._after_cr = data.endswith(b"\r")
        data = data.replace(b"\r\n", b"\n")
        return data.replace(b"\r", b"\n") if _CR in data else data


class LineDecoder:
    """Takes a body in chunks and returns its lines as text, without the empty ones. It never raises.

    Bytes that are not UTF-8 become U+FFFD (WHATWG Encoding, "UTF-8 decode").
    """

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines = ByteLines()

    def feed(self, data: bytes) -> list[str]:
        """The lines that end in these bytes."""
        return [line.decode("utf-8", "replace") for line in self._lines.feed(data) if line]

    def flush(self) -> list[str]:
        """At the end of the body: the last line, if it has no line end. Resets the decoder.

        Such a line may have been cut off. If it is not JSON, it was.
        """
        return [line.decode("utf-8", "replace") for line in self._lines.flush()]


#: how the first line of a bare object may begin, and how each further one
_FIRST = (b"{", b"[")
_FURTHER = (*_FIRST, b"}", b"]", b" ", b"\t")


class ServerEvent(NamedTuple):
    """One event: its `event` field, None where there is none, and its `data` lines joined by LF."""

    event: str | None
    data: str


class SseDecoder:
    """Takes a body in chunks and returns its events (WHATWG HTML, "Interpreting an event stream"). It never raises.

    Of the fields only `event` and `data` are kept; `id` and `retry` are for a browser that reconnects. Three rules are
    relaxed on purpose: see `flush`; a field ``error: DATA``, which llama.cpp's server sent until the end of 2025, is an
    event `error`; and so is a bare JSON object between events that contains an error, with which Gemini ends a stream.

    An event is returned as soon as its blank line has arrived. Bytes that are not UTF-8 become U+FFFD (WHATWG Encoding,
    "UTF-8 decode"). Time is linear in the bytes, whatever the chunks.
    """

    __slots__ = ("_bare", "_data", "_event", "_lines")

    def __init__(self) -> None:
        self._bare: list[bytes] = []  # lines that may be a bare object
        self._lines = ByteLines()
        self._event: str | None = None
        self._data: list[str] = []

    def feed(self, data: bytes) -> list[ServerEvent]:
        """The events that end in these bytes."""
        return self._events(self._lines.feed(data))

    def flush(self) -> list[ServerEvent]:
        """At the end of the body: the event without a blank line, if it has data. Resets the decoder.

        The specification drops it, since it may have been cut off. But some servers end their last event with one line
        break or none, and would seem to cut off every answer. These streams carry JSON, and JSON that was cut off does
        not parse, so the event is returned and the parser decides.
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
        if line[:1] in (_FURTHER if self._bare else _FIRST):  # no known field begins like this
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
