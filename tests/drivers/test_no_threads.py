"""Without threads, as in Pyodide, in a subinterpreter or at a limit: what needs no thread works, and the rest is a clear error."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import pytest

import kernai
from kernai import Agent, Event, KernaiError, MemoryStore, MockProvider, Recorder, Skill
from kernai.drivers.driver import Stack
from kernai.middleware import timeout
from tests.loop.loop_cases import command, plan, task
from tests.ways import WAYS, Way, by_execute, by_stream

USER: ContextVar[str] = ContextVar("user", default="nobody")
TURNS = (command("look") + command("look"), command("look"), "<final>done</final>")


@pytest.fixture(autouse=True, params=["any", "daemons"])
def _no_threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    if request.param == "any":
        monkeypatch.setattr(threading.Thread, "start", refuse)
    elif sys.version_info < (3, 12):
        pytest.skip("only Python 3.12 and later can refuse daemonic threads, as subinterpreters do")
    else:
        monkeypatch.setattr(threading, "_daemon_threads_allowed", lambda: False)


def look() -> str:
    return f"seen by {USER.get()}"


async def wait() -> str:
    await asyncio.sleep(0)
    return "waited"


def agent(*answers: str, **options: Any) -> Agent[str]:
    skills = [Skill("look", execute=look, inputs={}), Skill("wait", execute=wait, inputs={})]
    return Agent(**{"instructions": "x", "skills": skills, "provider": MockProvider(*(answers or TURNS)), **options})


@WAYS
def test_a_run_works_whichever_way_it_is_driven(way: Way) -> None:
    assert way(agent()).text == "done"
    assert way(agent(), store=MemoryStore(), run_id="r").text == "done"


def test_without_threads_a_stream_runs_while_it_is_read() -> None:
    reached: list[str] = []

    def say() -> str:
        reached.append("called")
        return "said"

    token = USER.set("the caller")
    events = kernai.stream(agent(command("say"), command("look"), "<final>done</final>").replace(
        skills=[Skill("say", execute=say, inputs={}), Skill("look", execute=look, inputs={})]
    ), "go")
    USER.reset(token)
    for event in events:
        assert not (event.type == "skill_execute" and event.step == 0 and reached), "before the call is made"
        if event.type == "skill_result" and event.step == 1:
            assert event.data["result"] == "seen by the caller"
    assert (events.result.text, reached) == ("done", ["called"])


def test_a_stream_that_is_left_early_ends() -> None:
    recorder = Recorder()
    with kernai.stream(agent(), "go", recorder=recorder) as events:
        next(event for event in events if event.type == "skill_execute")
    assert events.result.stop_reason == "cancelled"
    assert recorder.entries[-1].type == "result"
    events.close()
    assert list(events) == []


def test_spawned_work_does_not_continue_at_the_effect_before_which_its_stream_is_paused() -> None:
    events = kernai.stream(agent(), "go")
    next(events)
    spawned: Any = (one for one in ""), SimpleNamespace(waiting=[])
    events._driving._driver._drive(Stack(*spawned))  # a worker may get a thread although the stream got none
    assert ([*events][-1].type, events.result.text) == ("result", "done")


def test_a_callback_cannot_read_the_stream_whose_events_it_gets() -> None:
    refused: list[str] = []

    def on_event(event: Event) -> None:
        with pytest.raises(KernaiError, match="a run cannot wait for its own events"):
            next(events)
        refused.append(event.type)

    events = kernai.stream(agent(), "go", on_event=on_event)
    list(events)
    assert refused
    assert events.result.text == "done"


@pytest.mark.parametrize("way", [by_execute, by_stream])
def test_features_that_need_a_thread_are_an_error_that_says_so(way: Way) -> None:
    for it in (agent(parallel_skills=True), agent(plan(task("a")), "<final>x</final>")):
        with pytest.raises(KernaiError, match=r"parallel calls and the tasks of a workflow need threads, .*: use arun"):
            way(it)
    for _ in range(2):
        assert "async work needs a thread" in way(agent(command("wait"), "<final>x</final>")).messages[2].text


def test_asyncio_calls_in_place_what_it_would_call_in_a_worker() -> None:
    recorder = Recorder()
    it = agent(command("look") + command("wait"), plan(task("a")), "<final>x</final>", parallel_skills=True)
    assert asyncio.run(kernai.aexecute(it, "go", recorder=recorder)).text == "x"
    assert [one.data["result"] for one in recorder.for_event("skill_result")] == ["seen by nobody", "waited"]
    result = asyncio.run(kernai.aexecute(agent(middleware=[timeout(5)]), "go"))
    assert "a synchronous call needs a thread here" in str(result.error)
