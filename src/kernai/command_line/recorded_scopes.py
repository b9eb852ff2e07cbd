"""A recording as the sequences of events that can be compared with another's: one a scope, without what differs anyway.

Left out is what no two runs share: run ids, timestamps, durations, latencies, and the ids a vendor gives to requests
and responses. Calls and tasks that went on at once end in any order, so within a scope they are put into the order of
their ids. Of `messages_sent` only what is new in its scope is compared, for the rest has been compared before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, NamedTuple

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
