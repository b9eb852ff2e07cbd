"""How a server is reached: the SDK's transports, and what is noticed on the way for better error messages."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

import httpx2
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, get_default_environment, stdio_client
from mcp.client.streamable_http import streamable_http_client

from kernai.mcp.configuration import ServerConfig
from kernai.mcp.errors import McpError

if TYPE_CHECKING:
    from typing import Self


#: how much of a server's standard error is told, in characters
STDERR_CHARACTERS = 4096
#: how much of it is kept, in bytes: up to the first, and when that is reached, the second; no secret is as long
MOST_STDERR = 65536
LEAST_STDERR = 16384
STDERR_LINES = 8
NOISE_CHARACTERS = 120


#: where the HTTP statuses of what a task asks for are noted, as far as they are no success. The SDK's transport hands
#: the context of a request on to the task that sends it.
refusals: ContextVar[list[int] | None] = ContextVar("refusals", default=None)
#: takes the secrets of the server that a task talks to out of what is logged there
hiding: ContextVar[Callable[[str], str] | None] = ContextVar("hiding", default=None)


class Health:
    """Lives on the event loop. `on_end` is called when nothing more will come from the server.

    `hide` takes secrets out of a text; what is kept here has been through it before it was cut.
    """

    def __init__(self, on_end: Callable[[], object], hide: Callable[[str], str]) -> None:
        self._on_end = on_end
        self._hide = hide
        #: nothing more will come from the server; what is sent now is not executed
        self.ended = False
        #: the first thing on its standard output that was no message
        self.noise: str | None = None
        #: the HTTP statuses while it was opened that were no success
        self.statuses: list[int] = []
        self.stderr = StderrTail(hide)

    def end(self) -> None:
        self.ended = True
        self._on_end()

    def notice(self, item: object) -> None:
        """Looks at what the transport read: a message, or the exception that stands for what was none."""
        if self.noise is None and isinstance(item, Exception):
            self.noise = self._hide(_unreadable(item))[:NOISE_CHARACTERS]

    def unreadable(self) -> list[str]:
        """That it sent something unreadable, if it did: that may have been the answer which is missing."""
        if self.noise is None:
            return []
        return [f"it printed what is no JSON-RPC message to standard output: {self.noise!r}"]

    def told(self) -> list[str]:
        """What is worth telling, untrusted: text of the server stands in it."""
        found = self.unreadable()
        if self.statuses:
            found.insert(0, f"it answered with HTTP status {self.statuses[-1]}")
        lines = self.stderr.lines()
        if lines:
            found.append("its standard error ended with:\n" + "\n".join(lines))
        return found


def _unreadable(error: Exception) -> str:
    """The text that a parser refused; pydantic keeps it beside its message."""
    with suppress(Exception):
        return str(error.errors()[0]["input"])  # type: ignore[attr-defined]  # where it has it
    return type(error).__name__


class Watched:
    """A transport's stream of incoming messages, noticing what comes and that it ends."""

    def __init__(self, stream: Any, health: Health) -> None:
        self._stream = stream
        self._health = health

    async def receive(self) -> Any:
        return await self._noticed(self._stream.receive())

    def __aiter__(self) -> Watched:
        return self

    async def __anext__(self) -> Any:
        return await self._noticed(self._stream.__anext__())

    async def _noticed(self, coming: Awaitable[Any]) -> Any:
        try:
            item = await coming
        except BaseException:
            self._health.end()
            raise
        self._health.notice(item)
        return item

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stream.__aexit__(kind, error, trace)

    @property
    def last_context(self) -> Any:
        """Which context a message was sent from, where the transport knows it."""
        return getattr(self._stream, "last_context", None)


class StderrTail:
    """A server's standard error: read as it comes, so that the server never blocks on it; the last lines are kept."""

    def __init__(self, hide: Callable[[str], str]) -> None:
        self._hide = hide
        self._kept = bytearray()
        self._read_end: int | None = None

    def open(self) -> TextIO:
        """The file to hand to the process; close it once the process has its own copy."""
        if sys.platform == "win32":  # its event loop cannot wait for a pipe of this kind
            return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - closed by the caller
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        self._read_end = read_end
        asyncio.get_running_loop().add_reader(read_end, self.drain)
        return os.fdopen(write_end, "w", encoding="utf-8")

    def drain(self) -> None:
        """Takes what is there."""
        while self._read_end is not None:
            try:
                data = os.read(self._read_end, 65536)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            self._kept += data
            if len(self._kept) > MOST_STDERR:
                self._kept = bytearray(self._hidden().encode("utf-8", "surrogateescape")[-LEAST_STDERR:])

    def _hidden(self) -> str:
        return self._hide(self._kept.decode("utf-8", "surrogateescape"))

    def close(self) -> None:
        if self._read_end is not None:
            asyncio.get_running_loop().remove_reader(self._read_end)
            os.close(self._read_end)
            self._read_end = None

    def lines(self) -> list[str]:
        self.drain()
        text = self._hidden()[-STDERR_CHARACTERS:].encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        return [line.rstrip() for line in text.splitlines() if line.strip()][-STDERR_LINES:]


#: a pair of streams, which the SDK's `Client` takes as a transport
Streams = tuple[Any, Any]

_GUARD = Path(__file__).with_name("guard.py")


@asynccontextmanager
async def opened(config: ServerConfig, health: Health) -> AsyncGenerator[Streams]:
    """The server's streams. `McpError` for a command that does not exist; else what the SDK raises."""
    transport = _TRANSPORTS[config.transport or ""]
    async with transport(config, health) as (incoming, outgoing):
        yield Watched(incoming, health), outgoing


@asynccontextmanager
async def _stdio(config: ServerConfig, health: Health) -> AsyncGenerator[Streams]:
    assert config.command is not None
    command = [config.command, *config.args]
    _check_command(config)
    if can_guard():
        command = [sys.executable, "-I", "-S", str(_GUARD), *command]
    parameters = StdioServerParameters(
        command=command[0],
        args=command[1:],
        env=dict(config.env),  # over the SDK's small default environment, never ours whole
        cwd=config.cwd,
        encoding_error_handler="replace",  # bytes that are no UTF-8 spoil one line, not the connection
    )
    errors = health.stderr.open()
    try:
        async with stdio_client(parameters, errlog=errors) as streams:
            errors.close()
            yield streams
    finally:
        errors.close()
        health.stderr.drain()
        health.stderr.close()


def can_guard() -> bool:
    """Whether a guard can stand beside the server. Elsewhere (Windows) the SDK itself ties processes together."""
    return os.name == "posix" and bool(sys.executable) and not getattr(sys, "frozen", False) and _GUARD.is_file()


def _check_command(config: ServerConfig) -> None:
    """The guard could only say it on the server's standard error, in more words."""
    assert config.command is not None
    if config.cwd is not None and not Path(config.cwd).is_dir():
        raise McpError(f"its cwd is no folder: {config.cwd!r}")
    path = (get_default_environment() | dict(config.env)).get("PATH")
    command = config.command
    if os.path.dirname(command) and config.cwd is not None:  # noqa: PTH120 - as text, as the system reads it
        command = os.path.join(config.cwd, command)  # noqa: PTH118 - as above
    if shutil.which(command, path=path) is None:
        raise McpError(f"its command {config.command!r} is not found or cannot be run; is it installed, and in PATH?")


@asynccontextmanager
async def _sse(config: ServerConfig, _: Health) -> AsyncGenerator[Streams]:
    assert config.url is not None
    begun = False
    try:
        async with sse_client(
            config.url,
            dict(config.headers),
            timeout=config.timeout,
            sse_read_timeout=_NEVER,
            httpx_client_factory=_noticing_client,
        ) as streams:
            begun = True
            yield streams
    except* RuntimeError as errors:  # the SDK's reader of the stream ended without having "started"
        if begun:
            raise
        told = "its stream ended before it had said where messages go; is this an MCP server over SSE?"
        raise McpError(told) from errors


@asynccontextmanager
async def _streamable_http(config: ServerConfig, _: Health) -> AsyncGenerator[Streams]:
    assert config.url is not None
    timeout = httpx2.Timeout(config.timeout, read=_NEVER)
    async with (
        _noticing_client(dict(config.headers), timeout) as client,
        streamable_http_client(config.url, http_client=client) as streams,
    ):
        yield streams


#: each call has its own timeout; a stream that is silent for long is not broken
_NEVER = 7 * 24 * 3600.0


class _WithoutSecrets(logging.Filter):
    """The SDK and its carrier log addresses and what they could not read."""

    def filter(self, record: logging.LogRecord) -> bool:
        hide = hiding.get()
        if hide is not None:
            record.msg, record.args = hide(record.getMessage()), ()
        return True


for _name in ("httpx2", "client", *(f"mcp.client.{each}" for each in ("client", "sse", "stdio", "streamable_http"))):
    logging.getLogger(_name).addFilter(_WithoutSecrets())


async def _notice(response: httpx2.Response) -> None:
    seen = refusals.get()
    if seen is not None and response.status_code >= httpx2.codes.BAD_REQUEST:
        seen.append(response.status_code)


def _noticing_client(
    headers: dict[str, str] | None = None, timeout: httpx2.Timeout | None = None, auth: httpx2.Auth | None = None
) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(headers=headers, timeout=timeout, auth=auth, event_hooks={"response": [_notice]})


_TRANSPORTS = {"stdio": _stdio, "sse": _sse, "streamable_http": _streamable_http}
