"""A short form of `dev.py interrupts`: SIGINT at random moments, and runs that are taken up again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

INTERRUPTS = Path(__file__).with_name("interrupts.py")


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no os.kill for SIGINT")
def test_ctrl_c_at_any_moment_reaches_the_caller_once_and_leaves_a_whole_record_and_no_thread() -> None:
    command = [sys.executable, str(INTERRUPTS), "--times", "500"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    print(done.stdout)
    assert (done.stdout.splitlines()[-1:], done.stderr, done.returncode) == (["faults: 0"], "", 0), done.stdout
