"""Serving over stdio or streamable HTTP until the client leaves, Ctrl-C, SIGTERM, or a call of `stop`.

The first signal ends the server in order and without a traceback. A second one has its usual effect, so that a server
that does not end can be killed. A task that ignores its cancellation is abandoned after `GRACE` seconds.
"""

from __future__ import annotations

import asyncio
import hmac
import io
import ipaddress
import math
import os
import re
import select
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from functools import partial
from io import FileIO
from typing import TYPE_CHECKING, Any

import uvicorn
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings

from kernai._util.worker_pool import WorkerPool, in_worker
from kernai.errors import KernaiError

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

#: seconds that cancelled work has to clean up
GRACE = 2.0


def run_to_end(main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Runs ``main(stop)`` on an event loop of its own; in the main thread signals set `stop`."""
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    try:
        asyncio.set_event_loop(loop)
        with _signals(loop, stop):
            loop.run_until_complete(main(stop))
            loop.run_until_complete(_cancel_rest())
            loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def _cancel_rest() -> None:
    """Unlike `asyncio.run`, which waits for ever."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        _, stubborn = await asyncio.wait(left, timeout=GRACE)
        for task in stubborn:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - a warning would help nobody


@contextmanager
def _signals(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> Iterator[None]:
    """In the main thread: the first SIGINT or SIGTERM sets `stop`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {}

    def restore() -> None:
        while before:
            number, handler = before.popitem()
            with suppress(NotImplementedError):
                loop.remove_signal_handler(number)
            signal.signal(number, handler)

    def first(*_: object) -> None:
        restore()
        loop.call_soon_threadsafe(stop.set)

    for number in (signal.SIGINT, signal.SIGTERM):
        # None: set by something other than Python, and cannot be restored
        before[number] = signal.getsignal(number) or signal.SIG_DFL
        try:
            loop.add_signal_handler(number, first)  # also wakes a loop that is about to wait
        except NotImplementedError:  # on Windows, where the loop wakes up anyway
            signal.signal(number, first)
    try:
        yield
    finally:
        restore()


# ------------------------------------------------------------------------------------------------------------- stdio

# The SDK's own reading and writing happens in threads that nothing can interrupt: Ctrl-C would wait for the client's
# next line, and a client that reads nothing would keep the server alive. So the SDK gets an input and an output whose
# threads are daemons, and which do not wait for them when they are cancelled.
#
# Stdout belongs to the protocol, and one stray `print` would break it. So while serving, descriptor 1 and `sys.stdout`
# are stderr and descriptor 0 is empty, for this process and its children.

_claimed = threading.Lock()


async def serve_stdio(app: Server[Any], stop: asyncio.Event) -> None:
    """Serves the client behind stdin and stdout until it leaves or `stop` is set."""
    with _client() as (stdin, stdout), ExitStack() as files:
        woken, waker = map(files.enter_context, (FileIO(end, mode) for end, mode in zip(os.pipe(), "rw", strict=True)))
        pool = WorkerPool(2, keep=True)
        files.callback(pool.close)
        client: Any = _Client(pool, _Input(stdin, woken), stdout, stop)

        async def serve() -> None:
            try:
                async with stdio_server(client, client) as (incoming, outgoing):
                    await app.run(incoming, outgoing, app.create_initialization_options())
            except* OSError:  # the client has stopped reading
                pass

        serving = asyncio.ensure_future(serve())
        serving.add_done_callback(lambda _: stop.set())
        await stop.wait()
        waker.close()  # ends the input
        await asyncio.wait([serving], timeout=GRACE)
        serving.cancel()  # the client does not read the rest of the output
        with suppress(asyncio.CancelledError):
            await serving


class _Client:
    """What the SDK takes for two `anyio.AsyncFile`: a client's input and output. Sets `ended` when it has left."""

    def __init__(self, pool: WorkerPool, source: _Input, target: FileIO, ended: asyncio.Event) -> None:
        self._pool = pool
        self._lines = io.TextIOWrapper(io.BufferedReader(source), "utf-8", "replace")
        self._target = target
        self._ended = ended

    async def __aiter__(self) -> AsyncIterator[str]:
        while line := await in_worker(self._pool, self._lines.readline):
            yield line
        self._ended.set()

    async def write(self, text: str) -> None:
        await in_worker(self._pool, partial(self._write, memoryview(text.encode())))

    async def flush(self) -> None:
        """Nothing is kept back."""

    def _write(self, left: memoryview) -> None:
        while left:
            left = left[self._target.write(left) or 0 :]


class _Input(io.RawIOBase):
    """What `source` has, and the end once `woken` is readable. Where descriptors cannot be polled it just reads."""

    def __init__(self, source: FileIO, woken: FileIO) -> None:
        self._source = source
        self._woken = woken

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
    """Private copies of descriptors 0 and 1, which meanwhile lead nowhere and to stderr."""
    if not _claimed.acquire(blocking=False):
        raise KernaiError("stdin and stdout are serving an MCP client already; another server needs transport='http'")
    with ExitStack() as undo:
        undo.callback(_claimed.release)
        # Python looked when it started: by now the number of a closed one may belong to another file
        if sys.__stdin__ is None or sys.__stdout__ is None:
            raise KernaiError("transport='stdio' needs an open stdin and stdout; without them use 'http'")
        stdin = undo.enter_context(FileIO(_copy_of(0)))
        undo.callback(os.dup2, stdin.fileno(), 0)
        stdout = undo.enter_context(FileIO(_copy_of(1), "w"))
        undo.callback(os.dup2, stdout.fileno(), 1)
        _lead(0, os.open(os.devnull, os.O_RDONLY))
        _lead(1, os.open(os.devnull, os.O_WRONLY) if sys.__stderr__ is None else os.dup(2))
        before = sys.stdout
        undo.callback(_flush, before)  # while it still leads to stderr
        _flush(before)
        if sys.stderr is not None:
            undo.enter_context(redirect_stdout(sys.stderr))  # shows at once what descriptor 1 would show when flushed
        yield stdin, stdout


def _copy_of(descriptor: int) -> int:
    """A copy beyond the standard three, not inherited by children."""
    if sys.platform == "win32":
        return os.dup(descriptor)
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)


def _lead(descriptor: int, opened: int) -> None:
    os.dup2(opened, descriptor)
    os.close(opened)


def _flush(stream: Any) -> None:
    with suppress(Exception):
        stream.flush()


# -------------------------------------------------------------------------------------------------------------- HTTP

# The SDK checks `Host` and `Origin`, since a page in a browser can reach a server on the same machine under a name of
# its own (DNS rebinding; MCP specification, "Transports", security warning). It also checks the token, ends idle
# sessions and limits their number.

#: bytes; media come as base64 within a request
MAX_BODY = 16 * 1024 * 1024
#: each takes about 40 kB. Most clients never end theirs; since 2026-07-28 there are none
MAX_SESSIONS = 1000
#: seconds without a request; an open stream is one
MAX_IDLE = 30 * 60.0
MAX_PORT = 65535
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#@\s]+")  # RFC 6454, section 6.2
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+)(:\d*)?")  # RFC 9110, section 7.2
_TOKEN = re.compile(r"[\x21-\x7e]+")  # what a header can carry; RFC 6750, section 2.1, asks for less still


class Address:
    """Where a server listens and whom it admits. `TypeError` or `ValueError` names the option that is wrong."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 8000,
        path: str = "/mcp",
        token: str | None = None,
        allowed_hosts: Iterable[str] = (),
        allowed_origins: Iterable[str] = (),
    ) -> None:
        if not isinstance(host, str) or not host.strip():
            raise ValueError(f"host must be a name or an address such as '127.0.0.1', got {host!r}")
        if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= MAX_PORT:
            raise ValueError(f"port must be an int from 0 (any free one) to {MAX_PORT}, got {port!r}")
        if not isinstance(path, str) or not path.startswith("/") or "{" in path:
            raise ValueError(f"path must start with '/', such as '/mcp', got {path!r}")
        self.host = host.strip().lower()
        if ":" in self.host and "[" not in self.host:
            self.host = f"[{self.host}]"
        self.port = port
        self.path = path
        self.verifier = None if token is None else _Verifier(token)
        if token is None and not _is_loopback(self.host):
            raise ValueError(
                f"host={host!r} can be reached from other machines, so it needs token=...; "
                f"for this machine alone use host='127.0.0.1'"
            )
        hosts, origins = _texts("allowed_hosts", allowed_hosts), _texts("allowed_origins", allowed_origins)
        found = [_HOST.fullmatch(one) for one in (*_LOOPBACK, self.host, *hosts)]
        if not all(found):
            raise ValueError(f"allowed_hosts must hold names such as 'mcp.example.org', got {hosts!r}")
        for one in origins:
            if not _ORIGIN.fullmatch(one):
                raise ValueError(f"allowed_origins must hold origins such as 'https://app.example.org', got {one!r}")
        names = [f"{one[1]}{port}" for one in found if one for port in ("", ":*")]
        self.security = TransportSecuritySettings(
            # on every address names are unknown, and the token alone decides
            enable_dns_rebinding_protection=bool(hosts) or self.host not in ("0.0.0.0", "[::]"),  # noqa: S104 - not bound
            allowed_hosts=names,
            allowed_origins=[*origins, *(f"{scheme}://{name}" for scheme in ("http", "https") for name in names)],
        )

    def listen(self) -> socket.socket:
        """A socket that listens. `OSError` says which address cannot be used."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host.strip("[]"), self.port), family=family, backlog=128)
        except OSError as error:
            reason = f"{error.strerror or error}; port=0 takes any free one"
            raise OSError(error.errno, f"cannot listen on {self.host}, port {self.port}: {reason}") from error

    def url(self, listener: socket.socket) -> str:
        """What a client on this machine connects to."""
        host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(self.host, self.host)  # noqa: S104 - shown, not bound
        return f"http://{host}:{listener.getsockname()[1]}{self.path}"


class _Verifier:
    """Accepts one token, compared in constant time."""

    def __init__(self, token: str) -> None:
        if not isinstance(token, str):
            raise TypeError(f"token must be text, got {type(token).__name__}")
        if not _TOKEN.fullmatch(token):  # never shown
            raise ValueError("token must be one or more printing ASCII characters without spaces")
        self._token = token

    async def verify_token(self, token: str) -> AccessToken | None:
        is_right = hmac.compare_digest(token.strip().encode("utf-8", "replace"), self._token.encode())
        return AccessToken(token=token, client_id="client", scopes=[]) if is_right else None


def _is_loopback(host: str) -> bool:
    """Whether only this machine can reach it. Of names only ``localhost`` is known to be such."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _texts(option: str, given: object) -> list[str]:
    if isinstance(given, str) or not isinstance(given, Iterable) or not all(isinstance(one, str) for one in given):
        raise TypeError(f"{option} must be a list of texts, got {given!r}")
    return [one.lower() for one in given]


async def serve_http(
    app: Server[Any],
    address: Address,
    listener: socket.socket,
    stop: asyncio.Event,
    on_ready: Callable[[], object],
    cancel_calls: Callable[[], object],
) -> None:
    """Serves on a socket that listens already, until `stop` is set; then cancels the calls under way."""
    auth = None if address.verifier is None else AuthSettings.model_validate(
        {"issuer_url": address.url(listener), "resource_server_url": None}
    )
    inner = app.streamable_http_app(
        streamable_http_path=address.path,
        max_request_body_size=MAX_BODY,
        session_idle_timeout=MAX_IDLE,
        max_sessions=MAX_SESSIONS,
        transport_security=address.security,
        auth=auth,
        token_verifier=address.verifier,
    )
    server = _Server(uvicorn.Config(
        inner, lifespan="off", ws="none", log_config=None, access_log=False, server_header=False, proxy_headers=False,
        timeout_graceful_shutdown=math.ceil(GRACE),
    ))
    # the SDK ends its sessions before uvicorn waits for their streams
    async with app.session_manager.run():
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        serving.add_done_callback(lambda _: stop.set())
        on_ready()
        await stop.wait()
        server.should_exit = True
        cancel_calls()
    await serving


class _Server(uvicorn.Server):
    """Leaves signals to `run_to_end`: uvicorn would raise them again at the end, with a traceback."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
