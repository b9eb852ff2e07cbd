"""Where two recordings part: their events aligned scope by scope, and the differences as lines to read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any, NamedTuple

from kernai.command_line.alignment import aligned
from kernai.command_line.recorded_scopes import Entry, Place

#: characters of one line; a longer one ends with how much is left out
MOST = 2000
#: lines shown on either side of a change
NEAR = 4


class Difference(NamedTuple):
    """A pair of events that differ, or one that stands on one side alone; `after` is the last event they share."""

    ours: Entry | None
    theirs: Entry | None
    after: Entry | None

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"a": self.ours, "b": self.theirs, "after": self.after}


class Compared(NamedTuple):
    """One scope: how many events are the same, how many stand on each side, and the differences in order."""

    place: Place
    same: int
    ours: int
    theirs: int
    differences: tuple[Difference, ...]


def compare(ours: Mapping[Place, list[Entry]], theirs: Mapping[Place, list[Entry]]) -> list[Compared]:
    """All scopes of both, those of the first in front."""
    places = dict.fromkeys([*ours, *theirs])
    return [_compare(place, ours.get(place, []), theirs.get(place, [])) for place in places]


def _compare(place: Place, ours: list[Entry], theirs: list[Entry]) -> Compared:
    same = 0
    after: Entry | None = None
    differences: list[Difference] = []
    for each in aligned([_key(entry) for entry in ours], [_key(entry) for entry in theirs]):
        if each.same:
            same += each.a_end - each.a
            after = ours[each.a_end - 1]
        else:
            pairs = _pairs(ours[each.a : each.a_end], theirs[each.b : each.b_end])
            differences += [Difference(x, y, after) for x, y in pairs]
    return Compared(place, same, len(ours), len(theirs), tuple(differences))


def _pairs(ours: list[Entry], theirs: list[Entry]) -> Iterator[tuple[Entry | None, Entry | None]]:
    """Events side by side as long as they are of one type; from there on each by itself."""
    for at, (x, y) in enumerate(zip_longest(ours, theirs)):
        if x is None or y is None or x["event"] != y["event"]:
            yield from ((one, None) for one in ours[at:])
            yield from ((None, one) for one in theirs[at:])
            return
        yield x, y


def _key(entry: Entry) -> str:
    return json.dumps(entry, sort_keys=True)


def difference_lines(difference: Difference) -> list[str]:
    """A unified diff of the two events, each line with its sign; long stretches that are the same are left out."""
    ours = [] if difference.ours is None else entry_lines(difference.ours)
    theirs = [] if difference.theirs is None else entry_lines(difference.theirs)
    if ours == theirs:  # they read the same: only their types tell them apart
        ours, theirs = [_key(difference.ours or {})], [_key(difference.theirs or {})]
    return [_cut(line) for line in _told(ours, theirs)]


def _told(ours: list[str], theirs: list[str]) -> Iterator[str]:
    for each in aligned(ours, theirs):
        if each.same:
            yield from _folded([f" {line}" for line in ours[each.a : each.a_end]])
        else:
            yield from (f"-{line}" for line in ours[each.a : each.a_end])
            yield from (f"+{line}" for line in theirs[each.b : each.b_end])


def _folded(stretch: list[str]) -> list[str]:
    left_out = len(stretch) - 2 * NEAR
    if left_out <= 1:
        return stretch
    return [*stretch[:NEAR], f"   ... ({left_out:,} lines that are the same)", *stretch[-NEAR:]]


def title(entry: Entry) -> str:
    """``step 1: skill_result``, steps counted from 0 as in the recording."""
    return _shown(f"step {entry['step']}: {entry['event']}")


def entry_lines(entry: Entry) -> list[str]:
    """An event for a person: a line a value, a line for each line of a text."""
    try:
        return [title(entry), *_lines(entry["data"], "  ")]
    except RecursionError:  # nested too deeply to be laid out
        return [title(entry), _shown(_key(entry))]


def _lines(value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, one in value.items():
            yield from _item(f"{indent}{_shown(key)}:", one, indent)
    elif isinstance(value, list) and value:
        for one in value:
            yield from _item(f"{indent}-", one, indent)
    elif isinstance(value, str) and "\n" in value:
        for line in value.split("\n"):
            yield f"{indent}| {_shown(line)}".replace('\\"', '"')
    else:
        yield f"{indent}{_scalar(value)}"


def _item(head: str, value: Any, indent: str) -> Iterator[str]:
    several = value and (isinstance(value, (dict, list)) or (isinstance(value, str) and "\n" in value))
    if several:
        yield head
        yield from _lines(value, indent + "  ")
    else:
        yield f"{head} {_scalar(value)}"


def _scalar(value: Any) -> str:
    return f'"{_shown(value)}"' if isinstance(value, str) else json.dumps(value)


def _shown(text: str) -> str:
    r"""A text to the letter, with what is not printable as its escape: two that differ are seen to differ."""
    escaped = json.dumps(text, ensure_ascii=False)[1:-1]
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in escaped)


def _cut(line: str) -> str:
    return line if len(line) <= MOST else f"{line[:MOST]}... ({len(line):,} characters)"
