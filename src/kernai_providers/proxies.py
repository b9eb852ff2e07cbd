"""`proxy_for`: the proxy for a host, from the environment.

`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` in either case, or the settings of macOS and Windows, as
`urllib.request` reads them, for each request. This machine is never reached through a proxy.
"""

from __future__ import annotations

import base64
import ipaddress
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from kernai_providers.request_checks import authority
from kernai_providers.transport import TransportError

DEFAULT_PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}


@dataclass(frozen=True, slots=True, repr=False)
class Proxy:
    """A proxy. `url` and `authorization` may contain its password: neither belongs in a message."""

    scheme: str
    host: str
    port: int
    authorization: str | None
    url: str

    @property
    def peer(self) -> str:
        """Host and port, for errors."""
        return authority(self.host, self.port)

    def __repr__(self) -> str:
        return f"Proxy({self.scheme}://{self.peer})"


def proxy_for(scheme: str, host: str, port: int) -> Proxy | None:
    """The proxy for this origin, or None. `TransportError` if the environment's value is not a URL."""
    if _is_this_machine(host):
        return None
    proxies = urllib.request.getproxies()
    url = proxies.get(scheme) or proxies.get("all")
    if not url or urllib.request.proxy_bypass(authority(host, port)):
        return None
    return _parsed(url, scheme)


def proxy_secrets() -> list[str]:
    """Credentials of the environment's proxies, in each form in which a proxy may echo them."""
    secrets: list[str] = []
    for url in urllib.request.getproxies().values():
        with suppress(TransportError):
            proxy = _parsed(url, "any")
            if proxy.authorization is not None:
                credentials = urlsplit(proxy.url).netloc.rpartition("@")[0]
                password = credentials.partition(":")[2]
                secrets += [proxy.authorization.removeprefix("Basic "), unquote(credentials), unquote(password)]
    return secrets


def _is_this_machine(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _parsed(url: str, scheme: str) -> Proxy:
    url = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or DEFAULT_PORTS[parts.scheme]
        if not host:
            raise ValueError("no host")
    except (KeyError, ValueError):
        # the value may contain a password, so it is not shown, not even as the cause
        raise TransportError(
            f"the proxy that the environment names for {scheme} is not a URL like http://host:port", "protocol"
        ) from None
    authorization = None
    if parts.username is not None:
        credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = "Basic " + base64.b64encode(credentials.encode()).decode("ascii")
    return Proxy(parts.scheme, host, port, authorization, url)
