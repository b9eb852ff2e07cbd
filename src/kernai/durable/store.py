"""`Store`: where runs are kept so that they outlive their process. What every store shares, and the one in memory.

A store keeps what it is given and looks into it for one thing alone: what `runs` tells. It knows nothing of resuming.
Its one promise to those who do is the order of entries: of two workers that append the same `first_seq`, one wins and
the other gets a `RunConflictError`. `kernai.testing.StoreRules` holds any store to what is said here.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from kernai._util.callables import is_async
from kernai.durable.closing import closing
from kernai.errors import KernaiError, RunConflictError
from kernai.events import ResultRow, RunResumedRow, RunStartRow
from kernai.jsonio.json_data import dumps_data, jsonable
from kernai.values.media import Media
from kernai.values.value import Value

Entry = dict[str, Any]
"""What happened, as `Event.to_dict` gives it."""

RUNNING, WAITING = "running", "waiting"

_RUN_ID = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,128}")


_METHODS = ("append", "load", "load_media", "runs", "delete")


def check_store(store: object) -> None:
    """`TypeError` unless it is a store."""
    if isinstance(store, type) or not all(callable(getattr(store, name, None)) for name in _METHODS):
        path = store if isinstance(store, str) else "runs.db"
        raise TypeError(f"store must be a store, such as SqliteStore({path!r}), got {_shown(store)}")
    for name in _METHODS:
        if is_async(getattr(store, name)):
            raise TypeError(f"{type(store).__name__}.{name} is an async function: a store's methods are plain ones")


def _shown(given: object) -> str:
    return f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__


def check_run_id(run_id: str) -> None:
    """`ValueError` unless the id is fit for a store, where it may become a part of a path or an address."""
    if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
        raise ValueError(
            "with a store, run_id must be 1 to 128 of the characters A-Z a-z 0-9 . _ - and not start with a dot, "
            f"got {run_id!r}"
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RunInfo(Value):
    """What `Store.runs` tells of a run.

    `status` is ``running`` until the run has ended, also where its process died; then its stop reason, with ``waiting``
    for a run that waits for a person. `updated_at` is the time of its last entry, ISO 8601 in UTC.
    """

    run_id: str
    agent: str | None = None
    status: str = RUNNING
    updated_at: str = ""

    def after(self, entries: Iterable[Mapping[str, Any]]) -> RunInfo:
        """What is to be told once these entries have been appended. A store keeps it beside the run, so that `runs`
        need not read every entry.
        """
        agent, status, updated_at = self.agent, self.status, self.updated_at
        for entry in entries:
            updated_at = entry.get("timestamp") or updated_at
            if entry.get("scope"):
                continue  # a sub-run's
            data = entry.get("data")
            told = data if isinstance(data, Mapping) else {}
            match entry.get("event"):
                case RunStartRow.type:
                    agent, status = told.get("agent"), RUNNING
                case RunResumedRow.type:
                    status = RUNNING
                case ResultRow.type:
                    reason = told.get("stop_reason")
                    status = WAITING if reason == "interrupt" else str(reason)
        return RunInfo(self.run_id, agent, status, updated_at)


class Store(Protocol):
    """Where runs are kept. Thread-safe. Every method but `append` may be called for a run that is not there."""

    def append(self, run_id: str, first_seq: int, entries: Sequence[Entry], media: Sequence[Media]) -> None:
        """Keeps all of it, durably when this returns, or nothing.

        A run's entries are counted from 0; the first of these is to be number `first_seq`. If it is not the next one,
        that is a `RunConflictError`. Media belong to the run: bytes are kept as they are, a file as it is now (`kept`),
        a URL whole. Media that are there already stay as they are.
        """

    def load(self, run_id: str) -> list[Entry]:
        """The run's entries as JSON data; none for a run that is not there."""

    def load_media(self, run_id: str) -> list[Media]:
        """The run's media, in the order in which they came, with their payloads."""

    def runs(self) -> Iterable[RunInfo]:
        """All runs, by `updated_at`, newest first, then by id."""

    def delete(self, run_id: str) -> None:
        """Forgets the run, its entries and its media. The id may be used again."""


class MemoryStore:
    """Keeps runs for as long as the process lives: for tests, and for pauses that a person answers soon.

    Entries are kept as JSON text, so that what comes back is what another store would give.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, _Run] = {}

    def append(self, run_id: str, first_seq: int, entries: Sequence[Entry], media: Sequence[Media]) -> None:
        check_append(run_id, entries)
        texts = list(map(dumps_data, entries))
        brought = [kept(one) for one in media]
        with self._lock:
            run = self._runs.get(run_id) or _Run(RunInfo(run_id))
            check_next(run_id, first_seq, len(run.texts))
            run.info = run.info.after(entries)
            run.texts += texts
            for one in brought:
                run.media[one.id] = first_read(run.media.get(one.id), one)
            self._runs[run_id] = run

    def load(self, run_id: str) -> list[Entry]:
        check_run_id(run_id)
        with self._lock:
            run = self._runs.get(run_id)
            texts = list(run.texts) if run else []
        return [json.loads(text) for text in texts]

    def load_media(self, run_id: str) -> list[Media]:
        check_run_id(run_id)
        with self._lock:
            run = self._runs.get(run_id)
            return list(run.media.values()) if run else []

    def runs(self) -> list[RunInfo]:
        with self._lock:
            return newest_first(run.info for run in self._runs.values())

    def delete(self, run_id: str) -> None:
        check_run_id(run_id)
        with self._lock:
            self._runs.pop(run_id, None)

    def close(self, run_id: str, reason: str) -> None:
        """Ends a run that waits, or whose process died, with the stop reason ``closed``; its entries stay.

        `resume` then gives that result, and only ``resume(input=...)`` opens the run again. `KernaiError` for a run
        that is not there, is finished or is closed already; `RunConflictError` where a worker writes to it meanwhile.
        """
        entries = self.load(run_id)
        self.append(run_id, len(entries), [closing(run_id, entries, reason)], [])


class _Run:
    def __init__(self, info: RunInfo) -> None:
        self.info = info
        self.texts: list[str] = []
        self.media: dict[str, Media] = {}


def check_append(run_id: str, entries: Sequence[Entry]) -> None:
    """`ValueError` for what no store can append."""
    check_run_id(run_id)
    if not entries:
        raise ValueError("append needs at least one entry: media come with the entries that name them")


def check_next(run_id: str, first_seq: int, count: int) -> None:
    """`RunConflictError` unless entry `first_seq` is the next one of a run that has `count`."""
    if first_seq == count:
        return
    if first_seq > count:
        raise RunConflictError(
            f"run {run_id!r} has {count} entries in the store, and entry {first_seq} was to follow: the run was "
            "deleted or replaced meanwhile, or this is another store. Nothing was written; load the run anew"
        )
    advice = "resume it, or choose another run_id" if first_seq == 0 else "load the run anew, or leave it to the other"
    raise RunConflictError(
        f"run {run_id!r} has {count} entries in the store, and this worker was about to write entry {first_seq}: "
        f"another worker has started the run or gone on with it. Nothing was written; {advice}"
    )


def kept(media: Media) -> Media:
    """The media as a store keeps it: a file with the bytes that it holds now, metadata as JSON data.

    A file that cannot be read stays a reference, and `read_bytes` says why.
    """
    payload = media.payload
    if media.is_path and payload is None:
        try:
            payload = media.read_bytes()
        except KernaiError:  # it is told to whoever asks for the bytes
            payload = None
    return replace(media, metadata=jsonable(dict(media.metadata)), payload=payload)


def first_read(known: Media | None, brought: Media) -> Media:
    """Which of two with one id stays: the first, unless its file could not be read and now can."""
    return brought if known is None or (known.payload is None and brought.payload is not None) else known


def newest_first(infos: Iterable[RunInfo]) -> list[RunInfo]:
    """In the order of `Store.runs`, which does not depend on a store's own."""
    by_id = sorted(infos, key=lambda info: info.run_id)
    return sorted(by_id, key=lambda info: info.updated_at, reverse=True)
