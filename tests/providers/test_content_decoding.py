"""Compressed bodies, cut anywhere."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernai_providers.streamed_response import PIECE, ContentDecoder
from kernai_providers.transport import TransportError


def bare(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "X-Gzip": gzip.compress,
    "deflate": zlib.compress,
    "deflate ": bare,  # some servers leave zlib's header out
    "identity": lambda data: data,
    "": lambda data: data,
    "gzip, deflate": lambda data: zlib.compress(gzip.compress(data)),
    "deflate, identity, GZIP": lambda data: gzip.compress(zlib.compress(data)),
}


def decoded(coding: str, pieces: list[bytes]) -> bytes:
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
    assert decoded(coding, pieces) == data


@given(st.binary(min_size=1, max_size=100), st.sampled_from(("gzip", "deflate", "deflate ", "gzip, deflate")), st.data())
def test_a_body_that_ends_early_is_an_error_wherever_that_is(data: bytes, coding: str, choice: st.DataObject) -> None:
    packed = PACKERS[coding](data)
    keep = choice.draw(st.integers(1, len(packed) - 1))
    with pytest.raises(TransportError) as caught:
        decoded(coding, [packed[:keep]])
    assert caught.value.kind == "closed"


def test_no_body_at_all_needs_no_compressed_form() -> None:
    assert decoded("gzip", []) == b""


def test_members_of_a_gzip_file_are_one_body_and_padding_is_none() -> None:
    assert decoded("gzip", [gzip.compress(b"one") + gzip.compress(b"two") + bytes(10)]) == b"onetwo"
    assert decoded("gzip", [gzip.compress(b"one"), gzip.compress(b"two"), bytes(10), b"junk"]) == b"onetwo"


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
        assert decoded("deflate", [packed]) == bytes(size)


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, br", "compress", ", ".join(["gzip"] * 5)])
def test_an_unknown_coding_is_refused_before_the_body(coding: str) -> None:
    with pytest.raises(TransportError, match="gzip and deflate") as caught:
        ContentDecoder(coding, "vendor.test:443")
    assert caught.value.kind == "protocol"


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_bytes_that_are_not_compressed_are_no_body(coding: str) -> None:
    with pytest.raises(TransportError, match=r"vendor\.test:443 sent a body that cannot be decompressed"):
        decoded(coding, [b"\xff\xff plain text"])
