"""What a run that gave no answer is told as."""

from __future__ import annotations

from typing import Any

from kernai.command_line import exit_codes
from kernai.command_line.errors import DEBUG_HINT
from kernai.command_line.recording import Recording
from kernai.errors import ProviderError, error_text
from kernai.values.result import Result, StopReason

VENDOR_HINT = "`kernai doctor` looks at keys and servers; --debug shows the traceback"
_HINTS = {
    StopReason.MAX_STEPS: "--max-steps allows more",
    StopReason.MAX_TOKENS: "--max-tokens allows more",
    StopReason.MAX_COST: "--max-cost allows more",
    StopReason.MAX_CALLS: "--max-calls allows more",
    StopReason.TIMEOUT: "--timeout allows more",
}


def failure_of(
    result: Result[Any], recording: Recording | None = None, again: str | None = None
) -> tuple[str, str | None, int]:
    """Message, hint and exit status for a run that gave no answer; the message tells of a faulty recording too.

    `again` is the command line that goes on with the run, where it is kept.
    """
    error = result.error
    told = f"the run stopped: {result.stop_reason}" if error is None else error_text(error)
    if recording is not None and recording.failure is not None:
        told = f"{told}; and {recording.told}"
    failed = isinstance(error, ProviderError) and result.stop_reason not in _HINTS
    hint = VENDOR_HINT if failed else _HINTS.get(result.stop_reason, DEBUG_HINT)
    if again is not None:
        hint = f"`{again}` goes on with it; {hint}"
    return told, hint, exit_codes.PROVIDER if failed else exit_codes.NO
