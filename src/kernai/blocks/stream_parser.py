"""`StreamParser`: blocks and prose out of a text that comes in pieces.

Theory of operation. The text stands outside of all blocks or in one; besides, a candidate may be held, a `<...` that
can still become a tag (see `grammar`). Nearly every piece of a stream finds none held and has no `<` in it:
`push` hands it to the one callable that was chosen when the state last changed. Where there is a `<`, whole tags are
searched for first; after those only the last `<` can be a tag that is cut off. A held candidate is kept in pieces and
taken through the automaton piece by piece, so that the next character costs the same however much is held.

A JSON value at the start of a block's content hides the tags in it (see `json_pieces`); it is examined only once a tag
arrives. If the value is open there, it is read along with the content, and a tag that would end the block is held with
all that follows, until the value ends (the tag was content) or breaks (it was a tag).

Whatever listeners are told, the state counts it as told before they are: one that raises leaves everything in order.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, Literal

from kernai.blocks.block import Block
from kernai.blocks.grammar import (
    Opening,
    advance,
    cut_off_outside,
    find_change,
    find_close,
    find_opening,
    level_change,
    read_opening,
)
from kernai.jsonio.json_pieces import BROKEN, JSON_BEGINS, JsonValue, may_end_in_a_string

EVENTS = ("text_chunk", "block_start", "block_content", "block_complete", "block_incomplete")

Listener = Callable[[Any], object]

# Takes prose that nobody listens to. It does nothing, as fast as can be, and like the others accepts only a `str`.
_drop: Listener = "".removeprefix


class StreamParser:
    """Takes a text apart as it comes and tells listeners what it finds:

    - `text_chunk`: a `str`, prose; `block_content`: a `str`, some of the open block's content. Never empty, and told as
      soon as it cannot become part of a tag any more.
    - `block_start`: `{"type": str, "name": str | None}`; `block_complete`: the `Block`.
    - `block_incomplete`: the `Block` that is open at the end of the text, with what there is of its content.

    It finds what `kernai.parse` finds, however the text is cut, in time linear in the length of the text and memory
    linear in the length of the open block.

    An exception from a listener leaves `push` or `flush`, and nothing is lost or told twice: what is left of the piece
    is read with the next `push` or `flush`. A listener must not push, nor flush.
    """

    # No __slots__: Python 3.11 reads an attribute faster from an ordinary object, and `push` does little else.

    def __init__(self) -> None:
        self._listeners: dict[str, Listener | None] = dict.fromkeys(EVENTS)
        self._opening: Opening | None = None  # the open block,
        self._level = 0  # how deep the text stands in it,
        self._content: io.StringIO | None = None  # its content, if it goes on beyond the piece that opened it,
        self._value: JsonValue | Literal["unread"] | None = None  # and the JSON value that may hide tags in it
        self._waiting = False  # for the end of that value; the tag and what follows is held
        self._held: list[str] = []  # a candidate, or what was not read when a listener raised
        self._outside = cut_off_outside()
        self._row = self._cut_off = self._outside  # where the candidate stands in the automaton; where one starts
        self._prose: Listener = _drop
        self._sink: Listener = _drop  # takes text that is no tag
        self._sink_content: Listener = _drop  # what the sink is when no value is open
        self._take: Listener = _drop  # takes pieces without `<`; the sink, unless something is held
        self._completed = 0  # blocks of this text
        self._certain: int | None = None
        self.certain: int | None = None
        """Of the blocks in the text that `flush` has ended: what `ParseResult.certain` says."""

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
        self._choose_sink()
        return self

    def push(self, chunk: str) -> None:
        """Read the next piece of the text; it may be empty. Raises `TypeError` for anything but a `str`."""
        try:
            if "<" in chunk:
                self._scan(chunk)
            elif chunk:
                take = self._take  # `self._take(chunk)` would look for a method first
                take(chunk)
        except TypeError:
            if isinstance(chunk, str):
                raise  # a listener's own
            raise TypeError(f"chunk must be a str, got {type(chunk).__name__}; decode bytes incrementally") from None

    def flush(self) -> None:
        """End the text: a tag cut off is prose or content, an open block is told as `block_incomplete`.

        After this the parser is ready for a new text.
        """
        if self._held:
            self._scan("")  # reads what was not read; a candidate stays held
        while self._waiting:
            if self._certain is None:
                self._certain = self._completed + 1
            self._waiting = False
            self._end_value(BROKEN)
            self._scan("")
        if self._held:
            self._sink(self._release())
        self.certain, self._certain, self._completed = self._certain, None, 0
        if self._opening is not None:
            self._tell("block_incomplete", self._leave())

    # ------------------------------------------------------------------------------------------------ reading

    def _scan(self, text: str) -> None:
        """Read text that may hold tags, behind what is held."""
        if self._waiting:
            self._wait(text)
            return
        if self._held:
            text = self._release() + text
        last = text.rfind(">")
        if last >= 0:
            text = self._read_tags(text, last)
            if self._waiting:
                self._held.append(text)
                self._take = self._wait
                return
        if self._opening is not None and self._content is None:
            self._choose_sink()
        before, mark, after = text.rpartition("<")
        row = advance(self._cut_off, after) if mark else None
        if row is None:
            before = text
        else:
            self._held.append(mark + after)
            self._row = row
            self._take = self._continue
        if before:
            self._sink(before)

    def _read_tags(self, text: str, last: int) -> str:
        """Deal with the whole tags of a text, whose last `>` is at `last`, and return what stands behind them."""
        at = 0
        try:
            while at < last:
                if self._opening is None:
                    found = find_opening(text, at)
                    if found is None:
                        break
                    start, end, opening, content = found
                    if at < start:
                        prose, at = text[at:start], start
                        self._sink(prose)
                    at = end
                    if content is None:
                        self._enter(opening)
                    else:
                        self._tell_block(opening, content)
                else:
                    step = self._read_in_block(text, at)
                    if step is None:
                        break
                    content, at = text[at : step[0]], step[1]
                    if step[2]:
                        self._complete(content)
                    elif content:
                        self._sink(content)
        except BaseException:
            self._hold_unread(text[at:])
            raise
        return text[at:]

    def _continue(self, chunk: str) -> None:
        """Read a piece without `<` behind the candidate that is held."""
        row = self._row.get(chunk)
        if row is None:
            end = chunk.find(">") + 1
            if end > 0:
                self._held.append(chunk[:end])
                self._decide(self._release(), chunk[end:])
                return
            row = advance(self._row, chunk)
        self._held.append(chunk)
        if row is None:
            self._sink(self._release())
        else:
            self._row = row

    def _decide(self, candidate: str, rest: str) -> None:
        """Deal with a candidate that has come to its `>`, and with the text behind it, which has no `<`."""
        try:
            if self._opening is None:
                opening = read_opening(candidate)
                if opening is None:
                    self._sink(candidate)
                elif opening.self_closing:
                    self._tell_block(opening, "")
                else:
                    self._enter(opening)
                    self._choose_sink()
            else:
                change = level_change(self._opening.inside, candidate)
                if change != 0 and self._value == "unread":
                    self._look_for_value("")
                if change != 0 and self._value is not None:
                    text, rest = candidate + rest, ""
                    self._scan(text)
                    return
                self._level += change
                if self._level == 0:
                    self._complete("")
                else:
                    self._sink(candidate)
        except BaseException:
            self._hold_unread(rest)
            raise
        if rest:
            self._sink(rest)

    def _read_in_block(self, text: str, at: int) -> tuple[int, int, bool] | None:
        """Read on from `at` in the open block, if there is a tag that decides something.

        Return up to where the text is content, where to go on, and whether the block ends in between.
        """
        assert self._opening is not None
        if self._value is None:
            start, end, self._level = find_close(self._opening.inside, text, at, self._level)
            return None if self._level > 0 else (start, end, True)
        tag = find_change(self._opening.inside, text, at)
        if tag is None:
            return None
        start, end, change = tag
        if self._value == "unread":
            self._look_for_value(text[at:start])
            return (start, end, True) if self._value is None and change < 0 else (at, at, False)
        if at < start:
            return start, start, False  # the value is read on with it, and may end
        if self._level + change > 0:
            self._level += change
            return end, end, False
        value_end = self._value.feed(text, start)
        if value_end is None:
            self._waiting = True
            return None
        self._end_value(value_end)
        end = start if value_end == BROKEN else value_end
        return end, end, False

    # ------------------------------------------------------------------------------------- tags in a JSON value

    def _look_for_value(self, untold: str) -> None:
        """See whether the content up to a tag, its end not told yet, leaves a value open. If not, tags are tags."""
        told = "" if self._content is None else self._content.getvalue()
        content = told + untold
        self._value = None
        if content[:1] not in JSON_BEGINS or not may_end_in_a_string(content):
            return
        if JsonValue().feed(content) is None:
            self._value = JsonValue()
            self._value.feed(told)
            self._choose_sink()

    def _wait(self, text: str) -> None:
        """Read on to the end of a value, behind a tag that ends the block unless the value hides it."""
        assert isinstance(self._value, JsonValue)
        end = self._value.feed(text)
        self._held.append(text)
        if end is None:
            return
        self._waiting = False
        held = self._release()
        self._end_value(end)
        if end == BROKEN:
            self._scan(held)
            return
        end += len(held) - len(text)
        self._hold_unread(held[end:])
        self._sink(held[:end])
        self._scan("")

    def _sink_value(self, text: str) -> None:
        """Take content of a value that is open."""
        assert isinstance(self._value, JsonValue)
        end = self._value.feed(text)
        if end is not None:
            self._end_value(end)
        self._sink_content(text)

    def _end_value(self, end: int) -> None:
        """The value has ended, or broken: from here on tags are tags."""
        self._value = None
        if end != BROKEN:
            self._level = 1
        self._choose_sink()

    # --------------------------------------------------------------------------------------- what is held

    def _hold_unread(self, text: str) -> None:
        self._held.append(text)
        self._take = self._scan

    def _release(self) -> str:
        """Return what is held and hold nothing any more."""
        text = "".join(self._held)
        self._held.clear()
        self._take = self._sink
        return text

    # ------------------------------------------------------------------------------------ what tags mean

    def _enter(self, opening: Opening) -> None:
        """Stand in the block that a tag has opened."""
        self._opening = opening
        self._level = 1
        self._value = "unread"
        self._cut_off = opening.inside.cut_off()
        tell = self._listeners["block_start"]
        if tell is not None:
            tell({"type": opening.type, "name": opening.name})

    def _complete(self, rest: str) -> None:
        """Deal with the close of the open block and with the content right before it."""
        self._tell_end(self._leave(rest), rest)

    def _leave(self, rest: str = "") -> Block:
        """Stand outside again and return what was open; `rest` is content that is not stored."""
        opening, content = self._opening, self._content
        assert opening is not None
        self._opening = None
        self._value = None
        self._level = 0
        self._cut_off = self._outside
        if content is not None:
            rest = content.getvalue() + rest
            self._content = None
            self._sink = self._take = self._prose
        return Block(opening.type, opening.name, rest)

    def _choose_sink(self) -> None:
        """Choose what takes text that is no tag: prose outside of all blocks, content in one."""
        if self._opening is None:
            self._sink = self._prose
        else:
            if self._content is None:
                self._content = io.StringIO()
            listener = self._listeners["block_content"]
            self._sink = self._content.write if listener is None else _both(self._content.write, listener)
            if isinstance(self._value, JsonValue):
                self._sink, self._sink_content = self._sink_value, self._sink
        if not self._held:
            self._take = self._sink

    def _tell_block(self, opening: Opening, content: str) -> None:
        """Tell of a block that was found as a whole."""
        try:
            tell = self._listeners["block_start"]
            if tell is not None:
                tell({"type": opening.type, "name": opening.name})
        finally:
            self._tell_end(Block(opening.type, opening.name, content), content)

    def _tell_end(self, block: Block, rest: str) -> None:
        """Tell of the end of a block and of the content before it that was not told yet."""
        self._completed += 1
        try:
            tell = self._listeners["block_content"]
            if tell is not None and rest:
                tell(rest)
        finally:
            tell = self._listeners["block_complete"]
            if tell is not None:
                tell(block)

    def _tell(self, event: str, data: object) -> None:
        tell = self._listeners[event]
        if tell is not None:
            tell(data)


def _both(first: Listener, second: Listener) -> Listener:
    """Two listeners as one; the second is called even if the first raises."""

    def tell(data: Any) -> None:
        try:
            first(data)
        finally:
            second(data)

    return tell
