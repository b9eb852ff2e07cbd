"""`Adapter`: a protocol over a set of servers, and `setup`, `load` and `shutdown` around it."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import mcp_types
from mcp import Client
from mcp.server import Server
from mcp.server.mcpserver import MCPServer

from kernai._util.callables import is_async
from kernai.blocks.block import Block
from kernai.mcp.background import Background
from kernai.mcp.configuration import ServerConfig, expanded, read_file, read_servers
from kernai.mcp.connection import CLOSING_SECONDS, Connection
from kernai.mcp.dispatch import Turn
from kernai.mcp.errors import McpConfigError
from kernai.mcp.rendering import Returned, returned
from kernai.mcp.requests import document
from kernai.mcp.session import Session
from kernai.mcp.tool_skills import tool_skill
from kernai.mcp.transports import Watched, opened
from kernai.registry.protocol_registry import REGISTRY, Protocol
from kernai.registry.skill_context import SkillContext
from kernai.registry.skill_definition import Skill

if TYPE_CHECKING:
    from typing import Self

#: what may be handed in for a server: an in-memory server of the SDK, a client that has not been entered, or a
#: function without arguments that makes one of these, or a transport, anew for each start
Source = Server[Any] | MCPServer | Client | Callable[[], Any]
#: a sampling or elicitation callback with the SDK's arguments, ``(context, params)``; sync ones run in a thread
Callback = Callable[[Any, Any], Any]

NAME = "mcp"

# a library prints nothing by itself: without these, logging's last resort would show what the SDK's modules warn of
for _name in ("mcp", "client"):
    logging.getLogger(_name).addHandler(logging.NullHandler())


class Adapter:
    """MCP servers as one protocol. Built by `setup` and `load`; a context manager that shuts down at its end.

    Thread-safe, and usable from sync and async runs at once. Nothing is started before the first request.
    """

    #: for ``Agent(protocols=[adapter.protocol])``; needs no registry
    protocol: Protocol

    def __init__(
        self,
        servers: Mapping[str, ServerConfig],
        sources: Mapping[str, Source],
        name: str = NAME,
        sampling: Callback | None = None,
        elicitation: Callback | None = None,
    ) -> None:
        self._servers = dict(servers)
        self._sources = dict(sources)
        self._callbacks = {"sampling_callback": sampling, "elicitation_callback": elicitation}
        self._background = Background(self.shutdown)
        self._connections: dict[str, Connection] | None = None
        self._connecting = threading.Lock()
        self.protocol = Protocol(name, self._handle, document(name, self._servers))
        with _ADAPTERS_LOCK:
            _ADAPTERS.append(self)

    @property
    def servers(self) -> tuple[str, ...]:
        """The names of the configured servers."""
        return tuple(self._servers)

    @property
    def is_of_parent(self) -> bool:
        """Whether it is of no use because this process was forked from the one that made it."""
        return self._background.is_of_parent

    def skills(self, server: str, *, only: Iterable[str] | None = None, prefix: str = "") -> list[Skill]:
        """The tools of one server, each as a skill: ``Agent(skills=[count_stock, *adapter.skills("files")])``.

        Starts the server and asks it what it has, once; a skill is what the tool was then. `only` names those that are
        wanted, and `prefix` goes before their names, which helps where two servers have a tool of one name.
        `McpConfigError` for a server or tool that is not there, and for a tool whose schema a skill cannot hold;
        another `McpError` where the server cannot be asked. It waits: in async code, call it with `asyncio.to_thread`.
        """
        if server not in self._servers:
            raise McpConfigError(f"there is no server {server!r}; the servers are: {', '.join(self._servers)}")
        if isinstance(only, str):
            raise TypeError(f"only must be a list of names: write only=[{only!r}]")
        tools = Turn(self._connected(), self._background, SkillContext(None)).tools_of(server)
        wanted = list(tools) if only is None else list(only)
        unknown = [name for name in wanted if name not in tools]
        if unknown:
            raise McpConfigError(f"server {server!r} has no tool {unknown[0]!r}; it has {', '.join(tools) or 'none'}")

        def perform(name: str, arguments: Mapping[str, Any], context: SkillContext[Any]) -> Returned:
            return returned(Turn(self._connected(), self._background, context).call(server, name, arguments))

        return [tool_skill(server, tools[name], perform, prefix) for name in wanted]

    def shutdown(self) -> None:
        """Ends every server and connection, and the thread they lived in. Doing it again does nothing.

        Also called at the interpreter's exit. What is asked of the adapter afterwards is an `McpClosedError`.
        """
        with _ADAPTERS_LOCK:
            if self in _ADAPTERS:
                _ADAPTERS.remove(self)
        if REGISTRY.find(self.protocol.name) is self.protocol:
            REGISTRY.unregister(self.protocol.name)
        self._background.close(self._close_all, CLOSING_SECONDS + 2)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"Adapter(servers={list(self._servers)})"

    def _handle(self, block: Block, context: SkillContext[Any]) -> Returned:
        return returned(Turn(self._connected(), self._background, context).answer(block.content))

    def _connected(self) -> dict[str, Connection]:
        """The connections; made on the event loop that they belong to, none of them opened yet."""
        async def make(_: object) -> dict[str, Connection]:
            return {name: Connection(config, self._maker(config)) for name, config in self._servers.items()}

        self._background.check()
        with self._connecting:
            if self._connections is None:
                self._connections = self._background.run(make)
            return self._connections

    async def _close_all(self) -> None:
        connections = (self._connections or {}).values()
        await asyncio.gather(*(one.close() for one in connections), return_exceptions=True)

    def _maker(self, config: ServerConfig) -> Callable[[Session], Client]:
        source = self._sources.get(config.name)
        options: dict[str, Any] = {
            name: _as_async(callback) for name, callback in self._callbacks.items() if callback is not None
        }
        if config.roots:
            options["list_roots_callback"] = _roots(config)

        def make(session: Session) -> Client:
            given = {**options, "logging_callback": session.on_log, "message_handler": session.on_message}
            if source is None:
                return _client(opened(config, session.health), given)
            found = source if isinstance(source, (Server, MCPServer, Client)) else source()
            if isinstance(found, Client):  # a client can be entered once, its copy once more
                kept = {name: value for name, value in given.items() if getattr(found, name) is None}
                return dataclasses.replace(found, **kept)
            if not isinstance(found, (Server, MCPServer)):
                found = _WatchedTransport(found, session)
            return _client(found, given)

        return make


def setup(
    mapping: Mapping[str, Any],
    client: Mapping[str, Source] | None = None,
    *,
    name: str = NAME,
    register: bool = True,
    sampling: Callback | None = None,
    elicitation: Callback | None = None,
) -> Adapter:
    """An `Adapter` for the servers of a mapping with the key ``servers`` (or ``mcpServers``); starts nothing yet.

    It is registered as the protocol `name` in `kernai.protocols`, unless `register` is False; a name that is taken is
    an error. `client` hands servers in by name: an in-memory server of the SDK, a client that was not entered, or a
    function that makes one. `sampling` and `elicitation` are called with the SDK's ``(context, params)`` when a server
    asks; without them it is declined. `McpConfigError`, a ValueError, names the server, the key and the fix.
    """
    sources = _checked_sources(client)
    for asked, callback in (("sampling", sampling), ("elicitation", elicitation)):
        if callback is not None and not callable(callback):
            raise TypeError(f"{asked} must be a function of (context, params), got {type(callback).__name__}")
    if sources and isinstance(mapping, Mapping) and not mapping:
        mapping = {"servers": {}}
    servers = read_servers(expanded(mapping, os.environ), frozenset(sources))
    for given in sources:
        servers.setdefault(given, ServerConfig(given))
    with _REGISTERING:
        if register:
            _check_free(name)
        adapter = Adapter(servers, sources, name, sampling, elicitation)
        if register:
            REGISTRY.register(adapter.protocol)
    return adapter


def load(
    path: str | os.PathLike[str],
    client: Mapping[str, Source] | None = None,
    *,
    name: str = NAME,
    register: bool = True,
    sampling: Callback | None = None,
    elicitation: Callback | None = None,
) -> Adapter:
    """`setup` from a YAML, JSON or TOML file, told apart by its ending; an error names the file too."""
    mapping = read_file(path)
    try:
        return setup(mapping, client, name=name, register=register, sampling=sampling, elicitation=elicitation)
    except McpConfigError as error:
        raise McpConfigError(f"{Path(path)}: {error}") from None


def shutdown() -> None:
    """Shuts every adapter down that is still open."""
    with _ADAPTERS_LOCK:
        adapters = list(_ADAPTERS)
    for adapter in adapters:
        adapter.shutdown()


_ADAPTERS: list[Adapter] = []
_ADAPTERS_LOCK = threading.Lock()
_REGISTERING = threading.Lock()


def _check_free(name: str) -> None:
    """`McpConfigError` where a protocol would be replaced; not where it came with a fork, and is of no use here."""
    taken = REGISTRY.find(name)
    inherited = [one.protocol for one in _ADAPTERS if one.is_of_parent]
    if taken is not None and taken not in inherited:
        raise McpConfigError(
            f"there is a protocol {name!r} already in kernai.protocols: shut that one down, give this one another name "
            f"(name='{name}-2'), or keep it out of the registry (register=False) and pass adapter.protocol to an Agent"
        )


def _checked_sources(client: Mapping[str, Source] | None) -> dict[str, Source]:
    if client is None:
        return {}
    if not isinstance(client, Mapping):
        raise TypeError(f"client must be a mapping from server names to servers or clients, got "
                        f"{type(client).__name__}: write client={{'NAME': it}}")
    for name, source in client.items():
        if not (isinstance(source, (Server, MCPServer, Client)) or callable(source)):
            raise TypeError(f"client[{name!r}] must be an SDK server, an SDK client that was not entered, or a "
                            f"function that makes one, got {type(source).__name__}")
    return dict(client)


def _client(server: Any, options: Mapping[str, Any]) -> Client:
    from kernai import __version__

    return Client(
        server,
        client_info=mcp_types.Implementation(name="kernai", version=__version__),
        log_level="info",  # since 2026-07-28 a server logs only for those who ask
        cache=None,  # the catalogue knows what it may keep
        **options,
    )


def _as_async(callback: Callback) -> Callable[[Any, Any], Awaitable[Any]]:
    """The callback as the SDK wants it; a sync one runs in a thread, so that it may take its time."""
    async def call(context: Any, params: Any) -> Any:
        if is_async(callback):
            return await callback(context, params)
        value = await asyncio.get_running_loop().run_in_executor(None, callback, context, params)
        return await value if inspect.isawaitable(value) else value

    return call


def _roots(config: ServerConfig) -> Callable[[Any], Awaitable[mcp_types.ListRootsResult]]:
    async def roots(_: Any) -> mcp_types.ListRootsResult:
        return mcp_types.ListRootsResult.model_validate(
            {"roots": [{"uri": uri, "name": name} for uri, name in config.roots]}
        )

    return roots


class _WatchedTransport:
    """A transport that the caller made, watched like those made here."""

    def __init__(self, transport: Any, session: Session) -> None:
        self._transport = transport
        self._life = session

    async def __aenter__(self) -> tuple[Any, Any]:
        incoming, outgoing = await self._transport.__aenter__()
        return Watched(incoming, self._life.health), outgoing

    async def __aexit__(self, *error: object) -> Any:
        return await self._transport.__aexit__(*error)
