"""`Adapter`: a set of servers as one protocol, made by `setup` or `load` and ended by `shutdown`."""

from __future__ import annotations

import asyncio
import atexit
import dataclasses
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import CancelledError
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, Self, TypedDict, Unpack

import httpx2
import mcp_types
from mcp import Client, MCPError
from mcp.client.session import ClientResponse
from mcp.server import Server
from mcp.server.mcpserver import MCPServer

from kernai import Block, Protocol, RunCancelledError, Skill, SkillContext, __version__
from kernai._util.api import check_texts, check_type, is_async, likely
from kernai._util.worker_pool import WorkerPool, in_worker, outcome_of
from kernai.drivers.background_loop import BackgroundLoop
from kernai.errors import Control
from kernai.loop.effects import Cancelled
from kernai.mcp.configuration import ServerConfig, read_file, read_servers
from kernai.mcp.connection import CLOSING_SECONDS, Connection, Session
from kernai.mcp.dispatch import Dispatch, Work
from kernai.mcp.errors import McpClosedError, McpConfigError, McpError, check_options
from kernai.mcp.interaction import TasksExtension
from kernai.mcp.language import Returned, documentation
from kernai.mcp.tool_skills import tool_skill
from kernai.mcp.transports import transport_of, watched
from kernai.registry.protocol_registry import REGISTRY

#: What `client=` may have for a server: an in-memory server of the SDK, a client that has not been entered, or a
#: function without arguments that makes one of these, or a transport, each time the server is started.
Source = Server[Any] | MCPServer | Client | Callable[[], Any]
_OBJECTS = (Server, MCPServer, Client)
#: a sampling or elicitation callback, sync or async, called with the SDK's arguments ``(context, params)``
Callback = Callable[[Any, Any], Any]

_LOG = logging.getLogger("kernai.mcp")

# A library must not print. Without a handler, logging's last resort would print the warnings of the SDK's modules.
for _name in ("mcp", "client"):
    logging.getLogger(_name).addHandler(logging.NullHandler())


class Adapter:
    """MCP servers as one protocol, made by `setup` and `load`. A context manager that shuts down when the block ends.

    Thread-safe, and usable by sync and async runs at the same time. Nothing is started before the first request.

    Its clients are opened, used and closed on one event loop in its own thread, whichever thread calls, even if that
    thread runs its own loop (as in a notebook). After `shutdown`, neither the thread nor the loop is left.
    """

    #: for ``Agent(protocols=[adapter.protocol])``, which needs no registry
    protocol: Protocol

    def __init__(self, servers: Mapping[str, ServerConfig], sources: Mapping[str, Source], options: Options) -> None:
        elicitation = options.get("elicitation")
        self._pauses = elicitation == "pause"
        asked = {"sampling": options.get("sampling"), "elicitation": _decline if self._pauses else elicitation}
        pool, auth, name = WorkerPool(), options.get("auth") or {}, options.get("name", "mcp")
        callbacks = {
            f"{kind}_callback": _as_async(kind, one, pool) if callable(one) else None for kind, one in asked.items()
        }
        self._loop = BackgroundLoop("kernai-mcp")
        self._process = os.getpid()
        self._connections = {
            one: Connection(config, partial(_new_client, config, sources.get(one), auth.get(one), callbacks))
            for one, config in servers.items()
        }
        self.protocol = Protocol(name, self._handle, documentation(name, servers), by_name=True)
        _ADAPTERS[self] = None

    @property
    def servers(self) -> tuple[str, ...]:
        """The names of the configured servers."""
        return tuple(self._connections)

    def skills(
        self,
        server: str,
        *,
        only: Iterable[str] | None = None,
        prefix: str = "",
        trusted: Mapping[str, Iterable[str]] | None = None,
        acts: Iterable[str] = (),
    ) -> list[Skill]:
        """Returns the tools of one server as skills: ``Agent(skills=[count_stock, *adapter.skills("files")])``.

        Starts the server if necessary and lists its tools; later changes of a tool do not change its skill. `only`
        selects tools by name. `prefix` is prepended to the names, in case two servers have a tool of the same name.

        `trusted` lists, for each tool, the inputs whose values must come from the user, as `Trusted` marks them.
        `acts` lists the tools whose effects others feel; see docs/security.md. From then on, such tools can be called
        only as skills: the protocol refuses to call them.

        Raises `McpConfigError` for a server, tool or input that does not exist, and for a tool whose schema cannot be a
        skill's; another `McpError` if the server cannot list its tools. This method blocks: in async code, call it with
        `asyncio.to_thread`.
        """
        if server not in self.servers:
            others = likely(server, self._connections, "the servers are:")
            raise McpConfigError(f"there is no server {server!r}{others}")
        given = check_type({} if trusted is None else trusted, Mapping, "trusted must be a mapping from tools to lists "
                           "of inputs", ": write trusted={'TOOL': ['INPUT']}")
        marked = {name: check_texts(f"trusted[{name!r}]", inputs, "names") for name, inputs in given.items()}
        acting = check_texts("acts", acts, "names")
        tools = self._dispatch(SkillContext(None)).tools_of(server)
        wanted = list(tools) if only is None else check_texts("only", only, "names")
        for name in (*wanted, *marked, *acting):
            if name not in tools:
                raise McpConfigError(f"server {server!r} has no tool {name!r}; it has {', '.join(tools) or 'none'}")
            if name not in wanted:
                raise McpConfigError(f"the tool {name!r} is marked by trusted= or acts=, but only= leaves it out")

        def perform(name: str, arguments: Mapping[str, Any], context: SkillContext[Any]) -> Returned:
            return self._dispatch(context).call(server, name, arguments)

        made = {
            name: tool_skill(server, tools[name], perform, prefix, marked.get(name, ()), acts=name in acting)
            for name in wanted
        }
        self._connections[server].guarded |= {name: one.name for name, one in made.items() if one.is_guarded}
        return list(made.values())

    def shutdown(self) -> None:
        """Ends all servers and connections, and their thread. May be called again.

        Also called at the interpreter's exit. Later requests raise `McpClosedError`.
        """
        _ADAPTERS.pop(self, None)
        if REGISTRY.find(self.protocol.name) is self.protocol:
            REGISTRY.unregister(self.protocol.name)
        if not self._is_of_parent:
            self._loop.close(CLOSING_SECONDS + 2, self._close_all)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"Adapter(servers={list(self._connections)})"

    def _handle(self, block: Block, context: SkillContext[Any]) -> Returned:
        return self._dispatch(context).answer(block.content)

    def _dispatch(self, context: SkillContext[Any]) -> Dispatch:
        self._check()
        return Dispatch(self._connections, partial(self._run, context), context, self._pauses)

    @property
    def _is_of_parent(self) -> bool:
        """Whether it belongs to the parent process. A forked child cannot use it."""
        return os.getpid() != self._process

    def _check(self) -> None:
        if self._loop.closed:
            raise McpClosedError("the MCP adapter has been shut down; build a new one with kernai.mcp.setup")
        if self._is_of_parent:
            raise McpClosedError("the MCP adapter belongs to the parent process; build a new one after forking")

    def _run(self, context: SkillContext[Any], work: Work) -> Any:
        """Performs `work` on the event loop and waits for it. Its events are emitted by `context`, in this thread.

        Ctrl-C in this thread, or the cancellation of its run, cancels the work. Raises `McpClosedError` after
        `shutdown`.
        """
        self._check()  # it may have been shut down since the last request to a server
        if self._loop.serves_here():
            raise McpError(
                "an MCP request on the thread that serves MCP would wait for itself forever; "
                "in a sampling or elicitation callback use 'def' in place of 'async def', or await arun(...)"
            )
        inbox: SimpleQueue[dict[str, Any]] = SimpleQueue()

        def must_stop() -> bool:  # called again and again by the waiting thread
            while not inbox.empty():
                context.emit(inbox.get())
            return context.cancelled

        try:
            return self._loop.run(work(inbox.put), must_stop)
        except Cancelled:
            raise RunCancelledError("the run was cancelled") from None
        except (CancelledError, asyncio.CancelledError):
            raise McpClosedError("the MCP adapter was shut down during this request, which may take effect") from None
        finally:
            must_stop()  # emits the last events

    async def _close_all(self) -> None:
        await asyncio.gather(*(one.close() for one in self._connections.values()), return_exceptions=True)


class Options(TypedDict, total=False):
    """The options of `setup` and `load`.

    - `name`: the protocol's name, ``"mcp"`` by default.
    - `register`: whether to register the protocol in `kernai.protocols`, for ``Agent(protocols=["mcp"])``; True by
      default. It is an error if the name is already taken.
    - `sampling`, `elicitation`: callbacks for a server that asks for a model's answer, or for input from the user. They
      are called with the SDK's ``(context, params)``; sync ones run in a thread. Without a callback, the server gets an
      error. ``elicitation="pause"`` pauses the call instead, so that a person can answer later:
      ``approvals={call_id: {"answer": {...}}}``. That needs a store, and a server of revision 2026-07-28.
    - `auth`: how to sign in, by server: an `httpx2.Auth`, such as the SDK's `OAuthClientProvider` with your own store
      for tokens.
    """

    name: str
    register: bool
    sampling: Callback | None
    elicitation: Callback | Literal["pause"] | None
    auth: Mapping[str, httpx2.Auth] | None


def setup(
    mapping: Mapping[str, Any], client: Mapping[str, Source] | None = None, **options: Unpack[Options]
) -> Adapter:
    """Makes an `Adapter` for the servers in a mapping with the key ``servers`` (or ``mcpServers``); starts nothing yet.

    `client` has further servers by name: an in-memory server of the SDK, a client that has not been entered, or a
    function that makes one. `Options` describes the other options. Raises `McpConfigError`, a ValueError that names the
    server, the key and the fix, and `TypeError` for a wrong option.
    """
    check_options(options, Options, "client")
    for asked, other in (("sampling", ""), ("elicitation", " or 'pause'")):
        callback = options.get(asked)
        if callback is not None and not callable(callback) and not (other and callback == "pause"):
            raise TypeError(f"{asked} must be a function of (context, params){other}, got {callback!r}")
    sources = check_type({} if client is None else client, Mapping, "client must be a mapping from server names to "
                         "servers or clients", ": write client={'NAME': it}")
    for name, source in sources.items():
        check_type(source, (*_OBJECTS, Callable), f"client[{name!r}] must be an SDK server, an SDK client that was not "
                                                  "entered, or a function that makes one")
    servers = read_servers(mapping, sources)
    auth = check_type(options.get("auth") or {}, Mapping, "auth must be a mapping from server names to httpx2.Auth")
    for name, one in auth.items():
        check_type(one, httpx2.Auth, f"auth[{name!r}] must be an httpx2.Auth, such as the SDK's OAuthClientProvider")
        if name not in servers or servers[name].url is None:
            raise McpConfigError(f"auth[{name!r}]: there is no server with a url of that name")
    if not options.get("register", True):
        return Adapter(servers, sources, options)
    name = options.get("name", "mcp")
    with _REGISTERING:
        taken = REGISTRY.find(name)
        # a forked child may replace an adapter of its parent
        inherited = [one.protocol for one in list(_ADAPTERS) if one._is_of_parent]  # noqa: SLF001 - of this module
        if taken is not None and taken not in inherited:
            raise McpConfigError(
                f"there is a protocol {name!r} already in kernai.protocols: shut that one down, give this one another "
                f"name (name='{name}-2'), or keep it out of the registry (register=False) and pass adapter.protocol"
            )
        adapter = Adapter(servers, sources, options)
        REGISTRY.register(adapter.protocol)
    return adapter


def load(
    path: str | os.PathLike[str], client: Mapping[str, Source] | None = None, **options: Unpack[Options]
) -> Adapter:
    """Like `setup`, for a YAML, JSON or TOML file, depending on its ending. Errors also name the file."""
    try:
        return setup(read_file(path), client, **options)
    except McpConfigError as error:
        raise McpConfigError(f"{Path(path)}: {error}") from None


def shutdown() -> None:
    """Shuts down every adapter that is still open."""
    for adapter in list(_ADAPTERS):
        adapter.shutdown()


atexit.register(shutdown)

# open adapters, in order; needs no lock, because each use is a single operation on a dictionary
_ADAPTERS: dict[Adapter, None] = {}
_REGISTERING = threading.Lock()


def _new_client(
    config: ServerConfig, source: Source | None, auth: httpx2.Auth | None, callbacks: Mapping[str, Any],
    session: Session,
) -> Client:
    async def list_roots(_: Any) -> mcp_types.ListRootsResult:
        return mcp_types.ListRootsResult.model_validate({"roots": config.roots})

    found: Any = source
    if not isinstance(source, _OBJECTS):
        found = transport_of(config, session, auth) if source is None else source()
    if not isinstance(found, _OBJECTS):
        found = watched(found, session)
    # a `Connection` keeps the listing of tools; servers of revision 2026-07-28 send logs only to clients that ask
    client = found if isinstance(found, Client) else Client(
        found, mode=session.mode, cache=None, log_level="info",
        client_info=mcp_types.Implementation(name="kernai", version=__version__),
    )
    ours = {
        **callbacks, "extensions": (TasksExtension(),), "list_roots_callback": list_roots if config.roots else None,
        "logging_callback": session.on_log, "message_handler": session.on_message,
    }
    given = {name: one if getattr(client, name) is None else getattr(client, name) for name, one in ours.items()}
    given |= {name: session.asking(given[name]) for name in callbacks if given[name] is not None}
    return dataclasses.replace(client, **given)  # a client can be entered only once, so each start needs a copy


def _as_async(kind: str, callback: Callback, pool: WorkerPool) -> Callable[[Any, Any], Awaitable[Any]]:
    """Makes a callback the async function that the SDK needs. A sync callback runs in a thread, so it may block.

    If it fails, the server reads the exception's class, and the log has the exception.
    """
    async def answer(context: Any, params: Any) -> Any:
        made = partial(callback, context, params)
        value = await (made() if is_async(callback) else in_worker(pool, made))
        return ClientResponse.validate_python(await value if hasattr(value, "__await__") else value)

    async def call(context: Any, params: Any) -> Any:
        value, error = await outcome_of(answer(context, params))
        if error is None:
            return value
        if isinstance(error, (Control, MCPError)):
            raise error
        failure = f"the client's {kind} callback failed with {type(error).__name__}"
        _LOG.error("%s", failure, exc_info=error)
        return mcp_types.ErrorData(code=mcp_types.INTERNAL_ERROR, message=failure)

    return call


def _decline(*_: object) -> mcp_types.ElicitResult:
    """The callback for "pause": a server of an older revision waits during its call, and a person may take days."""
    return mcp_types.ElicitResult(action="decline")
