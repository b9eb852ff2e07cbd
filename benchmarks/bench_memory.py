"""Peak memory of a 100-step run with the recorder on, by tracemalloc. Aims: under 350 kB, and linear in the tape."""

from __future__ import annotations

import tracemalloc

from bench_steps import kernai_run
from support import emit

LIMIT_KB = 350.0


def peak(steps: int) -> float:
    """Kilobytes, beyond what was there before the run."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        kernai_run(steps)
        return (tracemalloc.get_traced_memory()[1] - before) / 1000
    finally:
        tracemalloc.stop()


def main(*, quick: bool = False) -> None:
    """One line for the peak, one for its growth: per step at 1,000 steps against per step at 100."""
    del quick
    kernai_run(10)  # what is made once, such as caches, is not the run's
    at_100, at_1000 = peak(100), peak(1000)
    emit("peak memory of 100 steps", at_100, LIMIT_KB, at_100 / LIMIT_KB, "<= 1", unit="kB")
    growth = at_1000 / at_100 / 10
    emit("memory a step, 1,000 steps against 100", at_1000 / 1000, at_100 / 100, growth, "<= 1.1", unit="kB")


if __name__ == "__main__":
    main()
