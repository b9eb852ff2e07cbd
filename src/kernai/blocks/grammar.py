"""The tag grammar of the block protocol, shared by both parsers.

A *candidate* is a `<` and what follows it, up to the first `>` or the next `<`; no tag contains either. A complete
candidate, `<...>`, is found by a regular expression for its rough shape, and then read attribute by attribute. For a
candidate that is cut off, `<...`, an automaton made of plain dicts decides whether it can still become a tag. So a
parser that is fed in pieces holds text back only as long as that is possible. The tests compare the two descriptions.

Which tags have a meaning depends on the place: outside all blocks, opening tags; inside a canonical block, its closing
tag and nested opening tags; inside a shorthand block, only its own closing tag. In a JSON value at the start of a
block's content, no tag has a meaning, see `json_pieces`.

The expressions look at each character a few times at most, so the time is linear for any text. They repeat only single
characters, not groups: Python 3.11.2 has a bug with possessive groups, and other groups use memory for each repetition.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple, TypeAlias, TypeVar

from kernai.jsonio.json_pieces import BROKEN, JsonValue, may_end_in_a_string

CORE_TYPES = ("command", "json", "final", "plan", "result", "error")
"""The types with a shorthand: `<final>...</final>` means `<block type="final">...</block>`."""

ASCII_SPACE = " \t\n\r\f\v"
"""White space in tags, blank values and segments. ASCII only, like `\\s` under `re.ASCII`."""

# ----------------------------------------------------------------------------------------------- cut-off tags

Row: TypeAlias = "dict[str | None, Row]"
"""A state of the automaton: the next row for each character, under `None` for all characters beyond ASCII. If there is
no next row, the candidate is not a tag. A row also caches pieces of tags, see `advance`."""

_Table: TypeAlias = dict[str, dict[str, str]]
"""The automaton with names of states: by state and characters, the next state."""

_OTHER = ""  # as characters: all that the state does not list, but never `<` and `>`, which end a candidate
_NONE = ""  # as next state: none

_CHARACTERS = (*(chr(code) for code in range(128) if chr(code) not in "<>"), None)


def _add_word(table: _Table, word: str, then: str) -> None:
    """Adds the states that read a word after the `<`. Words with a common beginning share states."""
    for at, character in enumerate(word):
        table.setdefault(f"<{word[:at]}", {})[character] = f"<{word[: at + 1]}" if at + 1 < len(word) else then


def _add_attributes(table: _Table, phase: str, *, slash: bool = False, escapes: bool = False) -> None:
    r"""Adds the states that read attributes. The phase says whether a `type` was among them: `typed`, `untyped`.

    `slash`: the tag may be self-closing. `escapes`: values may also be written as in a JSON string, `\"plan\"`.
    """
    gap, key, key_end, equals, end = (f"{phase} {part}" for part in ("gap", "key", "key end", "=", "end"))
    double, single, backslash = (f"{phase} {part}" for part in ("double", "single", "backslash"))
    escaped, escaped_end = (f"{phase} {part}" for part in ("escaped", "escaped end"))
    self_closing = {"/": "slash"} if slash else {}
    table |= {
        end: {ASCII_SPACE: gap, **self_closing},
        gap: {ASCII_SPACE: gap, "\"'=/": _NONE, **self_closing, _OTHER: key},
        key: {ASCII_SPACE: key_end, "\"'/": _NONE, "=": equals, _OTHER: key},
        key_end: {ASCII_SPACE: key_end, "=": equals},
        equals: {ASCII_SPACE: equals, '"': double, "'": single, **({"\\": backslash} if escapes else {})},
        double: {'"': end, _OTHER: double},
        single: {"'": end, _OTHER: single},
        backslash: {'"': escaped},
        escaped: {"\\": escaped_end, '"': _NONE, _OTHER: escaped},
        escaped_end: {"\\": escaped_end, '"': end, _OTHER: escaped},
    }


def _add_type(table: _Table, *, escapes: bool = False) -> None:
    """Adds the states that distinguish the key `type` from others, and a blank value of it from others, if untyped."""
    key = table["untyped key"]
    table["untyped gap"]["t"] = "t"
    table |= {
        "t": {**key, "y": "ty"},
        "ty": {**key, "p": "typ"},
        "typ": {**key, "e": "type"},
        "type": {**key, ASCII_SPACE: "type end", "=": "type ="},
        "type end": {ASCII_SPACE: "type end", "=": "type ="},
        "type =": {ASCII_SPACE: "type =", '"': "blank double", "'": "blank single"},
        "blank double": {ASCII_SPACE: "blank double", '"': _NONE, _OTHER: "typed double"},
        "blank single": {ASCII_SPACE: "blank single", "'": _NONE, _OTHER: "typed single"},
        "blank backslash": {'"': "blank escaped"},
        "blank escaped": {ASCII_SPACE: "blank escaped", "\\": "blank escaped end", '"': _NONE, _OTHER: "typed escaped"},
        "blank escaped end": {"\\": "typed escaped end", '"': _NONE, _OTHER: "typed escaped"},
    }
    if escapes:
        table["type ="]["\\"] = "blank backslash"


def _add_close(table: _Table, word: str) -> None:
    table["close"] = {ASCII_SPACE: "close"}
    _add_word(table, f"/{word}", then="close")


def _link(table: _Table) -> Row:
    """Replaces names by rows and returns the row after the `<`."""
    rows: dict[str, Row] = {state: {} for state in table}
    for state, row in rows.items():
        other = table[state].get(_OTHER, _NONE)
        if other != _NONE:
            row.update(dict.fromkeys(_CHARACTERS, rows[other]))
        for characters, following in table[state].items():
            for character in characters:
                row.pop(character, None)
                if following != _NONE:
                    row[character] = rows[following]
    return rows["<"]


# Built for the first parser that is fed in pieces, not on import.
@cache
def cut_off_outside() -> Row:
    """The row after the `<` of a candidate outside all blocks."""
    table: _Table = {"slash": {}}
    _add_attributes(table, "typed", slash=True)
    _add_attributes(table, "untyped")
    _add_type(table)
    _add_word(table, "block", then="untyped end")
    _add_attributes(table, "shorthand")
    for word in CORE_TYPES:
        _add_word(table, word, then="shorthand end")
    return _link(table)


@cache
def _inside_block() -> Row:
    table: _Table = {}
    _add_attributes(table, "typed", escapes=True)
    _add_attributes(table, "untyped", escapes=True)
    _add_type(table, escapes=True)
    _add_word(table, "block", then="untyped end")
    _add_close(table, "block")
    return _link(table)


@cache
def _inside_shorthand(word: str) -> Row:
    table: _Table = {}
    _add_close(table, word)
    return _link(table)


_LONGEST_LEARNT = 16  # characters, about as long as a model's token
_MOST_LEARNT = 512  # in a row, so that no text can fill the memory


def advance(row: Row, text: str) -> Row | None:
    """The row that `text` leads to from `row`. None if the candidate cannot become a tag, as after any `<` or `>`.

    Models send tags in the same few pieces, so short pieces are cached: `row.get(piece)` finds them later. All parsers
    in all threads share the rows. A piece always leads to the same row, so no lock is needed.
    """
    known = row.get(text)
    if known is not None:
        return known
    reached = row
    for character in text:
        following = reached.get(character if character < "\x80" else None)
        if following is None:
            return None
        reached = following
    if len(text) <= _LONGEST_LEARNT and len(row) < _MOST_LEARNT:
        row[text] = reached
    return reached


# ------------------------------------------------------------------------------------------------- whole tags


class Inside(NamedTuple):
    """The tags that have a meaning inside a block."""

    shape: re.Pattern[str]
    """Finds the closing tag, which has a group 1, and candidates that may open a nested block."""
    cut_off: Callable[[], Row]
    """Returns the row after the `<` of a candidate."""


class Opening:
    """An opening tag."""

    # Not a named tuple: slots are read faster, and a parser reads four of them for each block.
    __slots__ = ("inside", "name", "self_closing", "type")

    def __init__(self, type: str, name: str | None, inside: Inside, *, self_closing: bool = False) -> None:
        self.type = type
        self.name = name
        self.inside = inside
        self.self_closing = self_closing


_ATTRIBUTE = re.compile(r"""\s++([^\s"'=<>/]++)\s*+=\s*+(?:"([^"<>]*+)"|'([^'<>]*+)')""", re.ASCII)
# The same, and values quoted as in a JSON string, \"plan\", where a bare quote would end the string. Compiled on use.
_NESTED_ATTRIBUTE = _ATTRIBUTE.pattern.removesuffix(")") + r'|\\"([^"<>]*?)\\")'

# Most blocks have no `<` in their content. Such a block is found as a whole, with its content in group 3 if that may
# begin with a JSON value, else in group 4.
_OPENING = re.compile(
    rf"(<(block|{'|'.join(CORE_TYPES)})(?:>|\s[^<>]*+>))(?:(?:([\[{{ \t-\r][^<]*+)|([^<]*+))</\2>)?", re.ASCII
)
_BLOCK = Inside(re.compile(r"<(?:(/)block\s*+|block\s[^<>]*+)>", re.ASCII), _inside_block)


@cache
def _shorthand(word: str) -> Inside:
    return Inside(re.compile(rf"<(/){word}\s*+>", re.ASCII), partial(_inside_shorthand, word))


def find_opening(text: str, at: int) -> tuple[int, int, Opening, str | None] | None:
    """Searches `text`, from `at` outside all blocks, for an opening tag.

    Returns where the tag starts and ends, the tag, and None. If the block has no other tag inside, or is self-closing,
    returns the end of the whole block instead of the tag's, and the block's content instead of None.
    """
    while (candidate := _OPENING.search(text, at)) is not None:
        opening = read_opening(candidate[1])
        start, at = candidate.span()
        if opening is None:
            continue
        if opening.self_closing:
            return start, candidate.end(1), opening, ""
        content = candidate[3]
        if content is None:
            return start, at, opening, candidate[4]
        if (  # most contents have no quotes that may be open, so that the two functions need not be called
            (content.count('"') & 1 or "'" in content or "\\" in content)
            and may_end_in_a_string(content)
            and JsonValue().feed(content) is None
        ):
            return start, candidate.end(1), opening, None
        return start, at, opening, content
    return None


def find_change(inside: Inside, text: str, at: int) -> tuple[int, int, int] | None:
    """Searches `text`, from `at` in a block, for a tag that changes the level. Returns its start, end and change."""
    while (candidate := inside.shape.search(text, at)) is not None:
        start, at = candidate.span()
        change = _level_change(candidate)
        if change != 0:
            return start, at, change
    return None


def find_close(inside: Inside, text: str, at: int, level: int) -> tuple[int, int, int]:
    """Searches `text` from `at` for the tag that closes the outermost of `level` open blocks.

    Returns its start, its end, and 0. If there is none, returns -1, -1, and the number of blocks that are still open.
    """
    while (candidate := inside.shape.search(text, at)) is not None:
        start, at = candidate.span()
        level += _level_change(candidate)
        if level == 0:
            return start, at, 0
    return -1, -1, level


def find_end(inside: Inside, text: str, at: int) -> tuple[int, int, bool] | None:
    """Searches a complete text, from the start of a block's content, for the tag that ends the block.

    Returns its start, its end, and whether it is inside a JSON value that the end of the text cuts off.
    """
    first = find_change(inside, text, at)
    if first is None:
        return None
    cut_off = False
    if may_end_in_a_string(text[at : first[0]]):
        value_end = JsonValue().feed(text, at)
        cut_off = value_end is None
        if value_end is not None and value_end != BROKEN:
            at = value_end
    start, end, level = find_close(inside, text, at, level=1)
    return None if level > 0 else (start, end, cut_off)


def level_change(inside: Inside, markup: str) -> int:
    """How a candidate, from its `<` to its `>`, changes the level in a block: -1, 1, or 0 if it is not a tag there."""
    candidate = inside.shape.fullmatch(markup)
    return 0 if candidate is None else _level_change(candidate)


def _level_change(candidate: re.Match[str]) -> int:
    if candidate.lastindex is not None:
        return -1
    return 1 if _nests(candidate[0]) else 0


_LONGEST_REMEMBERED = 256  # characters; bounds the memory, together with the number of tags
_MOST_REMEMBERED = 512
_Meaning = TypeVar("_Meaning")


class Remembered(dict[str, _Meaning]):
    """A cache of the meanings of tags, since a text uses the same few tags again and again.

    A dict, so that a hit needs no call of a Python function. Threads may share it, since a tag always means the same.
    """

    def __init__(self, read: Callable[[str], _Meaning]) -> None:
        self._read = read

    def __missing__(self, markup: str) -> _Meaning:
        meaning = self._read(markup)
        if len(markup) <= _LONGEST_REMEMBERED:
            if len(self) >= _MOST_REMEMBERED:
                self.clear()
            self[markup] = meaning
        return meaning


def _read_opening(markup: str) -> Opening | None:
    shape = _OPENING.fullmatch(markup)
    if shape is None or shape[1] != markup:
        return None
    word = shape[2]
    attributes, ending = _read_attributes(_ATTRIBUTE, markup, shape.end(2))
    name = attributes.get("name")
    if word != "block":
        return Opening(word, name, _shorthand(word)) if ending == ">" else None
    if ending not in (">", "/>") or not _is_typed(attributes):
        return None
    return Opening(attributes["type"], name, _BLOCK, self_closing=ending == "/>")


read_opening = Remembered(_read_opening).__getitem__
"""The opening tag that a candidate, from its `<` to its `>`, is outside all blocks; None if it is not a tag there."""


def _read_nesting(markup: str) -> bool:
    attribute = re.compile(_NESTED_ATTRIBUTE, re.ASCII)
    attributes, ending = _read_attributes(attribute, markup, len("<block"))
    return ending == ">" and _is_typed(attributes)


_nests = Remembered(_read_nesting).__getitem__
"""Whether a candidate, from its `<` to its `>`, opens a block inside a canonical one."""


def _read_attributes(attribute: re.Pattern[str], markup: str, at: int) -> tuple[dict[str, str], str]:
    """The first `type` and the first `name` from `at` on, and the text after all attributes."""
    found: dict[str, str] = {}
    while (pair := attribute.match(markup, at)) is not None:
        at = pair.end()
        key, *values = pair.groups()
        if key in ("type", "name"):
            found.setdefault(key, next(value for value in values if value is not None))
    return found, markup[at:].lstrip(ASCII_SPACE)


def _is_typed(attributes: dict[str, str]) -> bool:
    return attributes.get("type", "").strip(ASCII_SPACE) != ""
