"""Helpers of property tests: JSON data, the number of examples, and a check that work takes linear time."""

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
    """Any JSON data; `scalars` and `keys` restrict the values and keys in it."""
    return st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
    )


def examples(times: int) -> settings:
    """Run `times` as many examples as the profile says, when only few inputs are of the interesting kind."""
    return settings(max_examples=times * settings().max_examples)


SMALL, TIMES = 5_000, 8
#: attempts, so that a test does not fail because the machine is briefly busy
TRIES = 5


def assert_linear(work: Callable[[int], object]) -> None:
    """Fail if eight times the text costs much more than eight times as much. Quadratic work costs 64 times as much.

    The cost is this thread's processor time, which other load on the machine does not change.
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
