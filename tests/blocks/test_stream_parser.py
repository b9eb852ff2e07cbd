"""`StreamParser` finds the same contents however a text is cut into pieces."""

from __future__ import annotations

import contextlib
import gc
import random
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernai import Block, StreamParser, arun
from kernai.testing.contracts import at_once
from tests.blocks.parser_cases import (
    CASES,
    EVENTS,
    TEXTS,
    VALUE_TEXTS,
    Case,
    Found,
    add_up,
    cut_texts,
    events_of,
    final,
    found_in,
    heard_by,
    pieces_of,
    streamed,
)
from tests.blocks.slow_reader import value_at
from tests.blocks.test_grammar import PLACES, can_become_a_tag, counts_inside
from tests.properties import examples

# ------------------------------------------------------------------------------------ chunking changes nothing


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_text_contains_what_the_table_says_however_it_is_cut(case: Case) -> None:
    assert streamed(case.text) == case.found
    for cut in range(len(case.text) + 1):
        assert streamed([case.text[:cut], case.text[cut:]]) == case.found
    spaced = [piece for character in case.text for piece in (character, "", "")]
    assert events_of(["", *spaced]) == events_of(case.text), "empty pieces change nothing"


@pytest.mark.slow
@examples(4)
@given(cut_texts())
def test_any_chunking_finds_what_parse_finds(pieces: list[str]) -> None:
    text = "".join(pieces)
    found = found_in(text)
    assert streamed(pieces) == found
    assert streamed([text]) == found
    assert streamed(text) == found


def test_a_parser_is_ready_for_a_new_text_after_flush() -> None:
    parser = StreamParser()
    emitted: list[Block] = []
    parser.on("block_complete", emitted.append).on("block_incomplete", emitted.append)
    for text in ("<final>a", '<block type="plan">b<block type="c">', "d <block type=", "<final>e</final>", "</final>"):
        parser.push(text)
        parser.flush()
        assert parser.completed == 0
    assert emitted == [final("a"), Block("plan", None, 'b<block type="c">'), final("e")]


# --------------------------------------------------------------------------------------------------- promptness


@pytest.mark.parametrize("text, emitted", [
    ("a < b", ["a", " ", "< ", "b"]),
    ("<<b", ["<"]),
    ("</block>", ["</", "b", "l", "o", "c", "k", ">"]),
    ("<block>x", ["<block>", "x"]),
    ("<block a='é", []),
    ("<block type='a'>b<blo</f", [{"type": "a", "name": None}, "b", "<blo", "</f"]),
    ("<block type='a'><block type='b'/", [{"type": "a", "name": None}, "<block type='b'/"]),
    ('<json>["a</json>b"', [{"type": "json", "name": None}, *'["a']),
    ('<json>["a</json>b"]', [{"type": "json", "name": None}, *'["a', '</json>b"]']),
    ('<json>["a</json>b"x', [{"type": "json", "name": None}, *'["a', 'b"x']),
    ('<json>["<b>"', [{"type": "json", "name": None}, *'["', "<b", ">", '"']),
    ("<block type='a'>[\"<block type='b'></block>c", [{"type": "a", "name": None}, *'["', "<block type='b'>", "</block>", "c"]),
])
@pytest.mark.parametrize("size", [1, 99])
def test_text_is_emitted_once_it_can_no_longer_be_part_of_a_tag(text: str, emitted: list[object], size: int) -> None:
    received: list[object] = []
    parser = StreamParser()
    for event in ("text_chunk", "block_start", "block_content"):
        parser.on(event, received.append)
    for piece in pieces_of(text, size):
        parser.push(piece)
    assert size > 1 or received == emitted
    assert "".join(map(str, received)) == "".join(map(str, emitted))


@pytest.mark.slow
@examples(2)
@given(TEXTS | VALUE_TEXTS)
def test_only_text_that_can_become_a_tag_is_held_back(text: str) -> None:
    parser = StreamParser()
    emitted = heard_by(parser)
    for character in text:
        parser.push(character)
    prompt = len(emitted)
    parser.flush()
    if parser.certain is not None:  # what follows a tag in an open value is held to the end
        assert emitted[prompt][0] == "block_complete"
        assert value_at(emitted[prompt][1].content, 0)[1]
        return
    held = [data for event, data in emitted[prompt:] if event != "block_incomplete"]
    places = [PLACES["outside"][1]]
    if emitted and emitted[-1][0] == "block_incomplete":
        places = [counts_inside("block"), counts_inside(emitted[-1][1].type)]  # the type does not show a shorthand
    assert len(held) <= 1
    assert all(any(can_become_a_tag(candidate, is_tag) for is_tag in places) for candidate in held)


# ---------------------------------------------------------------------------------------------------- listeners


def test_a_wrong_argument_of_on_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match=f"event must be one of {', '.join(EVENTS)}, got 'blocks'"):
        StreamParser().on("blocks", print)
    for fn in ("print", arun):
        with pytest.raises(TypeError, match=r"fn must be a plain function of the event's data, got ('print'|<function)"):
            StreamParser().on("text_chunk", fn)  # type: ignore[arg-type]


@pytest.mark.parametrize("chunk", [b"a", b"<", None, 1])
@pytest.mark.parametrize("before", ["", "a", "<fin", "<final>", "<final>a</"])
def test_anything_but_text_is_a_type_error_and_breaks_nothing(chunk: Any, before: str) -> None:
    parser = StreamParser()
    emitted: list[Block] = []
    parser.on("block_complete", emitted.append).push(before)
    with pytest.raises(TypeError, match=r"chunk must be a str, got \w+; decode"):
        parser.push(chunk)
    parser.push("<final>x</final>".removeprefix(before) if before != "a" else "<final>x</final>")
    parser.push("</final>")
    assert len(emitted) == 1


def test_a_listeners_own_type_error_is_its_own() -> None:
    with pytest.raises(TypeError, match="unsupported"):
        StreamParser().on("text_chunk", lambda text: text - 1).push("a")


@pytest.mark.parametrize("text", ["", "a", "a <fin", "<final>", "<final>a", "<final>a</fi"])
def test_a_late_listener_receives_what_follows(text: str) -> None:
    parser = StreamParser()
    parser.push(text)
    received: list[str] = []
    parser.on("text_chunk", received.append).on("block_content", received.append).push("!b")
    parser.flush()
    assert "".join(received).endswith("!b")


class Refused(Exception):  # noqa: N818 - not an error but a listener's refusal
    """What a listener raises."""


@pytest.mark.slow
@examples(2)
@given(cut_texts(), st.sets(st.sampled_from(EVENTS)))
def test_no_event_is_lost_or_repeated_when_a_listener_raises(pieces: list[str], stubborn: set[str]) -> None:
    received: list[tuple[str, Any]] = []
    parser = StreamParser()

    def listen(event: str) -> Callable[[Any], None]:
        def listener(data: Any) -> None:
            received.append((event, data))
            if event in stubborn:
                raise Refused

        return listener

    def insist(action: Callable[..., None], *arguments: str) -> None:
        try:
            action(*arguments)
        except Refused:
            assert stubborn

    for event in EVENTS:
        parser.on(event, listen(event))
    for piece in pieces:
        insist(parser.push, piece)
    for _ in range(3 * len("".join(pieces)) + 3):  # each call may be refused
        insist(parser.flush)
    assert replace(add_up(received), certain=None) == replace(found_in("".join(pieces)), certain=None)


@pytest.mark.parametrize("event", EVENTS)
def test_listeners_are_called_in_their_order_also_with_the_event_that_the_first_refused(event: str) -> None:
    def refuse(data: object) -> None:
        raise Refused

    text = "a<final>b</final><json>c"
    received: list[object] = []
    parser = StreamParser().on(event, refuse)
    for number in (2, 3):
        parser.on(event, lambda data, number=number: received.append((number, data)))  # type: ignore[misc]
    with contextlib.suppress(Refused):
        parser.push(text)
    with contextlib.suppress(Refused):
        parser.flush()
    assert received == [(number, data) for kind, data in events_of([text]) if kind == event for number in (2, 3)]


# --------------------------------------------------------------------- hostile texts, which only linear time can handle


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 4, 4096])
@pytest.mark.parametrize(
    "piece", ["<", "</", "<block ", '<block type="a', "<block a='' ", "<final", "<final ", "</final ", "a < b > c "]
)
def test_a_block_after_many_near_tags_is_found(piece: str, size: int) -> None:
    noise = piece * (50_000 // len(piece))
    assert streamed(pieces_of(f"{noise}<final>x</final>", size)) == Found([final("x")], [noise])
    assert found_in(f"{noise * 20}<final>x</final>") == Found([final("x")], [noise * 20])


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 40_000])
@pytest.mark.parametrize(
    "piece",
    ['<json>["</json>', '<json>[\\"</json>', "<json>['</json>", """<json>["',"</json>""", '<json>{"a": "\\"</json>\\\\'],
)
def test_many_values_that_never_end_take_linear_time(piece: str, size: int) -> None:
    text = piece * (40_000 // len(piece))
    assert streamed(pieces_of(text, size)) == found_in(text)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 4096])
@pytest.mark.parametrize("content", [
    *(f'["{tag * (60_000 // len(tag))}"]' for tag in ("</json>", "<block type='b'>", "<b ", "<block type='")),
    "[" * 50_000 + '"</json>"' + "]" * 50_000, '<block type="a">' * 10_000 + "</block>" * 10_000,
], ids=range(6))
def test_a_content_full_of_tags_or_levels_takes_linear_time(content: str, size: int) -> None:
    for opening, close in (("<json>", "</json>"), ('<block type="json">', "</block>")):
        text = f"{opening}{content}{close}"
        assert streamed(pieces_of(text, size)) == found_in(text) == Found([Block("json", None, content)])


@pytest.mark.slow
@pytest.mark.parametrize("size", [7, 1000])
def test_a_tag_of_a_megabyte_is_held_and_read(size: int) -> None:
    tag = f'<block name="{"né" * 250_000}" type="x"{" " * 500_000}>'
    assert streamed(pieces_of(f"{tag}</block>", size)) == Found([Block("x", "né" * 250_000, "")])
    assert streamed(pieces_of(tag[:-1], size)) == Found([], [tag[:-1]])


@pytest.mark.slow
@pytest.mark.parametrize("before, most", [("<final>a</final>", 10_000), ("<final>", 3 * 2 * 100_000)])
def test_an_open_block_takes_memory_for_its_characters_not_for_its_pieces_and_prose_takes_none(before: str, most: int) -> None:
    parser = StreamParser()
    parser.push(before)
    tracemalloc.start()
    for _ in range(100_000):
        parser.push(chr(0x6F22))
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < most


def test_parsers_in_many_threads_share_what_the_grammar_learns() -> None:
    text = "".join(case.text for case in CASES if case.found.incomplete is None)
    whole = streamed([text])
    found: list[Found] = []

    def read(seed: int) -> None:
        cuts = sorted(random.Random(seed).sample(range(len(text)), len(text) // 3))
        found.append(streamed(text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)))

    assert at_once(read, 8) == []
    assert found == [whole] * 8
