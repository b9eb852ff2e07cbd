"""The grammar: the meaning of complete tags, and whether an incomplete one can still become a tag."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kernai.blocks.grammar import ASCII_SPACE, CORE_TYPES, OUTSIDE, Place, Remembered, read_opening
from tests.blocks.slow_reader import level_at, opening_at

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


ALPHABET = {*"".join(WORDS), *TAIL, *ASCII_SPACE, *"'/\\xé"}
#: after these, the rest is read as after `<final `
ALIKE = tuple(f"<{word} " for word in CORE_TYPES if word != "final")


def states(place: Place) -> Iterator[tuple[str, str]]:
    """Every candidate to which a text can be shortened, after one such text."""
    seen, reached = {"<"}, [("<", "<")]
    for text, state in reached:
        yield text, state
        for character in sorted(ALPHABET):
            following = place.shortened(state + character)
            if following is not None and following not in seen and not following.startswith(ALIKE):
                seen.add(following)
                reached.append((text + character, following))


@everywhere
def test_every_character_after_an_incomplete_tag_is_judged_right(place: Place, is_tag: Callable[[str], bool]) -> None:
    # any other character is to the grammar what those at the end are
    characters = {*ALPHABET, *"<>&-zB7\0\x1c\x7f\x80\xa0漢\U0001f600\ud800"}
    for text, state in states(place):
        for character in characters:
            candidate = f"{text}{character}"
            viable = character not in "<>" and can_become_a_tag(candidate, is_tag)
            assert (place.shortened(state + character) is not None) == viable, candidate


def test_some_tags_are_remembered() -> None:
    remembered = Remembered(str.upper)
    assert [remembered[text] for text in ("a", "x" * 1000, "a")] == ["A", "X" * 1000, "A"]
    assert max(len(remembered) for number in range(2000) if remembered[f"t{number}"]) == 512
