"""Looks for calls in untrusted text, by its letters and digits alone, however tools and models have rewritten it.

Markdown escapes an underscore, a terminal colours a word, mail quotes a line, a model tidies all of it up, but letters
and digits stay. `quotations` reads calls as they are written, so that parameters in another order or form make the same
call; here what is between letters does not count, so that a rewritten call is the same. The text is decoded as far as
it goes and so are a call's values, so it does not matter what of it the model decoded. Linear in the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from unicodedata import normalize

from kernai.blocks.decodings import all_decoded, shows_call
from kernai.blocks.grammar import Remembered

_MOST_MARKS = 200  # of one call in one text; with more of them the text was made to hide something
_ANSI = re.compile(r"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|\][^\x07\x1b]*+(?:\x07|\x1b\\)?|[@-Z\\^_])")
_MARKUP = r"</?(?:[abipsu]|br|code|div|em|font|kbd|li|mark|pre|samp|span|strong|su[bp]|t[drt]|wbr)\b[^<>]*+>"
_INLINE = re.compile(_MARKUP, re.IGNORECASE)
_WITHIN_A_WORD = re.compile(
    r"<(?<=\w<)/?(?:[bisu]|code|em|font|kbd|mark|samp|span|strong|su[bp]|tt|wbr)\b[^<>]*+>"
    rf"(?:{_MARKUP}){{0,3}}(?=\w)", re.IGNORECASE
)
_NUMBERED = re.compile(r"^[ \t>+|-]*+[0-9]{1,6}+(?:[ \t]*+[:.)|]|\t| {2,})", re.MULTILINE)
#: `<function=`, with anything between the letters but letters
_FUNCTION = re.compile("<" + "".join(rf"[\W_]{{0,20}}+{one}" for one in "function") + r"[\W_]{0,20}?=", re.IGNORECASE)
#: one of these is in every text that spells a call as a block: how `spelled` writes its tag
_MARKS = ("blocktype", "blockname", "typecommand", "commandname", "toolcall", "tooluse", "invokename")
_NO_LETTER = re.compile(r"[\W_]+")
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")
_PUNCTUATION = bytes(code for code in range(0x80) if not chr(code).isalnum())


class Look(NamedTuple):
    """What was found in a text that may hold calls."""

    text: str
    spellings: list[str]
    """What `spelled` gives of it, as it is and decoded: what may spell a call."""
    shows_call: bool
    """Whether a call may also be in it in a form that `quoted_calls` reads."""


def look_at(text: str) -> Look | None:
    """None if no call is in the text."""
    plain = all_decoded(text)
    shows = any(map(shows_call, plain))
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
    # as bytes: a megabyte in a millisecond
    text = text.encode("utf-8", "surrogatepass").translate(None, _PUNCTUATION).decode("utf-8", "surrogatepass")
    return (text if text.isascii() else _BEYOND_ASCII.sub(lambda run: _letters_of(run[0]), text)).lower()


_letters_of = Remembered(lambda run: _NO_LETTER.sub("", normalize("NFKD", run))).__getitem__


def bare(text: str) -> str:
    """A text without what tools put into it: colours, inline markup, the numbers of its lines."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "<" in text:
        text = _INLINE.sub("", text)
    return _NUMBERED.sub("", text)


def _is_marked(spelling: str) -> bool:
    """Whether what `spelled` gave may hold the tag of a block, or the keys of a call in JSON."""
    if "name" in spelling and ("arguments" in spelling or "parameters" in spelling):
        return True
    return any(mark in spelling for mark in _MARKS)


def is_spelled_in(spelling: str, type: str, name: str | None, content: str) -> bool:
    """Whether what `spelled` gave of a text holds this call: its tag, and behind it every value of its content."""
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
    """A value as it is, and as it is in a text that was decoded."""
    as_it_is = spelled(value)
    return [as_it_is, *(spelled(one) or as_it_is for one in all_decoded(value))]


def _marks(spelling: str, type: str, name: str) -> Iterator[int]:
    """Where the tag of such a call ends, wherever it is."""
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
    """The names and values of a JSON object, or the text itself."""
    try:
        waiting = [json.loads(content)]
    except (ValueError, RecursionError):
        return [content]
    found: list[str] = []
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            found += one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
        else:
            found.append(one if isinstance(one, str) else json.dumps(one))
    return found
