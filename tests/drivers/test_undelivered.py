"""Delivery is not an outcome: where events cannot be delivered the effect behind them is not performed, nobody takes the
failure for the effect's own, and the caller gets it when everything has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kernai import Agent, Event, MockProvider, Recorder, skill
from tests.loop.loop_cases import command, plan, task
from tests.ways import WAYS, Way


class LostError(BaseException):
    """What is raised where an event should have gone: not an `Exception`, so it is no observer's mistake."""


def lost_at(kind: str, scope: str = "") -> Callable[[Event], None]:
    """A callback that fails once, at the first event of this kind."""
    failed: list[Event] = []

    def listen(event: Event) -> None:
        if event.type == kind and event.scope == scope and not failed:
            failed.append(event)
            raise LostError

    return listen


def kinds(recorder: Recorder, scope: str = "") -> list[str]:
    return [event.type for event in recorder.entries if event.scope == scope]


@WAYS
@pytest.mark.parametrize("parallel", [False, True], ids=["in-order", "at-once"])
def test_a_call_whose_announcement_was_not_delivered_is_not_made(way: Way, parallel: bool) -> None:
    called: list[str] = []

    @skill(register=False)
    def pay() -> str:
        called.append("pay")
        return "paid"

    provider = MockProvider(command("pay") * 2, "<final>done</final>")
    agent = Agent(instructions="x", skills=[pay], provider=provider, parallel_skills=parallel)
    recorder = Recorder()
    with pytest.raises(LostError):
        way(agent, recorder=recorder, on_event=lost_at("skill_execute"))
    assert called == []
    assert provider.call_count == 1  # no model reads of a failure that was none
    assert "skill_result" not in kinds(recorder)
    assert {event.data["not_run"] for event in recorder.for_event("skill_error")} == {True}
    assert kinds(recorder)[-1] == "result"
    assert recorder.entries[-1].data["stop_reason"] == "cancelled"


@WAYS
def test_a_model_is_not_called_when_that_could_not_be_recorded(way: Way) -> None:
    provider, recorder = MockProvider("<final>done</final>"), Recorder()
    with pytest.raises(LostError):
        way(Agent(instructions="x", provider=provider), recorder=recorder, on_event=lost_at("messages_sent"))
    assert provider.call_count == 0
    assert kinds(recorder) == ["run_start", "messages_sent", "result"]


@WAYS
def test_what_was_done_is_recorded_although_its_observers_failed(way: Way) -> None:
    @skill(register=False)
    def pay() -> str:
        return "paid"

    agent = Agent(instructions="x", skills=[pay], provider=MockProvider(command("pay"), "<final>done</final>"))
    recorder = Recorder()
    with pytest.raises(LostError):
        way(agent, recorder=recorder, on_event=lost_at("skill_result"))
    assert kinds(recorder)[-3:] == ["skill_result", "messages_sent", "result"]


@WAYS
@pytest.mark.parametrize("listens", [False, True], ids=["alone", "with a callback"])
def test_a_sink_that_takes_nothing_gets_each_event_twice_at_most_and_the_caller_its_error(way: Way, listens: bool) -> None:
    class Refusing:
        def __init__(self) -> None:
            self.tried: list[Event] = []

        def record(self, event: Event) -> None:
            self.tried.append(event)
            raise LostError

    sink, provider = Refusing(), MockProvider("<final>done</final>")
    options: dict[str, Any] = {"on_event": lambda event: None} if listens else {}
    with pytest.raises(LostError):
        way(Agent(instructions="x", provider=provider), recorder=Recorder(sink), **options)
    assert {event.type for event in sink.tried} == {"run_start", "messages_sent", "result"}
    assert max(map(sink.tried.count, sink.tried)) <= 2
    assert provider.call_count == 0


@WAYS
def test_a_failure_in_a_task_ends_the_run_and_not_the_task_alone(way: Way) -> None:
    provider = MockProvider(plan(task("a", "x"), task("b", "x")), "<final>task</final>", "<final>done</final>")
    recorder = Recorder()
    with pytest.raises(LostError):
        way(Agent(instructions="x", provider=provider), recorder=recorder, on_event=lost_at("run_start", "0.a"))
    assert provider.call_count == 1
    assert kinds(recorder)[-1] == "result"
    assert kinds(recorder, "0.a")[-1] == "result"
    assert recorder.entries[-1].data["stop_reason"] == "cancelled"


@WAYS
def test_an_observer_that_fails_at_the_very_end_still_reaches_the_caller(way: Way) -> None:
    recorder = Recorder()
    with pytest.raises(LostError):
        way(Agent(instructions="x", provider=MockProvider("hi")), recorder=recorder, on_event=lost_at("result"))
    assert recorder.entries[-1].data["stop_reason"] == "final"
