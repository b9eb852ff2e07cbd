"""A recording as one HTML page: `render_page` renders it, `write_page` writes it to a file.

`record` prepares an entry, `Thumbnails` the pictures. A recording contains references to media, never their data,
and paths in it are never followed. `kernai run --record` writes the data to ``RUN.jsonl.media/``, in files named by the
media's id. Only these are read, and only if neither the folder nor the file is a symbolic link. Only files that begin
like PNG, JPEG, GIF or WebP are shown, whatever their names end in; SVG is not, because it can contain scripts.

The page consists of the files in ``assets/`` and of facts about each kind of event from `kernai.events`. The recording
is in a script element that is not executed, as ASCII JSON in which `<`, `>` and `&` are escaped, so nothing in it can
end that element. The content security policy allows the page's own style and script, by their hashes, and nothing else.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import sha256
from html import escape
from importlib import resources
from itertools import count, islice
from typing import Any

from kernai import KernaiError, Media
from kernai._util.api import check_type
from kernai._util.private_file import open_regular, write_private
from kernai._util.redaction import printable
from kernai.blocks.parser import parts_of
from kernai.events import KINDS, LlmResponseRow, ProgressRow, Row
from kernai.jsonio.json_data import dumps, dumps_data, jsonable
from kernai.recording.recorder import Shortening

# an integer with more than fifteen digits, which a browser may round (or a text that looks like one)
_MANY_DIGITS = re.compile(r"[:\[,]-?\d{16,}[,\]}]")
_EXACT = 2**53
#: the outline of a response has at most this many blocks and pieces of prose; the page shows fewer
MOST_PARTS = 2_000


def record(entry: Mapping[str, Any], shortening: Shortening) -> dict[str, Any]:
    """Converts an entry to a record: ``{"entry": ENTRY}``; that of a model's response also has an ``"outline"``.

    `shortening`, which has seen the entries before it, reduces a `messages_sent` to the messages that are new in its
    scope; otherwise the page's size would be quadratic in the length of the run. Any field of an entry may be missing,
    or have any value.
    """
    made: dict[str, Any] = {"entry": shortening.entry(entry)}
    match entry:
        case {"event": LlmResponseRow.type, "data": {"content": str(content)}}:
            made["outline"] = outline(content)
    return made


def encode(value: object) -> str:
    """Encodes a record as ASCII JSON. Integers that JavaScript cannot represent exactly become strings."""
    text = dumps_data(value)
    return dumps(_exact(jsonable(value))) if _MANY_DIGITS.search(text) else text


def _exact(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _exact(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_exact(one) for one in value]
    return str(value) if isinstance(value, int) and abs(value) > _EXACT else value


def outline(response: str) -> list[str | int]:
    """Returns the pieces of prose of a response and the numbers of its blocks, in order.

    A number is a block's index in `blocks_parsed`, so that the page can show each block at its place in the prose.
    """
    numbers = count()
    closed = (part for part in parts_of(response) if part.is_closed)
    return [next(numbers) if part.block else part.content for part in islice(closed, MOST_PARTS)]


# ---------------------------------------------------------------------------------------------------------- thumbnails

MAX_BYTES = 4 * 1024 * 1024
MAX_TOTAL = 32 * 1024 * 1024
#: the id in a reference to media
MEDIA_ID = re.compile(r"media_[0-9a-f]{12}(?![0-9a-f])")
#: how the data of a picture begins
_STARTS = {
    rb"\x89PNG\r\n\x1a\n": "image/png", rb"\xff\xd8\xff": "image/jpeg", rb"GIF8[79]a": "image/gif",
    rb"RIFF....WEBP": "image/webp",
}
_FILE = re.compile(r"(media_[0-9a-f]{12})\.[A-Za-z0-9]{1,8}")


class Thumbnails:
    """Finds pictures by id, among `media` with data or else in the folder, until `MAX_TOTAL` bytes are used."""

    def __init__(self, folder: str | os.PathLike[str] | None, media: Iterable[Media] = ()) -> None:
        self._folder = None if folder is None else os.fspath(folder)
        self._data: dict[str, bytes] = {}
        for one in media:
            if (data := one.data if isinstance(one.data, bytes) else one.payload) is not None:
                self._data[one.id] = data
        self._left = MAX_TOTAL

    def find(self, ids: set[str]) -> dict[str, dict[str, str]]:
        """Returns ``{"uri": DATA_URI}`` or ``{"left_out": REASON}`` for each id that is found."""
        found = {one: self._picture(data) for one, data in sorted(self._data.items()) if one in ids}
        files = self._files() if (left := ids - self._data.keys()) else {}
        return found | {one: self._read(files[one]) for one in sorted(left & files.keys())}

    def _files(self) -> dict[str, str]:
        if self._folder is None or os.path.islink(self._folder):  # noqa: PTH114 - text in, text out
            return {}
        try:
            with os.scandir(self._folder) as files:
                return {name[1]: file.path for file in files if (name := _FILE.fullmatch(file.name))}
        except OSError:
            return {}

    def _read(self, path: str) -> dict[str, str]:
        try:
            file = open_regular(path, follow_links=False)
        except OSError as error:
            return {"left_out": f"its file cannot be opened: {error.strerror}"}
        with file:
            return self._picture(file.read(MAX_BYTES + 1))

    def _picture(self, data: bytes) -> dict[str, str]:
        if len(data) > MAX_BYTES:
            return {"left_out": f"it has more than {MAX_BYTES:,} bytes"}
        kind = picture_type(data)
        if kind is None:
            return {"left_out": "its data is not PNG, JPEG, GIF or WebP"}
        if len(data) > self._left:
            return {"left_out": f"the pictures of this page have reached {MAX_TOTAL:,} bytes"}
        self._left -= len(data)
        return {"uri": f"data:{kind};base64,{b64encode(data).decode('ascii')}"}


def picture_type(data: bytes) -> str | None:
    """The MIME type that the first bytes indicate, if it is one of the four that the page shows."""
    return next((kind for start, kind in _STARTS.items() if re.match(start, data, re.DOTALL)), None)


# ------------------------------------------------------------------------------------------------------------ the page

STYLES = ("page.css", "cards.css")
SCRIPTS = (
    "dom.js", "markdown.js", "figures.js", "recording.js", "describe.js", "list.js", "cards.js", "conversation.js",
    "step.js", "timeline.js", "plot.js", "splitter.js", "filters.js", "live.js", "view.js", "keys.js", "main.js",
)
#: near the start of every page; a file without it was written by another program
MARK = b"<!-- written by kernai view -->"
_PLACE = re.compile(r"\{\{(\w+)\}\}")
#: the type of the event in place of an unreadable line of a file that `FollowServer` follows
UNREADABLE = "unreadable_line"


def render_page(
    entries: Iterable[Mapping[str, Any]], *, title: str, media_folder: str | os.PathLike[str] | None = None,
    media: Iterable[Media] = (),
) -> str:
    """Renders a recording as one HTML page, to be written as UTF-8.

    `entries` are dicts as `Recorder.to_list` and `read_recording` return them, of one or several runs; their types may
    be unknown, and fields may be missing. `media_folder` has the data of media in files named ``ID.ENDING``; `media`
    are media with data, from a store. Raises `TypeError` for an entry that is not a mapping.
    """
    shortening = Shortening()
    made = []
    for at, entry in enumerate(entries):
        check_type(entry, Mapping, f"entries[{at}] must be a dict as Recorder.to_list gives")
        made.append(record(entry, shortening))
    text = encode(made)
    found = Thumbnails(media_folder, media).find(set(MEDIA_ID.findall(text)))
    return _page(title, f'{{"live":null,"media":{dumps(found)},"records":{text}}}')


def live_page(title: str, address: str) -> str:
    """Renders a page without records. It requests them from `address`, which is relative to the page's own address."""
    return _page(title, dumps({"live": address, "media": {}, "records": []}), connects=True)


def policy(*, connects: bool = False) -> str:
    """The page's content security policy; with `connects` it may send requests to its own server."""
    _, style, script = _assets()
    rules = [
        "default-src 'none'", "img-src data:", f"style-src {_hash(style)}", f"script-src {_hash(script)}",
        "base-uri 'none'", "form-action 'none'", "require-trusted-types-for 'script'", "trusted-types 'none'",
    ]
    return "; ".join([*rules, "connect-src 'self'"] if connects else rules)


def _page(title: str, data: str, *, connects: bool = False) -> str:
    page, style, script = _assets()
    parts = {
        "policy": policy(connects=connects),
        "title": escape(" ".join(printable(title).split())),
        "style": style,
        "script": script,
        "data": data.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"),
    }
    return _PLACE.sub(lambda place: parts[place[1]], page)


@cache
def _assets() -> tuple[str, str, str]:
    folder = resources.files("kernai.viewer").joinpath("assets")

    def text(names: Iterable[str]) -> str:
        return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)

    script = f'(() => {{\n"use strict";\nconst KINDS = new Map({dumps(list(kinds().items()))});\n{text(SCRIPTS)}}})();'
    return text(["page.html"]), text(STYLES), script


def kinds() -> dict[str, dict[str, Any]]:
    """Returns what the page's script needs to know about each kind of event.

    `group` decides its colour. `problem` means that something went wrong, `usage` that it has a model call's usage, and
    `of_call` that it is a note on one call. Events of unknown kinds are shown with their type and data.
    """
    found: dict[str, dict[str, Any]] = {UNREADABLE: {"group": "problem", "problem": True}}
    for kind in KINDS.values():
        facts: dict[str, Any] = {
            "problem": kind.is_problem(),
            "usage": kind.usage_in is not Row.usage_in,
            "of_call": kind.role == "aside" and kind.group == "call" and kind is not ProgressRow,
        }
        found[kind.type] = {"group": kind.group} | {name: True for name, is_so in facts.items() if is_so}
    return found


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


def write_page(path: str | os.PathLike[str], page: str) -> None:
    """Writes a page to a file of mode 0600, whole or not at all, since a recording holds private data.

    Replaces an empty file or an earlier page. Raises `KernaiError` for a file with anything else, and `OSError` if the
    file cannot be written.
    """
    target = os.fsdecode(path)
    if os.path.exists(target):  # noqa: PTH110 - `target` is a str
        with open_regular(target, follow_links=True) as file:
            start = file.read(200)
        if start and MARK not in start:
            raise KernaiError(f"{target} already exists and is not a page of this viewer")
    write_private(target, page.encode("utf-8"))
