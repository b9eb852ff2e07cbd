"""`Gate`: what a run asks before it does something, and what a resumed run reads in its recording instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernai.agents.rules import Rules
    from kernai.errors import RunStoppedError
    from kernai.loop.cancellation import Cancellation
    from kernai.loop.run_state import Run
    from kernai.values.limits import Budget
    from kernai.values.message import Message


class Gate:
    """The answers of the present: one gate for a root run and all its sub-runs.

    `kernai.durable` gives a scope that is on record a gate of its own, which answers as recorded until the record ends.
    """

    __slots__ = ("_budget", "_cancellation")

    def __init__(self, cancellation: Cancellation, budget: Budget) -> None:
        self._cancellation = cancellation
        self._budget = budget

    def is_on_record(self) -> bool:
        """Whether what comes next is on record."""
        return False

    def is_decided(self) -> bool:
        """The same, where a run may be stopped: raises what stopped it here, if that is on record."""
        return False

    def check(self) -> None:
        """Stops the run where it is to stop."""
        if not self._cancellation.is_quiet:
            self._cancellation.check()

    def spend_call(self) -> None:
        """Before a call: stops the run where it is to stop or a limit is used up, else counts the call."""
        if not self._cancellation.is_quiet:
            self._cancellation.check()
        if self._budget.counts:
            self._budget.spend_call()

    def check_depth(self, depth: int) -> None:
        """Stops a sub-run that is too deep."""
        self._budget.check_depth(depth)

    def why_stopped(self) -> RunStoppedError:
        """Why the run is to stop."""
        return self._cancellation.error()

    def rules(self, run: Run) -> Rules:
        """By what the run's responses are judged."""
        return run.setup.rules

    def system_message(self, run: Run) -> Message:
        """The system message of the step that begins."""
        return run.setup.system_message(run.agent.instructions_read, run.context)

    def as_recorded(self, run: Run, message: Message) -> Message:
        """What the runtime tells the model: on record it is what the model has read, whatever the wording is now."""
        del run
        return message
