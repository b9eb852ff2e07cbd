"""What a server's answer becomes: text and media, in the order in which the model is to read them.

What cannot be shown is named. Nothing is fetched: a link stays a link. All text is the server's; the kernel neutralises
it, as it does everything that a protocol's handler returns.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    GetPromptResult,
    ImageContent,
    ReadResourceResult,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from kernai.jsonio.json_data import loads
from kernai.values.media import FALLBACK_MIME, Media, kind_of
from kernai.values.message import Part

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
