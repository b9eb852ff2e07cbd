"""One server: opened on first use, kept, and restarted after it died. Lives on the event loop.

The SDK's client belongs to a `Session`. Each request runs in its own task, so callers do not wait for one another.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import mcp_types
from mcp import Client
from mcp_types import Tool

from kernai.mcp.background import Report
from kernai.mcp.configuration import ServerConfig, redactor_of
from kernai.mcp.errors import McpClosedError, McpError, McpUnavailableError
from kernai.mcp.session import MakeClient, Session, reason_of, take_notice
from kernai.mcp.transports import hiding, refusals

_LOG = logging.getLogger("kernai.mcp")
#: what a definition is made of, as far as a model or a policy may rely on it
_DEFINING = ("title", "description", "inputSchema", "outputSchema", "annotations")


class Catalogue:
    """Written on the event loop, read from any thread: a new listing replaces the old one whole."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        #: whether the listing still holds, as far as is known
        self.is_fresh = False
        self._tools: dict[str, Tool] = {}
        self._first: dict[str, dict[str, Any]] = {}

    def expire(self) -> None:
        self.is_fresh = False

    def update(self, tools: Iterable[Tool]) -> None:
        listed = {tool.name: tool for tool in tools}
        for name, tool in listed.items():
            self._first.setdefault(name, _definition(tool))
        self._tools = listed
        missing = sorted((self._config.tools or frozenset()) - listed.keys())
        if missing:
            _LOG.warning("server %r has no tools %s, which its configuration allows", self._config.name, missing)

    @property
    def tools(self) -> dict[str, Tool]:
        """Those that may be called, by name."""
        return {name: tool for name, tool in self._tools.items() if self._config.allows(name)}

    def has(self, name: str) -> bool:
        """Whether the server has the tool at all, allowed or not."""
        return name in self._tools

    def change(self, name: str) -> dict[str, Any] | None:
        """The event for a tool that is not what it was when it was first listed."""
        tool, before = self._tools.get(name), self._first.get(name)
        if tool is None or before is None:
            return None
        after = _definition(tool)
        changed = [key for key in _DEFINING if before.get(key) != after.get(key)]
        if not changed:
            return None
        return {
            "mcp": "tool_changed", "server": self._config.name, "tool": name, "changed": changed,
            "before": {key: before.get(key) for key in changed}, "after": {key: after.get(key) for key in changed},
        }


def _definition(tool: Tool) -> dict[str, Any]:
    dumped: dict[str, Any] = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {key: dumped[key] for key in _DEFINING if key in dumped}


Answer = TypeVar("Answer")
#: for what a transport does when it ends: the SDK's patience with a process is about 6.5 seconds
CLOSING_SECONDS = 8.0
#: how long the reason for an end is waited for once the end is known
REASON_SECONDS = 1.0
#: how many pages of a listing are asked for
MAX_PAGES = 100
_LOG = logging.getLogger("kernai.mcp")
#: for how long a server that could not tell what it has is left alone, unless it is named
RETRY_SECONDS = 30.0


class Gone(Exception):  # noqa: N818 - a fact about the server, not an error anyone is shown
    """The server has gone while a request was under way; `sent` is False where it cannot have been executed."""

    def __init__(self, *, sent: bool) -> None:
        super().__init__()
        self.sent = sent


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call of a model, which may ask several servers several things."""

    report: Report
    #: the servers that were started again for it
    restarted: set[str] = field(default_factory=set)


class Connection:
    """Serves any number of requests at once."""

    def __init__(self, config: ServerConfig, make_client: MakeClient) -> None:
        self.config = config
        self.name = config.name
        self.redactor = redactor_of(config)
        self.catalogue = Catalogue(config)
        self._make_client = make_client
        self._life: Session | None = None
        self._sessions: set[Session] = set()  # also those that are about to end
        self._listing: asyncio.Task[None] | None = None
        self._closed = False
        self._failure: tuple[float, McpUnavailableError] | None = None

    @property
    def is_open(self) -> bool:
        return self._life is not None and self._life.is_usable

    @property
    def revision(self) -> str:
        """The revision of the protocol that is spoken with a server that is open."""
        return self._life.revision if self._life is not None else ""

    def about(self) -> dict[str, Any]:
        """What `servers/list` tells; more of a server that is open."""
        session = self._life
        if session is None or not session.is_usable:
            return {"name": self.name, "open": False}
        return {"name": self.name, "open": True, **session.about}

    def offers(self, kind: str) -> bool:
        """Whether the server, open, has said that it has tools, resources or prompts."""
        return kind in self.about().get("offers", ())

    def remember(self, failure: McpUnavailableError | None) -> None:
        """That the server could not tell what it has, or could."""
        self._failure = None if failure is None else (time.monotonic() + RETRY_SECONDS, failure)

    def recent_failure(self) -> McpError | None:
        """Why asking it once more what it has would only cost time; None where that has not failed, or long ago."""
        if self._failure is None or time.monotonic() >= self._failure[0]:
            return None
        return McpError(f"{self._failure[1]}\nFor now it is asked only by requests that name it as their 'server'")

    def shown(self, report: Report) -> Report:
        """Reports what the server says of its own accord, without the secrets of its configuration."""
        return lambda event: report(self.redactor.data(event))

    async def use(
        self,
        exchange: Exchange,
        ask: Callable[[Client], Awaitable[Answer]],
        *,
        what: str,
        repeatable: bool,
    ) -> Answer:
        """What `ask` gets from the server; `McpError` says why it got nothing.

        A server that has died is started again, once in an exchange. Where it died while `ask` was under way, `ask` is
        made again only when `repeatable`: nobody knows whether the first one took effect.
        """
        session = await self._usable(exchange, what)
        try:
            return await self._ask(session, ask, exchange.report, what, repeatable=repeatable)
        except Gone as gone:
            reason = await self._bury(session)
            if gone.sent and not repeatable:
                raise self._died(exchange, what, reason, in_doubt=True) from None
        session = await self._reopened(exchange, what, reason)
        try:
            return await self._ask(session, ask, exchange.report, what, repeatable=repeatable)
        except Gone as gone:
            in_doubt = gone.sent and not repeatable
            raise self._died(exchange, what, await self._bury(session), in_doubt=in_doubt) from None

    async def refresh(self, exchange: Exchange, *, force: bool) -> None:
        """Lists the tools, unless the catalogue is up to date; all who come while it is done wait for the same."""
        if not force and self.is_open and self.catalogue.is_fresh:
            return
        listing = self._listing
        if listing is None:
            listing = asyncio.create_task(self.use(exchange, self._list, what="tools/list", repeatable=True))
            listing.add_done_callback(self._listed)
            self._listing = listing
        await asyncio.shield(listing)

    def _listed(self, listing: asyncio.Task[None]) -> None:
        self._listing = None
        take_notice(listing)

    async def close(self) -> None:
        """Ends the server, and waits for it."""
        self._closed = True
        for session in self._sessions:
            self._end(session)
        if self._sessions:
            await asyncio.wait([session.task for session in self._sessions], timeout=CLOSING_SECONDS)

    async def _list(self, client: Client) -> None:
        self.catalogue.is_fresh = True  # before it is asked: a change that is told meanwhile must not be lost
        try:
            tools: list[mcp_types.Tool] = []
            if client.server_capabilities.tools is not None:
                tools = await every_page(lambda cursor: client.list_tools(cursor=cursor), "tools")
            self.catalogue.update(tools)
        except BaseException:
            self.catalogue.is_fresh = False
            raise

    async def _usable(self, exchange: Exchange, what: str) -> Session:
        """A session to send into, opening or open; one that has died is replaced."""
        session = self._life
        if session is None or session.is_alive:
            return await self._open()
        return await self._reopened(exchange, what, await self._bury(session))

    async def _reopened(self, exchange: Exchange, what: str, reason: str) -> Session:
        if self.name in exchange.restarted:
            raise self._died(exchange, what, reason, in_doubt=False)
        exchange.restarted.add(self.name)
        exchange.report({"mcp": "restart", "server": self.name, "error": reason})
        return await self._open()

    async def _open(self) -> Session:
        """The session that is there, or a new one; whoever comes while it opens waits for the same."""
        if self._closed:
            raise McpClosedError("the MCP adapter has been shut down; build a new one with kernai.mcp.setup")
        session = self._life
        if session is None or not session.is_alive:
            session = self._life = self._begin()
        try:
            async with asyncio.timeout(self.config.timeout):
                await asyncio.shield(session.opened)
        except TimeoutError:
            self._end(session)
            raise self._unopened(f"it did not answer within {self.config.timeout:g} s", session) from None
        except Exception as error:  # noqa: BLE001 - whatever a transport raises is told
            await session.ended(REASON_SECONDS)
            self._end(session)
            raise self._unopened(self._reason(error), session) from None
        return session

    def _begin(self) -> Session:
        self.catalogue.is_fresh = False
        session = Session(self.config, self._make_client, self.catalogue.expire, self.redactor.text)
        self._sessions.add(session)
        session.task.add_done_callback(lambda _: self._sessions.discard(session))
        return session

    async def _ask(
        self,
        session: Session,
        ask: Callable[[Client], Awaitable[Answer]],
        report: Report,
        what: str,
        *,
        repeatable: bool,
    ) -> Answer:
        assert session.client is not None
        if not session.is_usable:
            raise Gone(sent=False)
        patience = asyncio.timeout(self.config.timeout)
        statuses: list[int] = []
        refusals.set(statuses)  # each request is a task of its own
        hiding.set(self.redactor.text)
        try:
            with session.heard_by(self.shown(report)):
                async with patience:
                    return await ask(session.client)
        except (McpError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever a transport or a server makes of it is told
            if patience.expired():
                late = [f"did not answer {what} within {self.config.timeout:g} s", *session.health.unreadable()]
                effect = "" if repeatable else (
                    ". It was told to stop, but may have done it all the same: check before you repeat it")
                raise McpUnavailableError(f"server {self.name!r} {'; '.join(late)}{effect}") from None
            refused = session.knows_no_session(error, statuses)
            if refused or session.is_lost(error):
                raise Gone(sent=not refused) from None
            status = f" (HTTP status {statuses[-1]})" if statuses else ""
            raise McpError(f"server {self.name!r} failed at {what}: {self._reason(error)}{status}") from None

    async def _bury(self, session: Session) -> str:
        """Ends what is left of a session; why it ended, as far as that is known."""
        await session.ended(REASON_SECONDS)
        self._end(session)
        reasons = [self._reason(session.failure)] if session.failure is not None else []
        return "; ".join([*reasons, *session.health.told()]) or "it closed the connection"

    def _end(self, session: Session) -> None:
        if self._life is session:
            self._life = None
        session.end()

    def _died(self, exchange: Exchange, what: str, reason: str, *, in_doubt: bool) -> McpUnavailableError:
        again = "was started again and died again" if self.name in exchange.restarted else "died"
        effect = " Nobody knows whether this one took effect: check that before you repeat it" if in_doubt else ""
        return McpUnavailableError(
            f"server {self.name!r} {again} during {what}: {reason}\nThe next call starts it again.{effect}"
        )

    def _unopened(self, reason: str, session: Session) -> McpUnavailableError:
        told = "; ".join([reason, *session.health.told()])
        return McpUnavailableError(f"server {self.name!r} cannot be reached: {told}")

    def _reason(self, error: BaseException) -> str:
        return reason_of(error, self.redactor.text)


async def every_page(fetch: Callable[[str | None], Awaitable[Any]], field: str) -> list[Any]:
    """The items of all pages; a server whose pages never end is cut off, with a warning in the log."""
    items: list[Any] = []
    cursor = None
    for _ in range(MAX_PAGES):
        page = await fetch(cursor)
        items += getattr(page, field)
        cursor = page.next_cursor
        if cursor is None:
            return items
    _LOG.warning("a server's %s go on behind page %d: those are left out", field, MAX_PAGES)
    return items
