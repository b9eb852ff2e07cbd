"""A second implementation of the block grammar, slow and literal: it tries every tag at every character.

It shares no code with the parsers, so their agreement on generated texts is significant.
"""

from __future__ import annotations

import re

from kernai import Block
from tests.blocks.parser_cases import WHITE_SPACE, Found

_VALUE = r"""(?: "[^"<>]*" | '[^'<>]*' )"""
_ESCAPED_VALUE = r"""(?: "[^"<>]*" | '[^'<>]*' | \\" (?: [^"<>\\] | \\(?!") )* \\" )"""
_KEY = r"""[^\s"'=<>/]+"""
_TAG = r"< (?P<word> {word} ) (?P<attributes> (?: \s+ {key} \s* = \s* {value} )* ) \s* (?P<slash> /? ) >"
_OUTSIDE = re.compile(
    _TAG.format(word="block|command|json|final|plan|result|error", key=_KEY, value=_VALUE), re.VERBOSE | re.ASCII
)
_INSIDE = re.compile(
    r"(?P<close> </block\s*> ) | " + _TAG.format(word="block", key=_KEY, value=_ESCAPED_VALUE), re.VERBOSE | re.ASCII
)
_ONE_ATTRIBUTE = re.compile(rf"\s+ (?P<key> {_KEY} ) \s* = \s* (?P<value> {_ESCAPED_VALUE} )", re.VERBOSE | re.ASCII)


def _first(attributes: str, key: str) -> str | None:
    for pair in _ONE_ATTRIBUTE.finditer(attributes):
        if pair["key"] == key:
            value: str = pair["value"]
            return value[2:-2] if value.startswith("\\") else value[1:-1]
    return None


def opening_at(text: str, at: int) -> tuple[Block, str, int] | None:
    """The opening tag at a place outside all blocks: block, word of its close, end."""
    tag = _OUTSIDE.match(text, at)
    if tag is None:
        return None
    word, slash = tag["word"], tag["slash"]
    kind = _first(tag["attributes"], "type") if word == "block" else word
    if kind is None or not kind.strip(WHITE_SPACE) or (slash and word != "block"):
        return None
    return Block(kind, _first(tag["attributes"], "name")), "" if slash else word, tag.end()


def level_at(text: str, at: int, word: str) -> tuple[int, int]:
    """How the tag at a place in a block changes the level, and where it ends."""
    if word != "block":
        close = re.compile(rf"</{word}\s*>", re.ASCII).match(text, at)
        return (-1, close.end()) if close else (0, at)
    tag = _INSIDE.match(text, at)
    if tag is None:
        return 0, at
    if tag["close"]:
        return -1, tag.end()
    kind = _first(tag["attributes"], "type")
    return (1, tag.end()) if kind is not None and kind.strip(WHITE_SPACE) and not tag["slash"] else (0, at)


class Open(Exception):  # noqa: N818 - it is no error, but the end of the text
    """The text ends before the value does."""


class Broken(Exception):  # noqa: N818 - likewise
    """A character that a value cannot have."""


BARE = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-._$"


def at_mark(text: str, at: int, space: str = " \t\n\r") -> int:
    """The next place that has none of these characters."""
    while at < len(text) and text[at] in space:
        at += 1
    if at >= len(text):
        raise Open
    return at


def end_of_scalar(text: str, at: int) -> int:
    first = text[at]
    if first in BARE:
        return at_mark(text, at, BARE)
    if first not in "\"'":
        raise Broken
    at = at_mark(text, at + 1, "")
    while text[at] != first:
        at = at_mark(text, at + 1 + (text[at] == "\\"), "")
    return at + 1


def end_of_value(text: str, at: int) -> int:
    """Where the value that begins at a place ends, read by recursive descent."""
    if text[at] not in "[{":
        return end_of_scalar(text, at)
    close = {"[": "]", "{": "}"}[text[at]]
    at = at_mark(text, at + 1)
    while text[at] != close:
        if close == "}":
            at = at_mark(text, end_of_scalar(text, at))
            if text[at] != ":":
                raise Broken
            at = at_mark(text, at + 1)
        at = at_mark(text, end_of_value(text, at))
        if text[at] == ",":
            at = at_mark(text, at + 1)
        elif text[at] != close:
            raise Broken
    return at + 1


def value_at(text: str, at: int) -> tuple[int, bool]:
    """Where the JSON value at the start of content ends (`at` if there is none), and whether the text ends in it."""
    try:
        begin = at_mark(text, at, WHITE_SPACE)
        return (end_of_value(text, begin), False) if text[begin] in "[{" else (at, False)
    except Broken:
        return at, False
    except Open:
        return at, text[at:].strip(WHITE_SPACE) != ""


def read_slowly(text: str) -> Found:
    found = Found()
    at = since = 0
    while at < len(text):
        opening = opening_at(text, at)
        if opening is None:
            at += 1
            continue
        found.add_prose(text[since:at])
        block, word, at = opening
        inner, level = at, 1 if word else 0
        at, cut_off = value_at(text, at) if word else (at, False)
        close = at
        while level and at < len(text):
            close = at
            change, end = level_at(text, at, word)
            level += change
            at = end if change else at + 1
        whole = Block(block.type, block.name, text[inner : close if word else inner])
        if level:
            found.incomplete = Block(block.type, block.name, text[inner:])
            return found
        found.blocks.append(whole)
        if cut_off and found.certain is None:
            found.certain = len(found.blocks)
        since = at
    found.add_prose(text[since:])
    return found
