"""Texts in which tags are written in another way than as tags: encoded, or in characters that look like others.

`readings` is what becomes of a text when such are read. It costs a few looks at the whole text for each encoding that
stands in it, so `may_hold_calls` says first, at a look or two, whether any of them can hold a call.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

_ROUNDS = 2
#: what the names of tags that call something begin with
_CALLING = ("block", "command", "final", "plan", "function")


def readings(text: str) -> list[str]:
    """The text, and what becomes of it in up to two rounds of decoding, each once."""
    found = {text: None}
    latest = [text]
    for _ in range(_ROUNDS):
        made = [decode(one) for one in latest for decode in _DECODERS]
        latest = [one for one in dict.fromkeys(made) if one not in found]
        found.update(dict.fromkeys(latest))
    return list(found)


def may_hold_calls(text: str) -> bool:
    """Whether a text is worth a look: it may be asked of every text, and most pages without a call are not."""
    if ("name" in text and names_arguments(text)) or "CALLS" in text:
        return True
    if (
        "<" not in text and "&" not in text and "%" not in text and "\\" not in text and "=3" not in text
        and text.isascii()
    ):
        return False  # most short ones, of which more is not asked
    return may_hold_tags(text)


def names_arguments(text: str) -> bool:
    """Whether it may hold a call in JSON."""
    return "name" in text and ("arguments" in text or "parameters" in text)


def may_hold_tags(text: str) -> bool:
    """Whether a reading of the text may hold a tag of a block that calls something.

    It is sure of every text of which one does: nobody needs an encoding for letters and digits, and without one the
    name of the block stands there in letters, behind something that may become a `<`.
    """
    may_begin = "<" in text or "&" in text or "%" in text or "\\" in text
    if "=3D" in text or "=3d" in text:
        return True
    if not text.isascii():
        if _HIDDEN_LETTER.search(text):
            return True
        may_begin = may_begin or any(start in text for start in _STARTS)
    if not may_begin:
        return False
    if any(mark in text and disguise.search(text) for mark, disguise in _disguised().items()):
        return True
    return any(name in text for name in _NAMES) or _opening().search(text) is not None


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
QUOTES = str.maketrans(dict.fromkeys("“”„‟″«»", '"') | dict.fromkeys("‘’‚‛′", "'"))  # noqa: RUF001 - the subject
_LOOK_ALIKES = QUOTES | str.maketrans(
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


#: without any of which, and any of "<&%\\", nothing becomes a `<`
_STARTS = f"{_BRACKETS}＆％＼"  # noqa: RUF001 - the subject
_ENDS = ("<", "lt", "lt;", "60", "60;", "3[bc]", "3[bc];", f"[{_BRACKETS}]", "%[89ab][0-9a-f]", "25[89ab][0-9a-f]")


@cache  # to compile it takes milliseconds, which an import need not wait for
def _opening() -> re.Pattern[str]:
    """The end of something that may become a `<`, and what may become the name of a block that calls something."""
    return re.compile(
        rf"[<;t0-9a-f{_BRACKETS}](?=\s*+(?:{'|'.join(map(_beginning_of, _CALLING))}))"
        rf"(?:{'|'.join(f'(?<={end})' for end in _ENDS)})", re.IGNORECASE
    )


_LETTER = r"(?:3[0-9]|[46][1-9a-f]|[57][0-9a])"  # or a digit, in hexadecimal
#: look-alikes of brackets and letters, and what is not seen
_CODES = "ff[0-5][0-9a-f]|fe64|2039|3008|27e8|276e|00ad|200[bcd]|2060|feff"
_UTF8 = r"ef%(?:25)*b[bcd]|e2%(?:25)*(?:80%(?:25)*8[bcd]|81%(?:25)*a0)|c2%(?:25)*ad"


@cache
def _disguised() -> dict[str, re.Pattern[str]]:
    """Such, letters and the marks of encodings, in an encoding that they do not need; by the mark that begins it."""
    patterns = {
        "%": rf"%(?:25)*(?:{_LETTER}|5c(?:u00|x){_LETTER}|23x?[0-9]|{_UTF8})",
        "#": rf"#(?:(?<=&#)|(?<=amp;#)|(?<=26#)|(?<=38;#))(?:x0*+(?:{_LETTER}|2[35]|5c|ad|{_CODES})"
        r"|0*+(?:3[57]|92|4[89]|5[0-7]|6[5-9]|[78][0-9]|90|9[7-9]|1[01][0-9]|12[0-2])(?![0-9])"
        r"|0*+(?:65[123][0-9]{2}|8249|12296|10216|10094|173|820[345]|8288))",
        "\\": rf"\\(?:u00|x)(?:{_LETTER}|2[35]|5c)|\\u(?:{_CODES})",
    }
    return {mark: re.compile(pattern, re.IGNORECASE) for mark, pattern in patterns.items()}


_NAMES = (
    "percnt;", "bsol;", "num;", "lang;", "langle;", "lsaquo;", "racket;", "shy;", "zwj;", "zwnj;",
    "ZeroWidthSpace;", "NoBreak;",
)  # the same
_HIDDEN_LETTER = re.compile(f"[{_HIDDEN}０-９Ａ-Ｚａ-ｚ＆％＼]")  # noqa: RUF001 - the subject
