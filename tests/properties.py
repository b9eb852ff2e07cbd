"""How often a property is tried."""

from __future__ import annotations

from hypothesis import settings


def examples(times: int) -> settings:
    """So many times what the profile says: for inputs of which few are of the kind that matters."""
    return settings(max_examples=times * settings().max_examples)
