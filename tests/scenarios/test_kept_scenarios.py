"""Scenarios of runs that survive: good ones, and tapes whose runs look good and are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import kernai
from kernai.recording_file import read_recording
from kit.kept import STORE
from kit.tape import Conversation, Tape, Turn
from kit.tape_provider import TapeProvider
from tests.scenarios.scenario_process import ENVIRONMENT

pytestmark = [pytest.mark.process, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("approval_of_payments", "crash_and_resume", "fork_another_way")
Change = Callable[[str], str]


def ran(name: str, *arguments: str, python: tuple[str, ...] = (), **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *python, str(ROOT / "scenarios" / f"{name}.py"), "--offline", "--no-log", *arguments]
    return subprocess.run(
        command, env={**ENVIRONMENT, **more}, capture_output=True, encoding="utf-8", timeout=120, check=False
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_standard_library_alone_is_enough_and_nothing_is_left_behind(name: str, tmp_path: Path) -> None:
    done = ran(name, python=("-S",), TMPDIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert os.listdir(tmp_path) == []


BAD: dict[str, tuple[str, Change, str]] = {
    "both payments for the amount delivered": (
        "approval_of_payments", lambda text: text.replace("219.50", "129.50"), "only what was delivered is paid",
    ),
    "an answer that hides the refusal": (
        "approval_of_payments", lambda text: text.replace("R-18 is not:", "The other is not:"), "the answer names both",
    ),
    "a wrong fee": (
        "crash_and_resume", lambda text: text.replace('\\"amount\\": 60', '\\"amount\\": 66'), "every fee is booked once",
    ),
    "the wrong train": (
        "fork_another_way", lambda text: text.replace("the express", "the night train"), "each run chose what",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name, change, failure", BAD.values(), ids=BAD.keys())
def test_a_run_that_is_not_good_says_what_does_not_hold(name: str, change: Change, failure: str, tmp_path: Path) -> None:
    tape = (ROOT / "scenarios" / "tapes" / f"{name}.json").read_text(encoding="utf-8")
    changed = change(tape)
    assert changed != tape
    json.loads(changed)
    path = tmp_path / "tape.json"
    path.write_text(changed, encoding="utf-8")
    done = ran(name, "--tape", str(path))
    assert done.returncode == 1
    assert f"this does not hold: {failure}" in done.stdout + done.stderr


def test_a_store_that_is_none_is_wrong_usage() -> None:
    done = ran("crash_and_resume", KERNAI_SCENARIO_STORE="/no/such/folder")
    assert done.returncode == 2
    assert f"{STORE} is set, and /no/such/folder is no folder" in done.stderr


def test_a_tape_continues_after_turns_of_another_process_only_when_asked() -> None:
    tape = Tape("t", "p", "m", (Conversation("", "hi", (Turn("one"), Turn("<final>two</final>"))),))
    messages = [kernai.Message("user", "hi"), kernai.Message("assistant", "one"), kernai.Message("user", "and?")]

    def ask(provider: TapeProvider) -> str:
        agent = kernai.Agent(instructions="x", provider=provider)
        return kernai.run(agent, messages[2].text, history=messages[:2])

    with pytest.raises(kernai.ProviderError, match="left the recorded path"):
        ask(TapeProvider(tape))
    taken_up = TapeProvider(tape)
    taken_up.skip_to_recorded()
    assert ask(taken_up) == "two"
    assert taken_up.unplayed == []


def test_the_recording_of_a_run_that_was_killed_holds_both_processes(tmp_path: Path) -> None:
    done = ran("crash_and_resume", "--record", str(tmp_path / "run.jsonl"))
    assert done.returncode == 0, done.stderr
    types = [entry["event"] for entry in read_recording(tmp_path / "run.jsonl")]
    assert (types[0], types[-1], types.count("skill_execute"), types.count("llm_response")) == ("run_start", "result", 4, 5)
