"""What `import kernai` costs in a fresh process with cached bytecode, not counting the interpreter's own start.

Floor: `import dataclasses, json, logging, threading`. Aims: at most 2.7 times the floor, and under 30 ms.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from support import best, emit, timed

SRC = Path(__file__).resolve().parents[1] / "src"
FLOOR = "import dataclasses, json, logging, threading"


def main(*, quick: bool = False) -> None:
    """Emits one line. The three programs take turns, so that a slow moment affects all of them."""
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    commands = ([sys.executable, "-c", program] for program in ("pass", FLOOR, "import kernai"))
    starts = (timed(partial(subprocess.run, command, env=environment, check=True)) for command in commands)
    bare, floor, ours = best(10 if quick else 60, *starts)
    emit("import kernai", ours - bare, floor - bare, "<= 2.7", "ms")
    emit("import kernai, absolute", ours - bare, 0.030, "<= 1", "ms")
