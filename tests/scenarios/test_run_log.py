"""The files of a run: its log and the manifest that many runs share; and a standard output that is closed or full."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kernai import Event
from kernai.recording_file import read_recording
from kit.run_log import append_line
from tests.scenarios.scenario_process import ENVIRONMENT, SCENARIOS, Demo


def test_the_log_holds_the_whole_run_and_the_manifest_its_figures(tmp_path: Path) -> None:
    demo = Demo(tmp_path)
    assert demo.replay().returncode == 0
    log = demo.log
    figures = {key: value for key, value in log.items() if key not in ("events", "started_at", "seconds", "usage")}
    assert figures == {
        "format": 1, "scenario": "demo", "provider": "tape", "provider_reason": "--tape", "model": "hand-written",
        "tape": {"provider": "hand-written", "model": "hand-written", "faults": []},
        "passed": True, "faults": [], "notes": [], "answer": "It is 42.", "steps": 2, "stop_reason": "final",
        "expectations": [{"name": "gives the number", "holds": True, "reason": ""}],
    }
    assert (log["usage"]["model_calls"], log["usage"]["cost"]) == (2, None)
    assert log["started_at"].endswith("Z")
    events = [Event.from_dict(entry) for entry in read_recording(demo.log_files[0])]
    assert (events[0].type, events[-1].type) == ("run_start", "result")
    (line,) = demo.manifest
    assert line == {key: log[key] for key in log if key not in ("events", "answer")} | {"log": demo.log_files[0].name}
    if os.name != "nt":  # only the owner can read them
        assert {stat.S_IMODE(path.stat().st_mode) for path in (*demo.log_files, demo.logs / "manifest.json")} == {0o600}


def test_with_no_log_nothing_is_written(tmp_path: Path) -> None:
    demo = Demo(tmp_path)
    done = demo.replay("--no-log")
    assert (done.returncode, demo.logs.exists(), "log:" in done.stdout) == (0, False, False)


@pytest.mark.parametrize("blocked", ["logs", "logs/manifest.json"])
def test_a_log_that_cannot_be_written_is_reported_before_the_run(tmp_path: Path, blocked: str) -> None:
    demo = Demo(tmp_path)
    if blocked == "logs":
        demo.logs.write_text("a file in the folder's place")
    else:
        (tmp_path / blocked).mkdir(parents=True)
    done = demo.replay()
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"demo: error: cannot write the log to {demo.logs}: ")
    assert "--logs DIR takes another, --no-log none" in line
    assert not list(tmp_path.rglob("*.part"))


def test_the_outcome_is_shown_even_if_the_log_cannot_be_written_at_the_end(tmp_path: Path) -> None:
    more = "import shutil, sys\nscenario.prepare(lambda: shutil.rmtree(sys.argv[2]))"
    done = Demo(tmp_path, more).replay()
    assert (done.returncode, done.stdout.splitlines()[-1]) == (2, "ok: gives the number")
    assert "log:" not in done.stdout
    assert done.stderr.startswith("demo: error: cannot write the log to ")


def test_hostile_text_in_a_run_is_plain_json_in_its_log(tmp_path: Path) -> None:
    said = "<final>It is 42. \x1b[2J \ud800 \u202e</final>"
    demo = Demo(tmp_path, "", said)
    assert demo.replay().returncode == 0
    assert demo.log["answer"] == "It is 42. \x1b[2J \ud800 \u202e"
    assert demo.replay("--save-tape").returncode == 0
    assert demo.saved["conversations"][0]["turns"][0]["content"] == said


def test_a_line_cut_off_by_a_crash_does_not_spoil_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text('{"scenario": "cut o')
    append_line(path, {"scenario": "next"})
    append_line(path, {"scenario": "last"})
    assert path.read_text().splitlines()[1:] == ['{"scenario": "next"}', '{"scenario": "last"}']


# ---------------------------------------------------------------- a closed or full standard output, or no reader


MATRIX = [sys.executable, str(SCENARIOS / "run_matrix.py")]
HOSTILE = r"\x1b]0;owned\x07 \x1b[2J\x9b31m \u202e \r\x08 [red]"
SHOWN = "]0;owned [2J31m \ufffd  [red]"

PRINTING = f"""
import sys

@scenario.prepare
def report() -> None:
    print("out", "{HOSTILE}")
    print("err", "{HOSTILE}", file=sys.stderr)
    sys.stdout.writelines(["tty " + str(sys.stdout.isatty()), " ", sys.stdout.encoding, chr(10)])
    sys.stdout.buffer.write(b"as bytes" + bytes([10]))
"""


def redirected(command: list[str], target: str) -> subprocess.CompletedProcess[str]:
    """Run a command with a redirection of its standard output by the shell."""
    shell = ["sh", "-c", f'exec "$@" {target}', "sh", *command]
    return subprocess.run(shell, env=ENVIRONMENT, stderr=subprocess.PIPE, encoding="utf-8", check=False)


@pytest.mark.process
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no device that is always full")
@pytest.mark.parametrize("name", ["demo", "run_matrix"])
@pytest.mark.parametrize("target, status, said", [
    (">&-", 0, ""), (">/dev/full", 1, "{name}: error: cannot write the output: No space left on device\n"),
], ids=["closed", "full"])
def test_a_closed_standard_output_is_no_error_and_a_full_disk_one_clear_line(
    tmp_path: Path, name: str, target: str, status: int, said: str
) -> None:
    demo = Demo(tmp_path)
    command = [*MATRIX, "--folder", str(tmp_path), "--list"] if name == "run_matrix" else demo.command("--tape", demo.tape)
    done = redirected(command, target)
    assert (done.returncode, done.stderr) == (status, said.format(name=name))


@pytest.mark.process
def test_output_of_a_scenarios_own_code_cannot_control_the_terminal(tmp_path: Path) -> None:
    demo = Demo(tmp_path, PRINTING)
    done = demo.process("--tape", demo.tape)
    assert done.returncode == 0
    assert f"out {SHOWN}\n" in done.stdout
    assert "tty False utf-8\n" in done.stdout
    assert "as bytes\n" in done.stdout
    assert done.stderr == f"err {SHOWN}\n"


@pytest.mark.process
@pytest.mark.parametrize("name", ["demo", "run_matrix"])
def test_closing_the_output_early_prints_no_traceback_and_a_matrix_still_writes_its_finished_cells(tmp_path: Path, name: str) -> None:
    demo, output = Demo(tmp_path), tmp_path / "matrix.json"
    matrix = [*MATRIX, "--folder", str(tmp_path), "--offline", "--output", str(output)]
    command = matrix if name == "run_matrix" else demo.command("--tape", demo.tape)
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        if name == "run_matrix":
            process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1
    assert name == "demo" or [cell["scenario"] for cell in json.loads(output.read_text())["cells"]] == ["demo"]
