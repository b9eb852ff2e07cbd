"""The server of `--follow`, over real sockets: which requests it answers, and how."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from kernai.viewer import FollowServer, follow_server
from kernai.viewer.follow_server import Feed

pytestmark = pytest.mark.slow


class Client:
    def __init__(self, server: FollowServer) -> None:
        self.server = server
        self.token = server.url.split("/")[3]

    def get(self, path: str) -> tuple[HTTPResponse, bytes]:
        connection = HTTPConnection("127.0.0.1", self.server.port, timeout=20)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response, response.read()
        finally:
            connection.close()

    def news(self, **query: object) -> dict[str, Any]:
        response, body = self.get(f"/{self.token}/events?{urlencode(query)}")
        assert response.status == 200
        news: dict[str, Any] = json.loads(body)
        return news

    def after(self, seen: dict[str, Any]) -> dict[str, Any]:
        return self.news(seen=seen["seen"])

    def waiting(self, seen: dict[str, Any]) -> threading.Thread:
        """A request that waits for news, in a thread."""
        thread = threading.Thread(target=self.after, args=(seen,))
        thread.start()
        return thread

    def raw(self, text: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=20) as connection:
            connection.sendall(text)
            return b"".join(iter(lambda: connection.recv(65_536), b""))


@pytest.fixture
def client(path: Path) -> Iterator[Client]:
    with FollowServer(path, title="a <run>", media_folder=f"{path}.media") as server:
        thread = threading.Thread(target=server.serve)
        thread.start()
        yield Client(server)
        server.close()
        thread.join()


def test_the_page_is_served_under_the_token_with_headers_that_restrict_it(client: Client) -> None:
    response, body = client.get(f"/{client.token}/")
    assert response.status == 200
    assert b"<title>a &lt;run&gt;</title>" in body
    headers = dict(response.getheaders())
    assert b"connect-src 'self'" in body
    assert "connect-src 'self'" in headers["Content-Security-Policy"]
    assert headers["Content-Security-Policy"].endswith("frame-ancestors 'none'")
    assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"], headers["Cache-Control"]) == (
        "nosniff", "no-referrer", "no-store")
    assert "Python" not in headers["Server"]


def test_each_server_has_its_own_token_which_is_not_logged(
    client: Client, path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for address in (f"/{client.token}/", "/wrong/"):
        client.get(address)
    assert capfd.readouterr() == ("", "")
    with FollowServer(path) as other:
        assert other.url != client.server.url
        assert len(other.url.split("/")[3]) >= 32
        assert b"<title>run.jsonl</title>" in other.page


def test_the_address_with_which_a_browser_is_started_leads_to_the_page_until_that_is_open(client: Client) -> None:
    opening = client.server.opening_url.partition(f":{client.server.port}")[2]
    assert [client.get(opening)[0].getheader("Location") for _ in range(2)] == [f"/{client.token}/"] * 2
    client.news()
    assert client.get(opening)[0].status == 404


#: requests, with {token} and {port}, and the status of the answer
RIGHT = b"Host: 127.0.0.1:{port}\r\n"
REQUESTS: dict[bytes, list[bytes]] = {
    b"200": [b"GET /{token}/ HTTP/1.1\r\nHost: localhost:{port}\r\n"],
    b"403": [
        *[b"GET /{token}/ HTTP/1.1\r\n" + hosts for hosts in (b"", RIGHT + b"Host: evil.invalid\r\n")],
        *[b"GET /{token}/events HTTP/1.1\r\nHost: " + host + b"\r\n" for host in (
            b"evil.invalid", b"127.0.0.1", b"127.0.0.1:1", b"evil.invalid:{port}", b"127.0.0.1:{port}.evil.invalid", b"")],
    ],
    b"404": [b"GET " + path + b" HTTP/1.1\r\n" + RIGHT for path in (
        b"/", b"/events", b"/{token}", b"/x{token}/", b"/{token}x/", b"/%00/", b"/{token}/other", b"/{token}/../x",
        b"http://127.0.0.1/{token}/", b"*")],
    b"501": [method + b" /{token}/ HTTP/1.1\r\n" + RIGHT for method in (b"POST", b"HEAD", b"OPTIONS", b"x" * 300)],
    b"": [b"GET\r\n", b"GET / HTTP/9.9\r\n", b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n", b"\0\r\n"],
}


@pytest.mark.parametrize("status", REQUESTS)
def test_other_requests_than_the_pages_are_refused_without_being_repeated(client: Client, status: bytes) -> None:
    for request in REQUESTS[status]:
        sent = request.replace(b"{token}", client.token.encode()).replace(b"{port}", b"%d" % client.server.port)
        answer = client.raw(sent + b"\r\n")
        assert answer.startswith(b"HTTP/1.0 " + status) or not status
        assert status == b"200" or (client.token.encode() not in answer and b"xxx" not in answer)
    assert client.get(f"/{client.token}/")[0].status == 200, "other requests are still answered"


def test_the_server_listens_only_on_loopback(client: Client) -> None:
    assert client.server.socket.getsockname()[0] == "127.0.0.1"
    for family, host in ((socket.AF_INET, "127.0.0.2"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as other, pytest.raises(OSError):
            other.settimeout(5)
            other.connect((host, client.server.port))


def test_news_start_where_the_page_left_off(client: Client, path: Path) -> None:
    first = client.news()
    assert (first["records"], first["waiting"]) == ([], "Waiting for the file")
    path.write_text('{"event": "a"}\n{"event": "b"}\n')
    second = client.after(first)
    assert [record["entry"]["event"] for record in second["records"]] == ["a", "b"]
    assert second["waiting"] is None
    with path.open("a") as file:
        file.write('{"event": "c"}\n')
    third = client.after(second)
    assert [record["entry"]["event"] for record in third["records"]] == ["c"]
    path.write_text('{"event": "new"}\n')
    fourth = client.after(third)
    assert fourth["generation"] != third["generation"]
    assert [record["entry"]["event"] for record in fourth["records"]] == ["new"]


@pytest.mark.parametrize("query", [
    "seen=0.-1.", "seen=0.x.", "seen=0.%C2%B2.", "seen=0." + "9" * 400, "seen=0.9999999999.", "a=1&b=2&c=3&d=4", "&&&&&", "seen=99",
])
def test_requests_with_odd_parameters_are_answered(client: Client, path: Path, query: str) -> None:
    path.write_text('{"event": "a"}\n')
    response, body = client.get(f"/{client.token}/events?{query}")
    assert response.status == 200
    assert len(json.loads(body)["records"]) == 1


RECORD = 170  # characters of one record below, as sent


@pytest.mark.parametrize("size, expected", [(10**6, [5]), (2 * RECORD, [3, 2]), (2 * RECORD - 1, [2, 2, 1])])
def test_many_events_are_sent_in_several_responses(
    path: Path, monkeypatch: pytest.MonkeyPatch, size: int, expected: list[int]
) -> None:
    monkeypatch.setattr(follow_server, "MOST_BYTES", size)
    path.write_text("".join(f'{{"event":"e{number}","data":"{"x" * (RECORD - 34)}"}}\n' for number in range(5)))
    feed = Feed(path, None)
    answers: list[dict[str, Any]] = [{"seen": ""}]
    for _ in expected:
        answers.append(json.loads(feed.news(answers[-1]["seen"])))
    del answers[0]
    assert [len(one["records"]) for one in answers] == expected
    assert {len(json.dumps(one, separators=(",", ":"))) for one in answers[0]["records"]} == {RECORD}
    assert answers[-1]["seen"] == "0.5."


def test_a_request_without_news_is_answered_after_a_while(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow_server, "MAX_WAIT", 0.0)
    news = Feed(path, None)
    seen = json.loads(news.news(""))["seen"]
    assert json.loads(news.news(seen))["records"] == []


def test_closing_ends_waiting_requests_and_idle_connections(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow_server, "GRACE", 60.0)  # so that closing does not simply end after the grace period
    seen = client.news()
    server = client.server

    def wait_until(holds: Callable[[], bool]) -> None:
        while not holds():
            time.sleep(0.001)

    wait_until(lambda: not server._clients)  # the connection of the request above counts until it is closed
    waiting = client.waiting(seen)
    # the server has read the request; one it has not read would be reset
    wait_until(lambda: list(server._clients.values()) == [False])
    with socket.create_connection(("127.0.0.1", client.server.port)) as idle:
        wait_until(lambda: len(server._clients) == 2)
        closing = threading.Thread(target=client.server.close)
        closing.start()
        for one in (waiting, closing):
            one.join(20)
            assert not one.is_alive()
        assert idle.recv(1) == b""
    client.server.close()  # closing twice is allowed


def test_silent_connections_without_a_token_do_not_block_the_others(client: Client) -> None:
    seen = client.news()
    known = client.waiting(seen)
    while [*client.server._clients.values()] != [False]:  # until it has sent the token
        time.sleep(0.001)
    strangers = [socket.create_connection(("127.0.0.1", client.server.port)) for _ in range(64 + 20)]
    try:
        for stranger in strangers[:20]:
            stranger.settimeout(20)
            assert stranger.recv(1) == b""  # the oldest were closed
        assert client.get(f"/{client.token}/")[0].status == 200  # also a stranger until it has sent the token
        strangers[21].settimeout(0)
        with pytest.raises(BlockingIOError):
            strangers[21].recv(1)  # and no more of them
        assert known.is_alive()  # a client that sent the token is not closed
    finally:
        for stranger in strangers:
            stranger.close()
        client.server.close()
        known.join()


def test_closed_connections_no_longer_count_against_the_limit(client: Client) -> None:
    with socket.create_connection(("127.0.0.1", client.server.port)) as first:
        for _ in range(follow_server.MOST_STRANGERS + 1):
            client.get("/")
        first.sendall(f"GET /{client.token}/ HTTP/1.1\r\nHost: 127.0.0.1:{client.server.port}\r\n\r\n".encode())
        assert first.recv(8) == b"HTTP/1.0"


@pytest.mark.parametrize("reads", [True, False])
def test_closing_waits_only_for_clients_that_read_their_response(
    client: Client, path: Path, monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    monkeypatch.setattr(follow_server, "GRACE", 60.0 if reads else 0.0)
    path.write_text("".join(f'{{"event": "a", "data": "{"x" * 1_000_000}"}}\n' for _ in range(8)))
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", client.server.port))
        slow.sendall(b"GET /%s/events HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % (client.token.encode(), client.server.port))
        assert slow.recv(8) == b"HTTP/1.0"
        closing = threading.Thread(target=client.server.close)
        closing.start()
        if reads:
            closing.join(0.5)  # it would end the connection by then
            head, _, body = b"".join(iter(lambda: slow.recv(65_536), b"")).partition(b"\r\n\r\n")
            assert b"Content-Length: %d\r\n" % len(body) in head
        closing.join(follow_server.TIMEOUT / 2)
        assert not closing.is_alive()


def test_a_page_that_disconnects_while_it_waits_is_no_error(
    client: Client, path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seen = client.news()["seen"]
    query = urlencode({"seen": seen})
    with socket.create_connection(("127.0.0.1", client.server.port)) as leaving:
        host = f"Host: 127.0.0.1:{client.server.port}"
        leaving.sendall(f"GET /{client.token}/events?{query} HTTP/1.1\r\n{host}\r\n\r\n".encode())
        leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # makes closing send a reset
    path.write_text('{"event": "a"}\n')
    assert len(client.news(seen=seen)["records"]) == 1
    while client.server._clients:
        time.sleep(0.001)
    assert capfd.readouterr() == ("", "")


def test_a_picture_is_sent_once_and_to_every_page(path: Path, tmp_path: Path) -> None:
    entry = '{"event": "skill_result", "data": {"result": [{"id": "media_00000000000a"}]}}\n'
    path.write_text(entry)
    feed = Feed(path, tmp_path)
    seen = json.loads(feed.news(""))["seen"]
    picture = tmp_path / "media_00000000000a.gif"
    picture.write_bytes(b"GIF89a")
    path.write_text(entry * 2)
    second = json.loads(feed.news(seen))
    assert (len(second["records"]), list(second["media"])) == (1, ["media_00000000000a"])
    path.write_text(entry * 3)
    third = json.loads(feed.news(second["seen"]))
    assert (len(third["records"]), third["media"]) == (1, {})
    another = json.loads(feed.news(""))
    assert (len(another["records"]), another["media"], another["seen"]) == (3, second["media"], "0.4.")


def test_a_server_closed_before_it_serves_ends_at_once_and_frees_its_port(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FollowServer(path) as server:
        pass
    server.serve()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port))
    monkeypatch.setattr(follow_server, "_HTTP_PORT", server.port)
    with FollowServer(path, port=server.port) as another:
        assert another.hosts == server.hosts | {"127.0.0.1", "localhost"}, "browsers leave out the port of HTTP"
