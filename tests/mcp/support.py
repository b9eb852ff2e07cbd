"""Helpers of the MCP tests: sending requests through an adapter, test servers, and waiting for processes to end."""

from __future__ import annotations

import json
import os
import select
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.server.lowlevel import Server
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool

from kernai import Block, Media, SkillContext
from kernai.mcp import Adapter, McpError, setup

RAW_SERVER = Path(__file__).with_name("raw_server.py")
Part = str | Media


@dataclass
class Answer:
    """What the model would read in answer to a request, and the events of the call."""

    parts: list[Part] = field(default_factory=list)
    error: str | None = None
    events: list[Any] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def media(self) -> list[Media]:
        return [part for part in self.parts if isinstance(part, Media)]


def ask(adapter: Adapter, request: str | dict[str, Any], cancelled: Callable[[], bool] | None = None) -> Answer:
    """Send one request through the protocol's handler and return its answer."""
    context = SkillContext[Any](None, cancelled=cancelled)
    content = request if isinstance(request, str) else json.dumps(request)
    answer = Answer(events=context.emitted)
    try:
        returned = adapter.protocol.handler(Block("mcp", None, content), context)
        answer.parts = returned if isinstance(returned, list) else [returned]
    except McpError as error:
        answer.error = str(error)
    return answer


def call(adapter: Adapter, tool: str, *, server: str | None = None, **arguments: Any) -> Answer:
    params: dict[str, Any] = {"name": tool, "arguments": arguments}
    if server is not None:
        params["server"] = server
    return ask(adapter, {"method": "tools/call", "params": params})


def raw(*options: str, **entry: Any) -> dict[str, Any]:
    """Return a configuration with one raw server, named `raw`."""
    return {"servers": {"raw": {"command": sys.executable, "args": [str(RAW_SERVER), *options], **entry}}}


def hurry(adapter: Adapter, seconds: float) -> None:
    """Change the timeout of all servers; those that run were started in time, however busy the machine is."""
    for one in adapter._connections.values():
        one.config = replace(one.config, timeout=seconds)


def error_with(part: str, adapter: Adapter, tool: str, **arguments: Any) -> str:
    """Return the error of a call that times out, repeated if a busy machine was too slow for `part` to be in it."""
    errors = (str(call(adapter, tool, server="raw", **arguments).error) for _ in range(20))
    return next((error for error in errors if part in error), f"no error with {part!r}")


def raw_transport() -> Any:
    return stdio_client(StdioServerParameters(command=sys.executable, args=[str(RAW_SERVER)]))


def raw_adapter(*options: str, **entry: Any) -> Adapter:
    return setup(raw(*options, **entry), register=False)


@contextmanager
def answering(answer: Callable[[BaseHTTPRequestHandler, bytes], tuple[int, str, str]]) -> Iterator[str]:
    """Serve HTTP and yield host and port. `answer` returns status, type and body, which breaks off before a NUL at its end."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, kind, body = answer(self, self.rfile.read(int(self.headers.get("Content-Length", 0))))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode().rstrip(b"\0"))

        do_GET = do_POST  # noqa: N815 - the base class defines the name

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield f"127.0.0.1:{web.server_port}"
        web.shutdown()


def sdk_server(tools: Callable[[], list[Tool]], answer: Callable[[Any], Any], **handlers: Any) -> Server[Any]:
    """A server of the SDK, whose tools are made for each listing. `answer` gets the parameters of a call."""

    async def listing(*_: Any) -> ListToolsResult:
        return ListToolsResult(tools=tools())

    async def call_tool(_: Any, params: Any) -> Any:
        return answer(params)

    return Server("it", on_list_tools=listing, on_call_tool=call_tool, **handlers)


def text_result(text: str, **more: Any) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)], **more)


@asynccontextmanager
async def silent_transport(failure: Exception | None = None) -> AsyncIterator[Any]:
    send, receive = anyio.create_memory_object_stream[Any](1)
    other_send, other_receive = anyio.create_memory_object_stream[Any](100)
    async with send, receive, other_send, other_receive:
        if failure is not None:
            send.send_nowait(failure)
            send.close()
        yield receive, other_send


def processes_with(word: str) -> list[int]:
    """Return the running processes whose command line contains the word (Linux only)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command, state = (entry / "cmdline").read_bytes(), (entry / "stat").read_text()
            except OSError:
                continue
            if word.encode() in command and state.rpartition(")")[2].split()[0] != "Z":
                found.append(int(entry.name))
    return found


def wait_until_ended(processes: list[int], seconds: float = 30) -> list[int]:
    """Wait for processes to end, without polling, and return those still running."""
    left = []
    for process in processes:
        try:
            handle = os.pidfd_open(process)
        except ProcessLookupError:
            continue
        try:
            if not select.select([handle], [], [], seconds)[0]:
                left.append(process)
        finally:
            os.close(handle)
    return left
