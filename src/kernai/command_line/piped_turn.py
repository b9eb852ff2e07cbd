"""One turn of a conversation whose output is read by a program: the answer alone on stdout, the rest on stderr.

What a model says is an answer when the turn is over, and not before: prose may stand beside a call, and an answer may
be set aside. So nothing is on stdout until then.
"""

from __future__ import annotations

import sys

from kernai.command_line import output
from kernai.command_line.narrator import Narrator
from kernai.events import (
    BlockContentRow,
    BlockEndRow,
    BlockIncompleteRow,
    BlocksParsedRow,
    BlockStartRow,
    DialectCallRow,
    Event,
    FinalRow,
    ForgedBlockRow,
    JsonRow,
    LlmResponseRow,
    ModelRestartedRow,
    PlanRejectedRow,
    PlanRow,
    ResultRow,
    TextChunkRow,
)
from kernai.values.result import StopReason

_WHITE_SPACE = " \t\r\n"
#: what may come between the last words of an answer and the end of its turn
_UNDECIDED = (
    BlockEndRow, LlmResponseRow, BlocksParsedRow, PlanRow, JsonRow, PlanRejectedRow, ForgedBlockRow, BlockIncompleteRow,
    FinalRow, DialectCallRow,
)


class PipedTurn:
    """Takes the events of one run, as `TurnView` does."""

    def __init__(self, *, verbose: bool = False, quiet: bool = False) -> None:
        self._narrator = None if quiet else Narrator(steps=False, verbose=verbose)
        # as it is now: while the agent's code runs, what that prints is redirected
        self._out = sys.stdout
        self._block = ""
        #: paragraphs of the response that comes, and whether each is its `final` block
        self._said: list[tuple[bool, str]] = []
        #: whether there was an answer
        self.spoke = False

    def show(self, event: Event) -> None:
        """One event."""
        if not event.scope:
            self._take(event)
        if self._narrator is not None:
            self._narrator(event)

    def end_line(self) -> None:
        """Whatever comes next stands on a line of its own: here it always does."""

    def _take(self, event: Event) -> None:
        row = event.row
        if isinstance(row, TextChunkRow):
            self._hear(row.text, final=False)
        elif isinstance(row, BlockStartRow):
            self._block = row.type_
            self._said.append((self._block == "final", ""))
        elif isinstance(row, BlockContentRow):
            if self._block == "final":
                self._hear(row.text, final=True)
        elif isinstance(row, ModelRestartedRow):
            self._said.clear()
        elif isinstance(row, ResultRow):
            self._end(row)
        elif not isinstance(row, _UNDECIDED):
            self._tell([text for _, text in self._said])

    def _hear(self, text: str, *, final: bool) -> None:
        if not self._said or self._said[-1][0] != final:
            self._said.append((final, ""))
        self._said[-1] = (final, self._said[-1][1] + text)

    def _end(self, result: ResultRow) -> None:
        if result.stop_reason != StopReason.FINAL:
            self._tell([text for _, text in self._said])
            return
        # the answer is the first final block; without one, all that was said
        first = next((at for at, (final, _) in enumerate(self._said) if final), None)
        beside = [] if first is None else self._said[:first] + self._said[first + 1 :]
        self._tell([text for _, text in beside])
        answer = str(result.text).strip(_WHITE_SPACE)
        if answer:
            self.spoke = True
            self._out.write(answer + "\n")
            self._out.flush()

    def _tell(self, paragraphs: list[str]) -> None:
        self._said.clear()
        if self._narrator is not None:
            for paragraph in paragraphs:
                if text := paragraph.strip(_WHITE_SPACE):
                    output.note(text)
