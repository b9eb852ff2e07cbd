"""A short form of `dev.py interrupts`: SIGINT at random moments, and runs that are resumed."""

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
@pytest.mark.parametrize("presses", [["--times", "500"], ["--times", "100", "--twice"]], ids=["once", "twice"])
def test_ctrl_c_at_any_moment_reaches_the_caller_and_leaves_what_can_be_resumed_and_no_thread(presses: list[str]) -> None:
    command = [sys.executable, str(INTERRUPTS), *presses]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    print(done.stdout)
    assert (done.stdout.splitlines()[-1:], done.stderr, done.returncode) == (["faults: 0"], "", 0), done.stdout
