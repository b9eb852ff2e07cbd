"""Scenarios of runs that survive: good ones, and tapes whose runs look good and are not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kernai
from kernai.recording_file import read_recording
from kit.kept import STORE
from kit.tape import Conversation, Tape, Turn
from kit.tape_provider import TapeProvider
from tests.scenarios.scenario_process import ENVIRONMENT, SCENARIOS, Change, failures, replaced

pytestmark = [pytest.mark.process, pytest.mark.slow]

NAMES = ("approval_of_payments", "crash_and_resume", "fork_another_way")


def ran(name: str, *arguments: str, python: tuple[str, ...] = (), **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *python, str(SCENARIOS / f"{name}.py"), "--offline", "--no-log", *arguments]
    return subprocess.run(
        command, env={**ENVIRONMENT, **more}, capture_output=True, encoding="utf-8", timeout=120, check=False
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_standard_library_alone_is_enough_and_nothing_is_left_behind(name: str, tmp_path: Path) -> None:
    done = ran(name, python=("-S",), TMPDIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "name, change, failure",
    [
        ("approval_of_payments", replaced("219.50", "129.50"), "only what was delivered is paid"),
        ("approval_of_payments", replaced("R-18 is not:", "The other is not:"), "the answer names both"),
        ("crash_and_resume", replaced('"amount": 60', '"amount": 66'), "every fee is booked once"),
        ("fork_another_way", replaced("the regional trains", "the night train"), "each run chose what"),
    ],
)
def test_a_run_that_is_not_good_says_what_does_not_hold(name: str, change: Change, failure: str, tmp_path: Path) -> None:
    assert any(f"this does not hold: {failure}" in line for line in failures(name, change, tmp_path))


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
