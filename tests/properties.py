"""How often a property is tried, with what data, and how the cost of a text grows with it."""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


def json_data(
    scalars: st.SearchStrategy[Any] = SCALARS, keys: st.SearchStrategy[str] = st.text()  # noqa: B008 - never changed
) -> st.SearchStrategy[Any]:
    """Any JSON data, or with these scalars and keys."""
    return st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
    )


def examples(times: int) -> settings:
    """So many times what the profile says: for inputs of which few are of the kind that matters."""
    return settings(max_examples=times * settings().max_examples)


SMALL, TIMES = 5_000, 8
#: so that a busy moment of the machine fails no test
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
