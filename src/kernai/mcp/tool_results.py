"""What a skill gave, as an MCP result.

Text is text, an image or a sound its own kind of content, any other media an embedded resource (as text where it is
text). A media behind a URL is a link: nothing is ever fetched. Data (a dict, a list, a dataclass, a model) is its JSON
text and `structuredContent` as well; since that must be an object for clients of 2025, a list is ``{"result": [...]}``.
The metadata of a `SkillResult` is for recordings and is not sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mcp import types

from kernai.values.media import Media
from kernai.values.message import Part
from kernai.values.skill_result import SkillResult, is_data, plain

Scrub = Callable[[Any], Any]


class Outcome:
    """What a call came to, without credentials and ready to be written."""

    def __init__(self, value: object, scrub: Scrub) -> None:
        """`KernaiError` for what has no text, such as bytes."""
        value = scrub(value)
        self.result: SkillResult = scrub(SkillResult.of(value))
        self.data: dict[str, Any] | None = None
        if is_data(value):
            data = scrub(plain(value))
            self.data = data if isinstance(data, dict) else {"result": data}

    @property
    def reads_files(self) -> bool:
        """Whether writing it takes time that the event loop has not."""
        return bool(self.result.media)

    def written(self) -> types.CallToolResult:
        """`KernaiError` for a media file that cannot be read."""
        return types.CallToolResult(
            content=[_content(part) for part in self.result.parts], structured_content=self.data
        )


def failure(text: str) -> types.CallToolResult:
    """A tool error: the client's model reads its text and can mend the call."""
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)


def _content(part: Part) -> types.ContentBlock:
    if isinstance(part, str):
        return types.TextContent(text=_encodable(part))
    if part.is_url:
        return types.ResourceLink(uri=str(part.data), name=part.id, mime_type=part.mime_type)
    if part.kind == "image":
        return types.ImageContent(data=part.to_base64(), mime_type=part.mime_type)
    if part.kind == "audio":
        return types.AudioContent(data=part.to_base64(), mime_type=part.mime_type)
    return types.EmbeddedResource(resource=_resource(part))


def _resource(media: Media) -> types.TextResourceContents | types.BlobResourceContents:
    uri = f"kernai://media/{media.id}"
    if media.mime_type.startswith("text/"):
        try:
            return types.TextResourceContents(uri=uri, mime_type=media.mime_type, text=media.read_bytes().decode())
        except UnicodeDecodeError:
            pass
    return types.BlobResourceContents(uri=uri, mime_type=media.mime_type, blob=media.to_base64())


def _encodable(text: str) -> str:
    """A text without lone surrogates, which no UTF-8 line can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")
