"""`Dispatch`: answers one block.

It runs in the thread of the protocol's handler; connections to servers run on the event loop. Every `McpError` about a
name contains the request that was probably meant, so that even a small model can correct its request in one turn.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from mcp import Client, MCPError
from mcp_types import HEADER_MISMATCH, Prompt, Tool

from kernai._util.api import close_matches
from kernai.mcp import language
from kernai.mcp.background import Background
from kernai.mcp.connection import Attempt, Connection, Exchange, Listing, every_page
from kernai.mcp.errors import McpError
from kernai.mcp.interaction import Interaction
from kernai.mcp.language import METHODS, Request, Returned, read_request, request_text
from kernai.mcp.schemas import example, faults, first_error, one_line, properties_of
from kernai.registry.skill_context import SkillContext

MAX_NAMES = 1000

Answer = TypeVar("Answer")
Failures = dict[Connection, McpError]
#: sends a request; its options carry the answers to the server's own requests
Send = Callable[..., Awaitable[Any]]


@dataclass(slots=True)
class Dispatch:
    """Answers a model's request. An `McpError` becomes the error block that the model reads.

    Events of the servers go to the call's `SkillContext`, whose cancellation cancels requests to servers. `guarded` has
    the tools that may be called only as skills: the skill's name by server and tool.
    """

    servers: Mapping[str, Connection]
    background: Background
    context: SkillContext[Any]
    guarded: Mapping[tuple[str, str], str]
    pauses: bool
    #: the server that the request names; the circuit breaker does not apply to it
    named: object = None
    restarted: set[str] = field(default_factory=set)

    # ---------------------------------------------------------------------------------------------------- answering

    def answer(self, text: str) -> Returned:
        request = read_request(text)
        self.named = request.params.get("server")
        match request.method:
            case "servers/list":
                return json.dumps([one.about() for one in self.servers.values()], ensure_ascii=False)
            case "tools/describe":
                connection, tool = self._tool_now(request, self._tool(request)[0])
                self._emit_changes(connection, [tool.name])
                return language.tool_in_full(connection.name, tool)
            case "tools/call":
                return self._call_tool(request)
            case "resources/read":
                return self._read_resource(request)
            case "prompts/get":
                return self._get_prompt(request)
            case method if method in language.LISTINGS:
                return self._list(request, *language.LISTINGS[method])
        raise self._unknown_method(request)

    def tools_of(self, server: str) -> dict[str, Tool]:
        """The tools of a configured server that may be called, by name. Raises `McpError` if it cannot list them."""
        self.named = server
        connection = self.servers[server]
        failures = self._list_tools([connection])
        if failures:
            raise failures[connection]
        return connection.catalogue.tools

    def call(self, server: str, name: str, arguments: Mapping[str, Any]) -> Returned:
        """Calls a tool with arguments that have been checked already, and returns its answer."""
        tool = self.tools_of(server).get(name)
        if tool is None:
            raise McpError(f"server {server!r} has no tool {name!r} any more")
        return self._perform(self.servers[server], tool, arguments)

    def _list(self, request: Request, kind: str, what: str, line: Callable[[Any], str]) -> Returned:
        """Lists what each server has, or why that could not be found out."""
        servers = self._servers_for(request)
        found, failures = self._lists(servers, kind)
        for connection in found if kind == "tools" else ():
            self._emit_changes(connection, connection.catalogue.tools)
        return "\n\n".join(
            language.section(one.name, what, map(line, found[one].found), is_cut=found[one].is_cut)
            if one in found else str(failures[one]) for one in servers
        )

    def _call_tool(self, request: Request) -> Returned:
        connection, tool = self._tool(request)
        if faults(tool.input_schema, request.arguments):
            connection, tool = self._tool_now(request, connection)
        _check_arguments(request, connection, "tool", tool.input_schema, request.arguments)
        return self._perform(connection, tool, request.arguments)

    def _perform(self, connection: Connection, tool: Tool, arguments: Mapping[str, Any]) -> Returned:
        self._emit_changes(connection, [tool.name])

        async def send(client: Client, attempt: Attempt, **options: Any) -> Any:
            async def on_progress(progress: float, total: float | None, message: str | None) -> None:
                attempt.emit({
                    "mcp": "progress", "server": connection.name, "tool": tool.name, "progress": progress,
                    "total": total, "message": message,
                })

            call = partial(
                client.session.call_tool, tool.name, dict(arguments), progress_callback=on_progress,
                allow_claimed=True, **options,
            )
            try:
                return await call()
            except MCPError as error:
                if error.code != HEADER_MISMATCH:
                    raise
            await every_page(client, "tools")  # tells the SDK which arguments must be sent as headers, too
            return await call()

        what = f"tools/call of {tool.name!r}"
        result = self._result(connection, what, send, arguments, repeatable=is_repeatable(tool))
        if result.is_error:
            raise McpError(connection.redactor.text(language.error_text(result)))
        if tool.output_schema is not None:
            # checked in this thread: the SDK would do it on the event loop, and block all servers
            given = "structured_content" in result.model_fields_set
            wrong = first_error(tool.output_schema, result.structured_content) if given else "it is missing"
            if wrong is not None:
                raise McpError(
                    f"server {connection.name!r} called the tool {tool.name!r}, but the structured content of the "
                    f"result does not fit the schema that it declares: "
                    f"{one_line(connection.redactor.text(wrong), 300)}"
                )
        return language.tool_answer(result)

    def _read_resource(self, request: Request) -> Returned:
        uri = str(request.params["uri"])
        connection = self._server_of_resource(request, uri)

        async def send(client: Client, _: Attempt, **options: Any) -> Any:
            if client.server_capabilities.resources is None:
                raise McpError(f"server {connection.name!r} has no resources")
            return await client.session.read_resource(uri, **options)

        what = f"resources/read of {uri!r}"
        return language.resource_answer(self._result(connection, what, send, uri, repeatable=True))

    def _get_prompt(self, request: Request) -> Returned:
        connection, prompt = self._prompt(request)
        # in MCP, arguments of prompts must be texts
        arguments = {
            key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for key, value in request.arguments.items() if value is not None
        }
        listed = prompt.arguments or []
        schema = {
            "properties": {one.name: {"type": "string"} for one in listed},
            "required": [one.name for one in listed if one.required], "additionalProperties": False,
        }
        _check_arguments(request, connection, "prompt", schema, arguments)

        async def send(client: Client, _: Attempt, **options: Any) -> Any:
            return await client.session.get_prompt(prompt.name, arguments, **options)

        what = f"prompts/get of {prompt.name!r}"
        return language.prompt_answer(self._result(connection, what, send, arguments, repeatable=True))

    # ------------------------------------------------------------------------------------------------------- asking

    def _result(self, connection: Connection, what: str, send: Send, given: Any, *, repeatable: bool) -> Any:
        """The server's final result, once it has all the input that it asked for. Raises `McpError` if it fails.

        `given` is what the model wants to send.
        """
        language.check_sendable(what, given)
        interaction = Interaction(connection, what, pauses=self.pauses, approval=self.context.approval)

        ask = partial(interaction.result, send)
        return self._run(lambda exchange: connection.use(exchange, ask, what=what, repeatable=repeatable))

    def _lists(self, servers: Sequence[Connection], kind: str) -> tuple[dict[Connection, Listing], Failures]:
        """What the servers have of one kind, and their errors. Raises `McpError` if all failed."""
        found, failures = self._each(servers, lambda connection, exchange: connection.list(exchange, kind))
        if not found:
            raise _joined(failures.values())
        return found, failures

    def _list_tools(self, servers: Sequence[Connection], *, again: bool = False) -> Failures:
        """Lists the tools where the catalogue is out of date, or everywhere with `again`. Returns the errors."""
        old = [one for one in servers if again or not (one.is_open and one.catalogue.is_fresh)]
        return self._each(old, Connection.refresh)[1]

    def _emit_changes(self, connection: Connection, tools: Iterable[str]) -> None:
        """Emits an event for each of the tools whose definition has changed since it was first listed."""
        for name in tools:
            change = connection.catalogue.change(name)
            if change is not None:
                self.context.emit(connection.redactor.data(change))

    def _each(
        self, servers: Sequence[Connection], ask: Callable[[Connection, Exchange], Awaitable[Answer]]
    ) -> tuple[dict[Connection, Answer], Failures]:
        """Asks several servers at the same time, with the `circuit_breaker`. Returns their answers and errors."""
        answers: dict[Connection, Answer] = {}
        failures: Failures = {}

        async def one(connection: Connection, exchange: Exchange) -> None:
            try:
                with connection.circuit_breaker(is_named=connection.name == self.named or len(self.servers) == 1):
                    answers[connection] = await ask(connection, exchange)
            except McpError as error:
                failures[connection] = error

        async def each(exchange: Exchange) -> None:
            await asyncio.gather(*(one(connection, exchange) for connection in servers))

        if servers:
            self._run(each)
        return {one: answers[one] for one in servers if one in answers}, failures

    def _run(self, work: Callable[[Exchange], Coroutine[Any, Any, Answer]]) -> Answer:
        return self.background.run(
            lambda emit: work(Exchange(emit, self.restarted)), self.context.emit, lambda: self.context.cancelled
        )

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
        close = close_matches(name, self.servers)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise McpError(f"there is no server {name!r}; the servers are: {', '.join(self.servers)}.{hint}")

    def _tool(self, request: Request, *, again: bool = False) -> tuple[Connection, Tool]:
        """The tool that the request means. Raises `McpError` if there is none, or more than one."""
        servers = self._servers_for(request)
        failures = self._list_tools(servers, again=again)
        if not any(request.name in one.catalogue.listed for one in servers):  # not every server reports a new tool
            self._list_tools([one for one in servers if one.is_open], again=True)
        if not any(request.name in one.catalogue.tools for one in servers):
            asked = [one for one in servers if one not in failures]
            raise _joined([*([self._no_tool(request, asked)] if asked else []), *failures.values()])
        connection, tool = _only(request, "tool", {one: one.catalogue.tools for one in servers})
        self._refuse_guarded(connection, tool)
        return connection, tool

    def _tool_now(self, request: Request, owner: Connection) -> tuple[Connection, Tool]:
        """The tool as its server lists it now, because not every server reports a changed tool."""
        return self._tool(Request(request.method, {**request.params, "server": owner.name}), again=True)

    def _prompt(self, request: Request) -> tuple[Connection, Prompt]:
        """The prompt that the request means. Raises `McpError` if there is none, or more than one."""
        found, failures = self._lists(self._servers_for(request), "prompts")
        known = {one: {prompt.name: prompt for prompt in prompts.found} for one, prompts in found.items()}
        if not any(request.name in prompts for prompts in known.values()):
            raise _joined([_no_such(request, "prompt", known), *failures.values()])
        return _only(request, "prompt", known)

    def _server_of_resource(self, request: Request, uri: str) -> Connection:
        """The server that lists the resource, or the only one that has resources at all."""
        servers = self._servers_for(request)
        if len(servers) == 1:
            return servers[0]
        found, failures = self._lists(servers, "resources")
        having = [one for one, resources in found.items() if any(resource.uri == uri for resource in resources.found)]
        able = having or [one for one in found if "resources" in one.about().get("offers", ())]
        if len(able) == 1:
            return able[0]
        where = f"servers {_names(able)} could have it" if able else "no server has resources"
        right = request_text("resources/read", {"server": able[0].name if able else "...", "uri": uri})
        error = McpError(f"say which server {uri!r} is to be read from: {where}. Write: {right}")
        raise _joined([error, *failures.values()])

    def _unknown_method(self, request: Request) -> McpError:
        """The error for an unknown method: shows the right call if it is the name of a tool, and else the methods."""
        known = f"there is no method {request.method!r}. The methods are: {', '.join(METHODS)}."
        close = close_matches(request.method, METHODS)
        if close and _bare(close[0]) == _bare(request.method):
            return McpError(f"{known} Write: {request_text(close[0], request.params)}")
        found = self._tool_called(request)
        if found is not None:
            connection, tool = found
            self._refuse_guarded(connection, tool)
            right = language.tool_call(connection.name, tool, _arguments_of(request, tool))
            return McpError(f"{request.method!r} is a tool, not a method. Write: {right}")
        hint = f" Did you mean {close[0]!r}?" if close else ""
        general = request_text("tools/call", {"name": "TOOL", "arguments": {}})
        return McpError(f"{known}{hint} A tool is called with {general}")

    def _refuse_guarded(self, connection: Connection, tool: Tool) -> None:
        skill = self.guarded.get((connection.name, tool.name))
        if skill is not None:
            raise McpError(
                f"the tool {tool.name!r} of server {connection.name!r} cannot be called this way: use the skill "
                f"{skill!r}, a command that takes the same arguments"
            )

    def _tool_called(self, request: Request) -> tuple[Connection, Tool] | None:
        """The tool whose name was written as the method, alone or after its server's name."""
        method, named = request.method, self.servers.get(str(request.params.get("server")))
        servers = list(self.servers.values()) if named is None else [named]
        self._list_tools(servers)
        for connection in servers:
            for name, tool in connection.catalogue.tools.items():
                follows_server = method.endswith(name) and connection.name in method
                if method in (name, f"tools/{name}", f"tools/call/{name}") or follows_server:
                    return connection, tool
        return None

    def _no_tool(self, request: Request, servers: Sequence[Connection]) -> McpError:
        """The error that says why none of these servers has the tool."""
        name = request.name
        owner = next((one for one in servers if name in one.catalogue.listed), None)
        if owner is not None:
            allowed = ", ".join(owner.catalogue.tools) or "none"
            if owner.config.allows(name):
                return McpError(
                    f"the tool {name!r} of server {owner.name!r} runs only as a task, in a form of tasks that is not "
                    f"supported here; others are: {allowed}"
                )
            return McpError(f"the tool {name!r} of server {owner.name!r} is not allowed; allowed are: {allowed}")
        others = [one for one in self.servers.values() if one not in servers]
        self._list_tools(others)
        elsewhere = [one for one in others if name in one.catalogue.tools]
        if elsewhere:
            right = request.with_params(server=elsewhere[0].name)
            return McpError(
                f"server {servers[0].name!r} has no tool {name!r}, but {_names(elsewhere)} has. Write: {right}"
            )
        cut = [
            McpError(f"(the listing of server {one.name!r} was cut off, so it may have more)")
            for one in servers if one.catalogue.is_cut
        ]
        return _joined([_no_such(request, "tool", {one: one.catalogue.tools for one in servers}), *cut])


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


def _only(request: Request, what: str, known: Mapping[Connection, Mapping[str, Answer]]) -> tuple[Connection, Answer]:
    """The tool or prompt of the server that has it. Raises `McpError` if several have it."""
    having = [one for one, names in known.items() if request.name in names]
    if len(having) > 1:
        right = request.with_params(server=having[0].name)
        raise McpError(
            f"{len(having)} servers have a {what} {request.name!r}: {_names(having)}. Say which. Write: {right}"
        )
    return having[0], known[having[0]][request.name]


def _no_such(request: Request, what: str, known: Mapping[Connection, Collection[str]]) -> McpError:
    """The error for a name that does not exist, with similar names and the right request, or with all names."""
    name = request.name
    close = [(server, found) for server, names in known.items() for found in close_matches(name, names, 3)]
    where = f"server {next(iter(known)).name!r} has" if len(known) == 1 else "the servers have"
    if close:
        server, found = close[0]
        hint = " or ".join(repr(one) for _, one in close[:3])
        right = request.with_params(server=server.name, name=found)
        return McpError(f"{where} no {what} {name!r}; did you mean {hint}? Write: {right}")
    everything = "; ".join(f"{server.name}: {', '.join(names) or 'none'}" for server, names in known.items())
    return McpError(f"{where} no {what} {name!r}. There are: {one_line(everything, MAX_NAMES)}")


def _arguments_of(request: Request, tool: Tool) -> dict[str, Any]:
    """The arguments in a request that used the tool's name as the method."""
    known = properties_of(tool.input_schema)
    given = {key: value for key, value in request.params.items() if key in known or key not in ("server", "name")}
    inner = given.get("arguments")
    if "arguments" not in known and isinstance(inner, Mapping):
        del given["arguments"]
        given = {**given, **inner}
    return {**example(tool.input_schema, given), **given}


def _joined(errors: Iterable[McpError]) -> McpError:
    """Combines several errors into one, such as the reasons why each server failed."""
    return McpError("\n".join(map(str, errors)))


def _bare(method: str) -> str:
    return "".join(char for char in method.lower() if char.isalnum())


def _names(servers: Sequence[Connection]) -> str:
    return ", ".join(repr(one.name) for one in servers)
