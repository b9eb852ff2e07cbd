"""An agent that reads files through an MCP server: it lists tools, makes a mistake, corrects its request, and answers.

Needs Node.js and `pip install ".[mcp]"`. The server is real, the model's turns are scripted.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import kernai
from kernai import mcp

CONFIG = Path(__file__).with_name("mcp.yml")


def request(method: str, **params: Any) -> str:
    """A request as a model would write it."""
    return f'<block type="mcp">{json.dumps({"method": method, "params": params})}</block>'


def main(folder: Path) -> None:
    notes = folder / "notes.txt"
    notes.write_text("Thursday: water the plants.\n", encoding="utf-8")
    os.environ["NOTES_FOLDER"] = str(folder)
    provider = kernai.MockProvider(
        request("tools/list"),
        request("read_text_file", path=str(notes)),  # a tool's name is not a method; the error shows how to do it
        request("tools/call", name="read_text_file", arguments={"path": str(notes)}),
        request("tools/call", name="write_file", arguments={"path": str(notes), "content": ""}),
        '<block type="final">On Thursday you water the plants.</block>',
    )
    agent = kernai.Agent(instructions="You know my notes.", provider=provider, protocols=["mcp"])
    with mcp.load(CONFIG):  # registers the protocol `mcp`
        result = kernai.execute(agent, "What do I do on Thursday?")
    for message in result.messages:
        print(f"{message.role}: {message.text.replace(str(folder), 'FOLDER')}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made).resolve())
