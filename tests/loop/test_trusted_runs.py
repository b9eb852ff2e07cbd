"""Some of the random runs of `trusted_runs`; `python3 dev.py trusted` makes as many as one likes."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.loop.trusted_runs import EVIL, GOOD, occurs_in, tried


@pytest.mark.parametrize("first, times", [(0, 60), pytest.param(1000, 300, marks=pytest.mark.slow)])
def test_whatever_the_model_writes_nothing_is_paid_that_nobody_brought_in(first: int, times: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + times):
        tried(seed, counts)
    assert counts["values that got through"] > times / 2
    assert counts["questions asked"] > times / 2


def test_the_reading_of_these_runs_knows_values_from_what_looks_like_them() -> None:
    assert all(occurs_in(value, f"Pay {value}.") for value in GOOD)
    parts = [value for value in EVIL if any(occurs_in(value, f"Pay {one}.") for one in GOOD)]
    assert parts == ["Bob", "https://x.org/a", "Smith"]  # words of the user's own
