"""What both kinds of streams share: the result, and the readers behind `text()`, the answer's text as it arrives, and
`partial()`, the complete parts of a typed answer.

The readers derive everything from the root's events, the same under threads and asyncio. Nothing of it is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Generic

from kernai._util.api import NotCopied
from kernai.blocks.grammar import ASCII_SPACE
from kernai.errors import KernaiError
from kernai.events import (
    AnswerRejectedRow,
    BlockContentRow,
    BlockStartRow,
    Event,
    MessagesSentRow,
    ModelRestartedRow,
    ResultRow,
)
from kernai.values.result import Output_co, Result, StopReason

if TYPE_CHECKING:
    from kernai.inputs.answer_type import AnswerType
    from kernai.jsonio.json_pieces import PartialJson
    from kernai.loop.run_state import Run

TAKEN_BACK: Final = ""
"""Says that the pieces so far are not the answer: the model is called again, or the answer was rejected."""

#: the channels of the streams whose runs the current code belongs to: such code must not wait for these runs
INSIDE: ContextVar[tuple[Any, ...]] = ContextVar("kernai_inside_streams", default=())


def inside(channel: Any) -> tuple[Any, ...]:
    """The value of `INSIDE` for a run that begins here, without runs that have ended: a task may outlive its run."""
    return (*[one for one in INSIDE.get() if not one.ended], channel)


class EventStream(NotCopied, Generic[Output_co]):
    """The base of both kinds of streams."""

    _HOLDS = "a run"
    TAKEN_BACK: Final = TAKEN_BACK
    _run: Run | None = None  # None until it has begun

    @property
    def result(self) -> Result[Output_co]:
        """The run's result. Raises `KernaiError` before the run has ended: iterate to the end, or close the stream."""
        result = None if self._run is None else self._run.result
        if result is None:
            raise KernaiError("the run has not ended: iterate over the stream to its end, or close it")
        return result


#: rows after which the run continues, so the response's final was not the answer
_CONTINUES = (MessagesSentRow, ModelRestartedRow, AnswerRejectedRow)


class AnswerText:
    """Turns the events of a run into pieces of its answer.

    The content of a final is yielded as it arrives, without surrounding white space. Prose is only known to be the
    answer when the run ends, so it is yielded then.
    """

    def __init__(self) -> None:
        self.given: list[str] = []  # the pieces that were not taken back
        self._begin_response()

    def _begin_response(self) -> None:
        self._space = ""  # white space held back, in case it ends the answer
        self._final: int | None = None  # the number of the response's block that is the answer
        self._is_set_aside = False

    def take(self, event: Event) -> Iterator[str]:
        if event.scope:
            return
        row = event.row
        if isinstance(row, BlockStartRow):
            if row.type_ == "final" and self._final is None and not self._is_set_aside:
                self._final = row.block
            elif row.type_ == "command":
                # the model has not seen the results yet; a native call may have the number of a final in the prose
                self._final, self._is_set_aside = None, True
        elif isinstance(row, BlockContentRow) and row.block == self._final:
            yield from self._emit(row.text)
        elif isinstance(row, _CONTINUES):
            yield from self._take_back()
        elif isinstance(row, ResultRow):
            text = row.text
            if text is None or text != "".join(self.given):
                yield from self._take_back()
                if text:
                    self.given.append(text)
                    yield text

    def _emit(self, text: str) -> Iterator[str]:
        if not self.given:
            text = text.lstrip(ASCII_SPACE)
        text = self._space + text
        shown = text.rstrip(ASCII_SPACE)
        self._space = text[len(shown):]
        if shown:
            self.given.append(shown)
            yield shown

    def _take_back(self) -> Iterator[str]:
        if self.given:
            yield TAKEN_BACK
        self.given.clear()
        self._begin_response()


class PartialAnswer:
    """Turns the events of a run into the answer's JSON data so far, whenever more of it is complete."""

    def __init__(self, answer_type: AnswerType | None) -> None:
        self._text = AnswerText()
        self._type = None if answer_type is None or answer_type.is_text else answer_type
        self._json: PartialJson | None = None
        self._said = ""  # of a text answer: joining all pieces for each one would take quadratic time

    def take(self, event: Event) -> Iterator[Any]:
        """Yields the complete part of the answer after an event, if it has grown."""
        for piece in self._text.take(event):
            if piece == TAKEN_BACK:
                self._json, self._said = None, ""
            elif self._type is None:
                self._said += piece
                yield self._said
            else:
                yield from self._read(piece)
        row = event.row
        if self._type is None or not isinstance(row, ResultRow) or event.scope:
            return
        yield from self._read(" ")  # which ends a number
        if row.stop_reason == StopReason.FINAL:
            whole, parser = self._type.data_of(str(row.text)), self._json
            if parser is None or not parser.completed or parser.value() != whole:
                yield whole  # the text was repaired or is not JSON, so the parts yielded so far differ

    def _read(self, piece: str) -> Iterator[Any]:
        parser = self._json
        if parser is None:
            rest = _after_fence("".join(self._text.given))
            if rest is None:
                return
            from kernai.jsonio.json_pieces import PartialJson  # few streamed answers are JSON

            parser, piece = PartialJson(), rest
            self._json = parser
        before = parser.completed
        parser.push(piece)
        if parser.completed > before:
            yield parser.value()


def _after_fence(text: str) -> str | None:
    """The text after the opening line of a code fence; without a fence, all of it. None while that is undecided."""
    if text.startswith("```"):
        return text.partition("\n")[2] if "\n" in text else None
    return None if "```".startswith(text) else text
