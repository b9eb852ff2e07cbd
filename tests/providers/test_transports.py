"""What `transport.py` promises, held against every transport: threads, asyncio and memory."""

from __future__ import annotations

import asyncio
import gzip
import os
import socket
import ssl
import threading
import traceback
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import vcr

from kernai_providers.http_transport import HttpTransport
from kernai_providers.in_process import MemoryReply, MemoryTransport
from kernai_providers.transport import Request, Timeouts, TransportError
from transport_clients import CLIENTS, FRAMINGS, KEY, NO_TLS, PATIENCE, REAL, TEXT, Stage, client_of, failure, read
from wire_server import Authority, Close, Gate, Reply, WireServer, garbage, hang_up, plain, redirect

pytestmark = pytest.mark.slow


@pytest.fixture(params=CLIENTS)
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(request.param, stack)


@pytest.fixture(params=REAL)
def wire(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(request.param, stack)


# The answer


def test_status_and_headers_come_as_sent_with_names_in_lower_case_and_repeated_values_joined(stage: Stage) -> None:
    client = stage.answers(Reply(529, (("X-Request-ID", "abc"), ("x-limit", "1"), ("X-Limit", "2")), (b"busy",)))
    response = client.send(stage.request())
    assert response.status == 529
    assert (response.headers["x-request-id"], response.headers["x-limit"]) == ("abc", "1, 2")
    assert "X-Request-ID" not in response.headers
    response.close()


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_body_is_whole_however_it_is_framed_and_cut_into_pieces(stage: Stage, framing: Any, size: int) -> None:
    client = stage.answers(Reply(body=(TEXT,), framing=framing).split(size))
    assert read(client, stage.request()) == (200, TEXT)


@pytest.mark.parametrize("reply", [Reply(), Reply(framing="length"), Reply(framing="close"), Reply(204, framing="none")])
def test_an_empty_body_has_no_pieces_and_the_next_request_is_answered(stage: Stage, reply: Reply) -> None:
    client = stage.answers(reply, plain(b"next"))
    assert read(client, stage.request()) == (reply.status, b"")
    assert read(client, stage.request()) == (200, b"next")


def test_a_large_body_arrives_to_the_byte(stage: Stage) -> None:
    block = bytes(range(256)) * 256
    response = stage.answers(Reply(body=(block,) * 128)).send(stage.request())
    assert b"".join(response) == block * 128
    response.finish()
    assert list(response) == []


def test_a_redirect_is_an_answer_like_any_other_and_cookies_are_not_kept(wire: Stage) -> None:
    client = wire.answers(redirect("http://127.0.0.1:9/elsewhere").with_headers({"Set-Cookie": "a=b; Path=/"}))
    for _ in range(2):
        response = client.send(wire.request())
        assert (response.status, response.headers["location"]) == (307, "http://127.0.0.1:9/elsewhere")
        response.close()
    assert ["cookie" in request.headers for request in wire.server.requests] == [False, False]


# The request


def test_a_request_is_sent_as_given_and_gets_a_user_agent_a_length_and_no_compression(wire: Stage) -> None:
    body = os.urandom(300_000)
    client = wire.answers(plain(b""))
    read(client, wire.request(body=body))
    read(client, wire.request(body=b""))
    sent, empty = wire.server.requests
    assert empty.headers["content-length"] == "0"
    assert (sent.method, sent.path, sent.body) == ("POST", f"/v1/chat?key={KEY}", body)
    assert sent.headers["x-api-key"] == KEY
    assert sent.headers["user-agent"].startswith("kernai/")
    assert (sent.headers["accept-encoding"], sent.headers["content-length"]) == ("identity", "300000")
    assert sent.headers["host"] == wire.server.url.removeprefix("http://")


def test_what_the_caller_says_about_compression_and_user_agent_goes_first(wire: Stage) -> None:
    headers = {"accept-encoding": "gzip", "USER-AGENT": "mine/1"}
    read(wire.answers(plain(b"")), wire.request(method="GET", body=b"", headers=headers))
    sent = wire.server.requests[0].headers
    assert (sent["accept-encoding"], sent["user-agent"]) == ("gzip", "mine/1")
    assert "content-length" not in sent


@pytest.mark.parametrize("changes", [
    {"url": f"ftp://127.0.0.1/{KEY}"}, {"url": f"/v1?{KEY}"}, {"url": f"http://127.0.0.1/{KEY}\r\nx: y"}, {"url": f"http://[::1/{KEY}"},
    {"headers": {"X-Api-Key": KEY + "\n" + KEY}}, {"headers": {f"{KEY}:": "x"}},  # as test_constructor.py tries them all
], ids=lambda changes: repr(changes).replace(KEY, "KEY"))  # fmt: skip
def test_an_impossible_request_is_the_callers_mistake_and_shows_no_value(stage: Stage, changes: dict[str, Any]) -> None:
    client = stage.answers(plain(b""))
    with pytest.raises(ValueError, match=r"^(url|header)") as caught:
        client.send(stage.request(**changes))
    assert KEY not in "".join(traceback.format_exception(caught.value))
    assert stage.kind not in REAL or stage.server.accepts == 0


# Compression


@pytest.mark.parametrize("size", [1, 3, 10_000])
@pytest.mark.parametrize("framing", FRAMINGS)
def test_a_compressed_body_is_decoded_while_it_comes(stage: Stage, framing: Any, size: int) -> None:
    client = stage.answers(Reply(body=(TEXT, TEXT[::-1]), framing=framing).gzipped().split(size))
    assert read(client, stage.request()) == (200, TEXT + TEXT[::-1])


@pytest.mark.parametrize(
    "coding, kind", [("gzip", "closed"), ("deflate", "closed"), ("gzip, deflate", "protocol"), ("br", "protocol")]
)
def test_a_body_that_is_not_what_its_coding_says_is_an_error(stage: Stage, coding: str, kind: str) -> None:
    half = (gzip if coding == "gzip" else zlib).compress(os.urandom(5000))[:-9]
    client = stage.answers(plain(half).with_headers({"Content-Encoding": coding}))
    assert failure(lambda: read(client, stage.request())).kind == kind


# Streaming


@pytest.mark.parametrize("framing", FRAMINGS)
def test_the_first_bytes_are_given_before_the_rest_is_sent_whatever_the_framing(wire: Stage, framing: Any) -> None:
    gate = Gate()
    client = wire.answers(Reply(body=(b"begin", b"end"), framing=framing).trickle(gate))
    response = client.send(wire.request())
    body = iter(response)
    assert next(body) == b"begin"
    gate.set()
    assert b"".join(body) == b"end"
    response.finish()


# More answers than requests

SECOND = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstale"
CHUNKED = ("Transfer-Encoding", "chunked")
CHUNKS = b"3\r\none\r\n0\r\n\r\n"
LENGTH = ("Content-Length", "3")


@pytest.mark.parametrize(
    "status, headers, body, expected",
    [
        (200, (LENGTH,), b"one" + SECOND, b"one"),
        (200, (LENGTH,), b"one" + SECOND[:30], b"one"),
        (200, (CHUNKED,), CHUNKS + SECOND, b"one"),
        (200, (CHUNKED, LENGTH), CHUNKS + SECOND, b"one"),
        (200, (CHUNKED, LENGTH), CHUNKS, b"one"),
        (204, (), SECOND, b""),
        (204, (LENGTH,), b"one", b""),
        (304, (LENGTH,), b"one", b""),
    ],
    ids=[
        "a second answer", "half a second answer", "one after chunks", "one after chunks with a length",
        "chunks with a length", "one after no content", "no content with a body", "not modified with a body",
    ],
)
def test_an_unrequested_answer_is_not_taken_for_that_of_the_next_request(
    wire: Stage, status: int, headers: Any, body: bytes, expected: bytes
) -> None:
    client = wire.answers(Reply(status, headers, (body,), "none"), plain(b"next"))
    assert read(client, wire.request()) == (status, expected)
    assert read(client, wire.request()) == (200, b"next")
    assert wire.server.accepts == 2


@pytest.mark.parametrize("interim", [
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Go\r\n\r\n",
], ids=["100", "several"])
def test_interim_answers_are_ignored(wire: Stage, interim: bytes) -> None:
    client = wire.answers(replace(plain(b"hello"), before=(interim,)), plain(b"next"))
    assert read(client, wire.request()) == (200, b"hello")
    assert read(client, wire.request()) == (200, b"next")
    assert wire.server.accepts == 1


# What `transport.py` promises for the bad days, held against every transport: cuts, silence, nonsense, closing.


# What goes wrong


@pytest.mark.parametrize("reset", [False, True], ids=("fin", "rst"))
@pytest.mark.parametrize("framing", ["chunked", "length"])
@pytest.mark.parametrize("keep", [0, 1, 5, 9])
def test_a_body_that_is_cut_gives_what_came_and_then_an_error(stage: Stage, framing: Any, keep: int, reset: bool) -> None:
    client = stage.answers(Reply(body=(b"01234", b"56789"), framing=framing).cut(keep, reset=reset))
    response, came = client.send(stage.request()), list[bytes]()
    assert failure(lambda: came.extend(response)).kind == "closed"
    response.close()
    assert b"0123456789".startswith(b"".join(came))
    assert len(b"".join(came)) == keep or reset  # a reset may overtake what was sent before it


@pytest.mark.parametrize("reset", [False, True], ids=("fin", "rst"))
@pytest.mark.parametrize(
    "sent", [b"", b"HT", b"HTTP/1.1 20", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n",
             b"HTTP/1.1 200 OK\r\nContent-Type: text/event-str", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n05\r\nhello\r\n0"],
)  # fmt: skip
def test_a_head_or_a_size_of_a_chunk_that_is_cut_is_no_answer(wire: Stage, sent: bytes, reset: bool) -> None:
    client = wire.answers(Reply(before=(sent, Close(reset))))
    error = failure(lambda: read(client, wire.request()))
    assert error.kind == "closed"
    assert error.retryable


@pytest.mark.parametrize("reset", [False, True], ids=("fin", "rst"))
@pytest.mark.parametrize("tls", [False, True], ids=("plain", "tls"))
@pytest.mark.parametrize("size", [0, 500_000])
def test_a_used_connection_that_fails_before_any_answer_is_replaced_once(wire: Stage, reset: bool, tls: bool, size: int) -> None:
    failed = hang_up(reset=reset)
    client, body = wire.answers(plain(b"one"), failed, plain(b"two"), failed, tls=tls), b"x" * size
    assert [read(client, wire.request(body=body)) for _ in range(2)] == [(200, b"one"), (200, b"two")]
    assert [(request.connection, request.body) for request in wire.server.requests] == [(1, body), (1, body), (2, body)]
    for requests in (5, 6):  # the last of them had no connection to begin with
        error = failure(lambda: client.send(wire.request()))
        assert (error.kind, len(wire.server.requests)) == ("closed", requests)
        assert ("broke: Connection reset" if reset else "closed the connection without an answer") in str(error)


@pytest.mark.parametrize("data", [
    b"SSH-2.0-OpenSSH_9.6\r\n\r\n", b"HTTP/1.1 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000 + b"\r\n\r\n",
    *(b"HTTP/1.1 200 OK\r\n" + line + b"\r\nContent-Length: 2\r\n\r\nhi" for line in (b"no header", b"two words: x", b"x: a\rno header")),
])  # fmt: skip
def test_an_answer_that_is_not_http_is_a_permanent_error(wire: Stage, data: bytes) -> None:
    client = wire.answers(garbage(data))
    error = failure(lambda: client.send(wire.request()))
    assert (error.kind, error.retryable) == ("protocol", False)


def test_a_refused_connection_names_host_and_port(wire: Stage) -> None:
    client = wire.answers(plain(b""))
    wire.server.close()
    error = failure(lambda: client.send(wire.request()))
    assert error.kind == "connect"
    assert f"127.0.0.1:{wire.server.port}: Connection refused" in str(error)
    assert isinstance(error.__cause__, ConnectionRefusedError)


@pytest.mark.parametrize("host", ["localhost..b", "localhost." + "a" * 64])
def test_a_name_that_no_host_can_have_is_a_failed_connection(host: str) -> None:
    error = failure(lambda: HttpTransport().send(Request("GET", f"http://{host}/v1")))
    assert (error.kind, str(error)) == ("connect", f"no connection to {host}:80: this is not the name of a host")


def test_silence_before_the_answer_and_in_its_middle_is_a_timeout(wire: Stage) -> None:
    gate = Gate()
    client = wire.answers(plain(b"").stall(gate), Reply(body=(b"begin", b"end")).hold(gate, at=1))
    error = failure(lambda: client.send(wire.request(method="post", timeouts=Timeouts(read=0.1))))
    assert (error.kind, error.retryable) == ("timeout", True)
    assert "silent for 0.1 seconds" in str(error)
    response = client.send(wire.request(timeouts=Timeouts(read=0.5)))  # long enough for the first piece to come
    body = iter(response)
    assert next(body) == b"begin"
    assert failure(lambda: next(body)).kind == "timeout"
    response.close()


@pytest.mark.parametrize("trusted", [False, True], ids=("untrusted", "of another host"))
def test_a_wrong_certificate_is_refused_before_the_request_is_sent(wire: Stage, trusted: bool) -> None:
    authority = Authority()
    context = authority.client() if trusted else NO_TLS
    with WireServer(plain(b""), tls=authority.server("other.test")) as server, client_of(wire.kind, context) as client:
        error = failure(lambda: client.send(Request("GET", server.url)))
        assert (error.kind, error.retryable) == ("tls", False)
        assert "certificate" in str(error)
        assert not server.requests


@pytest.mark.parametrize("framing", FRAMINGS)
def test_requests_work_the_same_over_tls(wire: Stage, framing: Any) -> None:
    client = wire.answers(Reply(body=(TEXT,) * 50, framing=framing), Reply(body=(TEXT, TEXT), framing=framing).cut(9), tls=True)
    assert read(client, wire.request()) == (200, TEXT * 50)
    response = client.send(wire.request())
    if framing != "close":
        assert failure(lambda: list(response)).kind == "closed"
    response.close()


@pytest.mark.parametrize("scheme, sent, says", [
    ("https", b"", "the connection was closed while TLS was negotiated"),
    ("https", b"\x16\x03\x03\x40\x00" + bytes(200), "within 0.3 seconds"),
    ("http", b"\x05\x00\x05\x00\x00\x03\xff" + bytes(200), "within 0.3 seconds"),
], ids=["tls closed", "tls by the byte", "socks by the byte"])
def test_a_handshake_that_ends_or_takes_too_long_is_a_failed_connection(wire: Stage, scheme: str, sent: bytes, says: str, monkeypatch: Any) -> None:
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener, client_of(wire.kind) as client, ThreadPoolExecutor(1) as server:
        def drip() -> None:
            with listener.accept()[0] as sock:
                sock.recv(65536)
                for byte in sent:
                    sock.sendall(bytes([byte]))
                    if over.wait(0.03):
                        break

        server.submit(drip)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setenv("http_proxy", f"socks5://{address}")
        url = f"https://{address}" if scheme == "https" else "http://vendor.test"
        error = failure(lambda: client.send(Request("GET", url, timeouts=Timeouts(0.3, PATIENCE))))
        over.set()
    assert (error.kind, error.retryable) == ("connect", True)
    assert str(error).endswith(says)


def test_no_error_holds_a_header_a_query_or_the_body(wire: Stage) -> None:
    gate = Gate()
    secret = f"secret-body-{KEY}".encode()
    replies = (
        hang_up(), hang_up(reset=True), garbage(KEY.encode() + b"\r\n\r\n"), garbage(KEY.encode()),
        garbage(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + KEY.encode() + b"\r\n"), Reply(body=(b"one", b"two")).cut(4),
        plain(b"").stall(gate), plain(b"no").with_headers({"Content-Encoding": "gzip"}),
    )  # fmt: skip
    client = wire.answers(*replies)
    request = wire.request(timeouts=Timeouts(read=0.05), body=secret)
    for _ in replies:
        error = failure(lambda: read(client, request))
        shown = "".join(traceback.format_exception(error)) + repr(error) + repr(error.__dict__)
        assert KEY not in shown
        assert "127.0.0.1" in str(error)
    assert KEY not in repr(request)


# Finishing, closing, cancelling


def test_a_finished_answer_leaves_its_connection_for_the_next_request(wire: Stage) -> None:
    client = wire.answers(Reply(body=(b"event", b"unread", b"unread")))
    server = wire.server
    for _ in range(5):
        response = client.send(wire.request())
        assert next(iter(response)) == b"event"
        server.until(server.requests[-1].answered.is_set)  # what is unread is there, so that it costs no time
        response.finish()
        response.finish()
    assert server.accepts == 1


def test_finishing_waits_neither_for_a_silent_nor_for_an_endless_rest(wire: Stage) -> None:
    gate = Gate()
    client = wire.answers(Reply(body=(b"event",)).hold(gate), Reply(body=(b"event", *[bytes(50_000)] * 100)))
    for _ in range(2):
        response = client.send(wire.request())
        assert next(iter(response))
        response.finish()
    server = wire.server
    server.until(lambda: all(request.client_closed.is_set() for request in server.requests) or not server.open_connections)
    assert server.accepts == 2


def test_a_closed_answer_raises_where_it_is_read_and_may_be_closed_again(stage: Stage) -> None:
    response = stage.answers(Reply(body=(b"one", b"two"))).send(stage.request())
    response.close()
    response.close()
    error = failure(lambda: list(response))
    assert error.kind == "closed"
    assert "closed on this side" in str(error)
    response.finish()


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("tls", [False, True], ids=("plain", "tls"))
def test_closing_from_elsewhere_wakes_the_reader(wire: Stage, framing: Any, tls: bool) -> None:
    holds = threading.Event()
    reply = Reply(body=(b"begin", holds.set, b"end"), framing=framing).hold(Gate(), at=2)
    response = wire.answers(reply, tls=tls).send(wire.request())
    with ThreadPoolExecutor(1) as reader:
        reading = reader.submit(failure, lambda: list(response))
        assert holds.wait(PATIENCE)
        response.close()
        assert "closed on this side" in str(reading.result(PATIENCE))
    assert wire.server.client_closed.wait(PATIENCE)


def test_a_closed_transport_can_be_used_again_and_answers_in_flight_continue(wire: Stage) -> None:
    gate = Gate()
    client = wire.answers(Reply(body=(b"begin", b"end")).hold(gate, at=1), plain(b"next"))
    response = client.send(wire.request())
    body = iter(response)
    assert next(body) == b"begin"
    transport = getattr(client, "transport", client)
    transport.close()
    gate.set()
    assert b"".join(body) == b"end"
    response.finish()
    transport.close()
    assert read(client, wire.request()) == (200, b"next")


def test_without_a_context_the_systems_certificate_authorities_are_read_once_and_only_for_tls(
    wire: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.create_default_context()
    monkeypatch.setattr(ssl, "create_default_context", lambda: pytest.fail("it takes longer than a request to this machine"))
    with WireServer(plain(b"hello")) as server, client_of(wire.kind, None) as client:
        assert read(client, Request("GET", server.url)) == (200, b"hello")
    contexts = iter([context])
    monkeypatch.setattr(ssl, "create_default_context", lambda: next(contexts))
    wire.answers(plain(b""), tls=True)
    with client_of(wire.kind, None) as client:
        for _ in range(2):
            assert failure(lambda: client.send(wire.request())).kind == "tls"
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("tls", [False, True], ids=("plain", "tls"))
@pytest.mark.parametrize("wire", ["http"], indirect=True)
def test_cassettes_are_recorded_and_replayed_over_one_connection(wire: Stage, tmp_path: Path, framing: Any, tls: bool) -> None:
    record_and_replay(wire, tmp_path, [b"one", b"x" * 300_000], framing, tls=tls)
    assert wire.server.accepts == (2 if framing == "close" else 1)


@pytest.mark.parametrize("wire", ["httpx-async"], indirect=True)
def test_small_cassettes_are_recorded_and_replayed_on_an_event_loop(wire: Stage, tmp_path: Path) -> None:
    record_and_replay(wire, tmp_path, [b"one", b"two"], "chunked", tls=False)


def record_and_replay(wire: Stage, tmp_path: Path, bodies: list[bytes], framing: Any, *, tls: bool) -> None:
    tape, match = str(tmp_path / "tape.yaml"), ["method", "uri", "body"]
    client = wire.answers(Reply(body=(bodies[0],), framing=framing), Reply(body=(bodies[1],), framing=framing).gzipped(), tls=tls)
    requests = [wire.request(body=bytes([65 + number]) * 200_000) for number in range(2)]
    with vcr.use_cassette(tape, record_mode="all", match_on=match):
        assert [read(client, request)[1] for request in requests] == bodies
    assert [request.body[:1] for request in wire.server.requests] == [b"A", b"B"]
    with vcr.use_cassette(tape, record_mode="none", match_on=match) as cassette:
        assert [read(client, request)[1] for request in reversed(requests)] == bodies[::-1]
        assert cassette.play_count == 2


# The transport for users' own tests.


REQUEST = Request("POST", "https://vendor.test/v1/chat", {"Authorization": "Bearer key"}, b"{}")


def test_replies_come_in_their_order_and_the_last_one_again_and_again_and_requests_are_kept() -> None:
    transport = MemoryTransport(TransportError("refused", "connect"), MemoryReply(429), MemoryReply(200, pieces=[b"a", b"", b"b"]))
    with pytest.raises(TransportError, match="refused"):
        transport.send(REQUEST)
    assert [read(transport, REQUEST) for _ in range(3)] == [(429, b""), (200, b"ab"), (200, b"ab")]
    assert transport.requests == (REQUEST,) * 4


def test_an_exception_among_the_pieces_is_raised_in_its_place_and_pieces_may_be_made_while_they_are_read() -> None:
    broken = TransportError("cut", "closed")

    def pieces(request: Request) -> Iterator[bytes | BaseException]:
        yield request.method.encode()
        yield broken
        raise AssertionError("is not asked for")

    response = MemoryTransport(lambda request: MemoryReply(201, [("X", "y")], pieces(request))).send(REQUEST)
    body = iter(response)
    assert (response.status, response.headers, next(body)) == (201, {"x": "y"}, b"POST")
    with pytest.raises(TransportError) as caught:
        next(body)
    assert caught.value is broken


async def test_other_tasks_run_while_an_answer_from_memory_is_read() -> None:
    other = asyncio.create_task(asyncio.sleep(0))
    response = await MemoryTransport(MemoryReply(pieces=[b"a", b"b"])).asend(REQUEST)
    assert [piece async for piece in response] == [b"a", b"b"]
    assert other.done()


def test_answers_that_were_neither_finished_nor_closed_are_counted() -> None:
    transport = MemoryTransport(MemoryReply(headers=[("half",)]), MemoryReply(pieces=[b"one"]))  # type: ignore[list-item]
    with pytest.raises(ValueError, match="unpack"):
        transport.send(REQUEST)
    first, second = transport.send(REQUEST), transport.send(REQUEST)
    assert transport.open_responses == 2
    first.close()
    first.close()
    second.finish()
    assert transport.open_responses == 0


@pytest.mark.parametrize("make, error, says", [
    (lambda: MemoryTransport(), TypeError, "or exactly one function"), (lambda: MemoryTransport(b"body"), TypeError, "or exactly one function"),  # type: ignore[arg-type]
    (lambda: MemoryTransport(MemoryReply(), lambda request: MemoryReply()), TypeError, "or exactly one function"),
    (lambda: MemoryReply(b"body"), TypeError, "status must be an int such as 200, got bytes"),  # type: ignore[arg-type]
    (lambda: read(MemoryTransport(MemoryReply(pieces=["two"])), REQUEST), TypeError, "pieces must be bytes and exceptions, got str"),  # type: ignore[list-item]
    (lambda: read(MemoryTransport(lambda request: b"body"), REQUEST), TypeError, "must return a MemoryReply, got bytes"),  # type: ignore[arg-type,return-value]
])  # fmt: skip
def test_a_reply_of_the_wrong_type_is_an_error_that_names_it(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()
