"""Which parts of two sequences are the same, in time that grows with their length and not with its square.

`difflib` finds the most that can be matched, and takes quadratic time for sequences that agree in every second place.
So it is asked about short stretches alone. Long sequences are cut first, at what occurs once on either side and in the
same order (the idea of patience diff); a long stretch in which there is no such place counts as changed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from typing import NamedTuple

#: items of both sides together, of which every match is looked for
MOST_MATCHED = 2000


class Stretch(NamedTuple):
    """``ours[a:a_end]`` and ``theirs[b:b_end]``: equal, or what stands in each other's place; never both empty."""

    same: bool
    a: int
    a_end: int
    b: int
    b_end: int


def aligned(ours: Sequence[str], theirs: Sequence[str]) -> Iterator[Stretch]:
    """Both from the start to the end, by turns the same and not."""
    a = b = same = 0  # the last `same` before a and b are so, and still to be told
    for at, other, size in [*_shared(ours, theirs), (len(ours), len(theirs), 0)]:
        if at > a or other > b or not size:
            if same:
                yield Stretch(True, a - same, a, b - same, b)
            if at > a or other > b:
                yield Stretch(False, a, at, b, other)
            same = 0
        a, b, same = at + size, other + size, same + size


def _shared(ours: Sequence[str], theirs: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Where a stretch that is the same begins on either side, and how long it is."""
    few = len(ours) + len(theirs) <= MOST_MATCHED
    anchors = [(-1, -1), *([] if few else _anchors(ours, theirs)), (len(ours), len(theirs))]
    for (a, b), (a_end, b_end) in pairwise(anchors):
        if a >= 0:
            yield a, b, 1
        for at, other, size in _between(ours[a + 1 : a_end], theirs[b + 1 : b_end]):
            yield a + 1 + at, b + 1 + other, size


def _between(ours: Sequence[str], theirs: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    head = _same_from_the_start(ours, theirs)
    tail = _same_from_the_start(ours[head:][::-1], theirs[head:][::-1])
    middle, other = ours[head : len(ours) - tail], theirs[head : len(theirs) - tail]
    if head:
        yield 0, 0, head
    if len(middle) + len(other) <= MOST_MATCHED:
        for a, b, size in SequenceMatcher(None, middle, other, autojunk=False).get_matching_blocks()[:-1]:
            yield head + a, head + b, size
    if tail:
        yield len(ours) - tail, len(theirs) - tail, tail


def _same_from_the_start(ours: Sequence[str], theirs: Sequence[str]) -> int:
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((at for at, (x, y) in pairs if x != y), min(len(ours), len(theirs)))


def _anchors(ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[int, int]]:
    """The places of what occurs once on either side: as many as stand in the same order."""
    counts, others = Counter(ours), Counter(theirs)
    place = {one: at for at, one in enumerate(theirs) if others[one] == 1}
    once = [(at, place[one]) for at, one in enumerate(ours) if counts[one] == 1 and one in place]
    # the longest increasing subsequence: of each length so far, the chain whose end comes first
    ends: list[int] = []
    chains: list[int] = []
    before: list[int] = []
    for at, (_, other) in enumerate(once):
        length = bisect_left(ends, other)
        before.append(chains[length - 1] if length else -1)
        ends[length : length + 1] = [other]
        chains[length : length + 1] = [at]
    return _chain(once, before, chains[-1] if chains else -1)


def _chain(once: list[tuple[int, int]], before: list[int], last: int) -> list[tuple[int, int]]:
    found = []
    while last >= 0:
        found.append(once[last])
        last = before[last]
    return found[::-1]
