"""Servers handed in by the caller: in memory, as clients, as transports; in the revision of 2026-07-28 and before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.server.lowlevel import Server as SdkServer
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool

import kernai
from kernai import Agent, MockProvider
from kernai.mcp import Adapter, setup
from kernai.testing.contracts import at_once
from tests.mcp.support import RAW_SERVER, ask, call


def counter() -> MCPServer:
    server = MCPServer("counter")

    @server.tool()
    async def count(to: int, ctx: Context) -> str:
        """Counts, and reports progress."""
        for number in range(to):
            await ctx.report_progress(number + 1, to, f"at {number + 1}")
        return f"counted to {to}"

    @server.tool()
    async def grow(ctx: Context) -> str:
        """Changes the definition of `grow`, and says so."""
        server.remove_tool("grow")
        server.add_tool(lambda depth: depth, name="grow", description="Another one.")
        await ctx.notify_tools_changed()
        return "grown"

    return server


SOURCES: dict[str, Callable[[], Any]] = {
    "a server in memory": counter,
    "a function that makes a server": lambda: counter,
    "a client": lambda: Client(counter()),
    "a client of an older revision": lambda: Client(counter(), mode="legacy"),
}


@pytest.mark.parametrize("made", SOURCES)
def test_a_server_can_be_handed_in_as(made: str) -> None:
    with setup({}, {"counter": SOURCES[made]()}, register=False) as adapter:
        answer = call(adapter, "count", to=2)
        assert answer.text == "counted to 2"
        assert answer.events == [
            {"mcp": "progress", "server": "counter", "tool": "count", "progress": n, "total": 2, "message": f"at {n}"}
            for n in (1, 2)
        ]


def test_a_transport_that_a_factory_makes_is_restarted_too() -> None:
    def transport() -> Any:
        import sys

        return stdio_client(StdioServerParameters(command=sys.executable, args=[str(RAW_SERVER)]))

    with setup({}, {"raw": transport}, register=False) as adapter:
        first = call(adapter, "pid").text
        assert "died during tools/call of 'die'" in str(call(adapter, "die").error)
        assert call(adapter, "pid").text != first


def test_a_factory_that_fails_is_reported() -> None:
    def broken() -> Any:
        raise RuntimeError("no such server today")

    with setup({}, {"it": broken}, register=False) as adapter:
        for answer in (call(adapter, "x"), ask(adapter, {"method": "tools/list"})):
            assert answer.error == "server 'it' cannot be reached: no such server today"


def chain(levels: int) -> dict[str, Any]:
    each = {f"l{n}": {"allOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 2} for n in range(levels)}
    return {"type": "object", "$ref": "#/$defs/l0", "$defs": {**each, f"l{levels}": {"required": ["a"]}}}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("schema, given, message", [
    ({"type": "object", "required": ["a"]}, {"a": 1}, None),
    ({"type": "object", "properties": {"a": {"type": "string"}}}, {"a": 1}, "1 is not of type 'string'"),
    ({"type": "object", "required": ["a"]}, {"b": 1}, "a: required, but missing"),
    ({"type": "object", "required": ["a"]}, None, "it is missing"),
    (chain(28), {"a": 1}, None),
    ({"type": "object", "properties": {"a": {"pattern": "(a+)+$"}}}, {"a": "a" * 5000 + "!"}, None),
])
def test_a_result_is_held_against_its_schema_within_bounds(
    schema: dict[str, Any], given: dict[str, Any] | None, message: str | None, mode: str
) -> None:
    async def listing(*_: Any) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="give", input_schema={"type": "object"}, output_schema=schema)])

    async def give(*_: Any) -> CallToolResult:
        return CallToolResult(content=[TextContent(text="given")], structured_content=given)

    server = SdkServer("giver", on_list_tools=listing, on_call_tool=give)
    with setup({"servers": {"it": {"timeout": 20}}}, {"it": lambda: Client(server, mode=mode)}, register=False) as adapter:
        answer = call(adapter, "give")
        if message is None:
            assert answer.text.startswith("given")
        else:
            assert str(answer.error).startswith("server 'it' called the tool 'give', but the structured content of the result")
            assert message in str(answer.error)


def told_changes(adapter: Adapter) -> list[Any]:
    return [event["changed"] for event in ask(adapter, {"method": "tools/list"}).events]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_changed_definition_is_noticed_in_both_revisions(mode: str) -> None:
    with setup({}, {"counter": lambda: Client(counter(), mode=mode)}, register=False) as adapter:
        assert told_changes(adapter) == []
        assert call(adapter, "grow").text == "grown"
        events: list[Any] = []
        described = {"method": "tools/describe", "params": {"name": "grow"}}
        for _ in range(1000 if mode == "auto" else 0):  # the server says it on its own time, and nothing is listed before it does
            events = ask(adapter, described).events
            if events:
                break
        if mode == "auto":  # this SDK's server notifies no clients of older revisions; the raw one does
            assert [event["changed"] for event in events] == [["description", "inputSchema", "outputSchema"]]
        assert told_changes(adapter) == [["description", "inputSchema", "outputSchema"]]


@asynccontextmanager
async def closed_at_once() -> AsyncIterator[Any]:
    import anyio

    send, receive = anyio.create_memory_object_stream[Any](0)
    other_send, other_receive = anyio.create_memory_object_stream[Any](0)
    send.close()
    async with receive, other_send, other_receive:
        yield receive, other_send


def test_a_connection_that_closes_at_once_is_reported_without_endless_retries() -> None:
    made: list[int] = []

    def transport() -> Any:
        made.append(1)
        return closed_at_once()

    with setup({}, {"it": transport}, register=False) as adapter:
        assert "server 'it' cannot be reached" in str(call(adapter, "x").error)
    assert len(made) == 1


def test_a_callback_may_run_an_agent_that_uses_the_same_servers() -> None:
    from mcp_types import ElicitResult

    answers: list[Any] = []

    def elicitation(context: Any, params: Any) -> ElicitResult:
        provider = MockProvider('<block type="mcp">{"method": "tools/call", "params": {"name": "pid"}}</block>', "<final>me</final>")
        agent = Agent(instructions="", provider=provider, protocols=[adapter.protocol])
        answers.append(kernai.run(agent, params.message))
        return ElicitResult(action="decline")

    import sys

    entry = {"command": sys.executable, "args": [str(RAW_SERVER)]}
    adapter = setup({"servers": {"raw": entry}}, register=False, elicitation=elicitation)
    with adapter:
        assert '"decline"' in call(adapter, "elicit").text
    assert answers == ["me"]


def test_a_request_on_the_thread_that_serves_is_refused_and_does_not_hang() -> None:
    from mcp_types import ElicitResult

    errors: list[str | None] = []

    async def elicitation(context: Any, params: Any) -> ElicitResult:
        errors.append(call(adapter, "pid").error)
        return ElicitResult(action="decline")

    import sys

    entry = {"command": sys.executable, "args": [str(RAW_SERVER)]}
    adapter = setup({"servers": {"raw": entry}}, register=False, elicitation=elicitation)
    with adapter:
        call(adapter, "elicit")
    assert "would wait for itself" in str(errors[0])


def test_many_threads_open_a_server_once() -> None:
    made: list[int] = []

    def server() -> MCPServer:
        made.append(1)
        return counter()

    with setup({}, {"counter": server}, register=False) as adapter:

        def work(_: int) -> None:
            assert call(adapter, "count", to=0).text == "counted to 0"

        assert at_once(work, 8) == []
    assert made == [1]


async def test_the_handler_does_not_hold_the_event_loop_up_in_an_asynchronous_run() -> None:
    release = asyncio.Event()
    server = MCPServer("waiting")
    loop = asyncio.get_running_loop()

    @server.tool()
    def wait() -> str:
        """Waits until the loop of the run has come round."""
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result(20)
        return "came round"

    provider = MockProvider('<block type="mcp">{"method": "tools/call", "params": {"name": "wait"}}</block>', "<final>Done.</final>")
    with setup({}, {"waiting": server}, register=False) as adapter:
        agent = Agent(instructions="", provider=provider, protocols=[adapter.protocol])
        running = asyncio.ensure_future(kernai.aexecute(agent, "go"))
        release.set()
        result = await running
    assert "came round" in result.messages[2].text
