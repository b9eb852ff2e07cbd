"""Blocks that the runtime writes to the model: results, errors, media.

Untrusted text (from skills, protocols, exceptions, task inputs and results) is neutralised, so that a copy of it has no
effect. The runtime's own text is not, since the model must see its examples.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kernai.blocks.block import Block, escape_attribute
from kernai.values.media import Media
from kernai.values.message import Part

#: the tags that act. Other XML stays unchanged, since an edit of a file must find the exact text
_TAG = r"(?=/?(?:block|command|final|plan)(?:[\s/>]|\Z))"
_FORGEABLE = re.compile(f"<{_TAG}", re.ASCII)


def neutralize(text: str) -> str:
    """`text` with ``&lt;`` for the ``<`` of each tag that would act if a model copied it: `block`, `command`, `final`
    and `plan`. The rest is unchanged, other XML such as ``<result>`` too.

    The kernel does this to all text from skills and protocols. Do it to an end user's text before you put it into
    `input`, which is sent unchanged. `TypeError` for anything but `str`.
    """
    if not isinstance(text, str):
        raise TypeError(f"neutralize takes str, got {type(text).__name__}")
    return _FORGEABLE.sub("&lt;", text) if "<" in text else text


def restored(text: str) -> str:
    """The inverse of `neutralize`."""
    return re.sub(f"&lt;{_TAG}", "<", text, flags=re.ASCII)  # few runs come here


def result_block(name: str, text: str) -> str:
    """A result as the model reads it; `text` is not escaped."""
    escaped = name if name.isidentifier() else escape_attribute(name)  # a call less for most
    return f'<block type="result" name="{escaped}">{text}</block>'


def error_block(name: str | None, text: str) -> str:
    """An error as the model reads it, without the attribute if there is no name."""
    return str(Block("error", name, text))


def final_block(text: str) -> str:
    """An answer that a call gave instead of the model, as the model reads it in the next turn."""
    return str(Block("final", None, neutralize(text)))


def result_parts(name: str, parts: Sequence[Part]) -> list[Part]:
    """A result with media: its text in a result block, then each media's tag and the media itself."""
    texts = [part for part in parts if isinstance(part, str)]
    # joined first: two harmless halves may form a tag
    written: list[Part] = [result_block(name, neutralize("".join(texts)))]
    for part in parts:
        if isinstance(part, Media):
            written += [media_tag(part), part]
    return written


def media_tag(media: Media) -> str:
    """The tag before a piece of media, so that the model can refer to it by id."""
    return f'<block type="media" id="{media.id}" kind="{media.kind}" mime="{escape_attribute(media.mime_type)}"/>'
