"""Each adapter over loopback sockets, through the table of adapter_cases.py, with the ways to call it in turn."""

from __future__ import annotations

import gzip
import socket
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from adapter_calls import WAYS, Caller, Way, shown_by, shows_key, ways_in_turn
from adapter_cases import PAGE, PIECES, TEXT, Case, cases_of
from asking import ADAPTERS
from vendor_wires import WIRES
from wire_server import Endless, Gate, Reply, Step, WireServer, hang_up, plain

pytestmark = pytest.mark.slow

CASES = {vendor: {case.name: case for case in cases_of(wire)} for vendor, wire in WIRES.items()}
NAMES = list(dict.fromkeys(name for cases in CASES.values() for name in cases))
ROWS = [
    pytest.param(vendor, CASES[vendor][name], way, id=f"{vendor}-{name}-{way.name}")
    for row, name in enumerate(NAMES)
    for vendor, way in ways_in_turn(row)
    if name in CASES[vendor]
]


@contextmanager
def serving(case: Case, gate: Gate) -> Iterator[WireServer]:
    with WireServer(case.script(gate)) as server:
        yield server
        # whatever came of the call: the provider is closed, so nothing of it may be left open
        server.until(lambda: not server.open_connections)
        if case.whole is not None:
            assert server.requests[-1].answered.is_set() == case.whole


@pytest.mark.parametrize("vendor,case,way", ROWS)
def test_each_case_ends_as_it_must(vendor: str, case: Case, way: Way) -> None:
    caller, gate = Caller(vendor, way), Gate()
    with serving(case, gate) as server:
        # what nobody reads to its end is closed at once, and not when the provider is
        then = partial(server.until, lambda: not server.open_connections) if case.whole is False else None
        outcome = caller.ask(server, lambda text: gate.allow() if text else None, then, **case.options)
        assert len(server.requests) == case.requests
    assert outcome.looks <= case.requests - 1  # a wait asks once in a while whether it is still wanted
    if case.text is not None:
        got: object = outcome.answer
        assert outcome.answer.content == case.text
        assert "".join(outcome.pieces) == case.text
    else:
        got = outcome.failure
        assert outcome.failure.vendor == vendor
        assert all(words in str(outcome.failure) for words in case.says), str(outcome.failure)
        assert not shows_key(shown_by(outcome.failure))
    if case.pieces is not None:
        assert tuple(outcome.pieces) == tuple(case.pieces)
    for name, value in case.fields.items():
        found = getattr(got, name)
        if isinstance(value, dict):
            assert found.items() >= value.items(), f"{name}: {found}"
        else:
            assert found == value, f"{name}: {found!r}"


each_vendor = pytest.mark.parametrize(
    "vendor,way", [pytest.param(vendor, way, id=f"{vendor}-{way.name}") for vendor, way in ways_in_turn(0)]
)


@each_vendor
@pytest.mark.parametrize("retries", [0, 2])
def test_a_refused_connection_is_retried_and_then_named(vendor: str, way: Way, retries: int) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        port = nobody.getsockname()[1]
        outcome = Caller(vendor, way).ask(f"http://127.0.0.1:{port}", max_retries=retries)
    assert outcome.looks == retries  # each wait asks once whether an answer is still wanted
    assert (outcome.failure.code, outcome.failure.retryable, outcome.failure.status) == ("connect", True, None)
    assert f"127.0.0.1:{port}" in str(outcome.failure)


@each_vendor
def test_calls_share_one_connection_until_its_end_which_costs_no_answer(vendor: str, way: Way) -> None:
    caller = Caller(vendor, way)
    wire, good = caller.wire, caller.wire.answer(*PIECES)
    script = [good, good.framed("length"), wire.error(503), good, wire.error(400), plain(PAGE, 502), good, hang_up(), good]
    with WireServer(script) as server:
        outcomes = caller.ask_often(6, server)
        assert (len(server.requests), server.accepts) == (len(script), 2)
    assert [outcome.error is None for outcome in outcomes] == [True, True, True, False, True, True]
    assert {outcome.answer.content for outcome in outcomes if outcome.error is None} == {TEXT}


def test_the_table_is_about_every_adapter() -> None:
    assert set(WIRES) == set(ADAPTERS)
    assert [len(list(cases_of(wire))) for wire in WIRES.values()] == [len(cases) for cases in CASES.values()], "one name each"


# What a server sends is bounded by what comes over the wire, and not only by what is left of it once it is decoded.


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
