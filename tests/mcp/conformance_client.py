"""A client for the conformance package: lists the tools of the server whose URL is given, and calls each of them."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from mcp_types import ElicitResult

from kernai import Block, SkillContext
from kernai.mcp import Adapter, McpError, setup
from kernai.mcp.arguments import example

CONTEXT = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")


def accept(_: Any, params: Any) -> ElicitResult:
    """What a host makes of a form that its user sends as it stands."""
    fields = params.requested_schema["properties"]
    return ElicitResult(action="accept", content={name: one["default"] for name, one in fields.items() if "default" in one})


def ask(adapter: Adapter, method: str, **params: Any) -> str:
    try:
        content = json.dumps({"method": method, "params": params})
        told = str(adapter.protocol.handler(Block("mcp", None, content), SkillContext(None)))
    except McpError as error:
        told = f"error: {error}"
    print(method, params, told, flush=True)
    return told


def main(url: str) -> None:
    with setup({"servers": {"it": {"url": url, "timeout": 20}}}, register=False, elicitation=accept) as adapter:
        ask(adapter, "tools/list")
        assert adapter._connections is not None
        tools = adapter._connections["it"].catalogue.tools
        for name, tool in tools.items():
            arguments = example(tool.input_schema, {})
            if name == "json_schema_echo":  # what this client knows of the other tool
                arguments = {"schema": tools["json_schema_2020_12_tool"].input_schema}
            given = [one["arguments"] for one in CONTEXT.get("toolCalls", []) if one["name"] == name]
            for one in given or [arguments]:
                ask(adapter, "tools/call", name=name, arguments=one)


if __name__ == "__main__":
    main(sys.argv[-1])
