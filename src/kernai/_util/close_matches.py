"""`close_matches`: which names somebody may have meant who wrote another one."""

from __future__ import annotations

from collections.abc import Iterable

#: the look compares each pair of letters, so it is bounded
_LONGEST = 100
_MOST = 1_000


def close_matches(name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """The names in `known` closest to `name`, at most `most`; empty where none is close."""
    if len(name) > _LONGEST:
        return []
    from difflib import get_close_matches

    candidates = [one for one, _ in zip(known, range(_MOST), strict=False) if len(one) <= _LONGEST]
    by_lower = {one.lower(): one for one in reversed(candidates)}
    return [by_lower[one] for one in get_close_matches(name.lower(), by_lower, most)]
