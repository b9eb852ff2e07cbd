"""`Turn`: answers one block, method by method."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from mcp import Client, MCPError
from mcp_types import HEADER_MISMATCH, Tool

from kernai.mcp import rendering
from kernai.mcp.background import Background
from kernai.mcp.connection import Attempt, Connection, every_page
from kernai.mcp.errors import McpError
from kernai.mcp.interaction import Interaction
from kernai.mcp.lookup import Servers, call
from kernai.mcp.rendering import Returned
from kernai.mcp.requests import Request, read_request, written
from kernai.mcp.schemas import example, faults, first_error
from kernai.registry.skill_context import SkillContext

#: sends a request, with the options that carry the answers to what the server has asked for
Send = Callable[[Client, Attempt, dict[str, Any]], Awaitable[Any]]


class Turn:
    """What the model reads for a block. A `McpError` becomes the error block."""

    def __init__(
        self,
        servers: Mapping[str, Connection],
        background: Background,
        context: SkillContext[Any],
        guarded: Mapping[tuple[str, str], str],
        *,
        pauses: bool = False,
    ) -> None:
        self._pauses = pauses
        self._servers = Servers(servers, background, context, guarded)

    def answer(self, text: str) -> Returned:
        request = read_request(text)
        self._servers.named = request.params.get("server")
        match request.method:
            case "servers/list":
                return json.dumps([one.about() for one in self._servers.all.values()], ensure_ascii=False)
            case "tools/describe":
                connection, tool = self._servers.tool(request)
                self._servers.emit_changes(connection, [tool.name])
                return rendering.tool_in_full(connection.name, tool)
            case "tools/call":
                return self._call_tool(request)
            case "resources/read":
                return self._read_resource(request)
            case "prompts/get":
                return self._get_prompt(request)
            case method if method in rendering.LISTINGS:
                return self._list(request, *rendering.LISTINGS[method])
        raise self._servers.unknown_method(request)

    def _list(self, request: Request, kind: str, what: str, line: Callable[[Any], str]) -> Returned:
        """What each server has, or why that is not known."""
        servers = self._servers.of(request)
        found, failures = self._servers.lists(servers, kind)
        for connection in found if kind == "tools" else ():
            self._servers.emit_changes(connection, connection.catalogue.tools)
        return "\n\n".join(
            rendering.section(one.name, what, map(line, found[one]), is_cut=found[one].is_cut)
            if one in found else str(failures[one]) for one in servers
        )

    def _call_tool(self, request: Request) -> Returned:
        connection, tool = self._servers.tool(request)
        arguments = request.arguments
        wrong = faults(tool.input_schema, arguments)
        if wrong:
            found = "\n".join(f"- {one}" for one in wrong)
            raise McpError(
                f"these arguments do not fit the tool {tool.name!r} of server {connection.name!r}, so it was not "
                f"called:\n{found}\nWrite: {call(connection, tool, example(tool.input_schema, arguments))}"
            )
        return self._perform(connection, tool, arguments)

    def tools_of(self, server: str) -> dict[str, Tool]:
        """The tools of a configured server that may be called, by name; `McpError` if it cannot be asked."""
        self._servers.named = server
        connection = self._servers.all[server]
        failures = self._servers.list_tools([connection])
        if failures:
            raise failures[connection]
        return connection.catalogue.tools

    def call(self, server: str, name: str, arguments: Mapping[str, Any]) -> Returned:
        """What a tool gives for arguments that have been checked."""
        tool = self.tools_of(server).get(name)
        if tool is None:
            raise McpError(f"server {server!r} has no tool {name!r} any more")
        return self._perform(self._servers.all[server], tool, arguments)

    def _perform(self, connection: Connection, tool: Tool, arguments: Mapping[str, Any]) -> Returned:
        self._servers.emit_changes(connection, [tool.name])

        async def send(client: Client, attempt: Attempt, options: dict[str, Any]) -> Any:
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
            await every_page(client, "tools")  # from which the SDK learns which arguments are headers too
            return await call()

        result = self._result(connection, f"tools/call of {tool.name!r}", send, repeatable=is_repeatable(tool))
        if result.is_error:
            raise McpError(connection.redactor.text(rendering.error_text(result)))
        if tool.output_schema is not None:
            # here, and not on the event loop, where the SDK would do it and all servers would have to wait
            given = "structured_content" in result.model_fields_set
            wrong = first_error(tool.output_schema, result.structured_content) if given else "it is missing"
            if wrong is not None:
                raise McpError(
                    f"server {connection.name!r} called the tool {tool.name!r}, but the structured content of the "
                    f"result does not fit the schema that it declares: "
                    f"{rendering.one_line(connection.redactor.text(wrong), 300)}"
                )
        return rendering.tool_answer(result)

    def _read_resource(self, request: Request) -> Returned:
        uri = str(request.params["uri"])
        connection = self._servers.server_of_resource(request, uri)

        async def send(client: Client, _: Attempt, options: dict[str, Any]) -> Any:
            if client.server_capabilities.resources is None:
                raise McpError(f"server {connection.name!r} has no resources")
            return await client.session.read_resource(uri, **options)

        return rendering.resource_answer(self._result(connection, f"resources/read of {uri!r}", send, repeatable=True))

    def _get_prompt(self, request: Request) -> Returned:
        connection, prompt = self._servers.prompt(request)
        # the protocol knows texts only
        arguments = {
            key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for key, value in request.arguments.items()
        }
        lacking = [one.name for one in prompt.arguments or [] if one.required and one.name not in arguments]
        if lacking:
            full = {**request.arguments, **dict.fromkeys(lacking, "...")}
            right = written("prompts/get", {"server": connection.name, "name": prompt.name, "arguments": full})
            raise McpError(f"the prompt {prompt.name!r} needs {', '.join(lacking)}. Write: {right}")

        async def send(client: Client, _: Attempt, options: dict[str, Any]) -> Any:
            return await client.session.get_prompt(prompt.name, arguments, **options)

        what = f"prompts/get of {prompt.name!r}"
        return rendering.prompt_answer(self._result(connection, what, send, repeatable=True))

    def _result(self, connection: Connection, what: str, send: Send, *, repeatable: bool) -> Any:
        """The server's final result: what it needs before is asked for."""
        interaction = Interaction(connection, what, pauses=self._pauses, approval=self._servers.skill_context.approval)

        async def ask(client: Client, attempt: Attempt) -> Any:
            return await interaction.result(client, attempt, lambda responses, state: send(client, attempt, {
                "input_responses": responses, "request_state": state, "allow_input_required": True,
            }))

        return self._servers.ask(connection, ask, what, repeatable=repeatable)


def is_repeatable(tool: Tool) -> bool:
    """Whether a call may be repeated when nobody knows if it took effect.

    The server says so. A false hint harms only the server that gave it: nothing but its own tool is called again.
    """
    hints = tool.annotations
    return hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)
