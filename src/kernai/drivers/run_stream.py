"""`RunStream`: a run as an iterator of its events."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, Generic

from kernai._util.api import NotCopied
from kernai.drivers.answer_stream import TAKEN_BACK, AnswerText, PartialAnswer
from kernai.drivers.driver import GRACE, POLL, Stack, TakenOver
from kernai.errors import KernaiError
from kernai.interrupts import INTERRUPTS
from kernai.values.result import Output_co

if TYPE_CHECKING:
    from typing import Self

    from kernai.drivers.threads import ThreadsDriver
    from kernai.events import Event
    from kernai.loop.effects import Work
    from kernai.loop.run_state import Run
    from kernai.values.result import Result


class RunStream(NotCopied, Generic[Output_co]):
    """The run begins with the first event asked for; the last one is the root's `result`, then `.result`.

    It continues in a thread of its own, in a copy of the context variables of the caller of `stream`, and waits for its
    consumer. Leave it early with `close()`, or use it as a context manager: the run is cancelled and the vendor's
    connection closed at the next chunk at the latest::

        with kernai.stream(agent, "…") as events:
            for event in events:
                ...
        print(events.result)
    """

    _HOLDS = "a run"
    TAKEN_BACK: Final = TAKEN_BACK

    def __init__(self, driver: ThreadsDriver, work: Work, run: Run, channel: Channel) -> None:
        self._driving = Driving(driver, Stack(work, run.outbox), channel)
        self._run = run
        self._channel = channel

    @property
    def result(self) -> Result[Output_co]:
        """How the run ended. `KernaiError` before that: iterate to the end, or `close()`."""
        result = self._run.result
        if result is None:
            raise KernaiError("the run has not ended: iterate over the stream to its end, or close it")
        return result

    def close(self) -> None:
        """Cancels the run and waits until it has ended; does nothing if it has.

        A skill that does not end is abandoned. From within the run (a callback, a skill) it only cancels.
        """
        self._driving.abandon()
        if not self._driving.works_here():
            INTERRUPTS.during(self._driving.end)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        if self._driving.works_here():
            raise KernaiError("a run cannot wait for its own events: iterate outside of its callbacks and skills")
        event = INTERRUPTS.during(self._take)
        if event is None:
            self._driving.raise_failure()
            raise StopIteration
        return event

    def _take(self) -> Event | None:
        """The next event; None when the run has ended. On Ctrl-C the run is ended first."""
        driving, channel = self._driving, self._channel
        channel.consumer = threading.get_ident()
        try:
            driving.begin()
            while (event := channel.get(driving.patience)) is None and not channel.ended:
                INTERRUPTS.look()
                driving.look_after()
            INTERRUPTS.look()
        except BaseException:
            self.close()
            raise
        return event

    def text(self) -> Iterator[str]:
        """The answer's text alone, as it arrives: pieces of a final, or, at the end, an answer in prose.

        `RunStream.TAKEN_BACK`, an empty text, says that the pieces so far are not the answer after all. The pieces
        after the last one, joined, are `result.text`; a run without an answer yields none.
        """
        reader = AnswerText()
        for event in self:
            yield from reader.take(event)

    def partial(self) -> Iterator[Any]:
        """The complete part of the answer as JSON data, each time it has grown; for a text, the text so far.

        Starts over if the model does. The value itself is ``result.output``.
        """
        reader = PartialAnswer(self._run.answer_type)
        for event in self:
            yield from reader.take(event)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        # dropped without close(): the run must not wait for a consumer that is gone
        if getattr(self, "_driving", None) is not None:
            self._driving.abandon()


class Driving:
    """A root run in a thread of its own. It does not refer to the stream, so that a dropped stream is freed and
    noticed.

    If no thread can be started, whoever waits for the run drives it.
    """

    #: how long to wait for an event before `look_after`, in seconds
    patience = POLL
    _driven_here = 0  # the thread that drives it, while it does

    def __init__(self, driver: ThreadsDriver, stack: Stack, channel: Channel) -> None:
        self._driver = driver
        self._stack = stack
        self._channel = channel
        self._context = copy_context()
        self._beginning = threading.Lock()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._stopped: float | None = None

    def begin(self) -> None:
        """Starts the thread, the first time."""
        with self._beginning:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._context.run, args=(self._work,), name="kernai-stream", daemon=True
                )
                try:
                    self._thread.start()
                except RuntimeError:
                    self.patience = 0.0

    def works_here(self) -> bool:
        """Whether this thread works for the run."""
        here = threading.get_ident() == self._driven_here or self._thread is threading.current_thread()
        return here or self._driver.works_here()

    def abandon(self) -> None:
        """Cancels the run. Its events are no longer taken."""
        self._driver.root.cancellation.set()
        self._channel.leave()

    def end(self) -> None:
        """Waits until the run has ended, or ends it here."""
        self.begin()
        while not self._channel.wait_for_end(self.patience):
            self.look_after()

    def look_after(self) -> None:
        """If the run is to stop but is in a call that does not end, ends it here, without that call."""
        if not self.patience:
            self._drive_here()
        if not self._driver.root.cancellation.is_set():
            return
        self._stopped = self._stopped or time.monotonic()
        if time.monotonic() - self._stopped < GRACE:
            return
        try:
            if not self._driver.take_over(self._stack):
                return
        except BaseException as error:  # noqa: BLE001 - raised by `raise_failure`
            self._failure = error
        self._channel.end()

    def _drive_here(self) -> None:
        """Drives the run until there is an event."""
        self._driven_here = threading.get_ident()
        try:
            if not self._context.run(self._driver.run_until, self._stack, self._channel.has_events):
                return
        except BaseException as error:  # noqa: BLE001 - raised by `raise_failure`
            self._failure = error
        finally:
            self._driven_here = 0
        self._channel.end()

    def raise_failure(self) -> None:
        """Raises, once, what the run raised (an error in the host's own code)."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _work(self) -> None:
        try:
            self._driver.run(self._stack)
        except TakenOver:
            return
        except BaseException as error:  # noqa: BLE001 - raised in the thread that iterates
            self._failure = error
        self._channel.end()


class Channel:
    """How events reach the thread that iterates: threads of the run put them, in order, and the consumer takes them.

    Whoever has put some waits, holding no other lock, until they are taken, so a slow consumer slows the run down and
    nothing piles up.
    """

    def __init__(self) -> None:
        # re-entrant: the garbage collector may close a stream in the middle of any code
        self._changed = threading.Condition(threading.RLock())
        self._events: deque[Event] = deque()
        self._open = True
        self._ended = False
        #: a thread that takes events; it never waits for itself
        self.consumer = 0

    def put(self, event: Event) -> None:
        """Adds an event; never waits. Once the consumer has left, events are dropped."""
        with self._changed:
            if self._open:
                self._events.append(event)
                self._changed.notify_all()

    def has_events(self) -> bool:
        """Whether there is something to take."""
        return bool(self._events)

    def wait_until_taken(self) -> None:
        """After putting: waits until the consumer has taken all events, or has left."""
        if threading.get_ident() != self.consumer:
            with self._changed:
                self._changed.wait_for(lambda: not self._events or not self._open)

    def get(self, patience: float) -> Event | None:
        """The next event; None if the run has ended, or there is none within `patience` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._events or self._ended, patience)
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
        """The run has ended: there will be no further events."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_for_end(self, patience: float) -> bool:
        """Waits for the end of the run, at most `patience` seconds; whether it has ended."""
        with self._changed:
            return self._changed.wait_for(lambda: self._ended, patience)

    def leave(self) -> None:
        """The consumer has left: from now on events are dropped and nobody waits."""
        with self._changed:
            self._open = False
            self._events.clear()
            self._changed.notify_all()
