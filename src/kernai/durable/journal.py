"""`Journal`: appends a root run's events to a store, in the order in which observers get them.

Guarantees: an event is appended once; after a failure nothing more is appended.
Assumes: `add` is called by one thread at a time (the delivery's lock ensures it); `commit` by any.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from kernai.durable.store import RunInfo
from kernai.events import ContextSavedRow
from kernai.interrupts import calls_out
from kernai.jsonio.json_data import dumps_data
from kernai.recording.recorder import MessageDelta

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kernai.durable.host_state import HostState
    from kernai.durable.lease import Held
    from kernai.durable.store import Store
    from kernai.events import Row
    from kernai.values.media import Media, MediaStore


class Journal:
    """Rows that wait to be appended; `commit` appends them at once, with the media that are new.

    `stored` has the ids of the media in the store, `seq` is the number of its next entry, `sent` the state of
    `MessageDelta`. With `held` the run has a lease; `info` is how the store lists the run.
    """

    def __init__(
        self,
        store: Store,
        run_id: str,
        media: MediaStore,
        *,
        seq: int = 0,
        stored: Iterable[str] = (),
        info: RunInfo | None = None,
        held: Held | None = None,
        sent: Mapping[tuple[str, str], tuple[int, Any]] | None = None,
    ) -> None:
        self.run_id = run_id
        self.seq = seq
        self._store = store
        self._media = media
        self._stored = set(stored)
        self._info = RunInfo(run_id) if info is None else info
        self._held = held
        self._waiting: list[Row] = []
        self._delta = MessageDelta(sent)
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        #: whether the waiting rows must be appended before anything is performed, whatever they are
        self.insists = False
        #: the states that are recorded with outcomes
        self.host_state: HostState | None = None

    @property
    def due(self) -> bool:
        """Whether rows must be appended before anything is performed, or an append has failed."""
        return self.insists or self._failure is not None or any(row.stored_first for row in self._waiting[:])

    def add(self, rows: Iterable[Row]) -> None:
        """Keeps rows for the next commit, each outcome together with its state."""
        if self.host_state is None:
            self._waiting.extend(rows)
            return
        for row in rows:
            saved = self.host_state.recorded_with(row)
            # a state is among those saved with its outcome
            self._waiting.extend(saved if isinstance(row, ContextSavedRow) else [row, *saved])

    def fail(self, error: BaseException) -> None:
        """A row cannot be appended: the next commit raises `error`."""
        self._failure = self._failure or error

    @property
    def key(self) -> str:
        """What idempotency keys of the run begin with."""
        return self.run_id if self._held is None else self._held.key

    @property
    def is_unwanted(self) -> bool:
        """Whether the run is to be left to another worker."""
        return self._held is not None and self._held.is_unwanted

    @property
    def holds(self) -> bool:
        """Whether the run has not been given back yet."""
        return self._held is not None and self._held.may_hold

    def look(self) -> None:
        """`RunConflictError` if another worker may have the run by now."""
        if self._held is not None:
            self._held.look()

    def close(self) -> None:
        """The run is no longer driven: another worker may have it."""
        if self._held is not None:
            self._held.give_back()

    def commit(self) -> None:
        """Appends the waiting rows. What the store raises ends the run, and is raised again by each later call."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            try:
                self.look()
                if self._waiting:
                    self._append(len(self._waiting))
            except BaseException as failure:
                self._failure = failure
                raise

    def _append(self, count: int) -> None:
        """Appends the first `count` waiting events."""
        entries: list[dict[str, Any]] = []
        for row in self._waiting[:count]:
            entries.append(self._delta.entry(row))
            self._delta.written()
        media = self._named(entries)
        self._hand_over(entries, media)
        self.insists = False
        del self._waiting[:count]
        self.seq += count
        self._stored.update(one.id for one in media)

    @calls_out
    def _hand_over(self, entries: list[dict[str, Any]], media: list[Media]) -> None:
        if self._held is None:
            self._store.append(self.run_id, self.seq, entries, media)
        else:
            info = self._info.after(entries)
            self._held.append(self.seq, entries, media, info)
            self._info = info

    def _named(self, entries: list[dict[str, Any]]) -> list[Media]:
        """The media that the entries name and the store has not; a context may share its media with other runs."""
        new = [one for one in self._media if one.id not in self._stored]
        if not new:
            return []
        text = dumps_data(entries)
        return [one for one in new if one.id in text]
