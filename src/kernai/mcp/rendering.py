"""What the model reads: listings of what servers offer, and their answers as text and media.

Names, descriptions and results are the servers' own text. Line breaks are removed in listings, so that no name can pass
for a line of its own. Content that cannot be shown is described. Nothing is fetched: a link stays a link. The kernel
neutralises it all, like everything that a protocol's handler returns.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable
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
from kernai.mcp.schemas import example, missing, type_of
from kernai.values.media import FALLBACK_MIME, Media, kind_of
from kernai.values.message import Part

#: what a handler or skill returns: a list only if there is media in it, since other lists are data
Returned = Part | list[Part]

MAX_LINE, MAX_URI, MAX_TYPE = 160, 500, 60
#: what a model may be able to read although it is neither an image nor a sound
_DOCUMENTS = frozenset({"application/pdf"})


def one_line(text: str | None, most: int = MAX_LINE) -> str:
    """The text without line breaks, at most `most` characters of it."""
    line = " ".join((text or "").split())
    return line if len(line) <= most else line[: most - 1] + "…"


# ---------------------------------------------------------------------------------------------------------- listings


def section(server: str, what: str, lines: Iterable[str], *, is_cut: bool = False) -> str:
    """The lines under a head that names their server."""
    found = list(lines)
    head = f"server {server}: {len(found)} {what}{'' if len(found) == 1 else 's'}"
    return "\n".join([head, *found, *(["(the server has more: its listing was cut off)"] if is_cut else [])])


def tool_line(tool: Tool) -> str:
    """``- name(path: string, tail?: number): what it does``."""
    known, required = tool.input_schema.get("properties"), missing(tool.input_schema, {})
    signature = [
        f"{one_line(name)}{'' if name in required else '?'}: {one_line(type_of(one), MAX_TYPE)}"
        for name, one in (known if isinstance(known, dict) else {}).items()
    ]
    return f"- {one_line(tool.name)}({', '.join(signature)}){_about(tool.description or tool.title)}"


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
    hints = {} if tool.annotations is None else tool.annotations.model_dump(by_alias=True, exclude_none=True)
    if hints:
        lines.append(f"hints of the server, not verified: {_json(hints)}")
    lines.append(f"call: {_json({'method': 'tools/call', 'params': call})}")
    return "\n".join(lines)


def resource_line(resource: Resource) -> str:
    """``- uri (type): name: what it is``."""
    return f"- {one_line(resource.uri, MAX_URI)}{_named(resource)}"


def template_line(template: ResourceTemplate) -> str:
    """The same for a pattern of resources."""
    return f"- {one_line(template.uri_template, MAX_URI)}{_named(template)}"


def prompt_line(prompt: Prompt) -> str:
    """``- name(argument, optional?): what it is for``."""
    names = [f"{one_line(one.name)}{'' if one.required else '?'}" for one in prompt.arguments or []]
    return f"- {one_line(prompt.name)}({', '.join(names)}){_about(prompt.description or prompt.title)}"


def _named(what: Resource | ResourceTemplate) -> str:
    mime = f" ({one_line(what.mime_type)})" if what.mime_type else ""
    return f"{mime}: {one_line(what.name)}{_about(what.description)}"


def _about(text: str | None) -> str:
    about = one_line(text)
    return f": {about}" if about else ""


#: by method: the kind that is listed, as the SDK calls it, what one is called here, and its line
LISTINGS: dict[str, tuple[str, str, Callable[[Any], str]]] = {
    "tools/list": ("tools", "tool", tool_line),
    "resources/list": ("resources", "resource", resource_line),
    "resources/templates/list": ("resource_templates", "resource template", template_line),
    "prompts/list": ("prompts", "prompt", prompt_line),
}


# ----------------------------------------------------------------------------------------------------------- answers


def tool_answer(result: CallToolResult) -> Returned:
    """The content, and the structured content unless a text already says the same."""
    return _joined(_tool_parts(result), "(the tool returned nothing)")


def error_text(result: CallToolResult) -> str:
    """What a tool says about its failure; media in it are named."""
    return "\n".join(
        part if isinstance(part, str) else f"[{part.kind}, {part.mime_type}, cannot be shown in an error]"
        for part in _tool_parts(result)
    ) or "(the tool failed without a text)"


def resource_answer(result: ReadResourceResult) -> Returned:
    """What was read; of several pieces each under its URI."""
    parts: list[Part] = []
    for one in result.contents:
        if len(result.contents) > 1:
            parts.append(f"[{one.uri}]")
        parts.append(_resource_part(one))
    return _joined(parts, "(the resource is empty)")


def prompt_answer(result: GetPromptResult) -> Returned:
    """The messages of a prompt, each under its role."""
    parts: list[Part] = [result.description] if result.description else []
    for message in result.messages:
        parts += [f"[{message.role}]", _content_part(message.content)]
    return _joined(parts, "(the prompt is empty)")


def _tool_parts(result: CallToolResult) -> list[Part]:
    parts = [_content_part(one) for one in result.content]
    structured = result.structured_content
    is_given = structured is not None or ("structured_content" in result.model_fields_set and not parts)
    return [*parts, _json(structured)] if is_given and not _says(result.content, structured) else parts


def _joined(parts: Iterable[Part], otherwise: str) -> Returned:
    """Neighbouring texts as one, a line break between them: the kernel joins texts without any."""
    made: list[Part] = []
    for part in parts:
        if isinstance(part, str) and made and isinstance(made[-1], str):
            made[-1] += f"\n{part}"
        elif isinstance(part, str) and made:
            made.append(f"\n{part}")
        else:
            made.append(part)
    return made if len(made) > 1 else made[0] if made else otherwise


def _content_part(content: Any) -> Part:
    if isinstance(content, TextContent):
        return content.text
    if isinstance(content, (ImageContent, AudioContent)):
        return _media(content.data, content.mime_type, content.type)
    if isinstance(content, ResourceLink):
        about = ", ".join(filter(None, (content.name, content.mime_type, content.description)))
        return f"[link to the resource {content.uri}: {about}; resources/read reads it]"
    if isinstance(content, EmbeddedResource):
        resource = content.resource
        shown = _resource_part(resource)
        return f"[resource {resource.uri}]\n{shown}" if isinstance(resource, TextResourceContents) else shown
    return f"[content of type {getattr(content, 'type', type(content).__name__)!r}, which cannot be shown]"


def _resource_part(resource: TextResourceContents | BlobResourceContents) -> Part:
    if isinstance(resource, TextResourceContents):
        return resource.text
    mime = resource.mime_type or FALLBACK_MIME
    if mime.startswith("text/"):
        with suppress(ValueError):  # text, although it was sent as bytes
            return base64.b64decode(resource.blob, validate=True).decode("utf-8")
    if kind_of(mime) != "document" or mime in _DOCUMENTS:
        return _media(resource.blob, mime, f"resource {resource.uri}")
    size = len(resource.blob) * 3 // 4
    return f"[resource {resource.uri}: {mime}, about {size} bytes of binary data, which cannot be shown]"


def _media(data: str, mime_type: str, what: str) -> Part:
    try:
        return Media.from_bytes(base64.b64decode(data, validate=True), mime_type=mime_type)
    except ValueError as error:
        return f"[{what}: {mime_type}, cannot be shown: {error}]"


def _says(content: Iterable[Any], structured: Any) -> bool:
    """Whether the texts are that very data; many servers send both, for old and new clients.

    Where the data must be an object, SDKs wrap everything else: ``{"result": "text"}`` beside the text itself.
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
