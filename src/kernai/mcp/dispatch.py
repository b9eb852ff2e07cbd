"""`Dispatch`: answers one block.

It runs in the thread of the protocol's handler; connections to servers run on the event loop. Every `McpError` about a
name contains the request that was probably meant, so that even a small model can correct its request in one turn.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp_types import Tool

from kernai._util.api import close_matches, likely
from kernai.mcp import language
from kernai.mcp.connection import Connection, Emit, Listing
from kernai.mcp.errors import McpError
from kernai.mcp.interaction import Interaction
from kernai.mcp.language import METHODS, Request, Returned, read_request, request_text
from kernai.mcp.schemas import example, faults, one_line, properties_of, written_out_if_possible
from kernai.registry.skill_context import SkillContext

MAX_NAMES = 1000

Listings = dict[Connection, Listing]
Failures = dict[Connection, McpError]
#: work for the adapter's event loop
Work = Callable[[Emit], Coroutine[Any, Any, Any]]


@dataclass(slots=True)
class Dispatch:
    """Answers a model's request. An `McpError` becomes the error block that the model reads.

    Events of the servers go to the call's `SkillContext`, whose cancellation cancels requests to servers.
    """

    servers: Mapping[str, Connection]
    #: performs work on the event loop, and waits for it
    run: Callable[[Work], Any]
    context: SkillContext[Any]
    pauses: bool
    #: the server that the request names; it is asked even if it failed a moment ago
    named: object = None
    #: the servers that were restarted for this request
    restarted: set[str] = field(default_factory=set)

    # ---------------------------------------------------------------------------------------------------- answering

    def answer(self, text: str) -> Returned:
        request = read_request(text)
        self.named = request.params.get("server")
        match request.method:
            case "servers/list":
                return json.dumps([one.about() for one in self.servers.values()], ensure_ascii=False)
            case "tools/describe":
                connection, tool = self._tool_now(request, self._find(request)[0])
                connection.emit_changes([tool], self.context.emit)
                return language.tool_in_full(connection.name, tool)
            case "tools/call":
                connection, tool = self._find(request)
                if faults(tool.input_schema, request.arguments):
                    connection, tool = self._tool_now(request, connection)
                    _check_arguments(request, connection, "tool", tool.input_schema, request.arguments)
                return self._perform(connection, tool, request.arguments)
            case "resources/read":
                connection = self._server_of_resource(request)
                params = {"uri": request.params["uri"]}
                return language.resource_answer(self._result(connection, "resources/read", params))
            case "prompts/get":
                return self._get_prompt(request)
            case method if method in language.LISTINGS:
                return self._list(request)
        raise self._unknown_method(request)

    def tools_of(self, server: str) -> Mapping[str, Tool]:
        """The tools of a configured server that may be called, by name. Raises `McpError` if it cannot list them."""
        self.named, connection = server, self.servers[server]
        listed, failures = self._listings([connection])
        if failures:
            raise failures[connection]
        return listed[connection].found

    def call(self, server: str, name: str, arguments: Mapping[str, Any]) -> Returned:
        """Calls a tool with arguments that have been checked already, and returns its answer."""
        tool = self.tools_of(server).get(name)
        if tool is None:
            raise McpError(f"server {server!r} has no tool {name!r} any more")
        return self._perform(self.servers[server], tool, arguments)

    def _list(self, request: Request) -> Returned:
        """Lists what each server has, or why that could not be found out."""
        kind, what, line = language.LISTINGS[request.method]
        servers = self._servers_for(request)
        listed, failures = self._listings(servers, kind, again=True)
        if not listed:
            raise _joined(failures.values())
        for connection in listed if kind == "tools" else ():
            connection.emit_changes(listed[connection].found.values(), self.context.emit)
        return "\n\n".join(
            language.section(one.name, what, map(line, listed[one].found.values()), is_cut=listed[one].is_cut)
            if one in listed else str(failures[one]) for one in servers
        )

    def _perform(self, connection: Connection, tool: Tool, arguments: Mapping[str, Any]) -> Returned:
        connection.emit_changes([tool], self.context.emit)
        params = {"name": tool.name, "arguments": dict(arguments)}
        result = self._result(connection, "tools/call", params, repeatable=is_repeatable(tool))
        if result.is_error:
            raise McpError(connection.redactor.text(language.error_text(result)))
        if tool.output_schema is not None:
            # checked in this thread: the SDK would do it on the event loop, and block all servers
            given = "structured_content" in result.model_fields_set
            wrong = faults(tool.output_schema, result.structured_content, "content") if given else ["it is missing"]
            if wrong:
                raise McpError(
                    f"server {connection.name!r} called the tool {tool.name!r}, but the structured content of the "
                    f"result does not fit the schema that it declares: "
                    f"{one_line(connection.redactor.text(wrong[0]), 300)}"
                )
        return language.tool_answer(result)

    def _get_prompt(self, request: Request) -> Returned:
        connection, prompt = self._find(request, "prompts")
        # in MCP, arguments of prompts must be texts
        arguments = {
            key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for key, value in request.arguments.items() if value is not None
        }
        inputs = prompt.arguments or []
        schema = {
            "properties": {one.name: {"type": "string"} for one in inputs},
            "required": [one.name for one in inputs if one.required], "additionalProperties": False,
        }
        _check_arguments(request, connection, "prompt", schema, arguments)
        params = {"name": prompt.name, "arguments": arguments}
        return language.prompt_answer(self._result(connection, "prompts/get", params))

    # ------------------------------------------------------------------------------------------------------- asking

    def _result(self, connection: Connection, method: str, params: dict[str, Any], *, repeatable: bool = True) -> Any:
        """The final result, once the server has all other input. Raises `McpError` if the request fails."""
        asked = Interaction(connection, method, params, pauses=self.pauses, approval=self.context.approval)
        try:  # for a lone surrogate, the SDK would end the connection, and NaN it would send as null
            json.dumps(params, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise McpError(f"{asked.what} was not sent: {error}") from None
        return self.run(lambda emit: connection.use(
            emit, self.restarted, asked.result, what=asked.what, repeatable=repeatable
        ))

    def _listings(
        self, servers: Iterable[Connection], kind: str = "tools", *, again: bool = False
    ) -> tuple[Listings, Failures]:
        """What the servers have of one kind, and the errors of those that could not be asked.

        All are asked at the same time. Without `again`, a server whose tools are known to be up to date is not asked.
        """
        found: dict[Connection, Any] = {
            one: one.tools for one in servers if kind == "tools" and one.has_listed and not again
        }
        left = [one for one in servers if one not in found]

        async def ask(emit: Emit) -> list[Listing | McpError]:
            is_only = len(self.servers) == 1
            return await asyncio.gather(*(
                one.list(emit, self.restarted, kind, is_named=is_only or one.name == self.named) for one in left
            ))

        found |= zip(left, self.run(ask) if left else (), strict=True)
        listed = {one: found[one] for one in servers if isinstance(found[one], Listing)}
        return listed, {one: error for one, error in found.items() if one not in listed}

    # ------------------------------------------------------------------------------------------------------ finding

    def _servers_for(self, request: Request) -> list[Connection]:
        """The server that the request names, or all servers if it names none."""
        if not self.servers:
            raise McpError("no servers are configured")
        name = request.params.get("server")
        if name is None:
            return list(self.servers.values())
        if name in self.servers:
            return [self.servers[name]]
        raise McpError(f"there is no server {name!r}{likely(name, self.servers, 'the servers are:')}")

    def _find(self, request: Request, kind: str = "tools", *, again: bool = False) -> tuple[Connection, Any]:
        """The tool or prompt that the request means. Raises `McpError` if there is none, or more than one."""
        name, what = request.name, kind.removesuffix("s")
        listed, failures = self._listings(self._servers_for(request), kind, again=again)
        if kind == "tools" and not any(name in one.found or name in one.refused for one in listed.values()):
            listed |= self._listings(listed, again=True)[0]  # not every server reports a new tool
        having = [one for one in listed if name in listed[one].found]
        if not having:
            raise _joined([*(self._no_such(request, what, listed) if listed else ()), *failures.values()])
        if len(having) > 1:
            right = request_text(request.method, {**request.params, "server": having[0].name})
            raise McpError(f"{len(having)} servers have a {what} {name!r}: {_names(having)}. Say which. Write: {right}")
        found = listed[having[0]].found[name]
        if kind == "tools":
            _refuse_guarded(having[0], found)
        return having[0], found

    def _tool_now(self, request: Request, owner: Connection) -> tuple[Connection, Tool]:
        """The tool as its server lists it now, because not every server reports a changed tool."""
        return self._find(Request(request.method, {**request.params, "server": owner.name}), again=True)

    def _no_such(self, request: Request, what: str, listed: Listings) -> Iterator[str]:
        """Why none of these servers has it: with the right request, with similar names, or with all names."""
        name = request.name
        for server, listing in listed.items():
            if name in listing.refused:
                why = (
                    "runs only as a task, in a form of tasks that is not supported here; others"
                    if server.config.allows(name) else "is not allowed; allowed"
                )
                may_be_called = ", ".join(listing.found) or "none"
                yield f"the tool {name!r} of server {server.name!r} {why} are: {may_be_called}"
                return
        others = [one for one in self.servers.values() if one not in listed] if what == "tool" else []
        elsewhere = [one for one, listing in self._listings(others)[0].items() if name in listing.found]
        where = f"server {next(iter(listed)).name!r} has" if len(listed) == 1 else "the servers have"
        close = [(one, found) for one in listed for found in close_matches(name, listed[one].found, 3)]
        if elsewhere or close:
            server, meant = (elsewhere[0], name) if elsewhere else close[0]
            similar = " or ".join(repr(one) for _, one in close[:3])
            hint = f", but {_names(elsewhere)} has." if elsewhere else f"; did you mean {similar}?"
            right = request_text(request.method, {**request.params, "server": server.name, "name": meant})
            yield f"{where} no {what} {name!r}{hint} Write: {right}"
        else:
            known = "; ".join(f"{one.name}: {', '.join(listed[one].found) or 'none'}" for one in listed)
            yield f"{where} no {what} {name!r}. There are: {one_line(known, MAX_NAMES)}"

    def _server_of_resource(self, request: Request) -> Connection:
        """The server that lists the resource, or the only one that has resources at all."""
        servers, uri = self._servers_for(request), request.params["uri"]
        if len(servers) == 1:
            return servers[0]
        listed, failures = self._listings(servers, "resources")
        having = [one for one in listed if uri in listed[one].found]
        able = having or [one for one in listed if "resources" in one.about().get("offers", ())]
        if len(able) == 1:
            return able[0]
        where = f"servers {_names(able)} could have it" if able else "no server has resources"
        right = request_text("resources/read", {"server": able[0].name if able else "...", "uri": uri})
        error = f"say which server {uri!r} is to be read from: {where}. Write: {right}"
        raise _joined([*([error] if listed else []), *failures.values()])

    def _unknown_method(self, request: Request) -> McpError:
        """The error for an unknown method: shows the right call if it is the name of a tool, and else the methods."""
        method, named = request.method, self.servers.get(str(request.params.get("server")))
        servers = list(self.servers.values()) if named is None else [named]
        for connection, listing in self._listings(servers)[0].items():
            for name, tool in listing.found.items():
                follows_server = method.endswith(name) and connection.name in method
                if method in (name, f"tools/{name}", f"tools/call/{name}") or follows_server:
                    _refuse_guarded(connection, tool)
                    params = {"server": connection.name, "name": name, "arguments": _arguments_of(request, tool)}
                    right = request_text("tools/call", params)
                    return McpError(f"{method!r} is a tool, not a method. Write: {right}")
        close = close_matches(method, METHODS)
        right = language.corrected({**request.params, "method": close[0] if close else None})
        known = ", ".join(METHODS)
        return McpError(f"there is no method {method!r}. The methods are: {known}. Write: {right}")


def _refuse_guarded(connection: Connection, tool: Tool) -> None:
    if tool.name in connection.guarded:
        raise McpError(
            f"the tool {tool.name!r} of server {connection.name!r} cannot be called this way: use the skill "
            f"{connection.guarded[tool.name]!r}, a command that takes the same arguments"
        )


def _check_arguments(
    request: Request, connection: Connection, what: str, schema: Mapping[str, Any], arguments: Mapping[str, Any]
) -> None:
    """Raises `McpError` if the arguments do not fit the tool or prompt, with what is wrong and the right request."""
    wrong = faults(schema, arguments)
    if wrong:
        found = "\n".join(f"- {one}" for one in wrong)
        params = {"server": connection.name, "name": request.name, "arguments": example(schema, arguments)}
        raise McpError(
            f"these arguments do not fit the {what} {request.name!r} of server {connection.name!r}, so it was not "
            f"called:\n{found}\nWrite: {request_text(request.method, params)}"
        )


def is_repeatable(tool: Tool) -> bool:
    """Whether a call may be repeated although the first attempt may have taken effect.

    The server's hints say so. A false hint harms only that server, because only its own tool is called again.
    """
    hints = tool.annotations
    return hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)


def _arguments_of(request: Request, tool: Tool) -> dict[str, Any]:
    """The arguments in a request that used the tool's name as the method."""
    known = properties_of(written_out_if_possible(tool.input_schema))
    given = {key: value for key, value in request.params.items() if key in known or key not in ("server", "name")}
    inner = given.get("arguments")
    if "arguments" not in known and isinstance(inner, Mapping):
        del given["arguments"]
        given = {**given, **inner}
    return example(tool.input_schema, given) if faults(tool.input_schema, given) else given


def _joined(reasons: Iterable[object]) -> McpError:
    return McpError("\n".join(map(str, reasons)))


def _names(servers: Iterable[Connection]) -> str:
    return ", ".join(repr(one.name) for one in servers)
