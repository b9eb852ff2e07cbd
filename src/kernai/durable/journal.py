"""`Journal`: a root run's events on their way into a store, in the order in which everybody else gets them.

Guarantees: an event is appended once; after a failure nothing is appended any more.
Assumes: `tell` is called by one thread at a time (the delivery's lock sees to it); `commit` by any.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from kernai.recording.recorder import MessageNews

if TYPE_CHECKING:
    from kernai.durable.store import Store
    from kernai.values.event import Event
    from kernai.values.media import Media
    from kernai.values.media_store import MediaStore


class Journal:
    """What waits to be appended; `commit` appends it as one piece, with the media that are new since the last time."""

    def __init__(self, store: Store, run_id: str, media: MediaStore, *, seq: int = 0) -> None:
        self.run_id = run_id
        self.seq = seq
        self._store = store
        self._media = media
        self._stored = {one.id for one in media} if seq else set()
        self._waiting: list[Event] = []
        self._news = MessageNews()
        self._lock = threading.Lock()
        self._failure: BaseException | None = None

    def tell(self, event: Event) -> None:
        """Keeps an event for the next commit."""
        waiting = self._waiting
        if not waiting or waiting[-1] is not event:  # told twice, where Ctrl-C fell between telling and taking away
            waiting.append(event)

    def commit(self) -> None:
        """Appends what waits. What the store raises ends the run, and is raised again where this is called again."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            count = len(self._waiting)
            if not count:
                return
            media: list[Media] = []
            if len(self._media) > len(self._stored):
                media = [one for one in self._media if one.id not in self._stored]
            entries: list[dict[str, Any]] = []
            for event in self._waiting[:count]:
                entry, remember = self._news.entry(event)
                entries.append(entry)
                remember()
            try:
                self._store.append(self.run_id, self.seq, entries, media)
            except BaseException as failure:
                self._failure = failure
                raise
            del self._waiting[:count]
            self.seq += count
            self._stored.update(one.id for one in media)
