"""`Sessions`: bounds what clients leave behind that open a session and never end it, as most do.

The SDK's manager ends a session that has been idle for `MOST_IDLE`, and refuses a new one where there are too many.
That alone would let one careless client keep all others out. So here the session that has been idle longest makes room,
by the DELETE that its client could have sent. Since 2026-07-28 there are no sessions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import Headers

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
