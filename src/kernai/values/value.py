"""`Value`: equality, hash and repr, shared by all frozen dataclasses.

`dataclass` generates and compiles these for each class, which is half of the class's cost at import. So value classes
inherit them: ``@dataclass(frozen=True, slots=True, eq=False, repr=False)``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import Field


class Value:
    """Equal when of one class with equal fields."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, self.__class__) or not isinstance(self, other.__class__):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash((self.__class__, *self._values()))

    def __repr__(self) -> str:
        shown = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in self._fields() if one.repr)
        return f"{self.__class__.__qualname__}({shown})"

    def _values(self) -> list[Any]:
        return [getattr(self, one.name) for one in self._fields() if one.compare]

    def _fields(self) -> Iterable[Field[Any]]:
        fields: dict[str, Field[Any]] = self.__dataclass_fields__  # type: ignore[attr-defined]  # subclasses have it
        return fields.values()
