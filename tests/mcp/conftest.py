"""Real servers for the tests, installed once per machine into `.cache/mcp-servers`, which git ignores."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

from tests.warm_python import WarmPython

pytest.importorskip("mcp", reason='the MCP SDK is not installed: pip install "kernai[mcp]"')
vars(import_module("kernai.mcp.connection"))["REASON_SECONDS"] = 30.0  # a busy machine may need more than one

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "mcp-servers"
NPM_PACKAGES = {
    "@modelcontextprotocol/server-everything": "2026.8.31",
    "@modelcontextprotocol/server-filesystem": "2026.8.31",
    "@modelcontextprotocol/server-memory": "2026.8.31",
}
#: the version that tests the MCP revision of 2026-07-28
CONFORMANCE = {"@modelcontextprotocol/conformance": "0.2.0-alpha.12"}
#: set in CI: a missing server then fails the tests; otherwise they are skipped and the report says so
REQUIRED = bool(os.environ.get("KERNAI_REQUIRE_MCP_SERVERS"))
INSTALL_SECONDS = 300

_left_out: set[str] = set()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reason in sorted(_left_out):
        terminalreporter.section("MCP TESTS WERE LEFT OUT", red=True, bold=True)
        terminalreporter.write_line(reason)


def leave_out(reason: str) -> None:
    _left_out.add(reason)
    if REQUIRED:
        pytest.fail(reason)
    pytest.skip(reason)


@dataclass(frozen=True)
class NodeServers:
    """The servers from npm, and how they are started."""

    node: str
    folder: Path

    def command(self, name: str, *arguments: str) -> dict[str, object]:
        return {"command": self.node, "args": [self.script(name), *arguments]}

    def script(self, name: str) -> str:
        return str(self.folder / "node_modules" / "@modelcontextprotocol" / f"server-{name}" / "dist" / "index.js")


def from_npm(name: str, pins: dict[str, str]) -> tuple[str, Path]:
    """Return the path of Node.js, and a folder with exactly these packages, which are installed if need be."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        leave_out("these tests of MCP need Node.js 20 or later with npm: install it, then run them again")
    folder = CACHE / f"{name}-{hashlib.sha256(json.dumps(pins).encode()).hexdigest()[:12]}"
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        # not a name that scenarios look for: they would start a server that is half installed
        with tempfile.TemporaryDirectory(dir=CACHE, prefix=f"new-{name}-") as made:
            package = {"private": True, "dependencies": pins}
            Path(made, "package.json").write_text(json.dumps(package), encoding="utf-8")
            command = [str(npm), "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]
            try:
                subprocess.run(command, cwd=made, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=True)
            except (subprocess.SubprocessError, OSError) as error:
                reason = str(getattr(error, "stderr", None) or error).strip()
                leave_out(f"cannot install {', '.join(pins)}: {reason[-500:]}")
            with suppress(OSError):  # another test process may have installed them first
                Path(made).rename(folder)
    return str(node), folder


@pytest.fixture(scope="session")
def node_servers() -> NodeServers:
    return NodeServers(*from_npm("npm", NPM_PACKAGES))


@pytest.fixture(scope="session")
def conformance() -> list[str]:
    """The command line of the official conformance package, without its arguments."""
    node, folder = from_npm("conformance", CONFORMANCE)
    major = int(subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout[1:].split(".")[0])
    older = ["--import", (Path(__file__).parent / "conformance_on_node_20.mjs").as_uri()] if major < 22 else []
    script = folder / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    return [node, *older, str(script)]


@pytest.fixture(scope="session")
def python() -> Iterator[WarmPython]:
    """A Python that has imported the adapter and what a stdio server needs."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    with WarmPython("kernai.mcp.connection", "mcp.client.stdio", environment={**os.environ, "PYTHONPATH": paths}) as python:
        yield python


@dataclass(frozen=True)
class Served:
    """A running server-everything that listens on this machine."""

    process: subprocess.Popen[str]
    port: int

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def serve_everything(servers: NodeServers, transport: str, port: int = 0) -> Served:
    """Start server-everything, on a free port unless one is given, and wait until it listens."""
    for _ in range(5):  # another process may take the port first
        with socket.create_server(("127.0.0.1", 0)) as free:
            chosen = port or free.getsockname()[1]
        process = subprocess.Popen(
            [servers.node, servers.script("everything"), transport],
            env={**os.environ, "PORT": str(chosen)}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        assert process.stderr is not None
        for line in process.stderr:
            if re.search(r"(listening|running) on port", line):
                return Served(process, chosen)
        process.communicate()
    raise AssertionError("server-everything ends before it listens")
