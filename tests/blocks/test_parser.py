"""`parse`: parsing a complete text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernai import Block, parse
from kernai.blocks.parser import parse_one
from tests.blocks.parser_cases import CASES, TEXTS, VALUE_TEXTS, Case, Found, found_in, json_block, streamed
from tests.blocks.slow_reader import read_slowly
from tests.properties import assert_linear, examples


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_text_contains_what_the_table_says(case: Case) -> None:
    assert found_in(case.text) == case.found
    assert read_slowly(case.text) == case.found


@pytest.mark.slow
@examples(4)
@given(TEXTS | VALUE_TEXTS)
def test_parse_agrees_with_the_slow_reading_of_the_rules(text: str) -> None:
    assert found_in(text) == read_slowly(text)


@given(TEXTS | VALUE_TEXTS | st.builds('{}<block type="command" name="{}">{}</block>{}'.format, *[st.text("a<{}\"'\\:, \n")] * 4))
def test_the_shortcut_for_a_single_block_finds_what_parse_finds(text: str) -> None:
    for each in (text, *(f'<block type="final">{one}</block>' for one in ('{"a', "{'a", '["\\"'))):
        if (found := parse_one(each)) is not None:
            assert parse(each) == ([found], parse(each).text_segments, None, None)


@pytest.mark.parametrize("text", [b"<final>x</final>", None, 1, ["<final>"]])
def test_anything_but_text_is_a_type_error_that_names_the_argument_and_the_fix(text: Any) -> None:
    with pytest.raises(TypeError, match=r"text must be a str, got \w+; decode"):
        parse(text)


# --------------------------------------------------------------------- hostile texts, which only linear time can handle


@pytest.mark.slow
@pytest.mark.parametrize("tag", [
    "<block" + " a=''" * 200_000 + " type='x'>",
    f'<block{" " * 1_000_000}type="x">', f'<block type="x" name="{"n" * 1_000_000}">',
    f'<block {"k" * 1_000_000}="" type="x">', f'<block type="x"{" " * 1_000_000}>',
], ids=["attributes", "white space", "name", "key", "white space at the end"])
def test_a_tag_of_a_megabyte_is_a_tag_only_if_it_is_complete(tag: str) -> None:
    assert [block.type for block in parse(f"{tag}</block>").blocks] == ["x"]
    assert parse(tag[:-1]).text_segments == [tag[:-1]]
    assert parse(f'<block type="y">{tag}</block>').incomplete == Block("y", None, f"{tag}</block>")


@pytest.mark.parametrize("piece", ["'a': 'b', ", "'it\\'s', ", "'\\\\', ", '"it\'s", ', "'", "'\"", "\\'", "'</json>', "])
@pytest.mark.parametrize("opening", ["<json>{", "<json>['"])
def test_quotes_of_any_kind_take_linear_time(opening: str, piece: str) -> None:
    assert_linear(lambda size: parse(f"{opening}{piece * (4 * size // len(piece))}</json> <final>x</final>"))


@given(st.text(alphabet="'\"\\,: a", max_size=20), st.sampled_from("[{"))
def test_quotes_of_any_kind_hide_a_tag_where_the_rules_say_so(inside: str, opening: str) -> None:
    text = f"<json>{opening}{inside}</json> x ' \" ]}}</json>"
    assert found_in(text) == read_slowly(text)


def test_a_tag_in_a_string_of_a_long_value_is_content() -> None:
    content = f'["{"x" * 5000}</json>"]'
    assert found_in(f"<json>{content}</json>") == streamed([f"<json>{content}</json>"]) == Found([json_block(content)])


@pytest.mark.parametrize("content", ['<block type="a">' * 100_000, '<block type="a">' + "x</final><b>" * 100_000 + "</block>"], ids=range(2))
def test_levels_that_never_close_are_one_incomplete_block(content: str) -> None:
    assert found_in(f'a<block type="b">{content}') == Found([], ["a"], Block("b", None, content))
