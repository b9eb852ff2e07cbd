"""A Ctrl-C that comes in the instant before a call blocks is not lost."""

from __future__ import annotations

import signal
import threading

import pytest

from kernai.command_line.termination import watched

#: seconds
PATIENCE = 20


class EndedError(Exception):
    """What the handler ends the call with."""


def test_a_signal_that_did_not_end_the_call_is_sent_again() -> None:
    calls: list[int] = []

    def handler(*_: object) -> None:
        calls.append(1)
        if len(calls) > 1:
            raise EndedError

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(EndedError), watched():
            signal.raise_signal(signal.SIGUSR1)
            threading.Event().wait(PATIENCE)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(calls) == 2
    assert signal.set_wakeup_fd(-1) == -1


def test_a_signal_that_ended_the_call_is_not_sent_again(no_thread_is_left: None) -> None:
    with pytest.raises(KeyboardInterrupt), watched():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
