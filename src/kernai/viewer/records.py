"""Prepares a recording for the page: `Records` its entries, `Thumbnails` the pictures in the folder next to it.

A recording contains references to media, never their data, and paths in it are never followed. `kernai run --record`
writes the data to ``RUN.jsonl.media/``, in files named by the media's id. Only these are read, and only if neither the
folder nor the file is a symbolic link. Only files that begin like PNG, JPEG, GIF or WebP are shown, whatever their
names end in; SVG is not, because it can contain scripts.
"""

from __future__ import annotations

import os
import re
import stat
import time
from base64 import b64encode
from collections.abc import Iterable, Mapping
from itertools import count, islice
from typing import Any

from kernai._util.private_file import open_regular
from kernai.blocks.parser import parts_of
from kernai.events import LlmResponseRow, MessagesSentRow, RunStartRow
from kernai.jsonio.json_data import dumps, jsonable
from kernai.values.media import Media

# an integer with more than fifteen digits, which a browser may round (or a text that looks like one)
_MANY_DIGITS = re.compile(r"[:\[,]-?\d{16,}[,\]}]")
_EXACT = 2**53
#: responses with more blocks and pieces of prose than this have no outline; only their blocks are shown
MOST_PARTS = 2_000


class Records:
    """Converts entries to records, one by one and in order.

    A record is ``{"entry": ENTRY}``; that of a model's response also has an ``"outline"``. A `messages_sent` keeps only
    the messages that are new in its scope, with ``"since"``, as `JsonlSink` writes it; otherwise the page's size would
    be quadratic in the length of the run. Any field of an entry may be missing, or have any value.
    """

    def __init__(self) -> None:
        self._sent: dict[str, dict[str, list[Any]]] = {}  # by run and scope

    def record(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        kind = entry.get("event")
        run = _name(entry.get("run_id"))
        if kind == RunStartRow.type and not entry.get("scope"):
            self._sent.pop(run, None)  # another `run_start` of a root begins a new run, even with the same id
        if kind == MessagesSentRow.type:
            return {"entry": self._news(self._sent.setdefault(run, {}), entry)}
        if kind == LlmResponseRow.type:
            data = entry.get("data")
            content = data.get("content") if isinstance(data, Mapping) else None
            if isinstance(content, str) and (parts := outline(content)) is not None:
                return {"entry": entry, "outline": parts}
        return {"entry": entry}

    def _news(self, sent_by: dict[str, list[Any]], entry: Mapping[str, Any]) -> Mapping[str, Any]:
        sent = entry.get("data")
        if not isinstance(sent, list) or entry.get("since") is not None:
            return entry  # from a file whose lines contain only new messages already
        scope = _name(entry.get("scope"))
        before = sent_by.get(scope)
        sent_by[scope] = sent
        if not before or len(sent) < len(before) or sent[1 : len(before)] != before[1:]:
            return entry
        new = sent[len(before) :]
        return {**entry, "data": new if sent[0] == before[0] else [sent[0], *new], "since": len(before)}


def _name(value: object) -> str:
    return value if isinstance(value, str) else type(value).__name__


def encode(value: object) -> str:
    """Encodes a record as ASCII JSON. Integers that JavaScript cannot represent exactly become strings."""
    text = dumps(value)
    return dumps(_exact(jsonable(value))) if _MANY_DIGITS.search(text) else text


def _exact(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _exact(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_exact(one) for one in value]
    return str(value) if isinstance(value, int) and abs(value) > _EXACT else value


def outline(response: str) -> list[str | int] | None:
    """Returns the pieces of prose of a response and the numbers of its blocks, in order; None if there are too many.

    A number is a block's index in `blocks_parsed`, so that the page can show each block at its place in the prose.
    """
    numbers = count()
    closed = (part for part in parts_of(response) if part.is_closed)
    parts = [next(numbers) if part.block else part.content for part in islice(closed, MOST_PARTS + 1)]
    return parts if len(parts) <= MOST_PARTS else None


# ---------------------------------------------------------------------------------------------------------- thumbnails

MAX_BYTES = 4 * 1024 * 1024
MAX_TOTAL = 32 * 1024 * 1024
#: the id in a reference to media
MEDIA_ID = re.compile(r"media_[0-9a-f]{12}(?![0-9a-f])")
_STARTS = {
    b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF87a": "image/gif", b"GIF89a": "image/gif",
}
_FILE = re.compile(r"(media_[0-9a-f]{12})\.[A-Za-z0-9]{1,8}")


class Thumbnails:
    """Finds pictures by id, among `media` with data or else in the folder, until `MAX_TOTAL` bytes are used.

    A file is read only `settle` seconds after its last change, because it may still be being written.
    """

    def __init__(
        self, folder: str | os.PathLike[str] | None, media: Iterable[Media] = (), *, settle: float = 0.0
    ) -> None:
        self._folder = None if folder is None else os.fspath(folder)
        self._data = {one.id: data for one in media if (data := _held(one)) is not None}
        self._settle = settle
        self._left = MAX_TOTAL

    def find(self, ids: set[str]) -> dict[str, dict[str, str]]:
        """Returns ``{"uri": DATA_URI}`` or ``{"left_out": REASON}`` for each id that is found."""
        found = {}
        for media_id in sorted(ids & self._data.keys()):
            data = self._data[media_id]
            found[media_id] = self._picture(data[: MAX_BYTES + 1], len(data))
        for media_id, path in sorted(self._files(ids - self._data.keys()).items()):
            picture = self._read(path)
            if picture is not None:
                found[media_id] = picture
        return found

    def _files(self, ids: set[str]) -> dict[str, str]:
        if self._folder is None or not ids:
            return {}
        try:
            if not stat.S_ISDIR(os.lstat(self._folder).st_mode):
                return {}
            with os.scandir(self._folder) as files:
                named = [(name[1], file.path) for file in files if (name := _FILE.fullmatch(file.name))]
        except OSError:
            return {}
        return {media_id: path for media_id, path in named if media_id in ids}

    def _read(self, path: str) -> dict[str, str] | None:
        try:
            file = open_regular(path, follow_links=False)
        except OSError as error:
            return {"left_out": f"its file cannot be opened: {error.strerror}"}
        if file is None:
            return {"left_out": "its file is not a regular file"}
        with file:
            about = os.fstat(file.fileno())
            if abs(time.time() - about.st_mtime) < self._settle:
                return None
            data = file.read(MAX_BYTES + 1)
        return self._picture(data, about.st_size)

    def _picture(self, data: bytes, size: int) -> dict[str, str]:
        if len(data) > MAX_BYTES:
            return {"left_out": f"it has {size:,} bytes, and a picture here may have {MAX_BYTES:,}"}
        kind = picture_type(data)
        if kind is None:
            return {"left_out": "its data is not PNG, JPEG, GIF or WebP"}
        if len(data) > self._left:
            return {"left_out": f"the pictures of this page have reached {MAX_TOTAL:,} bytes"}
        self._left -= len(data)
        return {"uri": f"data:{kind};base64,{b64encode(data).decode('ascii')}"}


def _held(media: Media) -> bytes | None:
    if not isinstance(media, Media):
        raise TypeError(f"media must be a list of Media, got {type(media).__name__} in it")
    return media.data if isinstance(media.data, bytes) else media.payload


def picture_type(data: bytes) -> str | None:
    """The MIME type that the first bytes indicate, if it is one of the four that the page shows."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _STARTS.items() if data.startswith(start)), None)
