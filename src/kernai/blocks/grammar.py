"""The tag grammar of the block protocol, shared by both parsers.

A *candidate* is a `<` and what follows it, up to the first `>` or the next `<`; no tag contains either. A complete
candidate, `<...>`, is found by a regular expression for its rough shape, and then read attribute by attribute. A
candidate that is cut off, `<...`, is read in the same way, to know whether it can still become a tag. So a parser that
is fed in pieces holds text back only as long as that is possible.

Which tags have a meaning depends on the place: outside all blocks, opening tags; inside a canonical block, its closing
tag and nested opening tags; inside a shorthand block, only its own closing tag. In a JSON value at the start of a
block's content, no tag has a meaning, see `json_pieces`.

The expressions look at each character a few times at most, so the time is linear for any text. They repeat only single
characters, not groups: Python 3.11.2 has a bug with possessive groups, and other groups use memory for each repetition.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from kernai.jsonio.json_pieces import BROKEN, JsonValue, may_end_in_a_string

CORE_TYPES = ("command", "json", "final", "plan", "result", "error")
"""The types with a shorthand: `<final>...</final>` means `<block type="final">...</block>`."""

ASCII_SPACE = " \t\n\r\f\v"
"""White space in tags, blank values and segments. ASCII only, like `\\s` under `re.ASCII`."""

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


# ----------------------------------------------------------------------------------------------- cut-off tags

_WORD = r"<(/?[a-z]*+)"
#: what may follow the complete attributes of a tag that is cut off; not compiled here, since few texts need it
_REST = r"""(\s*+)(?:(/)|(?<=\s)([^\s"'=<>/]++)(\s*+)(?:(=)\s*+("[^"<>]*+|'[^'<>]*+{escaped})?)?)?"""
_ESCAPED_VALUE = r'|\\(?:"[^"<>]*+)?'


class Place:
    """A kind of place in a text: outside all blocks, or inside a block.

    `words` are those of the tags that have a meaning there, and `shape` finds candidates with these words; inside a
    block, group 1 of its match is set for the closing tag. `nests`: blocks may be nested there, and their attributes
    may be quoted as in a JSON string.
    """

    def __init__(self, shape: re.Pattern[str], *words: str, nests: bool = False) -> None:
        self.shape = shape
        self._words = words
        self._nests = nests
        #: shortens a candidate that is cut off to a text that can become a tag in the same ways; None if it cannot
        #: become one, as after any `<` or `>`. There are few such texts, and models send tags in the same few pieces
        self.shortened = Remembered(self._shortened).__getitem__

    def _shortened(self, text: str) -> str | None:
        word = re.match(_WORD, text)[1]  # type: ignore[index]  # it begins with `<`
        rest = text[len(word) + 1 :]
        if not rest:
            return text if any(one.startswith(word) for one in self._words) else None
        if word not in self._words:
            return None
        if word.startswith("/"):
            return None if rest.strip(ASCII_SPACE) else f"<{word} "
        attributes, rest = _read_attributes(rest, nested=self._nests)
        found = re.fullmatch(_REST.format(escaped=_ESCAPED_VALUE if self._nests else ""), rest, re.ASCII)
        has_type = "type" in attributes
        if found is None or (word == "block" and has_type and not _is_typed(attributes)):
            return None
        space, slash, key, space_after, equals, value = found.groups("")
        if slash and (word != "block" or self._nests or not has_type):
            return None
        short = [  # of the attributes, only `type` matters, and of a value, whether it is blank
            "<", word, " type='x'" if has_type else "", slash or (space and " "),
            key if "type".startswith(key) else "k", equals or (space_after and " "), _shortened_value(value),
        ]
        return "".join(short)


def _shortened_value(value: str) -> str:
    """The beginning of a value: its quote, whether anything but white space follows, and a backslash at the end."""
    quote = value[: 2 if value.startswith("\\") else 1]
    content = value[len(quote) :]
    end = "\\" if content.endswith("\\") else ""
    return f"{quote}{'x' if content.removesuffix(end).strip(ASCII_SPACE) else ''}{end}"


# ------------------------------------------------------------------------------------------------- whole tags


class Opening:
    """An opening tag."""

    # Not a named tuple: slots are read faster, and a parser reads four of them for each block.
    __slots__ = ("inside", "name", "self_closing", "type")

    def __init__(self, type: str, name: str | None, inside: Place, *, self_closing: bool = False) -> None:
        self.type = type
        self.name = name
        self.inside = inside
        self.self_closing = self_closing


_ATTRIBUTE = re.compile(r"""\s++([^\s"'=<>/]++)\s*+=\s*+(?:"([^"<>]*+)"|'([^'<>]*+)')""", re.ASCII)

#: also matches values quoted as in a JSON string, `\"plan\"`
_NESTED_ATTRIBUTE = _ATTRIBUTE.pattern.removesuffix(")") + r'|\\"([^"<>]*?)\\")'

# Most blocks have no `<` in their content. Such a block is found as a whole, with its content in group 3 if that may
# begin with a JSON value, else in group 4.
_OPENING = re.compile(
    rf"(<(block|{'|'.join(CORE_TYPES)})(?:>|\s[^<>]*+>))(?:(?:([\[{{ \t-\r][^<]*+)|([^<]*+))</\2>)?", re.ASCII
)
OUTSIDE = Place(_OPENING, "block", *CORE_TYPES)
"""Outside all blocks."""
_BLOCK = Place(re.compile(r"<(?:(/)block\s*+|block\s[^<>]*+)>", re.ASCII), "block", "/block", nests=True)


@cache
def _shorthand(word: str) -> Place:
    return Place(re.compile(rf"<(/){word}\s*+>", re.ASCII), f"/{word}")


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


def find_change(inside: Place, text: str, at: int) -> tuple[int, int, int] | None:
    """Searches `text`, from `at` in a block, for a tag that changes the level. Returns its start, end and change."""
    while (candidate := inside.shape.search(text, at)) is not None:
        start, at = candidate.span()
        if candidate.lastindex is not None:
            return start, at, -1
        if _nests(candidate[0]):
            return start, at, 1
    return None


def find_close(inside: Place, text: str, at: int, level: int) -> tuple[int, int, int]:
    """Searches `text` from `at` for the tag that closes the outermost of `level` open blocks.

    Returns its start, its end, and 0. If there is none, returns -1, -1, and the number of blocks that are still open.
    """
    while (found := find_change(inside, text, at)) is not None:
        start, at, change = found
        level += change
        if level == 0:
            return start, at, 0
    return -1, -1, level


def find_end(inside: Place, text: str, at: int) -> tuple[int, int, bool] | None:
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


def _read_opening(markup: str) -> Opening | None:
    word: str = _OPENING.match(markup)[2]  # type: ignore[index]  # it is a candidate
    attributes, ending = _read_attributes(markup[len(word) + 1 :])
    ending = ending.lstrip(ASCII_SPACE)
    name = attributes.get("name")
    if word != "block":
        return Opening(word, name, _shorthand(word)) if ending == ">" else None
    if ending not in (">", "/>") or not _is_typed(attributes):
        return None
    return Opening(attributes["type"], name, _BLOCK, self_closing=ending == "/>")


read_opening = Remembered(_read_opening).__getitem__
"""The opening tag that a candidate of `OUTSIDE`, from its `<` to its `>`, is there; None if it is not a tag."""


def _read_nesting(markup: str) -> bool:
    attributes, ending = _read_attributes(markup.removeprefix("<block"), nested=True)
    return ending.lstrip(ASCII_SPACE) == ">" and _is_typed(attributes)


_nests = Remembered(_read_nesting).__getitem__
"""Whether a candidate, from its `<` to its `>`, opens a block inside a canonical one."""


def _read_attributes(text: str, *, nested: bool = False) -> tuple[dict[str, str], str]:
    """The first `type` and the first `name` at the start of a text, and the text after all attributes."""
    attribute = re.compile(_NESTED_ATTRIBUTE, re.ASCII) if nested else _ATTRIBUTE
    found: dict[str, str] = {}
    at = 0
    while (pair := attribute.match(text, at)) is not None:
        at = pair.end()
        key, *values = pair.groups()
        if key in ("type", "name"):
            found.setdefault(key, next(value for value in values if value is not None))
    return found, text[at:]


def _is_typed(attributes: dict[str, str]) -> bool:
    return attributes.get("type", "").strip(ASCII_SPACE) != ""
