"""Follows a recording that is being written: `Tail` reads new lines of its file, `Feed` serves them to pages."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any, BinaryIO

from kernai._util.private_file import open_regular
from kernai.jsonio.json_data import dumps
from kernai.viewer.records import MEDIA_ID, Records, Thumbnails, encode

#: the type of the event in place of an unreadable line
UNREADABLE = "unreadable_line"
#: characters that are shown of an unreadable line
SHOWN = 2_000
_CHECKED = 256


class Tail:
    """Reads a recording as it grows. Not thread-safe.

    `generation` is raised when the file starts over, because it was replaced, truncated or overwritten. `waiting` says
    why nothing can be read, or is None. A line that is not an event becomes an `unreadable_line` event, so that nothing
    is lost silently.
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
        self._last = b""  # the last bytes read, to notice if the file was overwritten

    def read(self) -> list[dict[str, Any]]:
        """Returns the entries of new complete lines. An incomplete last line is returned once it is complete."""
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
            self._notice_change((about.st_dev, about.st_ino), file)
            if about.st_size == self._read:
                return []
            file.seek(self._read)
            return self._entries(file.read(about.st_size - self._read))

    def _notice_change(self, identity: tuple[int, int], file: BinaryIO) -> None:
        file.seek(self._read - len(self._last))
        if self._file not in (None, identity) or file.read(len(self._last)) != self._last:
            self.generation += 1
            self._begin()
        self._file = identity

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
            reason = 'it is not an event: it must be an object with its type as "event"'
        shown = line[:SHOWN].decode("utf-8", "backslashreplace")
        return {"event": UNREADABLE, "data": {"line": self._line, "reason": reason, "text": shown}}


#: seconds between two checks of the file
INTERVAL = 0.15
#: seconds after which a request is answered even if there is nothing new
MAX_WAIT = 20.0
#: limits of one answer
MOST_ITEMS = 2_000
MOST_BYTES = 4 * 1024 * 1024
_SETTLE = 0.3


class Feed:
    """The records and pictures of one file, for any number of pages. Their order is fixed until the file starts over.

    Thread-safe. No thread reads in the background: each request checks the file.
    """

    def __init__(self, path: str | os.PathLike[str], media_folder: str | os.PathLike[str] | None) -> None:
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._tail = Tail(path)
        self._media_folder = media_folder
        self._begin()

    def _begin(self) -> None:
        self._generation = self._tail.generation
        self._items: list[tuple[str, str]] = []  # ("records" or "media", JSON)
        self._records = Records()
        self._pictures = Thumbnails(self._media_folder, settle=_SETTLE)
        self._wanted: set[str] = set()
        self._known: set[str] = set()

    def close(self) -> None:
        """Answers all pending requests."""
        self._closed.set()

    def news(self, after: int, generation: str, seen: str) -> str:
        """Returns the items from number `after` on, as JSON for the page. Waits up to `MAX_WAIT` seconds for new ones.

        The answer is ``{"generation", "next", "seen", "waiting", "records", "media"}``. The page passes `generation`,
        `next` (as `after`) and `seen` to its next request. A new generation is sent from its start.
        """
        until = time.monotonic() + MAX_WAIT
        while True:
            with self._lock:
                self._look()
                state = f"{self._generation}.{len(self._items)}.{self._tail.waiting or ''}"
                if state != seen or self._closed.is_set() or time.monotonic() >= until:
                    first = after if generation == str(self._generation) else 0
                    return self._answer(first, state)
            self._closed.wait(INTERVAL)

    def _look(self) -> None:
        entries = self._tail.read()
        if self._tail.generation != self._generation:
            self._begin()
        for entry in entries:
            text = encode(self._records.record(entry))
            self._items.append(("records", text))
            self._wanted.update(set(MEDIA_ID.findall(text)) - self._known)
        for media_id, picture in self._pictures.find(self._wanted).items():
            self._wanted.discard(media_id)
            self._known.add(media_id)
            self._items.append(("media", f"{dumps(media_id)}:{dumps(picture)}"))

    def _answer(self, first: int, state: str) -> str:
        parts: dict[str, list[str]] = {"records": [], "media": []}
        end = first
        size = 0
        for kind, text in self._items[first : first + MOST_ITEMS]:
            parts[kind].append(text)
            end += 1
            size += len(text)
            if size > MOST_BYTES:
                break
        # with an empty `seen`, the page's next request for the remaining items is answered at once
        seen = state if end >= len(self._items) else ""
        head = dumps({"generation": str(self._generation), "next": end, "seen": seen, "waiting": self._tail.waiting})
        return f'{head[:-1]},"records":[{",".join(parts["records"])}],"media":{{{",".join(parts["media"])}}}}}'
