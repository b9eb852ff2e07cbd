"""Lines, and server-sent events, from bytes that are cut anywhere."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernai_providers.reader import Lines, SseDecoder
from kernai_providers.transport import PIECE, ContentDecoder, TransportError

BOM = b"\xef\xbb\xbf"
PARTS = st.sampled_from([
    b"\n", b"\n\n", b"\r", b"\r\n", b"\r\n\r\n", b"data: ", b"data:", b"data", b" ", b":", b"a", b": comment", b"event: x",
    b"event:y", b"event", b"id: 7", b"retry: 9", b"Data: no", b"{}", BOM, "漢".encode(), "\U0001f600".encode(), b"\xff",
    b"\xe6\xbc", b"\xf0\x9f\x98", b"\x98", b"\x9f", b"\xef\xbb", "\u2028".encode(), b"\x0b\x0c\x1c\x85", b"\0",
])  # fmt: skip
BODIES = st.lists(PARTS, max_size=30).map(b"".join)


def decoded(chunks: list[bytes], kind: Callable[[], SseDecoder | Lines] = SseDecoder) -> list[Any]:
    decoder: Any = kind()
    return [one for chunk in chunks for one in decoder.feed(chunk)] + list(decoder.flush())


def one_by_one(body: bytes) -> list[bytes]:
    return [body[at : at + 1] for at in range(len(body))]


def by_the_rule(body: bytes) -> list[tuple[str | None, str]]:
    """The specification's rules said plainly, for a whole body; its end counts as a blank line."""
    text = body.decode("utf-8", "replace").removeprefix("\ufeff")
    events = []
    buffer, kind = "", ""
    for line in [*re.split("\r\n|\n|\r", text), ""]:
        if line == "":
            if buffer != "":
                events.append((kind or None, buffer[:-1]))
            buffer, kind = "", ""
        elif not line.startswith(":"):
            name, value = line.split(":", 1) if ":" in line else (line, "")
            value = value.removeprefix(" ")
            if name == "data":
                buffer += value + "\n"
            elif name == "event":
                kind = value
    return events


def lines_by_the_rule(body: bytes) -> list[str]:
    *lines, rest = re.split("\r\n|\n|\r", body.removeprefix(BOM).decode("utf-8", "replace"))
    return [*lines, rest] if rest else lines


@st.composite
def cut_bodies(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    body = draw(BODIES)
    cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=8)))
    return body, [body[start:end] for start, end in pairwise([0, *cuts, len(body)])]


@given(cut_bodies())
def test_events_and_lines_are_the_same_however_a_body_is_cut(case: tuple[bytes, list[bytes]]) -> None:
    body, chunks = case
    assert decoded(chunks) == decoded(one_by_one(body)) == by_the_rule(body)
    assert decoded(chunks, Lines) == decoded(one_by_one(body), Lines) == lines_by_the_rule(body)


@pytest.mark.parametrize("body,events", [
    (b"data: a\n\ndata:b\n\ndata:  c \n\n", [(None, "a"), (None, "b"), (None, " c ")]),
    (b"data: a\ndata: b\ndata\n\ndata\n\ndata:\n\n", [(None, "a\nb\n"), (None, ""), (None, "")]),
    (b"event: e\ndata: a\n\ndata: b\n\ndata: c\nevent: e\nevent: f\n\n", [("e", "a"), (None, "b"), ("f", "c")]),
    # an event without data is none, and its name is forgotten
    (b"event: e\nevent\ndata: a\n\nevent: e\n\ndata: b\n\n", [(None, "a"), (None, "b")]),
    (b": a comment: data: x\n\n:\n\n data: a\n\nDATA: b\n\ndata : c\n\n", []),
    (b"\n\n\nid: 1\nretry: 5\nunknown: x\nnothing\ndata: a\n: in between\ndata: b\n\n", [(None, "a\nb")]),
    (b"data: a\r\n\r\ndata: b\r\rdata: c\n\r\n", [(None, "a"), (None, "b"), (None, "c")]),
    (BOM + b"data: a\n\n", [(None, "a")]),
    (BOM + BOM + b"data: a\n\n", []),  # the second one is part of the field's name
    ("data: a\u2028b\u0085c\x0cd\n\n".encode(), [(None, "a\u2028b\u0085c\x0cd")]),
    (b"data: \xff\xe6\xbc\n\xf0\n\n", [(None, "\ufffd\ufffd")]),
    (b"", []),
])
def test_the_rules_of_the_specification_one_by_one(body: bytes, events: list[tuple[str | None, str]]) -> None:
    assert decoded([body]) == decoded(one_by_one(body)) == events == by_the_rule(body)


def test_an_event_or_a_line_is_returned_with_the_byte_that_ends_it() -> None:
    for end in (b"\n\n", b"\r\r", b"\r\n\r"):
        decoder = SseDecoder()
        body = b"event: e\r\ndata: a" + end
        assert [decoder.feed(byte) for byte in one_by_one(body)][:-1] == [[]] * (len(body) - 1)
        assert SseDecoder().feed(body) == [("e", "a")]
    lines = Lines()
    for end in (b"\n", b"\r"):
        assert [lines.feed(b'{"a": 1}'), lines.feed(end)] == [[], ['{"a": 1}']]
    assert lines.feed(b"\n") == []  # belongs to the CR before


@pytest.mark.slow
@pytest.mark.parametrize("kind, begin", [(SseDecoder, b"data: "), (Lines, b"")])
def test_a_long_line_that_arrives_byte_by_byte_takes_linear_time(kind: type[SseDecoder | Lines], begin: bytes) -> None:
    # with all of it copied at each byte these were 2 * 10^12 bytes, and the suite's limit for a test that hangs would end it
    start, size = 32_000_000, 80_000
    decoder: Any = kind()
    assert decoder.feed(begin + b"x" * start) == []
    assert not any(decoder.feed(b"x") for _ in range(size))
    found = [one for _ in range(2) for one in decoder.feed(b"\n")]
    assert len(found[0][1] if begin else found[0]) == start + size


def test_an_event_of_many_lines_takes_linear_time() -> None:
    [(_, data)] = decoded([b"data: x\n" * 300_000])
    assert data.count("\n") == 299_999


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n"])
@pytest.mark.parametrize("indent", [None, 2])
def test_a_bare_object_that_speaks_of_an_error_is_an_error(indent: int | None, end: bytes) -> None:
    error = json.dumps({"error": {"code": 503, "message": "boo", "details": [{"a": [1]}]}}, indent=indent)
    body = b"data: a\n\n" + error.encode()
    for chunks in ([body + end], one_by_one(body + end)):
        (first, (kind, data)) = decoded(chunks)
        assert first == (None, "a")
        assert (kind, json.loads(data)) == ("error", json.loads(error))
    assert decoded([body + b"\n\ndata: b\n\n"])[2:] == [(None, "b")]
    assert decoded([error.encode() + b"\ndata: b\n\n"])[1:] == [(None, "b")]
    assert decoded([b'data: a\n\n{"object": "error", "message": "boo"}' + end])[1:] == [("error", '{"object": "error", "message": "boo"}')]


@pytest.mark.parametrize("bare", [b"{}", b'{"a": 1}', b"{", b"[1]", b'  {"error": 1}', b'{"a":\n"error"'])
def test_any_other_bare_line_is_ignored(bare: bytes) -> None:
    assert decoded([b"data: a\n\n" + bare + b"\n\ndata: b\n\n"]) == [(None, "a"), (None, "b")]


# Compressed bodies, cut anywhere.


def bare(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "X-Gzip": gzip.compress,
    "deflate": zlib.compress,
    "deflate ": bare,  # some servers leave zlib's header out
    **dict.fromkeys(("identity", "none", ""), bytes),
    "identity, GZIP": gzip.compress,
}


def body_of(coding: str, pieces: list[bytes]) -> bytes:
    decoder = ContentDecoder(coding, "vendor.test:443")
    data = b"".join(part for piece in pieces for part in decoder.decode(piece))
    decoder.end()
    return data


@st.composite
def split(draw: st.DrawFn) -> tuple[str, bytes, list[bytes]]:
    coding = draw(st.sampled_from(sorted(PACKERS)))
    data = draw(st.binary(max_size=200)) * draw(st.sampled_from((1, 1, 700)))
    packed = PACKERS[coding](data)
    cuts = sorted(draw(st.lists(st.integers(0, len(packed)), max_size=8)))
    return coding, data, [packed[start:end] for start, end in pairwise([0, *cuts, len(packed)])]


@given(split())
def test_any_split_of_the_bytes_gives_the_same_body(case: tuple[str, bytes, list[bytes]]) -> None:
    coding, data, pieces = case
    assert body_of(coding, pieces) == data


@given(st.binary(min_size=1, max_size=100), st.sampled_from(("gzip", "deflate", "deflate ")), st.data())
def test_a_compressed_body_cut_off_anywhere_is_an_error(data: bytes, coding: str, choice: st.DataObject) -> None:
    packed = PACKERS[coding](data)
    keep = choice.draw(st.integers(1, len(packed) - 1))
    with pytest.raises(TransportError) as caught:
        body_of(coding, [packed[:keep]])
    assert caught.value.kind == "closed"


def test_members_of_a_gzip_file_are_one_body_and_padding_is_none() -> None:
    assert body_of("gzip", []) == b""
    assert body_of("gzip", [gzip.compress(b"one") + gzip.compress(b"two") + bytes(10)]) == b"onetwo"
    assert body_of("gzip", [gzip.compress(b"one"), gzip.compress(b"two"), bytes(10), b"junk"]) == b"onetwo"


@given(st.integers(0, 3 * PIECE))
def test_pieces_have_a_bound_and_nothing_is_held_back(size: int) -> None:
    pieces = list(ContentDecoder("deflate", "vendor.test:443").decode(zlib.compress(bytes(size))))
    assert sum(map(len, pieces)) == size
    assert all(0 < len(piece) <= PIECE for piece in pieces)


@pytest.mark.parametrize("pack", [bare, zlib.compress])
def test_what_zlib_holds_back_when_a_piece_is_full_comes_at_once(pack: Callable[[bytes], bytes]) -> None:
    for size in range(PIECE - 300, PIECE + 300, 13):
        packed = pack(bytes(size))
        for keep in range(len(packed) - 8, len(packed) + 1):
            now = sum(map(len, ContentDecoder("deflate", "vendor.test:443").decode(packed[:keep])))
            assert now == len(zlib.decompressobj(wbits=15 if pack is zlib.compress else -15).decompress(packed[:keep]))
        assert body_of("deflate", [packed]) == bytes(size)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_bytes_that_are_not_compressed_are_no_body(coding: str) -> None:
    with pytest.raises(TransportError, match=r"vendor\.test:443 sent a body that cannot be decompressed"):
        body_of(coding, [b"\xff\xff plain text"])
