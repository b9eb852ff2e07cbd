"""Undoes what tools and models do to text: entities, percent signs, escapes, mail, similar characters.

A model that "cleans up" what it copies decodes some of it and leaves the rest. `readings_of` returns the texts that the
model may have written. This is exact, but takes one text for each order of decodings. `decoded` undoes all encodings at
once, for a fraction of the cost; readings are made only if its result shows a call. It may miss one whose encodings cut
each other apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial

from kernai.blocks.grammar import CORE_TYPES, Remembered

#: characters that look like `<`, and invisible characters
_BRACKETS = "＜﹤‹〈⟨❮"  # noqa: RUF001 - similar characters on purpose
_HIDDEN = "\xad\u200b\u200c\u200d\u2060\ufeff"
#: quotation marks that become plain ones
QUOTES = str.maketrans(dict.fromkeys("“”„‟″«»", '"') | dict.fromkeys("‘’‚‛′", "'"))  # noqa: RUF001 - on purpose

# ---------------------------------------------------------------------------------------------- everything at once

_MOST_ROUNDS = 8
#: Markdown's backslashes before a sign, and all but the last of several backslashes, to save rounds
_BEFORE_A_SIGN = re.compile(r"\\\\*(?=[!-$'-/:-<>-@\[-`{-~])")
_BEFORE_A_CODE = re.compile(r"\\(?<!\\\\)\\*+(?=[%=][0-9a-fA-F]{2}|&\\?#?\w{2,32}\\?;)")
_TAG = re.compile(r"<\s*+(?:(?:block|command|final|plan)[\s+/>]|function=|(?:antml:)?invoke[\s+])", re.IGNORECASE)
#: what follows a key in JSON: a comment, or the beginning of a value that is a text or an object; `+` is a form's space
_VALUE = r"""["']?[\s+]*+(?:[#/]|:[\s+]*+["'{#/])"""
_NAME, *_ARGUMENTS = (  # each begins with plain characters, so it is found fast
    re.compile(rf"{key}(?<![\w$-]{key}){end}")
    for key, end in (("name", _VALUE), ("arguments", _VALUE), ("parameters", _VALUE), ("tool_use", "[\"']"))
)


def decoded(text: str, *, is_mail: bool = False) -> str:
    """The text with all encodings undone, even if it was encoded several times."""
    for _ in range(_MOST_ROUNDS):
        before = text
        text = _BEFORE_A_SIGN.sub("", text)
        if is_mail:
            text = _MAIL.sub(_from_mail, text)
        # entities last: their `;` may be encoded too, and would remain if an entity that needs none were decoded first
        for decode in (_without_escapes, _without_form, _without_percent, _without_look_alikes, _without_entities):
            text = decode(text)
        if text == before:
            break
    return text


def all_decoded(text: str) -> list[str]:
    """The text with all encodings undone, once for each way in which it may be encoded: as mail, say."""
    made = [decoded(text)]
    # `\%6e` is an `n` with Markdown's backslash before it, or an encoded `\n`
    unmarked = _BEFORE_A_CODE.sub("", text)
    if unmarked != text:
        made.append(decoded(unmarked))
    if any(map(_may_be_mail, made)):
        made += [decoded(one, is_mail=True) for one in dict.fromkeys((text, unmarked))]
    return made


def has_keys(text: str) -> bool:
    """Whether a text has the keys of a call in JSON."""
    return any(key.search(text) is not None for key in _ARGUMENTS) and _NAME.search(text) is not None


def has_tags(text: str) -> bool:
    """Whether a text has the tag of a call, or the mark that one dialect has instead of a tag."""
    return _TAG.search(text) is not None or "[TOOL_CALLS]" in text


# -------------------------------------------------------------------------------------------------------- readings

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


_LONGEST_ENTITY = 640  # the digits that Python converts at least
# everything that `html.unescape` decodes
_ENTITY = re.compile(r"&(?:#[0-9]+;?|#[xX][0-9a-fA-F]+;?|[^\t\n\f <&#;]{1,32};?)")
_PERCENT = re.compile(r"%[0-9a-fA-F]{2}(?:%[0-9a-fA-F]{2})*")  # begins with a plain character, so it is found fast
_MAIL = re.compile(r"=\r?\n|((?:=[0-9a-fA-F]{2})+)")
_ESCAPE = re.compile(r"""\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|([nrtbf])|(["'\\/<>]))""")
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}


def _without_entities(text: str) -> str:
    return _ENTITY.sub(lambda entity: _character(entity[0]), text) if "&" in text else text


def _named_character(entity: str) -> str:
    from html import unescape  # loads two thousand names, which few texts need

    return unescape(entity) if len(entity) < _LONGEST_ENTITY else "\ufffd"


_character = Remembered(_named_character).__getitem__


def _without_percent(text: str) -> str:
    if "%" not in text:
        return text
    return _PERCENT.sub(lambda run: bytes.fromhex(run[0].replace("%", "")).decode("utf-8", "replace"), text)


def _without_form(text: str) -> str:
    """Decodes percent signs as in forms and queries, where a `+` is a space."""
    return _without_percent(text.replace("+", " ")) if "%" in text and "+" in text else text


def _without_mail(text: str) -> str:
    """Decodes quoted-printable text, as in mails."""
    return _MAIL.sub(_from_mail, text) if _may_be_mail(text) else text


def _may_be_mail(text: str) -> bool:
    return "=3D" in text or "=3d" in text  # an encoded "="; each tag with a type or a name has one


def _from_mail(run: re.Match[str]) -> str:
    return bytes.fromhex((run[1] or "").replace("=", "")).decode("utf-8", "replace")


_CLOSING = "＞﹥›〉⟩❯"  # noqa: RUF001 - similar characters on purpose
_LOOK_ALIKES = QUOTES | str.maketrans(
    {chr(0xFF00 + code - 0x20): chr(code) for code in range(0x21, 0x7F)}
    | dict.fromkeys(_BRACKETS, "<") | dict.fromkeys(_CLOSING, ">")
    | dict.fromkeys("\xa0\u2002\u2003\u2009\u202f\u3000", " ") | dict.fromkeys(_HIDDEN, "")
)
_LOOK_ALIKE = re.compile(f"[{''.join(map(re.escape, map(chr, _LOOK_ALIKES)))}\U000e0020-\U000e007e]")
_LOOK_ALIKES |= {0xE0000 + code: chr(code) for code in range(0x20, 0x7F)}  # tag characters, an invisible ASCII


def _without_look_alikes(text: str) -> str:
    return text if text.isascii() else _LOOK_ALIKE.sub(lambda one: _LOOK_ALIKES[ord(one[0])], text)


def _without_escapes(text: str) -> str:
    if "\\" not in text:
        return text
    decoded = _ESCAPE.sub(_unescaped, text)
    # joins the two surrogates of a character
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
    """Matches everything that is, or is decoded to, a `<` or a `>`. Begins with one set of characters, to be fast."""
    opening = _ENCODED_SIGN.format(name="(?:lt|lang|langle|lsaquo)", decimal="60", hex="3c", sign="<")
    closing = _ENCODED_SIGN.format(name="(?:gt|rang|rangle|rsaquo)", decimal="62", hex="3e", sign=">")
    return re.compile(
        rf"[<>\\&%{'=' if is_mail else ''}{_BRACKETS}{_CLOSING}]"
        rf"(?:(?<=[>{_CLOSING}])|((?<=[<{_BRACKETS}])|{opening})|{closing})", re.IGNORECASE
    )


_TAGS = "|".join(("block", "function", "parameter", *CORE_TYPES))
_CALLING_TAG = re.compile(rf"<\s*+/?\s*+(?:{_TAGS})\b", re.IGNORECASE)
_ENCODED = re.compile(r"[&%\\=]|[^\x00-\x7f]")
#: the beginning of a tag that no decoding turns into one of `_TAGS`
_OTHER_TAG = re.compile(rf"<\s*+/?\s*+(?!(?:{_TAGS})\b)[a-z]++(?=[\s/>])", re.IGNORECASE)


def _with_plain_tags(text: str) -> str:
    """The text with only its tags decoded, since a model may decode only these."""
    is_mail = _may_be_mail(text)
    if not is_mail and "&" not in text and "%" not in text and "\\" not in text and text.isascii():
        return text
    decode = _decoded_of_mail if is_mail else _decoded
    made: list[str] = []
    at, opening, plain = 0, None, 0  # up to `plain`, the tag contains nothing encoded
    for mark in _marks(is_mail=is_mail).finditer(text):
        if mark.lastindex is not None:
            opening = None if _OTHER_TAG.match(text, mark.start()) else mark.start()
            plain = mark.start()
        elif opening is not None and not _ENCODED.search(text, plain, mark.end()):
            plain = mark.end()
        elif opening is not None:
            tag = decode(text[opening : mark.end()])
            if _CALLING_TAG.match(tag):
                made += (text[at:opening], tag)
                at = mark.end()
            opening = None
    return "".join((*made, text[at:])) if made else text


_decoded = Remembered(decoded).__getitem__
_decoded_of_mail = Remembered(partial(decoded, is_mail=True)).__getitem__

_DECODERS: tuple[Callable[[str], str], ...] = (
    _with_plain_tags, _without_entities, _without_percent, _without_escapes, _without_form, _without_mail,
    _without_look_alikes,
)
