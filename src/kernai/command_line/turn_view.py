"""One turn of a conversation on a terminal, shown while it comes: prose and answer as text, calls as dim lines."""

from __future__ import annotations

import sys

from kernai.command_line import output
from kernai.command_line.narrator import Narrator
from kernai.events import BlockContentRow, BlocksParsedRow, BlockStartRow, Event, ModelRestartedRow, TextChunkRow
from kernai.terminal_text import printable

_WHITE_SPACE = " \t\r\n"


class TurnView:
    """Takes the events of one run. Block markup is not shown; white space around a paragraph is left out."""

    def __init__(self, *, verbose: bool = False, quiet: bool = False) -> None:
        self._narrator = None if quiet else Narrator(steps=False, verbose=verbose, before=self.end_line)
        # as it is now: while the agent's code runs, what that prints is redirected
        self._out = sys.stdout
        self._block = ""
        self._held = ""
        self._in_line = False
        #: whether anything of the model was shown
        self.spoke = False

    def show(self, event: Event) -> None:
        """One event."""
        if not event.scope:
            self._show_text(event)
        if self._narrator is not None:
            self._narrator(event)

    def end_line(self) -> None:
        """Whatever comes next stands on a line of its own."""
        self._held = ""
        if self._in_line:
            self._in_line = False
            self._out.write("\n")
            self._out.flush()

    def _show_text(self, event: Event) -> None:
        row = event.row
        if isinstance(row, TextChunkRow):
            self._say(row.text)
        elif isinstance(row, BlockStartRow):
            self._block = row.type_
            self.end_line()
        elif isinstance(row, BlockContentRow):
            if self._block == "final":
                self._say(row.text)
        elif isinstance(row, (BlocksParsedRow, ModelRestartedRow)):
            self.end_line()
            if isinstance(row, BlocksParsedRow):
                self._tell_set_aside(row)

    def _tell_set_aside(self, parsed: BlocksParsedRow) -> None:
        types = [block["type"] for block in parsed.fields()]
        if "final" in types and "command" in types and self._narrator is not None:
            output.note("  the model answered before it had seen the results; that answer is set aside", "yellow")

    def _say(self, text: str) -> None:
        """Text without the white space that ends it, which is held back until more comes."""
        text = self._held + text
        if not self._in_line:
            text = text.lstrip(_WHITE_SPACE)
        shown = text.rstrip(_WHITE_SPACE)
        self._held = text[len(shown):]
        if shown:
            self.spoke = self._in_line = True
            self._out.write(printable(shown))
            self._out.flush()
