"""`parse`: the blocks and the prose of a complete text."""

from __future__ import annotations

import re
from typing import NamedTuple

from kernai.blocks.block import Block
from kernai.blocks.grammar import ASCII_SPACE, find_end, find_opening


class ParseResult(NamedTuple):
    """What `parse` found, each list in the order of the text."""

    blocks: list[Block]
    text_segments: list[str]
    """The prose before, between and behind the blocks, to the letter, where it is not blank."""
    incomplete: Block | None = None
    """The block still open at the end of the text, with what there is of its content. It is not to be executed."""
    certain: int | None = None
    """None: all blocks are. Else only so many of them: the last of those begins with a JSON value that the end of the
    text cut off, and ends at a tag inside of it. What follows may be quoted in there, so it is not to be executed."""


#: a response that is one canonical block whose content has no tag and no string that may be open, as most are
_ONE = re.compile(
    r"""([^<]*+)<block type="(command|final)"(?: name="([\w.-]++)")?>([^<\\']*+)</block>[ \t-\r]*+""", re.ASCII
)


def parse_one(text: str) -> Block | None:
    """The only block of a text of which that can be said at a look; for any other, None, and `parse` finds the same."""
    one = _ONE.fullmatch(text)
    if one is None or one[4].count('"') & 1:
        return None
    return Block(one[2], one[3], one[4])


def parse(text: str) -> ParseResult:
    """Take a complete text apart. `StreamParser` finds the same; both take time linear in the length of the text.

    No text is an error: whatever is no block is prose. Raises `TypeError` for anything but a `str`.
    """
    if not isinstance(text, str):
        raise TypeError(f"text must be a str, got {type(text).__name__}; decode bytes first: data.decode()")
    blocks: list[Block] = []
    segments: list[str] = []
    certain: int | None = None
    at, size = 0, len(text)
    while at < size and (found := find_opening(text, at)) is not None:
        start, inner, opening, content = found
        if at < start and (prose := text[at:start]).strip(ASCII_SPACE):
            segments.append(prose)
        at = inner
        if content is None:
            end, at, in_open_value = find_end(opening.inside, text, inner)
            if end < 0:
                return ParseResult(blocks, segments, Block(opening.type, opening.name, text[inner:]), certain)
            if in_open_value and certain is None:
                certain = len(blocks) + 1
            content = text[inner:end]
        blocks.append(Block(opening.type, opening.name, content))
    if at < size and (prose := text[at:]).strip(ASCII_SPACE):
        segments.append(prose)
    return ParseResult(blocks, segments, None, certain)
