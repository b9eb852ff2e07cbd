"""`Cancellation`: whether a root run is to stop, and why; asked by the loop, the drivers, providers and skills."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernai.errors import LimitReachedError, RunCancelledError, RunStoppedError, Stop
from kernai.loop.effects import Cancelled
from kernai.values.result import StopReason

if TYPE_CHECKING:
    from kernai.loop.outbox import Clock


class Cancellation:
    """Set from within (Ctrl-C, a closed stream), by the caller's object with `is_set()`, or by time that has run out.

    `deadline` is in the clock's monotonic seconds, None without a timeout.
    """

    __slots__ = ("_clock", "_outer", "_set", "_stop", "_timeout", "deadline", "is_quiet", "must_be_watched")

    def __init__(self, clock: Clock, outer: Any = None) -> None:
        if outer is not None and not callable(getattr(outer, "is_set", None)):
            raise TypeError(f"cancel must have is_set(), like threading.Event; {type(outer).__name__} has none")
        self._clock = clock
        self._outer = outer
        self._set = False
        self._stop: Stop | None = None
        self._timeout: float | None = None
        self.deadline: float | None = None
        #: whether it may come to be set without a word, so that who waits has to look now and then
        self.must_be_watched = outer is not None
        #: whether there is surely nothing to see: it is not set, and need not be watched
        self.is_quiet = outer is None

    def begin(self, timeout: float | None, spent: float = 0.0) -> None:
        """The run begins now and has `timeout` seconds, of which earlier segments have used `spent`."""
        if timeout is not None:
            self._timeout = timeout
            self.deadline = self._clock.monotonic() + max(timeout - spent, 0.0)
            self.must_be_watched = True
            self.is_quiet = False

    def set(self) -> None:
        self._set = True
        self.is_quiet = False

    def stop(self, stop: Stop) -> None:
        """An observer wants the run to end; the first one says why."""
        self._stop = self._stop or stop
        self.set()

    def reopen(self) -> None:
        """The run goes on that a `stop` has ended."""
        self._set, self._stop = False, None
        self.is_quiet = not self.must_be_watched

    def is_set(self) -> bool:
        return self._set or (self.must_be_watched and self._is_set_outside())

    def check(self) -> None:
        """Raises `Cancelled` where the run is to stop."""
        if self._set or (self.must_be_watched and self._is_set_outside()):
            raise Cancelled

    def error(self) -> RunStoppedError:
        """Why the run is to stop. A cancellation comes before time that has run out as well."""
        if self.is_set() and not self._set:
            return LimitReachedError(f"timeout={self._timeout} s has passed", StopReason.TIMEOUT)
        if self._stop is not None and self._stop.reason != StopReason.CANCELLED:
            return LimitReachedError(str(self._stop), self._stop.reason)
        return RunCancelledError("the run was cancelled")

    def _is_set_outside(self) -> bool:
        if self._outer is not None:
            # kept: a run that has seen the cancellation once must not go on because it was taken back
            self._set = bool(self._outer.is_set())
        return self._set or (self.deadline is not None and self._clock.monotonic() >= self.deadline)
