"""Ctrl-C in a session: it cancels the turn that is running, and never the session by accident.

Python raises `KeyboardInterrupt` between any two instructions of the main thread, so also behind the `except` that was
meant for it. Here the handler raises only while there is work that it may break into. One that comes anywhere else is
noted and does nothing. A second one while the work ends after the first does not break into that; it tells that a third
one will, for what runs in threads (the tasks of a parallel workflow) is waited for, and nothing can stop a thread.

Guarantee: `KeyboardInterrupt` comes out of `Interrupts.during`, at most once a call, and is raised nowhere else.
Assumes: one thread, the main one, calls it, and not from within itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from kernai.command_line.signal_watch import SignalWatch

if TYPE_CHECKING:
    from typing import Self

Result = TypeVar("Result")
#: seconds
GRACE = 0.2
_WAITING = b"\n(waiting for what still runs; Ctrl-C again leaves it behind)\n"
_STDERR = 2


class Cancel:
    """Whether the turn it belongs to was cancelled; a run's `cancel`. Without a lock, so that a handler may set it."""

    def __init__(self) -> None:
        self.asked = False

    def is_set(self) -> bool:
        """See `RunOptions`."""
        return self.asked


class Interrupts:
    """A context manager: within it Ctrl-C does what the module says; then the former handler is back."""

    def __init__(self) -> None:
        #: whether the user has pressed Ctrl-C at all, also where it raised nothing
        self.came = False
        self._working = False
        #: how often Ctrl-C came since the work began
        self._pressed = 0
        self._pushed = False
        self._turn = Cancel()
        self._before: Any = None
        self._watch: SignalWatch | None = None

    def __enter__(self) -> Self:
        ours = threading.current_thread() is threading.main_thread()
        # whoever ignores SIGINT (nohup, a shell's background) goes on ignoring it
        if ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._on_signal)
            if hasattr(signal, "pthread_kill"):  # not on Windows
                self._watch = SignalWatch(signal.SIGINT)
                self._watch.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._working = False
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    @property
    def active(self) -> bool:
        """Whether Ctrl-C is dealt with here."""
        return self._before is not None

    def begin_turn(self) -> Cancel:
        """What the next Ctrl-C cancels; an older turn's stays as it is."""
        self._turn = Cancel()
        return self._turn

    def during(self, work: Callable[[], Result]) -> Result:
        """Does the work; Ctrl-C meanwhile comes out of here as `KeyboardInterrupt`, and not once this has returned."""
        try:
            self._pressed = 0
            self._working = True
            return work()
        finally:
            self._working = False

    def pushing(self, work: Callable[[], Result]) -> Result:
        """`during` for what is to end after a Ctrl-C that came while nobody could act on it: where it takes longer than
        `GRACE` it gets another one, as if the user had pressed it once more.
        """
        if self._watch is None:
            return self.during(work)
        push = threading.Timer(GRACE, self._push, (threading.get_ident(),))
        push.daemon = True
        push.start()
        try:
            return self.during(work)
        finally:
            push.cancel()
            push.join()  # so that none comes when the former handler is back

    def _push(self, main: int) -> None:
        self._pushed = True
        signal.pthread_kill(main, signal.SIGINT)

    def _on_signal(self, *_: object) -> None:
        if self._watch is not None:
            self._watch.handled()
        self.came = self.came or not self._pushed
        self._pushed = False
        self._turn.asked = True
        if not self._working:
            return
        self._pressed += 1
        if self._pressed != 2:  # noqa: PLR2004 - the second one is told of
            raise KeyboardInterrupt
        with contextlib.suppress(OSError):
            os.write(_STDERR, _WAITING)  # not through a stream, which may be in the middle of writing
