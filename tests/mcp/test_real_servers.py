"""The adapter and servers that others wrote: npm's filesystem, memory and everything, PyPI's time."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernai.mcp import Adapter, setup
from tests.mcp.conftest import NodeServers, Served, serve_everything
from tests.mcp.support import ask, call, processes_with, raw_adapter, wait_until_ended

TRANSPORTS = ("stdio", "sse", "streamable_http")


def adapter_of(**servers: dict[str, Any]) -> Adapter:
    return setup({"servers": servers}, register=False)


@pytest.fixture(scope="module", params=TRANSPORTS)
def everything(
    request: pytest.FixtureRequest, node_servers: NodeServers, everything_over: Callable[[str], Served]
) -> Any:
    """An adapter of server-everything over each transport; http ones detect the transport from the URL."""
    if request.param == "stdio":
        entry = node_servers.command("everything")
    else:
        sse = request.param == "sse"
        port = everything_over("sse" if sse else "streamableHttp").port
        entry = {"url": f"http://127.0.0.1:{port}/{'sse' if sse else 'mcp'}", "headers": {"Authorization": "Bearer k3y-k3y"}}
    with adapter_of(everything=entry) as adapter:
        yield adapter


def test_everything_over_every_transport(everything: Adapter) -> None:
    assert "- echo(message: string): Echoes back the input string" in ask(everything, {"method": "tools/list"}).text
    assert call(everything, "echo", message="Grüße").text == "Echo: Grüße"
    assert call(everything, "get-sum", a=2, b=3.5).text == "The sum of 2 and 3.5 is 5.5."

    answer = call(everything, "trigger-long-running-operation", duration=0.2, steps=4)
    assert answer.text == "Long running operation completed. Duration: 0.2 seconds, Steps: 4."
    assert [(event["mcp"], event["progress"], event["total"]) for event in answer.events] == [
        ("progress", step, 4) for step in (1, 2, 3, 4)
    ]

    image = call(everything, "get-tiny-image")
    assert [one.mime_type for one in image.media] == ["image/png"]
    assert image.media[0].read_bytes().startswith(b"\x89PNG")
    assert image.text == "Here's the image you requested:\nThe image above is the MCP logo."

    listing = ask(everything, {"method": "resources/list"}).text
    uri = re.findall(r"demo://\S+architecture\S*", listing)[0]
    assert "architecture" in ask(everything, {"method": "resources/read", "params": {"uri": uri}}).text
    templates = ask(everything, {"method": "resources/templates/list"}).text
    assert "- demo://resource/dynamic/text/{resourceId} (text/plain)" in templates
    text = ask(everything, {"method": "resources/read", "params": {"uri": "demo://resource/dynamic/text/7"}}).text
    assert text.startswith("Resource 7: This is a plaintext resource")

    assert "- args-prompt(city, state?)" in ask(everything, {"method": "prompts/list"}).text
    prompt = ask(everything, {"method": "prompts/get", "params": {"name": "args-prompt", "arguments": {"city": "Rome"}}})
    assert prompt.text == "[user]\nWhat's weather in Rome?"


def test_structured_content_that_repeats_the_text_is_left_out(everything: Adapter) -> None:
    text = call(everything, "get-structured-content", location="New York").text
    assert json.loads(text) == {"temperature": 33, "conditions": "Cloudy", "humidity": 82}


def test_links_and_embedded_resources_are_mentioned_and_not_fetched(everything: Adapter) -> None:
    links = call(everything, "get-resource-links", count=2).text
    assert "[link to the resource demo://resource/dynamic/blob/1: Blob Resource 1, text/plain" in links
    embedded = call(everything, "get-resource-reference", resourceType="Text", resourceId=3).text
    assert "[resource demo://resource/dynamic/text/3]\nResource 3: This is a plaintext resource" in embedded


def test_the_filesystem_server_reads_writes_and_refuses(node_servers: NodeServers, tmp_path: Path) -> None:
    Path(tmp_path, "notes.txt").write_text("Buy tea.\n")
    with adapter_of(files=node_servers.command("filesystem", str(tmp_path))) as adapter:
        assert call(adapter, "read_text_file", path=str(tmp_path / "notes.txt")).text == "Buy tea.\n"
        call(adapter, "write_file", path=str(tmp_path / "new.txt"), content="written")
        assert Path(tmp_path, "new.txt").read_text() == "written"
        refused = call(adapter, "read_text_file", path="/etc/hostname").error
        assert refused is not None
        assert "Access denied - path outside allowed directories" in refused


def test_the_filesystem_server_takes_its_folders_from_the_roots(node_servers: NodeServers, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    rooted = tmp_path / "rooted"
    for folder in (elsewhere, rooted):
        folder.mkdir()
        Path(folder, "notes.txt").write_text(folder.name)
    with adapter_of(files={**node_servers.command("filesystem", str(elsewhere)), "roots": [str(rooted)]}) as adapter:
        folders = call(adapter, "list_allowed_directories").text
        assert str(rooted) in folders or str(elsewhere) in folders
        while str(rooted) not in folders:  # it asks for the roots on its own time
            folders = call(adapter, "list_allowed_directories").text
        assert call(adapter, "read_text_file", path=str(rooted / "notes.txt")).text == "rooted"


def test_the_memory_server_keeps_a_graph_in_the_file_its_environment_names(
    node_servers: NodeServers, tmp_path: Path
) -> None:
    entry = {**node_servers.command("memory"), "env": {"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}}
    entity = {"name": "Ada", "entityType": "person", "observations": ["likes tea"]}
    with adapter_of(memory=entry) as adapter:
        call(adapter, "create_entities", entities=[entity])
        wrong = call(adapter, "create_entities", entities=[{"name": "Ben", "type": "person"}]).error
        assert wrong is not None
        assert "- arguments.entities[0].entityType: required, but missing (string)" in wrong
    with adapter_of(memory=entry) as adapter:
        found = json.loads(call(adapter, "search_nodes", query="tea").text)
        assert [one["name"] for one in found["entities"]] == ["Ada"]


def test_the_time_server_speaks_the_revision_of_2026(time_server: dict[str, Any]) -> None:
    with adapter_of(time=time_server) as adapter:
        converted = call(
            adapter, "convert_time", source_timezone="Europe/Berlin", time="16:30", target_timezone="Asia/Tokyo"
        )
        assert json.loads(converted.text)["target"]["datetime"][11:16] in ("23:30", "00:30")
        failed = call(adapter, "get_current_time", timezone="Mars/Olympus").error
        assert failed is not None
        assert "Mars/Olympus" in failed
        assert adapter._connections is not None
        session = adapter._connections["time"]._session
        assert session is not None
        assert session.revision == "2026-07-28"


def test_two_adapters_with_different_servers_live_in_one_process(node_servers: NodeServers, tmp_path: Path) -> None:
    with raw_adapter() as one, adapter_of(files=node_servers.command("filesystem", str(tmp_path))) as two:
        assert "- echo(" in ask(one, {"method": "tools/list"}).text
        assert "- echo(" not in ask(two, {"method": "tools/list"}).text
        one.shutdown()
        assert call(two, "list_allowed_directories").text.endswith(str(tmp_path))


def test_without_a_server_a_tool_is_found_and_several_owners_are_reported(
    node_servers: NodeServers, tmp_path: Path
) -> None:
    files = node_servers.command("filesystem", str(tmp_path))
    with adapter_of(one=files, two=files, everything=node_servers.command("everything")) as adapter:
        assert call(adapter, "echo", message="found").text == "Echo: found"
        error = call(adapter, "list_allowed_directories").error
        assert error is not None
        assert error.startswith("2 servers have a tool 'list_allowed_directories': 'one', 'two'. Say which. Write: {")
        assert call(adapter, "list_allowed_directories", server="two").text.endswith(str(tmp_path))


@pytest.mark.skipif(sys.platform != "linux", reason="finds the process through /proc")
def test_a_real_server_that_is_killed_is_started_again(node_servers: NodeServers, tmp_path: Path) -> None:
    Path(tmp_path, "notes.txt").write_text("Buy tea.")
    with adapter_of(files=node_servers.command("filesystem", str(tmp_path))) as adapter:
        path = str(tmp_path / "notes.txt")
        assert call(adapter, "read_text_file", path=path).text == "Buy tea."
        running = processes_with(str(tmp_path))
        for process in running:
            os.kill(process, signal.SIGKILL)
        assert wait_until_ended(running) == []
        answer = call(adapter, "read_text_file", path=path)
        assert answer.text == "Buy tea."
        assert [event["mcp"] for event in answer.events] == ["restart"]


def test_a_restarted_http_server_is_reconnected(node_servers: NodeServers) -> None:
    """Whether or not it was asked while it was gone."""
    served = serve_everything(node_servers, "streamableHttp")
    with adapter_of(it={"url": f"http://127.0.0.1:{served.port}/mcp", "timeout": 10}) as adapter:
        for asked_meanwhile in (False, True):
            assert call(adapter, "echo", message="one").text == "Echo: one"
            served.process.kill()
            served.process.communicate()
            if asked_meanwhile:
                assert call(adapter, "echo", message="two").error is not None
            served = serve_everything(node_servers, "streamableHttp", served.port)
        assert call(adapter, "echo", message="three").text == "Echo: three"
    served.process.kill()
    served.process.communicate()
