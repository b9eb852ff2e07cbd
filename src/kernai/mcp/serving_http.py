"""Serving over streamable HTTP: where to listen, which requests are admitted, how many sessions are kept.

`Gate` answers before the SDK sees a request. `Host` and `Origin` must be names of this server, because a page in a
browser can reach a server on the same machine under a name of its own (DNS rebinding; MCP specification, "Transports",
security warning). With a token, each request needs ``Authorization: Bearer TOKEN``; only a digest of it is kept.

`Sessions` closes the longest idle session when there are too many: most clients open one and never end it, and the SDK
alone would then refuse new ones. Since revision 2026-07-28 there are no sessions.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import anyio
import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

from kernai.mcp.serving_loop import PATIENCE

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


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


#: each takes about 40 kB; a client that comes back to one that has ended opens another, as the protocol wants it
MOST_SESSIONS = 256
#: seconds without a request; an open stream is one
MOST_IDLE = 30 * 60.0
_HEADER = "mcp-session-id"
_NOT_FOUND = 404


class Sessions:
    """An ASGI app around the SDK's. Lives on the event loop."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        #: how many requests of each session are under way; the one that was used last comes last
        self._under_way: dict[str, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named = Headers(scope=scope).get(_HEADER)
        known = named if named in self._under_way else None
        opened: str | None = None
        is_over = scope["method"] == "DELETE"

        async def noticing(message: Message) -> None:
            nonlocal opened, is_over
            if message["type"] == "http.response.start":
                is_over = is_over or message["status"] == _NOT_FOUND
                opened = None if named else Headers(raw=message.get("headers", [])).get(_HEADER)
            await send(message)

        self._use(known, 1)
        try:
            await self._app(scope, receive, noticing)
        finally:
            self._use(known, -1)
            if known is not None and is_over:
                self._under_way.pop(known, None)
        self._use(opened, 0)
        await self._make_room(scope)

    def _use(self, session: str | None, change: int) -> None:
        if session is not None:
            self._under_way[session] = self._under_way.pop(session, 0) + change

    async def _make_room(self, scope: Scope) -> None:
        idle = [session for session, count in self._under_way.items() if count <= 0]
        for session in idle[: max(0, len(self._under_way) - MOST_SESSIONS)]:
            del self._under_way[session]
            headers = [(_HEADER.encode(), session.encode())]
            await self._app({**scope, "method": "DELETE", "headers": headers}, _nothing, _ignore)


async def _nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _ignore(_: Message) -> None:
    """Nobody has asked."""


#: bytes; media come as base64 within a request
MAX_BODY = 16 * 1024 * 1024


async def serve_http(
    app: Server[Any], address: Address, listener: socket.socket, stop: asyncio.Event, on_ready: Callable[[], object]
) -> None:
    """Serves on a socket that listens already, until `stop` is set."""
    inner = app.streamable_http_app(
        streamable_http_path=address.path,
        max_request_body_size=MAX_BODY,
        session_idle_timeout=MOST_IDLE,
        max_sessions=2 * MOST_SESSIONS,  # of which those beyond the half are all in use
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # the gate does it
    )
    gate = Gate(Sessions(inner), address)
    server = _Quiet(uvicorn.Config(
        gate, lifespan="off", ws="none", log_config=None, access_log=False, server_header=False, proxy_headers=False,
        timeout_graceful_shutdown=int(PATIENCE),
    ))
    # not left to uvicorn: it would wait for the streams of its clients before it told the SDK to end them
    async with app.session_manager.run():
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        stopping = asyncio.ensure_future(stop.wait())
        on_ready()
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        gate.close()
        server.should_exit = True
        await serving


class _Quiet(uvicorn.Server):
    """Leaves signals to `serving_loop`: uvicorn would raise them again at the end, with a traceback."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Gate:
    """Lets through what may come in; ends what is under way when the server ends."""

    def __init__(self, app: ASGIApp, address: Address) -> None:
        self._app = app
        self._hosts = None if is_wildcard(address.host) and not address.allowed_hosts else address.hosts
        self._origins = frozenset(address.allowed_origins)
        self._digest = address.digest
        self._under_way: set[anyio.CancelScope] = set()
        self._closed = False
        self._known = address.hosts

    def close(self) -> None:
        """On the event loop: cancels the requests under way and refuses others."""
        self._closed = True
        for scope in list(self._under_way):
            scope.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(Headers(scope=scope))
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        answer = _Answer(send)
        with anyio.CancelScope() as ending:
            self._under_way.add(ending)
            try:
                await self._app(scope, receive, answer)
            finally:
                self._under_way.discard(ending)
        if ending.cancelled_caught:
            await answer.complete(scope, receive)

    def _refusal(self, headers: Headers) -> PlainTextResponse | None:
        if self._closed:
            return PlainTextResponse("the server is shutting down", 503)
        if self._hosts is not None and not _all_in(map(host_of, headers.getlist("host")), self._hosts):
            return PlainTextResponse("this server is not known by that Host", 421)
        for origin in headers.getlist("origin"):
            if origin not in self._origins and origin_host(origin) not in self._known:
                return PlainTextResponse("that Origin may not use this server", 403)
        if self._digest is not None and not self._has_token(headers.getlist("authorization")):
            challenge = 'Bearer realm="mcp"' + (', error="invalid_token"' if "authorization" in headers else "")
            return PlainTextResponse("a bearer token is needed", 401, {"WWW-Authenticate": challenge})
        return None

    def _has_token(self, given: list[str]) -> bool:
        scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        digest = sha256(token.strip(" ").encode("latin-1", "replace")).digest()
        return hmac.compare_digest(digest, self._digest or b"") and scheme.lower() == "bearer"


def _all_in(names: Iterable[str | None], known: frozenset[str]) -> bool:
    found = list(names)
    return bool(found) and all(name in known for name in found)


class _Answer:
    """An ASGI `send` that remembers how far the response has come."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._started = self._complete = False

    async def __call__(self, message: Message) -> None:
        self._started = self._started or message["type"] == "http.response.start"
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._complete = True
        await self._send(message)

    async def complete(self, scope: Scope, receive: Receive) -> None:
        """Ends a response that was cut off, as the protocol wants it ended."""
        if not self._started:
            await PlainTextResponse("the server is shutting down", 503)(scope, receive, self._send)
        elif not self._complete:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
