"""Serving over streamable HTTP: the options, checked, and the SDK's app on uvicorn.

The SDK checks `Host` and `Origin`, since a page in a browser can reach a server on the same machine under a name of its
own (DNS rebinding; MCP specification, "Transports", security warning). It also checks the token, ends idle sessions and
limits their number.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.transport_security import TransportSecuritySettings

from kernai.mcp.serving_loop import GRACE, until

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

#: bytes; media come as base64 within a request
MAX_BODY = 16 * 1024 * 1024
#: each takes about 40 kB. Most clients never end theirs; since 2026-07-28 there are none
MAX_SESSIONS = 1000
#: seconds without a request; an open stream is one
MAX_IDLE = 30 * 60.0
MAX_PORT = 65535
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#@\s]+")  # RFC 6454, section 6.2
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+)(:\d*)?")  # RFC 9110, section 7.2
_TOKEN = re.compile(r"[\x21-\x7e]+")  # what a header can carry; RFC 6750, section 2.1, asks for less still


class Address:
    """Where a server listens and whom it admits. `TypeError` or `ValueError` names the option that is wrong."""

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
        if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= MAX_PORT:
            raise ValueError(f"port must be an int from 0 (any free one) to {MAX_PORT}, got {port!r}")
        if not isinstance(path, str) or not path.startswith("/") or "{" in path:
            raise ValueError(f"path must start with '/', such as '/mcp', got {path!r}")
        self.host = host.strip().lower()
        if ":" in self.host and "[" not in self.host:
            self.host = f"[{self.host}]"
        self.port = port
        self.path = path
        self.verifier = None if token is None else _Verifier(token)
        if token is None and not _is_loopback(self.host):
            raise ValueError(
                f"host={host!r} can be reached from other machines, so it needs token=...; "
                f"for this machine alone use host='127.0.0.1'"
            )
        hosts, origins = _texts("allowed_hosts", allowed_hosts), _texts("allowed_origins", allowed_origins)
        found = [_HOST.fullmatch(one) for one in (*_LOOPBACK, self.host, *hosts)]
        if not all(found):
            raise ValueError(f"allowed_hosts must hold names such as 'mcp.example.org', got {hosts!r}")
        for one in origins:
            if not _ORIGIN.fullmatch(one):
                raise ValueError(f"allowed_origins must hold origins such as 'https://app.example.org', got {one!r}")
        names = [f"{one[1]}{port}" for one in found if one for port in ("", ":*")]
        self.security = TransportSecuritySettings(
            # on every address names are unknown, and the token alone decides
            enable_dns_rebinding_protection=bool(hosts) or self.host not in ("0.0.0.0", "[::]"),  # noqa: S104 - not bound
            allowed_hosts=names,
            allowed_origins=[*origins, *(f"{scheme}://{name}" for scheme in ("http", "https") for name in names)],
        )

    def listen(self) -> socket.socket:
        """A socket that listens. `OSError` says which address cannot be used."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host.strip("[]"), self.port), family=family, backlog=128)
        except OSError as error:
            reason = f"{error.strerror or error}; port=0 takes any free one"
            raise OSError(error.errno, f"cannot listen on {self.host}, port {self.port}: {reason}") from error

    def url(self, listener: socket.socket) -> str:
        """What a client on this machine connects to."""
        host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(self.host, self.host)  # noqa: S104 - shown, not bound
        return f"http://{host}:{listener.getsockname()[1]}{self.path}"


class _Verifier:
    """Accepts one token, compared in constant time."""

    def __init__(self, token: str) -> None:
        if not isinstance(token, str):
            raise TypeError(f"token must be text, got {type(token).__name__}")
        if not _TOKEN.fullmatch(token):  # never shown
            raise ValueError("token must be one or more printing ASCII characters without spaces")
        self._token = token

    async def verify_token(self, token: str) -> AccessToken | None:
        is_right = hmac.compare_digest(token.strip().encode("utf-8", "replace"), self._token.encode())
        return AccessToken(token=token, client_id="client", scopes=[]) if is_right else None


def _is_loopback(host: str) -> bool:
    """Whether only this machine can reach it. Of names only ``localhost`` is known to be such."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _texts(option: str, given: object) -> list[str]:
    if isinstance(given, str) or not isinstance(given, Iterable) or not all(isinstance(one, str) for one in given):
        raise TypeError(f"{option} must be a list of texts, got {given!r}")
    return [one.lower() for one in given]


async def serve_http(
    app: Server[Any],
    address: Address,
    listener: socket.socket,
    stop: asyncio.Event,
    on_ready: Callable[[], object],
    cancel_calls: Callable[[], object],
) -> None:
    """Serves on a socket that listens already, until `stop` is set; then cancels the calls under way."""
    auth = None if address.verifier is None else AuthSettings.model_validate(
        {"issuer_url": address.url(listener), "resource_server_url": None}
    )
    inner = app.streamable_http_app(
        streamable_http_path=address.path,
        max_request_body_size=MAX_BODY,
        session_idle_timeout=MAX_IDLE,
        max_sessions=MAX_SESSIONS,
        transport_security=address.security,
        auth=auth,
        token_verifier=address.verifier,
    )
    server = _Server(uvicorn.Config(
        inner, lifespan="off", ws="none", log_config=None, access_log=False, server_header=False, proxy_headers=False,
        timeout_graceful_shutdown=int(GRACE),
    ))
    # the SDK ends its sessions before uvicorn waits for their streams
    async with app.session_manager.run():
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        on_ready()
        await until(stop, serving)
        server.should_exit = True
        cancel_calls()
    await serving


class _Server(uvicorn.Server):
    """Leaves signals to `serving_loop`: uvicorn would raise them again at the end, with a traceback."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
