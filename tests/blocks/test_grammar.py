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


# The places in a text, each with the slow reader's verdict on a tag there.
PLACES: dict[str, tuple[Place, Callable[[str], bool]]] = {
    "outside": (OUTSIDE, opens),
    "in a block": (inside('<block type="a">'), counts_inside("block")),
    "in a final": (inside("<final>"), counts_inside("final")),
    "in a command": (inside("<command name='a'>"), counts_inside("command")),
}
everywhere = pytest.mark.parametrize("place, is_tag", PLACES.values(), ids=PLACES)

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
    for place, is_tag in PLACES.values():
        assert (place.shortened(candidate) is not None) == can_become_a_tag(candidate, is_tag)


def states(place: Place) -> Iterator[tuple[str, str]]:
    """Every candidate to which a text can be shortened, after one such text."""
    alphabet = sorted({*"".join(WORDS), *ASCII_SPACE, *"\"'=/\\", "x", "é"})
    seen, reached = {"<"}, [("<", "<")]
    for text, state in reached:
        yield text, state
        for character in alphabet:
            following = place.shortened(state + character)
            if following is not None and following not in seen:
                seen.add(following)
                reached.append((text + character, following))


@everywhere
def test_every_character_after_an_incomplete_tag_is_judged_right(place: Place, is_tag: Callable[[str], bool]) -> None:
    characters = [*map(chr, range(128)), "\x80", "é", "\xa0", "漢", "\U0001f600", "\ud800"]
    for text, state in states(place):
        for character in characters:
            candidate = f"{text}{character}"
            viable = character not in "<>" and can_become_a_tag(candidate, is_tag)
            assert (place.shortened(state + character) is not None) == viable, candidate


def through(place: Place, pieces: list[str]) -> str | None:
    reached: str | None = "<"
    for piece in pieces:
        reached = None if reached is None else place.shortened(reached + piece)
    return reached


@given(candidates(), st.integers(0, 40))
def test_pieces_lead_where_their_characters_lead(markup: str, cut: int) -> None:
    text = markup[1:-1]
    for place, _ in PLACES.values():
        whole = through(place, [text])
        assert through(place, list(text)) == through(place, [text[:cut], text[cut:]]) == whole


def test_some_tags_are_remembered() -> None:
    remembered = Remembered(str.upper)
    assert [remembered[text] for text in ("a", "x" * 1000, "a")] == ["A", "X" * 1000, "A"]
    assert max(len(remembered) for number in range(2000) if remembered[f"t{number}"]) == 512
