"""The recordings that a command line names: a file, or ``STORE:RUN`` for a run that a store keeps."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from kernai.command_line.errors import CommandError
from kernai.errors import KernaiError
from kernai.recording.recorder import expand
from kernai.recording_file import read_recording

if TYPE_CHECKING:
    from kernai.values.media import Media

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
    from kernai.command_line.run_store import RunStore

    with RunStore(path) as store:
        return expand(store.entries(run_id), f"run {run_id!r}"), store.store.load_media(run_id)


def _is_database(path: str) -> bool:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - text in, text out
            return file.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False
