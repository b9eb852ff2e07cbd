"""The adapter and servers that others wrote: npm's filesystem, memory and everything, PyPI's time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernai.mcp import Adapter, setup
from tests.mcp.conftest import NodeServers, Served, serve_everything
from tests.mcp.support import ask, call

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
