"""`Tail`: what a file of JSON lines has that was not read yet, while somebody else writes it."""

from __future__ import annotations

import json
import os
from typing import Any, BinaryIO

from kernai._util.private_file import open_regular

#: the type of an event that stands for a line of which nothing can be read
UNREADABLE = "unreadable_line"
#: of a line that cannot be read, so much is shown
SHOWN = 2_000
_CHECKED = 256


class Tail:
    """Reads a recording as it grows. Not thread-safe.

    `generation` counts up when the file begins anew: it was replaced, cut short, or written over. `waiting` says what
    is missing, or is None. A line that is no event becomes one, `unreadable_line`, so that nothing is lost unseen.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.generation = 0
        self.waiting: str | None = None
        self._begin()

    def _begin(self) -> None:
        self._file: tuple[int, int] | None = None
        self._read = 0
        self._line = 0
        self._partial = b""
        self._last = b""  # the bytes before the position, to see that they are still there

    def read(self) -> list[dict[str, Any]]:
        """The entries of the whole lines that are new; a last line without its end waits."""
        try:
            file = open_regular(self.path, follow_links=True)
        except OSError as error:
            gone = isinstance(error, FileNotFoundError)
            self.waiting = "Waiting for the file" if gone else f"The file cannot be opened: {error.strerror}"
            return []
        if file is None:
            self.waiting = "What is there is not a regular file"
            return []
        self.waiting = None
        with file:
            about = os.fstat(file.fileno())
            self._notice_change((about.st_dev, about.st_ino), about.st_size, file)
            if about.st_size == self._read:
                return []
            file.seek(self._read)
            return self._entries(file.read(about.st_size - self._read))

    def _notice_change(self, identity: tuple[int, int], size: int, file: BinaryIO) -> None:
        known = self._file is None or (
            identity == self._file and size >= self._read and self._still_there(file)
        )
        if not known:
            self.generation += 1
            self._begin()
        self._file = identity

    def _still_there(self, file: BinaryIO) -> bool:
        file.seek(self._read - len(self._last))
        return file.read(len(self._last)) == self._last

    def _entries(self, new: bytes) -> list[dict[str, Any]]:
        self._read += len(new)
        self._last = (self._last + new)[-_CHECKED:]
        *lines, self._partial = (self._partial + new).split(b"\n")
        entries = []
        for line in lines:
            self._line += 1
            if line.strip():
                entries.append(self._entry(line))
        return entries

    def _entry(self, line: bytes) -> dict[str, Any]:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else f"it is not JSON: {error}"
        else:
            if isinstance(entry, dict) and isinstance(entry.get("event"), str):
                return entry
            reason = 'it is no event: it must be an object with its type as "event"'
        shown = line[:SHOWN].decode("utf-8", "backslashreplace")
        return {"event": UNREADABLE, "data": {"line": self._line, "reason": reason, "text": shown}}
