"""JSON that arrives in pieces: where a value ends (`JsonValue`), and which part of it is complete (`PartialJson`).

All readers of JSON that is not strict share the states of `JsonValue`, which say what may come next.

`JsonValue` finds the end of the value at the start of a block's content; tags in its strings are content. It accepts
more than JSON, since it does not build the value: single-quoted strings, raw control characters, any escape, trailing
commas, and bare words for keys and scalars. A `<` may only be in a string.

The time is linear, although the text of an invalid value is read again as ordinary content. The proof: a place in the
text is outside of strings, in "…" or in '…', and a quote swaps two of these states and keeps the third. If a value is
open at a tag, it is in a string there, while a value that begins later begins outside of strings. So two values that
are open at the same place are always in different states, and at most three values are open at any place.
"""

from __future__ import annotations

import io
import re
from typing import Any

from kernai.jsonio.json_data import MAX_DEPTH, TOO_DEEP, JsonRefusedError, duplicate_key, loads

BROKEN = -1
"""What `JsonValue.feed` returns for text that is not a value."""

_OPENINGS = frozenset("[{")
JSON_BEGINS = frozenset("[{ \t\n\r\f\v")
"""The first characters of contents that may begin with a value."""
_LONG, _SHORT = 4096, 256  # characters: in a long content it is worth checking first whether the value is short
# patterns, compiled only when a text needs them: the rest of a string after its quote, and text without an open string
_REST = {quote: rf"[^{quote}\\]*+(?:\\.[^{quote}\\]*+)*+{quote}" for quote in ('"', "'")}
_BEFORE = r"[ \t\n\r,:\[{]"  # after any other character, a single quote is an apostrophe in a word
# The whole is not possessive: until Python 3.11.5, such a group with alternatives matched wrongly (gh-106052).
_WITHOUT_OPEN_STRING = rf"""(?:[^"']++|"{_REST['"']}|(?<={_BEFORE})'{_REST["'"]}|(?<!{_BEFORE})')*"""
_SPACE = re.compile(r"\s*+", re.ASCII)
_TOKEN = re.compile(r"[ \t\n\r]*+(?:([\[{\]},:\"'])|(?=[A-Za-z0-9+\-._$])|\Z)")
_WORD = re.compile(r"[A-Za-z0-9+\-._$]*+")

# the states are named after what comes next; in `item` and `key` the closing bracket may come as well
START, ITEM, VALUE, KEY, COLON, AFTER = "start", "item", "value", "key", "colon", "after"
#: what is missing if something else comes
EXPECTED = {
    START: "Expecting value", ITEM: "Expecting value", VALUE: "Expecting value", KEY: "Expecting a property name",
    COLON: "Expecting ':' delimiter", AFTER: "Expecting ',' delimiter",
}
# the state after a word or a string
_AFTER_SCALAR = {ITEM: AFTER, VALUE: AFTER, KEY: COLON}
_ALLOWED = {START: "[{", ITEM: "[{]", VALUE: "[{", KEY: "}", COLON: ":", AFTER: ",]}"}  # of the marks of `_TOKEN`


def may_end_in_a_string(content: str) -> bool:
    """Whether a block's content so far may end in a string of the value that it begins with.

    This only looks at the quotes, to be fast. If it returns True, `JsonValue` must decide.
    """
    if content.lstrip(" \t\n\r\f\v")[:1] not in _OPENINGS:
        return False
    if len(content) > _LONG and JsonValue().feed(content[:_SHORT]) is not None:
        return False
    if "\\" not in content and "'" not in content:
        return content.count('"') % 2 == 1
    return re.fullmatch(_WITHOUT_OPEN_STRING, content, re.DOTALL) is None


def end_of_string(text: str, at: int, quote: str) -> int:
    """The place after the quote that ends a string whose content begins at `at`; 0 if there is none."""
    found = re.compile(_REST[quote], re.DOTALL).match(text, at)
    return 0 if found is None else found.end()


class JsonValue:
    """Reads a value in pieces, from the start of a block's content."""

    __slots__ = ("_escaped", "_open", "_quote", "_state")

    def __init__(self) -> None:
        self._open: list[str] = []  # the open brackets
        self._state = START
        self._quote: str | None = None  # the quote of the string that is open; "" in a number or another bare word
        self._escaped = False  # the last piece ended in a backslash

    def feed(self, text: str, at: int = 0) -> int | None:
        """Reads more text, from `at`. Returns where the value ends in it, `BROKEN`, or None while the value is open.

        Do not call this again after the value has ended or turned out to be broken.
        """
        if self._state is START:
            at = _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches an empty text too
        while True:
            if self._quote is not None:
                at = self._read_scalar(text, at)
                if at < 0 or not self._open:
                    return None if at < 0 else at
            token = _TOKEN.match(text, at)
            if token is None:
                return BROKEN
            mark, at = token[1], token.end()
            if mark is None and at == len(text):
                return None
            if not (self._begin_scalar(mark or "") if mark is None or mark in "\"'" else self._punctuation(mark)):
                return BROKEN
            if not self._open and self._quote is None:
                return at

    def _begin_scalar(self, quote: str) -> bool:
        """Begins a string with its quote, or a word; False if neither is allowed here."""
        if self._state not in _AFTER_SCALAR:
            return False
        self._state = _AFTER_SCALAR[self._state]
        self._quote = quote
        return True

    def _read_scalar(self, text: str, at: int) -> int:
        """The end of the open string or word; -1 if it may continue after the text."""
        if self._quote:
            start = at + 1 if self._escaped else at
            self._escaped = self._escaped and at == len(text)
            end = end_of_string(text, start, self._quote)
            if not end:
                inside = text[start:]
                self._escaped = self._escaped or (len(inside) - len(inside.rstrip("\\"))) % 2 == 1
                return -1
        else:
            end = _WORD.match(text, at).end()  # type: ignore[union-attr]  # it matches an empty text too
            if end == len(text):
                return -1
        self._quote = None
        return end

    def _punctuation(self, mark: str) -> bool:
        """Reads a bracket, a comma or a colon; False if it is not allowed here."""
        if mark not in _ALLOWED[self._state]:
            return False
        if mark in "[{":
            self._open.append(mark)
            self._state = ITEM if mark == "[" else KEY
        elif mark == ":":
            self._state = VALUE
        elif mark == ",":
            self._state = ITEM if self._open[-1] == "[" else KEY
        else:
            self._state = AFTER
            return self._open.pop() + mark in ("[]", "{}")
        return True


class JsonBuilder(JsonValue):
    """Builds the value. Raises `JsonRefusedError` for duplicate keys and too many levels."""

    def __init__(self) -> None:
        super().__init__()
        self._state = VALUE
        self._containers: list[Any] = [[]]  # a list for the value, and the open containers, outermost first
        self._key = ""  # the last key
        #: how many values have become complete
        self.completed = 0

    def _end_scalar(self, value: Any) -> None:
        """Adds the scalar that was begun, now that its value is known. It is a key if a colon comes next."""
        if self._state is not COLON:
            self._put(value)
            self.completed += 1
        elif value in self._containers[-1]:
            raise duplicate_key(value)
        else:
            self._key = value

    def _punctuation(self, mark: str) -> bool:
        if not super()._punctuation(mark):
            return False
        if mark in "[{":
            if len(self._open) > MAX_DEPTH:
                raise JsonRefusedError(TOO_DEEP)
            made: Any = {} if mark == "{" else []
            self._put(made)
            self._containers.append(made)
        elif mark in "]}":
            self._containers.pop()
            self.completed += 1
        return True

    def _put(self, value: Any) -> None:
        """Adds a value to the innermost open container."""
        around = self._containers[-1]
        if type(around) is list:
            around.append(value)
        else:
            around[self._key] = value


class PartialJson(JsonBuilder):
    """Reads JSON in pieces. `value` is the complete part of it, without a string or number that is still being written.

    A number is complete once anything follows it. After text that cannot be JSON, `value` stays as it is.
    """

    def __init__(self) -> None:
        super().__init__()
        self._word = io.StringIO()  # the open string or word so far
        self._is_done = False

    def push(self, text: str) -> None:
        if not self._is_done:
            try:
                self._is_done = self.feed(text) is not None
            except ValueError:
                self._is_done = True

    def value(self) -> Any:
        """A copy of the complete part, which later pieces do not change; None if nothing is complete."""
        made = self._containers[-1].copy()
        for container in reversed(self._containers[:-1]):
            around = container.copy()
            around[-1 if isinstance(around, list) else next(reversed(around))] = made
            made = around
        return made[0] if made else None

    def _read_scalar(self, text: str, at: int) -> int:
        quote, end = self._quote, super()._read_scalar(text, at)
        self._word.write(text[at : end if end >= 0 else None])
        if end >= 0:
            value = loads(f"{quote}{self._word.getvalue()}")
            self._word = io.StringIO()
            if self._state is COLON and not isinstance(value, str):
                raise JsonRefusedError("a key must be text")
            self._end_scalar(value)
        return end
