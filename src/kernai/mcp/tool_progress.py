"""`Progress`: what a skill emits, as MCP progress notifications.

Guarantees: notifications go out in the order in which the skill emitted, whatever thread it is in, and before the
result. A client that reads slowly holds nothing up but them: of more than `MOST_WAITING` the oldest are dropped, for
the newest is the one that tells how far the call is.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

MOST_WAITING = 1000
_MOST = 1e300  # beyond it a float is nearly out of range, and no call gets that far

Send = Callable[[float, float | None, str | None], Awaitable[None]]


class Progress:
    """The notifications of one call, on the running event loop."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Any] = deque(maxlen=MOST_WAITING)
        self._wake = asyncio.Event()
        self._ended = False
        self._last: float | None = None
        self._sending = asyncio.ensure_future(self._send_all())

    def tell(self, data: Any) -> None:
        """From any thread; `data` is JSON-ready."""
        with suppress(RuntimeError):  # the event loop is closed: the call has outlived its server
            self._loop.call_soon_threadsafe(self._add, data)

    async def finish(self) -> None:
        """Waits until all that was told is sent."""
        self._loop.call_soon_threadsafe(self._end)  # behind what a thread has just told
        await self._sending

    def abandon(self) -> None:
        """Sends no more."""
        self._ended = True
        self._sending.cancel()

    def _add(self, data: Any) -> None:
        if not self._ended:
            self._waiting.append(data)
            self._wake.set()

    def _end(self) -> None:
        self._ended = True
        self._wake.set()

    async def _send_all(self) -> None:
        while self._waiting or not self._ended:
            if not self._waiting:
                self._wake.clear()
                await self._wake.wait()
                continue
            with suppress(Exception):  # the client is gone, or takes no more: the call itself goes on
                await self._send(*self._read(self._waiting.popleft()))

    def _read(self, data: Any) -> tuple[float, float | None, str | None]:
        """Emitted data as progress, total and message.

        The specification wants a number that grows each time. A number, or ``{"progress": n, "total": m, "message":
        text}``, is taken as that; one that does not grow is raised by next to nothing. Anything else is a message.
        """
        total = message = None
        number = data
        if isinstance(data, Mapping) and _is_number(data.get("progress")):
            number = data["progress"]
            total = float(data["total"]) if _is_number(data.get("total")) else None
            message = data["message"] if isinstance(data.get("message"), str) else None
        if _is_number(number):
            self._last = float(number) if self._last is None or float(number) > self._last else self._just_more()
        else:
            self._last = 1.0 if self._last is None else max(math.floor(self._last) + 1.0, self._just_more())
            message = as_message(data)
        return self._last, total, message

    def _just_more(self) -> float:
        return math.nextafter(self._last or 0.0, math.inf)


def as_message(data: Any) -> str:
    """Emitted data as a text: its message, where it has one, or its JSON."""
    if isinstance(data, Mapping) and isinstance(data.get("message"), str):
        return str(data["message"])
    return data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _MOST
