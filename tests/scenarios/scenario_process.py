"""Run a scenario as its user does, with a clean environment, in a new process or within the test process."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from kernai.recording_file import read_recording
from kernai_providers import VENDORS
from kit import known_providers
from tests import programs

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = ROOT / "scenarios"
TAPES = SCENARIOS / "tapes"

KEYS = {name for vendor in VENDORS for name in vendor.variables}
#: variables that would choose a provider or describe the terminal
SETTINGS = {"PROVIDER", "MODEL", "LOCAL_BASE_URL", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"}
ENVIRONMENT = {
    key: value for key, value in os.environ.items()
    if not key.startswith(("PYTHON", "COV_")) and key not in KEYS | SETTINGS
} | {
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(SCENARIOS)]),
    "PYTHONIOENCODING": "utf-8",
    "OLLAMA_HOST": "127.0.0.1:1",  # nothing listens there, even if Ollama runs on this machine
}

#: a scenario with one skill; a test may put more code in place of `{more}`
SCENARIO = '''
import kernai
from harness import ExpectationError, Outcome, Scenario, register_provider

scenario = Scenario("demo", description="doubles a number")
scenario.instructions("Use your skill.")
scenario.input("What is twice 21?")

@scenario.skill
def double(number: int) -> int:
    """Double a number."""
    return number * 2

@scenario.expect
def gives_the_number(outcome: Outcome) -> bool:
    return "42" in outcome.text

{more}

if __name__ == "__main__":
    scenario.main()
'''
TURNS = [
    {"content": '<block type="command" name="double">21</block>'},
    {"content": "<final>It is 42.</final>"},
]


def ran_here(program: Path, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``python PROGRAM ARGUMENT...`` within the test process, with the clean environment."""
    with mock.patch.dict(known_providers._REGISTERED, clear=True):
        return programs.ran_here(program, *arguments, environment=ENVIRONMENT | environment)


def tape(*conversations: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a tape of the demo; without `conversations`, that of its good run."""
    whole = list(conversations) or [{"scope": "", "input": "What is twice 21?", "turns": TURNS}]
    header = {"format": 2, "scenario": "demo", "provider": "hand-written", "model": "hand-written"}
    return {**header, "conversations": whole, **more}


class Demo:
    """A scenario in its own folder, with its tape and logs."""

    def __init__(self, folder: Path, more: str = "", **tape_parts: Any) -> None:
        self.file = folder / "demo.py"
        self.tape = folder / "tape.json"
        self.logs = folder / "logs"
        self.file.write_text(SCENARIO.replace("{more}", more), encoding="utf-8")
        self.write_tape(tape(**tape_parts))

    def write_tape(self, data: Any) -> None:
        self.tape.write_text(json.dumps(data), encoding="utf-8")

    @property
    def saved(self) -> dict[str, Any]:
        """The current content of the tape's file."""
        found: dict[str, Any] = json.loads(self.tape.read_text(encoding="utf-8"))
        return found

    def command(self, *arguments: str | Path) -> list[str]:
        return [sys.executable, str(self.file), "--logs", str(self.logs), *map(str, arguments)]

    def process(self, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the scenario in a new process."""
        return subprocess.run(
            self.command(*arguments), env=ENVIRONMENT | environment, capture_output=True, encoding="utf-8", check=False
        )

    def run(self, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the scenario within the test process: with the model named in the arguments, or else from the tape."""
        return ran_here(self.file, "--logs", self.logs, *arguments, **environment)

    def replay(self, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run("--tape", self.tape, *arguments, **environment)

    @property
    def log_files(self) -> list[Path]:
        return sorted(path for path in self.logs.glob("*.json") if path.name != "manifest.json")

    @property
    def log(self) -> dict[str, Any]:
        """The log of the only run."""
        (path,) = self.log_files
        found: dict[str, Any] = json.loads(path.read_text(encoding="ascii"))
        return found

    @property
    def manifest(self) -> list[dict[str, Any]]:
        lines = (self.logs / "manifest.json").read_text(encoding="ascii").splitlines()
        return [json.loads(line) for line in lines]


def data_of(events: list[dict[str, Any]], kind: str, skill: str | None = None) -> list[Any]:
    """Return the data of all events of a type, or of those of one skill."""
    found = [event["data"] for event in events if event["event"] == kind]
    return [data for data in found if skill is None or data["skill"] == skill]


@functools.cache
def recorded(name: str) -> list[dict[str, Any]]:
    """Run a scenario once with its tape, and return the events of this good run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.json"
        done = ran_here(SCENARIOS / f"{name}.py", "--offline", "--no-log", "--record", path)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        assert "note:" not in done.stdout  # the run sends the same messages as when the tape was made
        return read_recording(path)


# ------------------------------------------------------------------------------------------ tapes with changes

Change = Callable[[list[dict[str, Any]]], object]


def failures(name: str, change: Change, folder: Path) -> list[str]:
    """Run a scenario with changed turns of the root, and return what fails."""
    tape = json.loads((TAPES / f"{name}.json").read_text(encoding="utf-8"))
    change(tape["conversations"][0]["turns"])
    path = folder / "tape.json"
    path.write_text(json.dumps(tape), encoding="utf-8")
    done = ran_here(SCENARIOS / f"{name}.py", "--tape", path, "--no-log")
    assert (done.returncode, done.stderr) == (1, ""), done.stdout
    return [line for line in done.stdout.splitlines() if line.startswith("FAILED: ")]


def replaced(old: str, new: str) -> Change:
    """Replace a text wherever the model writes it."""

    def change(turns: list[dict[str, Any]]) -> None:
        assert any(old in turn["content"] for turn in turns), f"the tape must hold {old!r}"
        for turn in turns:
            turn["content"] = turn["content"].replace(old, new)

    return change


def answered(old: str, new: str) -> Change:
    """Replace a text in the answer."""
    return lambda turns: replaced(old, new)(turns[-1:])


def without(word: str) -> Change:
    """Leave out the turns that contain a word, but keep the answer."""
    return lambda turns: turns.__setitem__(slice(0, -1), [one for one in turns[:-1] if word not in one["content"]])


def cut(first: int, last: int) -> Change:
    """Leave out some turns."""
    return lambda turns: turns.__delitem__(slice(first, last))


def added(at: int, skill: str, **params: Any) -> Change:
    """Add a call to a turn."""
    call = f'\n<block type="command" name="{skill}">{json.dumps(params)}</block>'
    return lambda turns: turns[at].update(content=turns[at]["content"] + call)
