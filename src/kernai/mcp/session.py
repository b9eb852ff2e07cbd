"""`Background` runs the clients of an adapter on one event loop in one thread; `Session` is one client of a server.

A session runs in a single task, because the SDK's task groups require that. A client is opened, used and closed only on
this loop, whichever thread calls, even if that thread runs its own loop (as in a notebook). Events of a call are passed
to the thread that waits for the call, and emitted there. After `close`, also at the interpreter's exit, neither the
thread nor the loop is left. Waiting for the loop in its own thread would deadlock, so it raises an error.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import asynccontextmanager, contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import anyio
import mcp_types
from mcp import Client, MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from kernai._util.redaction import Redactor
from kernai.drivers.background_loop import BackgroundLoop
from kernai.errors import KernaiError, RunCancelledError
from kernai.mcp.configuration import ServerConfig
from kernai.mcp.errors import McpClosedError, McpError
from kernai.mcp.transports import TOO_DEEP, Health, hiding, refusals

Answer = TypeVar("Answer")
#: emits an event
Emit = Callable[[dict[str, Any]], object]

#: seconds between two checks of a waiting thread whether its run has been cancelled
POLL_SECONDS = 0.1
#: seconds until a server that has stopped reporting changed tools is asked again to report them
LISTEN_AGAIN_SECONDS = 10.0


class Background:
    """The event loop for an adapter's clients, in a thread that the first call starts."""

    def __init__(self) -> None:
        self._loop = BackgroundLoop("kernai-mcp")
        self._process = os.getpid()

    def run(
        self, work: Callable[[Emit], Coroutine[Any, Any, Answer]], emit: Emit = lambda _: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Answer:
        """Performs `work` on the loop and waits for it. `emit` is called with its events, in the caller's thread.

        Ctrl-C in the caller, or the cancellation of its run, cancels the work. Raises `McpClosedError` after `close`.
        """
        self.check()
        if self._loop.serves_here():
            raise McpError(
                "an MCP request on the thread that serves MCP would wait for itself forever; "
                "in a sampling or elicitation callback use 'def' in place of 'async def', or await arun(...)"
            )
        inbox: SimpleQueue[Any] = SimpleQueue()
        try:
            future: Future[Answer] = self._loop.submit(lambda: work(inbox.put))
        except KernaiError:
            self.check()
            raise
        future.add_done_callback(lambda _: inbox.put(None))
        try:
            while not cancelled():
                try:
                    event = inbox.get(timeout=POLL_SECONDS)
                except Empty:
                    continue
                if event is None:
                    return future.result()
                emit(event)
            raise RunCancelledError("the run was cancelled")
        except CancelledError:
            raise McpClosedError("the MCP adapter was shut down while it was asked") from None
        except BaseException:
            future.cancel()
            raise

    @property
    def is_of_parent(self) -> bool:
        """Whether it belongs to the parent process. A forked child cannot use it."""
        return os.getpid() != self._process

    def check(self) -> None:
        """Raises `McpClosedError` if no more work can be run."""
        if self._loop.closed:
            raise McpClosedError("the MCP adapter has been shut down; build a new one with kernai.mcp.setup")
        if self.is_of_parent:
            raise McpClosedError("the MCP adapter belongs to the parent process; build a new one after forking")

    def close(self, last: Callable[[], Coroutine[Any, Any, object]], seconds: float) -> None:
        """Runs `last` on the loop, then ends the loop and its thread. Waits at most about `seconds`."""
        if not self.is_of_parent:
            self._loop.close(seconds, last)


#: makes the SDK's client of a session
MakeClient = Callable[["Session"], Client]

#: The HTTP statuses for a session that the server does not know any more: 404 in the specification (2025-11-25, basic,
#: transports, "Session Management"), 400 from the reference servers. In both cases the request was not executed.
UNKNOWN_SESSION = (400, 404)
#: the protocol's names for what a server may offer
KINDS = ("tools", "resources", "prompts")
_QUOTED = re.compile(r"\A(Failed to parse (?:SSE message|JSON response)):.*", re.DOTALL)


class Session:
    """One client, which starts to open at once. `on_tools_changed` is called when the server reports changed tools."""

    def __init__(
        self, config: ServerConfig, make_client: MakeClient, on_tools_changed: Callable[[], object], redactor: Redactor
    ) -> None:
        self._closing = asyncio.Event()
        self.health = Health(self._closing.set, redactor)
        self.client: Client | None = None
        #: how the server describes itself; for other threads, which must not use the client
        self.about: dict[str, Any] = {}
        #: the revision of the protocol that was negotiated
        self.revision = ""
        self.failure: BaseException | None = None
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.opened.add_done_callback(retrieve)
        self._config = config
        self._on_tools_changed = on_tools_changed
        self._listeners: list[Emit] = []
        self._scope = anyio.CancelScope()
        self.task = asyncio.create_task(self._run(make_client))

    @property
    def is_alive(self) -> bool:
        """Whether it is opening or open."""
        return not self._closing.is_set()

    @property
    def is_usable(self) -> bool:
        return self.client is not None and self.is_alive

    def end(self) -> None:
        self._closing.set()
        if self.client is None:
            self._scope.cancel()  # while it is opening, nothing waits for the event

    async def _run(self, make_client: MakeClient) -> None:
        refusals.set(self.health.statuses)
        hiding.set(self.health.redactor.text)
        try:
            with self._scope:
                async with make_client(self) as client, self._following(client):
                    # the SDK would validate on the event loop and without limits; `dispatch` does it instead
                    client.session.validate_tool_result = _accept  # type: ignore[method-assign, assignment]
                    self.health.statuses.clear()  # negotiating the revision may have caused some
                    self.about, self.revision = _introduction(client), client.protocol_version
                    self.client = client
                    self.opened.set_result(None)
                    await self._closing.wait()
        except Exception as error:  # noqa: BLE001 - kept as the reason why the session ended
            self.failure = error
        finally:
            self._closing.set()
            if not self.opened.done():
                self.opened.set_exception(self.failure or ConnectionError("the connection was closed"))

    @asynccontextmanager
    async def _following(self, client: Client) -> AsyncGenerator[None]:
        """In this block, listens for changed tools. Since revision 2026-07-28, servers report them only on request."""
        tools = client.server_capabilities.tools
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or tools is None or not tools.list_changed:
            yield
            return

        async def follow() -> None:
            while True:
                with suppress(Exception):  # servers, and proxies in between, end such streams
                    async with client.listen(tools_list_changed=True) as changes:
                        async for _ in changes:
                            self._on_tools_changed()
                self._on_tools_changed()  # until the server is asked again, it reports no changes
                await asyncio.sleep(LISTEN_AGAIN_SECONDS)
                self._on_tools_changed()

        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            yield
            group.cancel_scope.cancel()

    def is_lost(self, error: Exception) -> bool:
        """Whether an error means that this session cannot be used any more."""
        return not self.is_alive or (isinstance(error, MCPError) and error.code == mcp_types.CONNECTION_CLOSED)

    def is_forgotten(self, error: Exception, statuses: list[int]) -> bool:
        """Whether the error means that a restarted server does not know this session any more.

        Since revision 2026-07-28 there are no such sessions.
        """
        if self._config.transport != "streamable_http" or not isinstance(error, MCPError) or not statuses:
            return False
        return self.revision not in MODERN_PROTOCOL_VERSIONS and statuses[-1] in UNKNOWN_SESSION

    @contextmanager
    def logging_to(self, emit: Emit) -> Iterator[None]:
        """Emits all log messages of the server during the block, since they do not say which call they belong to."""
        self._listeners.append(emit)
        try:
            yield
        finally:
            self._listeners.remove(emit)

    async def on_log(self, params: mcp_types.LoggingMessageNotificationParams) -> None:
        event = {
            "mcp": "log", "server": self._config.name, "level": params.level, "logger": params.logger,
            "data": params.data,
        }
        for emit in list(self._listeners):
            emit(event)

    async def on_message(self, message: object) -> None:
        if isinstance(message, mcp_types.ToolListChangedNotification):
            self._on_tools_changed()


async def _accept(*_: object) -> None:
    """Accepts any result of a tool."""


def _introduction(client: Client) -> dict[str, Any]:
    offers = client.server_capabilities
    about: dict[str, Any] = {"offers": [kind for kind in KINDS if getattr(offers, kind) is not None]}
    if client.server_info is not None:
        about["title"] = client.server_info.title or client.server_info.name
    if client.instructions:
        about["instructions"] = client.instructions
    return about


def retrieve(future: asyncio.Future[None]) -> None:
    """Marks an exception as retrieved, so that asyncio does not warn about it; the session has it, too."""
    if not future.cancelled():
        future.exception()


def reason_of(error: BaseException, hide: Callable[[str], str]) -> str:
    """The reason for a failure, without secrets. The SDK wraps errors in groups, and some errors have no text."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    faults_of = getattr(error, "errors", None)  # pydantic's; its text would quote the data, perhaps half a secret
    if callable(faults_of):
        faults = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in faults_of(include_input=False)[:3]]
        return "its answer does not follow the protocol: " + hide("; ".join(faults))[:300]
    text = str(error).strip()
    # the SDK also quotes the data, in the text of its own error
    reason = TOO_DEEP if "recursion limit" in text else "it does not follow the protocol"
    text = hide(_QUOTED.sub(rf"\1: {reason}", text)) or type(error).__name__
    # of other errors only the first line, because the rest is advice for programmers
    return text if isinstance(error, (MCPError, McpError)) else text.partition("\n")[0]
