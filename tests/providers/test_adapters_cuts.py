"""A stream may break off anywhere: what comes of it is an error or the whole answer, never a part of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adapter_calls import KEY, MESSAGES, WAYS, Caller, Way, ways_in_turn
from asking import ADAPTERS
from kernai import GenerationOptions, LlmResponse, ProviderError
from kernai_providers import MemoryTransport
from kernai_providers.memory_transport import MemoryReply
from vendor_wires import Turn
from wire_reply import Close, Framing, Step, Torn
from wire_server import Reply, WireServer

PIECES = ("Grüße ", "aus 東京", " 🗼")
TEXT = "".join(PIECES)
TURN = Turn(PIECES, reasoning=("So. ",))


def cuts_of(whole: Reply, *, reset: bool) -> list[Reply]:
    """Before each event, and in the middle of each."""
    cuts = []
    for at, event in enumerate(whole.body):
        assert isinstance(event, bytes)
        steps: tuple[Step, ...] = whole.body[:at]
        cuts.append(replace(whole, body=(*steps, Close(reset)), length=whole.declared))
        cuts.append(replace(whole, body=(*steps, Torn(event, len(event) // 2), Close(reset)), length=whole.declared))
    return cuts


CUTS: list[tuple[Framing, bool]] = [("chunked", False), ("chunked", True), ("length", False), ("close", False), ("close", True)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "framing,reset,vendor,way",
    [
        pytest.param(framing, reset, vendor, way, id=f"{framing}-{'RST' if reset else 'FIN'}-{vendor}-{way.name}")
        for row, (framing, reset) in enumerate(CUTS)
        for vendor, way in ways_in_turn(row)
    ],
)
def test_a_stream_cut_at_any_event_is_an_error_and_never_a_short_answer(
    vendor: str, way: Way, framing: Framing, reset: bool
) -> None:
    caller = Caller(vendor, way)
    cuts = cuts_of(caller.wire.reply(caller.wire.whole(TURN)).framed(framing), reset=reset)
    with WireServer(cuts) as server:
        outcomes = caller.ask_often(len(cuts), server, max_retries=0)
        assert len(server.requests) == len(cuts)
        server.until(lambda: not server.open_connections)
    for outcome in outcomes:
        assert (outcome.failure.retryable, outcome.failure.vendor) == (True, vendor)
        assert TEXT.startswith("".join(outcome.pieces))


@pytest.mark.parametrize(
    "framing,vendor,way",
    [
        pytest.param(framing, vendor, way, id=f"{framing}-{vendor}-{way.name}")
        for row, framing in enumerate(("chunked", "length", "close"))
        for vendor, way in ways_in_turn(row)
    ],
)
def test_a_stream_cut_after_its_last_event_is_whole(vendor: str, way: Way, framing: Framing) -> None:
    caller = Caller(vendor, way)
    whole = caller.wire.reply(caller.wire.whole(TURN)).framed(framing)
    with WireServer(replace(whole, body=(*whole.body, Close()), length=whole.declared + 5)) as server:
        assert caller.ask(server, max_retries=0).answer.content == TEXT


@pytest.mark.slow
@pytest.mark.parametrize("vendor", ADAPTERS)
def test_a_body_that_ends_anywhere_is_an_error_or_the_whole_answer(vendor: str) -> None:
    """In memory, and of thousands of places each 25th: a reader sees all of them, in test_reader.py. Only the last
    event's own line breaks may be missing.
    """
    caller = Caller(vendor, WAYS["call"])
    wire = caller.wire
    events = wire.whole(TURN)
    body = b"".join(events)
    enough = len(body.rstrip())
    headers = {"content-type": wire.media_type}
    ends = sorted({*range(0, len(body), 25), *range(len(body) - len(events[-1]), len(body) + 1)})
    replies = [MemoryReply(200, headers, body[:end]) for end in ends]
    provider = ADAPTERS[vendor](KEY, transport=MemoryTransport(*replies), max_retries=0)
    for end in ends:
        pieces: list[str] = []
        got: object = None
        try:
            got = provider.call(MESSAGES, caller.model, GenerationOptions(), pieces.append)
        except ProviderError as error:
            got = error
        if end < enough:
            assert isinstance(got, ProviderError), f"{end} of {len(body)} bytes were taken for an answer"
            assert got.retryable
            assert TEXT.startswith("".join(pieces))
        else:
            assert isinstance(got, LlmResponse), f"{end} of {len(body)} bytes: {got}"
            assert got.content == "".join(pieces) == TEXT
            assert (got.finish_reason, got.total_tokens) == ("stop", 120)
