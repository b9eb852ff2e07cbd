"""What only the transport on httpx has: event loops, and that httpx may be missing."""

from __future__ import annotations

import asyncio
import importlib
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernai_providers.httpx_network import PatientStream, waiting
from kernai_providers.httpx_transport import HttpxTransport
from kernai_providers.patience import Patience
from kernai_providers.transport import Request, TransportError
from transport_clients import PATIENCE, read, real_client
from wire_server import Authority, Close, Gate, Reply, WireServer, plain


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


async def test_closing_ends_the_connections_of_this_loop_and_the_next_request_opens_one() -> None:
    transport = HttpxTransport()
    with WireServer(plain(b"hello")) as server:
        for number in (1, 2):
            assert await aread(transport, Request("GET", server.url)) == b"hello"
            await transport.aclose()
            server.until(lambda: server.open_connections == 0)
            assert server.accepts == number
    await transport.aclose()


@pytest.mark.parametrize("kind", ["httpx", "httpx-async"])
@pytest.mark.parametrize("reset", [False, True], ids=("fin", "rst"))
def test_an_idle_connection_that_is_closed_at_the_next_request_is_no_failure(kind: str, reset: bool) -> None:
    hang_up = Reply(before=(Close(reset),))
    with WireServer([plain(b"one"), hang_up, plain(b"two"), hang_up, hang_up]) as server, real_client(kind) as client:
        request = Request("GET", server.url)
        assert [read(client, request) for _ in range(2)] == [(200, b"one"), (200, b"two")]
        assert (len(server.requests), server.accepts) == (3, 2)
        # on a new connection it is one
        with pytest.raises(TransportError, match="closed the connection") as caught:
            read(client, request)
        assert (caught.value.kind, len(server.requests), server.accepts) == ("closed", 5, 3)


async def test_threads_and_loops_use_one_transport_side_by_side() -> None:
    transport, gate = HttpxTransport(), Gate()
    with WireServer(Reply(body=(b"begin", b"end")).hold(gate, at=1)) as server:
        request = Request("GET", server.url)
        in_thread = asyncio.create_task(asyncio.to_thread(read, transport, request))
        here = asyncio.create_task(aread(transport, request))
        await asyncio.to_thread(server.until, lambda: len(server.requests) == 2)
        gate.set()
        assert (await in_thread, await here) == ((200, b"beginend"), b"beginend")
        transport.close()
        await transport.aclose()


def test_a_connection_that_was_kept_is_not_disturbed_when_the_time_for_finishing_would_be_over() -> None:
    transport = HttpxTransport()
    with WireServer(Reply(body=(b"event", b"unread"))) as server:
        for _ in range(2):
            response = transport.send(Request("GET", server.url))
            assert next(iter(response)) == b"event"
            server.until(server.requests[-1].answered.is_set)
            response.finish()
        assert server.accepts == 1
        transport.close()


def test_an_answer_that_has_come_is_no_sign_that_an_idle_connection_was_closed() -> None:
    """httpcore asks so without a lock, and closes the connection: by then another thread may have asked something."""
    transport = HttpxTransport()
    with WireServer(plain(b"hello")) as server:
        request = Request("GET", server.url)
        response = transport.send(request)
        line = response._line
        assert isinstance(line, PatientStream)
        assert b"".join(response) == b"hello"
        response.finish()
        assert line.get_extra_info("is_readable") is False
        with waiting(Patience(request, "")):
            line.write(b"GET / HTTP/1.1\r\n\r\n")
        assert select.select([line.get_extra_info("socket")], [], [], PATIENCE)[0]
        assert line.get_extra_info("is_readable") is False
        line.is_answered()
        assert line.get_extra_info("is_readable") is True
        transport.close()


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_after_a_fork_the_child_has_connections_of_its_own() -> None:
    program = """
import os, sys
from kernai_providers.httpx_network import PatientStream, waiting
from kernai_providers.httpx_transport import HttpxTransport
from kernai_providers.patience import Patience
from kernai_providers.transport import Request
transport, request = HttpxTransport(), Request("GET", sys.argv[1])
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
    with WireServer(plain(b"hello")) as server:
        path = os.pathsep.join(each for each in sys.path if each)
        subprocess.run([sys.executable, "-c", program, server.url], env=os.environ | {"PYTHONPATH": path}, check=True, timeout=60)
        assert [request.connection for request in server.requests] == [1, 2, 1]


def test_without_httpx_the_import_says_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    monkeypatch.delitem(sys.modules, "kernai_providers.httpx_transport")
    with pytest.raises(ImportError, match=r'pip install "kernai\[httpx\]"'):
        importlib.import_module("kernai_providers.httpx_transport")


def test_a_proxy_that_httpx_does_not_know_is_an_error_that_shows_no_password(monkeypatch: Any) -> None:
    monkeypatch.setattr("kernai_providers.proxies.DEFAULT_PORTS", {"gopher": 70})
    monkeypatch.setenv("https_proxy", "gopher://me:s3cret@proxy.test")
    with pytest.raises(TransportError, match=r"proxy\.test:70 of type gopher") as caught:
        HttpxTransport().send(Request("GET", "https://vendor.test"))
    assert "s3cret" not in repr(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("native", [False, True], ids=("threads", "asyncio"))
def test_cassettes_are_recorded_and_replayed(tmp_path: Path, native: bool) -> None:
    import vcr

    transport, tape = HttpxTransport(), str(tmp_path / "tape.yaml")

    def ask(request: Request) -> bytes:
        return asyncio.run(aread(transport, request)) if native else read(transport, request)[1]

    with WireServer([Reply(body=(b"one", b"two")).gzipped(), plain(b"three")]) as server:
        requests = [Request("POST", server.url + path, {}, b"{}") for path in ("/a", "/b")]
        with vcr.use_cassette(tape, record_mode="all"):
            assert [ask(request) for request in requests] == [b"onetwo", b"three"]
        transport.close()
    with vcr.use_cassette(tape, record_mode="none") as cassette:
        assert [ask(request) for request in reversed(requests)] == [b"three", b"onetwo"]
        assert cassette.play_count == 2
    transport.close()


@pytest.mark.slow
@pytest.mark.parametrize("native", [False, True], ids=("threads", "asyncio"))
def test_a_proxy_may_be_spoken_to_over_tls_with_tls_to_the_host_inside(
    native: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority()
    proxy_side, host_side = authority.server("127.0.0.1"), authority.server("vendor.test")
    body = os.urandom(200_000)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await writer.drain()
        await writer.start_tls(host_side)
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(len(body))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        await reader.read()
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=proxy_side) as server:
            monkeypatch.setenv("https_proxy", f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            request = Request("POST", "https://vendor.test/v1", {}, body)
            transport = HttpxTransport(ssl_context=authority.client())
            if native:
                assert await aread(transport, request) == body
            else:
                assert await asyncio.to_thread(read, transport, request) == (200, body)
            transport.close()
            await transport.aclose()

    pem = tmp_path / "authority.pem"
    pem.write_bytes(authority.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    asyncio.run(main())
