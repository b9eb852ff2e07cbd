"""The SDK's transports to servers, watched for details that make error messages better."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import re
import shutil
import sys
from codecs import getincrementaldecoder
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import httpx2
from anyio import move_on_after
from anyio.abc import AsyncResource
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, get_default_environment, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

from kernai._util.network import proxy_url
from kernai._util.redaction import Redactor
from kernai.mcp.configuration import SHORTEST_SECRET, ServerConfig
from kernai.mcp.errors import McpError
from kernai.mcp.schemas import one_line

if TYPE_CHECKING:
    from kernai.mcp.connection import Session

#: characters kept of a server's standard error: more are cut to the second number, which exceeds any secret
MAX_STDERR, LEAST_STDERR = 65536, 16384
#: characters and lines of standard error that an error shows
STDERR_CHARACTERS, STDERR_LINES = 4096, 8
#: how many characters of an HTTP error's text are shown, and how long it is waited for
MAX_SAID, SAYING_SECONDS = 300, 1
_GUARD = Path(__file__).with_name("guard.py")
# a text that is not closed ends with the message; looking for its end from each quote in it would be quadratic
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_ID = re.compile(r'\s*:\s*"?(\d{1,18})(?!\d)')  # the SDK counts requests; some servers answer with a text


class HttpState:
    """What is known of the HTTP requests of a session, or of one attempt at a request."""

    def __init__(self, redactor: Redactor) -> None:
        #: hides secrets, in log messages too
        self.redactor = redactor
        #: the HTTP status of the last answer if that was an error, or else 0; and the text of that answer
        self.status, self.said = 0, ""
        #: the failure of the connection, and whether there was an answer before that
        self.failure: BaseException | None = None
        self.was_answered = False


#: what this task sends requests for; the SDK passes a request's context on to the task that sends it
talking: ContextVar[HttpState | None] = ContextVar("talking", default=None)


@asynccontextmanager
async def watched(transport: Any, session: Session) -> AsyncGenerator[Any]:
    """Wraps a transport so that the session learns about its end and about unreadable messages."""
    async with transport as (incoming, outgoing):
        yield _Watched(incoming, session), outgoing


class _Watched(AsyncResource):
    """A stream of incoming messages that reports its end, and unreadable messages, to the session.

    The SDK drops a response that it cannot parse, so its caller would wait for the timeout. It gets an error instead.
    """

    def __init__(self, stream: Any, session: Session) -> None:
        self._stream = stream
        self._session = session

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __getattr__(self, name: str) -> Any:
        """Other attributes that the SDK needs, such as `last_context`."""
        return getattr(self._stream, name)

    async def __aiter__(self) -> AsyncGenerator[Any]:
        try:
            async for item in self._stream:
                message: Any = getattr(item, "message", None)
                self._session.sift(getattr(message, "result", None) or {})
                if (error := getattr(message, "error", None)) is not None:
                    if error.code == CONNECTION_CLOSED and not error.message.startswith("SSE stream "):
                        error.code = INTERNAL_ERROR  # the SDK itself uses that of the server for a lost connection
                    if message.id is None:  # of no use to the SDK, which drops it
                        self._session.note("it sent an error that names no request", error.message)
                yield self._answer_to(item) if isinstance(item, Exception) else item
        finally:
            self._session.end_reached.set()

    def _answer_to(self, item: Any) -> Any:
        """Returns the error response for an unreadable message, or the message itself if it is not a response."""
        if not hasattr(item, "errors"):  # not pydantic's: the connection has failed
            self._session.failure = self._session.failure or item
            return item
        # pydantic's errors have the refused input, or the object that lacks a field
        inputs = [one["input"] for one in item.errors()]
        message = next((one for one in inputs if isinstance(one, dict)), inputs[0])
        text = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
        with suppress(ValueError):
            if text.startswith("\ufeff"):  # some servers begin their output with a byte order mark
                return SessionMessage(jsonrpc_message_adapter.validate_json(text[1:], by_name=False))
        self._session.note("it printed something other than a JSON-RPC message to standard output", text)
        answered = _answered_id(text)
        if answered is None:
            return item
        error = ErrorData(code=PARSE_ERROR, message=f"its answer cannot be read: {why_unreadable(str(item))}")
        return SessionMessage(JSONRPCError(jsonrpc="2.0", id=answered, error=error))


def why_unreadable(error: str) -> str:
    """The reason in the text of a parser's error, which itself may quote a secret."""
    return "it nests too deeply" if "recursion limit" in error else "it does not follow the protocol"


def _answered_id(text: str) -> int | None:
    """Finds the id of the request that an unparsable response answers: the key "id" of the outermost object."""
    depth, found = 0, None
    text = text.lstrip("\ufeff[ \t\r\n")  # "[" begins the batches of older revisions
    for token in _JSON_TOKEN.finditer(text) if text.startswith("{") else ():
        if depth == 1 and token[0] == '"method"':
            return None  # it is a request or a notification
        if depth == 1 and token[0] == '"id"' and (value := _ID.match(text, token.end())):
            found = int(value[1])
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(token[0], 0)
    return found


class StderrTail:
    """Reads a server's standard error as it is written, so that the server never blocks, and keeps the last lines."""

    def __init__(self, hide: Callable[[str], str]) -> None:
        self._hide = hide
        self._kept = ""
        self._decode = getincrementaldecoder("utf-8")("surrogateescape").decode  # a character may come in two pieces
        self._read_end: int | None = None

    @contextmanager
    def file(self) -> Iterator[TextIO]:
        if sys.platform == "win32":  # the event loop there cannot wait for a pipe
            with Path(os.devnull).open("w", encoding="utf-8") as nothing:
                yield nothing
            return
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        self._read_end, loop = read_end, asyncio.get_running_loop()
        loop.add_reader(read_end, self._drain)
        try:
            with os.fdopen(write_end, "w", encoding="utf-8") as errors:
                yield errors
        finally:
            self._drain()
            self._read_end = None
            loop.remove_reader(read_end)
            os.close(read_end)

    def _drain(self) -> None:
        with suppress(BlockingIOError):  # raised when everything has been read
            while self._read_end is not None and (data := os.read(self._read_end, 65536)):
                self._kept += self._decode(data)
                if len(self._kept) > MAX_STDERR:
                    self._kept = self._hide(self._kept)[-LEAST_STDERR:]

    def lines(self) -> list[str]:
        self._drain()
        text = self._hide(self._kept)[-STDERR_CHARACTERS:].encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        return [line.rstrip() for line in text.splitlines() if line.strip()][-STDERR_LINES:]


def transport_of(config: ServerConfig, session: Session, auth: httpx2.Auth | None) -> Any:
    """Returns a transport. Entering it raises `McpError` for an unknown command, or the SDK's own errors."""
    if config.transport == "stdio":
        return _stdio(config, session.stderr)
    return _http(config, _http_client(config, session, auth))


@asynccontextmanager
async def _stdio(config: ServerConfig, stderr: StderrTail) -> AsyncGenerator[Any]:
    assert config.command is not None
    _check_command(config, config.command)
    command = [config.command, *config.args]
    # on Windows, the SDK itself makes sure that the server's processes end
    is_python = re.match(r"(?i)(python|pypy|graalpy)", Path(sys.executable or "").name)  # not so in uWSGI
    if os.name == "posix" and is_python and not getattr(sys, "frozen", False) and _GUARD.is_file():
        command = [sys.executable, "-I", "-S", str(_GUARD), str(os.getpid()), *command]
    parameters = StdioServerParameters(
        command=command[0], args=command[1:], cwd=config.cwd,
        env=dict(config.env),  # added to the SDK's small default environment; never our whole environment
        encoding_error_handler="replace",  # invalid UTF-8 spoils one line, not the connection
    )
    with stderr.file() as errors:
        async with stdio_client(parameters, errlog=errors) as streams:
            yield streams


def _check_command(config: ServerConfig, command: str) -> None:
    """Raises `McpError` if the command cannot be started. The guard could only write that to standard error."""
    if config.cwd is not None and not Path(config.cwd).is_dir():
        raise McpError(f"its cwd is not a folder: {config.cwd!r}")
    path = (get_default_environment() | dict(config.env)).get("PATH")
    # a command with a slash is looked for in the server's folder
    started = os.path.join(config.cwd or "", command) if os.path.dirname(command) else command  # noqa: PTH118, PTH120
    if shutil.which(started, path=path) is None:
        hint = "its arguments belong in args" if " " in command else "is it installed, and in PATH?"
        raise McpError(f"its command {command!r} is not found or cannot be run; {hint}")


@asynccontextmanager
async def _http(config: ServerConfig, client: httpx2.AsyncClient) -> AsyncGenerator[Any]:
    assert config.url is not None
    async with AsyncExitStack() as stack:
        if config.transport == "sse":
            streams = sse_client(config.url, httpx_client_factory=lambda *_, **__: client)
        else:
            await stack.enter_async_context(client)
            streams = streamable_http_client(config.url, http_client=client, max_sse_event_size=None)
        try:
            opened = await stack.enter_async_context(streams)
        except* RuntimeError as errors:  # raised by `sse_client` if its reader ends without having called "started"
            reason = "its stream ended before it gave the address for messages; is this an MCP server over SSE?"
            raise McpError(reason) from errors
        yield opened


def _http_client(config: ServerConfig, session: Session, auth: httpx2.Auth | None) -> httpx2.AsyncClient:
    async def on_request(request: httpx2.Request) -> None:
        """Adds the token from `auth` to the redactor: it is as secret as one in the configuration."""
        token = request.headers.get("Authorization", "").partition(" ")[2]
        if len(token) >= SHORTEST_SECRET:
            session.redactor.add(token, "[header Authorization]")

    class Client(httpx2.AsyncClient):
        """Notes the status of answers. A hook would also see those after which `auth` sends the request again."""

        async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
            task, is_sse, is_message = talking.get(), config.transport == "sse", request.method == "POST"
            said = ""
            try:
                response = await super().send(request, **options)
                kind = response.headers.get("Content-Type", "").lower()
                is_answer = is_message and kind.startswith("application/json")
                if response.is_error and (is_message or is_sse) and kind.startswith(("application/json", "text/plain")):
                    # if its text cannot be read, the error goes without it
                    with suppress(Exception), move_on_after(math.inf if is_answer else SAYING_SECONDS):
                        await response.aread()
                        said = "" if '"jsonrpc"' in response.text else response.text
                elif is_answer:
                    await response.aread()
            except Exception as error:
                if task is None or not is_message or not (is_sse or session.is_open):
                    raise
                # the SDK would end all requests; an event stream that ends early, or a refusal, ends only its own
                (session if is_sse else task).failure = error
                status = 200 if isinstance(error, httpx2.RequestError) else 401  # `auth` has failed
                response = httpx2.Response(status, headers={"Content-Type": "text/event-stream"}, request=request)
            if task is not None and (is_message or is_sse):  # others need not offer the stream for a GET
                task.was_answered |= task.failure is None  # a task is asked about after the call that began it
                task.status, task.said = response.status_code if response.is_error else 0, said
                if is_sse and (task.status or session.failure):  # the SDK would wait for an answer
                    session.status, session.said = task.status, said
                    session.end()
            return response

    timeout = httpx2.Timeout(config.timeout, read=None)  # a stream may be silent, and each call has its own timeout
    limits = httpx2.Limits(max_keepalive_connections=20)  # by default, calls after the hundredth wait for a connection
    # httpx2 has its own rules for proxies, by which even this machine has one; signing in may go to other hosts
    has_proxy, origin = bool(proxy_url(config.url or "")), httpx2.URL(config.url or "").netloc.decode()
    direct = None if has_proxy or auth is not None else httpx2.AsyncHTTPTransport(limits=limits)
    try:
        return Client(
            headers=dict(config.headers), timeout=timeout, limits=limits, auth=auth, transport=direct,
            mounts=None if has_proxy else {f"all://{origin}": None}, event_hooks={"request": [on_request]},
        )
    except (httpx2.InvalidURL, ValueError):  # whose text may show a part of a password
        raise McpError("the environment's proxy is not a URL like http://host:port") from None


def status_text(task: HttpState) -> str:
    """An HTTP error status, with what the server said, and the remedy if there is one."""
    said = f", {one_line(task.redactor.text(task.said), MAX_SAID)!r}" if task.said else ""
    hint = ": set 'headers' or pass auth= to sign in" if task.status == httpx2.codes.UNAUTHORIZED else ""
    return f"HTTP status {task.status}{said}{hint}"


def _without_secrets(record: logging.LogRecord) -> bool:
    """A log filter that hides secrets: the SDK and its HTTP client log addresses, headers and bad data."""
    task = talking.get()
    if task is not None:
        # a parser's traceback quotes the data, cut in the middle, so that secrets in it would not be recognised
        cause = f" ({record.exc_info[0].__name__})" if record.exc_info and record.exc_info[0] else ""
        record.msg, record.args, record.exc_info = f"{task.redactor.text(record.getMessage())}{cause}", (), None
    return True


for _name in (
    "httpx2", *(f"httpcore2.{each}" for each in ("connection", "http11", "http2", "proxy", "socks")),
    "client", *(f"mcp.client.{each}" for each in ("client", "sse", "stdio", "streamable_http")),
):
    logging.getLogger(_name).addFilter(_without_secrets)
