"""Serving over stdio in this process; which HTTP requests are accepted, where a server listens, and how it ends."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import logging
import os
import signal
import socket
import threading
from contextlib import closing, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest
from mcp import Client

import kernai.mcp
from kernai import KernaiError, Skill
from kernai.mcp import serving
from kernai.mcp.serving import Server, serve

TOKEN = "t0ken-of-the-host"

INITIALIZE = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
}
CALL = {"jsonrpc": "2.0", "id": 2, "method": "tools/call"}


def post(
    url: str, *headers: tuple[str, str], host: str | None = "", content: object = INITIALIZE, method: str = "POST"
) -> tuple[int, http.client.HTTPMessage, str]:
    """Send one request as a browser or a script could; `host` "" is the right one, and None sends no header."""
    parts = urlsplit(url)
    body = json.dumps(content).encode() if content else b""
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)) as connection:
        connection.putrequest(method, parts.path, skip_host=True)
        if host is not None:
            connection.putheader("Host", host or parts.netloc)
        for name, value in [("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream"),
                            ("Content-Length", str(len(body))), *headers]:
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()


def bearer(token: str) -> tuple[str, str]:
    return "Authorization", f"Bearer {token}"


def test_serving_over_stdio_sends_stray_output_to_stderr_and_restores_both_descriptors(
    served: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())  # pytest's replacement raises when it is read
    asked, answered, before = os.pipe(), os.pipe(), (os.dup(0), os.dup(1))
    got: list[Any] = []

    def client() -> None:
        with os.fdopen(asked[1], "w", encoding="utf-8-sig") as there, os.fdopen(answered[0]) as back:
            for request in (INITIALIZE, {**CALL, "params": {"name": "shout", "arguments": {"text": "hello"}}}):
                there.write(json.dumps(request) + "\n")
                there.flush()
                got.append(json.loads(back.readline()))
            with pytest.raises(KernaiError, match="are serving an MCP client already") as error:
                serve(served.SKILLS)
            got.append(error)

    os.dup2(asked[0], 0)
    os.dup2(answered[1], 1)
    thread = threading.Thread(target=client)
    thread.start()
    try:
        serve(served.SKILLS, **served.OPTIONS)  # runs until the client disconnects
        assert [os.path.sameopenfile(one, ours) for one, ours in ((0, asked[0]), (1, answered[1]))] == [True, True]
    finally:
        for descriptor, kept in enumerate(before):
            os.dup2(kept, descriptor)
        for one in (*before, asked[0], answered[1]):
            os.close(one)
        thread.join(30)
    assert [one["result"].get("content") for one in got[:2]] == [None, [{"type": "text", "text": "shouted"}]]
    assert len(got) == 3
    assert "descriptor: hello" in capfd.readouterr().err


WRONG_TOKENS: list[list[tuple[str, str]]] = [
    [], [bearer(TOKEN[:-1])], [bearer(TOKEN + "x")], [bearer(TOKEN.upper())], [("Authorization", TOKEN)],
    [("Authorization", f"Basic {TOKEN}")], [bearer("wrong"), bearer(TOKEN)], [bearer("gr\xfc\xdfe")],
]


def test_a_request_without_the_token_is_unauthorized(served: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with Server(served.SKILLS, port=0, token=TOKEN) as server:
        assert TOKEN not in repr(server) + repr(vars(server))
        for headers in WRONG_TOKENS:
            status, answer, body = post(server.url, *headers)
            assert status == 401, headers
            assert answer["WWW-Authenticate"].startswith("Bearer ")
            assert TOKEN not in body + str(answer)
        for right in (bearer(TOKEN), ("authorization", f"bearer {TOKEN}"), ("Authorization", f"BEARER   {TOKEN} ")):
            assert post(server.url, right)[0] == 200, right
    assert TOKEN not in caplog.text


@pytest.mark.parametrize("token", ["", " ", "a b", "ü", "a\nb", 5, b"bytes"])
def test_a_token_that_does_not_fit_in_a_header_is_refused_and_not_shown(served: Any, token: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="token must be") as error:
        Server(served.SKILLS, token=token)
    assert not str(token).strip() or str(token) not in str(error.value)


HOSTS = [
    ("", 200), ("localhost", 200), ("127.0.0.1:1", 200), ("[::1]:80", 200), ("known.example:443", 200), (None, 400),
    ("evil.example", 421), ("127.0.0.1.evil.example", 421), ("localhost,evil.example", 421), ("192.168.0.1", 421),
]


def test_a_request_with_another_host_name_is_refused(served: Any) -> None:
    with Server(served.SKILLS, port=0, allowed_hosts=["Known.example:80"]) as server:
        for host, status in HOSTS:
            # uvicorn closes the connection on invalid HTTP, and would reset it if a body were still to come
            assert post(server.url, host=host, content=INITIALIZE if host is not None else None)[0] == status, host
        assert post(server.url, ("Host", "evil.example"), content=None)[0] in (400, 421), "two names"


ORIGINS = [
    ("http://localhost:3000", 200), ("https://127.0.0.1:1", 200), ("http://[::1]:5", 200), ("https://app.example", 200),
    ("https://app.example:444", 403), ("http://app.example", 403), ("null", 403), ("http://localhost.evil.example", 403),
    ("http://evil.example#localhost", 403), ("http://localhost@evil.example", 403), ("ws://localhost", 403),
]


@pytest.mark.parametrize("token", [None, TOKEN])
def test_a_page_of_another_origin_is_forbidden_and_an_allowed_one_works_in_a_browser(served: Any, token: Any) -> None:
    with Server(served.SKILLS, port=0, allowed_origins=["https://App.example"], token=token) as server:
        for origin, expected in ORIGINS:
            assert post(server.url, ("Origin", origin), bearer(TOKEN))[0] == expected, origin
        page = ("Origin", "https://app.example")
        wishes = ("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", "authorization, mcp-method")
        status, asked, _ = post(server.url, page, *wishes, method="OPTIONS", content=None)  # as a browser does first
        assert (status, asked["Access-Control-Allow-Headers"]) == (200, "authorization, mcp-method")
        for answer in (asked, post(server.url, page, bearer(TOKEN))[1], post(server.url, page, bearer("wrong"))[1]):
            assert answer["Access-Control-Allow-Origin"] == "https://app.example"


def test_without_a_token_only_this_machine_is_served(served: Any) -> None:
    for host in ("0.0.0.0", "::", "192.168.1.7", "mcp.example.org", "127.0.0.1.example.org"):
        with pytest.raises(ValueError, match="so it needs token="):
            Server(served.SKILLS, host=host, port=0)
    for host in ("127.0.0.2", "::1", "LocalHost"):
        Server(served.SKILLS, host=host)  # no error
    with Server(served.SKILLS, port=0) as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert server._listener.getsockname()[0] == "127.0.0.1"


def test_with_a_token_every_address_and_host_name_is_served(served: Any) -> None:
    with Server(served.SKILLS, host="0.0.0.0", port=0, token=TOKEN) as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert post(server.url, bearer(TOKEN), host="box.example")[0] == 200
        assert post(server.url, host="box.example")[0] == 401
    with Server(served.SKILLS, host="0.0.0.0", port=0, token=TOKEN, allowed_hosts=["box.example"]) as server:
        assert post(server.url, bearer(TOKEN), host="box.example")[0] == 200
        assert post(server.url, bearer(TOKEN), host="evil.example")[0] == 421


def test_a_client_that_leaves_in_the_middle_of_a_request_is_not_logged_as_an_error(
    served: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(served.SKILLS, port=0) as server:
        place = urlsplit(server.url)
        with socket.create_connection((place.hostname, place.port)) as client:
            client.sendall(f"POST /mcp HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\nAccept: */*\r\n"
                           f"MCP-Protocol-Version: 2026-07-28\r\nContent-Length: 9\r\n\r\n{{".encode())
        assert post(server.url)[0] == 200
    assert caplog.text == ""


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"port": -1}, ValueError, "port must be"), ({"port": "80"}, ValueError, "port must be"),
    ({"port": 65536}, ValueError, "port must be"), ({"port": True}, ValueError, "port must be"),
    ({"host": ""}, ValueError, "host must be"), ({"path": "mcp"}, ValueError, "path must start with '/'"),
    *(({"path": path}, ValueError, "path must start with '/' and be a plain path") for path in ("/a?b", "/a#b", "/a b", "/%41", "/{a}")),
    ({"allowed_hosts": "x"}, TypeError, "allowed_hosts must be a list"),
    ({"allowed_hosts": ["a b"]}, ValueError, "allowed_hosts must hold names"),
    ({"allowed_origins": [1]}, TypeError, "allowed_origins must be a list"),
    ({"prot": 1}, TypeError, "unknown option 'prot'"), ({"context": 5}, TypeError, "context must be a function"),
    ({"allowed_origins": ["app.example"]}, ValueError, "allowed_origins must hold origins"),
    ({"name": 5}, TypeError, "name must be text, got int"), ({"instructions": b"x"}, TypeError, "instructions must be text"),
    ({"max_workers": 0}, ValueError, "max_workers must be"), ({"max_workers": "8"}, ValueError, "max_workers must be"),
]


@pytest.mark.parametrize("options,kind,message", BAD)
def test_a_wrong_option_of_a_server_is_an_error_that_names_it(served: Any, options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        Server(served.SKILLS, **options)


@pytest.mark.parametrize("options,kind,message", [
    ({"transport": "sse"}, ValueError, "transport must be 'stdio'"),
    ({"transports": "http"}, TypeError, "unknown option 'transports'; did you mean 'transport'"),
    ({"token": "x"}, ValueError, "token is for transport='http'"),
    ({"on_ready": print}, ValueError, "on_ready is for transport='http'"),
    ({}, KernaiError, "transport='stdio' needs an open stdin and stdout"),
])
def test_serve_refuses_options_that_do_not_fit_the_transport(
    served: Any, options: dict[str, Any], kind: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.__stdin__", None)  # as it is if descriptor 0 is closed
    with pytest.raises(kind, match=message):
        serve(served.SKILLS, **options)


def test_an_exception_from_on_ready_is_raised_ends_the_server_and_restores_the_signal_handlers(
    served: Any, recwarn: pytest.WarningsRecorder
) -> None:
    urls: list[str] = []
    before = signal.signal(signal.SIGTERM, print)

    def on_ready(url: str) -> None:
        urls.append(url)
        raise LookupError("no browser")

    with pytest.raises(LookupError, match="no browser"):
        serve(served.SKILLS, transport="http", port=0, on_ready=on_ready)
    with pytest.raises(ConnectionRefusedError):
        post(urls[0])
    assert signal.signal(signal.SIGTERM, before) is print
    assert not recwarn.list


async def test_serve_in_a_running_event_loop_says_what_to_use(served: Any) -> None:
    with pytest.raises(RuntimeError, match=r"use kernai\.mcp\.serving\.Server"):
        kernai.mcp.serve(served.SKILLS, transport="http", port=0)


def test_a_server_may_use_another_path_starts_once_and_may_be_stopped_repeatedly(served: Any) -> None:
    server = Server(served.SKILLS, port=0, path="/tools/here")
    with pytest.raises(RuntimeError, match="no URL before it is started"):
        _ = server.url
    server.stop()
    with server:
        assert server.url.endswith("/tools/here")
        assert [post(one)[0] for one in (server.url, server.url.replace("/tools/here", "/mcp"))] == [200, 404]
        for again in (server.start, lambda: server.run(print)):
            with pytest.raises(RuntimeError, match="started only once"):
                again()
    server.stop()
    assert repr(server) == f"Server({server.url})"


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_skill_may_stop_its_server(is_async: bool) -> None:
    stopped = threading.Event()

    async def stop_later() -> None:
        stop()

    def stop() -> None:
        server.stop()
        stopped.set()

    one = Skill("stop", execute=stop_later if is_async else stop, inputs={})
    with Server(one, port=0) as server, suppress(Exception):  # the server may be gone before it has answered
        async with Client(server.url, read_timeout_seconds=30) as client:
            await client.call_tool("stop")
    assert stopped.wait(30)
    assert "kernai-mcp-server" not in {thread.name for thread in threading.enumerate()}


def test_a_stopped_server_leaves_no_thread_and_no_descriptor_and_frees_its_port(served: Any) -> None:
    with Server(served.SKILLS, port=0) as server:
        assert post(server.url)[0] == 200  # opens what then stays open
    before, threads = len(os.listdir("/dev/fd")), set(threading.enumerate())
    servers = [Server(served.SKILLS, port=0).start() for _ in range(5)]
    assert [post(server.url)[0] for server in servers] == [200] * 5
    for server in servers:
        server.stop()
    assert set(threading.enumerate()) <= threads
    assert len(os.listdir("/dev/fd")) <= before  # files left open by other tests may be closed by now
    with Server(served.SKILLS, port=urlsplit(server.url).port or 0) as server:
        assert post(server.url)[0] == 200


@pytest.mark.parametrize("tool,mode", [("poll", "auto"), ("poll_later", "legacy"), ("stuck", "auto"), ("stuck_later", "auto")])
async def test_stopping_cancels_calls_in_progress(
    served: Any, mode: Any, tool: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes calls that ignore cancellation; the client's streams stay open."""
    if tool == "stuck_later":  # the server waits for this one
        monkeypatch.setattr(serving, "GRACE", 0.1)
    started = asyncio.Event()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        started.set()

    with Server(served.SKILLS, port=0) as server:
        answer: Any = None
        with suppress(Exception):  # a client of an older revision may raise when its session is gone
            async with Client(server.url, mode=mode, read_timeout_seconds=30) as client:
                call = asyncio.ensure_future(client.call_tool(tool, progress_callback=on_progress))
                await asyncio.wait_for(started.wait(), 30)
                await asyncio.get_running_loop().run_in_executor(None, server.stop)
                answer = await asyncio.wait_for(call, 30)
        if mode == "auto":
            assert answer.is_error
            assert answer.content[0].text == "the server is shutting down"
    if tool.startswith("poll"):
        assert served.CANCELLED.wait(30)
    assert tool == "stuck_later" or "kernai-mcp-server" not in {thread.name for thread in threading.enumerate()}
    assert not [one for one in caplog.records if one.name.startswith(("uvicorn", "asyncio", "mcp.server"))
                and one.levelno > logging.INFO]


def no_context() -> Any:
    raise LookupError("no such shop")


@pytest.mark.parametrize("new_context, message", [
    (no_context, "no such shop"), (lambda: None, "the server's context= must return a Context, got NoneType"),
])
async def test_a_failure_to_create_the_context_fails_only_that_call(served: Any, new_context: Any, message: str) -> None:
    with Server(served.SKILLS, port=0, context=new_context) as server:
        async with Client(server.url) as client:
            result = await client.call_tool("add", {"a": 1})
            assert result.is_error
            assert result.content[0].model_dump()["text"] == message
            assert len((await client.list_tools()).tools) == len(served.SKILLS)
