"""Recognises a call in untrusted text by its letters and digits alone, however tools and models have rewritten it.

Markdown escapes an underscore, a terminal colours a word, mail quotes a line, a model tidies all of it up, but letters
and digits stay. `quotations` reads calls as they are written, so that parameters in another order or form make the same
call; here what is between letters does not count, so that a rewritten call is the same. Linear in the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from unicodedata import is_normalized, normalize

_MOST_MARKS = 200  # of one call in one text; with more of them the text was made to hide something
_ANSI = re.compile(r"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|\][^\x07\x1b]*+(?:\x07|\x1b\\)?|[@-Z\\^_])")
_INLINE = re.compile(
    r"</?(?:[abipsu]|br|code|div|em|font|kbd|li|mark|pre|samp|span|strong|su[bp]|t[drt]|wbr)\b[^<>]*+>", re.IGNORECASE
)
_WITHIN_A_WORD = re.compile(
    r"<(?<=\w<)/?(?:[bisu]|code|em|font|kbd|mark|samp|span|strong|su[bp]|tt|wbr)\b[^<>]*+>(?=\w)", re.IGNORECASE
)
_NUMBERED = re.compile(r"^[ \t>+|-]*+[0-9]{1,6}+(?:[ \t]*+[:.)|]|\t| {2,})", re.MULTILINE)
#: one of these is in every text that spells a call as a block: how `spelled` writes its tag
_MARKS = ("blocktype", "blockname", "typecommand", "commandname", "toolcall", "tooluse", "invokename")
_NO_LETTER = re.compile(r"[\W_]+")
_PUNCTUATION = bytes(code for code in range(0x80) if not chr(code).isalnum())


def spelled(text: str) -> str:
    """The letters and digits of a text, in lower case and in one form of each character."""
    if not text.isascii() and not is_normalized("NFKC", text):
        text = normalize("NFKC", text)
    # as bytes: a megabyte in a millisecond
    text = text.encode("utf-8", "surrogatepass").translate(None, _PUNCTUATION).decode("utf-8", "surrogatepass")
    return (text if text.isascii() else _NO_LETTER.sub("", text)).lower()


def bare(text: str) -> str:
    """A text without what tools put into it: colours, inline markup, the numbers of its lines."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "<" in text:
        text = _INLINE.sub("", text)
    return _NUMBERED.sub("", text)


def may_spell_a_call(text: str) -> bool:
    """Whether the text has the letters of a block's tag, in whatever way they are written."""
    if is_marked(spelled(text)):
        return True
    return ("\x1b" in text or _WITHIN_A_WORD.search(text) is not None) and is_marked(spelled(bare(text)))


def is_marked(spelling: str) -> bool:
    """Whether what `spelled` gave may hold the tag of a block."""
    return any(mark in spelling for mark in _MARKS)


def is_spelled_in(spelling: str, type: str, name: str | None, content: str) -> bool:
    """Whether what `spelled` gave of a text holds this call: its tag, and behind it every value of its content."""
    values = list(dict.fromkeys(filter(None, map(spelled, _values(content)))))
    if type in ("final", "plan"):
        values = [spelled(content)]
        if not values[0]:
            return False
    reach = 2 * len(content) + 200
    for count, end in enumerate(_marks(spelling, type, spelled(name or ""))):
        region = spelling[end : end + reach]
        if count >= _MOST_MARKS or all(value in region for value in values):
            return True
    return False


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
