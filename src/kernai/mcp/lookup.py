"""The servers as one request sees them: asks them, and finds the tool, prompt or resource that is meant.

Used in the thread that runs the protocol's handler; the servers live on the event loop. Every `McpError` about a name
contains the request that was probably meant, so that a small model can correct its own in one turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from mcp_types import Prompt, Tool

from kernai._util.api import close_matches
from kernai.mcp.background import Background, Emit
from kernai.mcp.connection import Ask, Connection, Exchange, Listing
from kernai.mcp.errors import McpError, McpUnavailableError
from kernai.mcp.rendering import one_line
from kernai.mcp.requests import METHODS, Request, written
from kernai.mcp.schemas import example
from kernai.registry.skill_context import SkillContext

MAX_NAMES = 1000

Answer = TypeVar("Answer")
Failures = dict[Connection, McpError]


class Servers:
    """Events of the servers go to the call's `SkillContext`, and its cancellation cancels what they are asked.

    `guarded` has the tools that can be called only as skills, by server and name, and those skills' names.
    """

    def __init__(
        self,
        servers: Mapping[str, Connection],
        background: Background,
        context: SkillContext[Any],
        guarded: Mapping[tuple[str, str], str],
    ) -> None:
        self.all = servers
        self.skill_context = context
        #: the server that the request names; it is asked even if it has failed lately
        self.named: object = None
        self._background = background
        self._guarded = guarded
        self._restarted: set[str] = set()

    # ------------------------------------------------------------------------------------------------------- asking

    def ask(self, connection: Connection, ask: Ask[Answer], what: str, *, repeatable: bool) -> Answer:
        """One server's answer; `McpError` if there is none."""
        return self._run(lambda exchange: connection.use(exchange, ask, what=what, repeatable=repeatable))

    def lists(self, servers: Sequence[Connection], kind: str) -> tuple[dict[Connection, Listing], Failures]:
        """What the servers have of one kind, and why some could not be asked; `McpError` if none could."""
        found, failures = self._each(servers, lambda connection, exchange: connection.list(exchange, kind))
        if not found:
            raise _joined(failures.values())
        return found, failures

    def list_tools(self, servers: Sequence[Connection], *, again: bool = False) -> Failures:
        """Lists the tools of those whose catalogue is not up to date, or of all; the errors of those that cannot."""
        async def ask(connection: Connection, exchange: Exchange) -> None:
            await connection.refresh(exchange, force=again)

        return self._each([one for one in servers if again or not (one.is_open and one.catalogue.is_fresh)], ask)[1]

    def emit_changes(self, connection: Connection, tools: Iterable[str]) -> None:
        """An event for each of the tools that is not what it was when it was first listed."""
        for name in tools:
            change = connection.catalogue.change(name)
            if change is not None:
                self.skill_context.emit(connection.redactor.data(change))

    def _each(
        self, servers: Sequence[Connection], ask: Callable[[Connection, Exchange], Awaitable[Answer]]
    ) -> tuple[dict[Connection, Answer], Failures]:
        """Asks several at once; one that fails does not cost the others' answers.

        One that is not named and has failed lately is not asked again: it could hang until its timeout.
        """
        answers: dict[Connection, Answer] = {}
        failures: Failures = {}

        async def one(connection: Connection, exchange: Exchange) -> None:
            is_meant = connection.name == self.named or len(self.all) == 1
            failure = None if is_meant else connection.recent_failure()
            try:
                if failure is not None:
                    raise failure
                answers[connection] = await ask(connection, exchange)
                connection.remember(None)
            except McpError as error:
                failures[connection] = error
                if isinstance(error, McpUnavailableError):
                    connection.remember(error)

        async def each(exchange: Exchange) -> None:
            await asyncio.gather(*(one(connection, exchange) for connection in servers))

        if servers:
            self._run(each)
        return {one: answers[one] for one in servers if one in answers}, failures

    def _run(self, work: Callable[[Exchange], Awaitable[Answer]]) -> Answer:
        async def run(emit: Emit) -> Answer:
            return await work(Exchange(emit, self._restarted))

        context = self.skill_context
        return self._background.run(run, context.emit, lambda: context.cancelled)

    # ------------------------------------------------------------------------------------------------------ finding

    def of(self, request: Request) -> list[Connection]:
        """The one server that is named, or all that there are."""
        if not self.all:
            raise McpError("no servers are configured")
        name = request.server
        if name is None:
            return list(self.all.values())
        if name in self.all:
            return [self.all[name]]
        close = close_matches(name, self.all)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise McpError(f"there is no server {name!r}; the servers are: {', '.join(self.all)}.{hint}")

    def tool(self, request: Request) -> tuple[Connection, Tool]:
        """The tool that is meant; `McpError` if there is none, or more than one."""
        servers = self.of(request)
        failures = self.list_tools(servers)
        if not any(one.catalogue.has(request.name) for one in servers):  # not every server reports a new tool
            self.list_tools([one for one in servers if one.is_open], again=True)
        if not any(request.name in one.catalogue.tools for one in servers):
            asked = [one for one in servers if one not in failures]
            raise _joined([*([self._no_tool(request, asked)] if asked else []), *failures.values()])
        connection = self._only(request, "tool", {one: one.catalogue.tools for one in servers})
        tool = connection.catalogue.tools[request.name]
        self._refuse_guarded(connection, tool)
        return connection, tool

    def prompt(self, request: Request) -> tuple[Connection, Prompt]:
        """The prompt that is meant; `McpError` if there is none, or more than one."""
        found, failures = self.lists(self.of(request), "prompts")
        known = {one: {prompt.name: prompt for prompt in prompts} for one, prompts in found.items()}
        if not any(request.name in prompts for prompts in known.values()):
            raise _joined([_no_such(request, "prompt", known), *failures.values()])
        connection = self._only(request, "prompt", known)
        return connection, known[connection][request.name]

    def server_of_resource(self, request: Request, uri: str) -> Connection:
        """The server that lists the resource, or the only one that has any."""
        servers = self.of(request)
        if len(servers) == 1:
            return servers[0]
        found, failures = self.lists(servers, "resources")
        having = [one for one, resources in found.items() if any(resource.uri == uri for resource in resources)]
        able = having or [one for one in found if one.offers("resources")]
        if len(able) == 1:
            return able[0]
        where = f"servers {_names(able)} could have it" if able else "no server has resources"
        right = written("resources/read", {"server": able[0].name if able else "...", "uri": uri})
        error = McpError(f"say which server {uri!r} is to be read from: {where}. Write: {right}")
        raise _joined([error, *failures.values()])

    def unknown_method(self, request: Request) -> McpError:
        """Shows the call that was meant if the method is the name of a tool, and the methods otherwise."""
        known = f"there is no method {request.method!r}. The methods are: {', '.join(METHODS)}."
        close = close_matches(request.method, METHODS)
        if close and _bare(close[0]) == _bare(request.method):
            return McpError(f"{known} Write: {written(close[0], request.params)}")
        found = self._tool_called(request)
        if found is not None:
            connection, tool = found
            self._refuse_guarded(connection, tool)
            right = call(connection, tool, _arguments_of(request, tool))
            return McpError(f"{request.method!r} is a tool, not a method. Write: {right}")
        hint = f" Did you mean {close[0]!r}?" if close else ""
        general = written("tools/call", {"name": "TOOL", "arguments": {}})
        return McpError(f"{known}{hint} A tool is called with {general}")

    def _refuse_guarded(self, connection: Connection, tool: Tool) -> None:
        skill = self._guarded.get((connection.name, tool.name))
        if skill is not None:
            raise McpError(
                f"the tool {tool.name!r} of server {connection.name!r} cannot be called this way: use the skill "
                f"{skill!r}, a command that takes the same arguments"
            )

    def _tool_called(self, request: Request) -> tuple[Connection, Tool] | None:
        """The tool whose name was written as the method, alone or after its server's name."""
        method, named = request.method, self.all.get(str(request.params.get("server")))
        servers = list(self.all.values()) if named is None else [named]
        self.list_tools(servers)
        for connection in servers:
            for name, tool in connection.catalogue.tools.items():
                follows_server = method.endswith(name) and connection.name in method
                if method in (name, f"tools/{name}", f"tools/call/{name}") or follows_server:
                    return connection, tool
        return None

    def _no_tool(self, request: Request, servers: Sequence[Connection]) -> McpError:
        """Why none of these servers has the tool."""
        name = request.name
        barred = next((one for one in servers if one.catalogue.has(name)), None)
        if barred is not None:
            allowed = ", ".join(barred.catalogue.tools) or "none"
            if barred.catalogue.needs_task(name):
                return McpError(
                    f"the tool {name!r} of server {barred.name!r} runs only as a task, in a form of tasks that is not "
                    f"supported here; others are: {allowed}"
                )
            return McpError(f"the tool {name!r} of server {barred.name!r} is not allowed; allowed are: {allowed}")
        others = [one for one in self.all.values() if one not in servers]
        self.list_tools(others)
        elsewhere = [one for one in others if name in one.catalogue.tools]
        if elsewhere:
            right = written(request.method, {**request.params, "server": elsewhere[0].name})
            return McpError(
                f"server {servers[0].name!r} has no tool {name!r}, but {_names(elsewhere)} has. Write: {right}"
            )
        cut = [
            McpError(f"(the listing of server {one.name!r} was cut off, so it may have more)")
            for one in servers if one.catalogue.listing.is_cut
        ]
        return _joined([_no_such(request, "tool", {one: one.catalogue.tools for one in servers}), *cut])

    def _only(self, request: Request, what: str, known: Mapping[Connection, Collection[str]]) -> Connection:
        """The one server that has it; `McpError` if several have it."""
        having = [one for one, names in known.items() if request.name in names]
        if len(having) > 1:
            right = written(request.method, {**request.params, "server": having[0].name})
            raise McpError(
                f"{len(having)} servers have a {what} {request.name!r}: {_names(having)}. Say which. Write: {right}"
            )
        return having[0]


def call(connection: Connection, tool: Tool, arguments: Mapping[str, Any]) -> str:
    """The request that calls a tool, as the model has to write it."""
    return written("tools/call", {"server": connection.name, "name": tool.name, "arguments": arguments})


def _no_such(request: Request, what: str, known: Mapping[Connection, Collection[str]]) -> McpError:
    """For a name that does not exist: the closest ones and the right request, or all there are."""
    name = request.name
    close = [(server, found) for server, names in known.items() for found in close_matches(name, names, 3)]
    where = f"server {next(iter(known)).name!r} has" if len(known) == 1 else "the servers have"
    if close:
        server, found = close[0]
        right = written(request.method, {**request.params, "server": server.name, "name": found})
        hint = " or ".join(repr(one) for _, one in close[:3])
        return McpError(f"{where} no {what} {name!r}; did you mean {hint}? Write: {right}")
    everything = "; ".join(f"{server.name}: {', '.join(names) or 'none'}" for server, names in known.items())
    return McpError(f"{where} no {what} {name!r}. There are: {one_line(everything, MAX_NAMES)}")


def _arguments_of(request: Request, tool: Tool) -> dict[str, Any]:
    """The arguments in a request that used the tool's name as the method."""
    known = tool.input_schema.get("properties")
    known = known if isinstance(known, Mapping) else {}
    given = {key: value for key, value in request.params.items() if key in known or key not in ("server", "name")}
    inner = given.get("arguments")
    if "arguments" not in known and isinstance(inner, Mapping):
        del given["arguments"]
        given = {**given, **inner}
    return {**example(tool.input_schema, given), **given}


def _joined(errors: Iterable[McpError]) -> McpError:
    """One error for several, such as why servers that may have what was meant could not be asked."""
    return McpError("\n".join(map(str, errors)))


def _bare(method: str) -> str:
    return "".join(char for char in method.lower() if char.isalnum())


def _names(servers: Sequence[Connection]) -> str:
    return ", ".join(repr(one.name) for one in servers)
