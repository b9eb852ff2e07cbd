"""`EventDelivery`: delivers a root run's events to the log, the recorder and the live callbacks. `ThreadsDelivery` does
so for the synchronous driver.

Guarantees: all of them get the same events in the same order. Callbacks of one run are never called concurrently. If an
observer raises, that is logged and the run continues; but Ctrl-C and the like end the run, and the next observers may
miss the event. Only callbacks get streamed pieces.
Assumes: `deliver_now` may be called from any thread of the run.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from kernai.errors import Control, Stop, as_failure
from kernai.events import Event, ResultRow, Row, TaskEndedRow
from kernai.interrupts import calls_out
from kernai.recording.recorder import MemorySink, Recorder

if TYPE_CHECKING:
    from kernai.drivers.run_stream import Channel
    from kernai.durable.journal import Journal
    from kernai.loop.root import Cancellation, Outbox
    from kernai.loop.run_state import Run
    from kernai.recording.log import EventLog

_TYPE = attrgetter("type")
Callback = Callable[[Event], Any]
#: of runs without a recorder: drops the rows that are appended
_NOWHERE: deque[Row] = deque(maxlen=0)
#: the arguments of `on_task_complete`
TASK_ARGUMENTS = ("task_id", "input", "result", "duration_ms", "error")


class EventDelivery:
    """What both drivers deliver in the same way: events to the log, the recorder and the journal."""

    #: keeps events until they are appended to the run's store
    journal: Journal | None = None

    def __init__(
        self, log: EventLog, recorder: Recorder | None, cancellation: Cancellation, stream: Callback | None = None,
        on_event: Callback | None = None, on_task_complete: Callable[..., Any] | None = None,
    ) -> None:
        self._log = log
        self._cancellation = cancellation
        self._loud = log.loud
        self._recorder = recorder
        #: the list of a plain in-memory recorder
        self._recorded: list[Row] | None = None
        if type(recorder) is Recorder and type(recorder.sink) is MemorySink:
            self._recorded = recorder.sink.rows
        self._callbacks: tuple[Callback, ...] = () if on_event is None else (on_event,)
        if stream is not None:
            self._callbacks += (stream,)
        self._on_task_complete = on_task_complete
        self.listening = bool(self._callbacks)
        self.observed = self.listening or on_task_complete is not None
        #: where rows are written directly, if nobody observes the run and no more than warnings are logged
        self.kept: list[Row] | deque[Row] | None = None
        if not self.observed and self._loud is not None:
            self.kept = _NOWHERE if recorder is None else self._recorded

    def record_nothing(self) -> None:
        """Stops recording, because the events that follow are recorded already."""
        self._recorder = self._recorded = self.kept = None

    def write_all(self, outbox: Outbox) -> None:
        """Writes the waiting rows. If a sink raises Ctrl-C or the like, the rest stays in the outbox."""
        waiting, recorded, loud = outbox.waiting, self._recorded, self._loud
        is_list = recorded is not None or self._recorder is None
        if outbox.rows is not waiting:  # they are recorded already, and wait only for the log
            while waiting:
                row = waiting.popleft()
                if loud is None or row.type in loud:
                    self._log.write(row)
        elif not is_list or loud is None or not loud.isdisjoint(map(_TYPE, waiting)):
            while waiting:
                self.write(waiting.popleft())
        else:  # nothing to log, and the others take all rows at once
            if self.journal is not None:
                self.journal.add(waiting)
            if recorded is not None:
                recorded.extend(waiting)
            waiting.clear()

    @calls_out
    def write(self, row: Row) -> None:
        """Logs and records one event. A live event is never recorded, and only logged if it is a warning."""
        if row.role == "live":
            if row.is_warning and (self._loud is None or row.type in self._loud):
                self._log.write(row)
            return
        if self.journal is not None:
            self.journal.add((row,))
        if self._loud is None or row.type in self._loud:
            self._log.write(row)
        if self._recorder is not None:
            try:
                self._recorder.record(Event.of(row))
            except BaseException as error:  # noqa: BLE001 - `observer_failed` decides
                self.observer_failed("recorder", row, error)

    def calls_for(self, row: Row) -> Iterator[Callable[[], Any]]:
        for callback in self._callbacks:
            yield partial(callback, Event.of(row))
        if self._on_task_complete is not None and isinstance(row, TaskEndedRow):
            yield partial(self._on_task_complete, **{name: getattr(row, name, None) for name in TASK_ARGUMENTS})

    def observer_failed(self, who: str, row: Row, error: BaseException) -> None:
        """Handles an exception from a callback or a sink. An error is logged, and the run continues. A `Stop` ends the
        run, unless it has an answer, which only a call may provide, or the run has already ended.

        Ctrl-C and the like are raised.
        """
        failure = as_failure(error)
        has_ended = isinstance(row, ResultRow) and not row.place[3]
        if isinstance(failure, Stop) and not (failure.is_final or has_ended):
            self._cancellation.stop(failure)
        elif isinstance(failure, (Exception, Control)):
            self._log.observer_failed(who, row, failure)
        else:
            raise failure


class ThreadsDelivery(EventDelivery):
    """Delivers events for the synchronous driver."""

    def __init__(
        self, log: EventLog, recorder: Recorder | None, cancellation: Cancellation, channel: Channel | None = None,
        *callbacks: Any,
    ) -> None:
        super().__init__(log, recorder, cancellation, None if channel is None else channel.put, *callbacks)
        #: where one of the callbacks puts events for the consumer of a stream
        self._channel = channel
        # reentrant: a callback may emit an event through a skill context
        self._lock = threading.RLock()
        self._inside = 0

    def flush(self, outbox: Outbox) -> None:
        """Delivers the waiting rows. If an observer raises, the rest stays in the outbox."""
        if self.observed:
            self._deliver(outbox.waiting)
            return
        with self._lock:
            self.write_all(outbox)

    def deliver_now(self, row: Row, run: Run) -> None:
        """Delivers one event at once, unless its run has ended; callable from any thread."""
        self._deliver(deque((row,)), run)

    def _deliver(self, rows: deque[Row], run: Run | None = None) -> None:
        """Delivers each event to every observer. Then waits, without the lock, for a stream's consumer to take them."""
        with self._lock:
            if run is not None and run.result is not None:
                return
            self._inside += 1
            try:
                while rows:
                    row = rows.popleft()
                    try:
                        self.write(row)
                    finally:
                        for call in self.calls_for(row):
                            self._call(row, call)
            finally:
                self._inside -= 1
            nested = self._inside > 0
        if self._channel is not None and not nested:
            self._channel.wait_until_taken()

    @calls_out
    def _call(self, row: Row, call: Callable[[], Any]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - `observer_failed` decides
            self.observer_failed("callback", row, error)
