"""`kernai diff`: two recordings, aligned in linear time, and where they part."""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser, Namespace
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import groupby, pairwise, zip_longest
from typing import Any, NamedTuple

from kernai.command_line import output
from kernai.command_line.errors import NO, OK
from kernai.command_line.recording import FORMS, recorded_events
from kernai.events import (
    KINDS,
    ApprovalGivenRow,
    CallBegunRow,
    CallEndedRow,
    InFlightRow,
    MessagesSentRow,
    ModelRestartedRow,
    ProgressRow,
    Row,
    RunResumedRow,
    RunStartRow,
    TaskEndedRow,
    TaskStartRow,
)
from kernai.terminal_text import one_line

#: keys of `data`, at its top
_VOLATILE = frozenset({"run_id", "duration_ms", "latency_ms"})
_VENDOR_IDS = frozenset({"request_id", "response_id"})
_REQUEST_ID = re.compile(r" \(request id [^()\n]*\)")  # without "(": a text full of such beginnings is read once
#: that a run was resumed, which tells nothing of what it did
_MARKS = frozenset({RunResumedRow.type, ModelRestartedRow.type})
#: what is told directly behind the mark of a resume, before the run goes on
_BESIDE = _MARKS | {ApprovalGivenRow.type, InFlightRow.type}


def _types(*classes: type[Row]) -> frozenset[str]:
    return frozenset(kind.type for kind in KINDS.values() if issubclass(kind, classes))


_BY_CALL = _types(CallBegunRow, CallEndedRow, ProgressRow)
_BY_TASK = _types(TaskStartRow, TaskEndedRow)


class Place(NamedTuple):
    """Which run of the file, counted from 1 (a conversation has several), and which scope of it."""

    run: int
    scope: str

    def name(self, *, several: bool) -> str:
        """As a person reads it."""
        scope = self.scope or "root"
        return f"run {self.run}, {scope}" if several else scope


Entry = dict[str, Any]


def scopes_of(events: Iterable[Mapping[str, Any]]) -> dict[Place, list[Entry]]:
    """The events of each scope, `event step data` each, in the order of the scopes' first events."""
    runs = _Runs()
    found: dict[Place, list[Entry]] = {}
    sent: dict[Place, list[Any]] = {}
    for event in events:
        place = Place(runs.number(event), str(event.get("scope") or ""))
        data = event.get("data")
        if event["event"] == MessagesSentRow.type and isinstance(data, list):
            data, sent[place] = _new_messages(sent.get(place, []), data), data
        found.setdefault(place, []).append(
            {"event": event["event"], "step": event.get("step"), "data": _steady(data)}
        )
    return {place: _in_order(entries) for place, entries in found.items()}


def without_dropped(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Without what a resume left out (that the run was cancelled, say), and without the marks of the resume itself.

    A resume counts the entries of its run's store. Where other events stand before it, it left out none of these.
    """
    by_run: dict[str, list[int]] = {}
    left_out: set[int] = set()
    known = [dict(event) for event in events]
    marks: frozenset[str] = frozenset()
    for at, event in enumerate(known):
        places = by_run.setdefault(str(event.get("run_id")), [])
        data = event.get("data")
        if event["event"] == RunResumedRow.type and isinstance(data, Mapping):
            dropped = data.get("dropped")
            if data.get("from_seq") == len(places) and isinstance(dropped, list):
                left_out.update(places[seq] for seq in dropped if isinstance(seq, int) and 0 <= seq < len(places))
        marks = _MARKS if event["event"] == RunResumedRow.type else marks if event["event"] in _BESIDE else frozenset()
        if event["event"] in marks:
            left_out.add(at)
        places.append(at)
    return [event for at, event in enumerate(known) if at not in left_out]


class _Runs:
    """Counts the runs of a file. A root that begins anew is another run, whatever its id."""

    def __init__(self) -> None:
        self._count = 0
        self._numbers: dict[str, int] = {}
        self._begun: set[int] = set()

    def number(self, event: Mapping[str, Any]) -> int:
        """The number of the run that the next event belongs to, from 1."""
        run_id = str(event.get("run_id"))
        begins = event["event"] == RunStartRow.type and not event.get("scope")
        if run_id not in self._numbers or (begins and self._numbers[run_id] in self._begun):
            self._count += 1
            self._numbers[run_id] = self._count
        if begins:
            self._begun.add(self._numbers[run_id])
        return self._numbers[run_id]


def _new_messages(before: list[Any], now: list[Any]) -> list[Any]:
    """The messages behind those of last time; the first, which is the system's, again where it has changed."""
    if not before:
        return now
    return [*(now[:1] if now[:1] != before[:1] else []), *now[max(len(before), 1):]]


def _steady(data: Any) -> Any:
    if not isinstance(data, Mapping):
        return data
    steady = {key: value for key, value in data.items() if key not in _VOLATILE}
    metadata = steady.get("metadata")
    if isinstance(metadata, Mapping):
        steady["metadata"] = {key: value for key, value in metadata.items() if key not in _VENDOR_IDS}
    if isinstance(steady.get("error"), str):
        steady["error"] = _REQUEST_ID.sub("", steady["error"])
    return steady


def _in_order(entries: list[Entry]) -> list[Entry]:
    ordered: list[Entry] = []
    for kind, group in groupby(entries, _kind):
        # stable: what belongs to one call or task keeps its order
        run = list(group)
        ordered += run if kind is None else sorted(run, key=_id)
    return ordered


def _kind(entry: Entry) -> str | None:
    """What the events around it may have been mixed with: those of other calls, or of other tasks."""
    name = entry["event"]
    if name in _BY_CALL:
        return "call"
    return "task" if name in _BY_TASK else None


def _id(entry: Entry) -> tuple[tuple[int, int | str], ...]:
    """The id of an event's call or task, its numbers compared as numbers: `0.10` comes behind `0.9`."""
    data = entry["data"]
    known = data if isinstance(data, Mapping) else {}
    text = str(known.get("call_id") or known.get("task_id") or "")
    parts = re.split(r"[./]", text)
    return tuple((0, int(part)) if part.isdecimal() and part.isascii() else (1, part) for part in parts)


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


DESCRIPTION = """\
Show where two recorded runs part. Events are compared scope by scope (the run, each sub-run), in order; times, run ids,
durations and the ids of vendors' requests do not count, and neither does what a resume left out. Of each scope the
first difference is shown, behind the last event that is the same. Exit status: 0 the same, 1 different, 2 a file that
is no recording."""
EXAMPLES = """\
kernai diff before.jsonl after.jsonl
kernai diff before.json after.json --all
kernai diff runs.db:refund-42 runs.db:refund-42b
kernai diff a.jsonl b.jsonl --json | python -m json.tool"""

_STYLES = {"-": "red", "+": "green"}


def add_arguments(parser: ArgumentParser) -> None:
    """See `Command`."""
    parser.add_argument("a", metavar="A", help=FORMS)
    parser.add_argument("b", metavar="B", help="another one")
    parser.add_argument("--all", action="store_true", help="every difference, not the first of each scope")
    parser.add_argument("--json", action="store_true", help="the differences as JSON on stdout")


def run(options: Namespace) -> int:
    """See `Command`."""
    compared = compare(*(scopes_of(_counting(name)) for name in (options.a, options.b)))
    same = not any(one.differences for one in compared)
    if options.json:
        output.write_json(_data(options, compared, same=same))
    elif same:
        output.write(f"the same: {_events(sum(one.same for one in compared))}")
    else:
        _show(options, compared)
    return OK if same else NO


def _counting(name: str) -> list[dict[str, Any]]:
    """The events that count; a note tells of those that do not."""
    events = recorded_events(name)
    counting = without_dropped(events)
    if len(counting) < len(events):
        aside = _events(len(events) - len(counting))
        output.note(f"note: {name} was resumed; {aside} that tell of this are not compared")
    return counting


def _data(options: Namespace, compared: list[Compared], *, same: bool) -> dict[str, Any]:
    return {
        "same": same,
        "a": options.a,
        "b": options.b,
        "scopes": [
            {
                "run": one.place.run,
                "scope": one.place.scope,
                "same": one.same,
                "only_a": one.ours - one.same,
                "only_b": one.theirs - one.same,
                "differences": [each.to_dict() for each in _chosen(one, everything=options.all)],
            }
            for one in compared
        ],
    }


def _chosen(one: Compared, *, everything: bool) -> tuple[Difference, ...]:
    return one.differences if everything else one.differences[:1]


def _show(options: Namespace, compared: list[Compared]) -> None:
    several = any(one.place.run > 1 for one in compared)
    output.write(f"--- {options.a}", "bold")
    output.write(f"+++ {options.b}", "bold")
    for one in compared:
        for difference in _chosen(one, everything=options.all):
            _show_difference(one, difference, several=several)
    output.write()
    for one in compared:
        parted = bool(one.differences)
        told = f"{_events(one.same)} the same"
        if parted:
            told += f", {one.ours - one.same} only in A, {one.theirs - one.same} only in B"
        output.write(f"{one_line(one.place.name(several=several), 60):<20} {told}", "yellow" if parted else "dim")


def _show_difference(one: Compared, difference: Difference, *, several: bool) -> None:
    shown = difference.ours or difference.theirs
    assert shown is not None
    output.write()
    output.write(f"@@ {one_line(one.place.name(several=several), 60)}, {one_line(title(shown), 80)} @@", "cyan")
    if not one.ours or not one.theirs:
        output.write(f"  (all of it only in {'A' if one.ours else 'B'})", "dim")
    elif difference.after is None:
        output.write("  (nothing before it is the same)", "dim")
    else:
        head, *rest = entry_lines(difference.after)
        output.write(f"  after {one_line(' '.join([head, *rest]), output.columns() - 8)}", "dim")
    for line in difference_lines(difference):
        output.write(line, _STYLES.get(line[0]))


def _events(count: int) -> str:
    return f"{count:,} event{'' if count == 1 else 's'}"
