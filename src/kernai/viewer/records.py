"""`Records`: turns entries of a recording into records for the page's script."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import count, islice
from typing import Any

from kernai.blocks.parser import parts_of
from kernai.events import LlmResponseRow, MessagesSentRow, RunStartRow
from kernai.jsonio.json_data import dumps, jsonable

# an integer that a browser may round, with more than fifteen digits (or a text that looks like one)
_MANY_DIGITS = re.compile(r"[:\[,]-?\d{16,}[,\]}]")
_EXACT = 2**53
#: responses with more blocks and prose than this have no outline: their blocks alone are shown
MOST_PARTS = 2_000


class Records:
    """Takes entries one by one, in order; a record is ``{"entry": ENTRY}``, for a response with its ``"outline"``.

    An entry of `messages_sent` keeps only what is new in its scope, with ``"since"``, as `JsonlSink` writes it;
    otherwise a page would grow with the square of its run. Any field of an entry may be missing, or hold anything.
    """

    def __init__(self) -> None:
        self._sent: dict[str, dict[str, list[Any]]] = {}  # by run and scope

    def record(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """The record of the next entry."""
        kind = entry.get("event")
        run = _name(entry.get("run_id"))
        if kind == RunStartRow.type and not entry.get("scope"):
            self._sent.pop(run, None)  # a root that starts again is another run, even with the same id
        if kind == MessagesSentRow.type:
            return {"entry": self._news(self._sent.setdefault(run, {}), entry)}
        if kind == LlmResponseRow.type:
            data = entry.get("data")
            content = data.get("content") if isinstance(data, Mapping) else None
            if isinstance(content, str) and (parts := outline(content)) is not None:
                return {"entry": entry, "outline": parts}
        return {"entry": entry}

    def _news(self, sent_by: dict[str, list[Any]], entry: Mapping[str, Any]) -> Mapping[str, Any]:
        sent = entry.get("data")
        if not isinstance(sent, list) or entry.get("since") is not None:
            return entry  # a line of a file, which holds only what is new already
        scope = _name(entry.get("scope"))
        before = sent_by.get(scope)
        sent_by[scope] = sent
        if not before or len(sent) < len(before) or sent[1 : len(before)] != before[1:]:
            return entry
        new = sent[len(before) :]
        return {**entry, "data": new if sent[0] == before[0] else [sent[0], *new], "since": len(before)}


def _name(value: object) -> str:
    return value if isinstance(value, str) else type(value).__name__


def encode(value: object) -> str:
    """A record as ASCII JSON. Integers that JavaScript cannot represent become text with all their digits."""
    text = dumps(value)
    return dumps(_exact(jsonable(value))) if _MANY_DIGITS.search(text) else text


def _exact(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _exact(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_exact(one) for one in value]
    return str(value) if isinstance(value, int) and abs(value) > _EXACT else value


def outline(response: str) -> list[str | int] | None:
    """The prose of a response and the numbers of its blocks, in order; None if there are too many parts.

    The numbers are those of `blocks_parsed`, so that each block can be shown at its place in the prose.
    """
    numbers = count()
    closed = (part for part in parts_of(response) if part.is_closed)
    parts = [next(numbers) if part.block else part.content for part in islice(closed, MOST_PARTS + 1)]
    return parts if len(parts) <= MOST_PARTS else None
