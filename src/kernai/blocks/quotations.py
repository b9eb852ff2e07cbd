"""The calls that a text from outside holds, in whatever form a model may copy them out of it.

A model that "cleans up" what it copies decodes entities, percent signs or JSON strings on the way, or writes plain
characters for others that look like them. So a text is read as it stands and after up to two rounds of each; at every
depth, since a call may stand in another block; and unclosed blocks too. An answer counts as a call. Calls in the
dialects count, for a correction shows them as blocks, or they are run.

All this is linear in the text. Where exactness would cost more (blocks inside one another beyond `DEEPEST`, JSON
without end), the call is known by its name alone, or any call is: the caller takes such a one for quoted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kernai.blocks import dialects
from kernai.blocks.block import Block
from kernai.blocks.dialects import Unreadable
from kernai.blocks.grammar import ASCII_SPACE, CORE_TYPES, find_end, find_opening
from kernai.blocks.json_value import BROKEN, JsonValue

DEEPEST = 16
"""How many blocks around a block are looked into."""

_MOST_FUNCTIONS = 200  # tags of one dialect whose parameters are read; of more the names are known
_ROUNDS = 2
#: blocks that call nothing
_CALLS_NOTHING = frozenset({"json", "result", "error", "media"})
_NAMELESS = frozenset({"final", "plan"})
_CALLING = ("block", "command", "final", "plan", "function")


class QuotedCall(NamedTuple):
    """A call that stands in a text. Without `content` any of that name; without `type` any at all."""

    type: str | None
    name: str | None
    content: str | None


_ANY = QuotedCall(None, None, None)
_WORDS = "|".join(("block", *CORE_TYPES, "function="))
_TAG = re.compile(rf"<\s*+(?:{_WORDS})|\[TOOL_CALLS\]", re.IGNORECASE)


def may_hold_calls(text: str) -> bool:
    """Whether a text is worth a look: it may be asked of every text, and most pages without a call are not.

    Sure for every text in which `quoted_calls` finds one: nobody needs an encoding for letters and digits, and without
    one what names a block stands there in letters, behind something that may become a `<`.
    """
    if _names_arguments(text) or "CALLS" in text or "=3D" in text or "=3d" in text:
        return True
    if not text.isascii() and _HIDDEN_LETTER.search(text):
        return True
    if not any(one in text for one in _STARTS):
        return False
    if any(mark in text and disguise.search(text) for mark, disguise in _DISGUISED.items()):
        return True
    return any(name in text for name in _NAMES) or _OPENING.search(text) is not None


def quoted_calls(text: str) -> Iterator[QuotedCall]:
    """The calls in a text, some of them perhaps more than once."""
    for reading in _readings(text):
        if _TAG.search(reading):
            yield from _in_blocks(reading)
            mended = dialects.mended_tags(reading)
            if mended != reading:
                yield from _in_blocks(mended)
            yield from _in_named_forms(reading)
        if _names_arguments(reading):
            yield from _in_objects(reading)


def _names_arguments(text: str) -> bool:
    return ("arguments" in text or "parameters" in text) and "name" in text


# ---------------------------------------------------------------------------------------------------------- readings


def _readings(text: str) -> list[str]:
    """The text, and what becomes of it in up to two rounds of decoding, each once."""
    found = {text: None}
    latest = [text]
    for _ in range(_ROUNDS):
        made = [decode(one) for one in latest for decode in _DECODERS]
        latest = [one for one in dict.fromkeys(made) if one not in found]
        found.update(dict.fromkeys(latest))
    return list(found)


_ENTITY = re.compile(r"&[#\w]")
_PERCENT = re.compile(r"(?:%[0-9a-fA-F]{2})+")
_MAIL = re.compile(r"=\r?\n|((?:=[0-9a-fA-F]{2})+)")
_ESCAPE = re.compile(r"""\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|([nrtbf])|(["'\\/]))""")
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}


def _without_entities(text: str) -> str:
    if not _ENTITY.search(text):
        return text
    from html import unescape  # two thousand names, which few texts need

    return unescape(text)


def _without_percent(text: str) -> str:
    if "%" not in text:
        return text
    return _PERCENT.sub(lambda run: bytes.fromhex(run[0].replace("%", "")).decode("utf-8", "replace"), text)


def _without_form(text: str) -> str:
    """Percent signs as forms and queries have them."""
    return _without_percent(text.replace("+", " ")) if "%" in text and "+" in text else text


def _without_mail(text: str) -> str:
    """Quoted-printable, in which mails are sent."""
    if "=3D" not in text and "=3d" not in text:  # which stands for each "=", so each tag with a type or a name has one
        return text
    return _MAIL.sub(lambda run: bytes.fromhex((run[1] or "").replace("=", "")).decode("utf-8", "replace"), text)


#: what looks like `<`
_BRACKETS = "＜﹤‹〈⟨❮"  # noqa: RUF001 - the subject
_HIDDEN = "\xad\u200b\u200c\u200d\u2060\ufeff"
_LOOK_ALIKES = dialects.QUOTES | str.maketrans(
    {chr(0xFF00 + code - 0x20): chr(code) for code in range(0x21, 0x7F)}
    | dict.fromkeys(_BRACKETS, "<") | dict.fromkeys("＞﹥›〉⟩❯", ">")  # noqa: RUF001 - as above
    | dict.fromkeys("\xa0\u2002\u2003\u2009\u202f\u3000", " ") | dict.fromkeys(_HIDDEN)
)


def _without_look_alikes(text: str) -> str:
    return text if text.isascii() else text.translate(_LOOK_ALIKES)


def _without_escapes(text: str) -> str:
    if "\\" not in text:
        return text
    decoded = _ESCAPE.sub(_unescaped, text)
    # two halves of one character
    return decoded.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if "\\u" in text else decoded


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2]
    return chr(int(code, 16)) if code else _LETTERS[escape[3]] if escape[3] else escape[4]


_DECODERS: tuple[Callable[[str], str], ...] = (
    _without_entities, _without_percent, _without_escapes, _without_form, _without_mail, _without_look_alikes,
)


def _beginning_of(word: str) -> str:
    """A pattern for a word, or for a part of it behind which something encoded stands."""
    pattern = ""
    for letter in reversed(word):
        pattern = f"(?:{letter}{pattern}|[&%+]|\\\\(?!/))"
    return pattern


#: without any of which nothing becomes a `<`
_STARTS = f"<&%\\{_BRACKETS}＆％＼"  # noqa: RUF001 - the subject
_ENDS = ("<", "lt", "lt;", "60", "60;", "3[bc]", "3[bc];", f"[{_BRACKETS}]", "%[89ab][0-9a-f]", "25[89ab][0-9a-f]")
#: the end of something that may become a `<`, and what may become the name of a block that calls something
_OPENING = re.compile(
    rf"[<;t0-9a-f{_BRACKETS}](?=\s*+(?:{'|'.join(map(_beginning_of, _CALLING))}))"
    rf"(?:{'|'.join(f'(?<={end})' for end in _ENDS)})", re.IGNORECASE
)
_LETTER = r"(?:3[0-9]|[46][1-9a-f]|[57][0-9a])"  # or a digit, in hexadecimal
#: look-alikes of brackets and letters, and what is not seen
_CODES = "ff[0-5][0-9a-f]|fe64|2039|3008|27e8|276e|00ad|200[bcd]|2060|feff"
_UTF8 = r"ef%(?:25)*+b[bcd]|e2%(?:25)*+(?:80%(?:25)*+8[bcd]|81%(?:25)*+a0)|c2%(?:25)*+ad"
#: such, letters and the marks of encodings, in an encoding that they do not need; by the mark that begins it
_DISGUISED = {
    "%": re.compile(rf"%(?:25)*+(?:{_LETTER}|5c(?:u00|x){_LETTER}|23x?[0-9]|{_UTF8})", re.IGNORECASE),
    "#": re.compile(
        rf"#(?:(?<=&#)|(?<=amp;#)|(?<=26#)|(?<=38;#))(?:x0*+(?:{_LETTER}|2[35]|5c|ad|{_CODES})"
        r"|0*+(?:3[57]|92|4[89]|5[0-7]|6[5-9]|[78][0-9]|90|9[7-9]|1[01][0-9]|12[0-2])(?![0-9])"
        r"|0*+(?:65[123][0-9]{2}|8249|12296|10216|10094|173|820[345]|8288))", re.IGNORECASE),
    "\\": re.compile(rf"\\(?:u00|x)(?:{_LETTER}|2[35]|5c)|\\u(?:{_CODES})", re.IGNORECASE),
}
_NAMES = (
    "percnt;", "bsol;", "num;", "lang;", "langle;", "lsaquo;", "racket;", "shy;", "zwj;", "zwnj;",
    "ZeroWidthSpace;", "NoBreak;",
)  # the same
_HIDDEN_LETTER = re.compile(f"[{_HIDDEN}０-９Ａ-Ｚａ-ｚ＆％＼]")  # noqa: RUF001 - the subject


# ------------------------------------------------------------------------------------------------------------- calls


def _of(block: Block) -> QuotedCall:
    named = block.name is not None and block.type not in _NAMELESS
    return QuotedCall(block.type, block.name.strip(ASCII_SPACE) if named and block.name else None, block.content)


def _in_blocks(text: str) -> Iterator[QuotedCall]:
    """Every block that calls something, wherever its opening tag stands."""
    at = 0
    around: list[int] = []  # the ends of the blocks around this place
    while (found := find_opening(text, at)) is not None:
        start, at, opening, content = found
        if opening.type in _CALLS_NOTHING:
            continue
        around = [end for end in around if end > start]
        if content is None and len(around) >= DEEPEST:
            yield _of(Block(opening.type, opening.name))._replace(content=None)
            continue
        if content is None:
            end = find_end(opening.inside, text, at).start
            if end < 0:
                end = len(text)
                yield _of(Block(opening.type, opening.name, _beginning(text, at)))
            content = text[at:end]
            around.append(end)
        yield _of(Block(opening.type, opening.name, content))


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
            yield QuotedCall("command", tag[1], None)
            continue
        try:
            yield _of(dialects.function_at(text, tag))
        except Unreadable:
            continue  # the model that copies it makes no call either
    for tag in dialects.MISTRAL.finditer(text):
        named = dialects.MISTRAL_CALL.match(text, tag.end())
        if named is not None:
            try:
                yield _of(dialects.named_block(named[1], dialects.json_at(text, named.end())[0]))
            except Unreadable:
                continue


_BRACKET = re.compile(r"[{\[]")


def _in_objects(text: str) -> Iterator[QuotedCall]:
    """The JSON objects with a name and arguments, in whatever dialect, fence or prose they stand."""
    behind = failed = 0
    for bracket in _BRACKET.finditer(text):
        if bracket.start() < behind:
            continue
        try:
            value, behind = dialects.json_at(text, bracket.start())
        except Unreadable as error:
            failed += error.reached - bracket.start()
            if failed > 20 * len(text) + 10_000:
                yield _ANY  # a text that was made to be slow
                return
            continue
        yield from _in_value(value)


def _in_value(value: Any) -> Iterator[QuotedCall]:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            try:
                called = dialects.called(one)
            except Unreadable:
                called = None
            if called is not None:
                yield _of(called)
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
