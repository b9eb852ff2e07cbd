"""Lines from bytes that are cut anywhere: `LineDecoder` for streams with one JSON object a line.

Server-sent events are lines too, so `ByteLines` is also the lower half of `SseDecoder`, and both follow one rule: a
line ends at LF, CR LF or CR alone. In UTF-8 neither byte is ever part of a character, and in JSON neither stands inside
of a string; so lines are found first and decoded whole. What looks like a line break elsewhere (U+2028, U+0085, a form
feed) is text.

Each byte is searched once and copied a fixed number of times, whatever the sizes of chunks and lines.
"""

from __future__ import annotations

BOM = b"\xef\xbb\xbf"
# as numbers, for a look that is one call of memchr
_LF, _CR = b"\n\r"


class ByteLines:
    """Feed it a body; it gives the lines as bytes, without their ends, empty ones too. It never raises.

    A byte order mark at the start is dropped.
    """

    __slots__ = ("_after_cr", "_begun", "_line")

    def __init__(self) -> None:
        self._line: list[bytes] = []  # the pieces of the line that has not ended
        self._begun = False  # whether a line was given: the first one may have a mark
        self._after_cr = False  # the last byte was a CR: an LF that comes now belongs to it

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
        """At the end of the body: the last line where nothing ends it, else none. It begins anew then."""
        rest = b"".join(self._line)
        if not self._begun:
            rest = rest.removeprefix(BOM)
        self._line = []
        self._begun = self._after_cr = False
        return [rest] if rest else []

    def _with_plain_ends(self, data: bytes) -> bytes:
        """CR and CR LF become LF. A CR ends its line at once: whether an LF follows may be known much later."""
        if self._after_cr:
            data = data.removeprefix(b"\n")
        self._after_cr = data.endswith(b"\r")
        data = data.replace(b"\r\n", b"\n")
        return data.replace(b"\r", b"\n") if _CR in data else data


class LineDecoder:
    """Feed it a body; it gives the lines as text, without those that are empty. It never raises.

    Bytes that are no UTF-8 become U+FFFD (WHATWG Encoding, "UTF-8 decode").
    """

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines = ByteLines()

    def feed(self, data: bytes) -> list[str]:
        """The lines that end in these bytes."""
        return [line.decode("utf-8", "replace") for line in self._lines.feed(data) if line]

    def flush(self) -> list[str]:
        """At the end of the body: the last line where nothing ends it, else none. The decoder is as new then.

        Nothing tells such a line from one that was cut: where it is no JSON, the stream was.
        """
        return [line.decode("utf-8", "replace") for line in self._lines.flush()]
