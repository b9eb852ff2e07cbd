"""MCP servers as a protocol: ``<block type="mcp">{"method": "tools/list"}</block>``.

An optional adapter built on the official SDK, never imported by the core: ``pip install "kernai[mcp]"``. See
docs/mcp.md.

- `configuration` reads and checks configurations.
- `connection` is one server, reached over `transports`; `guard` is a program that runs with each stdio server.
- `dispatch` answers a block. `language` reads requests and writes answers, `interaction` handles a server's requests
  for input, and `schemas` checks arguments.
- `tool_skills` turns tools into skills. `adapter` combines all of this, and has the event loop on which clients run.
- `serving` is the other direction: it serves skills as an MCP server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    from mcp import Client as _Client  # noqa: F401 - exists since version 2
except ImportError as error:
    raise ImportError(
        f'kernai.mcp needs the official MCP SDK, version 2 or later: pip install "kernai[mcp]" ({error})', name="mcp"
    ) from error

from kernai.mcp.adapter import Adapter, load, setup, shutdown
from kernai.mcp.errors import McpClosedError, McpConfigError, McpError

if TYPE_CHECKING:
    from kernai.mcp.serving import serve

__all__ = ["Adapter", "McpClosedError", "McpConfigError", "McpError", "load", "serve", "setup", "shutdown"]

if not TYPE_CHECKING:  # otherwise a type checker would accept any name in this package

    def __getattr__(name: str) -> Any:
        if name == "serve":  # imports a web server, which a client does not need
            from importlib import import_module

            return import_module("kernai.mcp.serving").serve
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
