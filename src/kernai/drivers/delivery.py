"""`Rails`: where a root run's events go — the log, the recorder, the live callbacks — in one order.

Guarantees: every rail sees the same events in the same order; callbacks of one run are never called concurrently; an
observer that raises is logged, and the run goes on. Streamed pieces go to the callbacks alone.
Assumes: `deliver` may be called from any thread of the run.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernai.loop.outbox import Outbox
from kernai.recording.recorder import Recorder
from kernai.values.event import LIVE_ONLY, Event

if TYPE_CHECKING:
    from kernai.drivers.channel import Channel
    from kernai.recording.log import EventLog

Callback = Callable[[Event], Any]
TaskHook = Callable[..., Any]


class Records:
    """The two rails that keep events, log and recorder; the same for both drivers."""

    def __init__(self, log: EventLog, recorder: Recorder | None) -> None:
        self._log = log
        self._loud = log.loud
        # a plain recorder only hands on to its sink: one call less an event
        self._record = None if recorder is None else (recorder.sink if type(recorder) is Recorder else recorder).record

    def keep_all(self, events: deque[Event]) -> None:
        """Keeps events and takes them away, each when it is kept: Ctrl-C in between leaves the rest where it was."""
        while events:
            self.keep(events[0])
            events.popleft()

    def keep(self, event: Event) -> None:
        """Logs and records one event, unless it is a streamed piece."""
        kind = event.type
        if kind in LIVE_ONLY:
            return
        if self._loud is None or kind in self._loud:
            self._log.write(event)
        if self._record is not None:
            try:
                self._record(event)
            except Exception as error:  # noqa: BLE001 - a sink's mistake is not the run's
                self._log.observer_failed("recorder", event, error)

    def callback_failed(self, event: Event, error: Exception) -> None:
        """A callback's mistake is logged; it is not the run's."""
        self._log.observer_failed("callback", event, error)


class Rails:
    """The rails of one root run, for the synchronous driver."""

    def __init__(
        self,
        records: Records,
        on_event: Callback | None = None,
        on_task_complete: TaskHook | None = None,
        channel: Channel | None = None,
    ) -> None:
        self._records = records
        self._on_event = on_event
        self._tasks = None if on_task_complete is None else TaskCompletions(on_task_complete)
        self._channel = channel
        self._observed = on_event is not None or self._tasks is not None or channel is not None
        # re-entrant: a callback may use the context of a call, which emits
        self._lock = threading.RLock()
        self._inside = 0

    def outbox(self) -> Outbox:
        """An outbox that delivers here."""
        listening = self._on_event is not None or self._channel is not None
        return Outbox(lambda event: self.deliver(deque((event,))), listening=listening)

    def flush(self, outbox: Outbox) -> None:
        """Delivers what waits in the outbox. What Ctrl-C in an observer leaves over stays there."""
        if outbox.waiting:
            self.deliver(outbox.waiting)

    def deliver(self, events: deque[Event]) -> None:
        """Gives each event to every rail; with a stream, waits outside of the lock until its consumer has them."""
        records = self._records
        with self._lock:
            if not self._observed:
                records.keep_all(events)
                return
            self._inside += 1
            try:
                while events:
                    event = events[0]
                    records.keep(event)
                    events.popleft()
                    self._tell(event)
            finally:
                self._inside -= 1
            nested = self._inside > 0
        if self._channel is not None and not nested:
            self._channel.wait_for_room()

    def _tell(self, event: Event) -> None:
        if self._on_event is not None:
            self._call(event, self._on_event, event)
        if self._tasks is not None and (arguments := self._tasks.after(event)) is not None:
            self._call(event, self._tasks.hook, **arguments)
        if self._channel is not None:
            self._channel.put(event)

    def _call(self, event: Event, observer: Callable[..., Any], *given: Any, **named: Any) -> None:
        try:
            observer(*given, **named)
        except Exception as error:  # noqa: BLE001 - a callback's mistake is not the run's
            self._records.callback_failed(event, error)


class TaskCompletions:
    """Turns the events of tasks into calls of `on_task_complete`."""

    def __init__(self, hook: TaskHook) -> None:
        self.hook = hook
        self._inputs: dict[tuple[str, str], str] = {}

    def after(self, event: Event) -> dict[str, Any] | None:
        """The arguments of the call that is due after this event, if it ends a task."""
        if event.type not in ("task_start", "task_complete", "task_error"):
            return None
        data = event.data
        key = (event.scope, data["task_id"])
        if event.type == "task_start":
            self._inputs[key] = data["input"]
            return None
        return {
            "task_id": data["task_id"],
            "input": self._inputs.pop(key, ""),
            "result": data.get("result"),
            "duration_ms": data["duration_ms"],
            "error": data.get("error"),
        }
