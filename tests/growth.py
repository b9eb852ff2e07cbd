"""How the cost of a text grows with it: in proportion, or faster."""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time

SMALL, TIMES = 5_000, 8
#: what disturbs one of these measurements does not disturb them all
TRIES = 5


def assert_linear(work: Callable[[int], object]) -> None:
    """Eight times the text may cost eight times as much, and some; what grows with the square costs 64 times as much.

    It counts this thread's processor time, which the rest of the machine's load does not change.
    """
    tried: list[tuple[float, float]] = []
    while len(tried) < TRIES:
        small, large = _cost_of(work, SMALL), _cost_of(work, SMALL * TIMES)
        if large < 3 * TIMES * small + 0.02:
            return
        tried.append((small, large))
    raise AssertionError(f"processor seconds for {SMALL} characters, and for {TIMES} times as many: {tried}")


def _cost_of(work: Callable[[int], object], size: int) -> float:
    begun = thread_time()
    work(size)
    return thread_time() - begun
