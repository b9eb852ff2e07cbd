"""`Connection`: one server, opened on first use, kept open, and restarted after it died. For the event loop only.

The SDK's client belongs to a `Session`. Each request runs in its own task, so callers do not wait for one another.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from mcp import Client
from mcp_types import Tool
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from kernai.mcp.configuration import ServerConfig, redactor_of
from kernai.mcp.errors import McpClosedError, McpError, McpUnavailableError
from kernai.mcp.session import Emit, MakeClient, Session, reason_of, retrieve
from kernai.mcp.transports import hiding, refusals

Answer = TypeVar("Answer")
#: seconds for a transport to close: the SDK gives a process about 6.5 seconds
CLOSING_SECONDS = 8.0
#: seconds to find out why a session ended
REASON_SECONDS = 1.0
#: seconds for which the circuit breaker sends a server no requests
RETRY_SECONDS = 30.0
MAX_PAGES = 100
_LOG = logging.getLogger("kernai.mcp")
#: the parts of a tool's definition that a model or a policy may rely on
_DEFINING = ("title", "description", "inputSchema", "outputSchema", "annotations")


class Listing(NamedTuple):
    """What a server lists of one kind. `is_cut` means that the listing was cut off at `MAX_PAGES`."""

    found: Sequence[Any] = ()
    is_cut: bool = False


class Catalogue:
    """The tools of a server as last listed, and their definitions when first listed.

    Updated on the event loop, read from any thread: a new listing replaces the old one as a whole.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        #: whether the listing is up to date, as far as is known
        self.is_fresh = False
        self.is_cut = False
        #: all tools of the server, by name
        self.listed: dict[str, Tool] = {}
        #: the tools that may be called
        self.tools: dict[str, Tool] = {}
        self._first: dict[str, dict[str, Any]] = {}

    def expire(self) -> None:
        self.is_fresh = False

    def update(self, listing: Listing, revision: str) -> None:
        """Takes a new listing. Tools that need a task of revision 2025-11-25 cannot be called and are left out."""
        tools = {tool.name: tool for tool in listing.found}
        for name, tool in tools.items():
            self._first.setdefault(name, _definition(tool))
        only_tasks = () if revision in MODERN_PROTOCOL_VERSIONS else [
            name for name, tool in tools.items() if tool.execution and tool.execution.task_support == "required"
        ]
        self.listed, self.is_cut = tools, listing.is_cut
        self.tools = {
            name: tool for name, tool in tools.items() if self._config.allows(name) and name not in only_tasks
        }
        missing = sorted((self._config.tools or frozenset()) - tools.keys())
        if missing:
            _LOG.warning("server %r has no tools %s, which its configuration allows", self._config.name, missing)

    def change(self, name: str) -> dict[str, Any] | None:
        """The event for a tool whose definition has changed since it was first listed; None if it has not."""
        tool = self.listed.get(name)
        if tool is None:
            return None
        before, after = self._first[name], _definition(tool)
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


class Gone(Exception):  # noqa: N818 - internal; no user sees it as an error
    """The connection to the server was lost. `sent` is False if the request cannot have been executed."""

    def __init__(self, *, sent: bool) -> None:
        super().__init__()
        self.sent = sent


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call of a model, which may send several requests to several servers."""

    emit: Emit
    #: the servers that were restarted for this call
    restarted: set[str] = field(default_factory=set)


class Attempt:
    """One attempt at a request, with its timeout. `emit` hides the secrets of the server's configuration."""

    def __init__(self, emit: Emit, seconds: float) -> None:
        self.emit = emit
        self.timeout = asyncio.timeout(seconds)
        self._seconds = seconds

    def extend(self) -> None:
        """Gives the server its whole timeout again."""
        self.timeout.reschedule(asyncio.get_running_loop().time() + self._seconds)

    def suspend(self) -> None:
        """Suspends the timeout until `extend` is called."""
        self.timeout.reschedule(None)


#: sends a request and returns its answer
Ask = Callable[[Client, Attempt], Awaitable[Answer]]


class Connection:
    """One server. Handles any number of requests at the same time."""

    def __init__(self, config: ServerConfig, make_client: MakeClient) -> None:
        self.config = config
        self.name = config.name
        self.redactor = redactor_of(config)
        self.catalogue = Catalogue(config)
        self._make_client = make_client
        self._session: Session | None = None
        self._sessions: set[Session] = set()  # including those that are closing
        self._listing: asyncio.Task[None] | None = None
        self._closed = False
        self._failure: tuple[float, McpUnavailableError] | None = None

    @property
    def is_open(self) -> bool:
        return self._session is not None and self._session.is_usable

    def about(self) -> dict[str, Any]:
        """What `servers/list` shows about this server. There is more to show if it is open."""
        session = self._session
        if session is None or not session.is_usable:
            return {"name": self.name, "open": False}
        return {"name": self.name, "open": True, **session.about}

    @contextmanager
    def circuit_breaker(self, *, is_named: bool) -> Iterator[None]:
        """For listing what a server has. After a failure, raises `McpError` for `RETRY_SECONDS` unless the request
        names the server, because a server that hangs must not delay every request to all servers.
        """
        if not is_named and self._failure is not None and time.monotonic() < self._failure[0]:
            raise McpError(f"{self._failure[1]}\nFor now it is asked only by requests that name it as their 'server'")
        try:
            yield
        except McpUnavailableError as error:
            self._failure = time.monotonic() + RETRY_SECONDS, error
            raise
        self._failure = None

    async def use(self, exchange: Exchange, ask: Ask[Answer], *, what: str, repeatable: bool) -> Answer:
        """Runs `ask` with the server's client and returns its answer. Raises `McpError` if it fails.

        A server that has died is restarted, at most once per exchange. If it died during `ask`, the request is sent
        again only if it is `repeatable`, because the first attempt may have taken effect.
        """
        while True:
            session = await self._open()
            try:
                return await self._ask(session, ask, exchange, what, repeatable)
            except Gone as gone:
                reason = await self._end_lost(session)
                in_doubt, is_second = gone.sent and not repeatable, self.name in exchange.restarted
                if in_doubt or is_second:
                    died = "was started again and died again" if is_second else "died"
                    again = "starts it again" if self.config.url is None else "connects to it again"
                    effect = " Nobody knows whether this one took effect: check that before you repeat it"
                    raise McpUnavailableError(
                        f"server {self.name!r} {died} during {what}: {reason}\nThe next call {again}."
                        f"{effect if in_doubt else ''}"
                    ) from None
            exchange.restarted.add(self.name)
            exchange.emit({"mcp": "restart", "server": self.name, "error": reason})

    async def list(self, exchange: Exchange, kind: str) -> Listing:
        """Lists everything of one kind; of the tools, those that may be called."""
        if kind != "tools":
            what = f"listing its {kind.replace('_', ' ')}"
            return await self.use(exchange, lambda client, _: every_page(client, kind), what=what, repeatable=True)
        await self.refresh(exchange)
        return Listing(list(self.catalogue.tools.values()), self.catalogue.is_cut)

    async def refresh(self, exchange: Exchange) -> None:
        """Lists the tools. Concurrent callers share one listing."""
        if self._listing is None or self._listing.done():
            self._listing = asyncio.create_task(self.use(exchange, self._list, what="tools/list", repeatable=True))
            self._listing.add_done_callback(retrieve)
        await asyncio.shield(self._listing)

    async def _list(self, client: Client, _: Attempt) -> None:
        self.catalogue.is_fresh = True  # set before the request, so that a change reported meanwhile is not lost
        try:
            self.catalogue.update(await every_page(client, "tools"), client.protocol_version)
        except BaseException:
            self.catalogue.expire()
            raise

    async def close(self) -> None:
        self._closed = True
        for session in self._sessions:
            self._end(session)
        if self._sessions:
            await asyncio.wait([session.task for session in self._sessions], timeout=CLOSING_SECONDS)

    async def _open(self) -> Session:
        """Returns the open session, after opening a new one if necessary. Concurrent callers share it. It may die at
        any time.
        """
        if self._closed:
            raise McpClosedError("the MCP adapter has been shut down; build a new one with kernai.mcp.setup")
        session = self._session
        if session is None or (session.client is None and not session.is_alive):
            self.catalogue.expire()
            session = Session(self.config, self._make_client, self.catalogue.expire, self.redactor)
            self._session = session
            self._sessions.add(session)
            session.task.add_done_callback(lambda _: self._sessions.discard(session))
        try:
            async with asyncio.timeout(self.config.timeout):
                await asyncio.shield(session.opened)
        except TimeoutError:
            reason = f"it did not answer within {self.config.timeout:g} s"
        except Exception as error:  # noqa: BLE001 - any exception of a transport becomes an `McpUnavailableError`
            await asyncio.wait([session.task], timeout=REASON_SECONDS)
            reason = reason_of(error, self.redactor.text)
        else:
            return session
        self._end(session)
        details = "; ".join([reason, *session.health.details()])
        raise McpUnavailableError(f"server {self.name!r} cannot be reached: {details}") from None

    async def _ask(
        self, session: Session, ask: Ask[Answer], exchange: Exchange, what: str, repeatable: bool
    ) -> Answer:
        if session.client is None or not session.is_usable:
            raise Gone(sent=False)
        attempt = Attempt(lambda event: exchange.emit(self.redactor.data(event)), self.config.timeout)
        statuses: list[int] = []
        refusals.set(statuses)  # a context variable of this task: each request has its own
        hiding.set(self.redactor.text)
        try:
            with session.logging_to(attempt.emit):
                async with attempt.timeout:
                    return await ask(session.client, attempt)
        except (McpError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - any exception of a transport or server becomes an `McpError`
            if attempt.timeout.expired():
                late = [f"did not answer {what} within {self.config.timeout:g} s", *session.health.noise_lines()]
                effect = "" if repeatable else (
                    ". It was asked to stop, but may have done it anyway: check before you repeat it")
                raise McpUnavailableError(f"server {self.name!r} {'; '.join(late)}{effect}") from None
            forgotten = session.is_forgotten(error, statuses)
            if forgotten or session.is_lost(error):
                raise Gone(sent=not forgotten) from None
            status = f" (HTTP status {statuses[-1]})" if statuses else ""
            reason = reason_of(error, self.redactor.text)
            raise McpError(f"server {self.name!r} failed at {what}: {reason}{status}") from None

    async def _end_lost(self, session: Session) -> str:
        """Ends a session that was lost, and returns the reason for its loss, as far as it is known."""
        await asyncio.wait([session.task], timeout=REASON_SECONDS)
        self._end(session)
        reasons = [reason_of(session.failure, self.redactor.text)] if session.failure is not None else []
        return "; ".join([*reasons, *session.health.details()]) or "it closed the connection"

    def _end(self, session: Session) -> None:
        if self._session is session:
            self._session = None
        session.end()


async def every_page(client: Client, kind: str) -> Listing:
    """Fetches all pages of a listing; empty if the server does not offer this kind.

    After `MAX_PAGES` the listing is cut off, with a warning in the log, because it may never end.
    """
    if getattr(client.server_capabilities, "resources" if kind == "resource_templates" else kind) is None:
        return Listing()
    found: list[Any] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await getattr(client, f"list_{kind}")(cursor=cursor)
        found += getattr(page, kind)
        cursor = page.next_cursor
        if not cursor:  # some servers send "" with the last page
            return Listing(found)
    _LOG.warning("a server has more %s than fit on %d pages: the rest is left out", kind.replace("_", " "), MAX_PAGES)
    return Listing(found, is_cut=True)
