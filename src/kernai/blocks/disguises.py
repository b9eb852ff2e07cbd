"""A quick check for calls in untrusted text, in which tags may be encoded, or written in similar characters.

Decoding scans the whole text several times for each encoding (`quotations`), so `may_hold_calls` decides first, in one
scan or two, whether a decoded text could contain a call. Patterns that few texts need are compiled on first use.
"""

from __future__ import annotations

import re
from functools import cache

#: how the names of tags that call something begin
_CALLING = ("block", "command", "final", "plan", "function", "invoke", "antml")


def may_hold_calls(text: str) -> bool:
    """Whether a text needs a closer look. Cheap enough for every text; most pages without a call need none."""
    if not (  # written out, since every result is checked
        "<" in text or "&" in text or "%" in text or "\\" in text or "name" in text or "CALLS" in text or "=3" in text
    ) and text.isascii():
        return False  # most short texts end here
    from kernai.blocks.spellings import may_spell_a_call  # the only one here that loads patterns of its own

    return names_arguments(text) or "CALLS" in text or may_hold_tags(text) or may_spell_a_call(text)


def names_arguments(text: str) -> bool:
    """Whether it may hold a call in JSON."""
    return "name" in text and ("arguments" in text or "parameters" in text or "tool_use" in text)


def may_hold_tags(text: str) -> bool:
    """Whether the text, once decoded, may hold a tag of a block that calls something. Misses none.

    No encoding needs to encode letters and digits, so either some are encoded needlessly, or the name of the block is
    in plain letters, after something that may become a `<`.
    """
    may_begin = "<" in text or "&" in text or "%" in text or "\\" in text
    if ("3D" in text or "3d" in text) and ("=3D" in text or "=3d" in text or _mail_letter().search(text)):
        return True  # only mail encodes a `=`
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


#: what looks like `<`, and what is invisible
BRACKETS = "＜﹤‹〈⟨❮"  # noqa: RUF001 - the subject
HIDDEN = "\xad\u200b\u200c\u200d\u2060\ufeff"
#: quotation marks that become plain ones
QUOTES = str.maketrans(dict.fromkeys("“”„‟″«»", '"') | dict.fromkeys("‘’‚‛′", "'"))  # noqa: RUF001 - the subject

_CASES = {"i": "iIıİ", "k": "kKK"}  # noqa: RUF001 - letters that are equal when case is ignored
_CUT_OFF = r"[&%+]|\\(?!/)"  # something encoded


def _beginning_of(word: str) -> str:
    """A pattern for a word, or for its beginning if something encoded follows.

    It spells out both cases of each letter, since a pattern that ignores case takes several times as long.
    """
    pattern = ""
    for letter in reversed(word[1:]):
        pattern = f"(?:[{_CASES.get(letter, letter + letter.upper())}]{pattern}|{_CUT_OFF})"
    return f"[{word[0]}{word[0].upper()}]{pattern}"


#: without any of these, and of "<&%\\", nothing becomes a `<`
_STARTS = f"{BRACKETS}＆％＼"  # noqa: RUF001 - the subject
#: what may become a `<`; each begins with one character, for which a search is fast
_LESS_THAN = (
    "<", "l[tT][;；]?", "L[tT][;；]?", "60[;；]?", "3[bBcC][;；]?", *BRACKETS,  # noqa: RUF001 - the subject
    "%[89abAB][0-9a-fA-F]", "25[89abAB][0-9a-fA-F]",
)


@cache  # compiling takes milliseconds, which imports should not
def _opening() -> re.Pattern[str]:
    """Something that may become a `<`, followed by what may become the name of a block that calls something."""
    names = "|".join(map(_beginning_of, _CALLING))
    return re.compile(rf"(?:{'|'.join(_LESS_THAN)})\s*+(?:{names}|{_CUT_OFF})")


_LETTER = r"(?:3[0-9]|[46][1-9a-f]|[57][0-9a])"  # or a digit, in hexadecimal
#: look-alikes of brackets and letters, and invisible characters
_CODES = "ff[0-5][0-9a-f]|fe64|2039|3008|27e8|276e|00ad|200[bcd]|2060|feff"
#: after a `#` that follows an `&`, in whatever encoding
_AFTER_AND = "(?:(?<=&#)|(?<=amp#)|(?<=amp;#)|(?<=26#)|(?<=26;#)|(?<=38#)|(?<=38;#))"
_UTF8 = r"ef%(?:25)*b[bcd]|e2%(?:25)*(?:80%(?:25)*8[bcd]|81%(?:25)*a0)|c2%(?:25)*ad"


@cache
def _mail_letter() -> re.Pattern[str]:
    """A letter that is encoded as in mail, after a `=` in whatever encoding."""
    equals = (
        rf"(?<=[=＝])|(?<=%)(?:25)*+3d|(?<=&)equals;?|(?<=#){_AFTER_AND}(?:0*+61|x0*+3d);?"  # noqa: RUF001 - the subject
    )
    return re.compile(rf"[=＝%&#](?:{equals}){_LETTER}", re.IGNORECASE)  # noqa: RUF001 - the subject


@cache
def _disguised() -> dict[str, re.Pattern[str]]:
    """Letters, look-alikes and the marks of encodings, needlessly encoded; by the mark that begins them."""
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
    """The end of an entity's name that letters, digits and a `<` do not need."""
    names = ("percnt", "bsol", "num", "racket", "shy", "zwj", "zwnj", "ZeroWidthSpace", "NoBreak")
    # the last two letters are checked first, which rules out most places
    return re.compile(f";(?<=[acehnouw][ejklmty];)(?:{'|'.join(f'(?<={name};)' for name in names)})")


_HIDDEN_LETTER = f"[{HIDDEN}０-９Ａ-Ｚａ-ｚ＃＆％＼]"  # noqa: RUF001 - the subject
