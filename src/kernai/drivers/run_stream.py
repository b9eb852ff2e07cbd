"""`RunStream`: a run as an iterator of its events."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import copy_context
from typing import Any, Self

from kernai._util.api import Closing
from kernai.drivers.answer_stream import INSIDE, AnswerText, EventStream, PartialAnswer, inside
from kernai.drivers.driver import GRACE, POLL, Stack, TakenOver
from kernai.drivers.threads import ThreadsDriver
from kernai.errors import KernaiError
from kernai.events import Event
from kernai.interrupts import INTERRUPTS
from kernai.loop.run_state import Run
from kernai.values.result import Output_co


class RunStream(Closing, EventStream[Output_co]):
    """Iterates over a run's events. The run begins when you ask for the first event. The last event is the root's
    `result`; then `.result` has the `Result`.

    The run has its own thread, with a copy of the context variables of the caller of `stream`, and waits for its
    consumer. To leave early, call `close()`, or use the stream as a context manager. The run is then cancelled, and the
    vendor's connection is closed at the next chunk at the latest::

        with kernai.stream(agent, "…") as events:
            for event in events:
                ...
        print(events.result)
    """

    _run: Run

    def __init__(self, run: Run, driving: Driving, channel: Channel) -> None:
        self._driving = driving
        self._run = run
        self._channel = channel

    def close(self) -> None:
        """Cancels the run and waits until it has ended. Does nothing if it has already ended.

        A skill that does not end is abandoned. Called from within the run (a callback, a skill), it only cancels.
        """
        self._driving.abandon()
        if not self._driving.is_elsewhere and self._channel not in INSIDE.get():
            INTERRUPTS.during(self._driving.end)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        if self._channel in INSIDE.get():
            raise KernaiError("a run cannot wait for its own events: iterate outside of its callbacks and skills")
        event = INTERRUPTS.during(self._take)
        if event is None:
            self._driving.raise_failure()
            raise StopIteration
        return event

    def _take(self) -> Event | None:
        """The next event; None when the run has ended. On Ctrl-C, ends the run before raising."""
        driving, channel = self._driving, self._channel
        channel.consumer = threading.get_ident()
        try:
            driving.begin()
            while (event := channel.get(POLL)) is None and not channel.ended:
                INTERRUPTS.look()
                driving.look_after()
            INTERRUPTS.look()
        except BaseException:
            self.close()
            raise
        return event

    def text(self) -> Iterator[str]:
        """Yields only the answer's text, as it arrives: the pieces of a final, or at the end an answer in prose.

        `RunStream.TAKEN_BACK`, an empty text, says that the pieces so far are not the answer after all. The pieces
        after the last `TAKEN_BACK`, joined, are `result.text`. A run without an answer yields no pieces after it.
        """
        reader = AnswerText()
        for event in self:
            yield from reader.take(event)

    def partial(self) -> Iterator[Any]:
        """Yields the complete part of the answer as JSON data, whenever a value in it ends. For a text answer, the text
        so far. Starts over if the model does. The final value is in ``result.output``.
        """
        reader = PartialAnswer(self._run.answer_type)
        for event in self:
            yield from reader.take(event)

    def __del__(self) -> None:
        # dropped without close(): the run must not wait for a consumer that is gone
        self._driving.abandon()


class Driving:
    """Drives a root run in its own thread. It does not refer to the stream, so a dropped stream is freed, and its
    `__del__` cancels the run.
    """

    _process = 0  # in which the run has begun

    def __init__(self, driver: ThreadsDriver, stack: Stack, channel: Channel) -> None:
        self._driver = driver
        self._stack = stack
        self._channel = channel
        self._context = copy_context()
        self._context.run(INSIDE.set, inside(channel))
        self._beginning = threading.Lock()
        self._failure: BaseException | None = None
        self._stopped: float | None = None

    @property
    def is_elsewhere(self) -> bool:
        """Whether another process has begun the run, and this one is its fork, which has no threads."""
        return self._process not in {0, os.getpid()}

    def begin(self) -> None:
        if self.is_elsewhere:
            raise KernaiError("this run belongs to another process, which began it: begin one here with stream()")
        with self._beginning:
            if not self._process:
                drive = self._drive, self._driver.run
                thread = threading.Thread(target=self._context.run, args=drive, name="kernai-stream", daemon=True)
                self._process = os.getpid()
                self._driver.root.cancellation.start()
                try:
                    thread.start()
                except RuntimeError:  # no thread can be started
                    self._process = 0
                    raise

    def abandon(self) -> None:
        """Cancels the run and drops its further events."""
        if self.is_elsewhere:
            return
        self._driver.root.cancellation.set()
        self._channel.leave()

    def end(self) -> None:
        """Waits until the run has ended; if necessary, ends it in this thread."""
        self.begin()
        while not self._channel.wait_for_end(POLL):
            self.look_after()

    def look_after(self) -> None:
        """If the run must stop but is in a call that does not end, abandons the call and ends the run here."""
        if not self._driver.root.cancellation.is_set():
            return
        self._stopped = self._stopped or time.monotonic()
        if time.monotonic() - self._stopped >= GRACE:
            self._context.copy().run(self._drive, self._driver.take_over)

    def raise_failure(self) -> None:
        """Raises the exception that the run raised (an error in the host's own code), but only once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _drive(self, drive: Callable[[Stack], Any]) -> None:
        """Drives the run, and notes its end, unless `drive` returns False because the run has not ended."""
        try:
            if drive(self._stack) is False:
                return
        except TakenOver:
            return
        except BaseException as error:  # noqa: BLE001 - raised by `raise_failure`
            self._failure = error
        self._channel.end()


class Channel:
    """Passes events to the consuming thread: threads of the run put them in, in order, and the consumer takes them.

    After putting events, a thread waits until they are taken, without holding any other lock. So a slow consumer slows
    down the run, and events do not pile up.
    """

    def __init__(self, on_end: Callable[[], object] = lambda: None) -> None:
        self._on_end = on_end
        # reentrant: the garbage collector may close a stream in the middle of any code
        self._changed = threading.Condition(threading.RLock())
        self._events: deque[Event] = deque()
        self._open = True
        self._ended = False
        #: the id of the consuming thread, which must never wait for itself
        self.consumer = 0

    def put(self, event: Event) -> None:
        """Adds an event; never waits. Once the consumer has left, events are dropped."""
        with self._changed:
            if self._open:
                self._events.append(event)
                self._changed.notify_all()

    def wait_until_taken(self) -> None:
        """Waits until the consumer has taken all events, or has left. Call after `put`."""
        if threading.get_ident() != self.consumer:
            with self._changed:
                self._changed.wait_for(lambda: not self._events or not self._open)

    def get(self, timeout: float) -> Event | None:
        """The next event; None if the run has ended, or if none arrives within `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._events or self._ended, timeout)
            if not self._events:
                return None
            event = self._events.popleft()
            if not self._events:
                self._changed.notify_all()
            return event

    @property
    def ended(self) -> bool:
        """Whether the run has ended and every event was taken."""
        with self._changed:
            return self._ended and not self._events

    def end(self) -> None:
        """Notes that the run has ended, so there will be no further events."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._on_end()

    def wait_for_end(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds for the end of the run; returns whether it has ended."""
        with self._changed:
            return self._changed.wait_for(lambda: self._ended, timeout)

    def leave(self) -> None:
        """Notes that the consumer has left: from now on events are dropped, and no thread waits."""
        with self._changed:
            self._open = False
            self._events.clear()
            self._changed.notify_all()
