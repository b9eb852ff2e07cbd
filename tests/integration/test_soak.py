"""A hundredth of what `dev.py soak` runs: nothing of it may be left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.process
def test_runs_abandoned_streams_and_cancelled_calls_leave_nothing_behind() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "soak.py"), "--share", "0.01"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    for what in ("200 runs", "20 abandoned streams", "20 cancelled calls"):
        assert f"{what} in" in done.stdout
    assert done.stdout.count("tasks left 0") == 3
