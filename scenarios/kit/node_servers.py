"""The MCP servers of the scenarios: official ones from npm, at fixed versions, run by Node.js on this machine.

They are installed once, into `.cache/mcp-servers`, which git ignores. Each run gets a new folder. The scenarios'
`mcp*.yml` refer to both places by environment variables, which `kernai.mcp` expands: `${MCP_SERVERS}` and
`${MCP_FOLDER}`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import Outcome, UsageError, require

from kit.packages import require_packages
from kit.sources import FIXTURES, new_folder

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "mcp-servers"

VERSIONS = {
    "@modelcontextprotocol/server-filesystem": "2026.8.31",
    "@modelcontextprotocol/server-memory": "2026.8.31",
}
INSTALL_SECONDS = 300
NPM_SAYS_LITTLE = ("npm warn", "code ", "errno ", "syscall ")
NEEDS_NODE = "this scenario runs MCP servers with Node.js 20 or later and npm: install it from https://nodejs.org"


class Workspace:
    """The folder of one run's servers: a copy of a folder in `fixtures`, which is deleted when the process ends.

    The servers may be allowed to use only a part of it, see `mcp*.yml`.
    """

    def __init__(self, fixture: str) -> None:
        self._fixture = FIXTURES / fixture
        self._folder: Path | None = None

    def open(self) -> None:
        """Install the servers if they are missing, make the folder, pass both to the configuration.

        Raises `UsageError` if a package, Node.js or the registry is missing.
        """
        require_packages("mcp", "yaml", "jsonschema")
        servers = installed()
        self._folder = new_folder() / "run"
        shutil.copytree(self._fixture, self._folder)
        os.environ["MCP_SERVERS"] = str(servers)
        os.environ["MCP_FOLDER"] = str(self._folder)

    def given(self, name: str) -> str:
        """The contents of a file before the run."""
        return (self._fixture / name).read_text(encoding="utf-8")

    def read(self, name: str) -> str | None:
        """The current contents of a file in the folder; None if it does not exist."""
        if self._folder is None:
            raise RuntimeError("the workspace is not open yet: call open() before the run")
        path = self._folder / name
        return path.read_bytes().decode("utf-8", "replace") if path.is_file() else None

    def required(self, name: str) -> str:
        """The same; raises `ExpectationError` if the file does not exist."""
        text = self.read(name)
        require(text is not None, f"there is no {name}")
        return str(text)


def installed() -> Path:
    """The folder whose `node_modules` has the servers. The first time, installs them and prints a line about it."""
    if shutil.which("node") is None:
        raise UsageError(NEEDS_NODE)
    there = [folder for folder in sorted(CACHE.glob("npm-*")) if _versions_in(folder) == VERSIONS]
    if there:
        return there[0]
    npm = shutil.which("npm")
    if npm is None:
        raise UsageError(NEEDS_NODE)
    return _install(npm)


def _versions_in(folder: Path) -> dict[str, str]:
    """The versions of the servers in an installation, which may have other packages too."""
    found = {}
    for name in VERSIONS:
        with suppress(OSError, ValueError, KeyError):
            about = json.loads((folder / "node_modules" / name / "package.json").read_text(encoding="utf-8"))
            found[name] = about["version"]
    return found


def _install(npm: str) -> Path:
    names = ", ".join(name.rpartition("/")[2] for name in VERSIONS)
    print(f"installing {names} from npm into {CACHE.parent.name}/{CACHE.name}, this once ...", flush=True)
    began = time.perf_counter()
    try:
        folder = _fetched(npm)
    except (OSError, subprocess.SubprocessError, UsageError) as error:
        raise UsageError(f"cannot install the MCP servers: {_reason(error)}") from error
    print(f"installed in {time.perf_counter() - began:.0f} s", flush=True)
    return folder


def _fetched(npm: str) -> Path:
    """Installs into another folder and moves it into place, so that no run finds half of an installation."""
    manifest = json.dumps({"private": True, "dependencies": VERSIONS})
    folder = CACHE / f"npm-{hashlib.sha256(manifest.encode()).hexdigest()[:12]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="new-") as made:
        target = Path(made, "installed")
        target.mkdir()
        Path(target, "package.json").write_text(manifest, encoding="utf-8")
        command = [npm, "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]
        subprocess.run(command, cwd=target, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=True)
        with suppress(OSError):  # another run was faster
            target.rename(folder)
    if _versions_in(folder) != VERSIONS:
        raise UsageError(f"{folder} is incomplete: delete it and try again")
    return folder


def _reason(error: Exception) -> str:
    """The reason of a failure in one line: the first line of npm's output that says something."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"npm was not ready after {INSTALL_SECONDS} s"
    if not isinstance(error, subprocess.CalledProcessError):
        return str(error)
    said = [line.removeprefix("npm error ") for line in str(error.stderr).splitlines()]
    telling = [line for line in said if line.strip() and not line.startswith(NPM_SAYS_LITTLE)]
    return telling[0] if telling else f"npm ended with status {error.returncode}"


# ------------------------------------------------------------------------------------------ the tools that a run called


@dataclass(frozen=True)
class ToolCall:
    """One call and the server's answer; `result` is None if that was an error."""

    tool: str
    result: str | None


def tool_calls(outcome: Outcome) -> list[ToolCall]:
    """Every call of a tool, in order; other requests are left out."""
    results = {event.data["call_id"]: event.data["result"] for event in outcome.of("protocol_result")}
    found = []
    for event in outcome.of("protocol_execute"):
        request, result = _request(event.data["request"]), results.get(event.data["call_id"])
        params = request.get("params")
        if request.get("method") == "tools/call" and isinstance(params, dict):
            found.append(ToolCall(str(params.get("name")), None if result is None else str(result)))
    return found


def results_since(outcome: Outcome, *tools: str) -> list[str]:
    """The results of the calls after the last successful call of one of `tools`; none without such a call."""
    calls = tool_calls(outcome)
    last = max((at for at, call in enumerate(calls) if call.tool in tools and call.result is not None), default=None)
    return [] if last is None else [call.result for call in calls[last + 1 :] if call.result is not None]


def _request(text: str) -> dict[str, Any]:
    try:
        request = json.loads(text)
    except (ValueError, RecursionError):
        return {}  # the model has read what is wrong with it
    return request if isinstance(request, dict) else {}
