"""The servers as one request sees them, from the thread that runs the protocol's handler."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from mcp import Client

from kernai.mcp.background import Background, Report
from kernai.mcp.connection import Connection, Exchange, every_page
from kernai.mcp.errors import McpError, McpUnavailableError
from kernai.registry.skill_context import SkillContext

Answer = TypeVar("Answer")
Ask = Callable[[Connection, Exchange], Awaitable[Any]]
#: what a server answered, or the `McpError` that says why it did not
Outcome = tuple[Connection, Any]


class RequestContext:
    """The servers as one call sees them: events go to its context, and its cancellation ends what is asked."""

    def __init__(
        self, servers: Mapping[str, Connection], background: Background, context: SkillContext[Any]
    ) -> None:
        self.servers = servers
        #: the server that the request names
        self.named: object = None
        self._background = background
        self._context = context
        self._restarted: set[str] = set()

    def one(
        self, connection: Connection, ask: Callable[[Client, Report], Awaitable[Answer]], what: str, *, repeatable: bool
    ) -> Answer:
        """One server's answer; `McpError` where it gives none."""
        async def work(report: Report) -> Answer:
            exchange = Exchange(report, self._restarted)
            return await connection.use(exchange, lambda client: ask(client, report), what=what, repeatable=repeatable)

        return self._background.run(work, self._context.emit, lambda: self._context.cancelled)

    def each(self, servers: Sequence[Connection], ask: Ask) -> list[Outcome]:
        """Asks several at once what they have; one that fails does not cost the others' answers.

        One that is not named and has lately been of no use is not waited for again: it could hang until its timeout.
        """
        async def outcome(connection: Connection, exchange: Exchange) -> Any:
            is_meant = connection.name == self.named or len(self.servers) == 1
            failure = None if is_meant else connection.recent_failure()
            if failure is not None:
                return failure
            try:
                answer = await ask(connection, exchange)
            except McpError as error:
                if isinstance(error, McpUnavailableError):
                    connection.remember(error)
                return error
            connection.remember(None)
            return answer

        async def work(report: Report) -> list[Any]:
            exchange = Exchange(report, self._restarted)
            return await asyncio.gather(*(outcome(connection, exchange) for connection in servers))

        outcomes = self._background.run(work, self._context.emit, lambda: self._context.cancelled)
        return list(zip(servers, outcomes, strict=True))

    def any(self, servers: Sequence[Connection], ask: Ask) -> list[Outcome]:
        """The same; `McpError` where none has answered."""
        outcomes = self.each(servers, ask)
        refused = [outcome for _, outcome in outcomes if isinstance(outcome, McpError)]
        if len(refused) == len(outcomes):
            raise McpError("\n".join(map(str, refused)))
        return outcomes

    def know_tools(self, servers: Sequence[Connection], *, anew: bool = False) -> dict[Connection, McpError]:
        """Lists the tools of those whose listing is not up to date, or of all; the errors of those that cannot."""
        async def ask(connection: Connection, exchange: Exchange) -> None:
            await connection.refresh(exchange, force=anew)

        stale = [one for one in servers if anew or not (one.is_open and one.catalogue.is_fresh)]
        outcomes = self.each(stale, ask) if stale else []
        return {one: outcome for one, outcome in outcomes if isinstance(outcome, McpError)}

    def tell_changes(self, connection: Connection, tools: Iterable[str]) -> None:
        """An event for each of the tools that is not what it was when it was first listed."""
        for name in tools:
            change = connection.catalogue.change(name)
            if change is not None:
                self._context.emit(connection.redactor.data(change))


def listed(field: str) -> Ask:
    """Asks for one kind of thing, all its pages; a server that has none of that kind is not asked."""
    kind = "prompts" if field == "prompts" else "resources"

    async def ask(connection: Connection, exchange: Exchange) -> list[Any]:
        async def pages(client: Client) -> list[Any]:
            if getattr(client.server_capabilities, kind) is None:
                return []
            fetch = getattr(client, f"list_{field}")
            return await every_page(lambda cursor: fetch(cursor=cursor), field)

        return await connection.use(exchange, pages, what=f"listing its {field.replace('_', ' ')}", repeatable=True)

    return ask
