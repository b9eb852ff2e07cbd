"""Undoes what tools and models do to text: entities, percent signs, escapes, mail, similar characters.

A model that "cleans up" what it copies decodes some of it and leaves the rest. `readings_of` gives what it may have
made: exact, and so one text for each order of decodings. `decoded` undoes everything at once. It costs a fraction, and
no reading can hold a call of which nothing is left there, so it decides whether readings are made at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial

from kernai.blocks.grammar import CORE_TYPES, Remembered

#: what looks like `<`, and what is invisible
_BRACKETS = "＜﹤‹〈⟨❮"  # noqa: RUF001 - the subject
_HIDDEN = "\xad\u200b\u200c\u200d\u2060\ufeff"
#: quotation marks that become plain ones
QUOTES = str.maketrans(dict.fromkeys("“”„‟″«»", '"') | dict.fromkeys("‘’‚‛′", "'"))  # noqa: RUF001 - the subject

# ---------------------------------------------------------------------------------------------- everything at once

_MOST_ROUNDS = 8
#: backslashes of Markdown; also all but the last of several, which else took several rounds
_BEFORE_A_SIGN = re.compile(r"\\\\*(?=[!-$'-/:-<>-@\[-`{-~])")
_BEFORE_A_CODE = re.compile(r"\\(?<!\\\\)\\*+(?=[%=][0-9a-fA-F]{2}|&\\?#?\w{2,32}\\?;)")
_TAG = re.compile(r"<\s*+(?:(?:block|command|final|plan)[\s+/>]|function=|(?:antml:)?invoke[\s+])", re.IGNORECASE)
#: what follows a key in JSON: a comment, or the beginning of its value, a text or an object. In forms a `+` is a space
_VALUE = r"""["']?[\s+]*+(?:[#/]|:[\s+]*+["'{#/])"""
_NAME, *_ARGUMENTS = (  # each begins with plain characters, so it is found fast
    re.compile(rf"{key}(?<![\w$-]{key}){end}")
    for key, end in (("name", _VALUE), ("arguments", _VALUE), ("parameters", _VALUE), ("tool_use", "[\"']"))
)


def decoded(text: str, *, is_mail: bool = False) -> str:
    """The text with everything undone, be it encoded several times."""
    for _ in range(_MOST_ROUNDS):
        before = text
        text = _BEFORE_A_SIGN.sub("", text)
        if is_mail:
            text = _MAIL.sub(_from_mail, text)
        # entities last, since some need no `;` at their end, which may be encoded
        for decode in (_without_escapes, _without_form, _without_percent, _without_look_alikes, _without_entities):
            text = decode(text)
        if text == before:
            break
    return text


def all_decoded(text: str) -> list[str]:
    """The text with everything undone, in each way in which some of it may be meant: as mail, say."""
    made = [decoded(text)]
    # a backslash before `%6e` is one of Markdown, or makes `\n` of what that encodes
    unmarked = _BEFORE_A_CODE.sub("", text)
    if unmarked != text:
        made.append(decoded(unmarked))
    if any(map(_may_be_mail, made)):
        made += [decoded(one, is_mail=True) for one in dict.fromkeys((text, unmarked))]
    return made


def shows_call(plain: str) -> bool:
    """Whether there may be a call in a text of which this is left when everything is undone."""
    return has_tags(plain) or has_keys(plain)


def has_keys(text: str) -> bool:
    """Whether it holds the keys of a call in JSON."""
    return any(key.search(text) is not None for key in _ARGUMENTS) and _NAME.search(text) is not None


def has_tags(text: str) -> bool:
    """Whether it holds the tag of a call, or what one dialect writes in place of tags."""
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


# what `html.unescape` decodes
_ENTITY = re.compile(r"&(?:#[0-9]+;?|#[xX][0-9a-fA-F]+;?|[^\t\n\f <&#;]{1,32};?)")
_PERCENT = re.compile(r"%[0-9a-fA-F]{2}(?:%[0-9a-fA-F]{2})*")  # begins with a plain character, so it is found fast
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
    return _MAIL.sub(_from_mail, text) if _may_be_mail(text) else text


def _may_be_mail(text: str) -> bool:
    return "=3D" in text or "=3d" in text  # an encoded "=", which each tag with a type or a name has


def _from_mail(run: re.Match[str]) -> str:
    return bytes.fromhex((run[1] or "").replace("=", "")).decode("utf-8", "replace")


_CLOSING = "＞﹥›〉⟩❯"  # noqa: RUF001 - the subject
_LOOK_ALIKES = QUOTES | str.maketrans(
    {chr(0xFF00 + code - 0x20): chr(code) for code in range(0x21, 0x7F)}
    | dict.fromkeys(_BRACKETS, "<") | dict.fromkeys(_CLOSING, ">")
    | dict.fromkeys("\xa0\u2002\u2003\u2009\u202f\u3000", " ") | dict.fromkeys(_HIDDEN, "")
)
_LOOK_ALIKE = re.compile(f"[{''.join(map(re.escape, map(chr, _LOOK_ALIKES)))}]")


def _without_look_alikes(text: str) -> str:
    return text if text.isascii() else _LOOK_ALIKE.sub(lambda one: _LOOK_ALIKES[ord(one[0])], text)


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
        rf"[<>\\&%{'=' if is_mail else ''}{_BRACKETS}{_CLOSING}]"
        rf"(?:(?<=[>{_CLOSING}])|((?<=[<{_BRACKETS}])|{opening})|{closing})", re.IGNORECASE
    )


_TAGS = "|".join(("block", "function", "parameter", *CORE_TYPES))
_CALLING_TAG = re.compile(rf"<\s*+/?\s*+(?:{_TAGS})\b", re.IGNORECASE)
_ENCODED = re.compile(r"[&%\\=]|[^\x00-\x7f]")
#: the beginning of a tag that no decoding turns into one of those
_OTHER_TAG = re.compile(rf"<\s*+/?\s*+(?!(?:{_TAGS})\b)[a-z]++(?=[\s/>])", re.IGNORECASE)


def _with_plain_tags(text: str) -> str:
    """The text with only its tags decoded, since a model may decode nothing else."""
    is_mail = _may_be_mail(text)
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
