"""`RunStream`: a run as an iterator of its events."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from kernai.errors import KernaiError

if TYPE_CHECKING:
    from typing import Self

    from kernai.drivers.cancellation import Cancellation
    from kernai.drivers.channel import Channel
    from kernai.drivers.threads import Driver
    from kernai.loop.effects import Work
    from kernai.loop.run_state import Scope
    from kernai.values.event import Event
    from kernai.values.result import Result


class RunStream:
    """Iterating drives the run, in the thread that iterates; the last event is the root's `result`, then `.result`.

    The run waits for its consumer. Leave it early with `close()`, or use it as a context manager: the run is cancelled
    and the vendor's connection closed at the next chunk at the latest::

        with kernai.stream(agent, "…") as events:
            for event in events:
                ...
        print(events.result)
    """

    def __init__(self, driver: Driver, work: Work, scope: Scope, channel: Channel, cancellation: Cancellation) -> None:
        self._driver = driver
        self._steps = driver.stream(work, scope.outbox, channel)
        self._scope = scope
        self._channel = channel
        self._cancellation = cancellation
        self._driving = threading.Lock()
        self._thread: int | None = None

    @property
    def result(self) -> Result:
        """How the run ended. `KernaiError` as long as it has not: iterate to the end, or `close()`."""
        result = self._scope.result
        if result is None:
            raise KernaiError("the run has not ended: iterate over the stream to its end, or close it")
        return result

    def close(self) -> None:
        """Cancels the run and waits until it has ended; does nothing when it has.

        From another thread than the one that iterates too. From within the run (a callback, a skill) it only cancels.
        """
        self._abandon()
        if self._thread != threading.get_ident() and not self._driver.works_here():
            for _ in self:
                pass

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        with self._driving:
            self._thread = self._channel.consumer = threading.get_ident()
            try:
                return next(self._steps)
            finally:
                self._thread = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        # dropped without close(): a provider in a worker thread must not wait for a consumer that is gone
        if getattr(self, "_channel", None) is not None:
            self._abandon()

    def _abandon(self) -> None:
        self._cancellation.set()
        self._channel.close()
