"""Whether a replayed loop writes what is on record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernai.durable.recorded_run import Recorded, has_system
from kernai.errors import ReplayDivergenceError
from kernai.events import MessagesSentRow, Row
from kernai.jsonio.json_data import dumps, jsonable

LONGEST_SHOWN = 300


class Comparison:
    """Of one scope: compares each row of the replay with the recorded one."""

    def __init__(self) -> None:
        self._sent = 0

    def check(self, row: Row, recorded: Recorded) -> None:
        """`ReplayDivergenceError` where they differ."""
        there = recorded.row
        if type(row) is not type(there) or row.place[:3] != there.place[:3]:
            expected, got = (f"{one.type} {shown(one.fields())}" for one in (there, row))
            raise divergence(recorded, expected, got)
        got, expected = self._data(row, there)
        if got != expected:
            raise divergence(recorded, *_differing(expected, got))

    def _data(self, row: Row, recorded: Row) -> tuple[Any, Any]:
        """The compared data of a row and of the recorded one."""
        if isinstance(row, MessagesSentRow):
            assert isinstance(recorded, MessagesSentRow)
            return self._messages(row.messages, recorded)
        got, expected = row.json(), recorded.fields()
        if isinstance(got, dict) and isinstance(expected, Mapping):
            return _compared(got, row), _compared(expected, row)
        return got, expected

    def _messages(self, sent: Sequence[Any], recorded: MessagesSentRow) -> tuple[Any, Any]:
        """The messages that were not compared before, without the system message."""
        since = recorded.since or 0
        new = recorded.messages[1:] if has_system(recorded) else recorded.messages
        from_here = max(since, 1)
        if from_here > max(self._sent, 1):
            return [f"since {self._sent}"], [f"since {since}"]
        self._sent = len(sent)
        return [jsonable(sent[at]) for at in range(from_here, len(sent))], new


def divergence(recorded: Recorded, expected: str, got: str) -> ReplayDivergenceError:
    """The error that names the first event that differs."""
    row = recorded.row
    scope = recorded.scope or "the root"
    return ReplayDivergenceError(
        f"the agent decides differently from the recording: event {recorded.seq} ({row.type}, step "
        f"{row.place[0]} of {scope})\n  recorded: {expected}\n  now:      {got}\n"
        "Use the agent that made the recording, or fork the run at an earlier step.",
        seq=recorded.seq, event=row.type, expected=expected, got=got,
    )


def _compared(data: Mapping[str, Any], row: Row) -> dict[str, Any]:
    compared = {key: one for key, one in data.items() if key not in row.uncompared}
    if row.is_worded and compared["error"] is not None:
        compared["error"] = "possibly worded differently"
    return compared


def _differing(expected: Any, got: Any) -> tuple[str, str]:
    """Of two objects the first field that differs, else both whole."""
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        for key in dict.fromkeys([*expected, *got]):
            if expected.get(key) != got.get(key):
                return f"{key}: {shown(expected.get(key))}", f"{key}: {shown(got.get(key))}"
    if isinstance(expected, list) and isinstance(got, list):
        for at, (one, other) in enumerate(zip(expected, got, strict=False)):
            if one != other:
                return f"[{at}] {shown(one)}", f"[{at}] {shown(other)}"
    return shown(expected), shown(got)


def shown(data: object) -> str:
    """Data as an error shows it."""
    text = dumps(data)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}… ({len(text)} characters)"
