"""A lock that holds between processes, for the length of a `with` block."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    def _take(file: int) -> None:
        while True:
            try:
                msvcrt.locking(file, msvcrt.LK_LOCK, 1)  # tries for ten seconds
            except OSError:
                continue
            return

    def _give_back(file: int) -> None:
        os.lseek(file, 0, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_UNLCK, 1)
else:
    import fcntl

    def _take(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX)

    def _give_back(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Waits until no other process (or thread) is in such a block for the same path. The file stays, and is empty.

    The system gives the lock back when a process dies. `OSError` where the file cannot be made.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _take(file)
        try:
            yield
        finally:
            _give_back(file)
    finally:
        os.close(file)
