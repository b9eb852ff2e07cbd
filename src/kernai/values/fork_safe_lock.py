"""`ForkSafeLock`: a lock that a forked child finds open.

A child has one thread, the one that forked. A lock that another thread held at that moment would never be opened again
in the child, and whoever takes it there waits for ever. Run-wide locks need no such care, for a run ends with its
process; the registries and the sinks on files are the process's own.
"""

from __future__ import annotations

import os
import threading
from weakref import WeakSet


class ForkSafeLock:
    """Used in a ``with`` block; re-entrant if `reentrant`."""

    __slots__ = ("__weakref__", "_lock", "_make")

    def __init__(self, *, reentrant: bool = False) -> None:
        self._make = threading.RLock if reentrant else threading.Lock
        self.renew()
        _locks.add(self)

    def renew(self) -> None:
        """In a child that was forked: a lock that nobody holds."""
        self._lock = self._make()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


_locks: WeakSet[ForkSafeLock] = WeakSet()


def _renew_all() -> None:
    for lock in list(_locks):
        lock.renew()


if hasattr(os, "register_at_fork"):  # not on every system
    os.register_at_fork(after_in_child=_renew_all)
