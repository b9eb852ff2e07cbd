"""`FollowServer`: serves the page of a run in progress, on this machine only.

`Tail` reads new lines of the recording's file, `Feed` keeps them for the pages that ask.

Three things keep others out. The server listens on 127.0.0.1 only. Every address contains a random token, unknown to
other users of the machine and to other pages in the user's browser; it is compared in constant time and never logged.
And `Host` must be this server's, because another site's page may reach a local server under its own name (DNS
rebinding). Only the path, one short query field and `Host` of a request are used.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import re
import secrets
import socket
import socketserver
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from kernai._util.api import Closing
from kernai._util.private_file import open_regular
from kernai.jsonio.json_data import dumps
from kernai.recording.recorder import Shortening
from kernai.viewer.page import MEDIA_ID, UNREADABLE, Thumbnails, encode, live_page, policy, record

#: characters that are shown of an unreadable line
SHOWN = 2_000
_CHECKED = 256


class Tail:
    """Reads a recording as it grows. Not thread-safe.

    `waiting` says why nothing can be read, or is None. A line that is not an event becomes an `unreadable_line` event,
    so that nothing is lost silently.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self.waiting: str | None = None
        self._read = 0
        self._line = 0
        self._partial = b""
        self._last = b""  # the last bytes read, to notice if the file was replaced or overwritten

    def read(self) -> list[dict[str, Any]] | None:
        """Returns the entries of new complete lines. An incomplete last line is returned once it is complete.

        Returns None if the file starts over, because it was replaced, truncated or overwritten: use another `Tail`.
        """
        try:
            file = open_regular(self._path, follow_links=True)
        except OSError as error:
            gone = isinstance(error, FileNotFoundError)
            self.waiting = "Waiting for the file" if gone else f"The file cannot be opened: {error.strerror}"
            return []
        self.waiting = None
        with file:
            file.seek(self._read - len(self._last))
            if file.read(len(self._last)) != self._last:
                return None
            new = file.read()
        self._read += len(new)
        self._last = (self._last + new)[-_CHECKED:]
        *lines, self._partial = (self._partial + new).split(b"\n")
        first, self._line = self._line + 1, self._line + len(lines)
        return [self._entry(line, number) for number, line in enumerate(lines, first) if line.strip()]

    def _entry(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = f"it is not JSON: {error}"
        else:
            if isinstance(entry, dict) and isinstance(entry.get("event"), str):
                return entry
            reason = 'it is not an event: it must be an object with its type as "event"'
        shown = line[:SHOWN].decode("utf-8", "backslashreplace")
        return {"event": UNREADABLE, "data": {"line": number, "reason": reason, "text": shown}}


#: seconds between two checks of the file
INTERVAL = 0.15
#: seconds after which a request is answered even if there is nothing new
MAX_WAIT = 20.0
#: an answer ends with the item that exceeds this
MOST_BYTES = 4 * 1024 * 1024
#: the beginning of what a page has seen: the generation of the file, and the number of items
_SEEN = re.compile(r"([0-9]+)\.([0-9]{1,9})\.")


class Feed:
    """The records and pictures of one file, for any number of pages. Their order is fixed until the file starts over.

    Thread-safe. No thread reads in the background: each request checks the file.
    """

    def __init__(self, path: str | os.PathLike[str], media_folder: str | os.PathLike[str] | None) -> None:
        self._lock = threading.Lock()
        #: once it is set, all pending requests are answered
        self.closed = threading.Event()
        self._path, self._media_folder = path, media_folder
        self._generation = 0
        self._begin()

    def _begin(self) -> None:
        self._tail = Tail(self._path)
        self._items: list[tuple[str, str]] = []  # ("records" or "media", JSON)
        self._shortening = Shortening()
        self._pictures = Thumbnails(self._media_folder)
        self._wanted: set[str] = set()  # the ids of media in all records
        self._found: set[str] = set()

    def news(self, seen: str) -> str:
        """Returns the items that follow those in `seen`, as JSON for the page. Waits up to `MAX_WAIT` seconds for some.

        The answer is ``{"generation", "seen", "waiting", "records", "media"}``. The page passes `seen` to its next
        request; with something added to it, that is answered at once. A new generation is sent from its start.
        """
        until = time.monotonic() + MAX_WAIT
        while True:
            with self._lock:
                self._look()
                if self._seen(len(self._items)) != seen or self.closed.is_set() or time.monotonic() >= until:
                    return self._answer(seen)
            self.closed.wait(INTERVAL)

    def _seen(self, items: int) -> str:
        return f"{self._generation}.{items}.{self._tail.waiting or ''}"

    def _look(self) -> None:
        entries = self._tail.read()
        if entries is None:
            self._generation += 1
            self._begin()
            entries = self._tail.read()
        for entry in entries or []:
            text = encode(record(entry, self._shortening))
            self._items.append(("records", text))
            self._wanted.update(MEDIA_ID.findall(text))
        found = self._pictures.find(self._wanted - self._found)
        self._found.update(found)
        self._items += [("media", f"{dumps(media_id)}:{dumps(picture)}") for media_id, picture in found.items()]

    def _answer(self, seen: str) -> str:
        found = _SEEN.match(seen)
        end = first = int(found[2]) if found and found[1] == str(self._generation) else 0
        parts: dict[str, list[str]] = {"records": [], "media": []}
        size = 0
        for kind, text in self._items[first:]:
            parts[kind].append(text)
            end += 1
            size += len(text)
            if size > MOST_BYTES:
                break
        head = dumps({"generation": self._generation, "seen": self._seen(end), "waiting": self._tail.waiting})
        return f'{head[:-1]},"records":[{",".join(parts["records"])}],"media":{{{",".join(parts["media"])}}}}}'


# ---------------------------------------------------------------------------------------------------------- the server

HOST = "127.0.0.1"
#: seconds to receive a request, and to send an answer
TIMEOUT = 30.0
#: seconds to wait for pending answers when the server ends
GRACE = 1.0
#: connections without the token; any program on this machine can open them, so beyond this number the oldest is closed
MOST_STRANGERS = 64
_HTTP_PORT = 80


class FollowServer(Closing, ThreadingHTTPServer):
    """Serves the file of JSON lines at `path`, which need not exist yet. A context manager.

    `url` is the page's address with its token: whoever has it can read the recording. `opening_url` leads there until a
    page is open. Start a browser with it, since all users of the machine can see a program's arguments. `port` 0 uses
    any free port; if the port is in use, the constructor raises `OSError`. `serve` runs until `close` or Ctrl-C.
    """

    daemon_threads = False  # `close` waits for them
    request_queue_size = MOST_STRANGERS
    timeout = 0.1  # after which `handle_request` lets `serve` look whether it should end

    def __init__(
        self, path: str | os.PathLike[str], *, port: int = 0, title: str | None = None,
        media_folder: str | os.PathLike[str] | None = None,
    ) -> None:
        shown = os.path.basename(os.fsdecode(path)) if title is None else title  # noqa: PTH119 - text in, text out
        self.page = live_page(shown, "events").encode("utf-8")
        self.feed = Feed(path, media_folder)
        self.token, self.opening_token = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        self.is_followed = False  # whether a page has asked for events
        self._clients: dict[socket.socket, bool] = {}  # in the order of their arrival, whether each is a stranger
        self._clients_change = threading.Condition()
        self._serving = threading.Lock()
        super().__init__((HOST, port), _Handler)
        self.port: int = self.server_address[1]
        self.url, self.opening_url = (f"http://{HOST}:{self.port}/{one}/" for one in (self.token, self.opening_token))
        names = (HOST, "localhost")
        self.hosts = {f"{name}:{self.port}" for name in names} | (set(names) if self.port == _HTTP_PORT else set())

    def server_bind(self) -> None:
        # skips HTTPServer's method, which looks up this machine's name; that may take seconds
        socketserver.TCPServer.server_bind(self)

    def serve(self) -> None:
        """Answers requests, each in its own thread, until another thread calls `close` or Ctrl-C is pressed."""
        with self._serving:
            while not self.feed.closed.is_set():
                self.handle_request()

    def close(self) -> None:
        """Ends `serve` and all pending answers, and frees the port. May be called twice."""
        self.feed.closed.set()
        with self._serving, self._clients_change:  # `serve` has ended
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
        # it has sent the token, so it no longer counts towards MOST_STRANGERS
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
    server: FollowServer
    timeout = TIMEOUT
    server_version = "kernai"
    sys_version = ""

    def do_GET(self) -> None:
        server = self.server
        path, _, query = self.path.partition("?")
        root, _, token_and_rest = path.partition("/")
        token, slash, rest = token_and_rest.partition("/")
        hosts = self.headers.get_all("Host")
        if hosts is None or not server.hosts.issuperset(hosts):
            self._send(403, "text/plain", b"This server is not known by that Host.\n")
        elif hmac.compare_digest(token.encode(), server.opening_token.encode()) and not server.is_followed:
            self._send(302, "text/plain", b"", ("Location", f"/{server.token}/"))
        elif root or not slash or not hmac.compare_digest(token.encode(), server.token.encode()):
            self._send(404, "text/plain", b"There is nothing here. The address needs its token.\n")
        else:
            server.know(self.connection)
            if rest == "events":
                server.is_followed = True
                news = server.feed.news(parse_qs(query).get("seen", [""])[0])
                self._send(200, "application/json", news.encode("ascii"))
            elif rest:
                self._send(404, "text/plain", b"There is nothing here.\n")
            else:
                self._send(200, "text/html", server.page)

    def _send(self, status: int, kind: str, body: bytes, *more: tuple[str, str]) -> None:
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
            ("Connection", "close"), *more,
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
