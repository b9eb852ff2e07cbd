"""Finds the calls in untrusted text, as they are written (`quoted_calls`) and by their letters alone (`is_spelled_in`).

**As written**, parameters in another order or form make the same call. A model that "cleans up" what it copies may
decode entities, percent signs or JSON strings, or replace similar characters by plain ones. So a text is read unchanged
and after up to two rounds of each decoding, of the whole text or of its tags alone. It is read at every depth, since a
call may be inside another block, and unclosed blocks count too. An answer counts as a call. Calls in the dialects
count, since they are run, or a correction shows them as blocks. If an exact result would take more than linear time
(blocks nested deeper than `DEEPEST`, endless JSON), a call is known only by its name, or any call counts as quoted.

**By its letters and digits**, a call is recognised however tools and models have rewritten it: Markdown escapes an
underscore, a terminal colours a word, mail quotes a line, a model tidies all of this up, but letters and digits stay.
The text is decoded as far as possible, and so are the values of a call, so it does not matter which parts the model
decoded.

Both take time linear in the length of the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

from kernai._util.redaction import normalized
from kernai.blocks import dialects
from kernai.blocks.block import Block
from kernai.blocks.decodings import all_decoded, has_keys, has_tags, readings_of
from kernai.blocks.dialects import Unreadable
from kernai.blocks.grammar import ASCII_SPACE, Remembered, find_end, find_opening
from kernai.jsonio.json_pieces import BROKEN, JsonValue

DEEPEST = 16
"""How many blocks around a block are examined."""

_MOST_FUNCTIONS = 200  # tags of one dialect whose parameters are read; of further tags, only the names are
#: blocks that call nothing
_CALLS_NOTHING = frozenset({"json", "result", "error", "media"})
_NAMELESS = frozenset({"final", "plan"})


class QuotedCall(NamedTuple):
    """A call in a text. If `content` is None, it stands for any call with the name; if `type` is None, for any call."""

    type: str | None
    name: str | None
    content: str | None


_ANY = QuotedCall(None, None, None)


def quoted_calls(text: str) -> Iterator[QuotedCall]:
    """The calls in a text. May yield the same call more than once. Ends after one that stands for any call."""
    for reading in readings_of(text):
        if has_tags(reading):
            yield from _in_blocks(reading)
            corrected = dialects.corrected_tags(reading)
            if corrected != reading:
                yield from _in_blocks(corrected)
            yield from _in_named_forms(reading)
        for call in _in_objects(reading) if has_keys(reading) else ():
            yield call
            if call is _ANY:
                return


# ------------------------------------------------------------------------------------------------------------- calls


def _quoted(type: str, name: str | None, content: str | None) -> QuotedCall:
    return QuotedCall(type, name.strip(ASCII_SPACE) if name and type not in _NAMELESS else None, content)


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
            close = find_end(opening.inside, text, at)
            end = len(text) if close is None else close[0]
            if close is None:
                yield _quoted(opening.type, opening.name, _beginning(text, at))
            content = text[at:end]
            around.append(end)
        yield _quoted(opening.type, opening.name, content)


def _beginning(text: str, at: int) -> str:
    """The content of an unclosed block that other text may follow: the JSON value, or the line, that it begins with."""
    end = JsonValue().feed(text, at)
    if end is None or end == BROKEN:
        start = len(text) - len(text[at:].lstrip(ASCII_SPACE))
        end = text.find("\n", start)
    return text[at:] if end < 0 else text[at:end]


def _in_named_forms(text: str) -> Iterator[QuotedCall]:
    """The calls of dialects that name the skill before its arguments."""
    named = (dialects.MISTRAL_CALL.match(text, tag.end()) for tag in dialects.MISTRAL.finditer(text))
    forms = ((dialects.FUNCTION.finditer(text), dialects.function_at), (filter(None, named), dialects.named_at))
    for found, call_at in forms:
        for number, tag in enumerate(found):
            if number >= _MOST_FUNCTIONS:
                yield QuotedCall("command", tag[1] or tag[2], None)
                continue
            with suppress(Unreadable):  # a model that copies it makes no call either
                yield from _with_or_without_braces(call_at(text, tag))


#: the beginning of an object that has a key
_OBJECT = re.compile(r"\{(?=\s*+[^\s{}\[\]:,<>])")
_HIDES = re.compile(r"'|#|//|/\*")


def _in_objects(text: str) -> Iterator[QuotedCall]:
    """The JSON objects with a name and arguments, in any dialect, fence or prose.

    Strings and comments inside a value may contain such an object too. So the inside of a value is searched again,
    unless the value has no comments and no other quotes than those of its strings.
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
                yield from _called(value)  # the values inside are found by the next steps of the loop
            else:
                yield from chain.from_iterable(map(_called, _nodes(value)))
                done = reached
        spent += reached - start
        if spent > 20 * len(text) + 10_000:
            yield _ANY  # the text was made to be slow
            return


def _nodes(value: Any) -> Iterator[Any]:
    """A JSON value, and every value inside it."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        yield one
        if isinstance(one, (dict, list)):
            waiting.extend(one.values() if isinstance(one, dict) else one)


def _called(value: Any) -> Iterator[QuotedCall]:
    with suppress(Unreadable):
        call = dialects.called(value)
        if call is not None:
            yield from _with_or_without_braces(call)


def _with_or_without_braces(call: Block) -> Iterator[QuotedCall]:
    """The block of a dialect's call. If there are no arguments, it may be copied with `{}` as its content, or empty."""
    made = _quoted(call.type, call.name, call.content)
    yield made
    if call.content == "{}":
        yield made._replace(content="")

# ----------------------------------------------------------------------------------------------------- by letters alone


_MOST_MARKS = 200  # of one call in one text; a text with more was made to hide something
_ANSI = re.compile(r"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|\][^\x07\x1b]*+(?:\x07|\x1b\\)?|[@-Z\\^_])")
_MARKUP = r"</?(?:[abipsu]|br|code|div|em|font|kbd|li|mark|pre|samp|span|strong|su[bp]|t[drt]|wbr)\b[^<>]*+>"
_INLINE = re.compile(_MARKUP, re.IGNORECASE)
_WITHIN_A_WORD = re.compile(
    r"<(?<=\w<)/?(?:[bisu]|code|em|font|kbd|mark|samp|span|strong|su[bp]|tt|wbr)\b[^<>]*+>"
    rf"(?:{_MARKUP}){{0,3}}(?=\w)", re.IGNORECASE
)
_NUMBERED = re.compile(r"^[ \t>+|-]*+[0-9]{1,6}+(?:[ \t]*+[:.)|]|\t| {2,})", re.MULTILINE)
#: `<function=`, with any characters but letters and digits between its letters
_FUNCTION = re.compile("<" + "".join(rf"[\W_]{{0,20}}+{one}" for one in "function") + r"[\W_]{0,20}?=", re.IGNORECASE)
#: parts of tags, as `spelled` writes them. Every text that spells a call as a block has one of these
_MARKS = ("blocktype", "blockname", "typecommand", "commandname", "toolcall", "tooluse", "invokename")
_NO_LETTER = re.compile(r"[\W_]+")
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")
_PUNCTUATION = bytes(code for code in range(0x80) if not chr(code).isalnum())


class Look(NamedTuple):
    """The findings about a text that may contain calls."""

    text: str
    spellings: list[str]
    """The results of `spelled` for the text, unchanged and decoded, which may spell a call."""
    shows_call: bool
    """Whether the text may also contain a call in a form that `quoted_calls` reads."""


def look_at(text: str) -> Look | None:
    """Looks for signs of calls in a text. None if it contains no call."""
    plain = all_decoded(text)
    shows = any(has_tags(one) or has_keys(one) for one in plain)
    forms = dict.fromkeys((text, *plain))
    made = dict.fromkeys(map(spelled, forms))
    may_call = shows or _may_spell_a_call(forms, made)
    if may_call or "\x1b" in text or any(map(_WITHIN_A_WORD.search, plain)):
        unmarked = bare(text)
        if unmarked != text:
            more = all_decoded(unmarked)
            made |= dict.fromkeys(map(spelled, more))
            may_call = may_call or _may_spell_a_call(more, made)
    return Look(text, [one for one in made if _is_marked(one) or "function" in one], shows) if may_call else None


def _may_spell_a_call(forms: Iterable[str], spellings: Iterable[str]) -> bool:
    return any(map(_FUNCTION.search, forms)) or any(map(_is_marked, spellings))


def spelled(text: str) -> str:
    """The letters and digits of a text, in lower case, without accents, and in one form of each character."""
    # as bytes, which takes a millisecond for a megabyte
    text = text.encode("utf-8", "surrogatepass").translate(None, _PUNCTUATION).decode("utf-8", "surrogatepass")
    return (text if text.isascii() else _BEYOND_ASCII.sub(lambda run: _letters_of(run[0]), text)).lower()


_letters_of = Remembered(lambda run: _NO_LETTER.sub("", normalized("NFKD", run))).__getitem__


def bare(text: str) -> str:
    """A text without what tools add to it: colours, inline markup, line numbers."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "<" in text:
        text = _INLINE.sub("", text)
    return _NUMBERED.sub("", text)


def _is_marked(spelling: str) -> bool:
    """Whether a result of `spelled` may contain the tag of a block, or the keys of a call in JSON."""
    if "name" in spelling and ("arguments" in spelling or "parameters" in spelling):
        return True
    return any(mark in spelling for mark in _MARKS)


def is_spelled_in(spelling: str, type: str, name: str | None, content: str) -> bool:
    """Whether a result of `spelled` contains this call: its tag, and after it every value in its content."""
    whole = type in ("final", "plan")
    if whole and not spelled(content):
        return False
    reach = 2 * len(content) + 200
    values: list[list[str]] | None = None
    for count, end in enumerate(_marks(spelling, type, spelled(name or ""))):
        if values is None:
            values = [_ways_to_spell(one) for one in ([content] if whole else _values(content))]
        region = spelling[end : end + reach]
        if count >= _MOST_MARKS or all(any(way in region for way in ways) for ways in values):
            return True
    return False


def _ways_to_spell(value: str) -> list[str]:
    """How a value may be spelled: unchanged, and with its encodings undone."""
    as_it_is = spelled(value)
    return [as_it_is, *(spelled(one) or as_it_is for one in all_decoded(value))]


def _marks(spelling: str, type: str, name: str) -> Iterator[int]:
    """The end of each occurrence of the call's tag."""
    kind = spelled(type)
    if type == "command":
        tags = [
            f"typecommandname{name}", f"commandname{name}", f"name{name}typecommand", f"name{name}arguments",
            f"name{name}parameters", f"name{name}input", f"function{name}", f"invokename{name}", f"toolcalls{name}",
        ]
    elif name:
        tags = [f"blocktype{kind}name{name}", f"blockname{name}type{kind}"]
    else:
        tags = [f"blocktype{kind}"]
    for tag in tags:
        at = spelling.find(tag)
        while at >= 0:
            yield at + len(tag)
            at = spelling.find(tag, at + 1)


def _values(content: str) -> list[str]:
    """The names and values in a content that is JSON, or else the whole content."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return [content]
    found: list[str] = []
    for one in _nodes(value):
        if isinstance(one, dict):
            found += one
        elif not isinstance(one, list):
            found.append(one if isinstance(one, str) else json.dumps(one))
    return found
