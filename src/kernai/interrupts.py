"""Ctrl-C while a synchronous run is driven in the main thread.

Python may raise `KeyboardInterrupt` between any two instructions of the main thread. While a run is driven, a handler
in this module decides from the stack frames whether to raise it. It does if the interrupted code is not kernai's and
was called by a kernai function marked with `calls_out`, which can handle any exception there. Otherwise the handler
only notes the press. kernai's waits check for a note regularly, and a driver checks before it performs an effect.
Meanwhile a thread sends the signal again as soon as the main thread is in code where it may be raised. A second press
while the first is still noted is raised at once, wherever the main thread is; unfinished work is not waited for.

The stack is examined, rather than a flag that says where the main thread is: other threads would share the flag, and
each call would have to set and clear it.

Guarantees: every press reaches the caller as `KeyboardInterrupt`, at the latest when the run has ended.
Assumes: SIGINT has Python's own handler when the run begins. Otherwise Ctrl-C is left to the host.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found, unused-ignore]  # `signal.signal` takes ten times as long
import _thread
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from types import CodeType, FrameType

Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])

_SIGINT: Final = _signal.SIGINT
_DEFAULT: Final = _signal.default_int_handler
#: how long the main thread has to leave kernai's code before the signal is sent again, in seconds
_AGAIN: Final = 0.02
_PACKAGE: Final = (lambda: None).__code__.co_filename.removesuffix("interrupts.py")
#: parts of the package that count as user code, so any exception may be raised in them
_OUTSIDE: Final = tuple(
    _PACKAGE + name for name in ("__main__", "command_line", "mcp", "middleware", "mock", "otel", "testing", "viewer")
)

_CALLS_OUT: Final[set[CodeType]] = set()


def calls_out(function: Function) -> Function:
    """Marks a kernai function that calls the user's code and can handle any exception from it.

    All other functions that it calls directly must be kernai's, or safe to interrupt.
    """
    _CALLS_OUT.add(function.__code__)
    return function


def may_raise(frame: FrameType | None) -> bool:
    """Whether an exception may be raised in this frame: it is not kernai's, and a marked kernai function called it.

    Also if no run is being driven, as with SIGTERM while a command reads a pipe. False while an object is being freed,
    since Python only prints exceptions raised there.
    """
    interrupted = frame
    while frame is not None and not _is_kernais(frame.f_code):
        if frame.f_code.co_name == "__del__" or frame.f_code.co_filename.endswith(("weakref.py", "_weakrefset.py")):
            return False
        frame = frame.f_back
    if frame is not None and frame is not interrupted and frame.f_code in _CALLS_OUT:
        return True
    while frame is not None and frame.f_code is not Interrupts.during.__code__:
        frame = frame.f_back
    return frame is None


def _is_kernais(code: CodeType) -> bool:
    path = code.co_filename
    return code in _CALLS_OUT or (path.startswith(_PACKAGE) and not path.startswith(_OUTSIDE))


class Interrupts:
    """The signal handler, and the press that it has noted. There is one per process: runs within runs share it."""

    __slots__ = ("_forced", "_is_sent_again", "noted")

    def __init__(self) -> None:
        self._is_sent_again = False
        self._forced: BaseException | None = None  # of a second press, raised somewhere in the main thread
        #: the exception of a signal that could not be raised when it arrived
        self.noted: BaseException | None = None

    def during(self, work: Callable[..., Result], *given: Any) -> Result:
        """Does the work with the handler installed, unless SIGINT has a handler other than Python's own.

        At the end, raises a press that is still noted.
        """
        is_ours = _signal.getsignal(_SIGINT) is _DEFAULT
        if is_ours:
            try:
                _signal.signal(_SIGINT, self._pressed)
            except ValueError:  # not the main thread of the main interpreter
                is_ours = False
        if not is_ours:
            return work(*given)
        self._is_sent_again, self._forced = False, None
        try:
            return work(*given)
        finally:
            if _signal.getsignal(_SIGINT) == self._pressed:  # unless it was replaced meanwhile
                _signal.signal(_SIGINT, _DEFAULT)
            self.noted, self._forced = self.noted or self._forced, None  # the latter may have been lost
            self.look()

    def look(self) -> None:
        """Raises a noted press, in the main thread only."""
        if self.noted is not None and _thread.get_ident() == threading.main_thread().ident:
            noted, self.noted = self.noted, None
            raise noted

    def look_for_forced(self) -> None:
        """Raises a second press again that was raised somewhere in the main thread, so that its state is uncertain."""
        if self._forced is not None and _thread.get_ident() == threading.main_thread().ident:
            raise self._forced

    def arrived(self, number: int, frame: FrameType | None, error: BaseException) -> None:
        """Raises or notes a signal that interrupts this frame of the main thread. Any signal's handler may call it."""
        is_sent_again, self._is_sent_again = self._is_sent_again, False
        is_second = self.noted is not None and not is_sent_again
        if is_second or may_raise(frame):
            self._forced = self._forced or (error if is_second else None)
            noted, self.noted = self.noted, None
            if noted is not None or not is_sent_again:  # otherwise it was raised before the resent signal arrived
                raise error if noted is None else noted
        elif not is_sent_again:
            self.noted = error
            with suppress(RuntimeError):  # if no thread can be started, `look` still finds the note
                _thread.start_new_thread(self._send_again, (error, number, _thread.get_ident()))

    def _pressed(self, number: int, frame: FrameType | None) -> Any:
        self.arrived(number, frame, KeyboardInterrupt())

    def _send_again(self, noted: BaseException, number: int, main: int) -> None:
        """Sends the signal again until the note is gone. Runs in its own thread."""
        handler = _signal.getsignal(number)
        while True:
            time.sleep(_AGAIN)
            if self.noted is not noted:
                return
            is_open = may_raise(sys._current_frames().get(main))  # noqa: SLF001 - there is no other way
            if is_open and _signal.getsignal(number) is handler:
                self._is_sent_again = True
                if hasattr(_signal, "pthread_kill"):
                    _signal.pthread_kill(main, number)  # to the main thread, so that its system call is interrupted
                else:
                    _signal.raise_signal(number)


INTERRUPTS: Final = Interrupts()
