"""`Connection`: one server, opened on first use, kept, and started again when it has died. Lives on the event loop.

The client itself belongs to a `Life`. Requests are made by tasks of their own, as many at once as there are callers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import mcp_types
from mcp import Client

from kernai.mcp.background import Report
from kernai.mcp.catalogue import Catalogue
from kernai.mcp.configuration import ServerConfig
from kernai.mcp.errors import McpClosedError, McpError, McpUnavailableError
from kernai.mcp.health import hiding, refusals
from kernai.mcp.life import Life, MakeClient, reason_of, take_notice
from kernai.mcp.redaction import Secrets

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
        self.secrets = Secrets(config)
        self.catalogue = Catalogue(config)
        self._make_client = make_client
        self._life: Life | None = None
        self._lives: set[Life] = set()  # also those that are about to end
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
        life = self._life
        if life is None or not life.is_usable:
            return {"name": self.name, "open": False}
        return {"name": self.name, "open": True, **life.about}

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
        return lambda event: report(self.secrets.hide_data(event))

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
        life = await self._usable(exchange, what)
        try:
            return await self._ask(life, ask, exchange.report, what, repeatable=repeatable)
        except Gone as gone:
            reason = await self._bury(life)
            if gone.sent and not repeatable:
                raise self._died(exchange, what, reason, in_doubt=True) from None
        life = await self._reopened(exchange, what, reason)
        try:
            return await self._ask(life, ask, exchange.report, what, repeatable=repeatable)
        except Gone as gone:
            in_doubt = gone.sent and not repeatable
            raise self._died(exchange, what, await self._bury(life), in_doubt=in_doubt) from None

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
        for life in self._lives:
            self._end(life)
        if self._lives:
            await asyncio.wait([life.task for life in self._lives], timeout=CLOSING_SECONDS)

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

    async def _usable(self, exchange: Exchange, what: str) -> Life:
        """A life to send into, opening or open; one that has died is replaced."""
        life = self._life
        if life is None or life.is_alive:
            return await self._open()
        return await self._reopened(exchange, what, await self._bury(life))

    async def _reopened(self, exchange: Exchange, what: str, reason: str) -> Life:
        if self.name in exchange.restarted:
            raise self._died(exchange, what, reason, in_doubt=False)
        exchange.restarted.add(self.name)
        exchange.report({"mcp": "restart", "server": self.name, "error": reason})
        return await self._open()

    async def _open(self) -> Life:
        """The life that is there, or a new one; whoever comes while it opens waits for the same."""
        if self._closed:
            raise McpClosedError("the MCP adapter has been shut down; build a new one with kernai.mcp.setup")
        life = self._life
        if life is None or not life.is_alive:
            life = self._life = self._begin()
        try:
            async with asyncio.timeout(self.config.timeout):
                await asyncio.shield(life.opened)
        except TimeoutError:
            self._end(life)
            raise self._unopened(f"it did not answer within {self.config.timeout:g} s", life) from None
        except Exception as error:  # noqa: BLE001 - whatever a transport raises is told
            await life.ended(REASON_SECONDS)
            self._end(life)
            raise self._unopened(self._reason(error), life) from None
        return life

    def _begin(self) -> Life:
        self.catalogue.is_fresh = False
        life = Life(self.config, self._make_client, self.catalogue, self.secrets.hide)
        self._lives.add(life)
        life.task.add_done_callback(lambda _: self._lives.discard(life))
        return life

    async def _ask(
        self, life: Life, ask: Callable[[Client], Awaitable[Answer]], report: Report, what: str, *, repeatable: bool
    ) -> Answer:
        assert life.client is not None
        if not life.is_usable:
            raise Gone(sent=False)
        patience = asyncio.timeout(self.config.timeout)
        statuses: list[int] = []
        refusals.set(statuses)  # each request is a task of its own
        hiding.set(self.secrets.hide)
        try:
            with life.heard_by(self.shown(report)):
                async with patience:
                    return await ask(life.client)
        except (McpError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever a transport or a server makes of it is told
            if patience.expired():
                late = [f"did not answer {what} within {self.config.timeout:g} s", *life.health.unreadable()]
                effect = "" if repeatable else (
                    ". It was told to stop, but may have done it all the same: check before you repeat it")
                raise McpUnavailableError(f"server {self.name!r} {'; '.join(late)}{effect}") from None
            refused = life.knows_no_session(error, statuses)
            if refused or life.is_lost(error):
                raise Gone(sent=not refused) from None
            status = f" (HTTP status {statuses[-1]})" if statuses else ""
            raise McpError(f"server {self.name!r} failed at {what}: {self._reason(error)}{status}") from None

    async def _bury(self, life: Life) -> str:
        """Ends what is left of a life; why it ended, as far as that is known."""
        await life.ended(REASON_SECONDS)
        self._end(life)
        reasons = [self._reason(life.failure)] if life.failure is not None else []
        return "; ".join([*reasons, *life.health.told()]) or "it closed the connection"

    def _end(self, life: Life) -> None:
        if self._life is life:
            self._life = None
        life.end()

    def _died(self, exchange: Exchange, what: str, reason: str, *, in_doubt: bool) -> McpUnavailableError:
        again = "was started again and died again" if self.name in exchange.restarted else "died"
        effect = " Nobody knows whether this one took effect: check that before you repeat it" if in_doubt else ""
        return McpUnavailableError(
            f"server {self.name!r} {again} during {what}: {reason}\nThe next call starts it again.{effect}"
        )

    def _unopened(self, reason: str, life: Life) -> McpUnavailableError:
        told = "; ".join([reason, *life.health.told()])
        return McpUnavailableError(f"server {self.name!r} cannot be reached: {told}")

    def _reason(self, error: BaseException) -> str:
        return reason_of(error, self.secrets.hide)


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
