"""What public classes share: `Value` compares them, `Replaceable` and `NotCopied` say how they are copied."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, SupportsIndex

if TYPE_CHECKING:
    from dataclasses import Field
    from typing import Self


class Replaceable:
    """Supports `copy.replace`. `_FIELDS` are the parameters of `__init__`, and attributes."""

    __slots__ = ()
    _FIELDS: ClassVar[tuple[str, ...]] = ()

    def __replace__(self, /, **changes: Any) -> Self:
        return type(self)(**{**{name: getattr(self, name) for name in self._FIELDS}, **changes})


class NotCopied:
    """Neither copied nor pickled: `_HOLDS` says why, and what to do instead."""

    __slots__ = ()
    _HOLDS: ClassVar[str] = "a lock"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(f"{type(self).__name__} can be neither copied nor pickled: it holds {self._HOLDS}")


class Value:
    """A dataclass of which values are equal when they are of one class and have equal fields.

    `dataclass` generates and compiles these methods for each class, which is half of the class's cost at import. So
    value classes inherit them: ``@dataclass(frozen=True, slots=True, eq=False, repr=False)``.
    """

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
