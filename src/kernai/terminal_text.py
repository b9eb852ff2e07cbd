"""Makes text from a model or a tool safe to show in a terminal."""

from __future__ import annotations

import json
import re
import unicodedata

# Formatting characters that reverse or hide the text around them, line and paragraph separators, and lone surrogates,
# which no terminal's encoding can represent.
_HARMFUL = re.compile("[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_ASCII_TEXT = re.compile(r"[\n\t -~]*")


def printable(text: str) -> str:
    """Removes control characters, except newline and tab, and replaces characters that could reorder or hide text with
    U+FFFD.
    """
    if _ASCII_TEXT.fullmatch(text):
        return text
    kept = "".join(char for char in text if char in "\n\t" or unicodedata.category(char) != "Cc")
    return _HARMFUL.sub("\ufffd", kept)


def one_line(value: object, width: int) -> str:
    """A value as one printable line of at most `width` characters; a shortened one ends with its full length."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    line = " ".join(printable(text).split())
    if len(line) <= width:
        return line
    length = f"... ({len(text):,} characters)"
    return line[: max(width - len(length), 0)] + length
