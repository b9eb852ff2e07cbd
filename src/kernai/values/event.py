"""`Event`: one thing that happened in a run. Logger, recorder and live callback all get the same ones."""

# ruff: noqa: SLF001 - an `Emitter` makes what is of this module

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from kernai.values.json_data import jsonable

#: streamed pieces: they go to the live callback alone, for the whole text follows in `llm_response`
LIVE_ONLY = frozenset({"text_chunk", "block_start", "block_content", "block_end"})

#: step, depth, task_id, scope and run_id
Place = tuple[int | None, int, str | None, str, str]


class Event:
    """Read-only. What `data` holds for each `type` is tabled in docs/recording.md.

    `step` counts from 0 within its scope; `depth` is 0 in the root run; `task_id` is the workflow task it belongs to;
    `scope` is the path of the sub-run, ``""`` for the root; `run_id` is the root's. `block` says of a live event which
    block of the response it belongs to, counted from 0; else it is None.
    """

    # Five are made each step: slots and read-only properties cost a fifth of a frozen dataclass, and one tuple for all
    # of a step, with an `Emitter`, half of that.
    __slots__ = ("_at", "_block", "_data", "_place", "_type")

    def __init__(
        self,
        type: str,
        data: Any = None,
        step: int | None = None,
        depth: int = 0,
        task_id: str | None = None,
        scope: str = "",
        run_id: str = "",
        timestamp: float | str | None = None,
        *,
        block: int | None = None,
    ) -> None:
        self._type = type
        self._data = data
        self._place: Place = (step, depth, task_id, scope, run_id)
        self._block = block
        self._at = time.time() if timestamp is None else timestamp

    @property
    def type(self) -> str:
        return self._type

    @property
    def data(self) -> Any:
        return self._data

    @property
    def step(self) -> int | None:
        return self._place[0]

    @property
    def depth(self) -> int:
        return self._place[1]

    @property
    def task_id(self) -> str | None:
        return self._place[2]

    @property
    def scope(self) -> str:
        return self._place[3]

    @property
    def run_id(self) -> str:
        return self._place[4]

    @property
    def block(self) -> int | None:
        return self._block

    @property
    def timestamp(self) -> str:
        """ISO 8601 in UTC with milliseconds: ``2026-11-20T18:41:00.250Z``."""
        if isinstance(self._at, str):
            return self._at
        seconds, millis = divmod(int(self._at * 1000), 1000)
        return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{millis:03d}Z"

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON. The type stands under ``event``."""
        step, depth, task_id, scope, run_id = self._place
        told: dict[str, Any] = {
            "event": self._type,
            "step": step,
            "depth": depth,
            "task_id": task_id,
            "scope": scope,
            "run_id": run_id,
            "timestamp": self.timestamp,
        }
        if self._block is not None:
            told["block"] = self._block
        told["data"] = jsonable(self._data)
        return told

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Event:
        """Back from `to_dict`."""
        return cls(
            entry["event"],
            entry.get("data"),
            entry.get("step"),
            entry.get("depth") or 0,
            entry.get("task_id"),
            entry.get("scope") or "",
            entry.get("run_id") or "",
            entry.get("timestamp"),
            block=entry.get("block"),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Event):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]  # data may be a dict

    def __repr__(self) -> str:
        return f"Event({self._type!r}, step={self.step}, scope={self.scope!r}, data={self._data!r})"


class Emitter:
    """What makes the events of one run; those of a step share its `place`. `emit` appends them to `waiting`."""

    __slots__ = ("_waiting", "_wall", "place")

    def __init__(self, waiting: deque[Event], wall: Callable[[], float]) -> None:
        self._waiting = waiting
        self._wall = wall
        self.place: Place = (None, 0, None, "", "")

    def emit(self, type: str, data: Any, block: int | None = None) -> None:
        """An event that is delivered before the next effect."""
        wall = self._wall  # called as an attribute it would be looked up as a method first
        event = _new(Event)
        event._type = type
        event._data = data
        event._place = self.place
        event._block = block
        event._at = wall()
        self._waiting.append(event)

    def event(self, type: str, data: Any, block: int | None = None) -> Event:
        """An event that waits nowhere: somebody else tells it."""
        return Event(type, data, *self.place, self._wall(), block=block)


_new = object.__new__
