"""The adapter: importing it, servers that are passed as objects, and wrong options."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Semaphore
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import HEADER_MISMATCH, INVALID_PARAMS, CallToolResult, ElicitResult, EmptyResult, ListToolsResult, Tool

import kernai
from kernai import Agent, MockProvider
from kernai.mcp import McpConfigError, connection, setup
from tests.mcp.support import ask, call, hurry, raw, raw_transport, sdk_server, text_result

SRC = Path(__file__).resolve().parents[2] / "src"
SDK = 'ImportError: kernai.mcp needs the official MCP SDK, version 2 or later: pip install "kernai[mcp]"'


@pytest.mark.parametrize("code, error", [
    ("sys.modules['mcp'] = None; import kernai, kernai.mcp", SDK),
    ("import types; sys.modules['mcp'] = types.ModuleType('mcp'); import kernai, kernai.mcp", SDK),  # version 1
    ("open('mcp.py', 'w').close(); import kernai.mcp", f"{SDK} (cannot import name 'Client' from 'mcp' ("),
], ids=["no SDK", "version 1 of the SDK", "a file of the user called mcp.py"])
def test_without_the_sdk_the_error_says_what_to_install(code: str, error: str, tmp_path: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(SRC)!r}); {code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[-1][: len(error)]) == (1, error)


def test_an_unknown_attribute_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = kernai.mcp.nothing  # type: ignore[attr-defined]  # which a type checker knows too


# ----------------------------------------------------------------------------------------- servers passed as objects

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
def test_a_server_can_be_passed_as(made: str) -> None:
    with setup({}, {"counter": SOURCES[made]()}, register=False) as adapter:
        answer = call(adapter, "count", to=2)
        assert answer.text == "counted to 2"
        assert answer.events == [
            {"mcp": "progress", "server": "counter", "tool": "count", "progress": n, "total": 2, "message": f"at {n}"}
            for n in (1, 2)
        ]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("schema, given, message", [
    ({"type": "object", "required": ["a"]}, {"a": 1}, None),
    ({"type": "object", "properties": {"a": {"type": "string"}}}, {"a": 1}, "content.a: expected string, received integer 1"),
    ({"type": "object", "required": ["a"]}, {"b": 1}, "a: required, but missing"),
    ({"type": "object", "required": ["a"]}, None, "it is missing"),
])
def test_a_result_is_checked_against_its_schema(schema: dict[str, Any], given: dict[str, Any] | None, message: str | None, mode: str) -> None:
    give = Tool(name="give", input_schema={"type": "object"}, output_schema=schema)
    server = sdk_server(lambda: [give], lambda _: text_result("given", structured_content=given))
    with setup({"servers": {"it": {"timeout": 20}}}, {"it": lambda: Client(server, mode=mode)}, register=False) as adapter:
        answer = call(adapter, "give")
    refused = str(answer.error).startswith("server 'it' called the tool 'give', but the structured content of the result")
    assert (answer.text[:5], refused) == ("" if message else "given", bool(message))
    assert (message or "None") in str(answer.error)


def test_a_changed_tool_definition_is_reported_as_soon_as_its_server_notifies() -> None:
    with setup({}, {"counter": counter}, register=False) as adapter:
        assert ask(adapter, {"method": "tools/list"}).events == []
        assert call(adapter, "grow").text == "grown"
        events: list[Any] = []
        while not events:  # the server says it on its own time, and nothing is listed before it does
            events = call(adapter, "grow", depth="1").events
        begun = time.monotonic()
    assert time.monotonic() - begun < connection.CLOSING_SECONDS, "nothing waits for the next notice"
    assert [event["changed"] for event in events] == [["description", "inputSchema", "outputSchema"]]


@pytest.mark.parametrize("reports", [False, True])
def test_a_changed_tool_is_noticed_even_if_its_server_does_not_report_changes_or_has_stopped(
    reports: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, asked, listens, of_others, ends = ["old"], Semaphore(0), Event(), list[str](), [EmptyResult()]

    async def pause(_: float) -> None:
        while not listens.is_set():
            await asyncio.sleep(0.001)

    monkeypatch.setattr(connection, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": pause}))

    def listing_of_others() -> list[Tool]:
        of_others.append("listed")
        return []

    async def report(*_: Any) -> Any:
        asked.release()
        return ends.pop() if ends else await asyncio.Event().wait()  # ends the first stream of reports

    server = sdk_server(
        lambda: [Tool(name="take", input_schema={"type": "object", "required": [*inputs]})],
        lambda params: text_result(json.dumps(params.arguments)), on_subscriptions_listen=report if reports else None,
    )
    others = sdk_server(listing_of_others, str)
    with setup({}, {"it": server, "others": others}, register=False) as adapter:
        assert call(adapter, "take", old=1).text == '{"old": 1}'
        if reports:
            assert asked.acquire(timeout=20)
            while adapter._connections["it"].has_listed:
                pass
            assert call(adapter, "take", old=1).events == []  # lists it while no changes are reported
        inputs[:] = ["new"]
        if reports:
            listens.set()
            assert asked.acquire(timeout=20)
            answer = call(adapter, "take", old=1, new=1)  # fits before and after the change
        else:
            answer = call(adapter, "take", new=1)
        assert [event["mcp"] for event in answer.events] == ["tool_changed"]
        inputs[:] = ["newest"]
        assert '"required": ["newest"]' in ask(adapter, {"method": "tools/describe", "params": {"name": "take"}}).text
    assert of_others == ["listed"]


def test_two_threads_that_list_the_tools_of_a_new_server_at_once_both_get_them() -> None:
    begun = [Event(), Event()]

    async def listing(*_: Any) -> ListToolsResult:
        begun[begun[0].is_set()].set()
        while not begun[1].is_set():
            await asyncio.sleep(0)
        return ListToolsResult(tools=[Tool(name="go", input_schema={"type": "object"})])

    with ThreadPoolExecutor(1) as pool, setup({}, {"it": Server("it", on_list_tools=listing)}, register=False) as adapter:
        first = pool.submit(adapter.skills, "it")
        assert begun[0].wait(20)
        assert [one.name for one in (*adapter.skills("it"), *first.result())] == ["go", "go"]


def test_only_a_call_that_lacks_headers_is_sent_again_after_its_tool_was_listed_again() -> None:
    listings: list[Tool] = []
    calls: list[int] = []

    def listing() -> list[Tool]:
        listings.append(Tool(name="take", input_schema={"type": "object"}))
        return listings[:1]

    def take(_: Any) -> CallToolResult:
        calls.append(len(listings))
        if len(calls) != 2:
            raise MCPError(HEADER_MISMATCH if len(listings) == 1 else INVALID_PARAMS, "list it again")
        return text_result("taken")

    with setup({}, {"it": sdk_server(listing, take)}, register=False) as adapter:
        assert call(adapter, "take").text == "taken"
        assert call(adapter, "take").error is not None
    assert calls == [1, 2, 2], "how many listings each call came after"


@pytest.mark.parametrize("has_own_client", [False, True])
def test_a_callback_may_run_an_agent_that_uses_the_same_server_and_may_take_longer_than_a_request(has_own_client: bool) -> None:
    answers: list[Any] = []

    def elicitation(context: Any, params: Any) -> ElicitResult:
        provider = MockProvider('<block type="mcp">{"method": "tools/call", "params": {"name": "hang"}}</block>', "<final>me</final>")
        agent = Agent(instructions="", provider=provider, protocols=[adapter.protocol])
        answers.append(kernai.execute(agent, params.message))
        return ElicitResult(action="decline")

    async def in_thread(context: Any, params: Any) -> ElicitResult:
        return await asyncio.to_thread(elicitation, context, params)

    if has_own_client:
        client = Client(raw_transport(), elicitation_callback=in_thread)
        adapter = setup({}, {"raw": client}, register=False)
    else:
        adapter = setup(raw(), register=False, elicitation=elicitation)
    with ThreadPoolExecutor(1) as pool, adapter:
        call(adapter, "pid")
        hurry(adapter, 0.5)
        other = pool.submit(call, adapter, "hang")  # its timeout restarts after the callback
        assert any('"decline"' in call(adapter, "elicit").text for _ in range(20))  # on a busy machine, not the first
        assert "did not answer tools/call of 'hang' within 0.5 s" in str(other.result(20).error)
    assert "did not answer tools/call of 'hang' within 0.5 s" in answers[0].messages[-2].text


def test_a_request_from_the_adapters_own_thread_is_an_error_instead_of_a_deadlock() -> None:
    errors: list[str | None] = []

    async def elicitation(context: Any, params: Any) -> ElicitResult:
        errors.append(call(adapter, "pid").error)
        return ElicitResult(action="decline")

    with setup(raw(), register=False, elicitation=elicitation) as adapter:
        call(adapter, "elicit")
    assert "would wait for itself" in str(errors[0])


WRONG: list[tuple[Any, Any, type[Exception], str]] = [
    ([1], {}, TypeError, "client must be a mapping from server names"),
    ({"it": 3}, {}, TypeError, r"client\['it'\] must be an SDK server, an SDK client that was not entered, or a function"),
    (None, {"regster": False}, TypeError, "unknown option 'regster'; did you mean 'register'"),
    (None, {"clients": {}}, TypeError, "unknown option 'clients'; did you mean 'client'"),
    (None, {"elicitation": "stop"}, TypeError, r"elicitation must be a function of \(context, params\) or 'pause', got 'stop'"),
    (None, {"sampling": "pause"}, TypeError, r"sampling must be a function of \(context, params\), got"),
    (None, {"auth": [1]}, TypeError, "auth must be a mapping from server names to httpx2.Auth, got list"),
    (None, {"auth": {"it": "token"}}, TypeError, r"auth\['it'\] must be an httpx2.Auth, such as the SDK's OAuthClientProvider"),
    (None, {"auth": {"other": httpx2.Auth()}}, McpConfigError, r"auth\['other'\]: there is no server with a url of that name"),
    (None, {"auth": {"local": httpx2.Auth()}}, McpConfigError, r"auth\['local'\]: there is no server with a url of that name"),
]


@pytest.mark.parametrize("client, options, kind, message", WRONG)
def test_a_wrong_option_is_an_error_at_setup(client: Any, options: Any, kind: type[Exception], message: str) -> None:
    servers = {"it": {"url": "http://host/mcp"}, "local": {"command": "true"}}
    with pytest.raises(kind, match=message):
        setup({"servers": servers}, client, **options)
