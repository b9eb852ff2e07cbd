"""The servers as one request sees them, from the thread that runs the protocol's handler."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from mcp import Client

from kernai.mcp.background import Background, Emit
from kernai.mcp.connection import Ask, Attempt, Connection, Exchange, Listing, every_page
from kernai.mcp.errors import McpError, McpUnavailableError
from kernai.registry.skill_context import SkillContext

Answer = TypeVar("Answer")
#: asks one of several servers
AskEach = Callable[[Connection, Exchange], Awaitable[Any]]
#: a server, and its answer or the `McpError` that says why there is none
Outcome = tuple[Connection, Any]


class RequestContext:
    """Events of the servers go to the call's `SkillContext`, and its cancellation cancels what they are asked."""

    def __init__(
        self, servers: Mapping[str, Connection], background: Background, context: SkillContext[Any]
    ) -> None:
        self.servers = servers
        self.skill_context = context
        #: the server that the request names
        self.named: object = None
        self._background = background
        self._restarted: set[str] = set()

    def one(self, connection: Connection, ask: Ask[Answer], what: str, *, repeatable: bool) -> Answer:
        """One server's answer; `McpError` if there is none."""
        return self._run(lambda exchange: connection.use(exchange, ask, what=what, repeatable=repeatable))

    def each(self, servers: Sequence[Connection], ask: AskEach) -> list[Outcome]:
        """Asks several at once for a listing; one that fails does not cost the others' answers.

        One that is not named and has failed lately is not asked again: it could hang until its timeout.
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

        async def all_outcomes(exchange: Exchange) -> list[Any]:
            return await asyncio.gather(*(outcome(connection, exchange) for connection in servers))

        return list(zip(servers, self._run(all_outcomes), strict=True))

    def any(self, servers: Sequence[Connection], ask: AskEach) -> list[Outcome]:
        """The same; `McpError` if none has answered."""
        outcomes = self.each(servers, ask)
        failures = [outcome for _, outcome in outcomes if isinstance(outcome, McpError)]
        if len(failures) == len(outcomes):
            raise McpError("\n".join(map(str, failures)))
        return outcomes

    def list_tools(self, servers: Sequence[Connection], *, again: bool = False) -> dict[Connection, McpError]:
        """Lists the tools of those whose catalogue is not up to date, or of all; the errors of those that cannot."""
        async def ask(connection: Connection, exchange: Exchange) -> None:
            await connection.refresh(exchange, force=again)

        stale = [one for one in servers if again or not (one.is_open and one.catalogue.is_fresh)]
        outcomes = self.each(stale, ask) if stale else []
        return {one: outcome for one, outcome in outcomes if isinstance(outcome, McpError)}

    def emit_changes(self, connection: Connection, tools: Iterable[str]) -> None:
        """An event for each of the tools that is not what it was when it was first listed."""
        for name in tools:
            change = connection.catalogue.change(name)
            if change is not None:
                self.skill_context.emit(connection.redactor.data(change))

    def _run(self, work: Callable[[Exchange], Awaitable[Answer]]) -> Answer:
        async def run(emit: Emit) -> Answer:
            return await work(Exchange(emit, self._restarted))

        context = self.skill_context
        return self._background.run(run, context.emit, lambda: context.cancelled)


def listing_of(kind: str) -> AskEach:
    """Asks for one kind of thing, all its pages; a server that offers nothing of that kind is not asked."""
    capability = "prompts" if kind == "prompts" else "resources"

    async def ask(connection: Connection, exchange: Exchange) -> Listing:
        async def pages(client: Client, _: Attempt) -> Listing:
            offers = getattr(client.server_capabilities, capability) is not None
            return await every_page(client, kind) if offers else Listing()

        return await connection.use(exchange, pages, what=f"listing its {kind.replace('_', ' ')}", repeatable=True)

    return ask
