"""Copies of public objects: `copy.replace` for slotted classes, and a clear error for what cannot be copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, SupportsIndex

if TYPE_CHECKING:
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
