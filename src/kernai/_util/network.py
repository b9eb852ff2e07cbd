"""Rules of HTTP, for models and for MCP servers: the names of headers, proxies, and why there is no connection."""

from __future__ import annotations

import ipaddress
import re
import urllib.request
from contextlib import suppress
from urllib.parse import urlsplit

#: RFC 9110, section 5.6.2: a token
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
#: this machine's addresses
_HERE = ("*.localhost", "127.0.0.0/8", "::1", "0.0.0.0", "::")  # noqa: S104 - not bound


def proxy_url(url: str) -> str:
    """Returns the environment's proxy for requests to a URL, unchecked; blank if there is none.

    It is read each time from `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, in upper or lower case, or from
    the settings of macOS and Windows, as `urllib.request` does. Requests to this machine never go through a proxy.
    """
    parts = urlsplit(url)
    host, proxies = parts.hostname or "", urllib.request.getproxies()
    exempt = any(_has(one.strip(), host) for one in (*_HERE, *proxies.get("no", "").split(",")))
    if exempt or host == "localhost" or urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return ""
    return (proxies.get(parts.scheme) or proxies.get("all") or "").strip()


def _has(entry: str, host: str) -> bool:
    """Whether an entry of NO_PROXY that `urllib` does not know has a host: a network, an IPv6 address, an asterisk."""
    with suppress(ValueError):
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    return entry.startswith("*") and host.endswith(entry[1:].lower())


def origin_of(error: BaseException) -> BaseException:
    """Returns the first of the errors from which a library made this one: the system's, which says what went wrong."""
    hidden = error.__context__ if error.__suppress_context__ else None  # otherwise it may be of something else
    deeper = error.__cause__ or hidden or next(iter(getattr(error, "exceptions", ())), None)
    return error if deeper is None else origin_of(deeper)
