"""`kernai diff`: where two recorded runs differ.

Events are grouped by scope, without fields that always differ between runs. The events of each scope are aligned in
linear time; two events that differ are then compared line by line.
"""

from __future__ import annotations

import json
import re
from argparse import SUPPRESS, Namespace
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import groupby, pairwise, takewhile
from typing import Any, NamedTuple

from kernai import events
from kernai._util.redaction import one_line
from kernai.command_line import output
from kernai.command_line.program import Command, argument
from kernai.command_line.recording import FORMS, Source, sources
from kernai.values.result import count

_STYLES = {"-": "red", "+": "green"}


def run(options: Namespace) -> int:
    named = sources([options.a, options.b, *options.more])
    if len(named) != 2:  # noqa: PLR2004 - two sides
        for one in named:
            one.events()  # raises the more precise error if the recording does not exist
        raise output.CommandError(f"give two recordings to compare, not {len(named)}", f"each is {FORMS}")
    sides = []
    for one in named:
        recorded = one.events()
        with output.failing(f"{one} is damaged in a run_resumed", f"name {FORMS}", (TypeError, LookupError)):
            sides.append(scopes_of(recorded))
        if left_out := len(recorded) - sum(map(len, sides[-1].values())):
            output.note(f"note: {one} was resumed; not compared: {count(left_out, 'event')} about this")
    compared = compare(*sides)
    same = not any(one.differences for one in compared)
    if not options.all:
        compared = [one._replace(differences=one.differences[:1]) for one in compared]
    if options.json:
        scopes = [one._asdict() | {"differences": [each._asdict() for each in one.differences]} for one in compared]
        output.write_json({"same": same, "a": str(named[0]), "b": str(named[1]), "scopes": scopes})
    elif same:
        output.write(f"the same: {count(sum(one.same for one in compared), 'event')}")
    else:
        _show(named, compared)
    return output.OK if same else output.NO


def _show(named: list[Source], compared: list[Compared]) -> None:
    several = any(one.run > 1 for one in compared)
    names = [one_line(f"run {one.run}, " * several + (one.scope or "root"), 60) for one in compared]
    output.write(f"--- {named[0]}", "bold")
    output.write(f"+++ {named[1]}", "bold")
    for one, name in zip(compared, names, strict=True):
        for each in one.differences:
            output.write()
            output.write(f"@@ {name}, {one_line(_title(each.a or each.b or {}), 80)} @@", "cyan")
            if each.after is not None:
                output.write(f"  after {one_line(' '.join(_entry_lines(each.after)), output.columns() - 8)}", "dim")
            elif one.same or (one.only_a and one.only_b):
                output.write("  (nothing before it is the same)", "dim")
            else:
                output.write(f"  (all of it only in {'A' if one.only_a else 'B'})", "dim")
            for line in difference_lines(each):
                output.write(line, _STYLES.get(line[0]))
    output.write()
    for one, name in zip(compared, names, strict=True):
        counts = f"{count(one.same, 'event')} the same"
        if one.differences:
            counts += f", {one.only_a} only in A, {one.only_b} only in B"
        output.write(f"{name:<20} {counts}", "yellow" if one.differences else "dim")


# --------------------------------------------------------------------------------------------------- recorded scopes

Entry = dict[str, Any]
#: top-level keys of `data` that are not compared: those that always differ, and the agent's definition, which
#: `kernai replay` compares
_VOLATILE = frozenset({"run_id", "duration_ms", "latency_ms", "definition"})
_VENDOR_IDS = frozenset({"request_id", "response_id"})
_REQUEST_ID = re.compile(r" \(request id [^()\n]*\)")  # [^(] keeps it linear if the text repeats " (request id"
#: events that only record a resume, not something that the run did
_RESUME_EVENTS = frozenset({events.RunResumedRow.type, events.ModelRestartedRow.type})
#: events that may come between `run_resumed` and the next step of the run
_AFTER_RESUME = _RESUME_EVENTS | {events.ApprovalGivenRow.type, events.InFlightRow.type}


#: the number of a run, from 1, and a scope in it; the recording of a conversation has several runs
Place = tuple[int, str]


def scopes_of(recorded: Iterable[Mapping[str, Any]]) -> dict[Place, list[Entry]]:
    """Returns the events of each scope as `event`, `step` and `data`. Scopes are in the order of their first events.

    A second `run_start` of a root begins another run, even with the same id. The events that a resume dropped (the
    run's cancellation, for example) are left out, and so are the resume's own. `run_resumed` refers to entries by their
    number in the store. If its `from_seq` differs from the number of this run's events so far, those numbers do not
    apply here, and its `dropped` list is ignored.
    """
    starts: Counter[str] = Counter()  # by run id
    runs: dict[tuple[str, int], tuple[int, list[Entry]]] = {}  # their numbers and events; those left out are empty
    kept: list[tuple[Place, Entry]] = []
    is_resuming = False
    for event in recorded:
        kind: str = event["event"]
        data: Any = event.get("data")
        run_id, scope = str(event.get("run_id")), str(event.get("scope") or "")
        starts[run_id] += kind == events.RunStartRow.type and not scope
        run, entries = runs.setdefault((run_id, max(starts[run_id], 1)), (len(runs) + 1, []))
        if kind == events.RunResumedRow.type and data["from_seq"] == len(entries):
            for seq in data["dropped"]:
                entries[seq].clear()
        is_resuming = kind == events.RunResumedRow.type or (is_resuming and kind in _AFTER_RESUME)
        left_out = is_resuming and kind in _RESUME_EVENTS
        entries.append({} if left_out else {"event": kind, "step": event.get("step"), "data": _comparable(data)})
        kept.append(((run, scope), entries[-1]))
    found: dict[Place, list[Entry]] = {}
    for place, entry in kept:
        if entry:
            found.setdefault(place, []).append(entry)
    return {place: list(_in_order(entries)) for place, entries in found.items()}


def _comparable(data: Any) -> Any:
    """Removes fields that always differ between two runs."""
    if not isinstance(data, Mapping):
        return data
    steady = {key: value for key, value in data.items() if key not in _VOLATILE}
    if isinstance(metadata := steady.get("metadata"), Mapping):
        steady["metadata"] = {key: value for key, value in metadata.items() if key not in _VENDOR_IDS}
    if isinstance(error := steady.get("error"), str):
        steady["error"] = _REQUEST_ID.sub("", error)
    return steady


def _in_order(entries: list[Entry]) -> Iterator[Entry]:
    """Sorts the events of calls and tasks, which may run in parallel; those of one call or task keep their order."""
    for _, group in groupby(entries, lambda entry: bool(_id(entry))):
        yield from sorted(group, key=_id)


def _id(entry: Entry) -> tuple[tuple[int, int | str], ...]:
    """The id of an event's call or task, if any, as a sort key in which `0.10` comes after `0.9`."""
    data = entry["data"] if isinstance(entry["data"], Mapping) else {}
    parts = re.findall(r"[^./]+", str(data.get("call_id") or data.get("task_id") or ""))
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in parts)


# ------------------------------------------------------------------------------------------------------- comparison


class Difference(NamedTuple):
    """Two events that differ, or an event that only one side has. `after` is the last event before it in both."""

    a: Entry | None
    b: Entry | None
    after: Entry | None


class Compared(NamedTuple):
    """The result for one scope: how many events are the same, how many only one side has, and the differences."""

    run: int
    scope: str
    same: int
    only_a: int
    only_b: int
    differences: Sequence[Difference]


def compare(a: Mapping[Place, list[Entry]], b: Mapping[Place, list[Entry]]) -> list[Compared]:
    """Compares all scopes, first those of `a` in order, then those that only `b` has."""
    return [_compare(place, a.get(place, []), b.get(place, [])) for place in dict.fromkeys([*a, *b])]


def _compare(place: Place, ours: list[Entry], theirs: list[Entry]) -> Compared:
    same = 0
    after: Entry | None = None
    differences: list[Difference] = []
    for are_same, a, b in aligned([_key(entry) for entry in ours], [_key(entry) for entry in theirs]):
        if are_same:
            same += a.stop - a.start
            after = ours[a.stop - 1]
        else:
            differences += [Difference(x, y, after) for x, y in _pairs(ours[a], theirs[b])]
    return Compared(*place, same, len(ours) - same, len(theirs) - same, differences)


def _pairs(ours: list[Entry], theirs: list[Entry]) -> list[tuple[Entry | None, Entry | None]]:
    """Pairs events up to the first pair of different types; from there on, each event stands alone."""
    pairs = list(takewhile(lambda pair: pair[0]["event"] == pair[1]["event"], zip(ours, theirs, strict=False)))
    return [*pairs, *((one, None) for one in ours[len(pairs):]), *((None, one) for one in theirs[len(pairs):])]


def _key(entry: Entry) -> str:
    return json.dumps(entry, sort_keys=True)


# -------------------------------------------------------------------------------------------------------- alignment

#: with at most this many items on both sides together, `difflib` finds all matches (its time is not linear)
MOST_MATCHED = 2000


def aligned(ours: Sequence[str], theirs: Sequence[str]) -> Iterator[tuple[bool, slice, slice]]:
    """Divides both sides into stretches, from start to end: whether they are the same, and where they are on each side.

    Stretches that are the same alternate with others, of which at most one side is empty.
    """
    a = b = 0
    # consecutive matches are one stretch
    for _, stretch in groupby(enumerate(_matches(ours, theirs)), lambda one: (one[1][0] - one[0], one[1][1] - one[0])):
        (_, (at, other)), *more = stretch
        if at > a or other > b:
            yield False, slice(a, at), slice(b, other)
        a, b = at + 1 + len(more), other + 1 + len(more)
        yield True, slice(at, a), slice(other, b)
    if a < len(ours) or b < len(theirs):
        yield False, slice(a, len(ours)), slice(b, len(theirs))


def _matches(ours: Sequence[str], theirs: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yields the positions of matching items in `ours` and `theirs`, in order.

    Long sides are divided at their anchors. Within each section the common start and end match; what is between them is
    searched for matches only if it is short (`MOST_MATCHED`).
    """
    few = len(ours) + len(theirs) <= MOST_MATCHED
    anchors = [(0, 0), *([] if few else _anchors(ours, theirs)), (len(ours), len(theirs))]
    for (a, b), (end, other_end) in pairwise(anchors):
        most = min(end - a, other_end - b)
        head = next((at for at in range(most) if ours[a + at] != theirs[b + at]), most)
        tail = next((at for at in range(most - head) if ours[end - 1 - at] != theirs[other_end - 1 - at]), most - head)
        yield from ((a + at, b + at) for at in range(head))
        left, right = ours[a + head : end - tail], theirs[b + head : other_end - tail]
        if len(left) + len(right) <= MOST_MATCHED:
            for x, y, size in SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks():
                yield from ((a + head + x + at, b + head + y + at) for at in range(size))
        yield from ((end + at, other_end + at) for at in range(-tail, 0))


def _anchors(ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[int, int]]:
    """The positions of items that occur exactly once on each side: the most that are in the same order on both."""
    counts, others = Counter(ours), Counter(theirs)
    places = {one: at for at, one in enumerate(theirs) if counts[one] == others[one] == 1}
    # longest increasing subsequence: for each length, keep the chain with the smallest end
    chains: list[tuple[int, int, Any]] = [(-1, -1, None)]  # the position on each side, and the chain before it
    for at, one in enumerate(ours):
        if one in places:
            length = bisect_left(chains, places[one], key=lambda chain: chain[1])
            chains[length : length + 1] = [(at, places[one], chains[length - 1])]
    anchors = []
    at, other, before = chains[-1]
    while before is not None:
        anchors.append((at, other))
        at, other, before = before
    return anchors[::-1]


# ------------------------------------------------------------------------------------------------------------- text

#: longer lines are cut to this many characters, followed by their full length
_LONGEST = 2000
#: lines shown on either side of a change
_CONTEXT_LINES = 4


def difference_lines(difference: Difference) -> list[str]:
    """The lines of a unified diff of the two events. Long stretches of unchanged lines are folded."""
    ours, theirs = [[] if entry is None else _entry_lines(entry) for entry in difference[:2]]
    lines: list[str] = []
    for are_same, a, b in aligned(ours, theirs):
        if are_same and (left_out := a.stop - a.start - 2 * _CONTEXT_LINES) > 1:
            same = [f" {line}" for line in ours[a]]
            lines += [*same[:_CONTEXT_LINES], f"   ... ({left_out:,} lines that are the same)", *same[-_CONTEXT_LINES:]]
        elif are_same:
            lines += [f" {line}" for line in ours[a]]
        else:
            lines += [*(f"-{line}" for line in ours[a]), *(f"+{line}" for line in theirs[b])]
    return [line if len(line) <= _LONGEST else f"{line[:_LONGEST]}... ({len(line):,} characters)" for line in lines]


def _title(entry: Entry) -> str:
    return _shown(f"step {entry['step']}: {entry['event']}")


def _entry_lines(entry: Entry) -> list[str]:
    """An event as text for people: one line for each value, and for each line of a longer text."""
    return [_title(entry), *_lines(entry["data"], "  ")]


def _lines(value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, str) and "\n" in value:
        for line in value.split("\n"):
            yield f"{indent}| {_shown(line)}".replace('\\"', '"')
    elif isinstance(value, (dict, list)) and value:
        named = isinstance(value, dict)
        for head, one in [(f"{_shown(key)}:", value[key]) for key in value] if named else [("-", one) for one in value]:
            lines = list(_lines(one, indent + "  "))
            is_plain = not one or not (isinstance(one, (dict, list)) or (isinstance(one, str) and "\n" in one))
            yield from [f"{indent}{head} {lines[0].lstrip()}"] if is_plain else [f"{indent}{head}", *lines]
    else:
        yield indent + (f'"{_shown(value)}"' if isinstance(value, str) else json.dumps(value))


def _shown(text: str) -> str:
    r"""Escapes characters that are not printable, so that two different texts never look the same."""
    escaped = json.dumps(text, ensure_ascii=False)[1:-1]
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in escaped)


COMMANDS = {"diff": Command(run, (
    argument("A", FORMS), argument("B", "another recording"), argument("more", SUPPRESS, nargs="*", default=[]),
    argument("--all", "show every difference, not only the first in each scope"),
    argument("--json", "the differences as JSON on stdout"),
), """\
Show where two recorded runs differ. Events are compared scope by scope (the run, each sub-run), in order. Times,
durations, run ids and vendors' request ids are ignored, as are events that a resume dropped. For each scope, the first
difference is shown after the last event that both have. Exit status: 0 the same, 1 different, 2 a file that is not a
recording.""", """\
kernai diff before.jsonl after.jsonl
kernai diff before.json after.json --all
kernai diff runs.db refund-42 runs.db refund-42b
kernai diff a.jsonl b.jsonl --json | python -m json.tool""")}
