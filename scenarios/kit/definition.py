"""`Definition`: what a scenario's file has said, ready to be run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kernai
from kernai_providers.http_provider import HttpProvider
from kit.outcome import Expectation, UsageError

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = ROOT / "scenarios"
Input = str | kernai.Media | list[str | kernai.Media]


@dataclass
class Definition:
    """The parts of a scenario; see `harness.Scenario`, which fills them in. Its file is in `folder`."""

    name: str
    description: str
    real: str
    folder: Path = SCENARIOS
    instructions: str | Callable[..., str] = ""
    skills: list[kernai.Skill] = field(default_factory=list)
    protocols: list[str | kernai.Protocol] = field(default_factory=list)
    mcp_config: Path | None = None
    capabilities: tuple[str, ...] = ("text",)
    input: Input = ""
    max_steps: int = 10
    limits: kernai.Limits | None = None
    drive: Callable[[Any], kernai.Result] | None = None
    preparations: list[Callable[[], object]] = field(default_factory=list)
    expectations: list[Expectation] = field(default_factory=list)

    @property
    def file(self) -> Path:
        """The scenario itself."""
        return self.folder / f"{self.name}.py"

    @property
    def tape(self) -> Path:
        """Where its tape belongs, whether there is one or not."""
        return self.folder / "tapes" / f"{self.name}.json"

    @contextmanager
    def agent(self, provider: kernai.Provider, model: kernai.Model) -> Iterator[kernai.Agent]:
        """The agent, with its MCP servers and connections, which end when it is left."""
        with _mcp(self.mcp_config) as mcp, provider if isinstance(provider, HttpProvider) else nullcontext():
            yield kernai.Agent(
                name=self.name,
                instructions=self.instructions,
                provider=provider,
                model=model,
                skills=self.skills,
                protocols=_protocols(self.protocols, mcp),
                max_steps=self.max_steps,
            )


def shown(path: Path) -> str:
    """A path as a reader of the output would type it in the repository."""
    whole = path.absolute()
    return whole.relative_to(ROOT).as_posix() if whole.is_relative_to(ROOT) else str(path)


def _protocols(wanted: Sequence[str | kernai.Protocol], mcp: kernai.Protocol | None) -> list[str | kernai.Protocol]:
    """The protocols, as objects where the registry does not hold them; MCP is there where it is configured."""
    found: list[str | kernai.Protocol] = []
    for one in wanted:
        if mcp is not None and one == mcp.name:
            continue
        if isinstance(one, str) and not kernai.protocols.is_registered(one):
            hint = "give its servers with scenario.mcp_config(path)" if one == "mcp" else "give the Protocol itself"
            raise UsageError(f"the protocol {one!r} is not registered: {hint}")
        found.append(one)
    return found if mcp is None else [*found, mcp]


@contextmanager
def _mcp(config: Path | None) -> Iterator[kernai.Protocol | None]:
    if config is None:
        yield None
        return
    try:
        from kernai import mcp
        from kernai.mcp.configuration import expanded, read_file, read_servers

        adapter = mcp.load(config, register=False)
        servers = read_servers(expanded(read_file(config), os.environ))
    except (ImportError, kernai.KernaiError) as error:
        raise UsageError(str(error)) from error
    with adapter:
        for server in servers.values():
            if server.command is not None:
                _check_command(server.name, server.command, server.env.get("PATH"))
        yield adapter.protocol


def _check_command(server: str, command: str, path: str | None) -> None:
    """A server that cannot be started is reported before the run, not in an error block for the model."""
    if shutil.which(command, path=path) is None:
        node = "Node.js, https://nodejs.org, which brings it" if command in ("node", "npx", "npm") else "it"
        raise UsageError(
            f"the MCP server {server!r} is started by {command!r}, which is not on this machine: install {node}"
        )
