"""What the runtime writes to the model: result, error and media blocks.

Text from outside (skills, protocols, exceptions, task inputs and results) is neutralised, so that a copy of it does
nothing. What the runtime itself says is written as it is, for its examples must be seen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kernai.blocks.block import Block, escape_attribute
from kernai.values.media import Media
from kernai.values.message import Part

#: the tags that act, or may be made to. Other XML passes: an edit of a file has to find the text that is there
_TAG = r"(?=/?(?:block|command|final|plan)(?:[\s/>]|\Z))"
_FORGEABLE = re.compile(f"<{_TAG}", re.ASCII)


def neutralize(text: str) -> str:
    """`text` with ``&lt;`` for the ``<`` of each tag that would act if a model copied it: `block`, `command`, `final`
    and `plan`. The rest is unchanged, other XML such as ``<result>`` too.

    The kernel does this to all text from skills and protocols. Do it yourself to an end user's text before you put it
    into `input`, which passes as it is. `TypeError` for anything but `str`.
    """
    if not isinstance(text, str):
        raise TypeError(f"neutralize takes str, got {type(text).__name__}")
    return _FORGEABLE.sub("&lt;", text) if "<" in text else text


def restored(text: str) -> str:
    """What became `text` by `neutralize`."""
    return re.sub(f"&lt;{_TAG}", "<", text, flags=re.ASCII)  # few runs come here


def result_block(name: str, text: str) -> str:
    """A result as the model reads it; `text` is written as it is."""
    return f'<block type="result" name="{escape_attribute(name)}">{text}</block>'


def error_block(name: str | None, text: str) -> str:
    """An error as the model reads it; without a name the attribute is left out."""
    return str(Block("error", name, text))


def final_block(text: str) -> str:
    """An answer that a call gave in place of the model, as the model reads it in the next turn."""
    return str(Block("final", None, neutralize(text)))


def result_parts(name: str, parts: Sequence[Part]) -> list[Part]:
    """A result with media: its text in a result block, then each media's tag and the media itself."""
    texts = [part for part in parts if isinstance(part, str)]
    # joined first: two harmless halves may make a tag
    written: list[Part] = [result_block(name, neutralize("".join(texts)))]
    for part in parts:
        if isinstance(part, Media):
            written += [media_tag(part), part]
    return written


def media_tag(media: Media) -> str:
    """The tag that stands before a piece of media, so that the model can name it by id."""
    return f'<block type="media" id="{media.id}" kind="{media.kind}" mime="{escape_attribute(media.mime_type)}"/>'
