"""Finds the server, tool or prompt that a request means.

Every `McpError` here contains the request that was probably meant, so that a small model can correct its own in one
turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mcp_types import Prompt, Tool

from kernai._util.close_matches import close_matches
from kernai.mcp.arguments import example
from kernai.mcp.connection import Connection
from kernai.mcp.errors import McpError
from kernai.mcp.rendering import one_line
from kernai.mcp.request_context import Outcome, RequestContext, listing_of
from kernai.mcp.requests import METHODS, Request, written

MAX_NAMES = 1000


class Finder:
    """Asks servers only for what is not known yet. `guarded` tools can be called only as skills, which it names."""

    def __init__(self, context: RequestContext, guarded: Mapping[tuple[str, str], str]) -> None:
        self._context = context
        self._guarded = guarded
        self._servers = context.servers

    def servers(self, request: Request) -> list[Connection]:
        """The one server that is named, or all that there are."""
        if not self._servers:
            raise McpError("no servers are configured")
        name = request.server
        if name is None:
            return list(self._servers.values())
        if name in self._servers:
            return [self._servers[name]]
        close = close_matches(name, self._servers)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise McpError(f"there is no server {name!r}; the servers are: {', '.join(self._servers)}.{hint}")

    def tool(self, request: Request) -> tuple[Connection, Tool]:
        """The tool that is meant; `McpError` if there is none, or more than one."""
        name, servers = request.name, self.servers(request)
        failures = self._context.list_tools(servers)
        if not any(one.catalogue.has(name) for one in servers):  # not every server reports a new tool
            self._context.list_tools([one for one in servers if one.is_open], again=True)
        having = [one for one in servers if name in one.catalogue.tools]
        if having:
            found = self._only(request, "tool", having), having[0].catalogue.tools[name]
            self._refuse_guarded(*found)
            return found
        if failures and len(failures) == len(servers):
            raise McpError("\n".join(map(str, failures.values())))
        raise _with(self._no_tool(request, [one for one in servers if one not in failures]), failures.values())

    def prompt(self, request: Request) -> tuple[Connection, Prompt]:
        """The prompt that is meant; `McpError` if there is none, or more than one."""
        outcomes = self._context.any(self.servers(request), listing_of("prompts"))
        known = {one: {prompt.name: prompt for prompt in found} for one, found in _answered(outcomes).items()}
        having = [one for one in known if request.name in known[one]]
        if having:
            return self._only(request, "prompt", having), known[having[0]][request.name]
        unknown = self._no_such(request, "prompt", {one: list(names) for one, names in known.items()})
        raise _with(unknown, _failures(outcomes))

    def server_of_resource(self, request: Request, uri: str) -> Connection:
        """The server that lists the resource, or the only one that has any."""
        servers = self.servers(request)
        if len(servers) == 1:
            return servers[0]
        outcomes = self._context.any(servers, listing_of("resources"))
        answered = _answered(outcomes)
        having = [one for one, found in answered.items() if any(resource.uri == uri for resource in found)]
        able = having or [one for one in answered if one.offers("resources")]
        if len(able) == 1:
            return able[0]
        where = f"servers {_names(able)} could have it" if able else "no server has resources"
        right = written("resources/read", {"server": able[0].name if able else "...", "uri": uri})
        error = McpError(f"say which server {uri!r} is to be read from: {where}. Write: {right}")
        raise _with(error, _failures(outcomes))

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
        method, named = request.method, self._servers.get(str(request.params.get("server")))
        servers = list(self._servers.values()) if named is None else [named]
        self._context.list_tools(servers)
        for connection in servers:
            for name, tool in connection.catalogue.tools.items():
                follows_server = method.endswith(name) and connection.name in method
                if method in (name, f"tools/{name}", f"tools/call/{name}") or follows_server:
                    return connection, tool
        return None

    def _no_tool(self, request: Request, servers: Sequence[Connection]) -> McpError:
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
        others = [one for one in self._servers.values() if one not in servers]
        self._context.list_tools(others)
        elsewhere = [one for one in others if name in one.catalogue.tools]
        if elsewhere:
            right = written(request.method, {**request.params, "server": elsewhere[0].name})
            return McpError(
                f"server {servers[0].name!r} has no tool {name!r}, but {_names(elsewhere)} has. Write: {right}"
            )
        unknown = self._no_such(request, "tool", {one: list(one.catalogue.tools) for one in servers})
        cut = [one for one in servers if one.catalogue.listing.is_cut]
        note = f"(the listing of server {cut[0].name!r} was cut off, so it may have more)" if cut else ""
        return McpError("\n".join(filter(None, [str(unknown), note])))

    def _no_such(self, request: Request, what: str, known: Mapping[Connection, list[str]]) -> McpError:
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

    def _only(self, request: Request, what: str, having: Sequence[Connection]) -> Connection:
        """The one server that has it; `McpError` if several have it."""
        if len(having) > 1:
            right = written(request.method, {**request.params, "server": having[0].name})
            raise McpError(
                f"{len(having)} servers have a {what} {request.name!r}: {_names(having)}. Say which. Write: {right}"
            )
        return having[0]


def call(connection: Connection, tool: Tool, arguments: Mapping[str, Any]) -> str:
    """The request that calls a tool, as the model has to write it."""
    return written("tools/call", {"server": connection.name, "name": tool.name, "arguments": arguments})


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


def _answered(outcomes: Iterable[Outcome]) -> dict[Connection, Any]:
    return {one: outcome for one, outcome in outcomes if not isinstance(outcome, McpError)}


def _failures(outcomes: Iterable[Outcome]) -> list[McpError]:
    return [outcome for _, outcome in outcomes if isinstance(outcome, McpError)]


def _with(error: McpError, failures: Iterable[McpError]) -> McpError:
    """The error, and why servers that may have what was meant could not be asked."""
    return McpError("\n".join(map(str, [error, *failures])))


def _bare(method: str) -> str:
    return "".join(char for char in method.lower() if char.isalnum())


def _names(servers: Sequence[Connection]) -> str:
    return ", ".join(repr(one.name) for one in servers)
