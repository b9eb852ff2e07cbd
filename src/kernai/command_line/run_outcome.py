"""What came of a run: the answer, what it waits for, or why there is no answer."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from kernai.command_line import exit_codes, output
from kernai.command_line.errors import CommandError
from kernai.command_line.narrator import summary
from kernai.command_line.run_failure import failure_of
from kernai.terminal_text import printable

if TYPE_CHECKING:
    from kernai.command_line.recording import Recording
    from kernai.values.result import Result


def tell_outcome(
    result: Result, options: Namespace, seconds: float, *, recording: Recording | None = None, again: str | None = None
) -> int:
    """Writes it and gives the exit status; `CommandError` for a run without an answer that does not wait either.

    `again` is the command line that goes on with the run, where it is kept.
    """
    if not options.quiet:
        output.note(summary(result, seconds))
    if options.json:
        output.write_json(result.to_dict())
    elif result.ok:
        output.write_answer(result.text or "")
    if not result.ok and not result.pending:
        raise CommandError(*failure_of(result, recording, again)) from result.error
    if recording is not None:
        recording.check()
    if result.pending:
        _tell_pending(result, again)
        return exit_codes.WAITING
    return exit_codes.OK


def _tell_pending(result: Result, again: str | None) -> None:
    from kernai.command_line.run_store import call_line

    for call in result.pending:
        output.note(f"waits for a decision: {printable(call.call_id)} {call_line(call)}", "yellow")
    first = result.pending[0].call_id
    output.note(f"hint: {again} --approve {first}, or --refuse {first}=WHY", None)
