"""`ForkSafeLock`: a lock that a forked child finds open.

A child has one thread, the one that forked. A lock that another thread held at that moment would never be opened again
in the child, and whoever takes it there waits for ever. What belongs to a run needs no such care, for a run ends with
its process; registries, stores of media and the sinks on files are the process's own.
"""

from __future__ import annotations

import os
import threading


class ForkSafeLock:
    """Used in a ``with`` block; re-entrant if `reentrant`. In a forked child its first user makes it anew."""

    __slots__ = ("_lock", "_make", "_process")

    def __init__(self, *, reentrant: bool = False) -> None:
        self._make = threading.RLock if reentrant else threading.Lock
        self._lock = self._make()
        self._process = _Process.here

    def __enter__(self) -> None:
        if self._process is not _Process.here:
            self._renew()
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def _renew(self) -> None:
        with _Process.renewing:
            if self._process is not _Process.here:
                self._lock = self._make()
                self._process = _Process.here


class _Process:
    """`here` is another object in each process; `renewing` keeps two threads of a child from making a lock twice."""

    here = object()
    renewing = threading.Lock()


def _begin_anew() -> None:
    _Process.here, _Process.renewing = object(), threading.Lock()


if hasattr(os, "register_at_fork"):  # not on every system
    os.register_at_fork(after_in_child=_begin_anew)
