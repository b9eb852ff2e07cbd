"""MCP servers as a protocol: ``<block type="mcp">{"method": "tools/list"}</block>``.

An optional adapter on the official SDK, never imported by the core: ``pip install "kernai[mcp]"``. See docs/mcp.md.

Which module does what: `configuration`, `expansion` and `config_file` read a configuration; `background` is the thread
all clients live in, `connection` and `life` one server in it, `transports`, `health` and `guard` what it is reached by;
`requests` reads a block, `dispatch` answers it with the help of `asking`, `finding`, `catalogue`, `arguments`,
`validation`, `listing` and `results`; `tool_skills` and `tool_inputs` make a skill of a tool; `adapter` puts it
together. `serving` is the other direction.
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
