"""The errors of `kernai.mcp`: `McpConfigError` for a configuration, others for requests. And the check of options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernai._util.api import likely
from kernai.errors import KernaiError


class McpConfigError(KernaiError, ValueError):
    """A configuration that cannot be used. The text names the server, the key and the fix, but no secret value."""


class McpError(KernaiError):
    """A request that failed. In a run, it becomes the error block that the model reads."""


class McpUnavailableError(McpError):
    """A server that cannot be reached, has died, or does not answer. The request may have taken effect anyway."""


class McpClosedError(McpError):
    """The adapter cannot be used any more: build a new one with `kernai.mcp.setup` or `kernai.mcp.load`."""


def check_options(options: Mapping[str, Any], known: type, *parameters: str) -> None:
    """Raises `TypeError` for one of the `options` that `known`, a `TypedDict`, lacks; suggests another."""
    names = known.__annotations__
    for name in options:
        if name not in names:
            raise TypeError(f"unknown option {name!r}{likely(name, (*parameters, *names), 'known:')}")
