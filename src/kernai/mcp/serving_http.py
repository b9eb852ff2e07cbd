"""The streamable HTTP transport, and the gate in front of it.

The gate answers before the SDK sees a request. `Host` and `Origin` must be names this server is known by, since a page
in the user's browser can reach a server on the same machine under a name of its own (DNS rebinding; MCP specification,
"Transports", security warning). With a token, each request needs ``Authorization: Bearer TOKEN``. Of the token only a
digest is kept, compared in constant time; it can be in no log and no error.
"""

from __future__ import annotations

import asyncio
import hmac
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

from kernai.mcp import serving_sessions
from kernai.mcp.serving_address import Address, host_of, is_wildcard, origin_host
from kernai.mcp.serving_loop import PATIENCE

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: bytes; media come as base64 within a request
MAX_BODY = 16 * 1024 * 1024


async def serve_http(
    app: Server[Any], address: Address, listener: socket.socket, stop: asyncio.Event, on_ready: Callable[[], object]
) -> None:
    """Serves on a socket that listens already, until `stop` is set."""
    inner = app.streamable_http_app(
        streamable_http_path=address.path,
        max_request_body_size=MAX_BODY,
        session_idle_timeout=serving_sessions.MOST_IDLE,
        max_sessions=2 * serving_sessions.MOST_SESSIONS,  # of which those beyond the half are all in use
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # the gate does it
    )
    gate = Gate(serving_sessions.Sessions(inner), address)
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
