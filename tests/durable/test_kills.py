"""A short form of `dev.py kills`: processes that are killed, and runs that go on all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = Path(__file__).with_name("kills.py")


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_runs_whose_processes_are_killed_end_the_same_and_nothing_is_lost_or_doubled() -> None:
    command = [sys.executable, str(KILLS), "--times", "10", "--step", "9"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    print(done.stdout)
    assert (done.stdout.splitlines()[-1:], done.stderr, done.returncode) == (["faults: 0"], "", 0), done.stdout
