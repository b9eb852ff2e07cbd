"""The calls that a text from outside holds, in whatever form a model may copy them out of it.

A model that "cleans up" what it copies decodes entities, percent signs or JSON strings on the way, or writes plain
characters for others that look like them. So a text is read as it stands and after up to two rounds of each, of the
whole or of its tags alone; at every depth, since a call may stand in another block; and unclosed blocks too. An answer
counts as a call. Calls in the dialects count, for a correction shows them as blocks, or they are run.

All this is linear in the text. Where exactness would cost more (blocks inside one another beyond `DEEPEST`, JSON
without end), the call is known by its name alone, or any call is: the caller takes such a one for quoted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from kernai.blocks import dialects
from kernai.blocks.block import Block
from kernai.blocks.decodings import readings
from kernai.blocks.dialects import Unreadable
from kernai.blocks.disguises import names_arguments
from kernai.blocks.grammar import ASCII_SPACE, CORE_TYPES, find_end, find_opening
from kernai.jsonio.json_pieces import BROKEN, JsonValue

DEEPEST = 16
"""How many blocks around a block are looked into."""

_MOST_FUNCTIONS = 200  # tags of one dialect whose parameters are read; of more the names are known
#: blocks that call nothing
_CALLS_NOTHING = frozenset({"json", "result", "error", "media"})
_NAMELESS = frozenset({"final", "plan"})


class QuotedCall(NamedTuple):
    """A call that stands in a text. Without `content` any of that name; without `type` any at all."""

    type: str | None
    name: str | None
    content: str | None


_ANY = QuotedCall(None, None, None)
_WORDS = "|".join(("block", *CORE_TYPES, "function=", "invoke", "antml:"))
_TAG = re.compile(rf"<\s*+(?:{_WORDS})|\[TOOL_CALLS\]", re.IGNORECASE)


def quoted_calls(text: str) -> Iterator[QuotedCall]:
    """The calls in a text, some of them perhaps more than once."""
    for reading in readings(text):
        if _TAG.search(reading):
            yield from _in_blocks(reading)
            mended = dialects.mended_tags(reading)
            if mended != reading:
                yield from _in_blocks(mended)
            yield from _in_named_forms(reading)
        if names_arguments(reading):
            yield from _in_objects(reading)


# ------------------------------------------------------------------------------------------------------------- calls


def _quoted(type: str, name: str | None, content: str | None) -> QuotedCall:
    return QuotedCall(type, name.strip(ASCII_SPACE) if name and type not in _NAMELESS else None, content)


def _of(block: Block) -> QuotedCall:
    return _quoted(block.type, block.name, block.content)


def _in_blocks(text: str) -> Iterator[QuotedCall]:
    """Every block that calls something, wherever its opening tag stands."""
    at = 0
    around: list[int] = []  # the ends of the blocks around this place
    while (found := find_opening(text, at)) is not None:
        start, at, opening, content = found
        if opening.type in _CALLS_NOTHING:
            continue
        if content is None:
            around = [end for end in around if end > start]
            if len(around) >= DEEPEST:
                yield _quoted(opening.type, opening.name, None)
                continue
            end = find_end(opening.inside, text, at).start
            if end < 0:
                end = len(text)
                yield _quoted(opening.type, opening.name, _beginning(text, at))
            content = text[at:end]
            around.append(end)
        yield _quoted(opening.type, opening.name, content)


def _beginning(text: str, at: int) -> str:
    """What an unclosed block holds, where other text follows: a JSON value, or a line."""
    end = JsonValue().feed(text, at)
    if end is None or end == BROKEN:
        start = len(text) - len(text[at:].lstrip(ASCII_SPACE))
        end = text.find("\n", start)
    return text[at:] if end < 0 else text[at:end]


def _in_named_forms(text: str) -> Iterator[QuotedCall]:
    """The calls of dialects that name the skill before its arguments."""
    for number, tag in enumerate(dialects.FUNCTION.finditer(text)):
        if number >= _MOST_FUNCTIONS:
            yield QuotedCall("command", tag[1] or tag[2], None)
            continue
        with suppress(Unreadable):  # the model that copies it makes no call either
            yield from _with_or_without_braces(dialects.function_at(text, tag))
    for tag in dialects.MISTRAL.finditer(text):
        named = dialects.MISTRAL_CALL.match(text, tag.end())
        if named is not None:
            with suppress(Unreadable):
                yield _of(dialects.named_block(named[1], dialects.json_at(text, named.end())[0]))


_BRACKET = re.compile(r"[{\[]")
_HIDES = re.compile(r"'|#|//|/\*")


def _in_objects(text: str) -> Iterator[QuotedCall]:
    """The JSON objects with a name and arguments, in whatever dialect, fence or prose they stand.

    A value's strings and comments may hold such an object too, so what stands in a value is looked at again, unless it
    has no comment and no quotes but those that stand around its strings.
    """
    behind = spent = 0
    for bracket in _BRACKET.finditer(text):
        start = bracket.start()
        if start < behind:
            continue
        try:
            value, reached = dialects.json_at(text, start)
        except Unreadable as error:
            reached = error.reached
        else:
            if _HIDES.search(text, start, reached):
                yield from _called(value)  # the values in it are come to
            else:
                yield from _in_value(value)
                behind = reached
        spent += reached - start
        if spent > 20 * len(text) + 10_000:
            yield _ANY  # a text that was made to be slow
            return


def _in_value(value: Any) -> Iterator[QuotedCall]:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield from _called(one)
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)


def _called(value: Any) -> Iterator[QuotedCall]:
    with suppress(Unreadable):
        call = dialects.called(value)
        if call is not None:
            yield from _with_or_without_braces(call)


def _with_or_without_braces(call: Block) -> Iterator[QuotedCall]:
    """A call of a dialect; one without arguments may be copied as a block with `{}` in it, or with nothing."""
    yield _of(call)
    if call.content == "{}":
        yield _of(call)._replace(content="")
