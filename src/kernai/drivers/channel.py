"""`Channel`: how a stream's events reach the thread that iterates.

Guarantees: events come out in the order in which they were put in; whoever has put some waits, outside of every other
lock, until they are taken, so a slow consumer holds the run back and nothing piles up.
"""

from __future__ import annotations

import threading
from collections import deque

from kernai.events import Event


class Channel:
    """For one stream: threads of the run put, the consumer takes."""

    def __init__(self) -> None:
        # re-entrant: a stream that the garbage collector drops is closed in the middle of whatever this thread is doing
        self._changed = threading.Condition(threading.RLock())
        self._events: deque[Event] = deque()
        self._open = True
        self._ended = False
        #: a thread that takes events; it never waits for itself
        self.consumer = 0

    def put(self, event: Event) -> None:
        """Adds an event; never waits. Once the consumer has left, events are dropped."""
        with self._changed:
            if self._open:
                self._events.append(event)
                self._changed.notify_all()

    def has_events(self) -> bool:
        """Whether there is something to take."""
        return bool(self._events)

    def wait_until_taken(self) -> None:
        """After putting: waits until the consumer has taken all events, or has left."""
        if threading.get_ident() != self.consumer:
            with self._changed:
                self._changed.wait_for(lambda: not self._events or not self._open)

    def get(self, patience: float) -> Event | None:
        """The next event; None where the run has ended, or none came within `patience` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._events or self._ended, patience)
            if not self._events:
                return None
            event = self._events.popleft()
            if not self._events:
                self._changed.notify_all()
            return event

    @property
    def ended(self) -> bool:
        """Whether the run has ended and every event was taken."""
        with self._changed:
            return self._ended and not self._events

    def end(self) -> None:
        """The run has ended: there will be no further events."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_for_end(self, patience: float) -> bool:
        """Waits for the end of the run, at most `patience` seconds; whether it has ended."""
        with self._changed:
            return self._changed.wait_for(lambda: self._ended, patience)

    def leave(self) -> None:
        """The consumer has left: from now on events are dropped and nobody waits."""
        with self._changed:
            self._open = False
            self._events.clear()
            self._changed.notify_all()
