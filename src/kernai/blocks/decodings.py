"""What becomes of a text in which tags may be encoded, or written in characters that look like others."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial

from kernai.blocks.disguises import BRACKETS, HIDDEN
from kernai.blocks.grammar import CORE_TYPES, Remembered

_ROUNDS = 2


def readings(text: str) -> list[str]:
    """The text, and what becomes of it in up to two rounds of decoding, each once."""
    found = {text: None}
    latest = [text]
    for _ in range(_ROUNDS):
        made = [decode(one) for one in latest for decode in _DECODERS]
        latest = [one for one in dict.fromkeys(made) if one not in found]
        found.update(dict.fromkeys(latest))
    return list(found)


# what `html.unescape` decodes, each as one of these
_ENTITY = re.compile(r"&(?:#[0-9]+;?|#[xX][0-9a-fA-F]+;?|[^\t\n\f <&#;]{1,32};?)")
_PERCENT = re.compile(r"(?:%[0-9a-fA-F]{2})+")
_MAIL = re.compile(r"=\r?\n|((?:=[0-9a-fA-F]{2})+)")
_ESCAPE = re.compile(r"""\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|([nrtbf])|(["'\\/<>]))""")
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}


def _without_entities(text: str) -> str:
    return _ENTITY.sub(lambda entity: _character(entity[0]), text) if "&" in text else text


def _named_character(entity: str) -> str:
    from html import unescape  # two thousand names, which few texts need

    return unescape(entity)


_character = Remembered(_named_character).__getitem__


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
    return _MAIL.sub(_from_mail, text)


def _from_mail(run: re.Match[str]) -> str:
    return bytes.fromhex((run[1] or "").replace("=", "")).decode("utf-8", "replace")


_CLOSING = "＞﹥›〉⟩❯"  # noqa: RUF001 - the subject
QUOTES = str.maketrans(dict.fromkeys("“”„‟″«»", '"') | dict.fromkeys("‘’‚‛′", "'"))  # noqa: RUF001 - the subject
_LOOK_ALIKES = QUOTES | str.maketrans(
    {chr(0xFF00 + code - 0x20): chr(code) for code in range(0x21, 0x7F)}
    | dict.fromkeys(BRACKETS, "<") | dict.fromkeys(_CLOSING, ">")
    | dict.fromkeys("\xa0\u2002\u2003\u2009\u202f\u3000", " ") | dict.fromkeys(HIDDEN)
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


_ENCODED_SIGN = (
    r"(?<=&)(?:amp;)*(?:{name};?|#0*{decimal};?|#x0*{hex};?)|(?<=%)(?:25)*{hex}|(?<==){hex}"
    r"|(?<=\\)\\{{0,3}}(?:{sign}|u00{hex}|x{hex})"
)


@cache
def _marks(*, is_mail: bool) -> re.Pattern[str]:
    """What is, or becomes, a `<` or a `>`. All ways begin with one character, for which a search looks fast."""
    opening = _ENCODED_SIGN.format(name="(?:lt|lang|langle|lsaquo)", decimal="60", hex="3c", sign="<")
    closing = _ENCODED_SIGN.format(name="(?:gt|rang|rangle|rsaquo)", decimal="62", hex="3e", sign=">")
    return re.compile(
        rf"[<>\\&%{'=' if is_mail else ''}{BRACKETS}{_CLOSING}]"
        rf"(?:(?<=[>{_CLOSING}])|((?<=[<{BRACKETS}])|{opening})|{closing})", re.IGNORECASE
    )


_TAGS = "|".join(("block", "function", "parameter", *CORE_TYPES))
_CALLING_TAG = re.compile(rf"<\s*+/?\s*+(?:{_TAGS})\b", re.IGNORECASE)
_ENCODED = re.compile(r"[&%\\=]|[^\x00-\x7f]")
#: the beginning of a tag of which no decoding makes one of those
_OTHER_TAG = re.compile(rf"<\s*+/?\s*+(?!(?:{_TAGS})\b)[a-z]++(?=[\s/>])", re.IGNORECASE)


def _with_plain_tags(text: str) -> str:
    """The text with its tags decoded and all between them as it is, for a model may well decode no more than those."""
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
