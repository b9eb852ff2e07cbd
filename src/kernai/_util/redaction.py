"""Text that is safe to show: `Redactor` and `shown_url` hide secrets, `printable` and `one_line` control characters.

A secret that is repeated somewhere is seldom written unchanged. A dictionary is printed with `repr`, a request as JSON,
an address is percent-encoded, a page is HTML, a header is in base64, and one of these may be inside another. So a
pattern matches each character of a secret in all of these spellings. Its repetitions are bounded, to keep the search
linear.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Literal

from kernai.errors import KernaiError

MAX_DEPTH = 200
#: shorter secrets are not searched for in base64, where a few letters match by chance
SHORTEST_IN_BASE64 = 6
_LATIN_1 = 0xFF
_SLASH = r"(?:\\|%(?:25){0,2}5c)"
#: the backslashes of an escape; if the secret has a backslash before it, that one has matched them already
_SLASHES = rf"(?:{_SLASH}{{1,8}}|(?<=\\)|(?<=5c))"
#: the short escapes of JSON and Python, and the named characters of HTML
_ESCAPES = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f", "\v": "v", "\a": "a", "\0": "0"}
_ENTITIES = {"&": "|amp", "<": "|lt", ">": "|gt", '"': "|quot"}
# one character, or a run of backslashes: each level of escaping doubles their number
_UNIT = r"(?s)\\+|."


class Redactor:
    """Replaces each secret by its mark, ignoring case. Thread-safe: secrets are only added, each in a single step."""

    def __init__(self, secrets: Mapping[str, str] | None = None) -> None:
        self._marks: dict[str, str] = {}
        self._compiled: tuple[re.Pattern[str] | None, list[str]] = None, []  # the pattern, and the mark for each group
        for secret, mark in (secrets or {}).items():
            self.add(secret, mark)

    def add(self, secret: str, mark: str) -> None:
        """Replaces `secret` by `mark` from now on. Ignores an empty secret; a known secret keeps its mark."""
        if secret:
            self._marks.setdefault(secret, mark)

    def text(self, text: str) -> str:
        """`text` without secrets. Call this before cutting a text, because a cut could leave half of a secret."""
        if not self._marks:
            return text
        pattern, marks = self._compiled
        if pattern is None or len(marks) < len(self._marks):
            # the longest first: a shorter secret may be part of a longer one
            secrets = sorted(self._marks, key=len, reverse=True)
            pattern = re.compile("|".join(f"({_spellings(one)})" for one in secrets), re.IGNORECASE)
            marks = [self._marks[one] for one in secrets]
            self._compiled = pattern, marks
        return pattern.sub(lambda found: marks[(found.lastindex or 1) - 1], text)

    def data(self, value: Any, other: Callable[[Any, int], Any] = lambda value, _: value, depth: int = 0) -> Any:
        """`value` with every text redacted, at any depth of mappings, lists and tuples.

        Other values are passed to `other` together with their depth. Raises `KernaiError` for data that nest deeper
        than 200 levels.
        """
        if not self._marks:
            return value
        if isinstance(value, str):
            return self.text(value)
        if depth > MAX_DEPTH:
            raise KernaiError(f"data that contains itself or nests deeper than {MAX_DEPTH} levels cannot be scrubbed")
        if isinstance(value, Mapping):
            return {self.data(key, other, depth + 1): self.data(one, other, depth + 1) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            made = [self.data(one, other, depth + 1) for one in value]
            return made if isinstance(value, list) else tuple(made)
        return other(value, depth)


def shown_url(url: str) -> str:
    """The URL without user name, password, query and fragment, or the payload of a data URL."""
    if url[:5].lower() == "data:":
        return url.partition(",")[0]
    return re.sub(r"(?<=://)[^/?#]*@|[?#].*", "", url, flags=re.DOTALL)


def _spellings(secret: str) -> str:
    ways = ["".join(_spelled(unit[0], len(unit)) for unit in re.findall(_UNIT, secret))]
    ways.append(re.escape(secret))  # the first way misses a backslash and %5c, which it takes for two backslashes
    if len(secret) >= SHORTEST_IN_BASE64:
        ways += _in_base64(secret.encode("utf-8", "surrogatepass"))
    return "|".join(ways)


@cache
def _spelled(char: str, times: int) -> str:
    """A pattern for one character, or for a run of `times` backslashes."""
    number = ord(char)
    entity = f"&(?:amp;){{0,2}}(?:#(?:{number}|x{number:x}){_ENTITIES.get(char, '')});"
    if char.isascii() and char.isalnum():  # no other encoding changes these
        return f"(?:{char}|{entity})"
    octets, utf_16 = char.encode("utf-8", "surrogatepass"), char.encode("utf-16-be", "surrogatepass")
    percent = "".join(f"%(?:25){{0,2}}{octet:02x}" for octet in octets)
    ways = [
        "".join(f"{_SLASHES}x{octet:02x}" for octet in octets),
        "".join(f"{_SLASHES}u{utf_16[at : at + 2].hex()}" for at in range(0, len(utf_16), 2)),
        f"{_SLASHES}u{number:08x}",
    ]
    if not char.isascii() and number <= _LATIN_1:
        ways.append(f"{_SLASHES}x{number:02x}")
    if char in _ESCAPES:
        ways.append(_SLASHES + _ESCAPES[char])
    if char == " ":
        ways.append(r"\+")
    if char == "\\":
        return rf"(?>{_SLASH}{{{times},{8 * times}}}|(?:{'|'.join([entity, *ways])}){{{times}}})"
    # nothing may match in two ways: that would double the time for each character
    slash = r"\\" if char == "%" else _SLASH
    return rf"(?:{slash}{{0,8}}(?:{re.escape(char)}|{entity}|{percent})|{'|'.join(ways)})"


def _in_base64(octets: bytes) -> Iterator[str]:
    """Patterns for a secret inside base64 text, plain or URL-safe: one for each of the three offsets it can have."""
    from binascii import b2a_base64  # most runs have no secrets

    for before in range(3):
        # only the digits that encode nothing but the secret: the others depend on the text around it
        digits = b2a_base64(b"\0" * before + octets)
        inner = digits[-(-8 * before // 6) : 8 * (before + len(octets)) // 6]
        yield re.escape(inner.decode()).replace(r"\+", "[+-]").replace("/", "[/_]")


# ------------------------------------------------------------------------------------------------ text for a terminal

# Formatting characters that reverse or hide the text around them, line and paragraph separators, and lone surrogates,
# which no terminal's encoding can represent. Compiled when a text has such characters, since most programs show none.
_HARMFUL = "[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"


def printable(text: str) -> str:
    """Removes control characters except newline and tab; characters that could reorder or hide text become U+FFFD."""
    if re.fullmatch(r"[\n\t -~]*", text):
        return text
    import unicodedata  # most text is ASCII

    kept = "".join(char for char in text if char in "\n\t" or unicodedata.category(char) != "Cc")
    return re.sub(_HARMFUL, "\ufffd", kept)


def normalized(form: Literal["NFC", "NFKD"], text: str) -> str:
    """A text in a normal form of Unicode. After every 30 accents in a row, it gets an invisible character.

    Without these, sorting the accents takes quadratic time (UAX #15, section 13).
    """
    if text.isascii():
        return text
    from unicodedata import normalize

    return normalize(form, re.sub(r"[^\w\s\x00-\x7f]{30}", "\\g<0>\u034f", text))


def one_line(value: object, width: int) -> str:
    """A value as one printable line of at most `width` characters. If cut, it ends with its length, if that fits."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    line = " ".join(printable(text).split())
    if len(line) <= width:
        return line
    length = f"... ({len(text):,} characters)"
    end = length if 3 * len(length) <= 2 * width else "..."
    return line[: max(width - len(end), 0)] + end
