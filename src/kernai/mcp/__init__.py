"""MCP servers as a protocol: ``<block type="mcp">{"method": "tools/list"}</block>``.

An optional adapter on the official SDK, never imported by the core: ``pip install "kernai[mcp]"``. See docs/mcp.md.

`configuration` reads a configuration. `session` is the thread in which all clients live, and one client in it;
`connection` is one server, over `transports`, and `guard` the process beside a stdio server. `dispatch` answers a block
in the words of `language`, with `interaction` and `schemas`. `tool_skills` turns tools into skills. `adapter` puts it
together. `serving` is the other direction: skills as an MCP server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    from mcp import Client as _Client  # since version 2
except ImportError as error:
    raise ImportError(
        'kernai.mcp needs the official MCP SDK, version 2 or later: pip install "kernai[mcp]"', name="mcp"
    ) from error

from kernai.mcp.adapter import Adapter, load, setup, shutdown
from kernai.mcp.errors import McpClosedError, McpConfigError, McpError

if TYPE_CHECKING:
    from kernai.mcp.serving import serve

__all__ = ["Adapter", "McpClosedError", "McpConfigError", "McpError", "load", "serve", "setup", "shutdown"]

del _Client


if not TYPE_CHECKING:  # a type checker that sees it takes every name for one of this package

    def __getattr__(name: str) -> Any:
        if name == "serve":  # loads a web server, which a client has no use for
            from importlib import import_module

            return import_module("kernai.mcp.serving").serve
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
