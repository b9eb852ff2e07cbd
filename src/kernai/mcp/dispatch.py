"""`Turn`: answers one block, method by method."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from mcp import Client
from mcp_types import Tool

from kernai.mcp import rendering
from kernai.mcp.arguments import example, faults
from kernai.mcp.background import Background, Report
from kernai.mcp.connection import Connection, Exchange
from kernai.mcp.errors import McpError
from kernai.mcp.lookup import Finder, call
from kernai.mcp.request_context import RequestContext, listed
from kernai.mcp.requests import METHODS, Request, read_request, written
from kernai.mcp.validation import first_error
from kernai.registry.skill_context import SkillContext
from kernai.values.message import Part


class Turn:
    """What the model reads for a block. A `McpError` out of it becomes the error block."""

    def __init__(
        self, servers: Mapping[str, Connection], background: Background, context: SkillContext[Any]
    ) -> None:
        self._context = RequestContext(servers, background, context)
        self._finder = Finder(self._context)
        self._methods: dict[str, Callable[[Request], list[Part]]] = {
            "servers/list": self._list_servers,
            "tools/list": self._list_tools,
            "tools/describe": self._describe_tool,
            "tools/call": self._call_tool,
            "resources/list": self._list_resources,
            "resources/templates/list": self._list_templates,
            "resources/read": self._read_resource,
            "prompts/list": self._list_prompts,
            "prompts/get": self._get_prompt,
        }

    def answer(self, text: str) -> list[Part]:
        request = read_request(text)
        self._context.named = request.params.get("server")
        if request.method not in METHODS:
            raise self._finder.unknown_method(request)
        return self._methods[request.method](request)

    def _list_servers(self, _: Request) -> list[Part]:
        return [json.dumps([one.about() for one in self._context.servers.values()], ensure_ascii=False)]

    def _list_tools(self, request: Request) -> list[Part]:
        async def ask(connection: Connection, exchange: Exchange) -> None:
            await connection.refresh(exchange, force=True)

        sections = []
        for connection, outcome in self._context.any(self._finder.servers(request), ask):
            if isinstance(outcome, McpError):
                sections.append(str(outcome))
                continue
            tools = connection.catalogue.tools
            self._context.tell_changes(connection, tools)
            sections.append(rendering.section(connection.name, "tool", map(rendering.tool_line, tools.values())))
        return ["\n\n".join(sections)]

    def _describe_tool(self, request: Request) -> list[Part]:
        connection, tool = self._finder.tool(request)
        self._context.tell_changes(connection, [tool.name])
        return [rendering.tool_in_full(connection.name, tool)]

    def _call_tool(self, request: Request) -> list[Part]:
        connection, tool = self._finder.tool(request)
        arguments = request.arguments
        wrong = faults(tool.input_schema, arguments)
        if wrong:
            told = "\n".join(f"- {one}" for one in wrong)
            raise McpError(
                f"these arguments do not fit the tool {tool.name!r} of server {connection.name!r}, so it was not "
                f"called:\n{told}\nWrite: {call(connection, tool, example(tool.input_schema, arguments))}"
            )
        return self._perform(connection, tool, arguments)

    def tools_of(self, server: str) -> dict[str, Tool]:
        """The tools of a configured server that may be called, by name; `McpError` where it cannot be asked."""
        self._context.named = server
        connection = self._context.servers[server]
        failures = self._context.know_tools([connection])
        if failures:
            raise failures[connection]
        return connection.catalogue.tools

    def call(self, server: str, name: str, arguments: Mapping[str, Any]) -> list[Part]:
        """What a tool gives for arguments that have been checked."""
        tool = self.tools_of(server).get(name)
        if tool is None:
            raise McpError(f"server {server!r} has no tool {name!r} any more")
        return self._perform(self._context.servers[server], tool, arguments)

    def _perform(self, connection: Connection, tool: Tool, arguments: Mapping[str, Any]) -> list[Part]:
        self._context.tell_changes(connection, [tool.name])

        async def ask(client: Client, report: Report) -> Any:
            async def on_progress(progress: float, total: float | None, message: str | None) -> None:
                connection.shown(report)({
                    "mcp": "progress", "server": connection.name, "tool": tool.name, "progress": progress,
                    "total": total, "message": message,
                })

            return await client.call_tool(tool.name, dict(arguments), progress_callback=on_progress)

        result = self._context.one(connection, ask, f"tools/call of {tool.name!r}", repeatable=is_repeatable(tool))
        if result.is_error:
            raise McpError(connection.redactor.text(rendering.error_text(result)))
        self._check_result(connection, tool, result.structured_content)
        return rendering.tool_parts(result)

    @staticmethod
    def _check_result(connection: Connection, tool: Tool, structured: Any) -> None:
        """Here, and not on the event loop, where the SDK would do it and all servers would have to wait."""
        if tool.output_schema is None:
            return
        wrong = "it is missing" if structured is None else first_error(tool.output_schema, structured)
        if wrong is not None:
            raise McpError(
                f"server {connection.name!r} called the tool {tool.name!r}, but the structured content of the result "
                f"does not fit the schema that it declares: {rendering.one_line(connection.redactor.text(wrong), 300)}"
            )

    def _list_resources(self, request: Request) -> list[Part]:
        return self._list(request, "resource", "resources", rendering.resource_line)

    def _list_templates(self, request: Request) -> list[Part]:
        return self._list(request, "resource template", "resource_templates", rendering.template_line)

    def _list_prompts(self, request: Request) -> list[Part]:
        return self._list(request, "prompt", "prompts", rendering.prompt_line)

    def _list(self, request: Request, what: str, field: str, line: Callable[[Any], str]) -> list[Part]:
        sections = []
        for connection, outcome in self._context.any(self._finder.servers(request), listed(field)):
            if isinstance(outcome, McpError):
                sections.append(str(outcome))
            else:
                sections.append(rendering.section(connection.name, what, map(line, outcome)))
        return ["\n\n".join(sections)]

    def _read_resource(self, request: Request) -> list[Part]:
        uri = str(request.params["uri"])
        connection = self._finder.server_of_resource(request, uri)

        async def ask(client: Client, _: Report) -> Any:
            if client.server_capabilities.resources is None:
                raise McpError(f"server {connection.name!r} has no resources")
            return await client.read_resource(uri)

        result = self._context.one(connection, ask, f"resources/read of {uri!r}", repeatable=True)
        return rendering.resource_parts(result)

    def _get_prompt(self, request: Request) -> list[Part]:
        connection, prompt = self._finder.prompt(request)
        # the protocol knows texts only
        arguments = {
            key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for key, value in request.arguments.items()
        }
        missing = [one.name for one in prompt.arguments or [] if one.required and one.name not in arguments]
        if missing:
            full = {**request.arguments, **dict.fromkeys(missing, "...")}
            right = written("prompts/get", {"server": connection.name, "name": prompt.name, "arguments": full})
            raise McpError(f"the prompt {prompt.name!r} needs {', '.join(missing)}. Write: {right}")

        async def ask(client: Client, _: Report) -> Any:
            return await client.get_prompt(prompt.name, arguments)

        result = self._context.one(connection, ask, f"prompts/get of {prompt.name!r}", repeatable=True)
        return rendering.prompt_parts(result)


def is_repeatable(tool: Tool) -> bool:
    """Whether a call may be made again when nobody knows what became of it.

    The server says so. A false hint harms nobody but the server that gave it: only its own tool is called again.
    """
    hints = tool.annotations
    return hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)
