"""`Outgoing`: a `Request`, looked at before anything is sent, with what every transport adds to it.

All checks stand here and not in the HTTP libraries, whose errors show the value they dislike: a key, most often.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

from kernai import __version__
from kernai_providers.request_parts import HEADER_NAME, HEADER_VALUE, PRINTABLE
from kernai_providers.transport import Request

DEFAULT_PORTS: Final = {"http": 80, "https": 443}


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
