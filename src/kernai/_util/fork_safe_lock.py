"""`ForkSafeLock`: a lock that is free in a forked child.

A child has one thread, the one that forked. A lock that another thread held at that moment would never be released in
the child, and a thread that acquires it there would wait forever. Objects that belong to the process need such a lock:
registries and file sinks, for example. Objects that belong to a run do not, since a run ends with its process.
"""

from __future__ import annotations

import os
import threading


class ForkSafeLock:
    """Used in a ``with`` block. In a forked child its first user replaces the lock."""

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
    """`here` is a different object in each process. `renewing` keeps two threads from replacing the same lock."""

    here = object()
    renewing = threading.Lock()


def _after_fork() -> None:
    _Process.here, _Process.renewing = object(), threading.Lock()


if hasattr(os, "register_at_fork"):  # not on every system
    os.register_at_fork(after_in_child=_after_fork)
