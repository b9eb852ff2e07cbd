"""Whole runs, real servers from npm, and the example.

The model's turns are scripted; the kernel, the adapter and the servers are real.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import kernai
from kernai import Agent, MockProvider, execute
from kernai.mcp import Adapter, setup
from tests.mcp.conftest import NPM_PACKAGES, ROOT, NodeServers, serve_everything
from tests.mcp.support import ask, call, raw, raw_adapter


def injected(result: kernai.Result) -> list[str]:
    return [message.text for message in result.messages[1:] if message.role == "user"]


def test_a_run_inside_a_running_loop_works_as_in_a_notebook() -> None:
    async def cell() -> kernai.Result:
        with raw_adapter() as adapter:
            asks = '<block type="mcp">{"method": "tools/call", "params": {"name": "echo", "arguments": {"text": "hi"}}}</block>'
            provider = MockProvider(asks, "<final>Done.</final>")
            return execute(Agent(instructions="", provider=provider, protocols=[adapter.protocol]), "go")

    assert injected(asyncio.run(cell())) == ['<block type="result" name="mcp">hi</block>']


def test_an_agent_can_use_the_process_wide_servers_only_if_it_names_their_protocol() -> None:
    with setup(raw()):
        for protocols, wanted in ((None, "not allowed"), (["mcp"], '"name": "raw"')):
            provider = MockProvider('<block type="mcp">{"method": "servers/list"}</block>', "<final>Done.</final>")
            result = execute(Agent(instructions="", provider=provider, protocols=protocols), "go")
            assert wanted in injected(result)[0], protocols


# ------------------------------------------------------------------------------------------------------- real servers

@pytest.mark.parametrize("transport", ["stdio", "sse"])
def test_server_everything_works_over_stdio_and_sse(node_servers: NodeServers, transport: str) -> None:
    """The transport is detected from the command or the URL."""
    with ExitStack() as stack:
        entry = node_servers.command("everything")
        if transport == "sse":
            port = stack.enter_context(closing(serve_everything(node_servers, transport))).port
            entry = {"url": f"http://127.0.0.1:{port}/sse", "headers": {"X-Key": "k3y-k3y"}}
        check_everything(stack.enter_context(setup({"servers": {"everything": entry}}, register=False)))


def check_everything(adapter: Adapter) -> None:
    assert "- echo(message: string): Echoes back the input string" in ask(adapter, {"method": "tools/list"}).text
    assert call(adapter, "echo", message="Grüße").text == "Echo: Grüße"
    assert call(adapter, "get-sum", a=2, b=3.5).text == "The sum of 2 and 3.5 is 5.5."

    answer = call(adapter, "trigger-long-running-operation", duration=0.2, steps=4)
    assert answer.text == "Long running operation completed. Duration: 0.2 seconds, Steps: 4."
    assert [(event["mcp"], event["progress"], event["total"]) for event in answer.events] == [
        ("progress", step, 4) for step in (1, 2, 3, 4)
    ]

    templates = ask(adapter, {"method": "resources/templates/list"}).text
    assert "- demo://resource/dynamic/text/{resourceId} (text/plain)" in templates
    text = ask(adapter, {"method": "resources/read", "params": {"uri": "demo://resource/dynamic/text/7"}}).text
    assert text.startswith("Resource 7: This is a plaintext resource")


def test_server_everything_works_over_http_and_is_reconnected_after_a_restart(node_servers: NodeServers) -> None:
    """With and without a request while the server was down."""
    with ExitStack() as stack:
        served = serve_everything(node_servers, "streamableHttp")
        stack.callback(lambda: served.close())
        entry = {"url": f"http://127.0.0.1:{served.port}/mcp", "timeout": 10, "headers": {"X-Key": "k3y-k3y"}}
        adapter = stack.enter_context(setup({"servers": {"everything": entry}}, register=False))
        check_everything(adapter)
        for asked_meanwhile in (False, True):
            assert call(adapter, "echo", message="one").text == "Echo: one"
            served.close()
            if asked_meanwhile:
                assert call(adapter, "echo", message="two").error is not None
            served = serve_everything(node_servers, "streamableHttp", served.port)
        assert call(adapter, "echo", message="three").text == "Echo: three"


# ------------------------------------------------------------------------------------------------------- the example

OUTPUT = """\
user: What do I do on Thursday?
assistant: <block type="mcp">{"method": "tools/list", "params": {}}</block>
user: <block type="result" name="mcp">server files: 2 tools
assistant: <block type="mcp">{"method": "read_text_file", "params": {"path": "FOLDER/notes.txt"}}</block>
user: <block type="error" name="mcp">'read_text_file' is a tool, not a method. Write: {"method": "tools/call", "params": {"server": "files", "name": "read_text_file", "arguments": {"path": "FOLDER/notes.txt"}}}</block>
user: <block type="result" name="mcp">Thursday: water the plants.
user: <block type="error" name="mcp">the tool 'write_file' of server 'files' is not allowed; allowed are: read_text_file, list_directory</block>
assistant: <block type="final">On Thursday you water the plants.</block>
"""


def test_the_mcp_example_prints_what_it_should_and_leaves_nothing_behind(node_servers: NodeServers, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "KERNAI", "COV_"))}
    environment |= {"PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "utf-8", "MCP_SERVERS": str(node_servers.folder)}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / "mcp_filesystem.py")],
        cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", timeout=120, check=False,
    )
    assert done.stderr == ""
    assert done.returncode == 0
    printed = iter(done.stdout.splitlines())
    assert [line for line in OUTPUT.splitlines() if line not in printed] == []
    assert list(tmp_path.iterdir()) == []


def test_the_example_uses_the_tested_version_of_the_server() -> None:
    config = (ROOT / "examples" / "mcp.yml").read_text(encoding="utf-8")
    assert f"server-filesystem@{NPM_PACKAGES['@modelcontextprotocol/server-filesystem']}" in config
