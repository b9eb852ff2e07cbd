"""The log of a run: one JSON file each, and one line in `manifest.json` beside them.

A log is written under a temporary name and renamed when it is complete. It is created before the run, so that a folder
that cannot be written is an error before anything is spent.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any

import kernai
from kit.definition import UsageError
from kit.run import Run

LOG_FORMAT = 1
MANIFEST = "manifest.json"
#: the fields that a line of the manifest omits
LONG = ("events", "answer")


class RunLog(AbstractContextManager["RunLog"]):
    """The log of one run in a folder, as a context manager. If `write` is not called, no file remains.

    Raises `UsageError` if the folder cannot be written.
    """

    def __init__(self, folder: Path, scenario: str, provider: str) -> None:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        word = re.sub(r"[^A-Za-z0-9._]+", "_", provider)
        self.path = folder / f"{stamp}-{scenario}-{word}-{os.getpid()}.json"
        self._beside = self.path.with_name(f".{self.path.name}.part")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _opened(folder / MANIFEST).close()
            os.close(os.open(self._beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError as error:
            raise _unwritable(folder, error) from error

    def write(self, run: Run, recorder: kernai.Recorder) -> Path:
        """Write the log and its line in the manifest. Returns the log's path. Raises `UsageError` if that fails."""
        entry = _entry(run, json.loads(recorder.to_json(expand=False)))
        line = {key: value for key, value in entry.items() if key not in LONG} | {"log": self.path.name}
        try:
            self._beside.write_text(json.dumps(entry) + "\n", encoding="ascii")
            self._beside.replace(self.path)
            append_line(self.path.with_name(MANIFEST), line)
        except OSError as error:
            raise _unwritable(self.path.parent, error) from error
        return self.path

    def __exit__(self, *_: object) -> None:
        self._beside.unlink(missing_ok=True)


def append_line(path: Path, entry: dict[str, Any]) -> None:
    """Append one line of JSON to a manifest in one write, so that the lines of several processes do not mix."""
    line = (json.dumps(entry) + "\n").encode("ascii")
    with _opened(path) as file:
        end = file.seek(0, os.SEEK_END)
        if end:
            file.seek(end - 1)
            if file.read(1) != b"\n":  # a process died in the middle of its line
                line = b"\n" + line
        file.write(line)


def _opened(path: Path) -> FileIO:
    """Opens a file for appending, and for reading its end."""
    return FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b")


def _unwritable(folder: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot write the log to {folder}: {error.strerror}; --logs DIR takes another, --no-log none")


def _entry(run: Run, events: list[Any]) -> dict[str, Any]:
    result, replayed = run.outcome.result, run.choice.tape
    return {
        "format": LOG_FORMAT,
        "scenario": run.definition.name,
        "provider": run.choice.name,
        "provider_reason": run.choice.reason,
        "model": run.choice.model.id,
        "tape": None if replayed is None else {
            "provider": replayed.tape.provider,
            "model": replayed.tape.model,
            "faults": [*replayed.left, *replayed.unplayed],
        },
        "started_at": run.started_at,
        "seconds": round(run.seconds, 3),
        "passed": run.passed,
        "faults": list(run.faults),
        "notes": list(run.notes),
        "expectations": [asdict(one) for one in run.verdicts],
        "steps": result.steps,
        "stop_reason": str(result.stop_reason),
        "usage": result.usage.to_dict(),
        "answer": result.text,
        "events": events,
    }
