"""What only the transport on `http.client` has: its pool, its second try, and its ways with cassettes."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import vcr

from kernai_providers.http_transport import HttpTransport
from kernai_providers.network import Connection, Deadline
from kernai_providers.request_checks import outgoing, routed
from kernai_providers.transport import Request, Response, Timeouts
from transport_clients import PATIENCE, failure, read
from wire_server import Close, Gate, Reply, WireServer, plain

pytestmark = pytest.mark.slow


def post(server: WireServer, body: bytes = b"{}", **timeouts: float) -> Request:
    return Request("POST", f"{server.url}/v1", {}, body, Timeouts(**timeouts))


@pytest.fixture
def transport() -> Any:
    transport = HttpTransport()
    yield transport
    transport.close()


# The second try


def test_a_connection_that_was_closed_while_idle_is_noticed_before_it_is_used(transport: HttpTransport) -> None:
    with WireServer([replace(plain(b"one"), after=(Close(),)), plain(b"two")]) as server:
        assert read(transport, post(server)) == (200, b"one")
        server.until(lambda: server.open_connections == 0)
        assert read(transport, post(server)) == (200, b"two")
        assert (len(server.requests), server.accepts) == (2, 2)


@pytest.mark.parametrize("second, kind", [
    (Reply(before=(b"HTTP/1.1 2", Close())), "closed"),
    (Reply(body=(b"one", b"two")).cut(1), "closed"),
    (plain(b"").stall(Gate()), "timeout"),
], ids=("head cut", "body cut", "silence"))
def test_a_request_is_not_repeated_once_its_answer_has_begun_or_it_timed_out(transport: HttpTransport, second: Reply, kind: str) -> None:
    with WireServer([plain(b"one"), second, plain(b"never")]) as server:
        assert read(transport, post(server)) == (200, b"one")
        assert failure(lambda: read(transport, post(server, read=0.05 if kind == "timeout" else PATIENCE))).kind == kind
        assert len(server.requests) == 2


def test_a_kept_connection_serves_when_the_process_can_open_no_more_files(transport: HttpTransport) -> None:
    resource = pytest.importorskip("resource", reason="this system has no limit of open files")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with WireServer(plain(b"hello")) as server:
        assert read(transport, post(server)) == (200, b"hello")
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            assert read(transport, post(server)) == (200, b"hello")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


# The pool


def at_once(transport: HttpTransport, server: WireServer, count: int) -> list[Response]:
    """Answers that were all begun before any is finished, so each has a connection of its own."""
    responses: list[Response] = [transport.send(post(server)) for _ in range(count)]
    # finishing waits only for what is there already
    server.until(lambda: all(request.answered.is_set() for request in server.requests))
    return responses


def test_no_more_than_max_idle_connections_stay_open(transport: HttpTransport) -> None:
    transport = HttpTransport(max_idle=2)
    with WireServer(plain(b"hello")) as server:
        for response in at_once(transport, server, 5):
            response.finish()
        server.until(lambda: server.open_connections == 2)
        read(transport, post(server))
        assert server.requests[-1].connection == 5
        for response in at_once(transport, server, 2):
            response.finish()
        assert server.accepts == 5
        transport.close()
        server.until(lambda: server.open_connections == 0)


@pytest.mark.parametrize("options", [{"max_idle": 0}, {"idle_seconds": 0.0}], ids=str)
def test_keeping_idle_connections_may_be_switched_off(options: dict[str, Any]) -> None:
    transport = HttpTransport(**options)
    with WireServer(plain(b"hello")) as server:
        for _ in range(3):
            assert read(transport, post(server)) == (200, b"hello")
        assert server.accepts == 3
        transport.close()


def test_a_connection_idle_for_too_long_is_closed_at_the_next_use_of_the_pool(monkeypatch: Any) -> None:
    now, pool = [0.0], HttpTransport(max_idle=9, idle_seconds=30.0)
    monkeypatch.setattr("kernai_providers.http_transport.time", SimpleNamespace(monotonic=lambda: now[0]))
    routes = [outgoing(Request("GET", f"http://{host}")) for host in ("a.test", "b.test", "a.test")]
    first, elsewhere, last = (Connection(route, Deadline(Request("GET", "http://a.test"), route)) for route in routes)
    with socket.socket() as elsewhere.http.sock:
        for now[0], connection in ((0.0, first), (20.0, elsewhere)):
            pool._keep(connection)
        now[0] = 29.9
        assert pool._take(routes[0]) is first
        pool._keep(first)
        pool._keep(last)
        now[0] = 50.0
        assert pool._take(routes[1]) is None
        assert elsewhere.http.sock is None
    assert [pool._take(routes[0]) for _ in range(3)] == [last, first, None]


FORK_LATER = """
import os, sys
from kernai_providers.http_transport import HttpTransport
from kernai_providers.transport import Request
transport, request = HttpTransport(), Request("GET", sys.argv[1])
def ask():
    response = transport.send(request)
    assert b"".join(response) == b"hello"
    response.finish()
ask()
if (child := os.fork()) == 0:
    ask()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
ask()
"""
FORK_WHILE_AUTHORITIES_ARE_READ = """
import os, ssl, threading
from kernai_providers.http_transport import HttpTransport
make, begun, go_on = ssl.create_default_context, threading.Event(), threading.Event()
def slow():
    begun.set()
    go_on.wait(20) or os._exit(1)
    return make()
ssl.create_default_context, transport = slow, HttpTransport()
thread = threading.Thread(target=transport.context)
thread.start()
assert begun.wait(20)
if (child := os.fork()) == 0:
    ssl.create_default_context = make
    transport.context()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
transport.close()  # does not wait for them
go_on.set()
thread.join()
"""


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("program, used", [(FORK_LATER, [1, 2, 1]), (FORK_WHILE_AUTHORITIES_ARE_READ, [])], ids=["later", "while"])
def test_after_a_fork_the_child_has_connections_and_authorities_of_its_own(program: str, used: list[int]) -> None:
    with WireServer(plain(b"hello")) as server:
        path = os.pathsep.join(each for each in sys.path if each)
        subprocess.run([sys.executable, "-c", program, server.url], env=os.environ | {"PYTHONPATH": path}, check=True, timeout=60)
        assert [request.connection for request in server.requests] == used


def test_white_space_after_the_value_of_a_header_is_removed(transport: HttpTransport) -> None:
    head = b"HTTP/1.1 200 OK \r\nX-Pad: 1\r\n \t\r\nTransfer-Encoding: chunked \t\r\nRetry-After: 3 \r\n\r\n"
    with WireServer(Reply(before=(head + b"5\r\nhello\r\n0\r\n\r\n",))) as server:
        response = transport.send(post(server))
        assert (response.headers["retry-after"], b"".join(response)) == ("3", b"hello")
        response.finish()


# The request


def test_an_answer_that_comes_while_the_body_is_being_sent_is_read(transport: HttpTransport, monkeypatch: Any) -> None:
    send = http.client.HTTPConnection.send

    def no_body(self: http.client.HTTPConnection, data: Any) -> None:
        if not data.startswith(b"POST "):
            raise BrokenPipeError(32, "Broken pipe")
        send(self, data)

    with WireServer(plain(b"too large", 413)) as server:
        monkeypatch.setattr(http.client.HTTPConnection, "send", no_body)
        # the server waits for no body, because the request says that there is none
        monkeypatch.setattr(
            "kernai_providers.http_transport.routed",
            lambda given: replace(call := routed(given), headers=call.headers | {"Content-Length": "0"}))
        assert read(transport, post(server, b"x" * 100)) == (413, b"too large")
        server.until(lambda: server.open_connections == 0)  # what was half sent cannot be followed by anything


def test_sending_a_large_body_may_take_longer_than_the_read_timeout(transport: HttpTransport, monkeypatch: Any) -> None:
    now, left, peers, waits = [0.0], [30_000_000], list[socket.socket](), count()
    monkeypatch.setattr("kernai_providers.network.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("kernai_providers.network.SLICE", 0.005)

    def read_at_every_tenth_wait() -> bool:
        if next(waits) % 10 == 9 and left[0] > 0:
            with suppress(BlockingIOError):
                if not peers:
                    peers.append(stack.enter_context(listener.accept()[0]))
                    peers[0].setblocking(False)
                while left[0] > 0:
                    left[0] -= len(peers[0].recv(1_000_000))
                    now[0] = 10.0
                peers[0].sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
        return False

    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.setblocking(False)
        request = Request("POST", f"http://127.0.0.1:{listener.getsockname()[1]}", {}, bytes(left[0]), Timeouts(read=1.0))
        assert read(transport, replace(request, unwanted=read_at_every_tenth_wait)) == (204, b"")


# Cassettes


def test_a_cassettes_connections_end_with_it_and_real_ones_do_not_get_into_it(tmp_path: Path) -> None:
    transport = HttpTransport()
    tape = str(tmp_path / "tape.yaml")
    with WireServer([plain(b"real"), plain(b"recorded"), plain(b"real again")]) as server:
        assert read(transport, post(server)) == (200, b"real")
        with vcr.use_cassette(tape, record_mode="once") as cassette:
            assert read(transport, post(server)) == (200, b"recorded")
            assert len(cassette) == 1
        with vcr.use_cassette(tape, record_mode="none") as cassette:
            assert read(transport, post(server)) == (200, b"recorded")
            assert cassette.play_count == 1
            with pytest.raises(vcr.errors.CannotOverwriteExistingCassetteException):
                transport.send(Request("GET", server.url))
        assert read(transport, post(server)) == (200, b"real again")
        assert len(server.requests) == 3
        transport.close()
