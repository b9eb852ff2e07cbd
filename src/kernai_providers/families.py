"""Capabilities of models: a short list of model families.

The first pattern that matches the model's name counts, whoever serves the model; the part of the name before its last
slash is ignored. A name that matches none is text-only; `resolve(..., capabilities=...)` overrides this. From the
vendors' pages, last checked in November 2026.
"""

from __future__ import annotations

import re
from typing import NamedTuple

TEXT = ("text",)
SEES = ("text", "vision")
READS = ("text", "vision", "document_in")
HEARS = ("text", "audio_in", "audio_out")
ALL_IN = ("text", "vision", "audio_in", "video_in", "document_in")


class Family(NamedTuple):
    """A pattern for the start of model names, and what these models take and return."""

    pattern: str
    capabilities: tuple[str, ...]


FAMILIES = (
    # OpenAI
    Family(r"gpt-.*(transcribe|tts|search|realtime)|gpt-daybreak", TEXT),
    Family(r"gpt-4o.*audio|gpt-audio", HEARS),
    Family(r"gpt-4o|chatgpt-4o|gpt-4\.1|gpt-[5-9]|o1(?!-mini|-preview)|o3(?!-mini)|o4", READS),
    Family(r"gpt-4-turbo(?!-preview)|gpt-4-vision", SEES),
    # Anthropic
    Family(r"claude-([3-9]|(?!instant|v\d)[a-z])", READS),
    # Google
    Family(r"gemini-.*-image", (*ALL_IN, "image_gen")),
    Family(r"gemini-(?!embedding)", ALL_IN),
    Family(r"gemma-?3(?!n)(?!.*\b(1b|270m))|gemma-?[4-9]", SEES),
    # open weights, at any vendor
    Family(r"llava|bakllava|moondream|minicpm-v|llama-?3[.-]2.*vision|llama-?4|pixtral|internvl|glm-4\.[0-9]v", SEES),
    Family(r"qwen-?[0-9.p]*-?vl|qvq|phi-?4-multimodal|command-a-vision", SEES),
    Family(r"mistral-(small-?(3\.[1-9]|25|latest)|medium-?(3|25|latest)|large-?(3|2512|latest))", SEES),
    Family(r"magistral-(small-1\.[2-9]|(small|medium)-(2509|latest))", SEES),
    Family(r"grok-(2-vision|vision|[4-9])", SEES),
    Family(r"sonar(-pro|-reasoning|$)", SEES),
    Family(r"nova-(2-)?(lite|pro|premier)", SEES),
)


#: prefixes of tuned models, and of a cloud's catalogue with its regions
_PREFIX = re.compile(r"ft:|([a-z]+\.)?(anthropic|meta|amazon|mistral|cohere|openai|google|qwen)\.")


def capabilities_of(model_id: str) -> tuple[str, ...]:
    """Capabilities of a model by its name; text only if its family is unknown."""
    name = _PREFIX.sub("", model_id.rpartition("/")[2].lower())
    for family in FAMILIES:
        if re.match(family.pattern, name):
            return family.capabilities
    return TEXT
