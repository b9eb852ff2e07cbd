"""`parse`: the blocks and the prose of a complete text."""

from __future__ import annotations

import re
from typing import NamedTuple

from kernai.blocks.block import Block
from kernai.blocks.grammar import ASCII_SPACE, find_end, find_opening, level_change


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


def behind_a_close(text: str) -> str | None:
    """The text behind the last block, if it ends with that block's closing tag: perhaps the block was to end there.

    None where nothing but that tag stands there, which is a slip, or the last block is not closed.
    """
    if text.count("</") < 2 or not text.rstrip(ASCII_SPACE).endswith(">"):  # noqa: PLR2004 - the block's own, another
        return None
    at, inside = 0, None
    while (found := find_opening(text, at)) is not None:
        _, at, opening, content = found
        inside = opening.inside
        if content is None and (at := find_end(inside, text, at).end) < 0:
            return None
    rest = text[at:].rstrip(ASCII_SPACE)
    tag = max(rest.rfind("<"), 0)
    if inside is None or not rest[:tag].strip(ASCII_SPACE) or level_change(inside, rest[tag:]) >= 0:
        return None
    return rest
