"""The installation of the MCP servers for the scenarios, with a stand-in for npm: no registry is asked."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason='the MCP SDK is not installed: pip install "kernai[mcp]"')

from harness import UsageError
from kit import node_servers
from tests.mcp.conftest import NPM_PACKAGES

pytestmark = pytest.mark.mcp


def test_the_servers_are_of_the_versions_that_the_tests_of_mcp_use() -> None:
    assert {name: NPM_PACKAGES[name] for name in node_servers.VERSIONS} == node_servers.VERSIONS


WRITES_PACKAGES = "".join(
    f"mkdir -p node_modules/{name}; echo '{json.dumps({'version': version})}' > node_modules/{name}/package.json\n"
    for name, version in node_servers.VERSIONS.items()
)


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A machine with an empty cache, on which `npm` is this shell script."""
    if os.name != "posix":
        pytest.skip("the stand-in for npm is a shell script")
    monkeypatch.setattr(node_servers, "CACHE", tmp_path / ".cache" / "mcp-servers")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")

    def install(script: str) -> None:
        for name in ("npm", "node"):
            path = tmp_path / name
            path.write_text(f"#!/bin/sh\n{script}")
            path.chmod(0o755)

    return install


def test_the_servers_are_installed_once_and_a_line_says_so(
    npm: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    npm(WRITES_PACKAGES)
    folder = node_servers.installed()
    output = capsys.readouterr().out
    assert output.startswith("installing server-filesystem, server-memory from npm into .cache/mcp-servers, this once ...\n")
    assert list(node_servers.CACHE.iterdir()) == [folder]  # nothing half done beside it

    npm("exit 1")
    assert node_servers.installed() == folder
    assert capsys.readouterr().out == ""


def test_an_installation_of_other_versions_does_not_serve(npm: Callable[[str], None]) -> None:
    npm(WRITES_PACKAGES)
    folder = node_servers.installed()
    about = folder / "node_modules" / "@modelcontextprotocol" / "server-memory" / "package.json"
    about.write_text('{"version": "0.6.2"}')
    with pytest.raises(UsageError, match="does not hold what it should: remove it and try again"):
        node_servers.installed()


@pytest.mark.parametrize(
    "script, reason",
    [
        ("echo 'npm warn old'; printf 'npm error code E404\\nnpm error 404 Not Found\\n' >&2; exit 1", "404 Not Found"),
        ("exit 3", "npm ended with status 3"),
        ("exit 0", "does not hold what it should: remove it and try again"),
    ],
    ids=["npm says why", "npm says nothing", "npm does nothing"],
)
def test_an_installation_that_fails_is_reported_in_one_line(
    npm: Callable[[str], None], script: str, reason: str
) -> None:
    npm(script)
    with pytest.raises(UsageError, match=r"^cannot install the MCP servers: ") as failed:
        node_servers.installed()
    assert reason in str(failed.value)
    assert "\n" not in str(failed.value)


def test_a_workspace_that_is_not_open_says_so() -> None:
    with pytest.raises(RuntimeError, match="not open yet: call open"):
        node_servers.Workspace("mcp_memory").read("memory.jsonl")
