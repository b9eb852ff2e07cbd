"""What a scenario and the matrix do with the standard output they are given: closed, full, left by its reader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scenarios.scenario_process import ENVIRONMENT, SCENARIOS, Demo

pytestmark = pytest.mark.process

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
    """A command whose standard output the shell opens or closes."""
    shell = ["sh", "-c", f'exec "$@" {target}', "sh", *command]
    return subprocess.run(shell, env=ENVIRONMENT, stderr=subprocess.PIPE, encoding="utf-8", check=False)


def commands(folder: Path) -> dict[str, list[str]]:
    """A scenario, and a matrix of one."""
    demo = Demo(folder)
    matrix = [*MATRIX, "--folder", str(folder), "--list"]
    return {"demo": demo.command("--tape", demo.tape), "run_matrix": matrix}


@pytest.mark.parametrize("name", ["demo", "run_matrix"])
def test_a_closed_output_is_no_obstacle(tmp_path: Path, name: str) -> None:
    done = redirected(commands(tmp_path)[name], ">&-")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no device that is always full")
@pytest.mark.parametrize("name", ["demo", "run_matrix"])
def test_a_full_disk_behind_the_output_is_one_clear_line(tmp_path: Path, name: str) -> None:
    done = redirected(commands(tmp_path)[name], ">/dev/full")
    assert done.stderr == f"{name}: error: cannot write the output: No space left on device\n"
    assert done.returncode == 1


def test_what_a_scenario_s_own_code_prints_does_not_steer_the_terminal(tmp_path: Path) -> None:
    demo = Demo(tmp_path, PRINTING)
    done = demo.process("--tape", demo.tape)
    assert done.returncode == 0
    assert f"out {SHOWN}\n" in done.stdout
    assert "tty False utf-8\n" in done.stdout
    assert "as bytes\n" in done.stdout
    assert done.stderr == f"err {SHOWN}\n"


def test_a_matrix_whose_reader_leaves_writes_what_is_done(tmp_path: Path) -> None:
    Demo(tmp_path)
    output = tmp_path / "matrix.json"
    command = [*MATRIX, "--folder", str(tmp_path), "--offline", "--output", str(output)]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1
    assert [cell["scenario"] for cell in json.loads(output.read_text())["cells"]] == ["demo"]
