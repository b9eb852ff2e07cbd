"""The definition of a scenario, as its file declares it, and the expectations of the run's outcome."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kernai
from kernai.errors import described
from kernai_providers.http_provider import HttpProvider


class UsageError(Exception):
    """A mistake on the command line, or something that must be installed, in one line."""


class ExpectationError(Exception):
    """Raised by an expectation that can say what is wrong with the run."""


def require(holds: object, reason: str) -> bool:
    """True; raises `ExpectationError` with the reason if the condition does not hold."""
    if not holds:
        raise ExpectationError(reason)
    return True


@dataclass(frozen=True)
class Call:
    """A call of a skill that gave a result; `value` is the result, parsed if it is JSON.

    `started` and `ended` are places in the recording. `task` is None for a call of the root.
    """

    task: str | None
    params: dict[str, Any]
    value: Any
    started: int
    ended: int


@dataclass(frozen=True)
class Outcome:
    """What an expectation judges: the run's result and all recorded events, including those of sub-runs."""

    result: kernai.Result
    events: Sequence[kernai.Event]

    @property
    def text(self) -> str:
        """The answer; empty if there is none."""
        return self.result.text or ""

    def of(self, event_type: str) -> list[kernai.Event]:
        """The events of one type, in order."""
        return [event for event in self.events if event.type == event_type]

    def calls_of(self, skill: str) -> list[Call]:
        """The calls of one skill that gave a result, in the order in which they began."""
        begun: dict[str, tuple[int, kernai.Event]] = {}
        calls = []
        for at, event in enumerate(self.events):
            if event.type == "skill_execute":
                begun[event.data["call_id"]] = (at, event)
            elif event.type == "skill_result" and event.data["skill"] == skill:
                started, call = begun[event.data["call_id"]]
                calls.append(Call(call.task_id, call.data["params"], _parsed(event.data["result"]), started, at))
        return sorted(calls, key=lambda call: call.started)

    def results_of(self, skill: str) -> list[Any]:
        """The results of one skill's calls, in order."""
        return [event.data["result"] for event in self.of("skill_result") if event.data["skill"] == skill]

    def errors_of(self, skill: str) -> list[str]:
        """The errors of one skill's calls, in order."""
        return [event.data["error"] for event in self.of("skill_error") if event.data["skill"] == skill]

    def task_results(self) -> dict[str, Any]:
        """The result of each workflow task by its id; that of a failed task is ``error: MESSAGE``.

        Of tasks with the same id, the one of the later workflow counts.
        """
        found: dict[str, Any] = {}
        for event in self.of("workflow_complete"):
            found.update(event.data["results"])
        return found

    def protocol_results(self, protocol: str | None = None) -> list[Any]:
        """The answers of all protocols, in order; with a name, only those of that protocol."""
        events = self.of("protocol_result")
        return [event.data["result"] for event in events if protocol in (None, event.data["protocol"])]


def _parsed(result: Any) -> Any:
    try:
        return json.loads(result)
    except (TypeError, ValueError):
        return result


Check = Callable[[Outcome], object]


@dataclass(frozen=True)
class Verdict:
    """How one expectation was judged. `holds` is None if there was nothing to judge."""

    name: str
    holds: bool | None
    reason: str = ""


    def __str__(self) -> str:
        return f"expectation not met: {self.name}" + (f"; {self.reason}" if self.reason else "")


@dataclass(frozen=True)
class Expectation:
    """One property of a good run: `check` is true for its outcome. `reason` says what is wrong if it is not."""

    name: str
    check: Check
    reason: str = ""

    def judge(self, outcome: Outcome) -> Verdict:
        """Whether the expectation holds. If it raises, it does not hold, and its error is the reason."""
        try:
            found = self.check(outcome)
            holds = bool(found)
        except ExpectationError as error:
            return Verdict(self.name, holds=False, reason=str(error) or self.reason)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a mistake in the check is reported like other faults
            return Verdict(self.name, holds=False, reason=f"it raised {described(error)}")
        forgotten = "it returned None, but must return True or False" if found is None else ""
        return Verdict(self.name, holds, "" if holds else self.reason or forgotten)


def name_of(check: Check, number: int) -> str:
    """The name of an expectation: its function's name as words, or a lambda's place in the file."""
    name = getattr(check, "__name__", "<lambda>")
    if name != "<lambda>":
        return str(name).replace("_", " ").strip()
    code = getattr(check, "__code__", None)
    return f"expectation {number}" + (f" (line {code.co_firstlineno})" if code is not None else "")


def judged(outcome: Outcome, expectations: Sequence[Expectation]) -> list[Verdict]:
    """The verdict on each expectation. Without an answer, there is nothing to judge."""
    if outcome.result.stop_reason != kernai.StopReason.FINAL:
        return [Verdict(one.name, None, "the run has no answer") for one in expectations]
    return [one.judge(outcome) for one in expectations]


# --------------------------------------------------------------------------------------------------------- the scenario


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
        """The scenario's file."""
        return self.folder / f"{self.name}.py"

    @property
    def tape(self) -> Path:
        """The path of its tape, which need not exist."""
        return self.folder / "tapes" / f"{self.name}.json"

    @contextmanager
    def agent(self, provider: kernai.Provider, model: kernai.Model) -> Iterator[kernai.Agent]:
        """The agent, with its MCP servers and connections, which are closed at the end of the ``with`` block."""
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
    """A path as a reader of the output would type it, relative to the repository."""
    whole = path.absolute()
    return whole.relative_to(ROOT).as_posix() if whole.is_relative_to(ROOT) else str(path)


def _protocols(wanted: Sequence[str | kernai.Protocol], mcp: kernai.Protocol | None) -> list[str | kernai.Protocol]:
    """The protocols, as objects if the registry does not have them; includes MCP if it is configured."""
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
        from kernai.mcp.configuration import read_file, read_servers

        adapter = mcp.load(config, register=False)
        servers = read_servers(read_file(config))
    except (ImportError, kernai.KernaiError) as error:
        raise UsageError(str(error)) from error
    with adapter:
        for server in servers.values():
            if server.command is not None:
                _check_command(server.name, server.command, server.env.get("PATH"))
        yield adapter.protocol


def _check_command(server: str, command: str, path: str | None) -> None:
    """Reports a server that cannot be started before the run, not in an error block for the model."""
    if shutil.which(command, path=path) is None:
        node = "Node.js (https://nodejs.org), which includes it" if command in ("node", "npx", "npm") else "it"
        raise UsageError(
            f"the MCP server {server!r} is started by {command!r}, which is not installed: install {node}"
        )
