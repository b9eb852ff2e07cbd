"""`Secrets`: the values of a server's configuration that no error and no log line may show.

A server that tells one of them seldom tells it as it stands: a dictionary is printed with `repr`, a request as JSON, an
address with its query quoted, one within another. So each character is looked for in every spelling.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from kernai.mcp.configuration import ServerConfig

#: shorter ones stand in any text by chance
SHORTEST = 4
#: the short escapes of JSON and Python
_ESCAPES = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f", "\v": "v", "\a": "a", "\0": "0"}
#: the backslashes before an escaped character; JSON within JSON doubles them
_SLASHES = r"\\{1,8}"


class Secrets:
    """Knows one server's `env` and `headers`, and its URL, whose query and user name may be keys."""

    def __init__(self, config: ServerConfig) -> None:
        shown: dict[str, str] = {}
        for value, mark in _secrets_of(config):
            if len(value) >= SHORTEST:
                shown.setdefault(value, mark)
        # the longest first: a shorter value may be part of a longer one
        ways = sorted(shown, key=len, reverse=True)
        self._marks = [shown[value] for value in ways]
        pattern = "|".join(f"({''.join(map(_spellings, value))})" for value in ways)
        # the SDK lower-cases a header that it quotes
        self._pattern = re.compile(pattern, re.IGNORECASE) if ways else None

    def hide(self, text: str) -> str:
        """The text with a mark in place of each of them. To be asked before a text is cut, which could cut one."""
        return text if self._pattern is None else self._pattern.sub(self._mark, text)

    def _mark(self, found: re.Match[str]) -> str:
        return self._marks[(found.lastindex or 1) - 1]

    def hide_data(self, value: Any) -> Any:
        """The same for all texts in JSON data."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, dict):
            return {self.hide_data(key): self.hide_data(one) for key, one in value.items()}
        if isinstance(value, list):
            return [self.hide_data(one) for one in value]
        return value


def _secrets_of(config: ServerConfig) -> Iterator[tuple[str, str]]:
    """Each value and what is shown in its place."""
    for name, value in config.env.items():
        yield value, f"[env {name}]"
    for name, value in config.headers.items():
        yield value, f"[header {name}]"
        scheme, _, token = value.partition(" ")  # "Bearer KEY": the key alone is as secret
        if scheme.isalpha():
            yield token, f"[header {name}]"
    if config.url is not None:
        if shown_url(config.url) != config.url:
            yield config.url, shown_url(config.url)
        parts = urlsplit(config.url)
        for name, value in parse_qsl(parts.query):
            yield value, f"[url {name}]"
        user, _, password = parts.netloc.rpartition("@")[0].partition(":")
        yield unquote(password), "[url password]"
        if not password:  # a key alone stands where the name would
            yield unquote(user), "[url user]"


def _spellings(sign: str) -> str:
    """A pattern for one character, in whichever way it is written."""
    if sign.isascii() and sign.isalnum():
        return sign
    units = sign.encode("utf-16-be", "surrogatepass")
    octets = sign.encode("utf-8", "surrogatepass")
    ways = [
        rf"\\{{0,8}}{re.escape(sign)}",
        "".join(rf"{_SLASHES}u{_hex(units[at : at + 2])}" for at in range(0, len(units), 2)),
        rf"{_SLASHES}U{_hex(ord(sign).to_bytes(4, 'big'))}",
        "".join(rf"{_SLASHES}x{_hex(bytes([octet]))}" for octet in octets),
        "".join(f"%{_hex(bytes([octet]))}" for octet in octets),
    ]
    if sign == "\\":
        ways[0] = _SLASHES
    if sign in _ESCAPES:
        ways.append(_SLASHES + _ESCAPES[sign])
    if sign == " ":
        ways.append(r"\+")
    if ord(sign) <= 0xFF:  # noqa: PLR2004 - as `repr` writes it where it cannot be printed
        ways.append(rf"{_SLASHES}x{_hex(bytes([ord(sign)]))}")
    return f"(?:{'|'.join(ways)})"


def _hex(octets: bytes) -> str:
    """A pattern for hexadecimal digits of either case."""
    return "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in octets.hex())


def shown_url(url: str) -> str:
    """The URL without user name, password, query and fragment."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
