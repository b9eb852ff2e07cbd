"""Each adapter over loopback sockets, through the table of adapter_cases.py, with the ways to call it in turn."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from adapter_calls import Caller, Way, shown_by, shows_key, ways_in_turn
from adapter_cases import PAGE, PIECES, TEXT, Case, cases_of
from asking import ADAPTERS
from vendor_wires import WIRES
from wire_server import Gate, WireServer, hang_up, plain

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
