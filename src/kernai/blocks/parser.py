"""`parse`: the blocks and the prose of a complete text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from kernai.blocks.block import Block
from kernai.blocks.grammar import ASCII_SPACE, find_change, find_end, find_opening


class ParseResult(NamedTuple):
    """The result of `parse`, each list in the order of the text."""

    blocks: list[Block]
    text_segments: list[str]
    """The prose before, between and after the blocks, unchanged, without blank parts."""
    incomplete: Block | None = None
    """The block that is still open at the end of the text, with its content so far. It must not be executed."""
    certain: int | None = None
    """How many blocks are certain, None for all.

    The last certain block begins with a JSON value that the end of the text cuts off, and ends at a tag inside this
    value. The blocks after it may be part of the value, so they must not be executed.
    """


#: a response with one canonical block whose content has no tag and no string that may be open, as in most responses
_ONE = re.compile(r'[^<]*+<block type="(command|final)"(?: name="([\w.-]++)")?>([^<]*+)</block>[ \t-\r]*+', re.ASCII)


def parse_one(text: str) -> Block | None:
    """The only block of a text, if one regular expression finds it, else None. `parse` finds the same block."""
    one = _ONE.fullmatch(text)
    if one is None:
        return None
    type, name, content = one.groups()
    if content.count('"') & 1 or "'" in content or "\\" in content:
        return None
    return Block(type, name, content)


def parse(text: str) -> ParseResult:
    """Parses a complete text, in time linear in its length. `StreamParser` finds the same blocks and prose.

    No text is invalid: whatever is not a block is prose. Raises `TypeError` for anything but a `str`.
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
            close = find_end(opening.inside, text, inner)
            if close is None:
                return ParseResult(blocks, segments, Block(opening.type, opening.name, text[inner:]), certain)
            end, at, in_open_value = close
            if in_open_value and certain is None:
                certain = len(blocks) + 1
            content = text[inner:end]
        blocks.append(Block(opening.type, opening.name, content))
    if at < size and (prose := text[at:]).strip(ASCII_SPACE):
        segments.append(prose)
    return ParseResult(blocks, segments, None, certain)


class Part(NamedTuple):
    """A block or prose at its place in a text. For prose, `block` is None; `is_closed` is False for an open block."""

    start: int
    content: str
    block: Block | None = None
    is_closed: bool = True


def parts_of(text: str) -> Iterator[Part]:
    """The blocks and the prose that `parse` finds, in the order of the text. Slower than `parse`; for display."""
    at = 0
    while (found := find_opening(text, at)) is not None:
        start, inner, opening, content = found
        if (prose := text[at:start]).strip(ASCII_SPACE):
            yield Part(at, prose)
        at, is_closed = inner, True
        if content is None:
            close = find_end(opening.inside, text, inner)
            end, at, _ = close or (len(text), len(text), False)
            content, is_closed = text[inner:end], close is not None
        yield Part(start, content, Block(opening.type, opening.name, content), is_closed)
    if (prose := text[at:]).strip(ASCII_SPACE):
        yield Part(at, prose)


def text_with_stray_close(text: str) -> str | None:
    """The text after the last block, if it ends with another closing tag of that block.

    Perhaps the block was meant to end there. None if only the tag follows, a slip, or if the last block is not closed.
    """
    if text.count("</") < 2 or not text.rstrip(ASCII_SPACE).endswith(">"):  # noqa: PLR2004 - the block's own tag and another
        return None
    *_, last, after = Part(0, ""), Part(0, ""), *parts_of(text)
    found = None if last.block is None else find_opening(text, last.start)
    rest = after.content.rstrip(ASCII_SPACE)
    tag = rest.rfind("<")
    if found is None or not rest[:tag].strip(ASCII_SPACE):
        return None
    change = find_change(found[2].inside, rest, tag)
    return rest if change is not None and change[1:] == (len(rest), -1) else None
