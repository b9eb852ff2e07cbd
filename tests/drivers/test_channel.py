"""`Channel`: threads of a run put, the consumer takes, and whoever put waits until it is taken."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

import pytest

from kernai import Event
from kernai.drivers import run_stream
from kernai.drivers.run_stream import Channel
from tests.ways import PATIENCE

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


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
            channel.put(Event("progress", 1))
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
        thread = threading.Thread(target=work, args=(channel, line), daemon=True)
        thread.start()
        thread.join(PATIENCE / 4)
        assert not thread.is_alive(), f"it hangs when left at line {line} of its work"
    assert line > 8
    assert all(ended)
