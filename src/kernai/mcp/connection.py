"""`Connection`: one server, opened on first use, kept open, and restarted after it died. For the event loop only.

A `Session` is one client of the SDK, in a single task, because the SDK's task groups require that. Each request runs in
its own task, so callers do not wait for one another.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import anyio
import httpx2
import mcp_types
from mcp import Client, MCPError
from mcp_types import Tool
from mcp_types.methods import validate_server_result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from kernai._util.network import origin_of
from kernai._util.redaction import Redactor
from kernai.mcp.configuration import ServerConfig, redactor_of
from kernai.mcp.errors import McpClosedError, McpError, McpUnavailableError
from kernai.mcp.schemas import one_line
from kernai.mcp.transports import HttpState, StderrTail, status_text, talking, why_unreadable

Answer = TypeVar("Answer")
#: emits an event
Emit = Callable[[dict[str, Any]], object]
#: seconds for a transport to close: the SDK gives a process about 6.5 seconds
CLOSING_SECONDS = 8.0
#: seconds to find out why a session ended
REASON_SECONDS = 1.0
#: seconds for which a server that failed is not asked by requests that do not name it
AVOIDED_SECONDS = 30.0
#: seconds until a server that has stopped reporting changed tools is asked again to report them
LISTEN_AGAIN_SECONDS = 10.0
MAX_PAGES = 100
NOISE_CHARACTERS = 120
#: The HTTP statuses for a session that the server does not know any more: 404 in the specification (2025-11-25, basic,
#: transports, "Session Management"), 400 from the reference servers. In both cases the request was not executed.
UNKNOWN_SESSION = (400, 404)
#: the statuses of a server that speaks the other transport over HTTP (basic, transports, "Backwards Compatibility")
OTHER_TRANSPORT = (400, 404, 405)
#: None, for an error that no server sent; and the codes with which a server that knows the session refuses a request
KNOWN_SESSION = (None, mcp_types.INVALID_PARAMS, mcp_types.METHOD_NOT_FOUND)
#: the codes of an answer that cannot be read: the server may have done what it was asked to do. Without an HTTP error,
#: INVALID_REQUEST is the SDK's own code for an answer that is neither JSON nor events
UNREADABLE = (None, mcp_types.PARSE_ERROR, mcp_types.INVALID_REQUEST)
IN_DOUBT = ". Nobody knows whether this call took effect: check that before you repeat it"
#: seconds that the SDK waits for a server's revision before it tries the handshake
DISCOVERY_SECONDS = 10.0
#: the protocol's names for what a server may offer
KINDS = ("tools", "resources", "prompts")
#: the parts of a tool's definition that a model or a policy may rely on
_DEFINING = {"title", "description", "input_schema", "output_schema", "annotations"}
_QUOTED = re.compile(r"\A(Failed to parse (?:SSE message|JSON response)):.*", re.DOTALL)
_LOG = logging.getLogger("kernai.mcp")


class Listing(NamedTuple):
    """What a server has of one kind, by name or URI."""

    found: Mapping[str, Any] = {}
    #: whether there are more pages than `MAX_PAGES`
    is_cut: bool = False
    #: the names of tools that may not be called
    refused: Collection[str] = ()


class Attempt(HttpState):
    """One attempt at a request, with its timeout."""

    def __init__(self, session: Session, emit: Emit, seconds: float) -> None:
        super().__init__(session.redactor)
        self.session = session
        self._emit = emit
        self.timeout = asyncio.timeout(seconds)
        self._seconds = seconds

    def emit(self, kind: str, **data: Any) -> None:
        self._emit(self.redactor.data({"mcp": kind, "server": self.session.name, **data}))

    def extend(self, *, without_end: bool = False) -> None:
        """Restarts the timeout; with `without_end`, suspends it until the next call of this method."""
        if not self.timeout.expired():
            now = asyncio.get_running_loop().time()
            self.timeout.reschedule(None if without_end else now + self._seconds)


#: sends a request and returns its answer
Ask = Callable[[Attempt], Awaitable[Answer]]
#: answers what a server asks, with the SDK's arguments
Callback = Callable[..., Awaitable[Any]]
#: makes the SDK's client of a session
MakeClient = Callable[["Session"], Client]


class Session(HttpState):
    """One client, which starts to open at once. Its `failure`, if any, is why it could not be opened, or has ended."""

    def __init__(self, name: str, make_client: MakeClient, redactor: Redactor, mode: str) -> None:
        super().__init__(redactor)
        #: how the SDK finds out the revision
        self.mode = mode
        #: the SDK's client, once it is open
        self.client: Client
        #: whether it has been opened; it may have ended since
        self.is_open = False
        #: set when the client is open, or could not be opened
        self.opened = asyncio.Event()
        #: set when nothing more will be received from the server, or the session is to end
        self.end_reached = asyncio.Event()
        #: the first output of each kind that answers no request: it may have been the answer that is missing
        self.noise: dict[str, str] = {}
        self.stderr = StderrTail(redactor.text)
        #: how the server describes itself; for other threads, which must not use the client
        self.about: dict[str, Any] = {}
        #: whether it speaks revision 2026-07-28 or later
        self.is_modern = False
        #: how often its tools may have changed, and how often they had when the last listing was asked for
        self.changes = 0
        self.changes_listed: int | None = None
        self.name = name
        #: the requests that wait for an answer
        self.attempts: set[Attempt] = set()
        self._asking = 0  # how many callbacks are running
        self._scope = anyio.CancelScope()
        self.task = asyncio.create_task(self._run(make_client))

    @property
    def is_usable(self) -> bool:
        return self.is_open and not self.end_reached.is_set()

    def note(self, kind: str, text: str) -> None:
        self.noise.setdefault(kind, f"{kind}: {self.redactor.text(text)[:NOISE_CHARACTERS]!r}")

    def sift(self, result: dict[str, Any]) -> None:
        """Removes what is invalid from a listing, because the SDK would refuse all of it."""
        for key in {*KINDS, "resourceTemplates"} & result.keys() if self.is_open else ():
            method = "resources/templates/list" if key == "resourceTemplates" else f"{key}/list"
            try:
                validate_server_result(method, self.client.protocol_version, result)
            except ValidationError as error:
                wrong = {one["loc"][1] for one in error.errors() if one["loc"][:1] == (key,) and len(one["loc"]) > 1}
                reason = reason_of(error, self.redactor.text)
                for at in sorted(wrong, reverse=True):
                    shown = self.redactor.text(json.dumps(result[key].pop(at)))
                    _LOG.warning("server %r: %s. This is left out: %.500s", self.name, reason, shown)

    def end(self) -> None:
        self.end_reached.set()
        if not self.is_open:
            self._scope.cancel()  # while it is opening, nothing waits for the event

    async def _run(self, make_client: MakeClient) -> None:
        talking.set(self)
        try:
            with self._scope:
                async with make_client(self) as client, anyio.create_task_group() as group:
                    self.is_modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
                    info, offers = client.server_info, client.server_capabilities
                    about = {
                        "offers": [kind for kind in KINDS if getattr(offers, kind) is not None],
                        "title": info and (info.title or info.name), "instructions": client.instructions or None,
                    }
                    self.about = {key: one for key, one in about.items() if one is not None}
                    self.client, self.is_open = client, True
                    self.opened.set()
                    group.start_soon(self._follow, client)
                    await self.end_reached.wait()
                    group.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - kept as the reason why the session ended
            self.failure = self.failure or error
        finally:
            self.end_reached.set()
            self.opened.set()

    async def _follow(self, client: Client) -> None:
        """Listens for changed tools. Since revision 2026-07-28, servers report them only on request."""
        tools = client.server_capabilities.tools
        while self.is_modern and tools is not None and tools.list_changed:
            with suppress(Exception):  # servers, and proxies in between, end such streams
                async with client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        self.changes += 1
            self.changes += 1  # until the server is asked again, it reports no changes
            await asyncio.sleep(LISTEN_AGAIN_SECONDS)
            self.changes += 1

    def asking(self, callback: Callback) -> Callback:
        """The callback for what the server asks. No request times out meanwhile; one of them waits for its answer."""
        async def call(*given: Any) -> Any:
            self._asking += 1
            for one in self.attempts:
                one.extend(without_end=True)
            try:
                return await callback(*given)
            finally:
                self._asking -= 1
                for one in self.attempts if not self._asking else ():
                    one.extend()

        return call

    async def on_log(self, params: mcp_types.LoggingMessageNotificationParams) -> None:
        """Emits a log message for each request under way: the server does not say which one it belongs to."""
        for one in self.attempts:
            one.emit("log", level=params.level, logger=params.logger, data=params.data)

    async def on_message(self, message: object) -> None:
        if isinstance(message, mcp_types.ToolListChangedNotification):
            self.changes += 1


class Connection:
    """One server. Handles any number of requests at the same time."""

    def __init__(self, config: ServerConfig, make_client: MakeClient) -> None:
        self.config = config
        self.name = config.name
        self.redactor = redactor_of(config)
        #: the tools as last listed. Replaced as a whole on the event loop, so any thread may read it
        self.tools = Listing()
        #: tools that may be called only as skills: the skill's name by tool
        self.guarded: dict[str, str] = {}
        #: the tools as they were first listed
        self._first: dict[str, Tool] = {}
        self._make_client = make_client
        self._session: Session | None = None
        self._mode = "auto"
        self._sessions: set[Session] = set()  # including those that are closing
        self._closed = False
        self._failure: tuple[float, McpUnavailableError] | None = None

    @property
    def has_listed(self) -> bool:
        """Whether `tools` is up to date, as far as is known."""
        session = self._session
        return session is not None and session.is_usable and session.changes_listed == session.changes

    def about(self) -> dict[str, Any]:
        """What `servers/list` shows about this server. There is more to show if it is open."""
        session = self._session
        if session is None or not session.is_usable:
            return {"name": self.name, "open": False}
        return {"name": self.name, "open": True, **session.about}

    def emit_changes(self, tools: Iterable[Tool], emit: Emit) -> None:
        """Emits an event for each of the tools whose definition has changed since it was first listed."""
        for tool in tools:
            before, after = (
                one.model_dump(mode="json", by_alias=True, exclude_none=True, include=_DEFINING)
                for one in (self._first[tool.name], tool)
            )
            if changed := [key for key in before | after if before.get(key) != after.get(key)]:
                was, now = ({key: one.get(key) for key in changed} for one in (before, after))
                about = {"mcp": "tool_changed", "server": self.name, "tool": tool.name, "changed": changed}
                emit(self.redactor.data({**about, "before": was, "after": now}))

    async def list(self, emit: Emit, restarted: set[str], kind: str, *, is_named: bool) -> Listing | McpError:
        """Asks the server for everything it has of one kind.

        After a failure, only requests that name the server ask it for `AVOIDED_SECONDS`: one that hangs must not delay
        every request to all servers.
        """
        if not is_named and self._failure is not None and time.monotonic() < self._failure[0]:
            return McpError(f"{self._failure[1]}\nFor now it is asked only by requests that name it as their 'server'")
        what = "tools/list" if kind == "tools" else f"listing its {kind.replace('_', ' ')}"
        ask = self._list_tools if kind == "tools" else lambda attempt: every_page(attempt.session.client, kind)
        try:
            listed = await self.use(emit, restarted, ask, what=what, repeatable=True)
        except McpError as error:
            if isinstance(error, McpUnavailableError):
                self._failure = time.monotonic() + AVOIDED_SECONDS, error
            return error
        self._failure = None
        return listed

    async def _list_tools(self, attempt: Attempt) -> Listing:
        session, changes = attempt.session, attempt.session.changes
        listed, is_cut, _ = await every_page(attempt.session.client, "tools")
        # a tool that needs a task of revision 2025-11-25 cannot be called
        refused = {
            name for name, tool in listed.items() if not self.config.allows(name)
            or (not session.is_modern and tool.execution is not None and tool.execution.task_support == "required")
        }
        missing = sorted((self.config.tools or frozenset()) - listed.keys())
        if missing:
            _LOG.warning("server %r has no tools %s, which its configuration allows", self.name, missing)
        self._first = {**listed, **self._first}  # before other threads can find a tool, and ask whether it has changed
        self.tools = Listing({name: listed[name] for name in listed if name not in refused}, is_cut, refused)
        session.changes_listed = changes
        return self.tools

    async def use(self, emit: Emit, restarted: set[str], ask: Ask[Answer], *, what: str, repeatable: bool) -> Answer:
        """Runs `ask` with the server's client and returns its answer. Raises `McpError` if it fails.

        A server that has died is restarted and added to `restarted`, unless it is there already. If it died during
        `ask`, the request is sent again only if it is `repeatable`, because the first attempt may have taken effect.
        """
        while True:
            session = await self._open()
            attempt = Attempt(session, emit, self.config.timeout)
            talking.set(attempt)  # each request has a task, and a context of its own
            may_be_done = False
            try:
                if session.is_usable:
                    session.attempts.add(attempt)
                    async with attempt.timeout:
                        return await ask(attempt)
            except (McpError, asyncio.CancelledError):
                raise
            except Exception as error:  # noqa: BLE001 - any exception of a transport or server becomes an `McpError`
                may_be_done = self._lost(attempt, error, what, repeatable=repeatable)
            finally:
                session.attempts.discard(attempt)
                if session is not self._session:
                    self._end(session)
            reason = await self._end_failed(session)
            in_doubt, is_second = may_be_done and not repeatable, self.name in restarted
            if in_doubt or is_second:
                died = "was started again and died again" if is_second else "died"
                again = "starts it again" if self.config.url is None else "connects to it again"
                raise McpUnavailableError(
                    f"server {self.name!r} {died} during {what}: {reason}\nThe next call {again}"
                    f"{IN_DOUBT if in_doubt else '.'}"
                )
            restarted.add(self.name)
            emit({"mcp": "restart", "server": self.name, "error": reason})

    async def close(self) -> None:
        self._closed = True
        for session in self._sessions:
            session.end()
        if self._sessions:
            await asyncio.wait([session.task for session in self._sessions], timeout=CLOSING_SECONDS)

    async def _open(self) -> Session:
        """Returns the open session, or opens one. Concurrent callers share it, and it may die at any time."""
        if self._closed:
            raise McpClosedError("the MCP adapter has been shut down; build a new one with kernai.mcp.setup")
        session = self._session
        if session is None or (session.end_reached.is_set() and not session.is_open):
            session = self._session = Session(self.name, self._make_client, self.redactor, self._mode)
            self._sessions.add(session)
            session.task.add_done_callback(lambda _: self._sessions.discard(session))
        try:
            async with asyncio.timeout(self.config.timeout):
                await session.opened.wait()
        except TimeoutError:  # also the reason for callers who have waited less, because their session ends, too
            session.failure = session.failure or McpError(f"it did not answer within {self.config.timeout:g} s")
            self._end(session)
        else:
            if session.is_open:
                return session
        reason = await self._end_failed(session)
        # within a shorter timeout, the server may only have been silent about its revision
        is_over = isinstance(session.failure, McpError) and self.config.timeout > DISCOVERY_SECONDS
        gives_up = session.mode == "legacy" or self.config.transport != "stdio" or is_over
        self._mode = "auto" if gives_up else "legacy"
        if gives_up:
            other = "streamable_http" if self.config.transport == "sse" else "sse"
            seems_other = session.status in OTHER_TRANSPORT or "content type" in reason
            hint = f"; check its url, or set its transport to {other}" if seems_other else ""
            raise McpUnavailableError(f"server {self.name!r} cannot be reached: {reason.removesuffix('.')}{hint}")
        return await self._open()  # some servers, such as those of rmcp 1, end at the request for their revision

    def _lost(self, attempt: Attempt, error: Exception, what: str, *, repeatable: bool) -> bool:
        """Whether the request may have run before the connection was lost. Raises `McpError` if it was not lost."""
        session, status = attempt.session, attempt.status
        if attempt.timeout.expired():
            late = "; ".join([f"did not answer {what} within {self.config.timeout:g} s", *session.noise.values()])
            raise McpUnavailableError(f"server {self.name!r} {late}{'' if repeatable else IN_DOUBT}") from None
        code = error.code if isinstance(error, MCPError) else None
        # since revision 2026-07-28 there are no sessions that a restarted server could not know any more
        is_unknown = not session.is_modern and code not in KNOWN_SESSION and status in UNKNOWN_SESSION
        has_ended = session.end_reached.is_set()
        if is_unknown or has_ended or code == mcp_types.CONNECTION_CLOSED:
            if not has_ended:  # otherwise there may be a better reason
                session.failure = attempt.failure or session.failure or error
            is_unsent = isinstance(attempt.failure, (httpx2.ConnectError, httpx2.ConnectTimeout))
            return not is_unknown and (attempt.was_answered or not is_unsent)
        why = reason_of(attempt.failure or error, self.redactor.text) + (f" ({status_text(attempt)})" if status else "")
        is_answer = status < httpx2.codes.INTERNAL_SERVER_ERROR if status else code not in UNREADABLE
        if not (repeatable or is_answer):
            why = why.removesuffix(".") + IN_DOUBT
        raise McpError(f"server {self.name!r} failed at {what}: {why}") from None

    async def _end_failed(self, session: Session) -> str:
        """Ends a session that failed or was lost, and returns the reason, as far as it is known."""
        if session.failure is None:
            await asyncio.wait([session.task], timeout=REASON_SECONDS)
        self._end(session)
        reasons = [] if session.failure is None else [reason_of(session.failure, self.redactor.text)]
        reasons += [f"it answered with {status_text(session)}"] if session.status else []
        said = "\n".join(session.stderr.lines())
        reasons += [*session.noise.values(), *([f"its standard error ended with:\n{said}"] if said else [])]
        return "; ".join(reasons) or "it closed the connection"

    def _end(self, session: Session) -> None:
        """Ends the session as soon as none of its requests waits for an answer. Later requests open another one."""
        if self._session is session:
            self._session = None
        if not session.attempts:
            session.end()


async def every_page(client: Client, kind: str) -> Listing:
    """Fetches all pages of a listing; empty if the server does not offer this kind.

    After `MAX_PAGES` the listing is cut off, with a warning in the log, because it may never end.
    """
    if getattr(client.server_capabilities, "resources" if kind == "resource_templates" else kind) is None:
        return Listing()
    key = {"resources": "uri", "resource_templates": "uri_template"}.get(kind, "name")
    found: dict[str, Any] = {}
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await getattr(client, f"list_{kind}")(cursor=cursor)
        found |= {getattr(one, key): one for one in getattr(page, kind)}
        if page.next_cursor in (None, "", cursor):  # some servers send "", or the same again, with the last page
            return Listing(found)
        cursor = page.next_cursor
    _LOG.warning("a server has more %s than fit on %d pages: the rest is left out", kind.replace("_", " "), MAX_PAGES)
    return Listing(found, is_cut=True)


def reason_of(error: BaseException, hide: Callable[[str], str]) -> str:
    """The reason for a failure, without secrets. The SDK wraps errors in groups, and some errors have no text."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, httpx2.ConnectError):  # which says that all attempts have failed, not why
        error = origin_of(error)
    if isinstance(error, ValidationError):  # its text would quote the data, perhaps half a secret
        faults = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_input=False)[:3]]
        return "its answer does not follow the protocol: " + hide("; ".join(faults))[:300]
    text = str(error).strip()
    if isinstance(error, MCPError) and error.data:  # many servers write there what is wrong
        text = f"{text} {one_line(hide(json.dumps(error.data, ensure_ascii=False)), 500)}"
    # the SDK also quotes the data, in the text of its own error
    text = hide(_QUOTED.sub(rf"\1: {why_unreadable(text)}", text)) or type(error).__name__
    # of other errors only the first line, because the rest is advice for programmers
    return text if isinstance(error, (MCPError, McpError)) else text.partition("\n")[0]
