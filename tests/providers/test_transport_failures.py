"""What `transport.py` promises for the bad days, held against every transport: cuts, silence, nonsense, closing."""

from __future__ import annotations

import socket
import ssl
import threading
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from kernai_providers.transport import Request, Timeouts, TransportError
from transport_clients import (
    CLIENTS,
    FRAMINGS,
    KEY,
    PATIENCE,
    REAL,
    TEXT,
    LoopClient,
    Stage,
    failure,
    read,
    real_client,
)
from wire_server import Authority, Close, Gate, Notify, Reply, WireServer, garbage, hang_up, plain

pytestmark = pytest.mark.slow


@pytest.fixture(params=CLIENTS)
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(request.param, stack)


@pytest.fixture(params=REAL)
def wire(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(request.param, stack)


# What goes wrong


@pytest.mark.parametrize("reset", [False, True], ids=("fin", "rst"))
@pytest.mark.parametrize("framing", ["chunked", "length"])
@pytest.mark.parametrize("keep", [0, 1, 5, 9])
def test_a_body_that_is_cut_gives_what_came_and_then_an_error(stage: Stage, framing: Any, keep: int, reset: bool) -> None:
    client = stage.answers(Reply(body=(b"01234", b"56789"), framing=framing).cut(keep, reset=reset))
    response = client.send(stage.request())
    came = b""

    def collect() -> None:
        nonlocal came
        for piece in response:
            came += piece

    assert failure(collect).kind == "closed"
    response.close()
    assert b"0123456789".startswith(came)
    assert len(came) == keep or reset  # a reset may overtake what was sent before it


@pytest.mark.parametrize("reset", [False, True], ids=("fin", "rst"))
@pytest.mark.parametrize(
    "sent", [b"", b"HT", b"HTTP/1.1 20", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n",
             b"HTTP/1.1 200 OK\r\nContent-Type: text/event-str"],
)  # fmt: skip
def test_a_head_that_is_cut_is_no_answer(wire: Stage, sent: bytes, reset: bool) -> None:
    client = wire.answers(Reply(before=(sent, Close(reset))))
    error = failure(lambda: client.send(wire.request()))
    assert error.kind == "closed"
    assert error.retryable


@pytest.mark.parametrize("data", [b"SSH-2.0-OpenSSH_9.6\r\n\r\n", b"HTTP/1.1 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000 + b"\r\n\r\n"])
def test_what_is_not_http_is_a_permanent_error(wire: Stage, data: bytes) -> None:
    client = wire.answers(garbage(data))
    error = failure(lambda: client.send(wire.request()))
    assert (error.kind, error.retryable) == ("protocol", False)


def test_a_refused_connection_names_host_and_port(wire: Stage) -> None:
    client = wire.answers(plain(b""))
    assert wire.server is not None
    wire.server.close()
    error = failure(lambda: client.send(wire.request()))
    assert error.kind == "connect"
    assert f"127.0.0.1:{wire.server.port}: Connection refused" in str(error)


def test_silence_before_the_answer_and_in_its_middle_is_a_timeout(wire: Stage) -> None:
    gate = Gate()
    client = wire.answers(plain(b"").stall(gate), Reply(body=(b"begin", b"end")).hold(gate, at=1))
    error = failure(lambda: client.send(wire.request(timeouts=Timeouts(read=0.1))))
    assert (error.kind, error.retryable) == ("timeout", True)
    assert "silent for 0.1 seconds" in str(error)
    response = client.send(wire.request(timeouts=Timeouts(read=0.5)))  # long enough for the first piece to come
    body = iter(response)
    assert next(body) == b"begin"
    assert failure(lambda: next(body)).kind == "timeout"
    response.close()


def test_a_certificate_nobody_vouches_for_is_refused_before_the_request_is_sent(wire: Stage) -> None:
    wire.answers(plain(b""), tls=True)
    with real_client(wire.kind) as client:
        error = failure(lambda: client.send(wire.request()))
    assert (error.kind, error.retryable) == ("tls", False)
    assert "certificate" in str(error)
    assert wire.server is not None
    assert not wire.server.requests


def test_a_certificate_for_another_host_is_refused(wire: Stage) -> None:
    authority = Authority()
    with WireServer(plain(b""), tls=authority.server("other.test")) as server, \
            real_client(wire.kind, authority.client()) as client:  # fmt: skip
        assert failure(lambda: client.send(Request("GET", server.url))).kind == "tls"
        assert not server.requests


@pytest.mark.parametrize("framing", FRAMINGS)
def test_over_tls_all_is_the_same(wire: Stage, framing: Any) -> None:
    client = wire.answers(
        Reply(body=(TEXT,) * 50, framing=framing), Reply(body=(TEXT, TEXT), framing=framing).cut(9), tls=True
    )
    assert read(client, wire.request()) == (200, TEXT * 50)
    response = client.send(wire.request())
    if framing != "close":
        assert failure(lambda: list(response)).kind == "closed"
    response.close()


def test_a_connection_that_ends_during_the_tls_handshake_is_reported_as_such(wire: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, real_client(wire.kind) as client:
        def hang_up() -> None:
            sock, _ = listener.accept()
            sock.recv(65536)
            sock.shutdown(socket.SHUT_WR)
            sock.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        error = failure(lambda: client.send(Request("GET", f"https://127.0.0.1:{listener.getsockname()[1]}")))
        thread.join(PATIENCE)
    assert (error.kind, error.retryable) == ("connect", True)
    assert str(error).endswith("the connection was closed while TLS was negotiated")


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
    assert server is not None
    for _ in range(5):
        response = client.send(wire.request())
        assert next(iter(response)) == b"event"
        server.until(server.requests[-1].answered.is_set)  # what is unread is there, so that it costs no time
        response.finish()
        response.finish()
    assert server.accepts == 1


def test_finishing_waits_neither_for_a_silent_nor_for_an_endless_rest(wire: Stage) -> None:
    gate = Gate()
    client = wire.answers(Reply(body=(b"event",)).linger(gate), Reply(body=(b"event", *[bytes(50_000)] * 100)))
    for _ in range(2):
        response = client.send(wire.request())
        assert next(iter(response))
        response.finish()
    server = wire.server
    assert server is not None
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
    reply = Reply(body=(b"begin", Notify(holds.set), b"end"), framing=framing).hold(Gate(), at=2)
    response = wire.answers(reply, tls=tls).send(wire.request())
    ended: list[BaseException] = []

    def read_on() -> None:
        try:
            list(response)
        except BaseException as error:
            ended.append(error)

    reader = threading.Thread(target=read_on)
    reader.start()
    assert holds.wait(PATIENCE)
    response.close()
    reader.join(PATIENCE)
    assert not reader.is_alive()
    assert [type(error) for error in ended] == [TransportError]
    assert wire.server is not None
    assert wire.server.client_closed.wait(PATIENCE)


@pytest.mark.parametrize("in_head", [True, False], ids=("before the answer", "in its middle"))
@pytest.mark.parametrize("tls", [False, True], ids=("plain", "tls"))
def test_cancelling_the_task_closes_the_connection(in_head: bool, tls: bool) -> None:
    with ExitStack() as stack:
        stage = Stage("httpx-async", stack)
        reply = Reply(body=(b"begin", b"end"))
        client = stage.answers(reply.stall(Gate()) if in_head else reply.hold(Gate(), at=1), tls=tls)
        assert isinstance(client, LoopClient)
        begun = threading.Event()

        async def stream() -> None:
            response = await client.transport.asend(stage.request())
            async for _ in response:
                begun.set()

        task = client.start(stream())
        server = stage.server
        assert server is not None
        server.until(lambda: len(server.requests) == 1)
        assert in_head or begun.wait(PATIENCE)
        task.cancel()
        assert server.requests[0].client_closed.wait(PATIENCE)


def test_a_closed_transport_can_be_used_again_and_answers_in_flight_continue(wire: Stage) -> None:
    gate = Gate()
    client = wire.answers(Reply(body=(b"begin", b"end")).hold(gate, at=1), plain(b"next"))
    response = client.send(wire.request())
    body = iter(response)
    assert next(body) == b"begin"
    getattr(client, "transport", client).close()
    gate.set()
    assert b"".join(body) == b"end"
    response.finish()
    getattr(client, "transport", client).close()
    assert read(client, wire.request()) == (200, b"next")


def test_without_a_context_the_systems_certificate_authorities_are_asked_and_read_once(wire: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ssl.SSLContext] = []
    create = ssl.create_default_context

    def counted(*arguments: Any, **named: Any) -> ssl.SSLContext:
        made.append(create(*arguments, **named))
        return made[-1]

    wire.answers(plain(b""), tls=True)
    monkeypatch.setattr(ssl, "create_default_context", counted)
    with real_client(wire.kind, None) as client:
        for _ in range(2):
            assert failure(lambda: client.send(wire.request())).kind == "tls"
    assert [(context.verify_mode, context.check_hostname) for context in made] == [(ssl.CERT_REQUIRED, True)]


def test_without_tls_no_certificate_authorities_are_read(wire: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_them(*_: object, **_named: object) -> ssl.SSLContext:
        raise AssertionError("it takes longer than a request to this machine")

    monkeypatch.setattr(ssl, "create_default_context", read_them)
    wire.answers(plain(b"hello"))
    with real_client(wire.kind, None) as client:
        assert read(client, wire.request()) == (200, b"hello")
