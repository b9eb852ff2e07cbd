"""The cheaper ways to run a program end as a process does: what is proved with them is worth no more than that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs import ran_here
from tests.warm_python import WarmPython

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork"),
]

PROGRAM = """\
import atexit, os, sys, threading, time
print(sys.argv[1:], __name__, os.getcwd(), os.environ["WORD"], sys.path[0] == os.path.dirname(__file__), flush=True)
print("warned", file=sys.stderr)
atexit.register(print, "left")
"""
ENDINGS = {
    "its last line": "",
    "a status": "sys.exit(3)",
    "a status of none": "sys.exit(None)",
    "a text": "sys.exit('why')",
    "an exception": "raise RuntimeError('why')",
    "a thread that keeps running": "threading.Timer(0.01, print, ['late']).start()",
    "a daemon that reads on": "threading.Thread(target=sys.stdin.read, daemon=True).start(); time.sleep(0.01)",
    "its own death": "os.kill(os.getpid(), 9)",
    "os._exit": "os._exit(5)",
}
Outcome = tuple[int, str, list[str]]


@pytest.fixture(scope="module")
def python() -> Iterator[WarmPython]:
    with WarmPython("json", environment=os.environ) as python:
        yield python


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.chdir(tmp_path)
    return {**os.environ, "WORD": "a word"}


def outcome(status: int, out: str, errors: str) -> Outcome:
    return status, out, [line for line in errors.splitlines() if not line.startswith(("  ", "Traceback"))]


def of_a_process(program: Path, environment: dict[str, str]) -> Outcome:
    command = [sys.executable, "-W", "error", str(program), "--option", "x"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, input="", check=False)
    return outcome(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_warm_python_forks_what_ends_as_a_process_does(
    python: WarmPython, environment: dict[str, str], tmp_path: Path, ending: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + ENDINGS[ending])
    with python.run(program, "--option", "x", environment=environment) as process:
        out, errors = process.communicate()
    assert process.returncode is not None
    assert outcome(process.returncode, out, errors) == of_a_process(program, environment)
    assert "a word" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_ends_it_as_it_ends_a_process(python: WarmPython, tmp_path: Path, number: int) -> None:
    program = tmp_path / "program.py"
    program.write_text("import signal\nprint('ready', flush=True)\nsignal.pause()\n")
    with python.run(program) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait() == -number
        process.kill()  # it has ended: that is nobody else's death


@pytest.mark.parametrize("ending", ["its last line", "a status", "a status of none", "a text"])
def test_a_program_that_is_run_here_says_what_a_process_says(
    environment: dict[str, str], tmp_path: Path, ending: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace('atexit.register(print, "left")', "") + ENDINGS[ending])
    done = ran_here(program, "--option", "x", environment=environment)
    assert outcome(done.returncode, done.stdout, done.stderr) == of_a_process(program, environment)
