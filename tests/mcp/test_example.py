"""examples/mcp_filesystem.py with the real server, found where the tests have installed it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.mcp.conftest import NPM_PACKAGES, NodeServers

ROOT = Path(__file__).resolve().parents[2]

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


def test_the_example_prints_what_it_promises_and_leaves_nothing_behind(
    node_servers: NodeServers, tmp_path: Path
) -> None:
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


def test_the_example_names_the_version_that_is_tested() -> None:
    config = (ROOT / "examples" / "mcp.yml").read_text(encoding="utf-8")
    assert f"server-filesystem@{NPM_PACKAGES['@modelcontextprotocol/server-filesystem']}" in config
