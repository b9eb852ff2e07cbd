"""The log of a run, and the manifest that many runs share."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kernai import Event
from kernai.recording_file import read_recording
from kit.run_log import append_line
from tests.scenarios.scenario_process import ENVIRONMENT, Demo


def test_a_log_has_the_whole_run_and_the_manifest_its_figures(tmp_path: Path) -> None:
    demo = Demo(tmp_path)
    assert demo.replay().returncode == 0
    log = demo.log
    figures = {key: value for key, value in log.items() if key not in ("events", "answer", "started_at", "seconds")}
    assert figures == {
        "format": 1,
        "scenario": "demo",
        "provider": "tape",
        "provider_reason": "--tape",
        "model": "hand-written",
        "tape": {"provider": "hand-written", "model": "hand-written", "faults": []},
        "passed": True,
        "faults": [],
        "notes": [],
        "expectations": [{"name": "gives the number", "holds": True, "reason": ""}],
        "steps": 2,
        "stop_reason": "final",
        "usage": log["usage"],
    }
    assert log["answer"] == "It is 42."
    assert log["usage"]["model_calls"] == 2
    assert log["usage"]["cost"] is None
    assert log["started_at"].endswith("Z")
    events = [Event.from_dict(entry) for entry in read_recording(demo.log_files[0])]
    assert (events[0].type, events[-1].type) == ("run_start", "result")
    (line,) = demo.manifest
    assert line == {key: log[key] for key in log if key not in ("events", "answer")} | {"log": demo.log_files[0].name}


@pytest.mark.skipif(os.name == "nt", reason="Windows knows no file modes")
def test_a_log_is_for_its_owner_alone(tmp_path: Path) -> None:
    demo = Demo(tmp_path)
    demo.replay()
    for path in (*demo.log_files, demo.logs / "manifest.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_nothing_is_written_without_a_log(tmp_path: Path) -> None:
    demo = Demo(tmp_path)
    done = demo.replay("--no-log")
    assert (done.returncode, demo.logs.exists()) == (0, False)
    assert "log:" not in done.stdout


@pytest.mark.parametrize("blocked", ["logs", "logs/manifest.json", "logs/.manifest.lock"])
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


def test_a_run_whose_log_cannot_be_written_in_the_end_is_shown_all_the_same(tmp_path: Path) -> None:
    more = "import shutil, sys\nscenario.prepare(lambda: shutil.rmtree(sys.argv[2]))"
    done = Demo(tmp_path, more).replay()
    assert (done.returncode, done.stdout.splitlines()[-1]) == (2, "ok: gives the number")
    assert "log:" not in done.stdout
    assert done.stderr.startswith("demo: error: cannot write the log to ")


def test_what_is_hostile_in_a_run_is_plain_json_in_its_log(tmp_path: Path) -> None:
    demo = Demo(tmp_path)
    said = "<final>It is 42. \x1b[2J \ud800 \u202e</final>"
    entry = {"scope": "", "input": "What is twice 21?", "turns": [{"content": said}]}
    demo.write_tape(demo.saved | {"conversations": [entry]})
    assert demo.replay().returncode == 0
    assert demo.log["answer"] == "It is 42. \x1b[2J \ud800 \u202e"
    assert demo.replay("--save-tape").returncode == 0
    assert demo.saved["conversations"][0]["turns"][0]["content"] == said


# ------------------------------------------------------------------------------------------ several at once

COUNTER = """
import sys
from pathlib import Path
from kit.file_lock import locked
path = Path(sys.argv[1])
sys.stdin.readline()
for _ in range(int(sys.argv[2])):
    with locked(path.with_name("lock")):
        path.write_text(str(int(path.read_text()) + 1))
"""


@pytest.mark.process
def test_one_process_at_a_time_holds_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "count"
    path.write_text("0")
    command = [sys.executable, "-c", COUNTER, str(path), "200"]
    processes = [subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.PIPE) for _ in range(3)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.close()
    assert [process.wait() for process in processes] == [0] * 3
    assert path.read_text() == "600"


def test_a_line_that_a_crash_cut_off_does_not_swallow_the_next(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text('{"scenario": "cut o')
    append_line(path, {"scenario": "next"})
    append_line(path, {"scenario": "last"})
    assert path.read_text().splitlines()[1:] == ['{"scenario": "next"}', '{"scenario": "last"}']
