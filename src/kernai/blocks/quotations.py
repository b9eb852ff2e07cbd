"""Finds the calls in untrusted text, in every form in which a model may copy them.

A model that "cleans up" what it copies decodes entities, percent signs or JSON strings on the way, or writes plain
characters for similar ones. So a text is read unchanged and after up to two rounds of each decoding, of the whole text
or of its tags alone; at every depth, since a call may be inside another block; and unclosed blocks too. An answer
counts as a call. Calls in the dialects count, since they are run, or a correction shows them as blocks.

All this is linear in the text. Where exactness would cost more (blocks nested deeper than `DEEPEST`, endless JSON), the
call is known by its name alone, or any call counts as quoted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from kernai.blocks import dialects
from kernai.blocks.block import Block
from kernai.blocks.decodings import has_keys, has_tags, readings_of
from kernai.blocks.dialects import Unreadable
from kernai.blocks.grammar import ASCII_SPACE, find_end, find_opening
from kernai.jsonio.json_pieces import BROKEN, JsonValue

DEEPEST = 16
"""How many blocks around a block are examined."""

_MOST_FUNCTIONS = 200  # tags of one dialect whose parameters are read; beyond it only their names are
#: blocks that call nothing
_CALLS_NOTHING = frozenset({"json", "result", "error", "media"})
_NAMELESS = frozenset({"final", "plan"})


class QuotedCall(NamedTuple):
    """A call in a text. Without `content` it means any call of that name, without `type` any call."""

    type: str | None
    name: str | None
    content: str | None


_ANY = QuotedCall(None, None, None)


def quoted_calls(text: str) -> Iterator[QuotedCall]:
    """The calls in a text, some perhaps more than once."""
    for reading in readings_of(text):
        if has_tags(reading):
            yield from _in_blocks(reading)
            mended = dialects.mended_tags(reading)
            if mended != reading:
                yield from _in_blocks(mended)
            yield from _in_named_forms(reading)
        if has_keys(reading):
            yield from _in_objects(reading)


# ------------------------------------------------------------------------------------------------------------- calls


def _quoted(type: str, name: str | None, content: str | None) -> QuotedCall:
    return QuotedCall(type, name.strip(ASCII_SPACE) if name and type not in _NAMELESS else None, content)


def _of(block: Block) -> QuotedCall:
    return _quoted(block.type, block.name, block.content)


def _in_blocks(text: str) -> Iterator[QuotedCall]:
    """Every block that calls something, wherever its opening tag is."""
    at = 0
    around: list[int] = []  # the ends of the blocks around this place
    while (found := find_opening(text, at)) is not None:
        start, at, opening, content = found
        if opening.type in _CALLS_NOTHING or (opening.type == "command" and not opening.name):
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
    """The content of an unclosed block if other text follows: a JSON value, or a line."""
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
        with suppress(Unreadable):  # a model that copies it makes no call either
            yield from _with_or_without_braces(dialects.function_at(text, tag))
    for tag in dialects.MISTRAL.finditer(text):
        named = dialects.MISTRAL_CALL.match(text, tag.end())
        if named is not None:
            with suppress(Unreadable):
                yield _of(dialects.named_block(named[1], dialects.json_at(text, named.end())[0]))


#: the beginning of an object that has a key
_OBJECT = re.compile(r"\{(?=\s*+[^\s{}\[\]:,<>])")
_HIDES = re.compile(r"'|#|//|/\*")


def _in_objects(text: str) -> Iterator[QuotedCall]:
    """The JSON objects with a name and arguments, in any dialect, fence or prose.

    Strings and comments of a value may hold such an object too, so the inside of a value is examined again, unless it
    has no comments and no quotes but those of its strings.
    """
    done = spent = 0
    for brace in _OBJECT.finditer(text):
        start = brace.start()
        if start < done:
            continue
        try:
            value, reached = dialects.json_at(text, start)
        except Unreadable as error:
            reached = error.reached
        else:
            if _HIDES.search(text, start, reached):
                yield from _called(value)  # the values inside follow
            else:
                yield from _in_value(value)
                done = reached
        spent += reached - start
        if spent > 20 * len(text) + 10_000:
            yield _ANY  # a text that is made to be slow
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
    """A call of a dialect; one without arguments may be copied as a block with `{}` in it, or an empty one."""
    yield _of(call)
    if call.content == "{}":
        yield _of(call)._replace(content="")
