"""Ctrl-C and SIGTERM in a command."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from kernai.interrupts import INTERRUPTS

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


class Terminated(BaseException):
    """SIGTERM, as `KeyboardInterrupt` is Ctrl-C: whatever is under way is ended in good order."""


@contextmanager
def terminable() -> Iterator[None]:
    """In this block SIGTERM ends a run as Ctrl-C does, so that its recording is whole."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: FrameType | None) -> None:
        INTERRUPTS.arrived(number, frame, Terminated())

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        INTERRUPTS.look()
