"""Shared by the benchmarks: the best of several measurements, and one JSON line for each figure."""

from __future__ import annotations

import gc
import json
import operator
import time
from collections.abc import Callable
from typing import Any

Measure = Callable[[], float]

_COMPARE = {"<=": operator.le, ">=": operator.ge}
#: how often a unit goes into the second, or the byte per second, that `emit` gets
_SCALES = {"ms": 1e3, "us": 1e6, "MB/s": 1e-6}

#: the lines printed so far, for a summary
EMITTED: list[dict[str, Any]] = []


def timed(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> Measure:
    """A function that calls `work` and returns the seconds that it took."""

    def measure() -> float:
        started = clock()
        work()
        return clock() - started

    return measure


def best(rounds: int, *measures: Measure) -> list[float]:
    """The least that each measure returns: the work without disturbance. They take turns: a slow moment affects all."""
    return [min(found) for found in zip(*([measure() for measure in measures] for _ in range(rounds)), strict=True)]


def compare(name: str, work: Measure, floor: Measure, aim: str, *, rounds: int, unit: str = "ms", per: int = 1) -> None:
    """Emits the best of two measures, each divided by `per`."""
    ours, theirs = best(rounds, work, floor)
    emit(name, ours / per, theirs / per, aim, unit)


def tracked() -> int:
    """How many objects the garbage collector visits."""
    gc.collect()
    gc.collect()  # the first pass stops tracking some tuples, the second the objects that contain them
    return len(gc.get_objects())


def emit(name: str, value: float, floor: float, aim: str, unit: str) -> None:
    """Prints one figure with its floor, the ratio of the two, the aim for the ratio, and whether it is met.

    Times are given in seconds, and speeds in bytes per second. Without a floor, the aim is for the value in its unit.
    """
    value, floor = value * _SCALES.get(unit, 1), floor * _SCALES.get(unit, 1)
    ratio = value / (floor or 1)
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
