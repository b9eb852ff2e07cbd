"""Run a program inside the test process, ten times cheaper than a new one. It shows the output and exit status.

Tests of interpreter options, signals, terminals, a real standard output or leftovers at exit need a real process.
"""

from __future__ import annotations

import io
import os
import runpy
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess
from unittest import mock


def ran_here(program: Path, *arguments: str | Path, environment: Mapping[str, str]) -> CompletedProcess[str]:
    """Return what ``python PROGRAM ARGUMENT...`` would print, and its status. Nothing is added to `environment`."""
    command = [str(program), *map(str, arguments)]
    printed, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="\n", write_through=True) for _ in range(2))
    with (
        mock.patch.object(sys, "argv", command),
        mock.patch.object(sys, "path", [str(program.parent), *sys.path]),
        mock.patch.dict(os.environ, environment, clear=True),
        redirect_stdout(printed),
        redirect_stderr(errors),
    ):
        try:
            runpy.run_path(str(program), run_name="__main__")
            status = 0
        except SystemExit as ended:
            if isinstance(ended.code, str):  # the interpreter prints it too
                print(ended.code, file=errors)
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    printed.seek(0)
    errors.seek(0)
    return CompletedProcess(command, status, printed.read(), errors.read())
