"""What `kernai.mcp` raises: a wrong configuration where it is loaded, all else where a server is asked."""

from __future__ import annotations

from kernai.errors import KernaiError


class McpConfigError(KernaiError, ValueError):
    """A configuration that cannot be used. The text names the server, the key and the fix, and no secret value."""


class McpError(KernaiError):
    """A request that failed. Inside a run it is the error block that the model reads."""


class McpUnavailableError(McpError):
    """A server that cannot be reached, has died, or says nothing. It may have done what it was asked anyway."""


class McpClosedError(McpError):
    """The adapter cannot serve any more: build a new one with `kernai.mcp.setup` or `kernai.mcp.load`."""
