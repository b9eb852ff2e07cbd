"""`TapeProvider` replays a tape, and reports where and how a run diverges from it.

A provider does not receive the scope, so it finds its place only from the messages. A conversation fits if the first
user message ends with its `input` (a task's message begins with the results that it depends on), and the model's turns
so far are the turns that were already played from it. If several fit, the provider takes the one with exactly the same
questions, else the one with the longest input, else the first on the tape.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import kernai
from kernai._util.redaction import one_line
from kit.tape import Conversation, Tape, Turn

PIECE = 7  # characters of a streamed piece; few, so that tags arrive in parts, as they do from a vendor
CHARACTERS_A_TOKEN = 4
BEFORE = 20  # characters quoted before the first difference
SHOWN = 120  # characters of a text that a message quotes
COMPARED = 2000  # characters of a text that are compared in the search for the closest input


class TapeProvider(kernai.Provider):
    """Replays a tape for one run and its sub-runs, streaming each turn in small pieces. Thread-safe.

    If the tape has no token counts, they are estimated as four characters per token, so that the figures of a run
    behave as with a vendor.
    """

    def __init__(self, tape: Tape, name: str = "the tape", path: Path | None = None) -> None:
        self.tape = tape
        self.name = name
        self.path = path
        self._skips = False
        self._played = [0] * len(tape.conversations)
        self._lock = threading.Lock()
        self._notes: dict[int, list[str]] = {}  # by the index of the conversation on the tape
        self._left: list[str] = []

    def skip_to_recorded(self) -> None:
        """Lets a resumed run continue after the turns that it already has, whichever provider played these."""
        self._skips = True

    @property
    def notes(self) -> list[str]:
        """The places where the run's questions differ from the recorded ones, but the tape had an answer."""
        return [f"{self.name}, {note}" for number in sorted(self._notes) for note in self._notes[number]]

    @property
    def left(self) -> list[str]:
        """The places where the run asked for a turn that the tape does not have."""
        return list(self._left)

    @property
    def unplayed(self) -> list[str]:
        """The conversations that were not played to their end."""
        pairs = zip(self.tape.conversations, self._played, strict=True)
        return [
            f"{one.name} of {self.name} was played up to turn {played} of {len(one.turns)}"
            for one, played in pairs if played < len(one.turns)
        ]

    def call(
        self,
        messages: Sequence[kernai.Message],
        model: kernai.Model,
        generation: kernai.GenerationOptions,
        on_chunk: Callable[[str], object],
    ) -> kernai.LlmResponse:
        """The next turn of the conversation that fits. Raises `ProviderError` if there is none, or it is an error."""
        del model, generation
        turn = self._next_turn(messages)
        if turn.error is not None:
            retryable = bool(turn.error.get("retryable", False))
            raise kernai.ProviderError(turn.error["message"], retryable=retryable, vendor="tape")
        for start in range(0, len(turn.content), PIECE):
            on_chunk(turn.content[start : start + PIECE])
        sent = sum(len(message.text) for message in messages)
        return kernai.LlmResponse(
            turn.content,
            prompt_tokens=sent // CHARACTERS_A_TOKEN if turn.prompt_tokens is None else turn.prompt_tokens,
            completion_tokens=(
                len(turn.content) // CHARACTERS_A_TOKEN if turn.completion_tokens is None else turn.completion_tokens
            ),
            finish_reason="stop",
            metadata={} if turn.is_counted else {"estimated": True},
        )

    def _next_turn(self, messages: Sequence[kernai.Message]) -> Turn:
        request = _Request(messages)
        with self._lock:
            if self._skips:
                self._skip(request)
            fitting = [number for number in range(len(self._played)) if self._fits(number, request)]
            if not fitting:
                message = f"the run has diverged from {self.name}: {self._why_none(request)}"
                self._left.append(message)
                raise kernai.ProviderError(message, vendor="tape")
            number = max(fitting, key=lambda one: self._closeness(one, request))
            conversation, at = self.tape.conversations[number], self._played[number]
            self._played[number] += 1
            turn = conversation.turns[at]
            if turn.asked is not None and turn.asked != request.asked:
                note = f"{conversation.name}, turn {at + 1}: {_difference(turn.asked, request.asked)}"
                self._notes.setdefault(number, []).append(note)
            return turn

    def _fits(self, number: int, request: _Request) -> bool:
        conversation, played = self.tape.conversations[number], self._played[number]
        return (
            played < len(conversation.turns)
            and request.first.endswith(conversation.input)
            and request.answers == _answers(conversation.turns[:played])
        )

    def _skip(self, request: _Request) -> None:
        for number, one in enumerate(self.tape.conversations):
            answered = len(_answers(one.turns[: self._played[number]]))
            if answered < len(request.answers) and request.first.endswith(one.input):
                ends = range(self._played[number] + 1, len(one.turns) + 1)
                known = (end for end in ends if _answers(one.turns[:end]) == request.answers)
                self._played[number] = next(known, self._played[number])

    def _closeness(self, number: int, request: _Request) -> tuple[bool, int, int]:
        conversation = self.tape.conversations[number]
        same = conversation.turns[self._played[number]].asked == request.asked
        return same, len(conversation.input), -number

    def _why_none(self, request: _Request) -> str:
        """Where and how the run has diverged from the tape."""
        conversations = self.tape.conversations
        begun = [number for number, one in enumerate(conversations) if request.first.endswith(one.input)]
        if not begun:
            return f"no conversation begins with {one_line(request.first, SHOWN)!r}; {_closest(conversations, request)}"
        same = [one for one in begun if request.answers == _answers(conversations[one].turns)]
        if same:
            ended = conversations[same[0]]
            before = "".join(f"; it began to differ at {note}" for note in self._notes.get(same[0], [])[:1])
            return (
                f"{ended.name} ends after turn {len(ended.turns)}, and the run asks for another, "
                f"with {one_line(' '.join(request.asked), SHOWN)!r}{before}"
            )
        number = max(begun, key=lambda one: _agreed(conversations[one], request))
        conversation = conversations[number]
        at = len(request.answers) + 1
        if _agreed(conversation, request) == len(request.answers):
            return f"{conversation.name}, turn {at}: it was played already, and the run asks for it once more"
        return f"{conversation.name}, turn {at}: what the model said before is not what the tape has"


class _Request:
    """The messages of a call, in the form in which a tape has them."""

    def __init__(self, messages: Sequence[kernai.Message]) -> None:
        turns = [message for message in messages if message.role != "system"]
        self.first = turns[0].text if turns else ""
        self.answers = [message.text for message in turns if message.role == "assistant"]
        self.asked = asked_last([(message.role, message.text) for message in turns])


def asked_last(messages: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The texts of the user messages after the model's last turn; `messages` are pairs of role and text."""
    last = max((at for at, (role, _) in enumerate(messages) if role == "assistant"), default=-1)
    return tuple(text for role, text in messages[last + 1 :] if role == "user")


def _answers(turns: Sequence[Turn]) -> list[str]:
    return [turn.content for turn in turns if turn.error is None]


def _agreed(conversation: Conversation, request: _Request) -> int:
    """How many of the model's turns so far are the turns of a conversation."""
    pairs = zip(_answers(conversation.turns), request.answers, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), len(request.answers))


def _closest(conversations: Sequence[Conversation], request: _Request) -> str:
    def likeness(one: Conversation) -> float:
        end = request.first[-COMPARED:]
        return SequenceMatcher(None, one.input[-COMPARED:], end, autojunk=False).quick_ratio()

    closest = max(conversations, key=likeness)
    return f"the closest is {closest.name} with {one_line(closest.input, SHOWN)!r}"


def _difference(then: Sequence[str], now: Sequence[str]) -> str:
    """The first difference between the recorded and the current questions."""
    for one, other in zip(then, now, strict=False):
        if one != other:
            same = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
            start = max((min(len(one), len(other)) if same is None else same) - BEFORE, 0)
            return f"asked {_from(other, start)!r}, and {_from(one, start)!r} when the tape was made"
    return f"asked by {len(now)} messages, and by {len(then)} when the tape was made"


def _from(text: str, start: int) -> str:
    """A text from a place on, cut to a length that a message can quote."""
    return ("..." if start else "") + one_line(text[start : start + SHOWN], SHOWN)


def estimated(metadata: Any) -> bool:
    """Whether a response's token counts are this provider's estimate, by the response's metadata."""
    return isinstance(metadata, dict) and metadata.get("estimated") is True
