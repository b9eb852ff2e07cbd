"""What becomes of answers that are no answer: error statuses, redirects, hosts where nobody listens."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from adapter_calls import CORE, Caller, Way, shown_by, shows_key, ways_in_turn
from adapter_cases import PAGE, PIECES, TEXT
from asking import ADAPTERS
from wire_server import Gate, WireServer, hang_up, plain, redirect

RETRYABLE = (408, 409, 429, 500, 502, 503, 504, 529)
FINAL = (400, 401, 402, 403, 404, 413, 422)



def in_turn(*statuses: int) -> pytest.MarkDecorator:
    """Each vendor with each status, the ways in turn."""
    return pytest.mark.parametrize(
        "vendor,way,status",
        [
            pytest.param(vendor, way, status, id=f"{vendor}-{way.name}-{status}")
            for row, status in enumerate(statuses)
            for vendor, way in ways_in_turn(row)
        ],
    )


each_vendor = pytest.mark.parametrize(
    "vendor,way", [pytest.param(vendor, way, id=f"{vendor}-{way.name}") for vendor, way in ways_in_turn(0)]
)


@in_turn(*FINAL, *RETRYABLE)
def test_an_error_status_says_what_the_vendor_said_whatever_the_body(vendor: str, way: Way, status: int) -> None:
    caller = Caller(vendor, way)
    wire = caller.wire
    bodies = [wire.error(status, "no luck today"), plain(PAGE, status, "text/html"), plain(b"", status)]
    with WireServer(bodies) as server:
        spoken, page, empty = caller.ask_often(3, server, max_retries=0)
        assert len(server.requests) == 3
    for outcome in (spoken, page, empty):
        error = outcome.failure
        assert (error.status, error.retryable, error.vendor) == (status, status in RETRYABLE, vendor)
        assert f"HTTP {status}" in str(error)
        assert not outcome.pieces
    assert "no luck today" in str(spoken.failure)
    assert spoken.failure.code == wire.codes.get(status, spoken.failure.code)
    assert "Bad Gateway" in str(page.failure)
    assert "<" not in str(page.failure)


@each_vendor
def test_a_key_that_is_not_valid_is_answered_with_the_variable_that_holds_it(vendor: str, way: Way) -> None:
    caller = Caller(vendor, way)
    with WireServer(caller.wire.error(401)) as server:
        error = caller.ask(server).failure
        assert len(server.requests) == 1
    assert ADAPTERS[vendor].key_variables[0] in str(error)


@in_turn(301, 302, 303, 307, 308)
def test_a_redirect_is_not_followed(vendor: str, way: Way, status: int) -> None:
    caller = Caller(vendor, way)
    with WireServer(caller.wire.answer(*PIECES)) as target:
        with WireServer(redirect(f"{target.url}/elsewhere?token={CORE}", status)) as server:
            outcome = caller.ask(server)
            assert len(server.requests) == 1
        assert (target.accepts, target.requests) == (0, ())
    error = outcome.failure
    assert (error.status, error.retryable) == (status, False)
    assert f"{target.url}/elsewhere" in str(error)
    assert not shows_key(shown_by(error))


@each_vendor
@pytest.mark.parametrize("retries", [0, 2])
def test_a_refused_connection_is_retried_and_then_named(vendor: str, way: Way, retries: int) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        port = nobody.getsockname()[1]
        outcome = Caller(vendor, way).ask(f"http://127.0.0.1:{port}", max_retries=retries)
    assert outcome.looks == retries
    assert (outcome.failure.code, outcome.failure.retryable, outcome.failure.status) == ("connect", True, None)
    assert f"127.0.0.1:{port}" in str(outcome.failure)


@each_vendor
def test_each_wait_before_a_retry_asks_whether_an_answer_is_still_wanted(vendor: str, way: Way) -> None:
    caller = Caller(vendor, way)
    with WireServer(caller.wire.error(503)) as server:
        assert caller.ask(server, max_retries=4).looks == 4


@each_vendor
def test_calls_share_one_connection_also_with_refusals_between_them(vendor: str, way: Way) -> None:
    caller = Caller(vendor, way)
    wire, good = caller.wire, caller.wire.answer(*PIECES)
    script = [good, good.framed("length"), wire.error(503), good, wire.error(400), plain(PAGE, 502), good, good]
    with WireServer(script) as server:
        outcomes = caller.ask_often(6, server)
        assert (len(server.requests), server.accepts) == (len(script), 1)
    assert [outcome.error is None for outcome in outcomes] == [True, True, True, False, True, True]
    assert {outcome.answer.content for outcome in outcomes if outcome.error is None} == {TEXT}


@each_vendor
def test_an_idle_connection_that_the_server_closed_is_not_used_again(vendor: str, way: Way) -> None:
    caller = Caller(vendor, way)
    with WireServer(caller.wire.answer(*PIECES).then_close()) as server:
        outcomes = caller.ask_often(
            3, server, then=lambda: server.until(lambda: not server.open_connections), max_retries=0
        )
        assert (len(server.requests), server.accepts) == (3, 3)
    assert [outcome.answer.content for outcome in outcomes] == [TEXT] * 3


@each_vendor
def test_an_idle_connection_that_ends_under_a_request_costs_no_answer(vendor: str, way: Way) -> None:
    caller = Caller(vendor, way)
    good = caller.wire.answer(*PIECES)
    with WireServer([good, hang_up(), good]) as server:
        outcomes = caller.ask_often(2, server)
        assert (len(server.requests), server.accepts) == (3, 2)
    assert [outcome.answer.content for outcome in outcomes] == [TEXT] * 2


# Gemini's answers end only with their body
@pytest.mark.parametrize("vendor,way", [(vendor, way) for vendor, way in ways_in_turn(0) if vendor != "gemini"])
def test_a_connection_is_closed_when_its_body_continues_after_the_answer(vendor: str, way: Way) -> None:
    caller = Caller(vendor, way)
    good = caller.wire.answer(*PIECES)
    with WireServer([good.linger(Gate()), good]) as server:
        outcomes = caller.ask_often(2, server)
        assert server.accepts == 2
    assert [outcome.answer.content for outcome in outcomes] == [TEXT] * 2


@each_vendor
def test_an_answer_that_closes_its_connection_is_followed_by_another_one(vendor: str, way: Way) -> None:
    caller = Caller(vendor, way)
    good = caller.wire.answer(*PIECES)
    with WireServer([replace(good, framing="close"), good.with_headers({"Connection": "close"}), good]) as server:
        outcomes = caller.ask_often(3, server, max_retries=0)
        assert server.accepts == 3
    assert [outcome.answer.content for outcome in outcomes] == [TEXT] * 3
