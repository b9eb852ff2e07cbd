"""The grammar: the meaning of complete tags, and whether an incomplete one can still become a tag."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernai.blocks.grammar import (
    ASCII_SPACE,
    CORE_TYPES,
    OUTSIDE,
    CutOff,
    Place,
    Remembered,
    level_change,
    read_opening,
)
from tests.blocks.slow_reader import level_at, opening_at
from tests.properties import examples

pytestmark = pytest.mark.slow


def inside(tag: str) -> Place:
    opening = read_opening(tag)
    assert opening is not None
    return opening.inside


def opens(markup: str) -> bool:
    opening = opening_at(markup, 0)
    return opening is not None and opening[2] == len(markup)


def counts_inside(word: str) -> Callable[[str], bool]:
    def counts(markup: str) -> bool:
        change, end = level_at(markup, 0, word)
        return change != 0 and end == len(markup)

    return counts


# The places in a text, each with the grammar's state there, and the slow reader's verdict on a tag there.
PLACES: dict[str, tuple[CutOff, Callable[[str], bool]]] = {
    "outside": (OUTSIDE.start, opens),
    "in a block": (inside('<block type="a">').start, counts_inside("block")),
    "in a final": (inside("<final>").start, counts_inside("final")),
    "in a command": (inside("<command name='a'>").start, counts_inside("command")),
}
place = pytest.mark.parametrize("start, is_tag", PLACES.values(), ids=PLACES)

WORDS = ("block", *CORE_TYPES, "/block", *(f"/{word}" for word in CORE_TYPES))
TAIL = ' type="a"'
# A text that can become a tag becomes one with one of these: the rest of a word or an attribute, a type, the end.
COMPLETIONS = [
    *(word[at:] + tail for word in WORDS for at in range(len(word) + 1) for tail in ("", TAIL)),
    *(begin + TAIL for begin in ('="a"', '"a"', '"', "'", 'a"', "a'", '"a\\"', 'a\\"', '\\"')),
    'type="a"',
]


def can_become_a_tag(candidate: str, is_tag: Callable[[str], bool]) -> bool:
    return any(is_tag(f"{candidate}{completion}>") for completion in COMPLETIONS)


# ------------------------------------------------------------------------------------------------- whole tags

VALUES = st.text(alphabet="ab \n'\"\\=/\xa0é漢", max_size=4)
QUOTES = st.sampled_from([('"', '"'), ("'", "'"), ('\\"', '\\"'), ('"', "'"), ("", ""), ("", '"'), ('\\"', '"')])
SPACES = st.text(alphabet=ASCII_SPACE, min_size=1, max_size=2)
MAYBE_SPACES = st.sampled_from(["", " ", "\n\t"])
KEYS = st.sampled_from(["type", "name", "id", "typ", "types", "é", "\\"])


@st.composite
def attributes(draw: st.DrawFn) -> str:
    before, after = draw(QUOTES)
    gap = draw(SPACES | st.just(""))
    return f"{gap}{draw(KEYS)}{draw(MAYBE_SPACES)}={draw(MAYBE_SPACES)}{before}{draw(VALUES)}{after}"


@st.composite
def candidates(draw: st.DrawFn) -> str:
    """Tags and texts that are almost tags, each from its `<` to its `>`."""
    word = draw(st.sampled_from(WORDS))
    some = "".join(draw(st.lists(attributes(), max_size=3)))
    return f"<{word}{some}{draw(MAYBE_SPACES)}{draw(st.sampled_from(['', '', '', '/', 'x', ' /']))}>"


@st.composite
def tags(draw: st.DrawFn) -> str:
    """Well-formed opening tags, half of them with escaped quotes."""
    double = draw(st.sampled_from(['"', '\\"']))
    pairs = draw(st.lists(st.tuples(KEYS, VALUES, st.sampled_from([double, "'"])), max_size=3))
    pairs.insert(draw(st.integers(0, len(pairs))), ("type", "a", double))
    some = [
        f"{draw(SPACES)}{key}={quote}{value.strip(chr(92) + chr(34) + chr(39))}{quote}" for key, value, quote in pairs
    ]
    return f"<block{''.join(some)}{draw(MAYBE_SPACES)}{draw(st.sampled_from(['', '', '/']))}>"


@examples(2)
@given(tags() | candidates())
def test_a_complete_tag_opens_what_the_slow_reader_says(markup: str) -> None:
    opening, expected = read_opening(markup), opening_at(markup, 0)
    assert (opening is None) == (expected is None)
    if opening is not None and expected is not None:
        block, word, end = expected
        assert (opening.type, opening.name, end) == (block.type, block.name, len(markup))
        assert opening.self_closing == (word == "")
        assert word in {"", "block"} or level_change(opening.inside, f"</{word}>") == -1


@examples(2)
@given(tags() | candidates())
def test_a_complete_tag_changes_the_level_as_the_slow_reader_says(markup: str) -> None:
    for tag, word in (('<block type="a">', "block"), ("<final>", "final")):
        assert level_change(inside(tag), markup) == level_at(markup, 0, word)[0]


def test_only_a_complete_tag_is_read() -> None:
    assert [read_opening(text) for text in ("", "<", "<final", " <final>", "<final> ", "<final>x</final>")] == [
        None
    ] * 6


# ----------------------------------------------------------------------------------------------- cut-off tags


@examples(2)
@given(candidates(), st.integers(1, 60), st.sampled_from(["", "", " ", "x", '"', "\\", "=", "/", "é"]))
def test_incomplete_tags_are_known_to_be_completable_or_not(markup: str, cut: int, noise: str) -> None:
    candidate = markup[:-1][:cut] + noise
    for start, is_tag in PLACES.values():
        assert (start.advance(candidate[1:]) is not None) == can_become_a_tag(candidate, is_tag)


def states(start: CutOff) -> Iterator[tuple[str, CutOff]]:
    """Every state that a text can reach, with one text that does."""
    alphabet = sorted({*"".join(WORDS), *ASCII_SPACE, *"\"'=/\\", "x", "é"})
    seen, reached = {id(start)}, [("", start)]
    for text, state in reached:
        yield text, state
        for character in alphabet:
            following = state.advance(character)
            if following is not None and id(following) not in seen:
                seen.add(id(following))
                reached.append((text + character, following))


@place
def test_every_character_after_an_incomplete_tag_is_judged_right(start: CutOff, is_tag: Callable[[str], bool]) -> None:
    characters = [*map(chr, range(128)), "\x80", "é", "\xa0", "漢", "\U0001f600", "\ud800"]
    for text, state in states(start):
        for character in characters:
            candidate = f"<{text}{character}"
            viable = character not in "<>" and can_become_a_tag(candidate, is_tag)
            assert (state.advance(character) is not None) == viable, candidate


def through(start: CutOff, pieces: list[str]) -> CutOff | None:
    reached: CutOff | None = start
    for piece in pieces:
        reached = None if reached is None else reached.advance(piece)
    return reached


@given(candidates(), st.integers(0, 40))
def test_pieces_lead_where_their_characters_lead(markup: str, cut: int) -> None:
    text = markup[1:-1]
    for start, _ in PLACES.values():
        whole = start.advance(text)
        assert through(start, list(text)) is whole
        assert through(start, [text[:cut], text[cut:]]) is whole


def test_some_pieces_and_tags_are_remembered() -> None:
    value = OUTSIDE.start.advance("block id='a")
    assert value is not None
    for piece in (*(f"piece {number}" for number in range(10_000)), "x" * 1000):
        assert value.advance(piece) is value
    assert (value.get("piece 0"), value.get("x" * 1000), len(value) <= 512) == (value, None, True)
    remembered = Remembered(str.upper)
    assert [remembered[text] for text in ("a", "x" * 1000, "a")] == ["A", "X" * 1000, "A"]
    assert max(len(remembered) for number in range(2000) if remembered[f"t{number}"]) == 512
