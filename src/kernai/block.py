"""One block of the protocol: what the model wrote between two tags, or what the runtime writes back."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernai.value import Value

_NOT_IN_AN_ATTRIBUTE = re.compile(r'["<>\x00-\x1f\x7f-\x9f]')
_ENTITIES = {'"': "&quot;", "<": "&lt;", ">": "&gt;"}


def escape_attribute(value: str) -> str:
    """Return `value` fit to stand between double quotes in a tag.

    `"`, `<` and `>` become entities and control characters a space. An `&` stays, since nothing decodes entities.
    """
    return _NOT_IN_AN_ATTRIBUTE.sub(lambda found: _ENTITIES.get(found[0], " "), value)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Block(Value):
    """A block: its type, its name if it has one, and its content to the letter.

    `str(block)` is its canonical markup, `<block type="TYPE" name="NAME">CONTENT</block>`, without `name` where that is
    `None`. The attributes are escaped (see `escape_attribute`), the content is not.
    """

    type: str
    name: str | None = None
    content: str = ""

    def __str__(self) -> str:
        name = "" if self.name is None else f' name="{escape_attribute(self.name)}"'
        return f'<block type="{escape_attribute(self.type)}"{name}>{self.content}</block>'
