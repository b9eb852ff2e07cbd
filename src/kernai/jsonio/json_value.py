"""The extent of a JSON value at the start of a block's content: tags in its strings are content.

What counts as JSON here is wider than JSON, since nothing is read out of it: single-quoted strings, raw control
characters, any escape, trailing commas, and bare words for keys and scalars. A `<` stands in no value but in a string.

Linear time, although a value that breaks is read again as if it were none. A value is open at a tag only inside a
string, and begins outside of one. Each quote swaps two of the states outside, in "…" and in '…', and leaves the third
alone; so two values that are open at one place are never in one state, and no more than three are open there.
"""

from __future__ import annotations

import re

from kernai.jsonio.json_data import end_of_string

BROKEN = -1
"""What `JsonValue.feed` gives for text that is no value."""

_OPENINGS = frozenset("[{")
JSON_BEGINS = frozenset("[{ \t\n\r\f\v")
"""The first characters of contents that may begin with a value."""
_LONG, _SHORT = 4096, 256  # characters: in so much content it is worth a look whether the value is only so long
# where a string may begin, and not an apostrophe in a word
_SINGLE_QUOTED = re.compile(r"'(?<=[ \t\n\r,:\[{]')")

_STRING = re.compile(r"\"[^\"]*+\"|'[^']*+'")  # without escapes

_SPACE = re.compile(r"\s*+", re.ASCII)
_BEGINNING = re.compile(r"\s*+[\[{]", re.ASCII)
_TOKEN = re.compile(r"[ \t\n\r]*+(?:([\[{\]},:\"'])|[A-Za-z0-9+\-._$]++|\Z)")
_WORD = re.compile(r"[A-Za-z0-9+\-._$]*+")

# what comes next; `item` and `key` may be the closing bracket as well
_START, _ITEM, _VALUE, _KEY, _COLON, _AFTER = "start", "item", "value", "key", "colon", "after"
# which state follows a word or a string
_BEHIND = {_ITEM: _AFTER, _VALUE: _AFTER, _KEY: _COLON}
_CLOSES = {"[": "]", "{": "}"}
_CLOSED_FROM = {"]": (_ITEM, _AFTER), "}": (_KEY, _AFTER)}


def may_end_in_a_string(content: str) -> bool:
    """Whether a block's content so far may end in a string of a value that it begins with.

    A few looks at the quotes; where it says yes, `JsonValue` knows.
    """
    first = content[:1]
    if first not in _OPENINGS and (first not in JSON_BEGINS or not _BEGINNING.match(content)):
        return False
    if len(content) > _LONG and JsonValue().feed(content[:_SHORT]) is not None:
        return False
    if "\\" in content:  # outside of a string it would break the value, so all of them are escapes
        content = content.replace("\\\\", "").replace('\\"', "").replace("\\'", "")
    if "'" not in content or not _SINGLE_QUOTED.search(content):
        return content.count('"') % 2 == 1
    if '"' not in content:
        return content.count("'") % 2 == 1
    left = _STRING.sub("", content)
    return '"' in left or "'" in left


class JsonValue:
    """Reads a value in pieces, from the start of a block's content on."""

    __slots__ = ("_escaped", "_in_word", "_open", "_quote", "_state")

    def __init__(self) -> None:
        self._open: list[str] = []  # the brackets that are
        self._state = _START
        self._quote = ""  # of the string that is open
        self._escaped = False  # it ended in a backslash
        self._in_word = False  # the last piece ended in a word

    def feed(self, text: str, at: int = 0) -> int | None:
        """Read on, in `text` from `at`. Gives where the value ends in it, `BROKEN`, or None while it is open.

        It is not to be fed any more once it has ended or broken.
        """
        if self._state is _START or self._in_word:
            goes_on = _WORD if self._in_word else _SPACE
            at = goes_on.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing too
            self._in_word = self._in_word and at == len(text)
        while True:
            if self._quote:
                at = self._string_end(text, at)
                if at < 0:
                    return None
            token = _TOKEN.match(text, at)
            if token is None:
                return BROKEN
            mark, at = token[1], token.end()
            if mark is None and (at == token.start() or text[at - 1] in " \t\n\r"):
                return None
            if not (self._scalar(mark) if mark is None or mark in "\"'" else self._punctuation(mark)):
                return BROKEN
            if not self._open:
                return at
            self._in_word = mark is None and at == len(text)

    def _string_end(self, text: str, at: int) -> int:
        """Where the open string ends; -1 where it goes on beyond the text."""
        start = at + 1 if self._escaped and at < len(text) else at
        self._escaped = self._escaped and at == len(text)
        end = end_of_string(text, start, self._quote)
        if end < 0:
            inside = text[start:]
            self._escaped = self._escaped or (len(inside) - len(inside.rstrip("\\"))) % 2 == 1
            return -1
        self._quote = ""
        return end + 1

    def _scalar(self, quote: str | None) -> bool:
        """Take a word, or the quote that a string begins with; False where neither can stand."""
        if self._state not in _BEHIND:
            return False
        self._state = _BEHIND[self._state]
        self._quote = quote or ""
        return True

    def _punctuation(self, mark: str) -> bool:
        """Take a bracket, a comma or a colon; False where it cannot stand."""
        state = self._state
        if mark in "[{":
            if state not in (_START, _ITEM, _VALUE):
                return False
            self._open.append(mark)
            self._state = _ITEM if mark == "[" else _KEY
        elif mark == ":":
            if state != _COLON:
                return False
            self._state = _VALUE
        elif mark == ",":
            if state != _AFTER:
                return False
            self._state = _ITEM if self._open[-1] == "[" else _KEY
        else:
            if state not in _CLOSED_FROM[mark] or _CLOSES[self._open[-1]] != mark:
                return False
            self._open.pop()
            self._state = _AFTER
        return True
