"""`Value`: equality, hash and repr of frozen dataclasses, once for all of them.

`dataclass` writes and compiles these for each class anew, which is half of what the class costs at import. The value
classes say ``@dataclass(frozen=True, slots=True, eq=False, repr=False)`` and inherit them from here.
"""

from __future__ import annotations

from typing import Any


class Value:
    """Equal when of one class with equal fields."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return self._values() == [getattr(other, name) for name in self._names()]

    def __hash__(self) -> int:
        return hash((self.__class__, *self._values()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._names())
        return f"{self.__class__.__qualname__}({fields})"

    def _names(self) -> list[str]:
        fields: dict[str, Any] = self.__dataclass_fields__  # type: ignore[attr-defined]  # every subclass is one
        return [name for name, one in fields.items() if one.compare]

    def _values(self) -> list[Any]:
        return [getattr(self, name) for name in self._names()]
