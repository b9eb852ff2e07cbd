"""How the cost of a text grows with it: in proportion, or faster."""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time

SMALL, TIMES = 5_000, 8


def assert_linear(work: Callable[[int], object]) -> None:
    """Eight times the text may cost eight times as much, and some; what grows with the square costs 64 times as much.

    Counted is the processor time of this thread, in which nothing else on the machine stands.
    """
    small, large = (min(_cost_of(work, size) for _ in range(2)) for size in (SMALL, SMALL * TIMES))
    assert large < 3 * TIMES * small + 0.02, (small, large)


def _cost_of(work: Callable[[int], object], size: int) -> float:
    begun = thread_time()
    work(size)
    return thread_time() - begun
