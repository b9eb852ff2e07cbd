"""Finds the server, tool or prompt that a request means.

Every `McpError` here contains the request that was probably meant, so that a small model can correct its own in one
turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mcp_types import Prompt, Tool

from kernai.mcp.arguments import close_names, example
from kernai.mcp.connection import Connection
from kernai.mcp.errors import McpError
from kernai.mcp.rendering import one_line
from kernai.mcp.request_context import RequestContext, listed
from kernai.mcp.requests import METHODS, Request, written

MAX_NAMES = 1000


class Finder:
    """Looks things up; asks servers only for what is not known yet."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
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
        close = close_names(name, list(self._servers))
        likely = f" Did you mean {close[0]!r}?" if close else ""
        raise McpError(f"there is no server {name!r}; the servers are: {', '.join(self._servers)}.{likely}")

    def tool(self, request: Request) -> tuple[Connection, Tool]:
        """The tool that is meant; `McpError` where there is none, or more than one."""
        name, servers = request.name, self.servers(request)
        failures = self._context.know_tools(servers)
        if not any(one.catalogue.has(name) for one in servers):  # not every server tells of a new tool
            self._context.know_tools([one for one in servers if one.is_open], anew=True)
        having = [one for one in servers if name in one.catalogue.tools]
        if len(having) == 1:
            return having[0], having[0].catalogue.tools[name]
        if having:
            raise self._ambiguous(request, "tool", having)
        if failures and len(failures) == len(servers):
            raise McpError("\n".join(map(str, failures.values())))
        raise _with(self._no_tool(request, [one for one in servers if one not in failures]), failures.values())

    def prompt(self, request: Request) -> tuple[Connection, Prompt]:
        """The prompt that is meant; `McpError` where there is none, or more than one."""
        known: dict[Connection, dict[str, Prompt]] = {}
        failures: list[McpError] = []
        for connection, outcome in self._context.any(self.servers(request), listed("prompts")):
            if isinstance(outcome, McpError):
                failures.append(outcome)
            else:
                known[connection] = {one.name: one for one in outcome}
        having = [one for one in known if request.name in known[one]]
        if len(having) == 1:
            return having[0], known[having[0]][request.name]
        if having:
            raise self._ambiguous(request, "prompt", having)
        raise _with(self._no_such(request, "prompt", {one: list(names) for one, names in known.items()}), failures)

    def server_of_resource(self, request: Request, uri: str) -> Connection:
        """The server that lists the resource, or the only one that has any."""
        servers = self.servers(request)
        if len(servers) == 1:
            return servers[0]
        outcomes = self._context.any(servers, listed("resources"))
        answered = {one: outcome for one, outcome in outcomes if not isinstance(outcome, McpError)}
        having = [one for one, found in answered.items() if any(resource.uri == uri for resource in found)]
        able = having or [one for one in answered if one.offers("resources")]
        if len(able) == 1:
            return able[0]
        where = f"servers {_names(able)} could have it" if able else "no server has resources"
        right = written("resources/read", {"server": able[0].name if able else "...", "uri": uri})
        failures = [outcome for _, outcome in outcomes if isinstance(outcome, McpError)]
        raise _with(McpError(f"say which server {uri!r} is to be read from: {where}. Write: {right}"), failures)

    def unknown_method(self, request: Request) -> McpError:
        """A tool's name taken for a method is answered with the call that was meant; else the list is told."""
        known = f"there is no method {request.method!r}. The methods are: {', '.join(METHODS)}."
        close = close_names(request.method, list(METHODS))
        if close and _bare(close[0]) == _bare(request.method):
            return McpError(f"{known} Write: {written(close[0], request.params)}")
        found = self._tool_called(request)
        if found is not None:
            connection, tool = found
            right = call(connection, tool, _arguments_of(request, tool))
            return McpError(f"{request.method!r} is a tool, not a method. Write: {right}")
        likely = f" Did you mean {close[0]!r}?" if close else ""
        general = written("tools/call", {"name": "TOOL", "arguments": {}})
        return McpError(f"{known}{likely} A tool is called with {general}")

    def _tool_called(self, request: Request) -> tuple[Connection, Tool] | None:
        """The tool whose name stands where a method should, alone or behind its server's name."""
        named = self._servers.get(str(request.params.get("server")))
        servers = list(self._servers.values()) if named is None else [named]
        self._context.know_tools(servers)
        for connection in servers:
            for name, tool in connection.catalogue.tools.items():
                is_behind_server = request.method.endswith(name) and connection.name in request.method
                if request.method in (name, f"tools/{name}", f"tools/call/{name}") or is_behind_server:
                    return connection, tool
        return None

    def _no_tool(self, request: Request, servers: Sequence[Connection]) -> McpError:
        name = request.name
        barred = [one for one in servers if one.catalogue.has(name)]
        if barred:
            allowed = ", ".join(barred[0].catalogue.tools) or "none"
            return McpError(f"the tool {name!r} of server {barred[0].name!r} is not allowed; allowed are: {allowed}")
        others = [one for one in self._servers.values() if one not in servers]
        self._context.know_tools(others)
        elsewhere = [one for one in others if name in one.catalogue.tools]
        if elsewhere:
            right = written(request.method, {**request.params, "server": elsewhere[0].name})
            return McpError(
                f"server {servers[0].name!r} has no tool {name!r}, but {_names(elsewhere)} has. Write: {right}"
            )
        return self._no_such(request, "tool", {one: list(one.catalogue.tools) for one in servers})

    def _no_such(self, request: Request, what: str, known: Mapping[Connection, list[str]]) -> McpError:
        """For a name that does not exist: the closest ones and the right request, or all there are."""
        name = request.name
        close = [(server, found) for server, names in known.items() for found in close_names(name, names)]
        where = f"server {next(iter(known)).name!r} has" if len(known) == 1 else "the servers have"
        if close:
            server, found = close[0]
            right = written(request.method, {**request.params, "server": server.name, "name": found})
            likely = " or ".join(repr(one) for _, one in close[:3])
            return McpError(f"{where} no {what} {name!r}; did you mean {likely}? Write: {right}")
        everything = "; ".join(f"{server.name}: {', '.join(names) or 'none'}" for server, names in known.items())
        return McpError(f"{where} no {what} {name!r}. There are: {one_line(everything, MAX_NAMES)}")

    def _ambiguous(self, request: Request, what: str, having: Sequence[Connection]) -> McpError:
        right = written(request.method, {**request.params, "server": having[0].name})
        return McpError(
            f"{len(having)} servers have a {what} {request.name!r}: {_names(having)}. Say which. Write: {right}"
        )


def call(connection: Connection, tool: Tool, arguments: Mapping[str, Any]) -> str:
    """The request that calls a tool, as the model has to write it."""
    return written("tools/call", {"server": connection.name, "name": tool.name, "arguments": arguments})


def _arguments_of(request: Request, tool: Tool) -> dict[str, Any]:
    """The arguments in the parameters of a request that took the tool's name for a method."""
    known = tool.input_schema.get("properties")
    known = known if isinstance(known, Mapping) else {}
    given = {key: value for key, value in request.params.items() if key in known or key not in ("server", "name")}
    inner = given.get("arguments")
    if "arguments" not in known and isinstance(inner, Mapping):
        del given["arguments"]
        given = {**given, **inner}
    return {**given, **{key: value for key, value in example(tool.input_schema, given).items() if key not in given}}


def _with(error: McpError, failures: Iterable[McpError]) -> McpError:
    """The error, and why servers that may have what was meant were of no use."""
    return McpError("\n".join(map(str, [error, *failures])))


def _bare(method: str) -> str:
    return "".join(sign for sign in method.lower() if sign.isalnum())


def _names(servers: Sequence[Connection]) -> str:
    return ", ".join(repr(one.name) for one in servers)
