"""Run a scenario as its user does, with a clean environment, in a new process or within the test process."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
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
#: scenarios that need Pillow
PICTURES = {"describe_image", "vision_gated_skill", "drawn_image", "text_only_fallback"}

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
TURNS = [{"content": '<block type="command" name="double">21</block>'}, {"content": "<final>It is 42.</final>"}]


def ran_here(program: Path, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``python PROGRAM ARGUMENT...`` within the test process, with the clean environment."""
    with mock.patch.dict(known_providers._REGISTERED, clear=True):
        return programs.ran_here(program, *arguments, environment=ENVIRONMENT | environment)


def tape(*said: str | dict[str, Any], **conversations: Sequence[str | dict[str, Any]]) -> dict[str, Any]:
    """Return a tape of the demo, with the turns of the root or else those of its good run, and other conversations."""
    whole = {"What is twice 21?": said or TURNS, **conversations}
    return {
        "format": 2, "scenario": "demo", "provider": "hand-written", "model": "hand-written", "conversations": [
            {"scope": "", "input": text, "turns": [{"content": one} if isinstance(one, str) else one for one in turns]}
            for text, turns in whole.items()
        ],
    }


class Demo:
    """A scenario in its own folder, with its tape and logs."""

    def __init__(self, folder: Path, more: str = "", *said: str | dict[str, Any], **tape_parts: Any) -> None:
        self.file = folder / "demo.py"
        self.tape = folder / "tape.json"
        self.logs = folder / "logs"
        self.file.write_text(SCENARIO.replace("{more}", more), encoding="utf-8")
        self.write_tape(tape(*said) | tape_parts)

    def write_tape(self, data: Any) -> None:
        self.tape.write_text(json.dumps(data), encoding="utf-8")

    @property
    def saved(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.tape.read_text(encoding="utf-8"))
        return found

    def command(self, *arguments: str | Path) -> list[str]:
        return [sys.executable, str(self.file), "--logs", str(self.logs), *map(str, arguments)]

    def process(self, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
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

Tape = dict[str, Any]
Change = Callable[[Tape], object]


def failures(name: str, change: Change, folder: Path) -> list[str]:
    """Run a scenario with a changed tape, and return what fails. Other messages than the recorded ones are expected."""
    tape = json.loads((TAPES / f"{name}.json").read_text(encoding="utf-8"))
    for turn in [turn for conversation in tape["conversations"] for turn in conversation["turns"]]:
        turn.pop("asked", None)
    change(tape)
    path = folder / "tape.json"
    path.write_text(json.dumps(tape), encoding="utf-8")
    done = ran_here(SCENARIOS / f"{name}.py", "--tape", path, "--no-log")
    found = [line for line in done.stdout.splitlines() if line.startswith("FAILED: ")]
    assert (done.returncode, done.stderr) == (1 if found else 0, ""), done.stdout
    assert "it raised" not in done.stdout, "an expectation says what is wrong"
    return found


def turns(tape: Tape, task: str = "") -> list[dict[str, Any]]:
    """Return the turns of one task, or the first ones of the root."""
    found = (one["turns"] for one in tape["conversations"] if one["scope"].partition(".")[2] == task)
    first: list[dict[str, Any]] = next(found)
    return first


def replaced(old: str, new: str, task: str = "", turn: int | None = None) -> Change:
    """Replace a text in one turn, or wherever the model writes it."""

    def change(tape: Tape) -> None:
        spoken = turns(tape, task) if turn is None else [turns(tape, task)[turn]]
        assert any(old in one["content"] for one in spoken), f"the tape must hold {old!r}"
        for one in spoken:
            one["content"] = one["content"].replace(old, new)

    return change


def answered(old: str, new: str, task: str = "") -> Change:
    return replaced(old, new, task, -1)


def said_only(task: str, answer: str) -> Change:
    return lambda tape: turns(tape, task).__setitem__(slice(None), [{"content": f"<final>{answer}</final>"}])


def failing(task: str) -> Change:
    error = {"error": {"message": "no such model", "retryable": False}}
    return lambda tape: turns(tape, task).__setitem__(slice(None), [error])


def without(word: str) -> Change:
    """Leave out the root's turns that contain a word, but keep the answer."""

    def change(tape: Tape) -> None:
        turns(tape)[:-1] = [one for one in turns(tape)[:-1] if word not in one["content"]]

    return change


def cut(*at: int, task: str = "") -> Change:

    def change(tape: Tape) -> None:
        turns(tape, task)[:] = [one for number, one in enumerate(turns(tape, task)) if number not in at]

    return change


def added(at: int, skill: str, **params: Any) -> Change:
    call = f'\n<block type="command" name="{skill}">{json.dumps(params)}</block>'
    return lambda tape: turns(tape)[at].update(content=turns(tape)[at]["content"] + call)


def replan(edit: Callable[[dict[str, Any], dict[str, Any]], object]) -> Change:
    """Change the plan that is run: `edit` gets the plan, and its tasks by id."""

    def change(tape: Tape) -> None:
        written = [turn for turn in turns(tape) if '"tasks"' in turn["content"]][-1]
        plan = json.loads(written["content"].removeprefix('<block type="plan">').removesuffix("</block>"))
        edit(plan, {task["id"]: task for task in plan["tasks"]})
        written["content"] = f'<block type="plan">{json.dumps(plan, ensure_ascii=False)}</block>'

    return change


def strategy(word: str) -> Change:
    return replan(lambda plan, tasks: plan.update(strategy=word))


def waiting(task: str, *needed: str) -> Change:
    """Have a task depend on exactly these tasks."""
    return replan(lambda plan, tasks: tasks[task].update(depends_on=list(needed)))


def both(*changes: Change) -> Change:
    def change(tape: Tape) -> None:
        for one in changes:
            one(tape)

    return change
