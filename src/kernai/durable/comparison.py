"""Whether a loop that runs again tells what it told before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernai.durable.recorded_run import Recorded
from kernai.errors import ReplayDivergenceError
from kernai.events import MessagesSentRow, Row
from kernai.values.json_data import dumps, jsonable

LONGEST_SHOWN = 300


class Comparison:
    """For one scope: each event it tells again beside the entry that stands in its place."""

    def __init__(self) -> None:
        self._sent = 0

    def check(self, row: Row, recorded: Recorded) -> None:
        """`ReplayDivergenceError` where they differ."""
        entry = recorded.entry
        there = (recorded.type, entry.get("step"), entry.get("depth"), entry.get("task_id"))
        if (row.type, *row.place[:3]) != there:
            raise divergence(recorded, f"{recorded.type} {_shown(recorded.data)}", f"{row.type} {_shown(row.fields())}")
        got, expected = self._data(row, entry)
        if got != expected:
            raise divergence(recorded, *_differing(expected, got))

    def _data(self, row: Row, entry: Mapping[str, Any]) -> tuple[Any, Any]:
        """What is compared of a row and of its entry."""
        expected = entry.get("data")
        if isinstance(row, MessagesSentRow):
            return self._messages(row.messages, expected, entry.get("since", 0))
        got = row.json()
        if isinstance(got, dict) and isinstance(expected, Mapping):
            return _without(got, row.uncompared), _without(expected, row.uncompared)
        return got, expected

    def _messages(self, sent: Sequence[Any], told: Any, since: int) -> tuple[Any, Any]:
        """Those that were not compared before, the system message aside."""
        system = isinstance(told, list) and told and isinstance(told[0], Mapping) and told[0].get("role") == "system"
        new = told[1:] if system else told
        from_here = max(since, 1)
        if from_here > max(self._sent, 1):
            return [f"since {self._sent}"], [f"since {since}"]
        self._sent = len(sent)
        return [jsonable(sent[at]) for at in range(from_here, len(sent))], new


def divergence(recorded: Recorded, expected: str, got: str) -> ReplayDivergenceError:
    """The error that names the first event that differs."""
    entry = recorded.entry
    scope = entry.get("scope") or "the root"
    return ReplayDivergenceError(
        f"the agent decides otherwise than in the recording: event {recorded.seq} ({recorded.type}, step "
        f"{entry.get('step')} of {scope})\n  recorded: {expected}\n  now:      {got}\n"
        "Go on with the agent that made the recording, or fork the run at a step before this one.",
        seq=recorded.seq, event=recorded.type, expected=expected, got=got,
    )


def _without(data: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {key: one for key, one in data.items() if key not in names}


def _differing(expected: Any, got: Any) -> tuple[str, str]:
    """Of two objects the first field that differs, else both whole."""
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        for key in dict.fromkeys([*expected, *got]):
            if expected.get(key) != got.get(key):
                return f"{key}: {_shown(expected.get(key))}", f"{key}: {_shown(got.get(key))}"
    if isinstance(expected, list) and isinstance(got, list):
        for at, (one, other) in enumerate(zip(expected, got, strict=False)):
            if one != other:
                return f"[{at}] {_shown(one)}", f"[{at}] {_shown(other)}"
    return _shown(expected), _shown(got)


def _shown(data: object) -> str:
    text = dumps(data)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}… ({len(text)} characters)"
