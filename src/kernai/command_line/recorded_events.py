"""The events of a recording that the command line names."""

from __future__ import annotations

from typing import Any

from kernai.command_line.errors import CommandError
from kernai.errors import KernaiError
from kernai.recording.recording_file import read_recording

HINT = "kernai run AGENT ... --record FILE makes a recording"


def recorded_events(path: str) -> list[dict[str, Any]]:
    """See `read_recording`; `CommandError` where the file cannot be read, or is none."""
    try:
        return read_recording(path)
    except KernaiError as error:
        raise CommandError(str(error), HINT) from error
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror or error}", HINT) from error
