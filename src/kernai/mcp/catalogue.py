"""`Catalogue`: the tools of one server as it listed them, and how they differ from what it listed first."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from mcp_types import Tool

from kernai.mcp.configuration import ServerConfig

_LOG = logging.getLogger("kernai.mcp")
#: what a definition is made of, as far as a model or a policy may rely on it
_DEFINING = ("title", "description", "inputSchema", "outputSchema", "annotations")


class Catalogue:
    """Written on the event loop, read from any thread: a new listing replaces the old one whole."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        #: whether the listing still holds, as far as is known
        self.is_fresh = False
        self._tools: dict[str, Tool] = {}
        self._first: dict[str, dict[str, Any]] = {}

    def update(self, tools: Iterable[Tool]) -> None:
        listed = {tool.name: tool for tool in tools}
        for name, tool in listed.items():
            self._first.setdefault(name, _definition(tool))
        self._tools = listed
        missing = sorted((self._config.tools or frozenset()) - listed.keys())
        if missing:
            _LOG.warning("server %r has no tools %s, which its configuration allows", self._config.name, missing)

    @property
    def tools(self) -> dict[str, Tool]:
        """Those that may be called, by name."""
        return {name: tool for name, tool in self._tools.items() if self._config.allows(name)}

    def has(self, name: str) -> bool:
        """Whether the server has the tool at all, allowed or not."""
        return name in self._tools

    def change(self, name: str) -> dict[str, Any] | None:
        """The event for a tool that is not what it was when it was first listed."""
        tool, before = self._tools.get(name), self._first.get(name)
        if tool is None or before is None:
            return None
        after = _definition(tool)
        changed = [key for key in _DEFINING if before.get(key) != after.get(key)]
        if not changed:
            return None
        return {
            "mcp": "tool_changed", "server": self._config.name, "tool": name, "changed": changed,
            "before": {key: before.get(key) for key in changed}, "after": {key: after.get(key) for key in changed},
        }


def _definition(tool: Tool) -> dict[str, Any]:
    dumped: dict[str, Any] = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {key: dumped[key] for key in _DEFINING if key in dumped}
