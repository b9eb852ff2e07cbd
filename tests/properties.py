"""How often a property is tried, and with what data."""

from __future__ import annotations

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
