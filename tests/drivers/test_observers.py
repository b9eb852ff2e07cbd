"""`Stop` from a callback or a sink ends the run; whatever else an observer raises is logged, and the run continues."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest

import kernai
from kernai import Agent, Event, Limits, MemoryStore, MockProvider, Model, Pause, Recorder, Skill, SkillContext, Stop
from tests.loop.loop_cases import Unprintable, command, plan, task
from tests.ways import LIVE_ONLY, PATIENCE, WAYS, Way, as_async, by_aexecute, by_astream

SEEN: list[str] = []
LOOK = Skill("look", execute=lambda: SEEN.append("look"), inputs={})


def agent(*answers: str) -> Agent[str]:
    return Agent(instructions="x", skills=[LOOK], provider=MockProvider(*answers))


class Wrong:
    def event(self, event: Event, run_id: str) -> None: ...


def yielding(event: Event) -> Iterator[Event]:
    yield event


async def later(event: Event) -> AsyncIterator[Event]:
    yield event


def raising(kind: str, error: BaseException, scope: str | None = None) -> Any:
    def on_event(event: Event) -> None:
        if event.type == kind and scope in (None, event.scope):
            raise error

    return on_event


@WAYS
@pytest.mark.parametrize("kind, calls", [("run_start", 0), ("skill_execute", 0), ("skill_result", 1), ("text_chunk", 0)])
def test_stop_from_a_callback_or_cancel_set_by_one_ends_the_run_before_the_next_call(way: Way, kind: str, calls: int) -> None:
    SEEN.clear()
    recorder, store = Recorder(), MemoryStore()
    model = agent("Look: " + command("look"), command("look"), "<final>done</final>")
    stops = iter([Stop("guardrail", "not that")])

    def on_event(event: Event) -> None:
        if event.type == kind or recorder.for_event(kind):
            raise next(stops, Stop("loop", "too late"))

    result = way(model, on_event=on_event, recorder=recorder, store=store, run_id="r")
    assert (result.stop_reason, str(result.error), result.text, len(SEEN)) == ("guardrail", "not that", None, calls)
    assert (recorder.entries[-1].type, recorder.entries[-1].data["stop_reason"]) == ("result", "guardrail")
    assert store.load("r")[-1]["data"]["stop_reason"] == "guardrail"
    resumed = kernai.resume(model.replace(provider=MockProvider("<final>done</final>")), "r", store=store, in_flight="retry")
    assert resumed.text == "done"
    SEEN.clear()
    cancel = threading.Event()
    result = way(agent("Look: " + command("look")), cancel=cancel, on_event=lambda one: cancel.set() if one.type == kind else None)
    assert (result.stop_reason, len(SEEN)) == ("cancelled", calls)


@WAYS
@pytest.mark.parametrize("callbacks, message", [
    ({"on_event": lambda: None}, "on_event must be a function of the event: too many positional arguments"),
    ({"on_event": lambda event, *, run: None}, "on_event must be a function of the event: missing a required .*'run'"),
    ({"on_event": Wrong().event}, "on_event must be a function of the event: missing a required argument"),
    ({"on_event": 5}, "on_event must be a function of the event, got 5"),
    ({"on_event": yielding}, "on_event must be a function of the event, got the generator <function yielding"),
    ({"on_event": later}, "on_event must be a function of the event, got the generator <function later"),
    ({"on_task_complete": lambda task_id, result: None}, "of task_id= input= result= duration_ms= error=: got an unexpected"),
])  # fmt: skip
def test_a_callback_that_would_fail_each_time_is_an_error_before_the_run(
    way: Way, callbacks: dict[str, Any], message: str
) -> None:
    """Only the log says what a callback raises."""
    model = agent("<final>done</final>")
    with pytest.raises(TypeError, match=message):
        way(model, **callbacks)
    heard: list[Any] = []
    for good in (heard.append, lambda event, more=None: heard.append(event), lambda *events: heard.extend(events)):
        assert way(model, on_event=good, on_task_complete=lambda result, **_: None).text == "done"
    assert {event.type for event in heard} >= {"run_start", "result"}


@WAYS
def test_stop_from_on_task_complete_or_from_an_event_meanwhile_ends_the_calls_in_progress(way: Way) -> None:
    def stop(**task: Any) -> None:
        raise Stop("guardrail", f"after {task['task_id']}")

    async def hang(ctx: SkillContext[Any]) -> None:
        done.append("begun")
        ctx.emit({})
        await asyncio.sleep(PATIENCE)
        done.append("ended")

    async def wait() -> None:
        while not done:
            await asyncio.sleep(0)

    three = plan(task("a"), task("b", depends_on=["a"]), task("c"), strategy="parallel")
    says, said = {"go": three, "Do a.": command("wait"), "Do c.": command("hang")}, Stop("guardrail", "after a")
    model = agent().replace(skills=[Skill("wait", execute=wait), Skill("hang", execute=hang)])
    at_its_result, meanwhile = raising("result", said, "0.a"), raising("progress", said)
    for text, hook, observer in (("go", None, at_its_result), ("go", stop, None), ("Do c.", None, meanwhile)):
        done: list[str] = []
        provider = MockProvider().on_call(lambda sent, _: says.get(sent[-1].text, "<final>A!</final>"))
        result = way(model, text, provider=provider, on_event=observer, on_task_complete=hook)
        assert (result.stop_reason, str(result.error)) == ("guardrail", "after a")
        assert done == ["begun"], "the call in progress is cancelled"


@WAYS
@pytest.mark.parametrize("kind, error", [
    ("result", Stop("guardrail", "too late")), ("llm_response", Stop("final", "mine")),
    *((kind, error) for kind in ("result", "llm_response")
      for error in (Pause("when?"), asyncio.CancelledError("mine"), ValueError("odd"))),
])  # fmt: skip
def test_what_a_callback_raises_otherwise_or_after_the_result_is_logged(
    way: Way, kind: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "kernai"):
        assert way(agent("<final>done</final>"), on_event=raising(kind, error)).text == "done"
    assert "event=callback.failed" in caplog.text
    assert str(error) in caplog.text


@WAYS
@pytest.mark.parametrize("native", [False, True])
def test_a_callback_may_use_the_context_of_a_call_which_emits(way: Way, native: bool) -> None:
    contexts: list[SkillContext[Any]] = []
    seen: list[str] = []

    def lend(ctx: SkillContext[Any]) -> str:
        contexts.append(ctx)
        ctx.emit("from the skill")
        return "lent"

    def listen(event: Event) -> None:
        if event.type == "progress":
            seen.append(event.data["data"])
            if len(seen) == 1:
                contexts[0].emit("from the callback")

    model = agent(command("lend"), "<final>done</final>")
    skills = [Skill("lend", execute=as_async(lend) if native else lend)]
    assert way(model.replace(skills=skills), on_event=listen).text == "done"
    assert seen == ["from the skill", "from the callback"]


class BrokenHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("log server gone")


@WAYS
def test_observers_and_a_log_that_fail_at_every_event_do_not_affect_the_run(way: Way) -> None:
    logger = logging.Logger("kernai.test.broken", logging.INFO)  # noqa: LOG001 - one that no other test sees
    logger.addHandler(BrokenHandler())
    kernai.configure(logger=logger)
    seen: list[str] = []

    def listen(event: Event) -> None:
        seen.append(event.type)
        raise Unprintable

    def hook(**given: Any) -> None:
        completed.append(given["task_id"])
        raise ValueError("oops")

    recorder, completed = Recorder(Raising(None, OSError("disk full"))), list[str]()
    model = agent(command("look"), plan(task("a"), task("b")), "A!", "B!", "<final>done</final>")
    assert way(model, recorder=recorder, on_event=listen, on_task_complete=hook).text == "done"
    assert completed == ["a", "b"]
    assert {"run_start", "skill_result"} < set(seen)
    assert seen[-1] == "result"


@WAYS
@pytest.mark.usefixtures("threads_are_often_switched")
def test_callbacks_are_called_one_at_a_time_whatever_runs_at_once(way: Way) -> None:
    together, is_async = threading.Barrier(8), way in (by_aexecute, by_astream)
    inside, overlapped, heard, threads = list[str](), list[str](), list[str](), set[int]()

    def enter(what: str) -> None:
        inside.append(what)
        overlapped.extend(inside[1:])
        heard.append(what)
        threads.add(threading.get_ident())

    async def hear_later(what: str) -> None:
        enter(what)
        await asyncio.sleep(0)
        inside.pop()

    def hear(what: str) -> Any:
        if is_async:
            return hear_later(what)
        enter(what)
        json.loads(json.dumps(list(range(50))))  # something to be interrupted in
        return inside.pop()

    def talk(ctx: SkillContext[Any]) -> str:
        for at in range(10):
            ctx.emit(at)
        return "said"

    async def talk_later(ctx: SkillContext[Any]) -> str:
        for at in range(10):
            ctx.emit(at)
            await asyncio.sleep(0)
        return "said"

    def answer(messages: Sequence[kernai.Message], _: Model) -> str:
        asked = messages[-1].text
        if asked == "go":
            return plan(*(task(one) for one in "abcdefgh"), strategy="parallel")
        if not asked.startswith("Do"):
            return "<final>done</final>"
        together.wait(PATIENCE)
        return command("talk") + command("talk_later")

    skills, recorder = [Skill(one.__name__, execute=one) for one in (talk, talk_later)], Recorder()
    it = Agent(instructions="x", skills=skills, provider=MockProvider(chunk_size=16).on_call(answer), parallel_skills=True)
    result = way(
        it, recorder=recorder, on_event=lambda event: hear(event.type), on_task_complete=lambda task_id, **_: hear(f"hook {task_id}")
    )
    assert (result.text, overlapped) == ("done", [])
    assert heard.count("progress") == 8 * 2 * 10
    hooked = [one for one in heard if one.startswith("hook")]
    assert sorted(hooked) == [f"hook {one}" for one in "abcdefgh"]
    assert [one for one in heard if one not in LIVE_ONLY and one not in hooked] == [event.type for event in recorder.entries]
    assert not is_async or threads == {threading.get_ident()}, "async callbacks run on the event loop"


class Raising:
    """A sink that fails at one kind of event, or at every event."""

    def __init__(self, kind: str | None, error: BaseException) -> None:
        self.kind, self.error = kind, error
        self.tried: list[Event] = []

    def record(self, event: Event) -> None:
        self.tried.append(event)
        if self.kind in (None, event.type):
            raise self.error


@WAYS
@pytest.mark.parametrize("kind, error, reason", [
    ("skill_result", Stop("guardrail", "not that"), "guardrail"),
    *((kind, error, "final") for kind in ("skill_result", "result")
      for error in (Pause("when?"), asyncio.CancelledError("mine"), ValueError("odd"))),
    ("result", Stop("guardrail", "not that"), "final"),
])  # fmt: skip
def test_a_sink_that_raises_is_treated_like_a_callback(
    way: Way, kind: str, error: BaseException, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    recorder = Recorder(Raising(kind, error))
    with caplog.at_level(logging.ERROR, "kernai"):
        result = way(agent(command("look"), "<final>done</final>"), recorder=recorder, store=store, run_id="r")
    assert result.stop_reason == reason
    assert ("event=recorder.failed" in caplog.text and str(error) in caplog.text) == (reason == "final")
    assert store.load("r")[-1]["data"]["stop_reason"] == reason


# ------------------------------------------------------------------------------------- events that cannot be delivered


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
    SEEN.clear()
    model, recorder = agent(command("look") * 2, "<final>done</final>"), Recorder()
    with pytest.raises(LostError):
        way(model.replace(parallel_skills=parallel), recorder=recorder, on_event=lost_at("skill_execute"))
    assert SEEN == []
    assert kinds(recorder).count("messages_sent") == 1  # the model is not told of a failure of a call that was not made
    assert "skill_result" not in kinds(recorder)
    assert {event.data["not_run"] for event in recorder.for_event("skill_error")} == {True}
    assert kinds(recorder)[-1] == "result"
    assert recorder.entries[-1].data["stop_reason"] == "cancelled"


@WAYS
@pytest.mark.parametrize("at, calls, ends", [
    ("messages_sent", 0, ["run_start", "messages_sent", "result"]), ("skill_result", 1, ["skill_result", "messages_sent", "result"]),
    ("result", 2, ["blocks_parsed", "final", "result"]),
])
def test_an_observer_that_fails_prevents_what_it_was_to_hear_of_and_loses_no_outcome(way: Way, at: str, calls: int, ends: list[str]) -> None:
    recorder = Recorder()
    with pytest.raises(LostError):
        way(agent(command("look"), "<final>done</final>"), recorder=recorder, on_event=lost_at(at))
    assert kinds(recorder).count("llm_response") == calls
    assert kinds(recorder)[-3:] == ends
    assert recorder.entries[-1].data["stop_reason"] == ("final" if at == "result" else "cancelled")


@WAYS
@pytest.mark.parametrize("listens", [False, True], ids=["alone", "with a callback"])
def test_a_failing_sink_gets_each_event_at_most_twice_and_the_caller_gets_its_error(way: Way, listens: bool) -> None:
    sink = Raising(None, LostError())
    options: dict[str, Any] = {"on_event": lambda event: None} if listens else {}
    with pytest.raises(LostError):
        way(agent("<final>done</final>"), recorder=Recorder(sink), **options)
    assert {event.type for event in sink.tried} == {"run_start", "messages_sent", "result"}
    assert max(map(sink.tried.count, sink.tried)) <= 2

    def talk(ctx: SkillContext[Any]) -> None:
        ctx.emit("hello")

    sink, options["limits"] = Raising("progress", LostError()), Limits(timeout=PATIENCE)
    with pytest.raises(LostError):
        way(agent(command("talk")).replace(skills=[Skill("talk", execute=talk)]), recorder=Recorder(sink), **options)


@WAYS
def test_a_failure_in_a_task_ends_the_run_and_not_the_task_alone(way: Way) -> None:
    model, recorder = agent(plan(task("a", "x"), task("b", "x")), "<final>task</final>", "<final>done</final>"), Recorder()
    with pytest.raises(LostError):
        way(model, recorder=recorder, on_event=lost_at("run_start", "0.a"))
    assert len(recorder.for_event("llm_response")) == 1
    assert kinds(recorder)[-1] == "result"
    assert kinds(recorder, "0.a")[-1] == "result"
    assert recorder.entries[-1].data["stop_reason"] == "cancelled"
