"""`Channel`: how a stream's events and the outcomes of its workers reach the thread that iterates.

Guarantees: items come out in the order in which they were put in; a worker that has delivered events waits, outside of
every lock, until they are taken, so a slow consumer holds the run back and nothing piles up.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from kernai.loop.effects import Ended
from kernai.values.event import Event


class Channel:
    """For one stream: many threads put, one takes."""

    def __init__(self) -> None:
        # re-entrant: a stream that the garbage collector drops is closed in the middle of whatever this thread is doing
        self._changed = threading.Condition(threading.RLock())
        self._items: deque[Event | Ended] = deque()
        self._open = True
        self._busy = False
        #: the thread that iterates; it never waits for itself
        self.consumer = threading.get_ident()

    def put(self, item: Event | Ended) -> None:
        """Adds an item; never waits."""
        with self._changed:
            if self._open or isinstance(item, Ended):
                self._items.append(item)
                self._changed.notify_all()

    def get(self) -> Event | Ended:
        """The next item, as soon as there is one."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._items))
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def take_events(self) -> Iterator[Event]:
        """The events that are there now, up to the first outcome."""
        while True:
            with self._changed:
                if not self._items or isinstance(self._items[0], Ended):
                    return
                item = self._items.popleft()
                self._changed.notify_all()
            assert isinstance(item, Event)
            yield item

    def wait_for_room(self) -> None:
        """In a worker, after putting events: waits until the consumer has taken them, or cannot."""
        if threading.get_ident() != self.consumer:
            with self._changed:
                self._changed.wait_for(lambda: not self._items or self._busy or not self._open)

    @contextmanager
    def consumer_works(self) -> Iterator[None]:
        """While the consumer's thread runs a skill it can take nothing, so nobody waits for it."""
        self._set_busy(busy=True)
        try:
            yield
        finally:
            self._set_busy(busy=False)

    def _set_busy(self, *, busy: bool) -> None:
        with self._changed:
            self._busy = busy
            self._changed.notify_all()

    def close(self) -> None:
        """From now on events are dropped and nobody waits: the consumer has left."""
        with self._changed:
            self._open = False
            self._items = deque(item for item in self._items if isinstance(item, Ended))
            self._changed.notify_all()
