"""A recording as the commands read it: its events, and its scopes as a tree."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from kernai._util.private_file import new_part, write_private
from kernai.command_line.errors import NO, CommandError
from kernai.command_line.media import MediaFolder
from kernai.errors import KernaiError, error_text
from kernai.events import (
    Event,
)
from kernai.recording.recorder import JsonlSink, MemorySink, Recorder, Sink, expand, read_lines, read_text
from kernai.recording_file import read_recording

if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Self

    from kernai.values.media import Media
    from kernai.values.media_store import MediaStore

FORMS = "a recording (.json, .jsonl, or a log with events), or STORE:RUN"
HINT = "kernai run AGENT ... --record FILE makes a recording; a run in a store is STORE:RUN"
_SQLITE = b"SQLite format 3\0"


def recorded_events(name: str) -> list[dict[str, Any]]:
    """See `read_recording`; `CommandError` where the file cannot be read, or is none."""
    kept = stored_run(name)
    if kept is not None:
        return _load(*kept)[0]
    try:
        return read_recording(name)
    except KernaiError as error:
        if _is_database(name):
            hint = f"{name}:RUN; `kernai runs {name}` lists them"
            raise CommandError(f"{name} is a store: say which of its runs", hint) from error
        raise CommandError(str(error), HINT) from error
    except OSError as error:
        raise CommandError(f"cannot read {name}: {error.strerror or error}", HINT) from error


def recorded_media(name: str) -> list[Media]:
    """The media that a store keeps with a run; none for a file, which has a folder beside it."""
    kept = stored_run(name)
    return [] if kept is None else _load(*kept)[1]


def stored_run(name: str) -> tuple[str, str] | None:
    """Store and run of ``STORE:RUN``; None for anything else. A file of that whole name comes first."""
    path, colon, run_id = name.rpartition(":")
    if not colon or os.path.exists(name) or not os.path.isfile(path):  # noqa: PTH110, PTH113 - text in, text out
        return None
    return path, run_id


def _load(path: str, run_id: str) -> tuple[list[dict[str, Any]], list[Media]]:
    from kernai.command_line.runs_command import RunStore

    with RunStore(path) as store:
        return expand(store.entries(run_id), f"run {run_id!r}"), store.store.load_media(run_id)


def _is_database(path: str) -> bool:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - text in, text out
            return file.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False


ENDINGS = (".json", ".jsonl")
WRITABLE = "name a file that can be written, such as run.jsonl"
_KEYS = Event("").to_dict().keys()
#: how each entry begins, but for the event's type
_HEAD = '{"event":"","step":'


def recording_of(options: Namespace, store: MediaStore) -> AbstractContextManager[Recording | None]:
    """What `--record` asks for, if it was given."""
    if options.record is None:
        return nullcontext()
    return Recording(options.record, store, quiet=options.quiet)


class Recording:
    """A `Recorder` that writes to `path`, and media of `store` to the folder beside it. A context manager.

    Lines of a ``.jsonl`` are in the file as they come; a ``.json`` is put in place whole, at the end. A recording that
    is there already is replaced, where there is a link the link; any other file is a `CommandError`, as is one in the
    folder's place. What fails on the way does not end the run: `failure` tells it. Media that are too large to be
    copied are told at once, unless `quiet`.
    """

    def __init__(self, path: str, store: MediaStore, *, quiet: bool = False) -> None:
        self.path = path
        self.failure: str | None = None
        _check(path)
        self._media = MediaFolder(path + ".media", store, quiet=quiet)
        self._memory = MemorySink()
        self._lines: JsonlSink | None = None
        self._part: tuple[str, int] | None = None
        try:
            if path.endswith(".jsonl"):
                write_private(path, b"")  # a new file, whatever is there
                self._lines = JsonlSink(path)
            else:
                self._part = new_part(path)
        except OSError as error:
            raise _unwritable(path, error) from error
        self.recorder = Recorder(self)

    def record(self, event: Event) -> None:
        """The sink. Media come first, so that whoever follows the file finds what an event refers to."""
        sink: Sink = self._memory if self._lines is None else self._lines
        try:
            self._media.write_new()
        except KernaiError as error:
            self._fail(error)
        try:
            sink.record(event)
        except OSError as error:
            self._fail(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Puts the file in place. Closing twice is fine."""
        try:
            if self._lines is not None:
                self._lines.close()
            if self._part is not None:
                self._put_in_place(*self._part)
        except OSError as error:
            self._fail(error)

    def _put_in_place(self, part: str, descriptor: int) -> None:
        self._part = None
        try:
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(Recorder(self._memory).to_json(expand=False) + "\n")
            os.replace(part, self.path)  # noqa: PTH105 - text in, text out
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part)  # noqa: PTH108 - likewise
            raise

    def _fail(self, error: OSError | KernaiError) -> None:
        self.failure = self.failure or (error.strerror if isinstance(error, OSError) else None) or error_text(error)

    @property
    def told(self) -> str:
        """`failure` as a sentence."""
        return f"the recording {self.path} is not whole: {self.failure}"

    def check(self) -> None:
        """`CommandError` where the recording is not whole."""
        if self.failure is not None:
            raise CommandError(self.told, WRITABLE, NO)


def _unwritable(path: str, error: OSError) -> CommandError:
    return CommandError(f"--record: cannot write {path}: {error.strerror or error}", WRITABLE)


def _check(path: str) -> None:
    if not path.endswith(ENDINGS):
        raise CommandError(f"--record: {path!r} must end in .json or .jsonl", WRITABLE)
    try:
        found = os.stat(path)  # noqa: PTH116 - text in, text out
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unwritable(path, error) from error
    if not stat.S_ISREG(found.st_mode):
        raise CommandError(f"--record: {path} is not a regular file", WRITABLE)
    if not found.st_size:
        return
    cause: Exception | None = None
    try:
        if _is_recording(path):
            return
    except (KernaiError, OSError, ValueError, RecursionError) as error:
        cause = error
    raise CommandError(
        f"--record: {path} exists and is no recording, so it is left as it is", "name another file"
    ) from cause


def _is_recording(path: str) -> bool:
    """Whether a `Recording` wrote the file. `read_recording` takes more: logs of other programs with events in them."""
    text = read_text(path)
    entries = read_lines(text, path) if text.startswith("{") else json.loads(text)
    if text.startswith("{") and not entries:  # nothing but a line that was cut off
        begun = re.sub(r'^(\{"event":")\w+', r"\1", text)
        return begun.startswith(_HEAD) or _HEAD.startswith(begun)
    return isinstance(entries, list) and all(isinstance(one, dict) and one.keys() >= _KEYS for one in entries)
