"""`Questions`: what a conversation asks its user before it can go on, one call after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from kernai.command_line import output
from kernai.command_line.run_store import call_line, login_name

if TYPE_CHECKING:
    from kernai.values.pending_call import PendingCall

_HOW: Mapping[str, tuple[str, str]] = {
    "approvals": ("waits for your decision", "y or yes approves, n or no refuses, any other text refuses and says why"),
    "in_flight": (
        "had begun when the program ended, and may have taken effect",
        "skip: the model reads that the outcome is unknown; retry: it is called again",
    ),
}


class Questions:
    """`what` is asked of each call: whether it is approved, or what becomes of one that was under way."""

    def __init__(self, what: Literal["approvals", "in_flight"], calls: Sequence[PendingCall]) -> None:
        self._what = what
        self._open = list(calls)
        self._answers: dict[str, Any] = {}

    def ask(self) -> None:
        """Tells what is to be decided next."""
        told, how = _HOW[self._what]
        output.note(f"{call_line(self._open[0])} {told}", "yellow")
        output.note(f"({how})")

    def take(self, text: str) -> bool:
        """One line of the user's. Whether everything is decided now."""
        answer = self._read(text)
        if answer is not None:
            self._answers[self._open.pop(0).call_id] = answer
        return not self._open

    def given(self) -> dict[str, Any]:
        """The decisions, as `resume` takes them."""
        answers = self._answers
        return {self._what: answers if self._what == "approvals" else lambda call: answers[call.call_id]}

    def _read(self, text: str) -> Any:
        word = text.strip().lower()
        if self._what == "in_flight":
            return word if word in ("skip", "retry") else None
        if not word:
            return None
        from kernai.durable.approvals import Decision

        said = {"y": True, "yes": True, "n": False, "no": False}.get(word, text.strip())
        return Decision(said, by=login_name())
