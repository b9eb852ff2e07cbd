"""What `import kernai` costs in a fresh process with cached bytecode, not counting the interpreter's own start.

Floor: `import dataclasses, json, logging, threading`. Aims: at most 2.7 times the floor, and under 30 ms.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from support import emit

SRC = Path(__file__).resolve().parents[1] / "src"
PROGRAMS = {"bare": "pass", "floor": "import dataclasses, json, logging, threading", "kernai": "import kernai"}


def main(*, quick: bool = False) -> None:
    """Emits one line. The three programs take turns, so that a slow moment affects all of them."""
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    best = dict.fromkeys(PROGRAMS, float("inf"))
    for _ in range(10 if quick else 60):
        for name, program in PROGRAMS.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, "-c", program], env=environment, check=True)
            best[name] = min(best[name], time.perf_counter() - started)
    floor, ours = ((best[name] - best["bare"]) * 1e3 for name in ("floor", "kernai"))
    emit("import kernai", ours, floor, ours / floor, "<= 2.7", unit="ms")
    emit("import kernai, absolute", ours, 30.0, ours / 30.0, "<= 1", unit="ms")
