"""A Ctrl-C that comes in the instant before a call blocks is not lost.

Python runs a signal's handler between two instructions. Where the signal arrives behind the last of them and before the
system call that waits (in `readline`, which looks only when its own call is interrupted, that is most of the time), the
call waits as if nothing had been, until a key is pressed. The system's side of Python tells a pipe of each signal at
once. Here a thread watches that pipe, and where the handler has not taken the news out of it after a moment, it sends
the signal again, into the waiting call.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading

#: seconds the handler has, before the signal is taken for lost
PATIENCE = 0.05


class SignalWatch:
    """Watches over one signal of the main thread from `start` to `stop`; both are for the main thread."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._reading, self._writing = os.pipe()
        for end in (self._reading, self._writing):
            os.set_blocking(end, False)
        self._main = threading.get_ident()
        self._stopping = threading.Event()
        self._before = -1
        self._thread = threading.Thread(target=self._watch, name="kernai-signal-watch", daemon=True)

    def start(self) -> None:
        """From now on."""
        self._before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        self._thread.start()

    def stop(self) -> None:
        """Until now; nothing of it is left."""
        self._stopping.set()
        signal.set_wakeup_fd(self._before)
        os.write(self._writing, b"\0")
        self._thread.join()
        os.close(self._reading)
        os.close(self._writing)

    def handled(self) -> None:
        """To be called first thing in the signal's handler."""
        self._take()

    def _take(self) -> bytes:
        with contextlib.suppress(BlockingIOError):
            return os.read(self._reading, 4096)
        return b""

    def _watch(self) -> None:
        while not self._stopping.is_set():
            select.select([self._reading], [], [])
            self._stopping.wait(PATIENCE)
            if self._number in self._take() and not self._stopping.is_set():
                signal.pthread_kill(self._main, self._number)
