"""The errors of `kernai.mcp`: `McpConfigError` when a configuration is loaded, the others when a request is made."""

from __future__ import annotations

from kernai.errors import KernaiError


class McpConfigError(KernaiError, ValueError):
    """A configuration that cannot be used. The text names the server, the key and the fix, but no secret value."""


class McpError(KernaiError):
    """A request that failed. In a run, it becomes the error block that the model reads."""


class McpUnavailableError(McpError):
    """A server that cannot be reached, has died, or does not answer. The request may have taken effect anyway."""


class McpClosedError(McpError):
    """The adapter cannot be used any more: build a new one with `kernai.mcp.setup` or `kernai.mcp.load`."""
