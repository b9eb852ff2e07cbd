"""A run as plain text while it is running: one line per event, and nothing that moves the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import kernai
from kernai.terminal_text import one_line, printable
from kit.definition import Definition
from kit.event_lines import VERDICT_WIDTH, calls_line, count, dollars, line_of, place_of
from kit.provider_choice import Choice
from kit.run import Run

LABEL = 9


def say(text: str = "") -> None:
    """Print text of whatever origin, at once."""
    print(printable(text), flush=True)


class PlainView:
    """Prints a run as it happens; as `on_event` it takes one event after the other."""

    def __init__(self) -> None:
        self._place = ""

    def begin(self, definition: Definition, choice: Choice) -> None:
        """Say what is about to run, and on which model."""
        say(f"{definition.name}: {definition.description}")
        for line in choice.lines_of(definition.real):
            say(line)

    def __call__(self, event: kernai.Event) -> None:
        """Print one event, under a heading when its step is new."""
        line = line_of(event)
        if line is None:
            return
        if self._place != place_of(event):
            self._place = place_of(event)
            say(f"\n{self._place}")
        say(f"    {line[0]:{LABEL}} {line[1]}")

    def live(self) -> AbstractContextManager[None]:
        """Nothing is drawn that would have to be taken away again."""
        return nullcontext()

    def report(self, run: Run, files: Sequence[str]) -> None:
        """Print the outcome; the last line is the verdict."""
        outcome, result = run.outcome, run.outcome.result
        protocols = calls_line(outcome, "protocol")
        say("\nanswer:")
        say("\n".join(f"    {line}" for line in printable(outcome.text or "none").splitlines()))
        say(
            f"\nstop: {result.stop_reason}; steps: {result.steps}; "
            f"skill calls: {calls_line(outcome, 'skill') or 'none'}; "
            f"{f'protocol calls: {protocols}; ' if protocols else ''}"
            f"tokens: {count(result.usage.prompt_tokens)} in, {count(result.usage.completion_tokens)} out; "
            f"cost: {dollars(result.usage.cost)}; {run.seconds:.2f} s"
        )
        for line in [*(one_line(f"note: {note}", VERDICT_WIDTH) for note in run.notes), *files]:
            say(line)
        for fault in run.faults:
            say(one_line(f"FAILED: {fault}", VERDICT_WIDTH))
        if run.passed:
            say(run.praise)
