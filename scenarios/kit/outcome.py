"""A run's outcome, and what is expected of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import kernai
from kernai.errors import error_text


class UsageError(Exception):
    """What the user of the command line did wrong, or has to install, in one line."""


class ExpectationError(Exception):
    """Raised by an expectation that can say in what way the run was not good."""


@dataclass(frozen=True)
class Outcome:
    """What an expectation judges: the run's result and every event it recorded, sub-runs' too."""

    result: kernai.Result
    events: Sequence[kernai.Event]

    @property
    def text(self) -> str:
        """The answer, empty when there is none."""
        return self.result.text or ""

    def of(self, event_type: str) -> list[kernai.Event]:
        """The events of one type, in order."""
        return [event for event in self.events if event.type == event_type]

    def results_of(self, skill: str) -> list[Any]:
        """What the calls of one skill returned, in order."""
        return [event.data["result"] for event in self.of("skill_result") if event.data["skill"] == skill]

    def errors_of(self, skill: str) -> list[str]:
        """The errors that calls of one skill were answered by, in order."""
        return [event.data["error"] for event in self.of("skill_error") if event.data["skill"] == skill]

    def task_results(self) -> dict[str, Any]:
        """The result of each workflow task by its id, a failed one's as ``error: MESSAGE``; a later workflow's go
        before an earlier one's.
        """
        found: dict[str, Any] = {}
        for event in self.of("workflow_complete"):
            found.update(event.data["results"])
        return found

    def protocol_results(self, protocol: str | None = None) -> list[Any]:
        """What the protocols answered, in order; with a name, that one's answers alone."""
        events = self.of("protocol_result")
        return [event.data["result"] for event in events if protocol in (None, event.data["protocol"])]


Check = Callable[[Outcome], object]


@dataclass(frozen=True)
class Verdict:
    """How one expectation was judged. `holds` is None where there was nothing to judge."""

    name: str
    holds: bool | None
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As a log has it."""
        return {"name": self.name, "holds": self.holds, "reason": self.reason}

    def __str__(self) -> str:
        return f"this does not hold: {self.name}" + (f"; {self.reason}" if self.reason else "")


@dataclass(frozen=True)
class Expectation:
    """One thing a good run shows: `check` is true of its outcome. `reason` says what is wrong when it is not."""

    name: str
    check: Check
    reason: str = ""

    def judge(self, outcome: Outcome) -> Verdict:
        """Whether it holds. An expectation that raises does not hold, and its error is the reason."""
        try:
            found = self.check(outcome)
            holds = bool(found)
        except ExpectationError as error:
            return Verdict(self.name, holds=False, reason=str(error) or self.reason)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a mistake in the check is reported as any other fault
            return Verdict(self.name, holds=False, reason=f"it raised {named_error(error)}")
        forgotten = "it returned None, where an expectation returns True or False" if found is None else ""
        return Verdict(self.name, holds, "" if holds else self.reason or forgotten)


def named_error(error: BaseException) -> str:
    """The class of an exception and what it says."""
    kind, text = type(error).__name__, error_text(error)
    return text if text.startswith(kind) else f"{kind}: {text}"


def name_of(check: Check, number: int) -> str:
    """What to call an expectation: its function's name as words; a lambda has none, so its place."""
    name = getattr(check, "__name__", "<lambda>")
    if name != "<lambda>":
        return str(name).replace("_", " ").strip()
    code = getattr(check, "__code__", None)
    return f"expectation {number}" + (f" (line {code.co_firstlineno})" if code is not None else "")


def judged(outcome: Outcome, expectations: Sequence[Expectation]) -> list[Verdict]:
    """Every expectation's verdict; without an answer there is nothing to judge."""
    if outcome.result.stop_reason != kernai.StopReason.FINAL:
        return [Verdict(one.name, None, "the run has no answer") for one in expectations]
    return [one.judge(outcome) for one in expectations]
