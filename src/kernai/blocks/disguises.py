"""Texts in which tags are written in another way than as tags: encoded, or in characters that look like others.

To read them takes a few looks at the whole text for each encoding (`decodings`), so `may_hold_calls` says first, at a
look or two, whether a reading can hold a call. Patterns that few texts need are compiled by the first that does.
"""

from __future__ import annotations

import re
from functools import cache

#: what the names of tags that call something begin with
_CALLING = ("block", "command", "final", "plan", "function", "invoke", "antml")


def may_hold_calls(text: str) -> bool:
    """Whether a text is worth a look: it may be asked of every text, and most pages without a call are not."""
    if not (  # each by itself: this is asked of every result
        "<" in text or "&" in text or "%" in text or "\\" in text or "name" in text or "CALLS" in text or "=3" in text
    ) and text.isascii():
        return False  # most short ones, of which more is not asked
    return names_arguments(text) or "CALLS" in text or may_hold_tags(text)


def names_arguments(text: str) -> bool:
    """Whether it may hold a call in JSON."""
    return "name" in text and ("arguments" in text or "parameters" in text or "tool_use" in text)


def may_hold_tags(text: str) -> bool:
    """Whether a reading of the text may hold a tag of a block that calls something.

    It is sure of every text of which one does: nobody needs an encoding for letters and digits, and without one the
    name of the block stands there in letters, behind something that may become a `<`.
    """
    may_begin = "<" in text or "&" in text or "%" in text or "\\" in text
    if ("3D" in text or "3d" in text) and ("=3D" in text or "=3d" in text or _mail_letter().search(text)):
        return True  # an encoded `=` is what tells mail from other texts
    if not text.isascii():
        if re.search(_HIDDEN_LETTER, text):
            return True
        may_begin = may_begin or any(start in text for start in _STARTS)
    if not may_begin:
        return False
    if any(mark in text and disguise.search(text) for mark, disguise in _disguised().items()):
        return True
    if "lang" in text and any(name in text for name in _LANG):
        return True
    return "lsaquo" in text or _named().search(text) is not None or _opening().search(text) is not None


#: what looks like `<`, and what is not seen
BRACKETS = "＜﹤‹〈⟨❮"  # noqa: RUF001 - the subject
HIDDEN = "\xad\u200b\u200c\u200d\u2060\ufeff"


_CASES = {"i": "iIıİ", "k": "kKK"}  # noqa: RUF001 - others that are the same in another case
_CUT_OFF = r"[&%+]|\\(?!/)"  # something encoded


def _beginning_of(word: str) -> str:
    """A pattern for a word, or for a part of it behind which something encoded stands.

    It spells out both cases of each letter: a pattern that ignores the case takes several times as long.
    """
    pattern = ""
    for letter in reversed(word[1:]):
        pattern = f"(?:[{_CASES.get(letter, letter + letter.upper())}]{pattern}|{_CUT_OFF})"
    return f"[{word[0]}{word[0].upper()}]{pattern}"


#: without any of which, and any of "<&%\\", nothing becomes a `<`
_STARTS = f"{BRACKETS}＆％＼"  # noqa: RUF001 - the subject
#: what may become a `<`; each begins with one character, for which a search looks fast
_LESS_THAN = (
    "<", "l[tT][;；]?", "L[tT][;；]?", "60[;；]?", "3[bBcC][;；]?", *BRACKETS,  # noqa: RUF001 - the subject
    "%[89abAB][0-9a-fA-F]", "25[89abAB][0-9a-fA-F]",
)


@cache  # milliseconds, which an import need not wait for
def _opening() -> re.Pattern[str]:
    """Something that may become a `<`, and what may become the name of a block that calls something."""
    names = "|".join(map(_beginning_of, _CALLING))
    return re.compile(rf"(?:{'|'.join(_LESS_THAN)})\s*+(?:{names}|{_CUT_OFF})")


_LETTER = r"(?:3[0-9]|[46][1-9a-f]|[57][0-9a])"  # or a digit, in hexadecimal
#: look-alikes of brackets and letters, and what is not seen
_CODES = "ff[0-5][0-9a-f]|fe64|2039|3008|27e8|276e|00ad|200[bcd]|2060|feff"
#: behind a `#`: an `&` stands before it, in whatever encoding
_AFTER_AND = "(?:(?<=&#)|(?<=amp#)|(?<=amp;#)|(?<=26#)|(?<=26;#)|(?<=38#)|(?<=38;#))"
_UTF8 = r"ef%(?:25)*b[bcd]|e2%(?:25)*(?:80%(?:25)*8[bcd]|81%(?:25)*a0)|c2%(?:25)*ad"


@cache
def _mail_letter() -> re.Pattern[str]:
    """A letter as mail encodes what it has to, behind a `=` in whatever encoding."""
    equals = (
        rf"(?<=[=＝])|(?<=%)(?:25)*+3d|(?<=&)equals;?|(?<=#){_AFTER_AND}(?:0*+61|x0*+3d);?"  # noqa: RUF001 - the subject
    )
    return re.compile(rf"[=＝%&#](?:{equals}){_LETTER}", re.IGNORECASE)  # noqa: RUF001 - the subject


@cache
def _disguised() -> dict[str, re.Pattern[str]]:
    """Such, letters and the marks of encodings, in an encoding that they do not need; by the mark that begins it."""
    patterns = {
        "%": rf"%(?:25)*(?:{_LETTER}|5c(?:u00|x){_LETTER}|23x?[0-9]|{_UTF8})",
        "#": rf"#{_AFTER_AND}(?:x0*+(?:{_LETTER}|2[35]|5c|ad|{_CODES})"
        r"|0*+(?:3[57]|92|4[89]|5[0-7]|6[5-9]|[78][0-9]|90|9[7-9]|1[01][0-9]|12[0-2])(?![0-9])"
        r"|0*+(?:65[123][0-9]{2}|8249|12296|10216|10094|173|820[345]|8288))",
        "\\": rf"\\(?:u00|x)(?:{_LETTER}|2[35]|5c)|\\u(?:{_CODES})",
    }
    return {mark: re.compile(pattern, re.IGNORECASE) for mark, pattern in patterns.items()}


_LANG = ("lang;", "lang&", "lang%", "lang\\", "lang；", "langle")  # noqa: RUF001 - the subject


@cache
def _named() -> re.Pattern[str]:
    """The end of a name of something that letters, digits and a `<` do not need."""
    names = ("percnt", "bsol", "num", "racket", "shy", "zwj", "zwnj", "ZeroWidthSpace", "NoBreak")
    # with a look at the last two letters, which spares most places the rest
    return re.compile(f";(?<=[acehnouw][ejklmty];)(?:{'|'.join(f'(?<={name};)' for name in names)})")


_HIDDEN_LETTER = f"[{HIDDEN}０-９Ａ-Ｚａ-ｚ＃＆％＼]"  # noqa: RUF001 - the subject
