"""Where everything in a response stands: its blocks, its prose and what was left open, with lines and columns.

`kernai.parse` gives the same blocks and segments without their places; the tests hold the two against each other.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, NamedTuple

from kernai.blocks.block import Block
from kernai.blocks.grammar import ASCII_SPACE, find_end, find_opening

PROSE = "prose"
INCOMPLETE = "incomplete"
BLOCK = "block"


class Part(NamedTuple):
    """A piece of a response: `kind` is ``block``, ``prose`` or ``incomplete``; prose has no type."""

    kind: str
    line: int
    column: int
    type: str | None
    name: str | None
    content: str

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return self._asdict()

    def block(self) -> Block:
        """The block that it is."""
        assert self.type is not None
        return Block(self.type, self.name, self.content)


class Layout(NamedTuple):
    """A response taken apart, its parts in the order of the text. Blank prose is no part."""

    text: str
    parts: tuple[Part, ...]
    #: as `ParseResult.certain`
    certain: int | None = None

    @property
    def blocks(self) -> list[Block]:
        return [part.block() for part in self.parts if part.kind == BLOCK]

    @property
    def incomplete(self) -> Block | None:
        """The block that is still open at the end."""
        return next((part.block() for part in self.parts if part.kind == INCOMPLETE), None)


def lay_out(text: str) -> Layout:
    """Takes a whole response apart."""
    lines = _Lines(text)
    parts: list[Part] = []
    certain: int | None = None
    at = 0
    while (found := find_opening(text, at)) is not None:
        start, inner, opening, content = found
        parts += _prose(lines, at, start)
        place = lines.place(start)
        at = inner
        if content is None:
            end, at, in_open_value = find_end(opening.inside, text, inner)
            if end < 0:
                left = Part(INCOMPLETE, *place, opening.type, opening.name, text[inner:])
                return Layout(text, (*parts, left), certain)
            if in_open_value and certain is None:
                certain = sum(part.kind == BLOCK for part in parts) + 1
            content = text[inner:end]
        parts.append(Part(BLOCK, *place, opening.type, opening.name, content))
    return Layout(text, (*parts, *_prose(lines, at, len(text))), certain)


class _Lines:
    """Finds the line and the column of an offset, both counted from 1; a line ends with its line feed."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts = [0]
        at = text.find("\n")
        while at >= 0:
            self._starts.append(at + 1)
            at = text.find("\n", at + 1)

    def place(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1


def _prose(lines: _Lines, start: int, end: int) -> list[Part]:
    """The prose between two offsets where it is not blank, to the letter; its place is that of its first word."""
    text = lines.text[start:end]
    words = text.lstrip(ASCII_SPACE)
    return [Part(PROSE, *lines.place(end - len(words)), None, None, text)] if words else []
