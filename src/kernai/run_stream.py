"""`RunStream`: a run as an iterator of its events."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from kernai.errors import KernaiError

if TYPE_CHECKING:
    from typing import Self

    from kernai.cancellation import Cancellation
    from kernai.channel import Channel
    from kernai.event import Event
    from kernai.result import Result
    from kernai.scope import Scope


class RunStream:
    """Iterating drives the run, in the thread that iterates; the last event is the root's `result`, then `.result`.

    The run waits for its consumer. Leave it early with `close()`, or use it as a context manager: the run is cancelled
    and the vendor's connection closed at the next chunk at the latest::

        with kernai.stream(agent, "…") as events:
            for event in events:
                ...
        print(events.result)
    """

    def __init__(
        self, steps: Generator[Event, None, Any], scope: Scope, channel: Channel, cancellation: Cancellation
    ) -> None:
        self._steps = steps
        self._scope = scope
        self._channel = channel
        self._cancellation = cancellation

    @property
    def result(self) -> Result:
        """How the run ended. `KernaiError` as long as it has not: iterate to the end, or `close()`."""
        result = self._scope.result
        if result is None:
            raise KernaiError("the run has not ended: iterate over the stream to its end, or close it")
        return result

    def close(self) -> None:
        """Cancels the run and waits until it has ended; does nothing when it has."""
        self._abandon()
        for _ in self:
            pass

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        self._channel.consumer = threading.get_ident()
        return next(self._steps)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        # dropped without close(): a provider in a worker thread must not wait for a consumer that is gone
        if getattr(self, "_channel", None) is not None:
            self._abandon()

    def _abandon(self) -> None:
        if self._scope.result is None:
            self._cancellation.set()
        self._channel.close()
