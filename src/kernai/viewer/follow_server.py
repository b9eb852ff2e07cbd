"""`FollowServer`: serves the page of a run in progress, on this machine only.

Three things keep others out. The server listens on 127.0.0.1 only. Every address contains a random token, unknown to
other users of the machine and to other pages in the user's browser; it is compared in constant time and never logged.
And `Host` must be this server's, because another site's page may reach a local server under its own name (DNS
rebinding). Only the path, three short query fields and `Host` of a request are used.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import socketserver
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from kernai.viewer.feed import Feed
from kernai.viewer.page import live_page, policy

if TYPE_CHECKING:
    from typing import Self

HOST = "127.0.0.1"
#: seconds to receive a request, and to send an answer
TIMEOUT = 30.0
#: seconds to wait for pending answers when the server ends
GRACE = 1.0
#: connections without the token; any program on this machine can open them, so beyond this number the oldest is closed
MOST_STRANGERS = 64
_HTTP_PORT, _LAST_PORT = 80, 65_535


class FollowServer:
    """Serves the file of JSON lines at `path`, which need not exist yet. A context manager.

    `url` is the page's address. `port` 0 uses any free port; if the port is in use, the constructor raises `OSError`.
    `serve` runs until `close` or Ctrl-C.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        port: int = 0,
        title: str | None = None,
        media_folder: str | os.PathLike[str] | None = None,
    ) -> None:
        if not isinstance(port, int) or not 0 <= port <= _LAST_PORT:
            raise ValueError(f"port must be a number from 0 to {_LAST_PORT}, got {port!r}")
        self.path = os.fsdecode(path)
        shown = os.path.basename(self.path) if title is None else title  # noqa: PTH119 - `path` is a str
        self._server = _Server(port, live_page(shown, "events"), Feed(path, media_folder))

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def url(self) -> str:
        """The page's address with its token: whoever has it can read the recording."""
        return f"http://{HOST}:{self.port}/{self._server.token}/"

    def serve(self) -> None:
        """Answers requests, each in its own thread, until another thread calls `close` or Ctrl-C is pressed."""
        self._server.serve()

    def close(self) -> None:
        """Ends `serve` and all pending answers, and frees the port. May be called twice."""
        self._server.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # `end` waits for them
    request_queue_size = MOST_STRANGERS

    def __init__(self, port: int, page: str, feed: Feed) -> None:
        self.page = page.encode("utf-8")
        self.feed = feed
        self.token = secrets.token_urlsafe(24)
        self._clients: dict[socket.socket, bool] = {}  # in the order of their arrival, whether each is a stranger
        self._clients_change = threading.Condition()
        self._serving = self._ended = False
        super().__init__((HOST, port), _Handler)

    def server_bind(self) -> None:
        # bypasses HTTPServer's method, which looks up this machine's name; that may take seconds
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    @property
    def hosts(self) -> frozenset[str]:
        names = (HOST, "localhost")
        bare = names if self.server_port == _HTTP_PORT else ()
        return frozenset([f"{name}:{self.server_port}" for name in names] + list(bare))

    def serve(self) -> None:
        with self._clients_change:
            if self._ended:
                return
            self._serving = True
        self.serve_forever(poll_interval=0.1)

    def end(self) -> None:
        self.feed.close()
        with self._clients_change:
            self._ended = True
        if self._serving:
            self.shutdown()  # would wait for ever if the server had never served
        with self._clients_change:
            self._shut(socket.SHUT_RD)  # a browser keeps connections open that it may never use
            self._clients_change.wait_for(lambda: not self._clients, GRACE)
            self._shut(socket.SHUT_RDWR)  # do not wait for clients that do not read their answer
        self.server_close()

    def _shut(self, how: int) -> None:
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.shutdown(how)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._clients_change:
            self._clients[request] = True
            strangers = [client for client, is_stranger in self._clients.items() if is_stranger]
            if len(strangers) > MOST_STRANGERS:
                self._clients[strangers[0]] = False  # it no longer counts
                with contextlib.suppress(OSError):
                    strangers[0].shutdown(socket.SHUT_RDWR)  # its thread ends
        super().process_request(request, client_address)

    def know(self, client: socket.socket) -> None:
        """Marks a client that has sent the token: it no longer counts towards `MOST_STRANGERS`."""
        with self._clients_change:
            self._clients[client] = False

    def shutdown_request(self, request: Any) -> None:
        with self._clients_change:
            self._clients.pop(request, None)
            self._clients_change.notify_all()
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # a client that has left is not an error
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = TIMEOUT
    server_version = "kernai"
    sys_version = ""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if self.headers.get_all("Host") is None or not set(self.headers.get_all("Host", [])) <= self.server.hosts:
            self._send(403, "text/plain", b"This server is not known by that Host.\n")
            return
        root, _, token_and_rest = path.partition("/")
        token, slash, rest = token_and_rest.partition("/")
        if root or not slash or not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self._send(404, "text/plain", b"There is nothing here. The address needs its token.\n")
            return
        self.server.know(self.connection)
        if rest == "":
            self._send(200, "text/html", self.server.page)
        elif rest == "events":
            self._send(200, "application/json", self._news(query).encode("ascii"))
        else:
            self._send(404, "text/plain", b"There is nothing here.\n")

    def _news(self, query: str) -> str:
        fields = parse_qs(query, max_num_fields=3) if query.count("&") < 3 else {}  # noqa: PLR2004 - there are three
        after = fields.get("after", ["0"])[0]
        number = int(after) if after.isascii() and after.isdigit() and len(after) < 10 else 0  # noqa: PLR2004 - enough
        return self.server.feed.news(number, fields.get("generation", [""])[0], fields.get("seen", [""])[0])

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", f"{policy(connects=True)}; frame-ancestors 'none'"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cache-Control", "no-store"),
            ("Connection", "close"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Sends a line of text instead of a page that repeats the request."""
        del message, explain
        self._send(code, "text/plain", b"This request cannot be answered.\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing, because the address contains the token."""
