"""What the model reads: listings of what servers offer, and their answers as text and media.

Names, descriptions and results are the servers' own text. Line breaks are removed in listings, so that no name can pass
for a line of its own. Content that cannot be shown is described. Nothing is fetched: a link stays a link. The kernel
neutralises it all, like everything that a protocol's handler returns.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    GetPromptResult,
    ImageContent,
    Prompt,
    ReadResourceResult,
    Resource,
    ResourceLink,
    ResourceTemplate,
    TextContent,
    TextResourceContents,
    Tool,
)

from kernai.jsonio.json_data import loads
from kernai.mcp.arguments import example
from kernai.mcp.arguments import kind_of as kind_of_schema
from kernai.mcp.validation import missing
from kernai.values.media import FALLBACK_MIME, Media, kind_of
from kernai.values.message import Part

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
        f"{one_line(str(name))}{'' if name in required else '?'}: {one_line(kind_of_schema(one), 60)}"
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


#: what a handler or skill returns: a list only where there is media in it, since other lists are data
Returned = Part | list[Part]
#: what a model may be able to take although it is neither an image nor a sound
_DOCUMENTS = frozenset({"application/pdf"})


def tool_parts(result: CallToolResult) -> list[Part]:
    """The content, and the structured content where the content does not already say the same."""
    parts = _content_parts(result.content)
    if result.structured_content is not None and not _says(result.content, result.structured_content):
        parts.append(_json(result.structured_content))
    return joined(parts) or ["(the tool returned nothing)"]


def error_text(result: CallToolResult) -> str:
    """What a tool says about its failure; media in it are named."""
    told = [part if isinstance(part, str) else _named(part) for part in tool_parts(result)]
    return "\n".join(told)


def resource_parts(result: ReadResourceResult) -> list[Part]:
    """What was read; of several pieces each under its URI."""
    parts: list[Part] = []
    for one in result.contents:
        if len(result.contents) > 1:
            parts.append(f"[{one.uri}]")
        parts.append(_resource_part(one))
    return joined(parts) or ["(the resource is empty)"]


def prompt_parts(result: GetPromptResult) -> list[Part]:
    """The messages of a prompt, each under its role."""
    parts: list[Part] = [result.description] if result.description else []
    for message in result.messages:
        parts.append(f"[{message.role}]")
        parts += _content_parts([message.content])
    return joined(parts) or ["(the prompt is empty)"]


def returned(parts: list[Part]) -> Returned:
    """Parts as a handler returns them; neighbouring texts have been joined."""
    return parts[0] if len(parts) == 1 else parts


def joined(parts: Iterable[Part]) -> list[Part]:
    """Neighbouring texts as one, a line break between them: the kernel puts texts together without any."""
    made: list[Part] = []
    for part in parts:
        if isinstance(part, str) and made and isinstance(made[-1], str):
            made[-1] += f"\n{part}"
        elif isinstance(part, str) and made:
            made.append(f"\n{part}")
        else:
            made.append(part)
    return made


def _content_parts(content: Iterable[Any]) -> list[Part]:
    return [_content_part(one) for one in content]


def _content_part(content: Any) -> Part:
    if isinstance(content, TextContent):
        return content.text
    if isinstance(content, (ImageContent, AudioContent)):
        return _media(content.data, content.mime_type, content.type)
    if isinstance(content, ResourceLink):
        return _link(content)
    if isinstance(content, EmbeddedResource):
        resource = content.resource
        shown = _resource_part(resource)
        return f"[resource {resource.uri}]\n{shown}" if isinstance(resource, TextResourceContents) else shown
    return f"[content of type {getattr(content, 'type', type(content).__name__)!r}, which cannot be shown]"


def _link(link: ResourceLink) -> str:
    about = [link.name]
    if link.mime_type:
        about.append(link.mime_type)
    if link.description:
        about.append(link.description)
    return f"[link to the resource {link.uri}: {', '.join(about)}; resources/read reads it]"


def _resource_part(resource: TextResourceContents | BlobResourceContents) -> Part:
    if isinstance(resource, TextResourceContents):
        return resource.text
    mime = resource.mime_type or FALLBACK_MIME
    if mime.startswith("text/"):
        with suppress(ValueError):  # sent as bytes, and a text all the same
            return base64.b64decode(resource.blob, validate=True).decode("utf-8")
    if kind_of(mime) != "document" or mime in _DOCUMENTS:
        return _media(resource.blob, mime, f"resource {resource.uri}")
    size = len(resource.blob) * 3 // 4
    return f"[resource {resource.uri}: {mime}, about {size} bytes of binary data, which cannot be shown]"


def _media(data: str, mime_type: str, what: str) -> Part:
    try:
        return Media.from_bytes(base64.b64decode(data, validate=True), mime_type=mime_type)
    except (binascii.Error, ValueError) as error:
        return f"[{what}: {mime_type}, cannot be shown: {error}]"


def _named(media: Media) -> str:
    return f"[{media.kind}, {media.mime_type}, cannot be shown in an error]"


def _says(content: Iterable[Any], structured: Any) -> bool:
    """Whether the texts are that very data; many servers send both, for clients of either kind.

    Where the data must be an object, SDKs wrap what is none: ``{"result": "text"}`` beside the text itself.
    """
    texts = [one.text for one in content if isinstance(one, TextContent)]
    values = [_parsed(text) for text in texts]
    meant = [structured]
    if isinstance(structured, dict) and len(structured) == 1:
        meant += structured.values()
    said = [*values, *texts, values, texts]
    return any(one in said for one in meant)


def _parsed(text: str) -> Any:
    try:
        return loads(text)
    except ValueError:
        return text


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
