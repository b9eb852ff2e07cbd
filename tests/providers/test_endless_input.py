"""What a server sends is bounded by what comes over the wire, and not only by what is left of it once it is decoded."""

from __future__ import annotations

import gzip
import zlib

import pytest

from adapter_calls import WAYS, Caller, Way
from wire_reply import Endless, Reply, Step
from wire_server import WireServer

pytestmark = pytest.mark.slow

every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)

#: of the provider; what is endless here would be hundreds of times as long before the server gave up
MOST = 100_000
BOUND = 200_000_000

STREAM = ("Content-Type", "text/event-stream")
DEFLATED = zlib.compress(b": x\n\n")


def coded(name: str, *body: Step) -> Reply:
    return Reply(200, (STREAM, ("Content-Encoding", name)), body)


def endless(piece: bytes) -> Endless:
    return Endless(piece * (65_536 // len(piece)), BOUND)


CONTENT = {
    "empty gzip members": coded("gzip", endless(gzip.compress(b""))),
    "padding behind deflate": coded("deflate", DEFLATED, endless(bytes(1000))),
    "empty stored blocks": coded("deflate", b"\x78\x9c", endless(b"\x00\x00\x00\xff\xff")),
    "a gzip header that does not end": coded("gzip", b"\x1f\x8b\x08\x08\x00\x00\x00\x00\x00\x03", endless(b"name")),
    "events of which none counts": Reply(200, (STREAM,), (endless(b": keep-alive\n\n"),)),
}

CHUNKED = ("Transfer-Encoding", "chunked")
AROUND = {
    "interim answers": Reply(before=(endless(b"HTTP/1.1 100 Continue\r\n\r\n"),)),
    "early hints": Reply(before=(endless(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"),)),
    "trailers": Reply(200, (STREAM, CHUNKED), (b"5\r\n: x\n\n\r\n0\r\n", endless(b"X-More: yes\r\n")), "none"),
    "chunk extensions": Reply(200, (STREAM, CHUNKED), (endless(b"1;" + b"x" * 900 + b"\r\n:\r\n"),), "none"),
}


@every_way
@pytest.mark.parametrize("name", CONTENT)
def test_content_that_unfolds_to_nothing_ends_at_max_response_bytes(way: Way, name: str) -> None:
    with WireServer(CONTENT[name]) as server:
        failure = Caller("openai", way).ask(server, max_response_bytes=MOST, max_retries=0).failure
        assert not server.requests[0].answered.is_set()
    assert (failure.code, failure.retryable) == ("response_too_large", False)
    assert f"max_response_bytes={MOST}" in str(failure)


@every_way
@pytest.mark.parametrize("name", AROUND)
def test_what_surrounds_the_content_is_bounded_too(way: Way, name: str) -> None:
    with WireServer(AROUND[name]) as server:
        failure = Caller("openai", way).ask(server, max_response_bytes=MOST, max_retries=0).failure
        assert not server.requests[0].answered.is_set()
    assert (failure.code, failure.retryable) in (("protocol", False), ("closed", True))


@every_way
@pytest.mark.parametrize("name", [*CONTENT, "trailers", "chunk extensions"])
def test_the_same_holds_for_the_body_of_an_error(way: Way, name: str) -> None:
    reply = {**CONTENT, **AROUND}[name]
    with WireServer(Reply(418, reply.headers, reply.body, reply.framing)) as server:
        failure = Caller("openai", way).ask(server, max_response_bytes=MOST, max_retries=0).failure
        assert not server.requests[0].answered.is_set()
    assert failure.status == 418


@every_way
@pytest.mark.parametrize("size", [1, 2, 5])
def test_an_answer_in_tiny_chunks_is_not_taken_for_one(way: Way, size: int) -> None:
    caller = Caller("openai", way)
    text = "word " * 2000
    with WireServer(caller.wire.answer(text).split(size)) as server:
        assert caller.ask(server).answer.content == text
