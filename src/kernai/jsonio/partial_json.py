"""`PartialJson`: what is complete of a JSON text that is still coming, in linear time."""

from __future__ import annotations

import io
import json
import re
from typing import Any

from kernai.jsonio.json_data import MAX_DEPTH

_STRING_SIGN = re.compile(r'["\\]')
_SCALAR = re.compile(r"[-+.0-9A-Za-z]*")
_SPACE = re.compile(r"[ \t\r\n]*")


class PartialJson:
    """`push` pieces of the text; `value` is what is complete, without the string or number that is being written.

    Text that cannot be JSON ends it: what was complete stays, and nothing more comes.
    """

    def __init__(self) -> None:
        self._open: list[Any] = []  # the containers that are not closed, outermost first
        self._keys: list[str | None] = []  # of each the key that waits for its value
        self._word: io.StringIO | None = None  # the string or scalar that is being written
        self._in_string = self._escaped = self._is_done = False
        self._root: Any = None
        #: how many values have become complete
        self.completed = 0

    def push(self, text: str) -> None:
        """Reads the next piece."""
        at = 0
        while at < len(text) and not self._is_done:
            if self._in_string:
                at = self._read_string(text, at)
            elif self._word is not None:
                at = self._read_scalar(text, at)
            else:
                space = _SPACE.match(text, at)
                at = space.end() if space else at
                if at < len(text):
                    at = self._read_sign(text, at)

    def end(self) -> None:
        """The text has ended, and a number in it too."""
        if self._word is not None and not self._in_string:
            self._end_word()

    def value(self) -> Any:
        """What is complete, not changed by later pieces; None before anything is."""
        made = self._root if not self._open else self._open[-1].copy()
        for at in range(len(self._open) - 2, -1, -1):
            around = self._open[at].copy()
            around[-1 if isinstance(around, list) else next(reversed(around))] = made
            made = around
        return made

    def _read_string(self, text: str, at: int) -> int:
        assert self._word is not None
        if self._escaped:
            self._escaped = False
            self._word.write(text[at])
            return at + 1
        sign = _STRING_SIGN.search(text, at)
        end = len(text) if sign is None else sign.end()
        self._word.write(text[at:end])
        if sign is not None and sign[0] == "\\":
            self._escaped = True
        elif sign is not None:
            self._in_string = False
            self._end_word()
        return end

    def _read_scalar(self, text: str, at: int) -> int:
        assert self._word is not None
        word = _SCALAR.match(text, at)
        end = word.end() if word else at
        self._word.write(text[at:end])
        if end < len(text):
            self._end_word()
        return end

    def _read_sign(self, text: str, at: int) -> int:
        sign = text[at]
        if sign in "{[":
            self._begin({} if sign == "{" else [])
        elif sign in "}]":
            self._close(dict if sign == "}" else list)
        elif sign == '"':
            self._word, self._in_string = io.StringIO(), True
            self._word.write(sign)
        elif sign not in ",:":
            self._is_done = not (sign == "-" or (sign.isascii() and sign.isalnum()))
            self._word = None if self._is_done else io.StringIO()
            return at
        return at + 1

    def _begin(self, container: Any) -> None:
        if len(self._open) >= MAX_DEPTH or not self._put(container):
            self._is_done = True
            return
        self._open.append(container)
        self._keys.append(None)

    def _close(self, kind: type) -> None:
        if not self._open or type(self._open[-1]) is not kind:
            self._is_done = True
            return
        self._open.pop()
        self._keys.pop()
        self.completed += 1
        self._is_done = not self._open

    def _end_word(self) -> None:
        assert self._word is not None
        text, self._word = self._word.getvalue(), None
        try:
            value = json.loads(text)
        except ValueError:
            self._is_done = True
            return
        if self._open and type(self._open[-1]) is dict and self._keys[-1] is None:
            self._is_done = not isinstance(value, str)
            self._keys[-1] = value
        elif self._put(value):
            self.completed += 1
            self._is_done = not self._open
        else:
            self._is_done = True

    def _put(self, value: Any) -> bool:
        """Puts a value where it belongs, if it belongs anywhere."""
        if not self._open:
            self._root = value
        elif type(self._open[-1]) is list:
            self._open[-1].append(value)
        else:
            key = self._keys[-1]
            if key is None or key in self._open[-1]:  # a key that comes twice is refused in the whole answer too
                return False
            self._open[-1][key] = value
            self._keys[-1] = None
        return True
