"""What goes into a request: keys, headers and addresses, checked when a provider is made; and each request as sent.

The checks are here and not in the HTTP libraries, whose errors show the value they dislike: a key, most often.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

from kernai import ProviderError, __version__
from kernai_providers.transport import Request

DEFAULT_PORTS: Final = {"http": 80, "https": 443}
#: RFC 9110, section 5.6.2: a token
PRINTABLE = re.compile(r"[!-~]+")
HEADER_VALUE = re.compile(r"[\t -~]*")
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class MissingSettingError(ProviderError, ValueError):
    """Something a vendor needs was neither given nor is it in the environment; the message names what to set.

    Like everything that is wrong with a provider it is a `ProviderError`, and as the caller's mistake a `ValueError`.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message, code=code)


class MissingKeyError(MissingSettingError):
    """No key."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "missing_key")


def key_from(given: str | None, variables: Sequence[str], vendor: str) -> str | None:
    """The key that was given, else the first of these environment variables that is set; None when there is none.

    White space around it is stripped. A key that no header can carry is a `ValueError` that does not show it.
    """
    if given is not None:
        return _checked_key(given, "api_key", vendor)
    for name in variables:
        if os.environ.get(name, "").strip():
            return _checked_key(os.environ[name], f"the environment variable {name}", vendor)
    return None


def needed(key: str | None, variables: Sequence[str], vendor: str) -> str:
    """The key; `MissingKeyError` where there is none."""
    if key is not None:
        return key
    named = " or ".join(variables)
    raise MissingKeyError(f"{vendor} needs a key: set the environment variable {named}, or give api_key=")


def _checked_key(key: object, where: str, vendor: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{where} must be text, got {type(key).__name__}")
    stripped = key.strip()
    if not stripped:
        raise ValueError(f"{where} is blank; leave api_key out to read {vendor}'s key from the environment")
    if not stripped.isascii() or not stripped.isprintable():
        raise ValueError(f"{where} holds a character that no key has (it is not shown here): copy it anew")
    return stripped


def checked_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Headers of the caller's; an error for one that cannot be sent, without its value."""
    given: object = headers if headers is not None else {}
    if not isinstance(given, Mapping):
        raise TypeError(f"headers must be a mapping of names to values, got {type(given).__name__}")
    checked: dict[str, str] = {}
    for name, value in given.items():
        _check_header(name, value)
        if name.lower() in {one.lower() for one in checked}:
            raise ValueError(f"headers has {name!r} twice; names differ in more than case")
        checked[name] = value.strip()
    return checked


def _check_header(name: object, value: object) -> None:
    if not isinstance(name, str) or not isinstance(value, str):
        raise TypeError("headers must map text to text")
    if not HEADER_NAME.fullmatch(name):
        # not shown: whoever mixes up name and value has a key here
        raise ValueError("headers has a name that no header can have")
    if name.lower() in ("content-length", "transfer-encoding"):
        raise ValueError(f"headers has {name!r}; leave it out, it follows from the body")
    if not HEADER_VALUE.fullmatch(value.strip()):
        raise ValueError(f"headers: the value of {name!r} holds a control character or one beyond ASCII (not shown)")


def checked_base_url(url: object, name: str = "base_url") -> str:
    """A base URL without a slash at its end; `ValueError` naming `name` and what is wrong with it."""
    if not isinstance(url, str) or not url.strip():
        raise ValueError(f"{name} must be text such as 'https://api.example.com/v1', got {url!r}")
    url = url.strip()
    if not PRINTABLE.fullmatch(url):
        raise ValueError(f"{name} must be ASCII without white space; a name with other letters is written in punycode")
    shown = url.rpartition("@")[2]
    try:
        parts = urlsplit(url)
        port_is_fine = parts.port != 0
    except ValueError:
        # not shown: what stands where the port should be may be a password
        raise ValueError(f"{name} must be an address such as 'https://api.example.com/v1'; its host or port is wrong") \
            from None
    if "@" in parts.netloc:
        raise ValueError(f"{name} must hold no user or password (not shown); give headers= for {shown!r}")
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_fine:
        raise ValueError(f"{name} must begin with http:// or https:// and name a host, got {shown!r}")
    if "?" in url or "#" in url:
        raise ValueError(f"{name} must have no query and no fragment (not shown)")
    return url.rstrip("/")


def merged(ours: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, str]:
    """Our headers with the caller's laid over them, whatever the case of the names."""
    given = {name.lower() for name in theirs}
    return {**{name: value for name, value in ours.items() if name.lower() not in given}, **theirs}


# ------------------------------------------------------------------------------------- one request, as it is sent


@dataclass(frozen=True, slots=True, repr=False)
class Outgoing:
    """Where a request goes, and its headers as they are sent."""

    scheme: str
    host: str
    port: int
    target: str
    headers: dict[str, str]

    @property
    def peer(self) -> str:
        """Host and port, for errors."""
        return authority(self.host, self.port)


def authority(host: str, port: int) -> str:
    """``host:port``, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def outgoing(request: Request) -> Outgoing:
    """Raises `ValueError` for a request that cannot be sent; the message shows neither a value nor a query."""
    if not HEADER_NAME.fullmatch(request.method):
        raise ValueError("method is no HTTP method")
    url = _url(request.url)
    port = _port(url) or DEFAULT_PORTS[url.scheme]
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    return Outgoing(url.scheme, url.hostname or "", port, target, _headers(request))


def _url(text: str) -> SplitResult:
    if not PRINTABLE.fullmatch(text):
        raise ValueError("url holds white space or a character beyond ASCII; percent-encode it")
    try:
        url = urlsplit(text)
    except ValueError:
        raise ValueError("url is not a URL") from None
    if url.scheme not in DEFAULT_PORTS or not url.hostname:
        raise ValueError("url must begin with http:// or https:// and a host")
    if "@" in url.netloc:
        raise ValueError("url holds a user name or a password; send an Authorization header instead")
    return url


def _port(url: SplitResult) -> int | None:
    try:
        return url.port
    except ValueError:
        raise ValueError("url has a port that is no number up to 65535") from None


def _headers(request: Request) -> dict[str, str]:
    headers: dict[str, str] = {}
    names = set()
    for name, value in request.headers.items():
        if not HEADER_NAME.fullmatch(name):
            # not shown: whoever mixes up name and value has a key here
            raise ValueError("headers has a name with a character that is not allowed in one")
        if name.lower() in names:
            raise ValueError(f"headers has {name} twice; names differ in more than case")
        if name.lower() in ("content-length", "transfer-encoding"):
            raise ValueError(f"headers has {name}; leave it out, the body's length is known")
        if not HEADER_VALUE.fullmatch(value):
            raise ValueError(f"header {name} holds a control character or one beyond ASCII")
        names.add(name.lower())
        headers[name] = value.strip("\t ")
    if "user-agent" not in names:
        headers["User-Agent"] = f"kernai/{__version__}"
    if "accept-encoding" not in names:
        # pieces of a compressed stream may be held back until the next flush
        headers["Accept-Encoding"] = "identity"
    if request.body:
        headers["Content-Length"] = str(len(request.body))
    return headers
