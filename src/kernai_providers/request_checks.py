"""Keys, headers, addresses and proxies. They are checked when a provider is created, and again for each `Request`.

The HTTP libraries would check them too, but their errors show the invalid value, which is often a key.
"""

from __future__ import annotations

import base64
import os
import re
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from kernai import ProviderError, __version__
from kernai._util.api import check_texts, check_type
from kernai._util.network import HEADER_NAME, proxy_url
from kernai_providers.transport import Request, TransportError

DEFAULT_PORTS: Final = {"http": 80, "https": 443}
PRINTABLE = re.compile(r"[!-~]+")
HEADER_VALUE = re.compile(r"[\t -~]*")


class MissingSettingError(ProviderError, ValueError):
    """A setting that the vendor needs is missing; the message says what to set.

    It is a `ProviderError`, like every failure of a provider, and a `ValueError`, since the caller can correct it.
    """


class MissingKeyError(MissingSettingError):
    """The key is missing."""


def setting(*names: str | None) -> tuple[str, str]:
    """Returns the first of these environment variables that is not blank, and what errors call it; else blank texts."""
    for name in filter(None, names):
        if value := os.environ.get(name, "").strip():
            return value, f"the environment variable {name}"
    return "", ""


def key_from(given: str | None, variables: Sequence[str], vendor: str, *, is_needed: bool) -> str | None:
    """Returns the given key, or else that in the first of these environment variables that is set.

    Without a key, returns None, or raises `MissingKeyError` if one is needed. White space around the key is stripped. A
    key that cannot be in a header raises a `ValueError` that does not show the key.
    """
    check_texts("key_variables", variables, "names")  # the letters of a single text would be names, too
    key, where = setting(*variables) if given is None else (given, "api_key")
    if given is None and not key:
        if not is_needed or not variables:
            return None
        names = " or ".join(variables)
        message = f"{vendor} needs a key: set the environment variable {names}, or pass api_key= in Python"
        raise MissingKeyError(message, code="missing_key")
    stripped: str = check_type(key, str, f"{where} must be text").strip()
    if not stripped:
        raise ValueError(f"{where} is blank; leave api_key out to read {vendor}'s key from the environment")
    if not stripped.isascii() or not stripped.isprintable():
        raise ValueError(f"{where} contains a character that no key has (it is not shown here): copy the key again")
    return stripped


def checked_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Checks the caller's headers and returns them. An error for an invalid one does not show its value."""
    checked: dict[str, str] = {}
    given = check_type({} if headers is None else headers, Mapping, "headers must be a mapping of names to values")
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError("headers must map text to text")
        if not HEADER_NAME.fullmatch(name):
            # not shown: if name and value are swapped, this is a key
            raise ValueError("headers has an invalid name (not shown)")
        if name.lower() in ("content-length", "transfer-encoding"):
            raise ValueError(f"headers has {name!r}; leave it out, it depends on the body")
        if not HEADER_VALUE.fullmatch(value.strip()):
            raise ValueError(
                f"headers: the value of {name!r} contains a control character or one beyond ASCII (not shown)")
        if name.lower() in {one.lower() for one in checked}:
            raise ValueError(f"headers has {name!r} twice; case makes no difference in names")
        checked[name] = value.strip()
    return checked


def checked_base_url(url: object, name: str = "base_url") -> str:
    """Checks a base URL and returns it without a trailing slash. Raises `ValueError`, which calls the URL `name`."""
    if not isinstance(url, str) or not url.strip():
        raise ValueError(f"{name} must be text such as 'https://api.example.com/v1', got {url!r}")
    url = url.strip()
    _split(url, name)
    if "?" in url or "#" in url:
        raise ValueError(f"{name} must have no query and no fragment (not shown)")
    return url.rstrip("/")


def _split(url: str, name: str) -> SplitResult:
    """Checks and splits a URL. A `ValueError` does not show it, since any part of it may be a key or a password."""
    if not PRINTABLE.fullmatch(url):
        raise ValueError(f"{name} must be ASCII without white space; a host's name with other letters is in punycode")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(f"{name} must be an address such as 'https://api.example.com/v1'; its host or port is wrong") \
            from None
    if "@" in parts.netloc:
        raise ValueError(f"{name} must contain no user or password (not shown); send them in a header")
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or port == 0:
        raise ValueError(f"{name} must begin with http:// or https:// and name a host")
    return parts


def merged(ours: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, str]:
    """Returns our headers, overridden by the caller's; the case of names makes no difference."""
    given = {name.lower() for name in theirs}
    return {**{name: value for name, value in ours.items() if name.lower() not in given}, **theirs}


# ---------------------------------------------------------------------------------------------------- one request


@dataclass(frozen=True, slots=True, repr=False)
class Endpoint:
    """What may be connected to."""

    scheme: str
    host: str
    port: int

    @property
    def peer(self) -> str:
        """``host:port``, with an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, repr=False)
class Proxy(Endpoint):
    """A proxy, and the user and password for it, which errors must not show."""

    credentials: tuple[str, str] | None

    @property
    def is_socks(self) -> bool:
        return self.scheme.startswith("socks")

    @property
    def authorization(self) -> str | None:
        if self.credentials is None:
            return None
        return f"Basic {base64.b64encode(':'.join(self.credentials).encode()).decode('ascii')}"


@dataclass(frozen=True, slots=True, repr=False)
class Outgoing(Endpoint):
    """Where a request goes, and the headers that are sent. Equal ones may share a connection."""

    target: str = field(compare=False)
    headers: dict[str, str] = field(compare=False)
    proxy: Proxy | None = None

    @property
    def needs_tunnel(self) -> bool:
        """Whether the proxy has to be asked for a connection to the host; else it is sent the requests themselves."""
        return self.proxy is not None and (self.proxy.is_socks or self.scheme == "https")


def outgoing(request: Request) -> Outgoing:
    """Checks a request and returns where it goes. Raises `ValueError`, which shows neither a header nor a query."""
    url = _split(request.url, "url")
    port = url.port or DEFAULT_PORTS[url.scheme]
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    # a compressing server may hold back pieces of the stream until its next flush
    ours = {"User-Agent": f"kernai/{__version__}", "Accept-Encoding": "identity"}
    headers = merged(ours, checked_headers(request.headers))
    if request.body:
        headers["Content-Length"] = str(len(request.body))
    return Outgoing(url.scheme, url.hostname or "", port, target, headers)


# ---------------------------------------------------------------------------------------------------- proxies

PROXY_PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}


def routed(request: Request) -> Outgoing:
    """Like `outgoing`, but maybe through a proxy of the environment."""
    call = outgoing(request)
    call = replace(call, proxy=proxy_for(call))
    if call.proxy is None or call.needs_tunnel:
        return call
    key = {"Proxy-Authorization": call.proxy.authorization} if call.proxy.authorization else {}
    return replace(call, target=f"http://{call.peer}{call.target}", headers=call.headers | key)


def proxy_for(to: Endpoint) -> Proxy | None:
    """Returns the proxy for this origin, or None. Raises `TransportError` if the environment's value is not a URL."""
    url = proxy_url(f"{to.scheme}://{to.peer}")
    return _parsed(url, to.scheme) if url else None


def proxy_secrets() -> list[str]:
    """Returns the credentials of the environment's proxies, in each form in which a proxy may echo them."""
    secrets: list[str] = []
    for url in urllib.request.getproxies().values():
        with suppress(TransportError):
            proxy = _parsed(url, "any")
            if proxy.credentials is not None and proxy.authorization is not None:
                secrets += [proxy.authorization.split()[1], ":".join(proxy.credentials), proxy.credentials[1]]
    return secrets


def _parsed(url: str, scheme: str) -> Proxy:
    url = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(url)
        host, usual_port = parts.hostname or "", PROXY_PORTS[parts.scheme]
        port = parts.port or usual_port
        if not PRINTABLE.fullmatch(host):
            raise ValueError("no host")
    except (KeyError, ValueError):
        # the value may contain a password, so it is not shown, not even as the cause
        raise TransportError(
            f"the environment's proxy for {scheme} is not a URL like http://host:port or socks5://host:port", "protocol"
        ) from None
    user = None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
    return Proxy(parts.scheme, host, port, user)
