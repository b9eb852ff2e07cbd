"""Peak memory of a 100-step run with the recorder on, by tracemalloc.

Aims: under 350 kB, and linear in the length of the recording; a step leaves at most 7 objects that the garbage
collector visits.
"""

from __future__ import annotations

import tracemalloc

from bench_steps import UNLIMITED, Turns, echo, kernai_run
from kernai import Agent, Recorder, execute
from support import emit, tracked

LIMIT_KB = 350.0
MOST_OBJECTS = 7.0


def peak(steps: int) -> float:
    """The peak memory of a run in kilobytes, not counting memory used before it."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        kernai_run(steps)
        return (tracemalloc.get_traced_memory()[1] - before) / 1000
    finally:
        tracemalloc.stop()


def objects(steps: int) -> int:
    """How many objects that the garbage collector visits are in a recording of so many steps and in its result."""
    agent = Agent(instructions="Answer.", provider=Turns(steps), skills=[echo], max_steps=steps)
    recorder = Recorder()
    before = tracked()
    result = execute(agent, "go", recorder=recorder, limits=UNLIMITED)
    held = tracked() - before
    assert result.steps == steps
    return held


def main(*, quick: bool = False) -> None:
    """One line for the peak, one for its growth (per step at 1,000 steps against 100 steps), one for objects."""
    del quick
    kernai_run(10)  # creates objects that do not belong to a run, such as caches
    at_100, at_1000 = peak(100), peak(1000)
    emit("peak memory of 100 steps", at_100, LIMIT_KB, "<= 1", "kB")
    emit("memory a step, 1,000 steps against 100", at_1000 / 1000, at_100 / 100, "<= 1.1", "kB")
    emit("objects a step leaves", (objects(1100) - objects(100)) / 1000, MOST_OBJECTS, "<= 1", "objects")
