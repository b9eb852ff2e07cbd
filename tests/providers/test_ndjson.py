"""Lines from bytes that are cut anywhere."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernai_providers.stream_decoders import ByteLines, LineDecoder

BOM = b"\xef\xbb\xbf"
# what a body may be made of, so that every rule meets every other one
PARTS = st.sampled_from([
    b"\n", b"\r", b"\r\n", b"\n\n", b"a", b"{}", b" ", BOM, b"\xef\xbb", "漢".encode(), "\U0001f600".encode(),
    b"\xff", b"\xe6\xbc", b"\xf0\x9f\x98", b"\x98", "\u2028".encode(), b"\x0b\x0c\x1c\x85", b"\0",
])  # fmt: skip
BODIES = st.lists(PARTS, max_size=24).map(b"".join)


def decoded(chunks: list[bytes]) -> list[str]:
    decoder = LineDecoder()
    lines = [line for chunk in chunks for line in decoder.feed(chunk)]
    return lines + decoder.flush()


def by_the_rule(body: bytes) -> list[str]:
    """The rule said plainly, for a whole body."""
    text = body.decode("utf-8", "replace").removeprefix("\ufeff")
    return [line for line in re.split("\r\n|\n|\r", text) if line]


@st.composite
def cut_bodies(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    body = draw(BODIES)
    cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=8)))
    return body, [body[start:end] for start, end in pairwise([0, *cuts, len(body)])]


@given(cut_bodies())
def test_however_a_body_is_cut_the_lines_are_those_of_the_rule(case: tuple[bytes, list[bytes]]) -> None:
    body, chunks = case
    assert decoded(chunks) == by_the_rule(body)
    assert decoded([body[at : at + 1] for at in range(len(body))]) == by_the_rule(body)


def test_a_line_is_given_with_the_byte_that_ends_it_and_not_before() -> None:
    decoder = LineDecoder()
    for end in (b"\n", b"\r"):
        assert decoder.feed(b'{"a": 1}') == []
        assert decoder.feed(end) == ['{"a": 1}']
    assert decoder.feed(b"\n") == []  # belongs to the CR before
    assert decoder.feed(b"x\n") == ["x"]


def test_what_only_looks_like_a_line_break_is_text() -> None:
    inside = "\u2028\u2029\u0085\x0b\x0c\x1c\x1d\x1e"
    assert decoded([f"a{inside}b\n".encode()]) == [f"a{inside}b"]


@pytest.mark.parametrize(
    "body,lines",
    [
        (b"", []),
        (BOM, []),
        (BOM + BOM + b"a\n", ["\ufeffa"]),
        (b"a\n" + BOM + b"b\n", ["a", "\ufeffb"]),
        (b"\n" + BOM + b"b", ["\ufeffb"]),
        (b"\xef\xbb", ["\ufffd"]),
        (b"a\xffb\n", ["a\ufffdb"]),
        (b"\xe6\xbc\nb", ["\ufffd", "b"]),  # a character that was cut is one mark, and the line ends where it ends
        (b"\xf0\x9f\x98", ["\ufffd"]),
        (b"\xc0\x80\n", ["\ufffd\ufffd"]),
        (b"\r\r\n\n\r", []),
    ],
)
def test_marks_and_bytes_that_are_no_characters(body: bytes, lines: list[str]) -> None:
    assert decoded([body]) == lines == by_the_rule(body)


def test_a_decoder_is_as_new_after_a_flush() -> None:
    decoder = LineDecoder()
    assert decoder.feed(b"a\r") == ["a"]
    assert decoder.flush() == []
    assert decoder.feed(BOM + b"\nb") == []
    assert decoder.flush() == ["b"]
    decoder.feed(b"x\n\xe6")
    assert decoder.flush() == ["\ufffd"]
    assert decoder.flush() == []


def test_the_lower_half_keeps_empty_lines_and_bytes() -> None:
    lines = ByteLines()
    assert lines.feed(BOM + b"a\n\r\n\xff\r") == [b"a", b"", b"\xff"]
    assert lines.flush() == []


@pytest.mark.slow
def test_a_long_line_that_comes_byte_by_byte_takes_time_in_proportion() -> None:
    # with all of it copied at each byte these were 2 * 10^12 bytes, and the suite's limit for a test that hangs would end it
    start, size = 32_000_000, 80_000
    decoder = LineDecoder()
    assert decoder.feed(b"x" * start) == []
    assert not any(decoder.feed(b"x") for _ in range(size))
    [line] = decoder.feed(b"\n")
    assert len(line) == start + size
