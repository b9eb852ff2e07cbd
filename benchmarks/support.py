"""Shared by the benchmarks: the best of several timings, and one JSON line for each figure."""

from __future__ import annotations

import json
import operator
import time
from collections.abc import Callable
from typing import Any

_COMPARE = {"<=": operator.le, ">=": operator.ge}

#: the lines printed so far, for a summary
EMITTED: list[dict[str, Any]] = []


def best_of(function: Callable[[], object], rounds: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """The shortest of `rounds` timings, in seconds: what the work takes when nothing else disturbs it."""
    best = float("inf")
    for _ in range(rounds):
        started = clock()
        function()
        best = min(best, clock() - started)
    return best


def emit(name: str, value: float, floor: float, ratio: float, aim: str, *, unit: str = "MB/s") -> None:
    """Prints one figure with its floor, the ratio of the two, the aim for the ratio, and whether it is met."""
    sign, _, bound = aim.partition(" ")
    line = {
        "name": name,
        "value": round(value, 3),
        "floor": round(floor, 3),
        "unit": unit,
        "ratio": round(ratio, 3),
        "aim": aim,
        "ok": bool(_COMPARE[sign](ratio, float(bound))),
    }
    EMITTED.append(line)
    print(json.dumps(line), flush=True)
