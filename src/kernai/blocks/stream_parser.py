"""`StreamParser`: finds blocks and prose in a text that arrives in pieces.

Theory of operation. The parser is outside all blocks or in one. It may also hold a candidate, a `<...` that can still
become a tag (see `grammar`). Nearly every piece of a stream has no `<` and arrives while no candidate is held: `push`
passes it to the callable that was chosen when the state last changed. If a piece has a `<`, complete tags are searched
for first; after these, only the last `<` can begin a tag that is cut off. Of a held candidate, a short form is kept
too, so the cost of the next character does not depend on how much is held.

A JSON value at the start of a block's content hides the tags in it (see `json_pieces`). The value is examined only when
a tag arrives. If it is still open there, reading continues at the next tag. A tag that would end the block is then held
with all text after it, until the value ends (the tag was content) or turns out to be invalid (it was a tag).

The state is updated before listeners are called, so it is consistent if a listener raises.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, Literal

from kernai._util.api import is_async, is_generator
from kernai.blocks.block import Block
from kernai.blocks.grammar import OUTSIDE, Opening, find_change, find_close, find_opening
from kernai.jsonio.json_pieces import BROKEN, JSON_BEGINS, JsonValue, may_end_in_a_string

EVENTS = ("text_chunk", "block_start", "block_content", "block_complete", "block_incomplete")

Listener = Callable[[Any], object]

# Receives prose that has no listener. Does nothing, as fast as possible, and accepts only a `str`, like the others.
_drop: Listener = "".removeprefix


class StreamParser:
    """Parses a text as it arrives and calls listeners with what it finds:

    - `text_chunk`: a `str`, prose; `block_content`: a `str`, a part of the open block's content. Never empty, and
      emitted once it can no longer be part of a tag.
    - `block_start`: `{"type": str, "name": str | None}`; `block_complete`: the `Block`.
    - `block_incomplete`: the `Block` that is open at the end of the text, with its content so far.

    It finds what `kernai.parse` finds, however the text is cut. The time is linear in the length of the text, the
    memory linear in the length of the open block.

    `push` and `flush` raise what a listener raises. Nothing is lost or emitted twice: the rest of the piece is read by
    the next `push` or `flush`. A listener must not call `push` or `flush`.
    """

    # No __slots__: Python 3.11 reads attributes of ordinary objects faster, and `push` does little else.

    def __init__(self) -> None:
        self._listeners: dict[str, Listener | None] = dict.fromkeys(EVENTS)
        self._opening: Opening | None = None  # the open block
        self._level = 0  # how many blocks are open
        self._content = io.StringIO()  # of the open block
        self._value: JsonValue | Literal["unread"] | None = None  # the JSON value that may hide tags in the content
        self._read = 0  # how much of the content the value has read
        self._waiting = False  # for the end of that value, while a tag and the text after it are held
        self._held: list[str] = []  # a candidate, or text that was not read because a listener raised
        self._place = OUTSIDE  # where the parser is
        self._cut_off = ""  # the held candidate, shortened
        self._prose: Listener = _drop
        self._sink: Listener = _drop  # receives text that is not a tag
        self._take: Listener = _drop  # receives pieces without `<`; the sink, unless something is held
        self.completed = 0  # the number of complete blocks in this text
        self._certain: int | None = None
        self.certain: int | None = None
        """`ParseResult.certain` of the text that the last `flush` ended."""

    def on(self, event: str, fn: Listener) -> StreamParser:
        """Calls `fn` with the data of every `event`, after earlier listeners. Returns the parser.

        Raises `ValueError` for an unknown event, `TypeError` if `fn` is not a plain function.
        """
        if event not in EVENTS:
            raise ValueError(f"event must be one of {', '.join(EVENTS)}, got {event!r}")
        if not callable(fn) or is_async(fn) or is_generator(fn):
            raise TypeError(f"fn must be a plain function of the event's data, got {fn!r:.80}")
        earlier = self._listeners[event]
        self._listeners[event] = fn if earlier is None else _both(earlier, fn)
        self._prose = self._listeners["text_chunk"] or _drop
        self._choose_sink()
        return self

    def push(self, chunk: str) -> None:
        """Reads the next piece of the text, which may be empty. Raises `TypeError` for anything but a `str`."""
        try:
            if "<" in chunk:
                self._scan(chunk)
            elif chunk:
                take = self._take  # faster: `self._take(chunk)` looks for a method first
                take(chunk)
        except TypeError:
            if isinstance(chunk, str):
                raise  # from a listener
            raise TypeError(f"chunk must be a str, got {type(chunk).__name__}; decode bytes incrementally") from None

    def flush(self) -> None:
        """Ends the text: a tag that is cut off is prose or content, an open block is emitted as `block_incomplete`.

        The parser is then ready for a new text.
        """
        if self._held:
            self._scan("")  # reads text that is left because a listener raised; a candidate stays held
        while self._waiting:
            self._certain = self._certain or self.completed + 1
            self._waiting, self._value = False, None
            self._scan("")
        if self._held:
            self._sink(self._release())
        self.certain, self._certain, self.completed = self._certain, None, 0
        if self._opening is not None:
            self._emit("block_incomplete", self._leave())

    # ------------------------------------------------------------------------------------------------ reading

    def _scan(self, text: str) -> None:
        """Reads text that may contain tags, together with the held text before it."""
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
        before, mark, after = text.rpartition("<")
        cut_off = self._place.shortened(mark + after) if mark else None
        if cut_off is None:
            before = text
        else:
            self._held.append(mark + after)
            self._cut_off = cut_off
            self._take = self._continue
        if before:
            self._sink(before)

    def _read_tags(self, text: str, last: int) -> str:
        """Reads the complete tags of a text whose last `>` is at `last`; returns the text after them."""
        at = 0
        try:
            while at < last and not self._waiting:
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
                        self._emit_block(opening, content)
                else:
                    step = self._read_in_block(text, at)
                    if step is None:
                        break
                    content, at = text[at : step[0]], step[1]
                    if step[2]:
                        self._emit_end(self._leave(content), content)
                    elif content:
                        self._sink(content)
        except BaseException:
            self._hold_unread(text[at:])
            raise
        return text[at:]

    def _continue(self, chunk: str) -> None:
        """Reads a piece without `<` that follows the held candidate."""
        if ">" in chunk:
            self._scan(chunk)
            return
        cut_off = self._place.shortened(self._cut_off + chunk)
        self._held.append(chunk)
        if cut_off is None:
            self._sink(self._release())
        else:
            self._cut_off = cut_off

    def _read_in_block(self, text: str, at: int) -> tuple[int, int, bool] | None:
        """Reads from `at` in the open block up to the next tag that has a meaning.

        Returns where the content ends, where to continue, and whether the block ends in between. None if there is no
        such tag. The tag must be held, with `_waiting` set, if only the end of a JSON value shows what it means.
        """
        if self._value is None:
            start, end, self._level = find_close(self._place, text, at, self._level)
            return None if self._level > 0 else (start, end, True)
        tag = find_change(self._place, text, at)
        if tag is None:
            return None
        start, end, change = tag
        self._content.seek(self._read)
        content = self._content.read() + text[at:start]  # what the value has not read
        value = self._value if isinstance(self._value, JsonValue) else None
        if value is None and content[:1] in JSON_BEGINS and may_end_in_a_string(content):
            value = JsonValue()
        value_end = BROKEN if value is None else value.feed(content)
        if value is None or value_end is not None:
            self._value = None
            if value_end != BROKEN:  # tags before its end did not count
                self._level = 1
            return (start, end, True) if self._level + change == 0 else (at, at, False)
        self._value, self._read = value, self._read + len(content)
        if self._level + change > 0:
            self._level += change
            return end, end, False
        value_end = value.feed(text, start)
        if value_end is None:
            self._waiting = True
            return start, start, False
        self._value = None
        end = start if value_end == BROKEN else value_end
        return end, end, False

    # ------------------------------------------------------------------------------------- tags in a JSON value

    def _wait(self, text: str) -> None:
        """Reads more of a value, while a tag is held that ends the block unless it is inside the value."""
        assert isinstance(self._value, JsonValue)
        end = self._value.feed(text)
        self._held.append(text)
        if end is None:
            return
        self._waiting, self._value = False, None
        held = self._release()
        end = 0 if end == BROKEN else end + len(held) - len(text)
        self._hold_unread(held[end:])
        if end > 0:
            self._sink(held[:end])
        self._scan("")

    # ------------------------------------------------------------------------------------------ held text

    def _hold_unread(self, text: str) -> None:
        self._held.append(text)
        self._take = self._scan

    def _release(self) -> str:
        text = "".join(self._held)
        self._held.clear()
        self._take = self._sink
        return text

    # ------------------------------------------------------------------------------------ what tags mean

    def _enter(self, opening: Opening) -> None:
        self._opening = opening
        self._level = 1
        self._value, self._read = "unread", 0
        self._place = opening.inside
        self._choose_sink()
        self._emit("block_start", {"type": opening.type, "name": opening.name})

    def _leave(self, rest: str = "") -> Block:
        """Leaves the open block and returns it; `rest` is the content that is not stored yet."""
        opening, content = self._opening, self._content
        assert opening is not None
        self._opening = None
        self._content = io.StringIO()
        self._place = OUTSIDE
        self._sink = self._take = self._prose
        return Block(opening.type, opening.name, content.getvalue() + rest)

    def _choose_sink(self) -> None:
        """Chooses the receiver of text that is not a tag: prose outside all blocks, content in one."""
        listener = self._listeners["block_content"]
        if self._opening is None:
            self._sink = self._prose
        else:
            self._sink = self._content.write if listener is None else _both(self._content.write, listener)
        if not self._held:
            self._take = self._sink

    def _emit_block(self, opening: Opening, content: str) -> None:
        try:
            self._emit("block_start", {"type": opening.type, "name": opening.name})
        finally:
            self._emit_end(Block(opening.type, opening.name, content), content)

    def _emit_end(self, block: Block, rest: str) -> None:
        """Emits the rest of a block's content, and then the end of the block."""
        try:
            if rest:
                self._emit("block_content", rest)
        finally:
            self.completed += 1
            self._emit("block_complete", block)

    def _emit(self, event: str, data: Any) -> None:
        listener = self._listeners[event]
        if listener is not None:
            listener(data)


def _both(first: Listener, second: Listener) -> Listener:
    """Joins two listeners; the second is called even if the first raises."""

    def listener(data: Any) -> None:
        try:
            first(data)
        finally:
            second(data)

    return listener
