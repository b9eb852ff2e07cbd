"""`RunStream`: a run as an iterator of its events."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, Generic

from kernai._util.copies import NotCopied
from kernai.drivers.answer_stream import TAKEN_BACK, AnswerText, PartialAnswer
from kernai.drivers.driver import GRACE, POLL, Stack, TakenOver
from kernai.errors import KernaiError
from kernai.interrupts import INTERRUPTS
from kernai.values.result import Output_co

if TYPE_CHECKING:
    from typing import Self

    from kernai.drivers.channel import Channel
    from kernai.drivers.threads import ThreadsDriver
    from kernai.events import Event
    from kernai.loop.effects import Work
    from kernai.loop.run_state import Run
    from kernai.values.result import Result


class RunStream(NotCopied, Generic[Output_co]):
    """The run begins with the first event asked for; the last one is the root's `result`, then `.result`.

    It goes on in a thread of its own, in a copy of the context variables of whoever called `stream`, and waits for its
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
        self._driving = _Driving(driver, Stack(work, run.outbox), channel)
        self._run = run
        self._channel = channel

    @property
    def result(self) -> Result[Output_co]:
        """How the run ended. `KernaiError` as long as it has not: iterate to the end, or `close()`."""
        result = self._run.result
        if result is None:
            raise KernaiError("the run has not ended: iterate over the stream to its end, or close it")
        return result

    def close(self) -> None:
        """Cancels the run and waits until it has ended; does nothing when it has.

        A skill that does not end is left to end by itself. From within the run (a callback, a skill) it only cancels.
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
        """The next event; None when the run has ended. With Ctrl-C the run ends first."""
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
        """The answer's text alone, as it comes: pieces of a final, or, at the end, an answer in prose.

        `RunStream.TAKEN_BACK`, an empty text, says that the pieces given so far are not the answer after all. Those
        behind the last one are, joined, `result.text`; it ends without an answer where the run does.
        """
        reader = AnswerText()
        for event in self:
            yield from reader.take(event)

    def partial(self) -> Iterator[Any]:
        """What is complete of the answer so far, as JSON data, each time that it is more; of a text, the text so far.

        When the model begins anew, so does this. The value itself is ``result.output``.
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


class _Driving:
    """A root run in a thread of its own. It does not hold the stream, so a stream that is dropped is noticed.

    Where no thread can be started, whoever waits for the run drives it.
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
        """Cancels the run; nobody takes its events any more."""
        self._driver.root.cancellation.set()
        self._channel.leave()

    def end(self) -> None:
        """Waits until the run has ended, or ends it here."""
        self.begin()
        while not self._channel.wait_for_end(self.patience):
            self.look_after()

    def look_after(self) -> None:
        """Where the run is to stop and sits in a call that does not end, ends it here, without that call."""
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
        """Drives the run until it has told something."""
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
        """Raises, once, what the run raised (a mistake of the host's own code)."""
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
