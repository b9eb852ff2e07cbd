"""`serve`: skills, or an agent, as an MCP server for any MCP client, over stdio or streamable HTTP. See docs/mcp.md.

`serving_tools` finds and describes the tools and performs the calls. The official SDK implements the protocol itself.

The first signal ends the server cleanly and without a traceback. A second one has its usual effect, so that a server
that does not end can be killed. A call that ignores its cancellation is abandoned after `GRACE` seconds.
"""

from __future__ import annotations

import asyncio
import hmac
import io
import math
import os
import re
import select
import signal
import socket
import sys
import threading
from asyncio.events import _get_running_loop
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from functools import partial
from io import FileIO
from typing import Any, Literal, Self, Unpack

import uvicorn
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from kernai import KernaiError
from kernai._util.api import check_texts, check_type
from kernai._util.worker_pool import WorkerPool, in_worker
from kernai.drivers.background_loop import BackgroundLoop
from kernai.mcp.errors import check_options
from kernai.mcp.serving_tools import ServeOptions, Source, Tools

#: seconds that cancelled work has to clean up
GRACE = 2.0
#: seconds between two checks for a signal where none ends a wait, as on Windows
POLL_SECONDS = 1.0
#: the options that are only for HTTP
HTTP_OPTIONS = ("host", "port", "path", "token", "allowed_hosts", "allowed_origins")


def serve(
    source: Source,
    *,
    transport: Literal["stdio", "streamable_http", "http"] = "stdio",
    on_ready: Callable[[str], object] | None = None,
    **options: Unpack[ServeOptions],
) -> None:
    """Serves skills as MCP tools. Returns when the client disconnects, or on Ctrl-C or SIGTERM.

    `source` is a `Skill`, a list of skills, a `SkillRegistry` (looked up at each request) or an `Agent`. An agent
    becomes one tool, as with `Agent.as_skill`; with ``agent_as="skills"`` its skills are served instead.
    ``transport="stdio"`` is for a client that starts this program; ``"streamable_http"``, or ``"http"``, listens on a
    port. `on_ready` is called with the URL once the server is listening; by default the URL is printed to stderr.
    `ServeOptions` describes the other options.

    Raises `TypeError` or `ValueError`, which names the option, for a wrong option, and `OSError` for an address that
    cannot be used. To do other work at the same time, use `Server`.
    """
    if transport not in ("stdio", "streamable_http", "http"):
        raise ValueError(f"transport must be 'stdio', 'streamable_http' or 'http', got {transport!r}")
    if _get_running_loop() is not None:
        raise RuntimeError("serve() blocks, and an event loop is running here: use kernai.mcp.serving.Server")
    check_options(options, ServeOptions, "transport", "on_ready")
    if transport != "stdio":
        Server(source, **options).run(on_ready or _show)
        return
    only_http = [*filter(options.__contains__, HTTP_OPTIONS), *(["on_ready"] if on_ready is not None else [])]
    if only_http:
        raise ValueError(
            f"{only_http[0]} is for transport='http': over stdio the only client is the process that started the server"
        )
    Serving(partial(serve_stdio, Tools(source, **options))).serve_to_end()


class Serving:
    """Serves on an event loop in its own thread, until `stop` is called or the only client has left."""

    def __init__(self, serve: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
        self._serve = serve
        self._loop = BackgroundLoop("kernai-mcp-server")
        self._end = asyncio.Event()
        self._served: Future[None] | None = None

    def start(self) -> Self:
        self._served = self._loop.submit(lambda: self._serve(self._end))
        return self

    def stop(self) -> None:
        """Cancels running calls, and waits for the thread to end. May be called again."""
        async def stop(served: Future[None]) -> None:
            self._end.set()
            await asyncio.wait([asyncio.wrap_future(served)])

        if self._served is not None:
            self._loop.close(GRACE + 1, partial(stop, self._served))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def serve_to_end(self, begin: Callable[[], object] = lambda: None) -> None:
        """Starts, calls `begin`, and waits for the end. In the main thread, SIGINT and SIGTERM stop the server."""
        with self, suppress(KeyboardInterrupt), ExitStack() as undo:
            is_main = threading.current_thread() is threading.main_thread()
            for number in (signal.SIGINT, signal.SIGTERM) if is_main else ():
                # None means that the handler was not set by Python and cannot be restored
                before = signal.signal(number, signal.default_int_handler) or signal.SIG_DFL
                undo.callback(signal.signal, number, before)
            begin()
            while self._served is not None and not wait([self._served], POLL_SECONDS).done:
                pass
        if self._served is not None and self._served.done():
            self._served.result()


def _show(url: str) -> None:
    print(f"kernai: MCP server at {url}", file=sys.stderr, flush=True)  # noqa: T201 - the program's own message


# ------------------------------------------------------------------------------------------------------------- stdio

# The SDK reads and writes in threads that cannot be interrupted: Ctrl-C would wait for the client's next line, and a
# client that does not read would keep the server alive. So the SDK gets an input and an output that use daemon threads
# and do not wait for them when cancelled.
#
# Stdout carries the protocol, and a stray `print` would break it. So while serving, descriptor 1 and `sys.stdout` lead
# to stderr and descriptor 0 is empty, for this process and its children.

_claimed = threading.Lock()


async def serve_stdio(tools: Tools, stop: asyncio.Event) -> None:
    """Serves the client on stdin and stdout until it disconnects or `stop` is set."""
    with _client() as (stdin, stdout), ExitStack() as files:
        woken, waker = map(files.enter_context, (FileIO(end, mode) for end, mode in zip(os.pipe(), "rw", strict=True)))
        pool = WorkerPool(2, keep=True)
        files.callback(pool.close)
        client: Any = _Client(pool, _Input(stdin, woken), stdout, stop)

        async def serve() -> None:
            try:
                async with stdio_server(client, client) as (incoming, outgoing):
                    await tools.app.run(incoming, outgoing, tools.app.create_initialization_options())
            except* OSError:  # the client has stopped reading
                pass

        serving = asyncio.ensure_future(serve())
        serving.add_done_callback(lambda _: stop.set())
        await stop.wait()
        waker.close()  # ends the input
        await asyncio.wait([serving], timeout=GRACE)
        serving.cancel()  # in case the client does not read the rest of the output
        with suppress(asyncio.CancelledError):
            await serving


class _Client:
    """A client's input and output; the SDK uses it like an `anyio.AsyncFile`. Sets `ended` when the input ends."""

    def __init__(self, pool: WorkerPool, source: _Input, target: FileIO, ended: asyncio.Event) -> None:
        self._pool = pool
        self._lines = io.TextIOWrapper(io.BufferedReader(source), "utf-8-sig", "replace")
        self._target, self._ended = target, ended

    async def __aiter__(self) -> AsyncIterator[str]:
        while line := await in_worker(self._pool, self._lines.readline):
            yield line
        self._ended.set()

    async def write(self, text: str) -> None:
        await in_worker(self._pool, partial(self._write, memoryview(text.encode())))

    async def flush(self) -> None:
        """Does nothing, because nothing is buffered."""

    def _write(self, left: memoryview) -> None:
        while left:
            left = left[self._target.write(left) or 0 :]


class _Input(io.RawIOBase):
    """The data of `source`, ending as soon as `woken` is readable. Without `poll`, it only reads `source`."""

    def __init__(self, source: FileIO, woken: FileIO) -> None:
        self._source, self._woken = source, woken

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(self._source, select.POLLIN)
            poll.register(self._woken, select.POLLIN)
            if self._woken.fileno() in {ready for ready, _ in poll.poll()}:
                return 0
        return self._source.readinto(buffer) or 0


@contextmanager
def _client() -> Iterator[tuple[FileIO, FileIO]]:
    """Yields private copies of descriptors 0 and 1. In the block, 0 itself is empty and 1 leads to stderr."""
    # these say whether the streams were open at the start; by now another file may have a closed one's number
    if sys.__stdin__ is None or sys.__stdout__ is None:
        raise KernaiError("transport='stdio' needs an open stdin and stdout; without them use 'http'")
    if not _claimed.acquire(blocking=False):  # or chance would say which of two is served
        raise KernaiError("stdin and stdout are serving an MCP client already; another server needs transport='http'")
    with ExitStack() as undo:
        undo.callback(_claimed.release)
        stdin = undo.enter_context(FileIO(os.dup(0)))
        undo.callback(os.dup2, stdin.fileno(), 0)
        stdout = undo.enter_context(FileIO(os.dup(1), "w"))
        undo.callback(os.dup2, stdout.fileno(), 1)
        with FileIO(os.devnull, "r+") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(nothing.fileno() if sys.__stderr__ is None else 2, 1)
        before = sys.stdout
        undo.callback(_flush, before)  # runs while descriptor 1 still leads to stderr
        _flush(before)
        if sys.stderr is not None:
            undo.enter_context(redirect_stdout(sys.stderr))  # shows output at once, not when `before` is flushed
        yield stdin, stdout


def _flush(stream: Any) -> None:
    with suppress(Exception):
        stream.flush()


# -------------------------------------------------------------------------------------------------------------- HTTP

# The SDK checks `Host` and `Origin`, because a page in a browser can reach a server on the same machine under the
# page's own host name (DNS rebinding; MCP specification, "Transports", security warning). It also checks the token. It
# ends sessions after 30 minutes without a request, and allows at most 10,000: most clients never end theirs.

#: seconds until an idle connection is closed: longer than proxies keep one, because they would send into a closed one
KEEP_ALIVE = 75
#: limit for a request in bytes; media are sent as base64 in it
MAX_BODY = 16 * 1024 * 1024
MAX_PORT = 65535
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_ONLY_HERE = re.compile(r"127(\.\d+){3}|localhost|\[::1\]")  # what no other machine can reach
_PATH = re.compile(r"/[^\s?#%{}]*")  # nothing that a URL would escape, or a route read as a pattern
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#@\s]+")  # RFC 6454, section 6.2
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+)(:\d*)?")  # RFC 9110, section 7.2
_TOKEN = re.compile(r"[\x21-\x7e]+")  # what a header can contain; RFC 6750, section 2.1, allows even less


class Server(Serving):
    """Serves over HTTP in a background thread: ``with Server(skills, port=0) as server: connect(server.url)``.

    Takes the arguments of `serve`, except `transport` and `on_ready`. `stop`, or the end of the block, cancels running
    calls, frees the port and ends the thread. A server can be started only once.
    """

    def __init__(self, source: Source, **options: Unpack[ServeOptions]) -> None:
        check_options(options, ServeOptions)
        host, port, path = options.get("host", "127.0.0.1"), options.get("port", 8000), options.get("path", "/mcp")
        token = options.get("token")
        if not isinstance(host, str) or not host.strip():
            raise ValueError(f"host must be a name or an address such as '127.0.0.1', got {host!r}")
        if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= MAX_PORT:
            raise ValueError(f"port must be an int from 0 (any free one) to {MAX_PORT}, got {port!r}")
        if not isinstance(path, str) or not _PATH.fullmatch(path):
            raise ValueError(f"path must start with '/' and be a plain path such as '/mcp', got {path!r}")
        self._host = host.strip().lower()
        if ":" in self._host and "[" not in self._host:
            self._host = f"[{self._host}]"
        self._port, self._path = port, path
        self._verifier = None if token is None else _Verifier(token)
        if token is None and not _ONLY_HERE.fullmatch(self._host):
            why = f"host={host!r} can be reached from other machines, so it needs token=..."
            raise ValueError(f"{why}; for this machine alone use host='127.0.0.1'")
        hosts = [one.lower() for one in check_texts("allowed_hosts", options.get("allowed_hosts", ()))]
        origins = [one.lower() for one in check_texts("allowed_origins", options.get("allowed_origins", ()))]
        found = [_HOST.fullmatch(one) for one in (*_LOOPBACK, self._host, *hosts)]
        if not all(found):
            raise ValueError(f"allowed_hosts must hold names such as 'mcp.example.org', got {hosts!r}")
        for one in origins:
            if not _ORIGIN.fullmatch(one):
                raise ValueError(f"allowed_origins must hold origins such as 'https://app.example.org', got {one!r}")
        names = [f"{one[1]}{port}" for one in found if one for port in ("", ":*")]
        self._security = TransportSecuritySettings(
            # a server on all addresses does not know its names; there, only the token protects it
            enable_dns_rebinding_protection=bool(hosts) or self._host not in ("0.0.0.0", "[::]"),  # noqa: S104 - not bound
            allowed_hosts=names,
            allowed_origins=[*origins, *(f"{scheme}://{name}" for scheme in ("http", "https") for name in names)],
        )
        self._url: str | None = None
        self._tools = Tools(source, **options)
        super().__init__(self._serve_http)

    @property
    def url(self) -> str:
        """The URL that clients connect to. Raises `RuntimeError` before `start`."""
        if self._url is None:
            raise RuntimeError("the server has no URL before it is started: use it in a with block, or call start()")
        return self._url

    def start(self) -> Self:
        """Listens, and starts the thread that serves. Raises `OSError` if the address cannot be used."""
        if self._url is not None:
            raise RuntimeError("a Server can be started only once; create another one")
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        self._listener = socket.create_server((self._host.strip("[]"), self._port), family=family, backlog=128)
        host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(self._host, self._host)  # noqa: S104 - shown, not bound
        self._url = f"http://{host}:{self._listener.getsockname()[1]}{self._path}"
        return super().start()

    def run(self, on_ready: Callable[[str], object]) -> None:
        """Serves until Ctrl-C, SIGTERM, or `stop` in another thread. Calls `on_ready` with the URL."""
        self.serve_to_end(lambda: on_ready(self.url))  # clients can connect already: the socket is listening

    def __repr__(self) -> str:
        return f"Server({self._url or 'not started'})"

    async def _serve_http(self, stop: asyncio.Event) -> None:
        """Serves until `stop` is set; then cancels the running calls."""
        self._tools.ending = stop
        about = {"issuer_url": self._url, "resource_server_url": None}
        inner = self._tools.app.streamable_http_app(
            streamable_http_path=self._path, max_request_body_size=MAX_BODY, transport_security=self._security,
            auth=None if self._verifier is None else AuthSettings.model_validate(about), token_verifier=self._verifier,
        )
        # a browser asks first, and hides every answer from a page of another origin that is not named there
        for_browsers = CORSMiddleware(
            inner, allow_origins=self._security.allowed_origins, allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"], expose_headers=["Mcp-Session-Id"],
        )

        # the SDK's sessions end before uvicorn stops listening
        ending = Response("the server is shutting down", status_code=503)

        async def served(scope: Any, receive: Any, send: Any) -> None:
            with suppress(ClientDisconnect):  # the client has left while it sent the request
                await (ending if stop.is_set() else for_browsers)(scope, receive, send)

        server = uvicorn.Server(uvicorn.Config(
            served, lifespan="off", ws="none", log_config=None, access_log=False, server_header=False,
            proxy_headers=False, timeout_keep_alive=KEEP_ALIVE, timeout_graceful_shutdown=math.ceil(GRACE),
        ))
        with self._listener:
            # leaving this block ends the SDK's sessions, before uvicorn waits for their streams
            async with self._tools.app.session_manager.run():
                serving = asyncio.ensure_future(server.serve(sockets=[self._listener]))
                serving.add_done_callback(lambda _: stop.set())
                await stop.wait()
                server.should_exit = True
            await serving


class _Verifier:
    """Accepts one token, compared in constant time."""

    def __init__(self, token: str) -> None:
        if not _TOKEN.fullmatch(check_type(token, str, "token must be text")):  # the error must not show the token
            raise ValueError("token must be one or more printing ASCII characters without spaces")
        self._token = token

    async def verify_token(self, token: str) -> AccessToken | None:
        is_right = hmac.compare_digest(token.strip().encode("utf-8", "replace"), self._token.encode())
        return AccessToken(token=token, client_id="client", scopes=[]) if is_right else None
