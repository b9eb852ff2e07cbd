"""Reads text that was meant as JSON, if its mistakes can be repaired without losing anything.

`REPAIRS` lists the mistakes that are repaired. Nothing is guessed: a missing bracket, quote, comma or colon, an unknown
escape, a duplicate key and NaN are faults here too, reported with their place. The text is read in one pass over its
tokens, in linear time.
"""

from __future__ import annotations

import re
from json.decoder import scanstring  # type: ignore[attr-defined]  # the standard decoder's own reader of strings
from typing import Any, NamedTuple

from kernai.jsonio.json_data import MAX_DEPTH, JsonRefusedError, JsonSyntaxError, duplicate_key, end_of_string, loads

FENCE, COMMA, SINGLE, LITERAL, KEY, CONTROL, COMMENT = REPAIRS = (
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
_LITERALS = {"true": True, "false": False, "null": None}
_PYTHON = {"True": True, "False": False, "None": None}
_CONSTANT = re.compile(r"-?Infinity|NaN")
_RUN = re.compile(r"[\w.+$/*#-]*+(?:(?<=/\*).*)?", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f]")
# Most strings contain no escapes and most numbers are short integers. One pattern reads such a value together with the
# comma after it, in a fraction of the time, unless a comment or a bracket follows the comma.
_PLAIN = r"""'([^'\\\x00-\x1f]*+)'|"([^"\\\x00-\x1f]*+)\""""
_SCALAR = rf"(?:{_PLAIN}|(-?(?:0|[1-9][0-9]{{0,17}}))(?![\w.+-]))[ \t\r\n]*+"
_ITEM = re.compile(rf"{_SCALAR}(?:,[ \t\r\n]*+(?![\]/#])|(?=\]))")
_MEMBER = re.compile(rf"(?:{_PLAIN})[ \t\r\n]*+:[ \t\r\n]*+{_SCALAR}(?:,[ \t\r\n]*+(?![}}/#])|(?=\}}))")


class Reading(NamedTuple):
    """A value, its end in the text, and the repairs that were made."""

    value: Any
    end: int
    repairs: list[str]


def read_tolerantly(text: str) -> Reading:
    """Reads the value of a whole text. Raises `JsonSyntaxError` or `JsonRefusedError` if it has none."""
    fence = FENCED.fullmatch(text) if "```" in text else None
    start, inside = (0, text) if fence is None else (fence.start("inside"), text[: fence.end("inside")])
    reader = _Reader(inside)
    reader.repairs += [FENCE] if fence is not None else []
    value, at = reader.read(start)
    at = reader.space(at)
    if at < len(inside):
        raise reader.fault("Extra data", at)
    return Reading(value, at, reader.repairs)


def read_value_at(text: str, at: int) -> Reading:
    """The same for the value that begins at `at`, whatever follows it."""
    reader = _Reader(text)
    value, end = reader.read(at)
    return Reading(value, end, reader.repairs)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self.repairs: list[str] = []

    def read(self, at: int) -> tuple[Any, int]:
        try:
            return self._value(at, 0)
        except RecursionError as error:  # the caller's own stack was nearly used up
            raise JsonRefusedError("nested too deeply") from error

    def space(self, at: int) -> int:
        """Skips white space and comments; returns the place after them."""
        at = _SPACE.match(self._text, at).end()  # type: ignore[union-attr]  # it matches an empty text too
        while (comment := _COMMENT.match(self._text, at)) is not None:
            self._repaired(COMMENT)
            at = _SPACE.match(self._text, comment.end()).end()  # type: ignore[union-attr]  # as above
        return at

    def fault(self, what: str, at: int, reached: int | None = None) -> JsonSyntaxError:
        if reached is None:  # a word, a number or a comment that was cut off may continue
            reached = _RUN.match(self._text, at).end()  # type: ignore[union-attr]  # it matches an empty text too
        return JsonSyntaxError(what, self._text, at, reached)

    def _repaired(self, what: str) -> None:
        if what not in self.repairs:
            self.repairs.append(what)

    def _value(self, at: int, depth: int) -> tuple[Any, int]:
        at = self.space(at)
        mark = self._text[at : at + 1]
        if mark in ("{", "["):
            if depth >= MAX_DEPTH:
                raise JsonRefusedError(f"nested deeper than {MAX_DEPTH} levels")
            return self._object(at + 1, depth + 1) if mark == "{" else self._list(at + 1, depth + 1)
        if mark in ('"', "'"):
            return self._string(at)
        number = _NUMBER.match(self._text, at)
        if number is not None:
            return loads(number[0]), number.end()
        word = _WORD.match(self._text, at)
        if word is not None and word[0] in _LITERALS:
            return _LITERALS[word[0]], word.end()
        if word is not None and word[0] in _PYTHON:
            self._repaired(LITERAL)
            return _PYTHON[word[0]], word.end()
        constant = _CONSTANT.match(self._text, at)
        raise self.fault(f"{constant[0]} is no JSON value" if constant else "Expecting value", at)

    def _list(self, at: int, depth: int) -> tuple[list[Any], int]:
        made: list[Any] = []
        at = self.space(at)
        while self._text[at : at + 1] != "]":
            plain = _ITEM.match(self._text, at)
            if plain is not None:
                made.append(self._plain(*plain.groups()))
                at = plain.end()
                continue
            value, at = self._value(at, depth)
            made.append(value)
            at = self._next(at, "]")
        return made, at + 1

    def _object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        made: dict[str, Any] = {}
        at = self.space(at)
        while self._text[at : at + 1] != "}":
            plain = _MEMBER.match(self._text, at)
            if plain is None:
                key, at = self._key(at)
            else:
                key = self._plain(plain[1], plain[2], None)
            if key in made:
                raise duplicate_key(key)
            if plain is not None:
                made[key], at = self._plain(plain[3], plain[4], plain[5]), plain.end()
                continue
            at = self.space(at)
            if self._text[at : at + 1] != ":":
                raise self.fault("Expecting ':' delimiter", at)
            made[key], at = self._value(at + 1, depth)
            at = self._next(at, "}")
        return made, at + 1

    def _plain(self, single: str | None, double: str | None, number: str | None) -> Any:
        """The value that `_ITEM` or `_MEMBER` found."""
        if single is not None:
            if SINGLE not in self.repairs:
                self.repairs.append(SINGLE)
            return single
        return int(number) if double is None else double  # type: ignore[arg-type]  # it is one of the three

    def _next(self, at: int, closing: str) -> int:
        """The place of the next item, or of the closing bracket."""
        at = self.space(at)
        mark = self._text[at : at + 1]
        if mark == closing:
            return at
        if mark != ",":
            raise self.fault("Expecting ',' delimiter", at)
        at = self.space(at + 1)
        if self._text[at : at + 1] == closing:
            self._repaired(COMMA)
        return at

    def _key(self, at: int) -> tuple[str, int]:
        if self._text[at : at + 1] in ('"', "'"):
            return self._string(at)
        word = _WORD.match(self._text, at)
        if word is None or word[0] in _LITERALS or word[0] in _PYTHON:
            raise self.fault("Expecting a property name", at)
        self._repaired(KEY)
        return word[0], word.end()

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
            end = end_of_string(self._text, at + 1, "'") + 1
            if not end:
                raise self.fault("Unterminated string starting", at, len(self._text) + 1)
            # rewritten as between double quotes, with bare single and escaped double quotes. Escaped backslashes are
            # replaced first, so that each backslash that is left escapes the character after it.
            inside = self._text[at + 1 : end - 1].replace("\\\\", "\\u005c")
            inside = inside.replace("\\'", "'").replace('\\"', '"').replace('"', '\\"')
            try:
                value, _ = scanstring(f'{inside}"', 0, False)
            except ValueError:
                raise self.fault("Invalid string", at, end) from None
            self._repaired(SINGLE)
        if _CONTROL.search(self._text, at, end):
            self._repaired(CONTROL)
        return value, end
