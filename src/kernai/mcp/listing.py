"""Listings for the model: short lines to choose from, and one tool's definition in full.

Names and descriptions are the servers' own text; line breaks in them are taken out, so that none can pass for a line of
the listing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from mcp_types import Prompt, Resource, ResourceTemplate, Tool

from kernai.mcp.arguments import example, kind_of
from kernai.mcp.validation import missing

MAX_LINE = 160


def one_line(text: str | None, most: int = MAX_LINE) -> str:
    """The text without line breaks, at most `most` characters of it."""
    line = " ".join((text or "").split())
    return line if len(line) <= most else line[: most - 1] + "…"


def tool_line(tool: Tool) -> str:
    """``- name(path: string, tail?: number): what it does``."""
    return f"- {one_line(tool.name)}({_signature(tool.input_schema)}){_about(tool.description or tool.title)}"


def _signature(schema: Mapping[str, Any]) -> str:
    known = schema.get("properties")
    arguments = known if isinstance(known, Mapping) else {}
    required = frozenset(missing(schema, {}))
    told = [
        f"{one_line(str(name))}{'' if name in required else '?'}: {one_line(kind_of(one), 60)}"
        for name, one in arguments.items()
    ]
    return ", ".join(told)


def _about(text: str | None) -> str:
    about = one_line(text)
    return f": {about}" if about else ""


def tool_in_full(server: str, tool: Tool) -> str:
    """Everything about one tool: description, arguments, hints, and how it is called."""
    call = {"server": server, "name": tool.name, "arguments": example(tool.input_schema, {})}
    lines = [f"tool {one_line(tool.name)} of server {server}"]
    if tool.title:
        lines.append(f"title: {one_line(tool.title)}")
    lines.append(f"description: {(tool.description or '(none)').strip()}")
    lines.append(f"arguments, as JSON schema: {_json(tool.input_schema)}")
    if tool.output_schema is not None:
        lines.append(f"result, as JSON schema: {_json(tool.output_schema)}")
    if tool.annotations is not None:
        hints = tool.annotations.model_dump(by_alias=True, exclude_none=True)
        if hints:
            lines.append(f"hints of the server, not verified: {_json(hints)}")
    lines.append(f"call: {_json({'method': 'tools/call', 'params': call})}")
    return "\n".join(lines)


def resource_line(resource: Resource) -> str:
    """``- uri (type): name: what it is``."""
    mime = f" ({one_line(resource.mime_type)})" if resource.mime_type else ""
    return f"- {one_line(resource.uri, 500)}{mime}: {one_line(resource.name)}{_about(resource.description)}"


def template_line(template: ResourceTemplate) -> str:
    """The same for a pattern of resources."""
    mime = f" ({one_line(template.mime_type)})" if template.mime_type else ""
    return f"- {one_line(template.uri_template, 500)}{mime}: {one_line(template.name)}{_about(template.description)}"


def prompt_line(prompt: Prompt) -> str:
    """``- name(argument, optional?): what it is for``."""
    arguments = [f"{one_line(one.name)}{'' if one.required else '?'}" for one in prompt.arguments or []]
    return f"- {one_line(prompt.name)}({', '.join(arguments)}){_about(prompt.description or prompt.title)}"


def section(server: str, what: str, lines: Iterable[str]) -> str:
    """The lines under a head that says whose they are."""
    found = list(lines)
    head = f"server {server}: {len(found)} {what}{'' if len(found) == 1 else 's'}"
    return "\n".join([head, *found])


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
