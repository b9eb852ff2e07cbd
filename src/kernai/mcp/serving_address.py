"""Where a server listens and who may come in: the options of HTTP, checked."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from hashlib import sha256

MOST_PORT = 65535
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#@\s]+")  # RFC 6454, section 6.2
_TOKEN = re.compile(r"[\x21-\x7e]+")  # what a header can carry; RFC 6750, section 2.1, asks for less still


class Address:
    """Host, port, path and rules of admission. `TypeError` or `ValueError` names the option that is wrong.

    `hosts` are the names that a `Host` header may have. Of the token only `digest` is kept.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 8000,
        path: str = "/mcp",
        token: str | None = None,
        allowed_hosts: Iterable[str] = (),
        allowed_origins: Iterable[str] = (),
    ) -> None:
        if not isinstance(host, str) or not host.strip():
            raise ValueError(f"host must be a name or an address such as '127.0.0.1', got {host!r}")
        if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= MOST_PORT:
            raise ValueError(f"port must be an int from 0 (any free one) to {MOST_PORT}, got {port!r}")
        if not isinstance(path, str) or not path.startswith("/") or "{" in path:
            raise ValueError(f"path must start with '/', such as '/mcp', got {path!r}")
        self.host = host.strip().strip("[]").lower()
        self.port = port
        self.path = path
        self.digest = None if token is None else _digest(token)
        if token is None and not is_loopback(self.host):
            raise ValueError(
                f"host={host!r} can be reached from other machines, so it needs token=...; "
                f"for this machine alone use host='127.0.0.1'"
            )
        self.allowed_hosts = tuple(_texts("allowed_hosts", allowed_hosts))
        self.allowed_origins = tuple(one.lower() for one in _texts("allowed_origins", allowed_origins))
        for one in self.allowed_origins:
            if not _ORIGIN.fullmatch(one):
                raise ValueError(f"allowed_origins must hold origins such as 'https://app.example.org', got {one!r}")
        names = {host_of(one) for one in self.allowed_hosts}
        if None in names:
            raise ValueError(f"allowed_hosts must hold names such as 'mcp.example.org', got {self.allowed_hosts!r}")
        self.hosts = frozenset({*LOOPBACK, self.host, *(one for one in names if one is not None)})

    def listen(self) -> socket.socket:
        """A socket that listens. `OSError` says which address cannot be had."""
        try:
            family, kind, proto, _, where = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            made = socket.socket(family, kind, proto)
        except OSError as error:
            raise OSError(error.errno, f"cannot listen on {self.host}: {error.strerror or error}") from error
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(where)
            made.listen(128)
        except OSError as error:
            made.close()
            text = f"cannot listen on {self.host}, port {self.port}: {error.strerror}; port=0 takes any free one"
            raise OSError(error.errno, text) from error
        return made

    def url(self, listener: socket.socket) -> str:
        """What a client on this machine connects to."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - told, not bound
        return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}{self.path}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it. Of names only ``localhost`` is known to be such."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_wildcard(host: str) -> bool:
    """Whether it stands for every address, so that nothing is known of the names a client may use."""
    return host in ("0.0.0.0", "::")  # noqa: S104 - asked, not bound


def host_of(header: str) -> str | None:
    """The name in a `Host` header (RFC 9110, section 7.2), without its port; None for what is none."""
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:/@\[\]]+))(?::\d*)?", header)
    return (found[1] or found[2]).lower() if found else None


def origin_host(header: str) -> str | None:
    """The name in an `Origin` header (RFC 6454, section 7); None for ``null`` and what is none."""
    found = re.fullmatch(r"https?://([^/?#\s]+)", header, re.IGNORECASE)
    return host_of(found[1]) if found else None


def _digest(token: object) -> bytes:
    if not isinstance(token, str):
        raise TypeError(f"token must be text, got {type(token).__name__}")
    if not _TOKEN.fullmatch(token):  # never shown
        raise ValueError("token must be one or more printing ASCII characters without spaces")
    return sha256(token.encode()).digest()


def _texts(option: str, given: object) -> list[str]:
    if isinstance(given, str) or not isinstance(given, Iterable) or not all(isinstance(one, str) for one in given):
        raise TypeError(f"{option} must be a list of texts, got {given!r}")
    return list(given)
