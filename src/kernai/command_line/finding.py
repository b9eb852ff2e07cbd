"""`Finding`: one thing that `kernai doctor` has looked at."""

from __future__ import annotations

from typing import Any, NamedTuple


class Finding(NamedTuple):
    """`group` is the heading it stands under, `good` whether it is there. `problem` says what to mend, if anything."""

    group: str
    name: str
    text: str
    good: bool
    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return self._asdict()
