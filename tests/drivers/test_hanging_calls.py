"""A call that does not end when its run must stop is abandoned, unless it runs in the caller's own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import kernai
from kernai import Agent, Limits, MockProvider, Model, Recorder, Skill, execute, skill, stream
from kernai.runs import run_request
from tests.loop.loop_cases import command, plan, task
from tests.ways import ALL, PATIENCE, WAYS, Way, by_aexecute, by_astream, by_execute, by_stream, join_threads

pytestmark = pytest.mark.slow


class Hang:
    """A call that hangs until the test ends, whatever happens to its run."""

    def __init__(self) -> None:
        self.entered, self.leave = threading.Event(), threading.Event()
        self.in_time = True

    def __call__(self) -> str:
        self.entered.set()
        self.in_time = self.leave.wait(PATIENCE)
        return "late"


@pytest.fixture
def hang(no_thread_is_left: None) -> Iterator[Hang]:
    made = Hang()
    yield made
    made.leave.set()


def agents(hang: Hang) -> dict[str, Agent]:
    """Agents that hang in a worker under every driver, but for the first one, whose call `execute` makes itself."""
    one = Skill("hang", execute=hang, inputs={})
    calls = MockProvider(command("hang") * 2, "<final>done</final>")
    tasks = MockProvider(plan(task("a", "x"), strategy="parallel"), command("hang"), "<final>done</final>")
    inner = Agent(instructions="inner", skills=[one], provider=MockProvider(command("hang"), "<final>in</final>"))
    helper = [inner.as_skill("helper", "Helps.")]
    nested = MockProvider(command("helper", "x") * 2, "<final>done</final>")

    def asks_the_task(messages: Sequence[kernai.Message], _: Model) -> str:
        return plan(task("a", "x"), strategy="parallel") if messages[-1].text == "go" else hang()

    return {
        "its only call": Agent(instructions="x", skills=[one], provider=MockProvider(command("hang"), "<final>done</final>")),
        "parallel calls": Agent(instructions="x", skills=[one], provider=calls, parallel_skills=True),
        "a task": Agent(instructions="x", skills=[one], provider=tasks),
        "an agent called beside another": Agent(instructions="x", skills=helper, provider=nested, parallel_skills=True),
        "a provider of a task": Agent(instructions="x", provider=MockProvider().on_call(asks_the_task)),
    }


KINDS = ("parallel calls", "a task", "an agent called beside another", "a provider of a task")


def whole(recorder: Recorder) -> bool:
    """Whether every announced call has a recorded outcome."""
    begun = [event.data["call_id"] for event in recorder.for_event("skill_execute")]
    ended = [event.data["call_id"] for event in [*recorder.for_event("skill_result"), *recorder.for_event("skill_error")]]
    starts, ends = recorder.for_event("run_start"), recorder.for_event("result")
    return sorted(begun) == sorted(ended) and len(starts) == len(ends) and recorder.entries[-1].scope == ""


@pytest.mark.parametrize("way, kind, reason", [
    (way, kind, ("cancelled", "timeout")[(at + number) % 2]) for at, way in enumerate(ALL) for number, kind in enumerate(KINDS)
] + [(way, "its only call", reason) for way in (by_stream, by_aexecute, by_astream) for reason in ("cancelled", "timeout")])
def test_a_run_that_must_stop_does_not_wait_for_a_hanging_call(way: Way, reason: str, kind: str, hang: Hang) -> None:
    recorder = Recorder()
    stop: dict[str, Any] = {"limits": Limits(timeout=0.05)} if reason == "timeout" else {"cancel": hang.entered}
    result = way(agents(hang)[kind], recorder=recorder, **stop)
    assert result.stop_reason == reason
    assert not hang.leave.is_set()
    assert whole(recorder)


def test_a_closed_stream_has_its_result_at_once(hang: Hang) -> None:
    it, recorder = agents(hang)["its only call"], Recorder()
    # the last event is delivered in this thread, which has taken over the run
    events = stream(it, "go", recorder=recorder, on_event=lambda event: events.close() if event.type == "result" else None)
    next(event for event in events if event.type == "skill_execute")
    assert hang.entered.wait(PATIENCE)
    events.close()
    assert events.result.stop_reason == "cancelled"
    assert recorder.entries[-1].type == "result"
    count = len(recorder.entries)
    hang.leave.set()
    join_threads("kernai-stream")
    assert len(recorder.entries) == count  # the outcome of the abandoned call is dropped


@pytest.mark.parametrize("way", [by_execute, by_stream])
def test_an_async_skill_that_ignores_cancellation_is_abandoned_too(way: Way, hang: Hang) -> None:
    @skill(register=False)
    async def stubborn() -> str:
        hang.entered.set()
        while not hang.leave.is_set():
            try:
                await asyncio.to_thread(hang.leave.wait, PATIENCE)
            except asyncio.CancelledError:
                continue
        return "late"

    provider = MockProvider(command("stubborn"), "<final>done</final>")
    result = way(Agent(instructions="x", skills=[stubborn], provider=provider), cancel=hang.entered)
    assert result.stop_reason == "cancelled"
    assert not hang.leave.is_set()


@WAYS
@pytest.mark.parametrize("reason", ["timeout", "cancelled"])
def test_neither_an_async_skill_nor_its_work_in_a_thread_is_waited_for(
    way: Way, reason: str, hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    @skill(register=False)
    async def hand_on() -> str:
        return await asyncio.to_thread(hang)

    provider, recorder = MockProvider(command("hand_on"), "<final>done</final>"), Recorder()
    stop: dict[str, Any] = {"cancel": hang.entered}
    if reason == "timeout":  # no time passes before the skill has begun
        stop = {"limits": Limits(timeout=0.05)}
        monkeypatch.setattr(run_request._CLOCK, "monotonic", hang.entered.is_set)
    agent = Agent(instructions="x", skills=[hand_on], provider=provider)
    if way in (by_aexecute, by_astream):
        # `asyncio.run` itself waits for its threads, so the end of the run lets them go
        stop["on_event"] = lambda event: hang.leave.set() if event.type == "result" else None
    result = way(agent, recorder=recorder, **stop)
    assert result.stop_reason == reason
    assert hang.in_time
    [failed] = recorder.for_event("skill_error")
    assert failed.data["interrupted"] is True
    assert whole(recorder)


def test_a_sync_run_does_not_wait_for_work_that_an_async_skill_left_in_a_thread(hang: Hang) -> None:
    @skill(register=False)
    async def leave() -> str:
        left = asyncio.get_running_loop().run_in_executor(None, hang)
        return "left" if not left.done() else "done"

    agent = Agent(instructions="x", skills=[leave], provider=MockProvider(command("leave"), "<final>done</final>"))
    assert execute(agent, "go").text == "done"
    assert not hang.leave.is_set()
