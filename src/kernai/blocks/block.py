"""`Block`: one block of the protocol, written by the model or by the runtime."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Self

from kernai._util.api import Replaceable, read_only
from kernai.values.media import Media
from kernai.values.message import Part

_ENTITIES = {'"': "&quot;", "<": "&lt;", ">": "&gt;"}


def escape_attribute(value: str) -> str:
    """Escapes `value` for use between double quotes in a tag.

    `"`, `<` and `>` become entities, control characters a space. An `&` is unchanged, since nothing decodes entities.
    """
    if value.isidentifier():  # most values are
        return value
    return re.sub(r'["<>\x00-\x1f\x7f-\x9f]', lambda found: _ENTITIES.get(found[0], " "), value)


class Block(Replaceable):
    """A block: its type, its name if it has one, and its unchanged content. Read-only. Equal if all three are equal.

    `str(block)` is its canonical markup, `<block type="TYPE" name="NAME">CONTENT</block>`, without `name` if that is
    None. The attributes are escaped (see `escape_attribute`), the content is not.
    """

    # Not a frozen dataclass: its constructor would take a fifth of a parser's time for each block.
    __slots__ = ("_content", "_name", "_type")
    _FIELDS: ClassVar[tuple[str, ...]] = ("type", "name", "content")
    __match_args__ = ("type", "name", "content")
    type: Final[str] = read_only("_type")
    name: Final[str | None] = read_only("_name")
    content: Final[str] = read_only("_content")

    def __init__(self, type: str, name: str | None = None, content: str = "") -> None:
        self._type = type
        self._name = name
        self._content = content

    def with_content(self, content: str) -> Self:
        """The same block with other content."""
        return self.__replace__(content=content)

    def to_dict(self) -> dict[str, str | None]:
        return {"type": self._type, "name": self._name, "content": self._content}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Block):
            return NotImplemented
        return (self._type, self._name, self._content) == (other._type, other._name, other._content)

    def __hash__(self) -> int:
        return hash((self._type, self._name, self._content))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(type={self._type!r}, name={self._name!r}, content={self._content!r})"

    def __str__(self) -> str:
        name = "" if self._name is None else f' name="{escape_attribute(self._name)}"'
        return f'<block type="{escape_attribute(self._type)}"{name}>{self._content}</block>'


class NativeCall(Block):
    """A call in a vendor's own format, as a block. `id` is the vendor's id; `is_open`: the call was cut off."""

    __slots__ = ("id", "is_open")
    _FIELDS = ("type", "name", "content", "id", "is_open")

    def __init__(
        self, type: str, name: str | None = None, content: str = "", *, id: str | None = None, is_open: bool = False
    ) -> None:
        super().__init__(type, name, content)
        self.id = id
        self.is_open = is_open

    def to_dict(self) -> dict[str, Any]:
        made: dict[str, Any] = super().to_dict()
        return {**made, **({} if self.id is None else {"id": self.id}), **({"is_open": True} if self.is_open else {})}

    def __str__(self) -> str:
        return super().__str__().removesuffix("</block>" if self.is_open else "")

# --------------------------------------------------------------------------------------- blocks that the runtime writes


#: the tags that act. Other XML is unchanged, since a model that edits a file must know its exact text
#: (not compiled here, since few runs need it)
_TAG = r"(?=/?(?:block|command|final|plan)(?:[\s/>]|\Z))"


def neutralize(text: str) -> str:
    """Escapes the ``<`` of each tag that would act if a model copied it: `block`, `command`, `final` and `plan`.

    The ``<`` becomes ``&lt;``. Everything else is unchanged, including other XML such as ``<result>``. The kernel does
    this to all text from skills and protocols. Do it to an end user's text before you put it into `input`, which is
    sent unchanged. Raises `TypeError` for anything but `str`.
    """
    if not isinstance(text, str):
        raise TypeError(f"neutralize takes str, got {type(text).__name__}")
    return re.sub(f"<{_TAG}", "&lt;", text, flags=re.ASCII) if "<" in text else text


def restored(text: str) -> str:
    """The inverse of `neutralize`."""
    return re.sub(f"&lt;{_TAG}", "<", text, flags=re.ASCII)


def result_block(name: str, text: str) -> str:
    """A result as the model reads it; `text` is not escaped."""
    escaped = name if name.isidentifier() else escape_attribute(name)  # saves a call for most names
    return f'<block type="result" name="{escaped}">{text}</block>'


def error_block(name: str | None, text: str) -> str:
    """An error as the model reads it; without a name, it has no `name` attribute."""
    return str(Block("error", name, text))


def final_block(text: str) -> str:
    """An answer that came from a call instead of the model, as the model reads it in the next turn."""
    return str(Block("final", None, neutralize(text)))


def result_parts(name: str, parts: Sequence[Part]) -> list[Part]:
    """A result with media: its text in a result block, then the tag of each media followed by the media itself."""
    texts = [part for part in parts if isinstance(part, str)]
    # joined first: two harmless halves may form a tag
    written: list[Part] = [result_block(name, neutralize("".join(texts)))]
    for part in parts:
        if isinstance(part, Media):
            mime_type = escape_attribute(part.mime_type)
            written += [f'<block type="media" id="{part.id}" kind="{part.kind}" mime="{mime_type}"/>', part]
    return written
