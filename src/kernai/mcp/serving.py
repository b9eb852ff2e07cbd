"""`serve`: skills, or an agent, as an MCP server for any MCP client. See docs/mcp.md.

`serving_tools` finds and describes the tools and performs the calls; `serving_transports` serves stdio and HTTP. The
official SDK implements the protocol itself.
"""

from __future__ import annotations

import sys
from asyncio.events import _get_running_loop
from collections.abc import Callable, Iterable
from functools import partial
from inspect import signature
from typing import Literal, Self, TypedDict, Unpack

from kernai._util.api import check_type
from kernai.mcp.errors import checked_options
from kernai.mcp.serving_tools import AgentAs, Source, Tools
from kernai.mcp.serving_transports import Address, Serving, serve_http, serve_stdio
from kernai.values.context import Context

_HTTP_OPTIONS = signature(Address).parameters


class ServeOptions(TypedDict, total=False):
    """The options of a server. All are optional.

    - `name`, `version`, `instructions`: how the server describes itself; `instructions` are for the client's model.
    - `agent_as`: how an `Agent` is served, as ``"tool"`` (one tool with ``input: str``) or as its ``"skills"``.
    - `description`: the description of that one tool.
    - `context`: a function that makes the `Context` of each call, for skills that read your own state from it.
    - `max_workers`: how many sync skills run at the same time; further calls wait.

    Only for HTTP:

    - `host`: ``"127.0.0.1"`` by default. A host that other machines can reach needs a `token`.
    - `port`: 8000 by default; 0 takes any free port. `path`: ``"/mcp"`` by default.
    - `token`: if set, requests need ``Authorization: Bearer TOKEN``.
    - `allowed_hosts`: further names of this server, for example behind a proxy.
    - `allowed_origins`: origins of web pages that may use the server, such as ``"https://app.example.org"``.
    """

    name: str | None
    version: str | None
    instructions: str | None
    agent_as: AgentAs
    description: str | None
    context: Callable[[], Context] | None
    max_workers: int
    host: str
    port: int
    path: str
    token: str | None
    allowed_hosts: Iterable[str]
    allowed_origins: Iterable[str]


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
    check_type(on_ready, Callable | None, "on_ready must be a function of the URL")
    given = checked_options(options, ServeOptions, "transport", "on_ready")
    if transport != "stdio":
        Server(source, **options).run(on_ready or _show)
        return
    only_http = [*filter(options.__contains__, _HTTP_OPTIONS), *(["on_ready"] if on_ready is not None else [])]
    if only_http:
        raise ValueError(
            f"{only_http[0]} is for transport='http': over stdio the only client is the process that started the server"
        )
    Serving(partial(serve_stdio, Tools(source, **given))).serve_to_end()


class Server(Serving):
    """Serves over HTTP in a background thread: ``with Server(skills, port=0) as server: connect(server.url)``.

    Takes the arguments of `serve`, except `transport` and `on_ready`. `stop`, or the end of the block, cancels running
    calls, frees the port and ends the thread. A server can be started only once.
    """

    def __init__(self, source: Source, **options: Unpack[ServeOptions]) -> None:
        given = checked_options(options, ServeOptions)
        self._address = Address(**{key: given.pop(key) for key in _HTTP_OPTIONS if key in given})
        super().__init__(partial(serve_http, Tools(source, **given), self._address))

    @property
    def url(self) -> str:
        """The URL that clients connect to. Raises `RuntimeError` before `start`."""
        if self._address.url is None:
            raise RuntimeError("the server has no URL before it is started: use it in a with block, or call start()")
        return self._address.url

    def start(self) -> Self:
        """Listens, and starts the thread that serves. Raises `OSError` if the address cannot be used."""
        if self._address.url is not None:
            raise RuntimeError("a Server can be started only once; create another one")
        self._address.listen()
        return super().start()

    def run(self, on_ready: Callable[[str], object]) -> None:
        """Serves until Ctrl-C, SIGTERM, or `stop` in another thread. Calls `on_ready` with the URL."""
        self.serve_to_end(lambda: on_ready(self.url))  # clients can connect already: the socket is listening

    def __repr__(self) -> str:
        return f"Server({self._address.url or 'not started'})"


def _show(url: str) -> None:
    print(f"kernai: MCP server at {url}", file=sys.stderr, flush=True)  # noqa: T201 - the program's own message
