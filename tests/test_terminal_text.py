"""Text from a model or a tool cannot control the terminal it is shown on."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernai.terminal_text import one_line, printable


@pytest.mark.parametrize(
    "text, shown",
    [
        ("plain text\n\twith a tab", "plain text\n\twith a tab"),
        ("\x1b[31mred\x1b[0m", "[31mred[0m"),
        ("\x1b]0;a title\x07text", "]0;a titletext"),
        ("over\rwritten \x00\x07\x7f\x9b2J", "overwritten 2J"),
        ("a\u202egpj.exe", "a\ufffdgpj.exe"),
        ("\u2066isolated\u2069", "\ufffdisolated\ufffd"),
        ("one\u2028line", "one\ufffdline"),
        ("half a pair \ud800", "half a pair \ufffd"),
        ("クランプ مصباح 👷🏽‍♀️", "クランプ مصباح 👷🏽‍♀️"),
    ],
)
def test_characters_that_would_control_a_terminal_are_removed_or_replaced(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters()))
def test_any_text_can_be_written_and_holds_no_control_character(text: str) -> None:
    shown = printable(text)
    shown.encode("utf-8")
    assert not any(unicodedata.category(char) == "Cc" for char in shown if char not in "\n\t")


@pytest.mark.parametrize(
    "value, width, shown",
    [
        ("short", 10, "short"),
        ("two\n  lines\tand a tab", 40, "two lines and a tab"),
        ("x" * 1500, 40, "x" * 18 + "... (1,500 characters)"),
        ("x" * 1500, 5, "... (1,500 characters)"),
        ({"name": "クランプ"}, 40, '{"name": "クランプ"}'),
        ([1, None, object], 40, '[1, null, "<class \'object\'>"]'),
        ("\x1b[2Jgone", 40, "[2Jgone"),
    ],
)
def test_a_long_value_is_cut_to_one_line_and_says_how_much_was_cut(value: object, width: int, shown: str) -> None:
    assert one_line(value, width) == shown
