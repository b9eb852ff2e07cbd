"""An MCP server whose one tool returns a file's text: `python framing_server.py FILE`, for `framing_channels`."""

import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer

server = MCPServer("texts")


@server.tool()
def read() -> str:
    """Read the text."""
    return Path(sys.argv[1]).read_text(encoding="utf-8")


server.run()
