"""The test server keeps what it promises: what the adapters' tests prove is worth no more than that."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import queue
import socket
import ssl
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire_server import (
    Answer,
    Authority,
    Gate,
    Notify,
    Reply,
    Torn,
    WireRequest,
    WireServer,
    as_json,
    endless,
    garbage,
    gzip_if_asked,
    hang_up,
    plain,
    redirect,
    tunnel,
)

pytestmark = pytest.mark.slow

PIECES = (b"one ", b"two ", b"three")
WHOLE = b"".join(PIECES)
GOOD = Reply(body=PIECES)
PATIENCE = 20.0


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@contextlib.contextmanager
def client(server: WireServer) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    with contextlib.closing(connection):
        yield connection


def ask(connection: http.client.HTTPConnection, **headers: str) -> tuple[int, bytes]:
    connection.request("POST", "/ask?x=1", b'{"a": 1}', headers)
    response = connection.getresponse()
    return response.status, response.read()


@contextlib.contextmanager
def raw(server: WireServer, body: bytes = b"") -> Iterator[socket.socket]:
    """A plain socket that has sent one request."""
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as sock:
        sock.sendall(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        yield sock


@contextlib.contextmanager
def raw_tls(server: WireServer, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    bare = socket.create_connection(("127.0.0.1", server.port), PATIENCE)
    with bare, context.wrap_socket(bare, server_hostname="127.0.0.1", suppress_ragged_eofs=False) as sock:
        sock.sendall(b"POST / HTTP/1.1\r\n\r\n")
        yield sock


def read_all(sock: socket.socket) -> bytes:
    """Everything up to the end of the connection; a reset is an error, as the socket says."""
    return b"".join(iter(lambda: sock.recv(65536), b""))


def read_until(sock: socket.socket, mark: bytes) -> bytes:
    data = b""
    while mark not in data:
        more = sock.recv(65536)
        assert more, f"closed after {data!r}"
        data += more
    return data


def body_on_the_wire(reply: Reply) -> bytes:
    with WireServer(reply.then_close()) as server, raw(server) as sock:
        return read_all(sock).partition(b"\r\n\r\n")[2]


# What is sent


@pytest.mark.parametrize(
    "reply, expected",
    [
        (GOOD, b"4\r\none \r\n4\r\ntwo \r\n5\r\nthree\r\n0\r\n\r\n"),
        (Reply(body=(b"ab", b"", b"c")), b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"),
        (Reply(body=(b"abc",)).split(1), b"1\r\na\r\n1\r\nb\r\n1\r\nc\r\n0\r\n\r\n"),
        (Reply(body=(b"a", b"bcd", b"e")).split(2, 1), b"2\r\nab\r\n1\r\nc\r\n2\r\nde\r\n0\r\n\r\n"),
        (GOOD.framed("length"), WHOLE),
        (GOOD.framed("close"), WHOLE),
        (GOOD.cut(0), b""),
        (GOOD.cut(4), b"4\r\none \r\n"),
        (GOOD.cut(6), b"4\r\none \r\n4\r\ntw"),
        (GOOD.cut(13), b"4\r\none \r\n4\r\ntwo \r\n5\r\nthree\r\n"),
        (GOOD.framed("length").cut(6), b"one tw"),
        (GOOD.without_last(), b"4\r\none \r\n4\r\ntwo \r\n"),
        (GOOD.without_last(3), b""),
        (endless(b"xy", bound=5), b"2\r\nxy\r\n2\r\nxy\r\n1\r\nx\r\n0\r\n\r\n"),
        (endless(b"xy", bound=4), b"2\r\nxy\r\n2\r\nxy\r\n0\r\n\r\n"),
        (endless(b"xy", bound=5, framing="length"), b"xyxyx"),
    ],
)
def test_the_body_goes_out_byte_for_byte_as_the_reply_says(reply: Reply, expected: bytes) -> None:
    assert body_on_the_wire(reply) == expected


@pytest.mark.parametrize(
    "reply, line, framing",
    [
        (GOOD, b"HTTP/1.1 200 OK", b"Transfer-Encoding: chunked"),
        (GOOD.framed("length"), b"HTTP/1.1 200 OK", b"Content-Length: 13"),
        (GOOD.framed("length").cut(2), b"HTTP/1.1 200 OK", b"Content-Length: 13"),
        (GOOD.framed("close"), b"HTTP/1.1 200 OK", b"Connection: close"),
        (plain(b"slow down", 529), b"HTTP/1.1 529 Unknown", b"Content-Length: 9"),
        (redirect("http://127.0.0.1:9/x"), b"HTTP/1.1 307 Temporary Redirect", b"Location: http://127.0.0.1:9/x"),
        (as_json({"a": 1}, 429), b"HTTP/1.1 429 Too Many Requests", b"Content-Type: application/json"),
        (GOOD.with_headers({"X": "1"}).with_headers({"X": "2"}), b"HTTP/1.1 200 OK", b"X: 1\r\nX: 2"),
    ],
)
def test_the_head_says_status_headers_and_framing(reply: Reply, line: bytes, framing: bytes) -> None:
    with WireServer(reply.then_close()) as server, raw(server) as sock:
        head = read_all(sock).partition(b"\r\n\r\n")[0]
    assert head.startswith(line + b"\r\n")
    assert framing in head


@given(pieces=st.lists(st.binary(), max_size=6), sizes=st.lists(st.integers(1, 5), min_size=1))
def test_splitting_never_changes_the_bytes(pieces: list[bytes], sizes: list[int]) -> None:
    body = Reply(body=tuple(pieces)).split(*sizes).body
    assert b"".join(step for step in body if isinstance(step, bytes)) == b"".join(pieces)
    lengths = [len(step) for step in body if isinstance(step, bytes)]
    wanted = list(itertools.islice(itertools.cycle(sizes), len(lengths)))
    assert lengths[:-1] == wanted[:-1]


@given(pieces=st.lists(st.binary(), max_size=6), keep=st.integers(0, 40))
def test_a_cut_body_is_the_beginning_of_the_whole_one(pieces: list[bytes], keep: int) -> None:
    whole = Reply(body=tuple(pieces))
    cut = whole.cut(keep)
    torn = [step.piece[: step.keep] for step in cut.body if isinstance(step, Torn)]
    assert cut.content + b"".join(torn) == whole.content[:keep]
    assert cut.declared == whole.declared


@pytest.mark.parametrize("accepts, packed", [("gzip, deflate", True), ("identity", False), ("", False)])
def test_gzip_is_for_those_who_ask(accepts: str, packed: bool) -> None:
    with WireServer(gzip_if_asked(GOOD)) as server, client(server) as connection:
        connection.request("POST", "/", headers={"Accept-Encoding": accepts})
        response = connection.getresponse()
        body = response.read()
    assert response.headers.get("Content-Encoding") == ("gzip" if packed else None)
    assert (zlib.decompress(body, wbits=31) if packed else body) == WHOLE


def test_each_gzipped_piece_can_be_read_before_the_next_is_sent() -> None:
    unpack = zlib.decompressobj(wbits=31)
    assert [unpack.decompress(step) for step in GOOD.gzipped().body if isinstance(step, bytes)] == [*PIECES, b""]
    assert unpack.eof


# What is read


def test_requests_are_recorded_in_order_as_they_came() -> None:
    with WireServer(plain(b"ok")) as server, client(server) as connection:
        connection.request("PUT", "/a?b=%20", b"body", {"X-One": "1"})
        connection.getresponse().read()
        connection.request("POST", "/json", iter([b'{"a', b'": "\xc3\xa4"}']), {"Transfer-Encoding": "chunked"}, encode_chunked=True)
        connection.getresponse().read()
        first, second = server.requests
    assert (first.method, first.path, first.body, first.headers["x-one"]) == ("PUT", "/a?b=%20", b"body", "1")
    assert (second.json, first.connection, second.connection) == ({"a": "ä"}, 1, 1)


def test_a_request_may_come_byte_by_byte_and_two_at_once() -> None:
    request = b"POST /x HTTP/1.1\r\nA: 1\r\na: 2\r\nContent-Length: 2\r\n\r\nhi"
    with WireServer(plain(b"ok")) as server, socket.create_connection(("127.0.0.1", server.port), PATIENCE) as sock:
        for at in range(len(request)):
            sock.send(request[at : at + 1])
        sock.sendall(request + request)
        server.until(lambda: len(server.requests) == 3)
        assert {(seen.path, seen.headers["a"], seen.body) for seen in server.requests} == {("/x", "1, 2", b"hi")}


def test_a_client_that_does_not_speak_http_is_reported_at_the_end() -> None:
    with pytest.raises(ExceptionGroup, match="wire server") as caught, WireServer(GOOD) as server, socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(b"hello\r\n\r\n")
        assert read_all(sock) == b""
    assert "hello" in str(caught.value.exceptions[0])


# The script


def test_replies_are_used_in_order_and_the_last_one_repeats() -> None:
    script: list[Answer] = [plain(b"busy", 503), lambda request: plain(request.body), plain(b"end")]
    with WireServer(script) as server, client(server) as connection:
        assert [ask(connection) for _ in range(4)] == [(503, b"busy"), (200, b'{"a": 1}'), (200, b"end"), (200, b"end")]


def test_a_script_that_raises_is_reported_at_the_end_and_answers_nothing() -> None:
    def script(request: WireRequest) -> Reply:
        raise LookupError("no such turn")

    with pytest.raises(ExceptionGroup) as caught, WireServer(script) as server, raw(server) as sock:
        assert read_all(sock) == b""
    assert [str(error) for error in caught.value.exceptions] == ["no such turn"]


def test_the_error_of_a_test_is_not_hidden_by_one_of_the_script() -> None:
    def script(request: WireRequest) -> Reply:
        raise LookupError

    with pytest.raises(KeyError), WireServer(script) as server, raw(server) as sock:
        read_all(sock)
        raise KeyError


@pytest.mark.parametrize("sizes", [(), (0,), (2, -1)])
def test_sizes_that_would_lose_bytes_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="sizes"):
        GOOD.split(*sizes)


def test_an_empty_script_is_refused() -> None:
    with pytest.raises(ValueError, match="script"):
        WireServer([])


# Connections


def test_connections_are_kept_and_counted() -> None:
    with WireServer(GOOD) as server:
        with client(server) as one, client(server) as two:
            for connection in (one, two, one, two, one):
                assert ask(connection) == (200, WHOLE)
            assert (server.accepts, server.open_connections) == (2, 2)
            assert [request.connection for request in server.requests] == [1, 2, 1, 2, 1]
        server.until(lambda: server.open_connections == 0)
        assert server.accepts == 2


@pytest.mark.parametrize(
    "reply, asked",
    [(GOOD.framed("close"), {}), (GOOD.with_headers({"connection": "close"}), {}), (GOOD, {"Connection": "close"})],
)
def test_a_connection_that_is_not_to_be_kept_is_closed_by_the_server(reply: Reply, asked: dict[str, str]) -> None:
    with WireServer(reply) as server, client(server) as connection:
        assert ask(connection, **asked) == (200, WHOLE)
        server.until(lambda: server.open_connections == 0)
        assert not server.requests[0].client_closed.is_set()


def test_an_idle_connection_can_be_closed_although_it_was_to_be_kept() -> None:
    gate = Gate()
    with WireServer(GOOD.then_close(gate)) as server, client(server) as connection:
        assert ask(connection) == (200, WHOLE)
        assert server.open_connections == 1
        gate.set()
        server.until(lambda: server.open_connections == 0)
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            ask(connection)
        assert len(server.requests) == 1


def ends_clean(sock: socket.socket) -> bytes:
    return read_all(sock)


def ends_with_a_reset(sock: socket.socket) -> bytes:
    with pytest.raises(ConnectionResetError):
        read_all(sock)
    return b""


@pytest.mark.parametrize(
    "reply, end, seen",
    [
        (hang_up(), ends_clean, b""),
        (hang_up(reset=True), ends_with_a_reset, b""),
        (garbage(b"SSH-2.0-x\r\n"), ends_clean, b"SSH-2.0-x\r\n"),
        (GOOD.framed("length").cut(5), ends_clean, b"one t"),
        (GOOD.cut(5, reset=True), ends_with_a_reset, b""),
        (GOOD.without_last(reset=True), ends_with_a_reset, b""),
        (GOOD.then_close(reset=True), ends_with_a_reset, b""),
    ],
)
def test_a_connection_ends_as_the_reply_says(reply: Reply, end: Callable[[socket.socket], bytes], seen: bytes) -> None:
    with WireServer(reply) as server, raw(server) as sock:
        assert end(sock).endswith(seen)
        server.until(lambda: server.open_connections == 0)


# Waiting


def test_a_trickled_piece_is_sent_only_when_the_last_one_was_seen() -> None:
    gate = Gate()
    sent: queue.Queue[int] = queue.Queue()
    reply = Reply(body=(b"a", Notify(lambda: sent.put(1)), b"b", Notify(lambda: sent.put(2)), b"c")).trickle(gate)
    with WireServer(reply.framed("length")) as server, raw(server) as sock:
        assert read_until(sock, b"\r\n\r\na").endswith(b"a")
        assert sent.empty()
        gate.allow()
        assert read_until(sock, b"b") == b"b"
        assert sent.get(timeout=PATIENCE) == 1
        assert sent.empty()
        gate.allow()
        assert read_until(sock, b"c") == b"c"
        assert server.requests[0].answered.wait(PATIENCE)  # nothing is waited for after the last piece


def test_only_the_chosen_pieces_are_waited_after() -> None:
    gate = Gate()
    with WireServer(GOOD.trickle(gate, lambda piece: b"t" in piece).framed("length")) as server, raw(server) as sock:
        assert read_until(sock, b"two ").endswith(b"\r\n\r\none two ")
        gate.allow()
        assert read_until(sock, b"three") == b"three"


def test_a_stalled_answer_has_not_even_a_status_line() -> None:
    gate = Gate()
    with WireServer(GOOD.stall(gate)) as server, raw(server) as sock:
        server.until(lambda: len(server.requests) == 1)
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            sock.recv(1)
        sock.settimeout(PATIENCE)
        gate.set()
        assert read_until(sock, b"0\r\n\r\n").startswith(b"HTTP/1.1 200 OK")


def test_a_lingering_body_has_all_pieces_but_no_end() -> None:
    gate = Gate()
    with WireServer(GOOD.linger(gate)) as server, raw(server) as sock:
        assert read_until(sock, b"three\r\n").endswith(b"three\r\n")
        assert not server.requests[0].answered.is_set()
        gate.set()
        assert read_until(sock, b"0\r\n\r\n") == b"0\r\n\r\n"
        assert server.requests[0].answered.wait(PATIENCE)


def test_a_gate_counts_what_it_lets_pass_until_it_is_opened_for_good() -> None:
    gate = Gate()
    gate.allow(2)
    assert [gate.take() for _ in range(4)] == [True, True, False, False]
    gate.set()
    assert [gate.take() for _ in range(4)] == [True] * 4


def test_one_gate_releases_many_connections() -> None:
    gate = Gate()
    with WireServer(GOOD.stall(gate)) as server, contextlib.ExitStack() as stack:
        socks = [stack.enter_context(raw(server)) for _ in range(8)]
        server.until(lambda: len(server.requests) == 8)
        gate.set()
        for sock in socks:
            assert read_until(sock, b"0\r\n\r\n")


# Noticing that the client has closed


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(
    "reply, shown",
    [
        (GOOD.stall(Gate()), b""),
        (GOOD.hold(Gate(), at=1), b"one "),
        (GOOD.hold(Gate(), at=-1), b"two "),
        (GOOD.linger(Gate()), b"three"),
        (GOOD.then_close(Gate()), b"0\r\n\r\n"),
        (GOOD, b"0\r\n\r\n"),
        (endless(b"x" * 1000), b"x"),
        (endless(b"x" * 1000, framing="length"), b"x"),
        (endless(b"x" * 1000, framing="close"), b"x"),
    ],
)
def test_a_client_that_closes_is_noticed_wherever_the_server_is(reply: Reply, shown: bytes, reset: bool) -> None:
    with WireServer(reply) as server, raw(server) as sock:
        read_until(sock, shown) if shown else server.until(lambda: len(server.requests) == 1)
        assert not server.client_closed.is_set()
        if reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()
        assert server.client_closed.wait(PATIENCE)
        assert server.requests[0].client_closed.is_set()
        server.until(lambda: server.open_connections == 0)


def test_a_client_that_closes_in_good_order_is_noticed_at_the_next_piece() -> None:
    closed = threading.Event()
    reply = Reply(body=(b"a", Notify(lambda: closed.wait(PATIENCE)), b"b"), framing="length")
    with WireServer(reply) as server, raw(server) as sock:
        read_until(sock, b"\r\n\r\na")
        sock.close()
        closed.set()
        server.until(lambda: server.open_connections == 0)
        assert server.requests[0].client_closed.is_set()
        assert not server.requests[0].answered.is_set()


def test_who_closed_is_known_for_each_connection() -> None:
    with WireServer(GOOD.hold(Gate(), at=1)) as server, raw(server) as one, raw(server) as two:
        server.until(lambda: len(server.requests) == 2)
        read_until(one, b"one ")
        read_until(two, b"one ")
        closed = next(seen for seen in server.requests if seen.connection == 1)
        kept = next(seen for seen in server.requests if seen.connection == 2)
        one.close()
        assert closed.client_closed.wait(PATIENCE)
        assert not kept.client_closed.is_set()


# Leaving nothing behind


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "wire-server"}


@pytest.mark.parametrize(
    "reply",
    [GOOD, GOOD.stall(Gate()), GOOD.hold(Gate(), 1), GOOD.linger(Gate()), GOOD.then_close(Gate()), endless(b"x" * 99999)],
)
def test_closing_ends_every_connection_and_thread_whatever_they_wait_for(reply: Reply) -> None:
    before = threads()
    with WireServer(reply) as server, contextlib.ExitStack() as stack:
        socks = [stack.enter_context(raw(server)) for _ in range(4)]
        idle = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        server.until(lambda: (len(server.requests), server.accepts) == (4, 5))
        assert len(threads() - before) == 6
        server.close()
        assert threads() == before
        assert server.open_connections == 0
        for sock in (*socks, idle):
            with contextlib.suppress(ConnectionResetError):
                read_all(sock)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port))


def test_many_connections_at_once_are_all_served_and_none_is_left() -> None:
    before = threads()
    meet = threading.Barrier(64)
    answers: queue.Queue[Any] = queue.Queue()

    def run() -> None:
        with client(server) as connection:
            meet.wait(PATIENCE)
            answers.put([ask(connection) for _ in range(3)])

    with WireServer(GOOD) as server:
        runners = [threading.Thread(target=run) for _ in range(64)]
        for runner in runners:
            runner.start()
        for runner in runners:
            runner.join()
        assert (server.accepts, len(server.requests)) == (64, 192)
        server.until(lambda: server.open_connections == 0)
    assert [answers.get_nowait() for _ in range(64)] == [[(200, WHOLE)] * 3] * 64
    assert threads() == before


# TLS


@pytest.mark.parametrize(
    "reply", [GOOD, GOOD.split(1), GOOD.framed("length"), GOOD.framed("close"), endless(b"x" * 5000, 3_000_000)]
)
def test_the_same_goes_over_tls(authority: Authority, reply: Reply) -> None:
    with WireServer(reply, tls=authority.server()) as server:
        assert server.url.startswith("https://")
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=PATIENCE, context=authority.client())
        with contextlib.closing(connection):
            for _ in range(2):
                status, body = ask(connection)
                assert (status, len(body)) == (200, reply.declared)
        assert server.accepts == (2 if reply.framing == "close" else 1)


@pytest.mark.parametrize(
    "reply, error",
    [(GOOD.cut(5), http.client.IncompleteRead), (GOOD.hold(Gate(), 1), None), (endless(b"x" * 5000), None)],
)
def test_cuts_and_closing_clients_are_the_same_over_tls(authority: Authority, reply: Reply, error: type[Exception] | None) -> None:
    with WireServer(reply, tls=authority.server()) as server:
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=PATIENCE, context=authority.client())
        with contextlib.closing(connection):
            connection.request("POST", "/")
            response = connection.getresponse()
            assert response.read(2)
            if error:
                with pytest.raises((error, ssl.SSLEOFError)):
                    response.read()
            response.close()
        if not error:
            assert server.client_closed.wait(PATIENCE)
        server.until(lambda: server.open_connections == 0)


@pytest.mark.skipif(
    bool(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).options & ssl.OP_IGNORE_UNEXPECTED_EOF),
    reason="older Pythons do not distinguish a cut from an end",
)
@pytest.mark.parametrize(
    "reply, said",
    [(GOOD.framed("close"), True), (GOOD.framed("close").without_last(), False), (GOOD.framed("close").cut(3), False)],
)
def test_the_end_of_tls_is_said_for_a_whole_body_and_not_for_a_cut_one(authority: Authority, reply: Reply, said: bool) -> None:
    with WireServer(reply, tls=authority.server()) as server, raw_tls(server, authority.client()) as sock:
        if said:
            assert read_all(sock).endswith(WHOLE)
        else:
            with pytest.raises(ssl.SSLEOFError):
                read_all(sock)


@pytest.mark.parametrize("names, trusted", [(("127.0.0.1",), False), (("elsewhere.invalid",), True)])
def test_a_certificate_can_be_untrusted_or_of_another_host(authority: Authority, names: tuple[str, ...], trusted: bool) -> None:
    context = authority.client() if trusted else ssl.create_default_context()
    with WireServer(GOOD, tls=authority.server(*names)) as server:
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=context)
        with contextlib.closing(connection), pytest.raises(ssl.SSLCertVerificationError):
            connection.connect()
        server.until(lambda: (server.accepts, server.open_connections) == (1, 0))
        assert server.requests == ()


def test_the_server_can_play_a_proxy_and_the_host_behind_it(authority: Authority) -> None:
    script = [tunnel(authority.server("api.invalid")), GOOD]
    with WireServer(script) as server:
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=PATIENCE, context=authority.client())
        connection.set_tunnel("api.invalid", 443)
        with contextlib.closing(connection):
            assert ask(connection) == (200, WHOLE)
        assert [(seen.method, seen.path) for seen in server.requests] == [("CONNECT", "api.invalid:443"), ("POST", "/ask?x=1")]
