"""`Cancellation`: whether a root run is to stop, asked by the loop, the drivers and skills."""

from __future__ import annotations

from typing import Any


class Cancellation:
    """Set from within (Ctrl-C, a closed stream) or through the caller's object with `is_set()`."""

    __slots__ = ("_outer", "_set")

    def __init__(self, outer: Any = None) -> None:
        if outer is not None and not callable(getattr(outer, "is_set", None)):
            raise TypeError(f"cancel must have is_set(), like threading.Event; {type(outer).__name__} has none")
        self._outer = outer
        self._set = False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        if self._outer is not None and not self._set:
            # kept: a run that has seen the cancellation once must not go on because it was taken back
            self._set = bool(self._outer.is_set())
        return self._set
