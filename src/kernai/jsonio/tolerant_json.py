"""Reads text that was meant as JSON, if its mistakes can be repaired without losing anything.

`REPAIRS` lists the mistakes that are repaired. Nothing is guessed: a missing bracket, quote, comma or colon, an unknown
escape, a duplicate key and NaN are faults here too, reported with their place. The text is read in one pass over its
tokens, in linear time.
"""

from __future__ import annotations

import re
from contextlib import suppress
from json.decoder import scanstring  # type: ignore[attr-defined]  # the standard decoder's own reader of strings
from typing import Any

from kernai.jsonio.json_data import JsonSyntaxError, loads
from kernai.jsonio.json_pieces import COLON, EXPECTED, ITEM, KEY, VALUE, JsonBuilder, end_of_string

FENCE, COMMA, SINGLE, LITERAL, BARE_KEY, CONTROL, COMMENT = REPAIRS = (
    "code fence", "trailing comma", "single-quoted string", "Python literal", "unquoted key", "raw control character",
    "comment",
)

FENCED = re.compile(r"\s*+```[ \t]*+\w*+[ \t]*+\r?\n(?P<inside>.*\S)\s*```\s*", re.DOTALL)
"""A text that is entirely inside a code fence."""
_SPACE = re.compile(r"[ \t\r\n]*+")
# bounded, so that many comments that begin and do not end still take linear time
_COMMENT = re.compile(r"//[^\n]{0,1000}(?=\n|\Z)|#[^\n]{0,1000}(?=\n|\Z)|/\*(?:[^*]|\*(?!/)){0,1000}\*/")
_WORD = re.compile(r"[^\W\d][\w$-]*+|\$[\w$-]*+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?(?![\w.+-])")
_STRICT = {"true": True, "false": False, "null": None}
_WORDS = _STRICT | {"True": True, "False": False, "None": None}
_CONSTANT = re.compile(r"-?Infinity|NaN")
_RUN = re.compile(r"[\w.+$/*#-]*+(?:(?<=/\*).*)?", re.DOTALL)
_MARKS = frozenset("[]{},:")
_CONTROL = re.compile(r"[\x00-\x1f]")


def read_tolerantly(text: str) -> tuple[Any, list[str]]:
    """The value of a whole text, and the repairs that were made.

    Raises `JsonSyntaxError` or `JsonRefusedError` if it has none.
    """
    fence = FENCED.fullmatch(text) if "```" in text else None
    start, inside = (0, text) if fence is None else (fence.start("inside"), text[: fence.end("inside")])
    reader = TolerantReader(inside)
    if fence is not None:
        reader.repairs[FENCE] = None
    if "'" in inside and '"' not in inside and "\\" not in inside:
        # most often nothing but the quotes is wrong: then the strict reader is thirty times as fast
        with suppress(ValueError):
            value = loads(inside[start:].replace("'", '"'), unique_keys=True)
            return value, [*reader.repairs, SINGLE]
    value, at = reader.read(start)
    at = reader.space(at)
    if at < len(inside):
        raise reader.fault("Extra data", at)
    return value, [*reader.repairs]


class TolerantReader(JsonBuilder):
    """Reads one value of a text, whatever follows it. Raises as `read_tolerantly` does."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text
        self.repairs: dict[str, None] = {}  # in the order in which they were made

    def read(self, at: int) -> tuple[Any, int]:
        """The value that begins at `at`, and its end."""
        while True:
            at = self.space(at)
            mark, expected = self._text[at : at + 1], EXPECTED[self._state]
            if mark in _MARKS:
                follows_comma = mark in "]}" and self._state in (ITEM, KEY) and bool(self._containers[-1])
                if not self._punctuation(mark):
                    raise self.fault(expected, at)
                if follows_comma:
                    self.repairs[COMMA] = None
                at += 1
            elif self._begin_scalar(""):
                value, at = self._scalar(at, mark)
                self._end_scalar(value)
            else:
                raise self.fault(expected, at)
            if not self._open:
                return self._containers[0][0], at

    def space(self, at: int) -> int:
        """Skips white space and comments; returns the place after them."""
        at = _SPACE.match(self._text, at).end()  # type: ignore[union-attr]  # it matches an empty text too
        while self._text[at : at + 1] in ("/", "#") and (comment := _COMMENT.match(self._text, at)) is not None:
            self.repairs[COMMENT] = None
            at = _SPACE.match(self._text, comment.end()).end()  # type: ignore[union-attr]  # as above
        return at

    def fault(self, what: str, at: int, reached: int | None = None) -> JsonSyntaxError:
        if reached is None:  # a word, a number or a comment that was cut off may continue
            reached = _RUN.match(self._text, at).end()  # type: ignore[union-attr]  # it matches an empty text too
        return JsonSyntaxError(what, self._text, at, reached)

    def _scalar(self, at: int, mark: str) -> tuple[Any, int]:
        """The string, number or word that begins at `at`, and its end."""
        if mark in ('"', "'"):
            return self._string(at)
        word = _WORD.match(self._text, at)
        name = "" if word is None else word[0]
        end = at + len(name)
        if self._state is COLON:  # it is a key
            if not name or name in _WORDS:
                raise self.fault(EXPECTED[KEY], at)
            self.repairs[BARE_KEY] = None
            return name, end
        if name in _WORDS:
            if name not in _STRICT:
                self.repairs[LITERAL] = None
            return _WORDS[name], end
        number = _NUMBER.match(self._text, at)
        if number is not None:
            return loads(number[0]), number.end()
        constant = _CONSTANT.match(self._text, at)
        raise self.fault(f"{constant[0]} is not a JSON value" if constant else EXPECTED[VALUE], at)

    def _string(self, at: int) -> tuple[str, int]:
        if self._text[at] == '"':
            try:
                value, end = scanstring(self._text, at + 1, False)
            except ValueError as error:
                what, place = getattr(error, "msg", "Invalid string"), getattr(error, "pos", at)
                # a string without an end is reported at its beginning
                reached = len(self._text) if what.startswith("Unterminated") else place + 8
                raise self.fault(what, place, reached) from None
        else:
            end = end_of_string(self._text, at + 1, "'")
            if not end:
                raise self.fault("Unterminated string starting", at, len(self._text))
            # rewritten as between double quotes, with bare single and escaped double quotes. Escaped backslashes are
            # replaced first, so that each backslash that is left escapes the character after it.
            inside = self._text[at + 1 : end - 1].replace("\\\\", "\\u005c")
            inside = inside.replace("\\'", "'").replace('\\"', '"').replace('"', '\\"')
            try:
                value, _ = scanstring(f'{inside}"', 0, False)
            except ValueError:
                raise self.fault("Invalid string", at, end) from None
            self.repairs[SINGLE] = None
        if _CONTROL.search(self._text, at, end):
            self.repairs[CONTROL] = None
        return value, end
