"""`render_page` renders a recording as one HTML page; `write_page` writes a page to a file.

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
from os import PathLike
from typing import Any

from kernai._util.private_file import open_regular, write_private
from kernai.errors import KernaiError
from kernai.events import KINDS, Row
from kernai.jsonio.json_data import dumps
from kernai.terminal_text import printable
from kernai.values.media import Media
from kernai.viewer.feed import UNREADABLE
from kernai.viewer.records import MEDIA_ID, Records, Thumbnails, encode

STYLES = ("page.css", "cards.css")
SCRIPTS = (
    "dom.js", "markdown.js", "figures.js", "recording.js", "describe.js", "list.js", "cards.js", "conversation.js",
    "step.js", "timeline.js", "plot.js", "splitter.js", "filters.js", "live.js", "view.js", "keys.js", "main.js",
)
#: near the start of every page; a file without it was written by another program
MARK = b"<!-- written by kernai view -->"
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def render_page(
    entries: Iterable[Mapping[str, Any]],
    *,
    title: str,
    media_folder: str | PathLike[str] | None = None,
    media: Iterable[Media] = (),
) -> str:
    """Renders a recording as one HTML page, to be written as UTF-8.

    `entries` are dicts as `Recorder.to_list` and `read_recording` return them, of one or several runs; their types may
    be unknown, and fields may be missing. `media_folder` has the data of media in files named ``ID.ENDING``; `media`
    are media with data, from a store. Raises `TypeError` for an entry that is not a mapping.
    """
    records = Records()
    made = []
    for at, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            raise TypeError(f"entries[{at}] must be a dict as Recorder.to_list gives, got {type(entry).__name__}")
        made.append(records.record(entry))
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
    if not isinstance(title, str):
        raise TypeError(f"title must be text, got {type(title).__name__}")
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
    """The page's markup, style and script."""
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
            "problem": kind.is_warning or kind.group == "problem",
            "usage": kind.usage is not Row.usage,
            "of_call": kind.is_note and kind.group == "call" and "call_id" in kind.__slots__,
        }
        found[kind.type] = {"group": kind.group} | {name: True for name, is_so in facts.items() if is_so}
    return found


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


def write_page(path: str | os.PathLike[str], page: str) -> None:
    """Writes a page to a file of mode 0600, whole or not at all, since a recording holds private data.

    Replaces an empty file or an earlier page. Raises `KernaiError` for any other existing file, and `OSError` if the
    file cannot be written.
    """
    if not isinstance(page, str):
        raise TypeError(f"page must be text, as render_page returns it, got {type(page).__name__}")
    target = os.fsdecode(path)
    if os.path.exists(target):  # noqa: PTH110 - `target` is a str
        file = open_regular(target, follow_links=True)
        if file is None:
            raise KernaiError(f"{target} is not a regular file")
        with file:
            start = file.read(200)
        if start and MARK not in start:
            raise KernaiError(f"{target} already exists and is not a page of this viewer")
    write_private(target, page.encode("utf-8"))
