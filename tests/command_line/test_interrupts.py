"""Ctrl-C is raised where it is wanted, once, and nowhere else."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

import pytest

from kernai import Agent, MockProvider
from kernai.command_line.errors import CommandError
from kernai.command_line.interrupts import Interrupts
from kernai.command_line.signal_watch import SignalWatch
from tests.command_line.test_chat_session import session


def test_after_a_session_ctrl_c_is_what_it_was() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        assert signal.getsignal(signal.SIGINT) != before
        cancel = interrupts.begin_turn()
        signal.raise_signal(signal.SIGINT)  # nothing listens: it is noted, and does nothing else
        assert cancel.is_set()
        assert not interrupts.begin_turn().is_set()
        with pytest.raises(KeyboardInterrupt):
            interrupts.during(lambda: signal.raise_signal(signal.SIGINT))
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_an_ignored_ctrl_c_stays_ignored_and_other_threads_have_none() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    done: list[int] = []
    thread = threading.Thread(target=lambda: Interrupts().__enter__().during(lambda: done.append(1)))
    thread.start()
    thread.join()
    assert done == [1]


@pytest.mark.slow
def test_ctrl_c_between_two_instructions_never_gets_out_of_a_session() -> None:
    """The signal is made at each line that the session runs, one after the other."""
    failing = MockProvider('<command name="/skills"></command>', "<final>Done.</final>")
    agent = Agent(instructions="x", provider=failing, skills=[])
    for at in range(1, 400):
        lines = 0

        def trace(frame: Any, event: str, _: Any, at: int = at) -> Any:
            nonlocal lines
            if "command_line" not in frame.f_code.co_filename or frame.f_code.co_name in ("_on_signal", "__exit__", "__enter__", "handled", "_take", "_watch"):
                return trace
            if event == "line":
                lines += 1
                if lines == at:
                    signal.raise_signal(signal.SIGINT)
            return trace

        failing.reset()
        with Interrupts() as interrupts:
            talk = session(agent, interrupts)
            before = sys.gettrace()
            sys.settrace(trace)
            try:
                assert talk.take("one")
            except CommandError:
                pass
            finally:
                sys.settrace(before)
        if lines < at:
            return
    pytest.fail("the session never came to its end")


def test_a_second_ctrl_c_does_not_break_into_what_the_first_one_ends(capfd: pytest.CaptureFixture[str]) -> None:
    ended: list[int] = []

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)
            ended.append(1)

    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        interrupts.during(work)
    assert ended == [1]
    assert "Ctrl-C again leaves it behind" in capfd.readouterr().err


def test_a_signal_that_its_handler_did_not_take_is_sent_again() -> None:
    taken = threading.Event()
    calls: list[int] = []

    def handler(*_: object) -> None:
        calls.append(1)
        if len(calls) > 1:
            watch.handled()
            taken.set()

    before = signal.signal(signal.SIGUSR1, handler)
    watch = SignalWatch(signal.SIGUSR1)
    watch.start()
    try:
        signal.raise_signal(signal.SIGUSR1)
        assert taken.wait(10)
    finally:
        watch.stop()
        signal.signal(signal.SIGUSR1, before)
    assert signal.set_wakeup_fd(-1) == -1


def test_what_takes_longer_than_its_grace_is_pushed() -> None:
    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        interrupts.pushing(lambda: threading.Event().wait(20))


def test_what_ends_in_time_is_not_pushed() -> None:
    with Interrupts() as interrupts:
        assert interrupts.pushing(lambda: 1) == 1
    assert Interrupts().pushing(lambda: 2) == 2
