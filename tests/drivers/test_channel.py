"""`Channel`: many threads put, one takes, and whoever put waits until it is taken."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest

from kernai import Event
from kernai.drivers import channel as channel_module
from kernai.drivers.channel import Channel
from kernai.loop.effects import Ended

#: seconds after which something that hangs fails its test; nothing takes that long when all is well
PATIENCE = 20


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
        assert not thread.is_alive(), f"{thread.name} waits for ever"


def event(number: int) -> Event:
    return Event("progress", number)


def started(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_items_come_out_in_the_order_in_which_they_went_in() -> None:
    channel = Channel()
    for number in range(3):
        channel.put(event(number))
    channel.put(Ended("a", 1))
    channel.put(event(3))
    assert [one.data for one in channel.take_events()] == [0, 1, 2]  # up to the outcome
    ended = channel.get()
    assert isinstance(ended, Ended)
    assert ended.value == 1
    assert [one.data for one in channel.take_events()] == [3]
    assert list(channel.take_events()) == []


def test_getting_waits_until_something_is_put() -> None:
    channel = Channel()
    got: list[Any] = []
    thread = started(lambda: got.append(channel.get()))
    one = event(1)
    channel.put(one)
    thread.join(PATIENCE)
    assert got == [one]


def test_a_worker_waits_until_its_event_is_taken() -> None:
    channel = Channel()
    steps: list[str] = []

    def work() -> None:
        for number in range(100):
            channel.put(event(number))
            channel.wait_for_room()
            steps.append(f"went on after {number}")

    thread = started(work)
    for number in range(100):
        item = channel.get()
        assert isinstance(item, Event)
        assert item.data == number
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
            channel.wait_for_room()

    threads = [started(work) for _ in range(8)]
    for taken in range(8 * 50):
        channel.get()
        assert put <= taken + 1 + 8
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_the_consumer_never_waits_for_itself() -> None:
    channel = Channel()
    channel.put(event(1))
    channel.wait_for_room()
    assert [one.data for one in channel.take_events()] == [1]


def test_nobody_waits_for_a_consumer_that_runs_a_skill() -> None:
    channel = Channel()
    with channel.consumer_works():
        channel.put(event(1))
        thread = started(channel.wait_for_room)
        thread.join(PATIENCE)
        assert not thread.is_alive()
    thread = started(channel.wait_for_room)
    assert [one.data for one in channel.take_events()] == [1]
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_closing_frees_those_that_wait_and_drops_events_but_no_outcome() -> None:
    channel = Channel()
    channel.put(event(1))
    channel.put(Ended("a", 1))
    threads = [started(channel.wait_for_room) for _ in range(4)]
    channel.close()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    channel.put(event(2))
    channel.put(Ended("b", 2))
    assert [getattr(channel.get(), "key", None) for _ in range(2)] == ["a", "b"]
    assert list(channel.take_events()) == []
    channel.close()


class _CloseAt:
    """Closes the channel at the n-th line of its own code, in the same thread: as the garbage collector does when it
    finds a stream that was dropped while this very thread works for it.
    """

    def __init__(self, channel: Channel, line: int) -> None:
        self.channel = channel
        self.left = line

    def __call__(self, frame: FrameType, what: str, _: object) -> Any:
        if frame.f_code.co_filename != channel_module.__file__:
            return None
        if what == "line":
            self.left -= 1
            if self.left == 0:
                self.channel.close()
        return self


def test_a_channel_may_be_closed_by_a_worker_in_the_middle_of_any_call_of_its_own() -> None:
    lines: list[int] = []
    outcomes: list[Any] = []

    def work(channel: Channel, line: int) -> None:
        closing = _CloseAt(channel, line)
        sys.settrace(closing)
        try:
            channel.put(event(1))
            channel.wait_for_room()
            channel.put(Ended("a", 1))
        finally:
            sys.settrace(None)
        list(channel.take_events())
        outcomes.append(channel.get())
        lines.append(closing.left)

    line = 0
    while not lines or lines[-1] <= 0:
        line += 1
        channel = Channel()
        busy = channel.consumer_works()  # so that nobody waits for what nobody will take
        busy.__enter__()
        thread = started(partial(work, channel, line))
        thread.join(PATIENCE / 4)
        assert not thread.is_alive(), f"it hangs when closed at line {line} of its work"
    assert line > 8
    assert all(isinstance(one, Ended) for one in outcomes)
