"""`Channel`: threads of a run put, the consumer takes, and whoever put waits until it is taken."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from kernai import Event
from kernai.drivers import run_stream
from kernai.drivers.run_stream import Channel

#: seconds after which something that hangs fails its test; nothing takes that long when all is well
PATIENCE = 20


pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def event(number: int) -> Event:
    return Event("progress", number)


def started(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def take(channel: Channel) -> Any:
    """The data of the next event; None where there is none now."""
    one = channel.get(0)
    return None if one is None else one.data


def test_events_come_out_in_the_order_in_which_they_went_in() -> None:
    channel = Channel()
    for number in range(1, 4):
        channel.put(event(number))
    assert not channel.ended
    channel.end()
    assert [take(channel) for _ in range(3)] == [1, 2, 3]
    assert take(channel) is None
    assert channel.ended


def test_getting_waits_until_something_is_put() -> None:
    channel = Channel()
    got: list[Any] = []
    thread = started(lambda: got.append(channel.get(PATIENCE)))
    one = event(1)
    channel.put(one)
    thread.join(PATIENCE)
    assert got == [one]


def test_getting_ends_for_every_consumer_when_the_run_does() -> None:
    channel = Channel()
    got: list[Any] = []
    threads = [started(lambda: got.append(channel.get(PATIENCE))) for _ in range(3)]
    channel.end()
    for thread in threads:
        thread.join(PATIENCE)
    assert got == [None, None, None]
    assert channel.wait_for_end(0)


def test_a_worker_waits_until_its_event_is_taken() -> None:
    channel = Channel()
    steps: list[str] = []

    def work() -> None:
        for number in range(100):
            channel.put(event(number))
            channel.wait_until_taken()
            steps.append(f"continued after {number}")

    thread = started(work)
    for number in range(100):
        one = channel.get(PATIENCE)
        assert one is not None
        assert one.data == number
        assert len(steps) <= number + 1
    thread.join(PATIENCE)
    assert len(steps) == 100


def test_with_many_workers_no_more_waits_than_there_are_workers() -> None:
    channel = Channel()
    put = 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal put
        for number in range(50):
            with lock:
                put += 1
                channel.put(event(number))
            channel.wait_until_taken()

    threads = [started(work) for _ in range(8)]
    for taken in range(8 * 50):
        assert channel.get(PATIENCE) is not None
        assert put <= taken + 1 + 8
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_the_consumer_never_waits_for_itself() -> None:
    channel = Channel()
    channel.consumer = threading.get_ident()
    channel.put(event(1))
    channel.wait_until_taken()
    assert take(channel) == 1


def test_leaving_frees_those_that_wait_and_drops_events() -> None:
    channel = Channel()
    channel.put(event(1))
    threads = [started(channel.wait_until_taken) for _ in range(4)]
    channel.leave()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    channel.put(event(2))
    assert take(channel) is None
    channel.leave()


class _LeaveAt:
    """Leaves the channel at the n-th line of its own code, in the same thread: as the garbage collector does when it
    finds a stream that was dropped while this very thread works for it.
    """

    def __init__(self, channel: Channel, line: int) -> None:
        self.channel = channel
        self.left = line

    def __call__(self, frame: FrameType, what: str, _: object) -> Any:
        if frame.f_code.co_filename != run_stream.__file__:
            return None
        if what == "line":
            self.left -= 1
            if self.left == 0:
                self.channel.leave()
        return self


def test_a_channel_may_be_left_by_a_worker_in_the_middle_of_any_call_of_its_own() -> None:
    lines: list[int] = []
    ended: list[bool] = []

    def work(channel: Channel, line: int) -> None:
        channel.consumer = threading.get_ident()  # so that it does not wait for what nobody will take
        leaving = _LeaveAt(channel, line)
        sys.settrace(leaving)
        try:
            channel.put(event(1))
            channel.wait_until_taken()
            channel.end()
        finally:
            sys.settrace(None)
        while channel.get(0) is not None:
            pass
        ended.append(channel.ended)
        lines.append(leaving.left)

    line = 0
    while not lines or lines[-1] <= 0:
        line += 1
        channel = Channel()
        thread = started(partial(work, channel, line))
        thread.join(PATIENCE / 4)
        assert not thread.is_alive(), f"it hangs when left at line {line} of its work"
    assert line > 8
    assert all(ended)
