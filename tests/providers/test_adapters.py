"""Each adapter over loopback sockets, through the table of adapter_cases.py, with the ways to call it in turn."""

from __future__ import annotations

import base64
import gzip
import json
import logging
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest

from adapter_calls import ADAPTERS, CORE, HELLO, KEY, WAYS, Caller, Way, replying, shown_by, shows_key, ways_in_turn
from adapter_cases import PAGE, PIECES, TEXT, Case, cases_of
from kernai import Agent, GenerationOptions, Model, ProviderError, Recorder
from kernai.testing import check_provider
from kernai_providers import MemoryReply, MemoryTransport
from tests.ways import by_aexecute, by_execute
from vendor_wires import WIRES, anthropic
from wire_format import Turn, Wire, data_of, sse
from wire_server import Endless, Gate, Reply, Step, WireServer, as_json, garbage, hang_up, plain, redirect

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


@pytest.mark.slow
@pytest.mark.parametrize("vendor,case,way", ROWS)
def test_each_script_of_a_server_has_its_expected_outcome(vendor: str, case: Case, way: Way) -> None:
    caller, gate = Caller(vendor, way), Gate()
    with serving(case, gate) as server:
        outcome = caller.ask(server, lambda text: gate.allow() if text else None, **case.options)
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


@pytest.mark.slow
@each_vendor
def test_calls_share_one_connection_and_lose_no_answer_when_it_closes(vendor: str, way: Way) -> None:
    caller = Caller(vendor, way)
    wire, good = caller.wire, caller.wire.answer(*PIECES)
    script = [good, good.framed("length"), wire.error(503), good, wire.error(400), plain(PAGE, 502), good, hang_up(), good]
    with WireServer(script) as server:
        outcomes = caller.ask_often(6, server)
        assert (len(server.requests), server.accepts) == (len(script), 2)
    assert [outcome.error is None for outcome in outcomes] == [True, True, True, False, True, True]
    assert {outcome.answer.content for outcome in outcomes if outcome.error is None} == {TEXT}


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
    "padding after deflate": coded("deflate", DEFLATED, endless(bytes(1000))),
    "empty stored blocks": coded("deflate", b"\x78\x9c", endless(b"\x00\x00\x00\xff\xff")),
    "a gzip header that does not end": coded("gzip", b"\x1f\x8b\x08\x08\x00\x00\x00\x00\x00\x03", endless(b"name")),
    "events of which none counts": Reply(200, (STREAM,), (endless(b": keep-alive\n\n"),)),
    "an event without end": Reply(200, (STREAM,), (endless(b"x" * 1000),)),
    "a small body that unfolds to a large one": coded("gzip", gzip.compress(b": x\n\n" * 200_000), Gate()),
}

CHUNKED = ("Transfer-Encoding", "chunked")
AROUND = {
    "interim answers": Reply(before=(endless(b"HTTP/1.1 100 Continue\r\n\r\n"),)),
    "early hints": Reply(before=(endless(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"),)),
    "trailers": Reply(200, (STREAM, CHUNKED), (b"5\r\n: x\n\n\r\n0\r\n", endless(b"X-More: yes\r\n")), "none"),
    "chunk extensions": Reply(200, (STREAM, CHUNKED), (endless(b"1;" + b"x" * 900 + b"\r\n:\r\n"),), "none"),
}


@pytest.mark.slow
@every_way
@pytest.mark.parametrize("name", [*CONTENT, *AROUND])
def test_the_size_of_a_response_is_bounded_including_what_is_not_content(way: Way, name: str) -> None:
    with WireServer((CONTENT | AROUND)[name]) as server:
        closed = partial(server.until, lambda: not server.open_connections)  # at once, and not when the provider is
        failure = Caller("openai", way).ask(server, then=closed, max_response_bytes=MOST, max_retries=0).failure
        assert not server.requests[0].answered.is_set()
    if name in CONTENT:
        assert (failure.code, failure.retryable) == ("response_too_large", False)
        assert f"max_response_bytes={MOST}" in str(failure)
    else:
        assert (failure.code, failure.retryable) in (("protocol", False), ("closed", True))


@pytest.mark.slow
@every_way
@pytest.mark.parametrize("name", [*CONTENT, "trailers", "chunk extensions", "a long text"])
def test_the_body_of_an_error_is_bounded_too_and_its_start_is_enough(way: Way, name: str) -> None:
    reply = {**CONTENT, **AROUND, "a long text": Reply(body=(endless(b"no luck "),))}[name]
    with WireServer(replace(reply, status=418)) as server:
        failure = Caller("openai", way).ask(server, max_response_bytes=MOST, max_retries=0).failure
        assert not server.requests[0].answered.is_set()
    assert (failure.status, "no luck" in str(failure)) == (418, name == "a long text")


@every_way
def test_an_answer_in_tiny_chunks_is_not_taken_for_an_endless_one(way: Way) -> None:
    caller = Caller("openai", way)
    text = "word " * 2000
    with WireServer(caller.wire.answer(text).split(1)) as server:
        assert caller.ask(server).answer.content == text


# The key is shown by nothing: no error, no traceback, no log line, no repr, also where the vendor sends it back.


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
SAID = f"the key {KEY} is not welcome"


def echoes(wire: Wire) -> Iterator[tuple[str, Reply]]:
    """Every place where a vendor, or a gateway before it, may repeat a key."""
    key = KEY.encode()
    yield "the message of an error", wire.error(401, SAID)
    yield "the code of an error", wire.error(400, "no luck", KEY)
    yield "a page", plain(f"<html><title>{SAID}</title></html>".encode(), 403, "text/html")
    yield "a text", plain(SAID.encode(), 500)
    yield "JSON of no known shape", as_json({"why": {"authorization": f"Bearer {KEY}"}}, 400)
    yield "escaped as in a URL", plain(f"/v1?key={quote(KEY, safe='')}".encode(), 404)
    yield "a request id", wire.error(500, headers={"x-request-id": KEY})
    yield "a retry hint", wire.error(429, headers={"retry-after": KEY})
    yield "one JSON object with status 200", plain(wire.error_body(500, SAID), 200, "application/json")
    yield "JSON that is no object", plain(json.dumps([SAID]).encode(), 200, "application/json")
    yield "the place to go to", redirect(f"https://{CORE}:{CORE}@elsewhere.example/v1?key={KEY}#{KEY}")
    yield "the path to go to", redirect(f"https://elsewhere.example/{KEY}")
    yield "no HTTP", garbage(key + b"\r\n\r\n")
    yield "the status line", garbage(b"HTTP/1.1 " + key + b"\r\n\r\n")
    yield "a version", garbage(key + b"/9.9 200 OK\r\n\r\n")
    yield "a header that is none", garbage(HEAD + key + b"\r\n\r\n")
    yield "the length of a body", garbage(HEAD + b"Content-Length: " + key + b"\r\n\r\n")
    yield "the framing of a body", garbage(HEAD + b"Transfer-Encoding: " + key + b"\r\n\r\n")
    yield "the size of a chunk", garbage(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + key + b"\r\n")
    yield "the coding of a body", wire.answer(*PIECES).with_headers({"Content-Encoding": KEY})
    yield from echoes_in_streams(wire)


def echoes_in_streams(wire: Wire) -> Iterator[tuple[str, Reply]]:
    error = json.loads(wire.error_body(500, SAID))
    broken = f'{{"error": "{SAID}'
    lines = not wire.media_type.startswith("text/event-stream")
    for name, text, event in (
        ("an error in a stream", json.dumps(error), "error"),
        ("broken JSON in a stream", broken, None),
        ("broken JSON, and the key at its start", KEY + broken, None),
        ("what is no object in a stream", json.dumps(SAID), None),
        ("what is no object, and the key across the end of a preview", json.dumps("x" * 50 + SAID), None),
    ):
        events = [text.encode() + b"\n"] if lines else [sse(text, event)]
        yield name, wire.reply([*wire.opening(Turn()), *events])


LEAKS = {vendor: dict(echoes(wire)) for vendor, wire in WIRES.items()}
LEAK_ROWS = [
    pytest.param(vendor, LEAKS[vendor][case], way, id=f"{vendor}-{case}-{way.name}")
    for row, case in enumerate(LEAKS["openai"])
    for vendor, way in ways_in_turn(row)
]


@pytest.mark.parametrize("vendor,reply,way", LEAK_ROWS)
def test_no_failure_shows_the_key_in_a_text_a_traceback_or_a_log_line(
    vendor: str, reply: Reply, way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), WireServer(reply) as server:
        outcome = Caller(vendor, way).ask(server, max_retries=1)
        assert any(KEY in value for value in server.requests[0].headers.values())
    error = outcome.failure
    logging.getLogger("test").error("it failed", exc_info=error)
    assert not shows_key(shown_by(error))
    assert not shows_key(logged(caplog.records))


@each_vendor
def test_the_callers_headers_are_hidden_like_the_key_and_no_success_logs_either(
    vendor: str, way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    caller = Caller(vendor, way)
    with caplog.at_level(logging.DEBUG), WireServer([caller.wire.answer(*PIECES), caller.wire.error(401, f"who is {CORE}-too?")]) as server:
        answered, refused = caller.ask_often(2, server, headers={"X-Gateway-Token": f"Bearer {CORE}-too"})
        assert server.requests[0].headers["x-gateway-token"] == f"Bearer {CORE}-too"
    assert not shows_key(repr(answered.answer))
    assert not shows_key(shown_by(refused.failure))
    assert not shows_key(logged(caplog.records))


def echo(value: Any) -> Any:
    """The same data, with the key in every text but the answer's and those that decide what it is."""
    if isinstance(value, dict):
        kept = ("type", "role", "text", "content", "reasoning_content", "thinking", "delta")
        return {name: one if name in kept and isinstance(one, str) else echo(one) for name, one in value.items()}
    if isinstance(value, list):
        return [echo(one) for one in value]
    return f"{value} {KEY}" if isinstance(value, str) else value


@each_vendor
def test_metadata_of_an_answer_shows_no_key_in_events_recordings_and_the_log(
    vendor: str, way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    caller, recorder = Caller(vendor, way), Recorder()
    turn = Turn(("Hi",), reasoning=(f"hm {KEY[:9]}", KEY[9:]), finish="odd", request_id="r")  # split where a stream splits a text
    lines = [json.dumps(echo(data)).encode() for data in map(data_of, caller.wire.whole(turn)) if data]
    events = [line + b"\n" if vendor == "ollama" else b"data: " + line + b"\n\n" for line in lines]
    if vendor == "openai":
        events.append(b"data: [DONE]\n\n")
    reply = caller.wire.reply(events).with_headers({"X-Request-Id": f"id {KEY}"})
    with caplog.at_level(logging.DEBUG), WireServer(reply) as server, caller.provider(server) as provider:
        agent = Agent(instructions="", provider=provider, model=caller.model)
        result = (by_aexecute if way.is_async else by_execute)(agent, recorder=recorder)
        assert any(KEY in value for value in server.requests[0].headers.values())
    assert result.text == "Hi"
    shown = json.dumps(recorder.to_list())
    assert all(word in shown for word in ("hm [hidden]", '"id [hidden]"'))
    assert not shows_key(shown)
    assert not shows_key(logged(caplog.records))


def test_the_name_of_another_model_and_the_id_of_a_call_show_no_key() -> None:
    blocks = ({"type": "fallback", "to": {"model": KEY}}, {"type": "tool_use", "id": KEY, "name": "f", "input": {}})
    events = anthropic(*({"type": "content_block_start", "index": at, "content_block": one} for at, one in enumerate(blocks)))
    provider, recorder = ADAPTERS["anthropic"](KEY, transport=MemoryTransport(MemoryReply(200, {}, events))), Recorder()
    by_execute(Agent(instructions="", provider=provider, calls="native", skills=[], max_steps=2), recorder=recorder)
    assert len(recorder.for_event("llm_response")) == 2
    assert not shows_key(json.dumps(recorder.to_list()))


@pytest.mark.parametrize("echoed", ["password", "pair", "header"])
def test_a_proxy_that_repeats_its_credentials_in_a_refusal_shows_none(echoed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = f"me:{CORE}/+ü"
    header = base64.b64encode(pair.encode()).decode()
    monkeypatch.setenv("http_proxy", f"http://{quote('me', safe='')}:{quote(pair[3:], safe='')}@proxy.test:3128")
    monkeypatch.setenv("no_proxy", "")
    said = {"password": pair[3:], "pair": pair, "header": f"Proxy-Authorization: Basic {header}"}[echoed]
    refusal = MemoryReply(407, {}, f"who is {said}?".encode())
    provider = ADAPTERS["openai"]("k", base_url="http://vendor.test/v1", transport=MemoryTransport(refusal))
    with pytest.raises(ProviderError, match="HTTP 407") as caught:
        provider.call(HELLO, Model("m"), GenerationOptions(), str)
    assert "[hidden]" in str(caught.value)
    assert not shows_key(shown_by(caught.value))
    assert header[:12] not in shown_by(caught.value)


@pytest.mark.parametrize("vendor", WIRES)
def test_the_adapters_keep_the_contract_of_providers(vendor: str) -> None:
    check_provider(lambda: replying(vendor, WIRES[vendor].stream(["Hel", "lo."])))


def logged(records: Iterable[logging.LogRecord]) -> str:
    """With each record's traceback and extra fields, but for what httpcore at DEBUG repeats from the wire, unseen by us."""
    ours = [record for record in records if record.name.partition(".")[0] != "httpcore"]
    return "\n".join(f"{logging.Formatter().format(record)} {vars(record)}" for record in ours)
