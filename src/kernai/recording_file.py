"""`read_recording`: reads a recording from a file, in any of its forms."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

from kernai.errors import KernaiError
from kernai.recording.recorder import expand, read_lines, read_text


def read_recording(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Returns the events of a recording as `Recorder.to_list` does, with all messages in each `messages_sent`.

    Reads files written with `Recorder.to_json` (expanded or not), files of a `JsonlSink` (ignoring a last line that a
    crash cut off), and any JSON object with a list of events under ``"events"``. Raises `KernaiError` if the file is
    not a recording, with the reason; `OSError` if it cannot be read.
    """
    return list(expand(entries_in(path), os.fspath(path)))


def entries_in(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yields the events of a recording as they are in its file."""
    name = os.fspath(path)
    text = read_text(path)
    if not text.strip():
        raise KernaiError(f"{name} is not a recording: the file is empty")
    try:
        for number, entry in enumerate(_events(text, name), 1):
            if not isinstance(entry, dict) or not isinstance(entry.get("event"), str):
                why = 'it must be an object with its type as "event"'
                raise KernaiError(f"{name}: entry {number} is not an event: {why}")
            yield entry
    except RecursionError as error:
        raise KernaiError(f"{name} is not a recording: it is nested too deeply") from error


def _events(text: str, name: str) -> Iterable[Any]:
    """The events in a JSON document or JSON lines."""
    try:
        found = json.loads(text)
    except ValueError as error:
        if not text.lstrip().startswith("{"):
            raise KernaiError(f"{name} is neither JSON nor JSON lines: {error}") from error
        return read_lines(text, name)
    if isinstance(found, dict):
        if isinstance(found.get("event"), str):
            return [found]  # JSON lines with a single line
        found = found.get("events")
    if not isinstance(found, list):
        raise KernaiError(f'{name} is not a recording: it must be a list of events, or an object with one as "events"')
    return found
