"""`StreamParser`: blocks and prose out of a text that comes in pieces.

Theory of operation. The text stands outside of all blocks or in one, and a candidate is being held or none is (a `<...`
that may become a tag, see `kernai.grammar`). Nearly every piece of a stream finds no candidate held and has no `<` in it:
`push` gives it to one callable, chosen when the state last changed, and that is all. Where there is a `<`, whole tags are
searched for first; then only the last `<` can be a tag cut off. A held candidate is kept in pieces and goes through the
automaton piece by piece, so that one character costs the same however much is held.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from kernai.block import Block
from kernai.grammar import CUT_OFF_OPENING, Opening, Row, advance, find_close, find_opening, read_opening

EVENTS = ("text_chunk", "block_start", "block_content", "block_complete", "block_incomplete")

Listener = Callable[[Any], object]

# Takes prose that nobody listens to: does nothing, at the speed of C, and like every other way takes a `str` only.
_drop: Listener = "".removeprefix

_UNREAD: Row = {}
"""Stands for a candidate's row when what is held is the rest of a piece, unread because a listener raised."""


class StreamParser:
    """Takes a text apart as it comes and tells listeners what it finds:

    - `text_chunk`: a `str`, prose; `block_content`: a `str`, some of the open block's content. Never empty, and told as
      soon as it cannot become part of a tag any more.
    - `block_start`: `{"type": str, "name": str | None}`; `block_complete`: the `Block`.
    - `block_incomplete`: the `Block` that is open at the end of the text, with what there is of its content.

    It finds what `kernai.parse` finds, however the text is cut into pieces, in time linear in the length of the text and
    memory linear in the length of the open block.

    An exception from a listener leaves `push` or `flush`. Nothing is lost by it: listeners are still told what the same
    tag means to them, and the rest of the piece is read with the next `push` or `flush`. A listener must not push.
    """

    def __init__(self) -> None:
        self._listeners: dict[str, Listener | None] = dict.fromkeys(EVENTS)
        self._prose: Listener = _drop
        self._row: Row | None = None  # where the held candidate stands in the automaton; `None` without one
        self._held: list[str] = []
        # The open block; its content is in `_content` once it goes beyond the piece that opened it.
        self._opening: Opening | None = None
        self._level = 0
        self._content: io.StringIO | None = None
        # What follows from the above.
        self._cut_off = CUT_OFF_OPENING
        self._emit = self._prose

    def on(self, event: str, fn: Listener) -> StreamParser:
        """Call `fn` with the data of every `event`, after the listeners that are there already. Returns the parser.

        Raises `ValueError` for an event that does not exist, `TypeError` for an `fn` that cannot be called.
        """
        if event not in EVENTS:
            raise ValueError(f"event must be one of {', '.join(EVENTS)}, got {event!r}")
        if not callable(fn):
            raise TypeError(f"fn must be a function of the event's data, got {type(fn).__name__}")
        earlier = self._listeners[event]
        self._listeners[event] = fn if earlier is None else _both(earlier, fn)
        self._prose = self._listeners["text_chunk"] or _drop
        self._choose_emit()
        return self

    def push(self, chunk: str) -> None:
        """Read the next piece of the text; it may be empty. Raises `TypeError` for anything but a `str`."""
        try:
            if self._row is None and "<" not in chunk:
                if chunk:
                    self._emit(chunk)
            elif self._row is None:
                self._scan(chunk)
            else:
                self._resume(chunk)
        except TypeError:
            if isinstance(chunk, str):
                raise  # a listener's own
            raise TypeError(f"chunk must be a str, got {type(chunk).__name__}; decode bytes incrementally") from None

    def flush(self) -> None:
        """End the text: a tag cut off is prose or content, an open block is told as `block_incomplete`.

        After this the parser is ready for a new text.
        """
        if self._row is _UNREAD:
            self._resume("")
        rest = self._take_held()
        try:
            if rest:
                self._emit(rest)
        finally:
            if self._opening is not None:
                opening = self._opening
                self._tell("block_incomplete", Block(opening.type, opening.name, self._leave()))

    # ----------------------------------------------------------------------------------------- reading

    def _scan(self, text: str) -> None:
        """Read text with a `<` in it while nothing is held."""
        at = self._read_tags(text) if ">" in text else 0
        if at == len(text):
            return
        cut = text.rfind("<", at)
        if cut >= 0:
            row = advance(self._cut_off, text[cut + 1 :])
            if row is not None:
                self._row = row
                self._held.append(text[cut:])
                if at < cut:
                    self._emit(text[at:cut])
                return
        self._emit(text[at:] if at else text)

    def _read_tags(self, text: str) -> int:
        """Deal with the whole tags of a text; return where the last one ends."""
        at = 0
        try:
            while True:
                opening = self._opening
                if opening is None:
                    found = find_opening(text, at)
                    if found is None:
                        break
                    start, end, opening = found
                    before, at = text[at:start], end
                    self._enter(before, opening)
                else:
                    start, end, self._level = find_close(opening.inside, text, at, self._level)
                    if self._level:
                        break
                    before, at = text[at:start], end
                    self._complete(before)
        except BaseException:
            self._row = _UNREAD
            self._held.append(text[at:])
            raise
        finally:
            if self._opening is not None and self._content is None:
                self._content = io.StringIO()
                self._choose_emit()
        return at

    def _resume(self, chunk: str) -> None:
        """Read a piece that the row of the held candidate does not know."""
        row = self._row
        reached = row.get(chunk)
        if reached is not None:
            self._row = reached
            self._held.append(chunk)
            return
        if ">" in chunk:
            end=chunk.find(">")+1
            candidate = "".join(self._held)+chunk[:end]
            rest = chunk[end:]
            if self._opening is None:
                opening = read_opening(candidate)
                if opening is not None:
                    self._held.clear()
                    self._row = None
                    self._enter("", opening)
                    if self._opening is not None and self._content is None:
                        self._content = io.StringIO()
                        self._choose_emit()
                    if rest: self.push(rest)
                    return
            elif candidate=="</block>" and self._level==1:
                    self._held.clear()
                    self._row = None
                    self._complete("")
                    if rest: self.push(rest)
                    return
        if row is _UNREAD or ">" in chunk or "<" in chunk:  # the candidate ends, as a tag or not
            self._scan(self._take_held() + chunk)
            return
        self._row = advance(row, chunk)
        self._held.append(chunk)
        if self._row is None:
            self._emit(self._take_held())

    def _take_held(self) -> str:
        held = "".join(self._held)
        self._held.clear()
        self._row = None
        return held

    # ------------------------------------------------------------------------------- what a tag means

    def _enter(self, prose: str, opening: Opening) -> None:
        """Deal with an opening tag and the prose before it."""
        if opening.inside is not None:
            self._opening = opening
            self._cut_off = opening.inside.cut_off
            self._level = 1
        try:
            if prose:
                self._prose(prose)
        finally:
            try:
                tell = self._listeners["block_start"]
                if tell is not None:
                    tell({"type": opening.type, "name": opening.name})
            finally:
                if opening.inside is None:
                    self._tell("block_complete", Block(opening.type, opening.name))

    def _complete(self, rest: str) -> None:
        """Deal with a close and the content before it."""
        opening = self._opening
        content = self._leave() + rest
        try:
            if rest:
                tell = self._listeners["block_content"]
                if tell is not None:
                    tell(rest)
        finally:
            tell = self._listeners["block_complete"]
            if tell is not None:
                tell(Block(opening.type, opening.name, content))

    def _leave(self) -> str:
        """Forget the open block and return what is stored of its content."""
        self._opening = None
        self._cut_off = CUT_OFF_OPENING
        content = ""
        if self._content is not None:
            content = self._content.getvalue()
            self._content = None
            self._emit = self._prose
        return content

    def _tell(self, event: str, data: object) -> None:
        listener = self._listeners[event]
        if listener is not None:
            listener(data)

    def _choose_emit(self) -> None:
        """Choose what takes the text that turns out to be prose, or content of the open block."""
        if self._content is None:
            self._emit = self._prose
            return
        listener = self._listeners["block_content"]
        self._emit = self._content.write if listener is None else _both(self._content.write, listener)


def _both(first: Listener, second: Listener) -> Listener:
    """One listener made of two; the second is called also when the first raises."""

    def tell(data: Any) -> None:
        try:
            first(data)
        finally:
            second(data)

    return tell
