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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any, NamedTuple

from kernai.blocks import dialects
from kernai.blocks.block import Block
from kernai.blocks.dialects import Unreadable
from kernai.blocks.disguises import BRACKETS, HIDDEN, QUOTES, names_arguments
from kernai.blocks.grammar import ASCII_SPACE, CORE_TYPES, Remembered, find_end, find_opening
from kernai.blocks.spellings import bare, is_marked, spelled
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
_WORDS = "|".join(("block", *CORE_TYPES, "function=", "invoke", "antml:"))
_TAG = re.compile(rf"<\s*+(?:{_WORDS})|\[TOOL_CALLS\]", re.IGNORECASE)


def quoted_calls(text: str, readings: Sequence[str] | None = None) -> Iterator[QuotedCall]:
    """The calls in a text, some perhaps more than once. `readings`: those of the text, if they are known."""
    for reading in readings_of(text) if readings is None else readings:
        if _TAG.search(reading):
            yield from _in_blocks(reading)
            mended = dialects.mended_tags(reading)
            if mended != reading:
                yield from _in_blocks(mended)
            yield from _in_named_forms(reading)
        if names_arguments(reading):
            yield from _in_objects(reading)


def spellings(text: str, readings: Sequence[str]) -> list[str]:
    """The letters and digits of a text's readings, and of those without markup, that may spell a call."""
    plain = bare(text)
    both = readings if plain == text else [*readings, *readings_of(plain)]
    made = dict.fromkeys(map(spelled, both))
    return [one for one in made if is_marked(one) or "arguments" in one or "parameters" in one or "function" in one]


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


_BRACKET = re.compile(r"[{\[]")
_HIDES = re.compile(r"'|#|//|/\*")


def _in_objects(text: str) -> Iterator[QuotedCall]:
    """The JSON objects with a name and arguments, in any dialect, fence or prose.

    Strings and comments of a value may hold such an object too, so the inside of a value is examined again, unless it
    has no comments and no quotes but those of its strings.
    """
    done = spent = 0
    for bracket in _BRACKET.finditer(text):
        start = bracket.start()
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


# --------------------------------------------------------------------------------------------------------- decodings

_ROUNDS = 2


def readings_of(text: str) -> list[str]:
    """The text, and the results of up to two rounds of decoding, without duplicates."""
    found = {text: None}
    latest = [text]
    for _ in range(_ROUNDS):
        made = [decode(one) for one in latest for decode in _DECODERS]
        latest = [one for one in dict.fromkeys(made) if one not in found]
        found.update(dict.fromkeys(latest))
    return list(found)


# what `html.unescape` decodes
_ENTITY = re.compile(r"&(?:#[0-9]+;?|#[xX][0-9a-fA-F]+;?|[^\t\n\f <&#;]{1,32};?)")
_PERCENT = re.compile(r"(?:%[0-9a-fA-F]{2})+")
_MAIL = re.compile(r"=\r?\n|((?:=[0-9a-fA-F]{2})+)")
_ESCAPE = re.compile(r"""\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|([nrtbf])|(["'\\/<>]))""")
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}


def _without_entities(text: str) -> str:
    return _ENTITY.sub(lambda entity: _character(entity[0]), text) if "&" in text else text


def _named_character(entity: str) -> str:
    from html import unescape  # has two thousand names, which few texts need

    return unescape(entity)


_character = Remembered(_named_character).__getitem__


def _without_percent(text: str) -> str:
    if "%" not in text:
        return text
    return _PERCENT.sub(lambda run: bytes.fromhex(run[0].replace("%", "")).decode("utf-8", "replace"), text)


def _without_form(text: str) -> str:
    """Percent signs as in forms and queries."""
    return _without_percent(text.replace("+", " ")) if "%" in text and "+" in text else text


def _without_mail(text: str) -> str:
    """Quoted-printable, as in mails."""
    if "=3D" not in text and "=3d" not in text:  # an encoded "=", which each tag with a type or a name has
        return text
    return _MAIL.sub(_from_mail, text)


def _from_mail(run: re.Match[str]) -> str:
    return bytes.fromhex((run[1] or "").replace("=", "")).decode("utf-8", "replace")


_CLOSING = "＞﹥›〉⟩❯"  # noqa: RUF001 - the subject
_LOOK_ALIKES = QUOTES | str.maketrans(
    {chr(0xFF00 + code - 0x20): chr(code) for code in range(0x21, 0x7F)}
    | dict.fromkeys(BRACKETS, "<") | dict.fromkeys(_CLOSING, ">")
    | dict.fromkeys("\xa0\u2002\u2003\u2009\u202f\u3000", " ") | dict.fromkeys(HIDDEN)
)


_FEW = 20  # characters that are replaced one by one; with as many a translation is as fast


def _without_look_alikes(text: str) -> str:
    if text.isascii():
        return text
    present = [one for one in set(text) if ord(one) in _LOOK_ALIKES]
    if len(present) > _FEW:
        return text.translate(_LOOK_ALIKES)
    for one in present:
        text = text.replace(one, _LOOK_ALIKES[ord(one)] or "")
    return text


def _without_escapes(text: str) -> str:
    if "\\" not in text:
        return text
    decoded = _ESCAPE.sub(_unescaped, text)
    # joins the halves of a character
    return decoded.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if "\\u" in text else decoded


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2]
    return chr(int(code, 16)) if code else _LETTERS[escape[3]] if escape[3] else escape[4]


_ENCODED_SIGN = (
    r"(?<=&)(?:amp;)*(?:{name};?|#0*{decimal};?|#x0*{hex};?)|(?<=%)(?:25)*{hex}|(?<==){hex}"
    r"|(?<=\\)\\{{0,3}}(?:{sign}|u00{hex}|x{hex})"
)


@cache
def _marks(*, is_mail: bool) -> re.Pattern[str]:
    """What is, or becomes, a `<` or a `>`. All begin with one character, for which a search is fast."""
    opening = _ENCODED_SIGN.format(name="(?:lt|lang|langle|lsaquo)", decimal="60", hex="3c", sign="<")
    closing = _ENCODED_SIGN.format(name="(?:gt|rang|rangle|rsaquo)", decimal="62", hex="3e", sign=">")
    return re.compile(
        rf"[<>\\&%{'=' if is_mail else ''}{BRACKETS}{_CLOSING}]"
        rf"(?:(?<=[>{_CLOSING}])|((?<=[<{BRACKETS}])|{opening})|{closing})", re.IGNORECASE
    )


_TAGS = "|".join(("block", "function", "parameter", *CORE_TYPES))
_CALLING_TAG = re.compile(rf"<\s*+/?\s*+(?:{_TAGS})\b", re.IGNORECASE)
_ENCODED = re.compile(r"[&%\\=]|[^\x00-\x7f]")
#: the beginning of a tag that no decoding turns into one of those
_OTHER_TAG = re.compile(rf"<\s*+/?\s*+(?!(?:{_TAGS})\b)[a-z]++(?=[\s/>])", re.IGNORECASE)


def _with_plain_tags(text: str) -> str:
    """The text with only its tags decoded, since a model may decode nothing else."""
    is_mail = "=3D" in text or "=3d" in text
    if not is_mail and "&" not in text and "%" not in text and "\\" not in text and text.isascii():
        return text
    decoded = _decoded_of_mail if is_mail else _decoded
    made: list[str] = []
    at, opening = 0, None
    for mark in _marks(is_mail=is_mail).finditer(text):
        if mark.lastindex is not None:
            opening = None if _OTHER_TAG.match(text, mark.start()) else mark.start()
        elif opening is not None and _ENCODED.search(text, opening, mark.end()):
            tag = decoded(text[opening : mark.end()])
            if _CALLING_TAG.match(tag):
                made += (text[at:opening], tag)
                at = mark.end()
            opening = None
    return "".join((*made, text[at:])) if made else text


def _decoded_tag(tag: str, *, is_mail: bool) -> str:
    if is_mail:
        tag = _MAIL.sub(_from_mail, tag)
    for _ in range(_ROUNDS):
        for decode in (_without_entities, _without_form, _without_percent, _without_escapes, _without_look_alikes):
            tag = decode(tag)
    return tag


_decoded = Remembered(partial(_decoded_tag, is_mail=False)).__getitem__
_decoded_of_mail = Remembered(partial(_decoded_tag, is_mail=True)).__getitem__

_DECODERS: tuple[Callable[[str], str], ...] = (
    _with_plain_tags, _without_entities, _without_percent, _without_escapes, _without_form, _without_mail,
    _without_look_alikes,
)
