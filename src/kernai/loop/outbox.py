"""`Outbox` and `Clock`: the only tools the loop has. A driver, or a test, gives them to it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kernai.events import Row


class Delivery(Protocol):
    """Where rows are delivered; `listening` is whether anybody wants streamed pieces at all.

    `kept` is the recorder's own list where nobody but the recorder and the log has to see a row: then rows are written
    there, and only what is to be logged waits.
    """

    listening: bool
    kept: list[Row] | None

    def deliver_now(self, row: Row, outbox: Outbox, /) -> object: ...


class Outbox:
    """Rows on their way out.

    `waiting` holds those that are delivered before the next effect is performed, and `rows` is where a new one goes:
    there, or straight into the recorder. `now` delivers one at once: a piece streamed by a model call that is under
    way, a skill's progress.
    """

    __slots__ = ("delivery", "is_kept", "rows", "waiting")

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.waiting: deque[Row] = deque()
        kept = delivery.kept
        #: whether rows are in the recorder already
        self.is_kept = kept is not None
        self.rows: deque[Row] | list[Row] = self.waiting if kept is None else kept

    def now(self, row: Row) -> None:
        """Delivers the row at once; from any thread."""
        self.delivery.deliver_now(row, self)

    def beside(self) -> Outbox:
        """An outbox for work that runs beside this one's, delivering to the same place."""
        return Outbox(self.delivery)


class Clock:
    """`wall` gives the seconds since 1970 (for timestamps), `monotonic` seconds that only grow (for durations)."""

    __slots__ = ("monotonic", "wall")

    def __init__(
        self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.wall = wall
        self.monotonic = monotonic
