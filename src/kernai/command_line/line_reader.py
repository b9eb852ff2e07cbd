"""Reading lines of a conversation: from a terminal, with history and editing where `readline` is there, or a pipe."""

from __future__ import annotations

import contextlib
import io
import sys

from kernai.command_line import output
from kernai.command_line.signal_watch import watched
from kernai.interrupts import calls_out

PROMPT = "> "


class LineReader:
    """Gives one line after the other; Ctrl-C while it waits is a `KeyboardInterrupt` out of `read`."""

    def __init__(self) -> None:
        #: whether a person types
        self.interactive = output.is_terminal(sys.stdin)
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # a wrong byte is no reason to end a conversation
        self._edits = self.interactive and output.is_terminal(sys.stdout)
        if self._edits:
            with contextlib.suppress(ImportError):  # not on every system
                import readline  # noqa: F401 - from now on `input` edits lines and keeps their history

    def read(self) -> str | None:
        """The next line, without its end; None when there are no more."""
        try:
            with watched():
                return self._line()
        except KeyboardInterrupt:
            if self.interactive:
                sys.stderr.write("\n")
            raise

    @calls_out
    def _line(self) -> str | None:
        return self._typed()  # of its own, for it is what Ctrl-C may break off

    def _typed(self) -> str | None:
        if self._edits:
            try:
                return input(PROMPT)
            except EOFError:
                sys.stderr.write("\n")
                return None
        if self.interactive:
            sys.stderr.write(PROMPT)
            sys.stderr.flush()
        line = sys.stdin.readline() if sys.stdin is not None else ""
        return line.rstrip("\r\n") if line else None
