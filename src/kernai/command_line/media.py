"""Media that are given to a run, and media that it gives."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from kernai._util.private_file import write_private
from kernai.agents.agent import Agent
from kernai.command_line import output
from kernai.command_line.errors import CommandError
from kernai.errors import KernaiError
from kernai.runs.run_request import UserInput
from kernai.values.media import MIME_TYPES, Media

if TYPE_CHECKING:
    from kernai.values.media_store import MediaStore

#: larger ones are left out; a thumbnail of a film is not worth a copy of it
MAX_BYTES = 64 * 1024 * 1024
_ID = re.compile(r"media_[0-9a-f]{12}")
_ENDINGS: dict[str, str] = {}
for _ending, _mime in MIME_TYPES.items():
    _ENDINGS.setdefault(_mime, _ending)


class MediaFolder:
    """Writes what is new in a store into a folder, which is made with the first file. Files have mode 0600.

    `CommandError` where something else has the folder's name.
    """

    def __init__(self, path: str, store: MediaStore, *, quiet: bool = False) -> None:
        self.path = path
        self._store = store
        self._quiet = quiet
        self._seen: set[str] = set()
        refusal = _refusal(path)
        if refusal is not None:
            raise CommandError(f"--record: {refusal}", "name another file")

    def write_new(self) -> None:
        """Writes the media that have come since the last call.

        One that is too large is left out, with a note. `KernaiError` for one that cannot be read or written; it is not
        tried again.
        """
        if len(self._store) == len(self._seen):
            return
        for media in self._store:
            if media.id not in self._seen:
                self._seen.add(media.id)
                self._write(media)

    def _write(self, media: Media) -> None:
        if media.is_url or not _ID.fullmatch(media.id):
            return
        at_hand = media.data if isinstance(media.data, bytes) else media.payload
        data = _read(media) if at_hand is None else at_hand
        if len(data) > MAX_BYTES:
            if not self._quiet:
                output.note(f"note: {media.id} is over {MAX_BYTES:,} bytes and left out of {self.path}", "yellow")
            return
        refusal = _refusal(self.path)  # again: the run may take long
        if refusal is not None:
            raise KernaiError(refusal)
        target = os.path.join(self.path, f"{media.id}.{_ENDINGS.get(media.mime_type, 'bin')}")  # noqa: PTH118 - text in, text out
        try:
            os.makedirs(self.path, mode=0o700, exist_ok=True)  # noqa: PTH103 - likewise
            write_private(target, data)
        except OSError as error:
            raise KernaiError(f"cannot write to {self.path}: {error.strerror or error}") from error


def _refusal(path: str) -> str | None:
    """Why no media may be written there."""
    if os.path.islink(path):  # noqa: PTH114 - text in, text out
        return f"{path} is a link, and no media are written through it"
    if os.path.exists(path) and not os.path.isdir(path):  # noqa: PTH110, PTH112 - likewise
        return f"{path} is no folder, and media are written to one of that name"
    return None


def _read(media: Media) -> bytes:
    """At most one byte more than may be written, so that a huge file is not read whole."""
    try:
        with open(media.data, "rb") as file:  # noqa: PTH123 - text in, text out
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise KernaiError(f"cannot read media file {media.data!r}: {error.strerror or error}") from error


_NEEDED = {"image": "vision", "audio": "audio_in", "video": "video_in", "document": "document_in"}


def media_from(given: str) -> Media:
    """The media that a command line names; `CommandError` where it cannot be read."""
    if given.lower().startswith(("https://", "http://", "data:")):
        return Media.from_url(given)
    try:
        media = Media.from_file(given)
        with open(given, "rb"):  # noqa: PTH123 - text in, text out
            return media
    except (OSError, ValueError) as error:
        told = f"cannot read {given}: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise CommandError(told, "give a file, or a URL that begins with https://") from error


def tell_unseen(given: UserInput, agent: Agent[Any]) -> None:
    """Media that the model cannot perceive reach it as a placeholder; better said than wondered about."""
    parts = [given] if isinstance(given, (str, Media)) else given
    for kind in dict.fromkeys(part.kind for part in parts if isinstance(part, Media)):
        if not agent.model.supports(_NEEDED[kind]):
            output.note(
                f"note: the model {agent.model.id} is not known to take {kind} input (no {_NEEDED[kind]}), so it may "
                "read a placeholder; --model-capabilities says what a --model can do", "yellow",
            )
