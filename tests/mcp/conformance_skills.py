"""The tools that the conformance package calls, as skills; a program that serves them and prints its URL."""

from __future__ import annotations

import sys
from typing import Any

from kernai import Media, SkillContext, skill
from kernai.mcp import serve

PICTURE = Media.from_bytes(b"\x89PNG\r\n\x1a\n", mime_type="image/png")


@skill
def test_simple_text() -> str:
    """Give a text."""
    return "This is a simple text response for testing."


@skill
def test_image_content() -> Media:
    """Give an image."""
    return PICTURE


@skill
def test_audio_content() -> Media:
    """Give a sound."""
    return Media.from_bytes(b"RIFF\0\0\0\0WAVE", mime_type="audio/wav")


@skill
def test_embedded_resource() -> Media:
    """Give a document."""
    return Media.from_bytes(b"This is an embedded resource content.", mime_type="text/plain")


@skill
def test_multiple_content_types() -> list[Any]:
    """Give a text, an image and a document."""
    return ["Multiple content types test:", PICTURE, Media.from_bytes(b'{"test":"data"}', mime_type="application/json")]


@skill
def test_tool_with_progress(ctx: SkillContext[Any]) -> str:
    """Report progress."""
    for done in (0, 50, 100):
        ctx.emit({"progress": done, "total": 100})
    return "done"


@skill
def test_error_handling() -> str:
    """Fail."""
    raise ValueError("This tool intentionally returns an error for testing")


if __name__ == "__main__":
    from kernai import skills

    serve(skills, transport="http", port=0, on_ready=lambda url: print(url, flush=True))
    sys.exit(0)
