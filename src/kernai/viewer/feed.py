"""`Feed`: what a followed recording has for the page, in one order that only grows until the file begins anew."""

from __future__ import annotations

import os
import threading
import time

from kernai.jsonio.json_data import dumps
from kernai.viewer.records import Records, encode
from kernai.viewer.tail import Tail
from kernai.viewer.thumbnails import MEDIA_ID, Thumbnails

#: seconds between two looks at the file
INTERVAL = 0.15
#: seconds after which a page gets an answer without news
PATIENCE = 20.0
#: what one answer may hold
MOST_ITEMS = 2_000
MOST_BYTES = 4 * 1024 * 1024
_SETTLE = 0.3


class Feed:
    """The news of one file for any number of pages. Thread-safe.

    There is no thread that reads: whoever asks looks at the file, so nothing happens while nobody does.
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
        """Lets go of whoever waits for news."""
        self._closed.set()

    def news(self, after: int, generation: str, seen: str) -> str:
        """What comes after item `after` of a generation, as JSON for the page; waits for it up to `PATIENCE`.

        ``{"generation", "next", "seen", "waiting", "records", "media"}``: `next` and `seen` go into the next question.
        Of another generation everything is sent from its start.
        """
        until = time.monotonic() + PATIENCE
        while True:
            with self._lock:
                self._look()
                state = f"{self._generation}.{len(self._items)}.{self._tail.waiting or ''}"
                if state != seen or self._closed.is_set() or time.monotonic() >= until:
                    first = after if generation == str(self._generation) else 0
                    return self._answer(max(0, first), state)
            self._closed.wait(INTERVAL)

    def _look(self) -> None:
        entries = self._tail.read()
        if self._tail.generation != self._generation:
            self._begin()
        for entry in entries:
            text = encode(self._records.record(entry))
            self._items.append(("records", text))
            self._wanted.update(set(MEDIA_ID.findall(text)) - self._known)
        for media_id, told in self._pictures.find(self._wanted).items():
            self._wanted.discard(media_id)
            self._known.add(media_id)
            self._items.append(("media", f"{dumps(media_id)}:{dumps(told)}"))

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
        # a page that has not had everything asks again at once
        seen = state if end >= len(self._items) else ""
        told = dumps({"generation": str(self._generation), "next": end, "seen": seen, "waiting": self._tail.waiting})
        return f'{told[:-1]},"records":[{",".join(parts["records"])}],"media":{{{",".join(parts["media"])}}}}}'
