"""What only the transport on httpx has: event loops, and that httpx may be missing."""

from __future__ import annotations

import asyncio
import logging
import re
import select
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext, suppress
from typing import Any, Self

import httpcore
import pytest

from adapter_calls import shown_by
from kernai_providers.httpx_transport import HttpxTransport
from kernai_providers.transport import Request, Timeouts, TransportError
from transport_clients import PATIENCE, REAL, LoopClient, client_of, failure, read
from wire_server import Gate, Reply, WireServer, plain


async def aread(transport: HttpxTransport, request: Request) -> bytes:
    response = await transport.asend(request)
    body = b"".join([piece async for piece in response])
    await response.finish()
    return body


def test_each_event_loop_has_connections_of_its_own_and_takes_them_along_when_it_ends() -> None:
    transport = HttpxTransport()
    with WireServer(plain(b"hello")) as server:
        request = Request("GET", server.url)

        async def twice() -> None:
            assert [await aread(transport, request) for _ in range(2)] == [b"hello"] * 2
            assert server.open_connections == 1

        for loops in (1, 2, 3):
            asyncio.run(twice())
            server.until(lambda: server.open_connections == 0)
            assert server.accepts == loops


def test_a_loop_that_was_just_closed_is_forgotten() -> None:
    transport = HttpxTransport(max_idle=0)  # so that nothing is left open that nobody closes
    with WireServer(plain(b"hello")) as server:
        for _ in range(3):
            loop = asyncio.new_event_loop()
            assert loop.run_until_complete(aread(transport, Request("GET", server.url))) == b"hello"
            loop.close()
            assert list(transport._loops) == [loop]


async def test_closing_ends_the_idle_connections_of_this_loop_and_the_next_request_opens_one() -> None:
    transport = HttpxTransport()
    with WireServer(plain(b"hello")) as server:
        for number in (1, 2):
            assert await aread(transport, Request("GET", server.url)) == b"hello"
            await transport.aclose()
            server.until(lambda: server.open_connections == 0)
            assert server.accepts == number
    await transport.aclose()


async def test_threads_and_loops_use_one_transport_side_by_side_and_closing_it_leaves_answers_in_flight() -> None:
    transport, gate = HttpxTransport(), Gate()
    with WireServer(Reply(body=(b"begin", b"end")).hold(gate, at=1)) as server:
        request = Request("GET", server.url)
        in_thread = asyncio.create_task(asyncio.to_thread(read, transport, request))
        here = asyncio.create_task(aread(transport, request))
        await asyncio.to_thread(server.until, lambda: len(server.requests) == 2)
        transport.close()
        await transport.aclose()
        gate.set()
        assert (await in_thread, await here) == ((200, b"beginend"), b"beginend")
        transport.close()


@pytest.mark.parametrize("how, is_whole", [("read", False), ("finish", False), ("finish", True)])
async def test_a_response_that_is_cancelled_twice_keeps_no_connection_and_is_not_taken_for_whole(how: str, is_whole: bool) -> None:
    transport, held = HttpxTransport(), Reply(body=(b"begin", b"end")).hold(Gate(), at=1)
    with WireServer(plain(b"begin") if is_whole else held) as server:
        response = await transport.asend(Request("GET", server.url))
        body = aiter(response)
        assert await anext(body) == b"begin"
        waiting = asyncio.ensure_future(anext(body) if how == "read" else response.finish())
        for _ in range(2):  # the second time while httpcore closes the connection
            await asyncio.sleep(0)
            waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with nullcontext() if is_whole else pytest.raises(TransportError, match="closed on this side"):
            _ = [piece async for piece in response]
        await response.finish()
        (made,) = (await anext(transport._loops[asyncio.get_running_loop()])).values()
        assert made._pool._requests == []
        await transport.aclose()
        await asyncio.to_thread(server.until, lambda: not server.open_connections)


async def test_a_request_that_is_cancelled_twice_is_not_kept_as_one_in_use() -> None:
    transport = HttpxTransport()
    with WireServer(plain(b"").stall(Gate())) as server:
        asking = asyncio.ensure_future(transport.asend(Request("GET", server.url)))
        await asyncio.to_thread(server.until, lambda: len(server.requests) == 1)
        for _ in range(2):
            asking.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await asking
        (made,) = (await anext(transport._loops[asyncio.get_running_loop()])).values()
        assert all(connection.is_closed() for connection in made._pool.connections)


async def test_an_answer_that_a_mock_puts_into_httpcores_pool_needs_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(*_: object) -> httpcore.Response:
        return httpcore.Response(200, content=b"hello")

    monkeypatch.setattr(httpcore.AsyncConnectionPool, "handle_async_request", answer)
    assert await aread(HttpxTransport(), Request("GET", "http://vendor.test/")) == b"hello"


class Socks:
    """A SOCKS5 proxy that connects everything to one port (RFC 1928, RFC 1929), and sends its answer byte by byte.

    Its greeting wants a password or none; any other is all that it says.
    """

    def __init__(self, port: int, password: str, greeting: bytes = b"\x05\x02") -> None:
        self._to, self._password, self._greeting = port, password.encode(), greeting
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), self._serve)  # type: ignore[arg-type]  # is called as one
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.asked: list[bytes] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _serve(self, sock: socket.socket, *_: object) -> None:
        with sock, sock.makefile("rb") as file:
            file.read(file.read(2)[1])
            sock.sendall(self._greeting)
            if self._greeting not in (b"\x05\x02", b"\x05\x00"):
                with suppress(ConnectionResetError):  # of a client that has not read all of it
                    file.read()
                return
            if self._greeting == b"\x05\x02":
                file.read(file.read(2)[1])
                right = file.read(file.read(1)[0]) == self._password
                sock.sendall(b"\x01" + (b"\x00" if right else b"\x01"))
                if not right:
                    return
            kind, first = file.read(5)[3:]
            self.asked.append(bytes([kind, first]) + file.read({1: 3, 4: 15}.get(kind, first) + 2))
            bound = {1: b"\x01" + bytes(4), 3: b"\x03\x01x", 4: b"\x04" + bytes(16)}[kind]
            for byte in b"\x05\x00\x00" + bound + bytes(2):
                sock.sendall(bytes([byte]))
                threading.Event().wait(0.002)
            with socket.create_connection(("127.0.0.1", self._to)) as inner:
                while ready := select.select([sock, inner], [], [], PATIENCE)[0]:
                    for one in ready:
                        if not (data := one.recv(65536)):
                            return
                        (inner if one is sock else sock).sendall(data)


@pytest.fixture
def behind_socks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Socks]]:
    """Starts a proxy, which is then that of the environment."""
    with ExitStack() as stack:
        def start(port: int, *greeting: bytes, password: str = "s3cret") -> Socks:
            proxy = stack.enter_context(Socks(port, "s3cret", *greeting))
            monkeypatch.setenv("http_proxy", f"socks5://me:{password}@127.0.0.1:{proxy.port}")
            return proxy

        yield start


@pytest.mark.parametrize("is_async", [False, True], ids=("threads", "asyncio"))
def test_a_socks_proxy_serves_threads_and_event_loops(is_async: bool, behind_socks: Callable[..., Socks], caplog: Any) -> None:
    with caplog.at_level(logging.DEBUG), WireServer([plain(b"hello"), plain(b"again"), plain(b"on a new connection")]) as server:
        proxy = behind_socks(server.port)
        request = Request("POST", "http://vendor.test/v1", {}, b"{}")
        transport = HttpxTransport()
        client = LoopClient(transport) if is_async else transport
        assert [read(client, request) for _ in range(2)] == [(200, b"hello"), (200, b"again")]
        assert (proxy.asked, server.accepts) == ([b"\x03\x0bvendor.test\x00P"], 1)
        client.close()
        server.until(lambda: server.open_connections == 0)
        if not is_async:
            assert read(client, request) == (200, b"on a new connection")
            client.close()
        for wrong, says in (("wr0ng", "the proxy refused"), ("wr0ng" * 52, "too long for SOCKS")):
            behind_socks(server.port, password=wrong)
            error = failure(lambda: read(transport, request))
            assert (error.kind, says in str(error), "wr0ng" in shown_by(error)) == ("connect", True, False)
        transport.close()
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize("is_async", [False, True], ids=("threads", "asyncio"))
@pytest.mark.parametrize("greeting, says", [
    (b"", "within 0.2 seconds"), (b"\x05\xff", "the proxy refused"), (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is of another kind"),
])  # fmt: skip
@pytest.mark.usefixtures("no_thread_is_left")
def test_a_socks_proxy_that_does_not_serve_is_a_failed_connection(
    is_async: bool, greeting: bytes, says: str, behind_socks: Callable[..., Socks]
) -> None:
    behind_socks(9, greeting)
    transport = HttpxTransport()
    client = LoopClient(transport) if is_async else transport
    error = failure(lambda: read(client, Request("GET", "http://vendor.test/v1", timeouts=Timeouts(0.2, 15.0))))
    assert re.search(rf"no connection to vendor\.test:80 through the proxy .*{says}", str(error))
    assert (error.kind, "s3cret" in shown_by(error)) == ("connect", False)
    client.close()


@pytest.mark.parametrize("kind", REAL)
@pytest.mark.parametrize("host, target", [
    ("vendor.test", b"\x03\x0bvendor.test"), ("10.1.2.3", b"\x01\n\x01\x02\x03"), ("[fd00::7]", b"\x04\xfd" + bytes(14) + b"\x07"),
])  # fmt: skip
def test_a_socks_proxy_is_asked_for_a_name_or_an_address_and_may_answer_in_pieces(
    host: str, target: bytes, kind: str, behind_socks: Callable[..., Socks], monkeypatch: pytest.MonkeyPatch
) -> None:
    with WireServer(plain(b"hello")) as server, client_of(kind) as client:
        for user in ("me:s3cret@", ""):
            proxy = behind_socks(server.port, b"\x05\x02" if user else b"\x05\x00")
            monkeypatch.setenv("http_proxy", f"socks5://{user}127.0.0.1:{proxy.port}")
            assert read(client, Request("GET", f"http://{host}/v1")) == (200, b"hello")
            assert proxy.asked == [target + b"\x00P"]  # with the port, 80
