"""`Secrets`: the values of a server's configuration that no error and no log line may show."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from kernai.mcp.configuration import ServerConfig

#: shorter ones stand in any text by chance
SHORTEST = 4


class Secrets:
    """Knows one server's `env` and `headers`, and its URL, whose query and user name may be keys."""

    def __init__(self, config: ServerConfig) -> None:
        shown = {value: f"[env {name}]" for name, value in config.env.items()}
        for name, value in config.headers.items():
            shown[value] = f"[header {name}]"
            scheme, _, token = value.partition(" ")  # "Bearer KEY": the key alone is as secret
            if token and scheme.isalpha():
                shown[token] = f"[header {name}]"
        if config.url is not None:
            self.url = shown_url(config.url)
            if self.url != config.url:
                shown[config.url] = self.url
        self._shown = {value: mark for value, mark in shown.items() if len(value) >= SHORTEST}
        # the longest first: a shorter value may be part of a longer one
        ways = sorted(self._shown, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ways))) if ways else None

    def hide(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(lambda found: self._shown[found[0]], text)

    def hide_data(self, value: Any) -> Any:
        """The same for all texts in JSON data."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, dict):
            return {key: self.hide_data(one) for key, one in value.items()}
        if isinstance(value, list):
            return [self.hide_data(one) for one in value]
        return value


def shown_url(url: str) -> str:
    """The URL without user name, password, query and fragment."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
