"""A Ctrl-C that comes in the instant before a call blocks is not lost.

Python runs a signal's handler between two instructions. Where the signal arrives after the last of them and before the
system call that waits (in `readline`, which looks only when its own call is interrupted, that is most of the time), the
call waits as if nothing had been, until a key is pressed. The system's side of Python writes each signal to a pipe at
once. Here a thread watches that pipe, and where the call has not ended after a moment, it sends the signal again, into
the waiting call.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: seconds that the handler has to end the call, before the signal is taken for lost
PATIENCE = 0.05


@contextmanager
def watched() -> Iterator[None]:
    """Around a call of the main thread that waits, and that a signal's handler ends by raising."""
    if not hasattr(signal, "pthread_kill"):  # on Windows
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    main, over = threading.get_ident(), threading.Event()

    def watch() -> None:
        while not over.is_set():
            select.select([reading], [], [])
            came = os.read(reading, 4096)
            if not over.wait(PATIENCE):
                for number in set(came):
                    signal.pthread_kill(main, number)

    watcher = threading.Thread(target=watch, name="kernai-signal-watch", daemon=True)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(before)
        os.write(writing, b"\0")
        watcher.join()
        os.close(reading)
        os.close(writing)
