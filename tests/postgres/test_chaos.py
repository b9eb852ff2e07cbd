"""A short form of `dev.py chaos`: workers and a server that are killed and stopped, and runs that end all the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.postgres.server import Server

CHAOS = Path(__file__).with_name("chaos.py")


@pytest.mark.slow
@pytest.mark.process
def test_runs_whose_workers_and_server_are_killed_end_and_nothing_is_lost_or_doubled(server: Server) -> None:
    command = [sys.executable, str(CHAOS), "--runs", "40", "--workers", "2", "--every", "1", "--lease", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    print(done.stdout)
    assert (done.stdout.splitlines()[-1:], done.returncode) == (["faults: 0"], 0), done.stdout + done.stderr
