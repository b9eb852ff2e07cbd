"""`Journal`: appends a root run's events to a store, in the order in which observers get them.

Guarantees: each event is appended once; after a failure nothing more is appended.
Assumes: `add` is called by one thread at a time (the delivery's lock ensures that). Any thread may call `commit`.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from kernai.durable.store import RunInfo
from kernai.errors import as_failure
from kernai.events import ContextSavedRow, Row
from kernai.jsonio.json_data import dumps_data
from kernai.recording.recorder import MessageDelta
from kernai.values.media import Media, MediaReference, MediaStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kernai.durable.host_state import HostState
    from kernai.durable.lease import HeldRun


class Journal:
    """Buffers rows; `commit` appends them in one append, together with new media.

    `held` is the run in its store. `stored` has the ids of the media in the store, `seq` is the number of the next
    entry, `sent` the state of `MessageDelta`, `info` the run's summary, as `Store.runs` returns it.
    """

    def __init__(
        self, held: HeldRun, media: MediaStore, *, seq: int = 0, stored: Iterable[str] = (),
        info: RunInfo | None = None, sent: dict[str, dict[str, tuple[int, Any, object]]] | None = None,
    ) -> None:
        self.held = held
        self.seq = seq
        self._media = media
        self._stored = set(stored)
        self._info = RunInfo(held.run_id) if info is None else info
        self._waiting: list[Row] = []
        self._delta = MessageDelta(sent)
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        #: if set, has the states to record with outcomes
        self.host_state: HostState | None = None

    @property
    def must_commit(self) -> bool:
        """Whether rows must be appended before anything is performed, or an append has failed."""
        return self._failure is not None or any(row.stored_first for row in self._waiting[:])

    def add(self, rows: Iterable[Row]) -> None:
        """Buffers rows for the next commit, each outcome together with its state."""
        if self.host_state is None:
            self._waiting.extend(rows)
            return
        for row in rows:
            saved = self.host_state.recorded_with(row)
            # a state's own row is skipped here: it was added with its outcome
            self._waiting.extend(saved if isinstance(row, ContextSavedRow) else [row, *saved])

    def fail(self, error: BaseException) -> None:
        """Makes the next commit raise `error`, because a row cannot be appended."""
        self._failure = self._failure or error

    def close(self) -> None:
        """Releases the run, which is no longer driven here."""
        self.held.release()

    def commit(self) -> None:
        """Appends the waiting rows. An error from the store ends the run, and is raised again by each later call."""
        with self._lock:
            if self._failure is None:
                try:
                    self.held.look()
                    if self._waiting:
                        self._append(self._waiting[:])
                except BaseException as error:  # noqa: BLE001 - raised below
                    self._failure = as_failure(error)  # a StopIteration would end the caller's loop over a stream
            if self._failure is not None:
                raise self._failure

    def _append(self, rows: Sequence[Row]) -> None:
        entries = list(map(self._delta.entry, rows))
        media, info = self._named(entries), self._info.after(entries)
        self.held.append(self.seq, entries, media, info)
        self._info = info
        del self._waiting[:len(rows)]
        self.seq += len(rows)
        self._stored.update([one.id for one in media])

    def _named(self, entries: list[dict[str, Any]]) -> list[Media]:
        """The media that the entries refer to and the store lacks. A context may share its media with other runs, so
        the rest are not this run's.
        """
        new = [one for one in self._media if one.id not in self._stored and not isinstance(one, MediaReference)]
        if not new:
            return []
        text = dumps_data(entries)
        return [one for one in new if one.id in text]
