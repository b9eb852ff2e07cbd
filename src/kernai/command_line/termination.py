"""SIGTERM, as `timeout 60 kernai run ...` sends it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from kernai.interrupts import INTERRUPTS


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
