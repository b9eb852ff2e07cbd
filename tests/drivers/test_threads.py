"""Which thread calls what, what reaches it there, and that nothing of a run outlives it."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest

import kernai
from kernai import Agent, Message, MockProvider, Model, Recorder, Skill, SkillContext, aexecute, run, skill, stream
from kernai.testing.contracts import at_once
from tests.ways import PATIENCE, SYNC_WAYS, WAYS, Way, by_aexecute, by_execute, join_threads
from tests.written import command, final, plan

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def agent_with(*skills: Skill, calls: Sequence[str] = (), **options: Any) -> Agent:
    """An agent whose model calls each of `calls` in one response, by default each of its skills, then ends."""
    asked = "".join(command(name) for name in calls or [one.name for one in skills])
    return Agent(instructions="x", skills=skills, provider=MockProvider(asked, final("done"), chunk_size=64), **options)


def kinds(recorder: Recorder, *types: str) -> list[str]:
    return [event.type for event in recorder.entries if not types or event.type in types]


# ------------------------------------------------------------------------------------------- whose thread it is


def test_skills_are_called_in_the_callers_thread_and_those_of_a_stream_in_one_of_its_own() -> None:
    seen: list[int] = []

    @skill(register=False)
    def where() -> str:
        seen.append(threading.get_ident())
        return "here"

    run(agent_with(where, calls=["where", "where"]), "go")
    run(agent_with(where, parallel_skills=True), "go")
    assert seen == [threading.get_ident()] * 3, "a single call needs no worker"
    list(stream(agent_with(where, calls=["where", "where"]), "go"))
    assert seen[3] == seen[4] != threading.get_ident()


# ------------------------------------------------------------------------------------------- the private event loop


@SYNC_WAYS
@pytest.mark.parametrize("parallel", [False, True], ids=["one by one", "at once"])
@pytest.mark.parametrize("in_notebook", [False, True])
def test_all_async_skills_of_one_run_share_one_event_loop_of_its_own(way: Way, parallel: bool, in_notebook: bool) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def note_loop() -> str:
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())
        return "noted"

    async def cell(*given: Any, **options: Any) -> None:
        way(*given, **options)
        assert asyncio.get_running_loop() not in loops

    first, second = Skill("first", execute=note_loop), Skill("second", execute=lambda: note_loop())
    recorder, start = Recorder(), (lambda *given, **named: asyncio.run(cell(*given, **named))) if in_notebook else way
    start(agent_with(first, second, calls=["first", "second", "first"], parallel_skills=parallel), recorder=recorder)
    assert [event.data["result"] for event in recorder.for_event("skill_result")] == ["noted"] * 3
    assert len(loops) == 3
    assert len(set(map(id, loops))) == 1
    assert loops[0].is_closed()
    start(agent_with(first))
    assert loops[3] is not loops[0]


# ------------------------------------------------------------------------------------------- nothing is left


@pytest.mark.parametrize("stop", [
    lambda: asyncio.get_running_loop().stop(), lambda: [one.cancel() for one in asyncio.all_tasks() - {asyncio.current_task()}],
])  # fmt: skip
def test_a_skill_may_stop_the_event_loop_of_its_run_or_cancel_all_other_tasks(stop: Callable[[], object]) -> None:
    async def work() -> None:
        stop()
        await asyncio.sleep(0)

    recorder = Recorder()
    run(agent_with(Skill("work", execute=work), calls=["work", "work"]), "go", recorder=recorder)
    assert kinds(recorder, "skill_result", "skill_error") == ["skill_result"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("way", [by_execute, by_aexecute])
def test_a_run_is_freed_at_its_end_and_does_not_wait_for_the_garbage_collector(way: Way) -> None:
    @skill(register=False)
    def look(ctx: SkillContext[kernai.Context]) -> str:
        return ctx.call_id

    skills = [look, Skill("fail", execute=lambda: 1 / 0, inputs={})]

    def run_once() -> None:
        provider = MockProvider(command("look"), command("fail"), "<final>done</final>")
        assert way(Agent(instructions="x", skills=skills, provider=provider)).ok

    def garbage() -> int:
        gc.collect()
        run_once()
        return gc.collect()

    run_once()
    gc.disable()
    try:
        assert 0 in (garbage() for _ in range(3))  # not always the first: threads of earlier tests may be ending
    finally:
        gc.enable()


def test_a_late_coroutine_of_a_worker_starts_no_event_loop_after_the_run() -> None:
    entered, leave, others = threading.Event(), threading.Event(), set(threading.enumerate())

    async def later() -> str:
        return "too late"

    @skill(register=False)
    def late() -> object:
        entered.set()
        leave.wait(PATIENCE)
        return later()

    @skill(register=False)
    def other() -> str:
        return "other"

    events = stream(agent_with(late, other, parallel_skills=True), "go")
    next(event for event in events if event.type == "skill_result")
    assert entered.wait(PATIENCE)
    del events
    gc.collect()
    leave.set()
    join_threads("kernai-worker", others)
    assert not [thread for thread in {*threading.enumerate()} - others if thread.name == "kernai-async"]


# ------------------------------------------------------------------------------------------- callbacks


class AsyncCallback:
    async def __call__(self, *_: Any, **__: Any) -> None: ...


@pytest.mark.parametrize("runner", [run, kernai.execute, stream])
@pytest.mark.parametrize("option", ["on_event", "on_task_complete"])
@pytest.mark.parametrize("callback", [AsyncCallback(), AsyncCallback().__call__, partial(AsyncCallback().__call__, 1)])
def test_an_async_callback_of_a_sync_run_is_the_callers_mistake(
    runner: Callable[..., Any], option: str, callback: Callable[..., Any]
) -> None:
    provider = MockProvider(final("done"))
    with pytest.raises(TypeError, match=f"{option} .*async"):
        runner(Agent(instructions="x", provider=provider), "go", **{option: callback})
    assert provider.call_count == 0


# ------------------------------------------------------------------------------------------- runs beside each other


def test_fifty_runs_of_one_agent_in_fifty_threads_keep_their_recordings_apart() -> None:
    together = threading.Barrier(50)

    @skill(register=False)
    def echo(text: str, ctx: SkillContext[Any]) -> str:
        ctx.emit(text)
        return text

    def answer(messages: Sequence[Message], _: Model) -> str:
        asked = messages[1].text
        if len(messages) == 2:
            together.wait(PATIENCE)
        return final(asked) if len(messages) > 4 else command("echo", asked)

    agent = Agent(instructions="x", skills=[echo], provider=MockProvider(chunk_size=16).on_call(answer))
    recorders = [Recorder() for _ in range(50)]
    answers: dict[int, str] = {}

    def one(at: int) -> None:
        answers[at] = run(agent, f"input {at}", recorder=recorders[at], run_id=f"run-{at}")

    assert at_once(one, 50) == []
    assert answers == {at: f"input {at}" for at in range(50)}
    for at, recorder in enumerate(recorders):
        assert {event.run_id for event in recorder.entries} == {f"run-{at}"}
        assert [event.data["result"] for event in recorder.for_event("skill_result")] == [f"input {at}"] * 2
        assert [event.data["data"] for event in recorder.for_event("progress")] == [f"input {at}"] * 2
        assert kinds(recorder) == kinds(recorders[0])


# ---------------------------------------------------------------------------- context variables, each call's in a copy


USER: ContextVar[str] = ContextVar("user", default="nobody")
SEEN: list[str] = []


def note() -> str:
    SEEN.append(USER.get())
    USER.set("the skill")
    return "noted"


async def later() -> str:
    token = USER.set("later")
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        await asyncio.sleep(0)
    assert USER.get() == "later"
    USER.reset(token)
    return note()


def answered(block: Any, ctx: Any) -> str:
    return note()


async def answered_later(block: Any, ctx: Any) -> str:
    return await later()


@WAYS
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("function", [note, later, answered, answered_later])
def test_context_variables_set_by_a_skill_reach_neither_the_next_one_nor_the_caller(
    way: Way, function: Callable[..., Any], parallel: bool
) -> None:
    is_protocol = function in (answered, answered_later)
    call = '<block type="note">x</block>' if is_protocol else command("note")
    agent = Agent(
        instructions="", provider=MockProvider(call + call, call, "<final>done</final>"), parallel_skills=parallel,
        skills=[] if is_protocol else [Skill("note", execute=function)],
        protocols=[kernai.Protocol("note", function)] if is_protocol else [],
    )
    SEEN.clear()
    token = USER.set("the caller")
    try:
        assert way(agent).text == "done"
        assert SEEN == ["the caller"] * 3
        assert USER.get() == "the caller"
    finally:
        USER.reset(token)


@WAYS
@pytest.mark.parametrize("parallel", [False, True])
def test_context_variables_reach_every_model_call_and_skill_even_in_tasks(way: Way, parallel: bool) -> None:
    seen: list[str] = []

    def plain() -> None:
        seen.append(f"plain {USER.get()}")

    async def native() -> None:
        await asyncio.sleep(0)
        seen.append(f"native {USER.get()}")

    def answer(messages: Sequence[Message], _: Model) -> str:
        seen.append(f"model {USER.get()}")
        asked = messages[-1].text
        if asked == "go":
            return plan("a", "b")
        return command("plain") + command("native") if asked.startswith("do") else "<final>done</final>"

    agent = Agent(
        instructions="", provider=MockProvider(chunk_size=64).on_call(answer), parallel_skills=parallel,
        skills=[Skill("plain", execute=plain), Skill("native", execute=native)],
    )
    token = USER.set("Ada")
    try:
        assert way(agent).text == "done"
    finally:
        USER.reset(token)
    assert sorted(seen) == ["model Ada"] * 6 + ["native Ada"] * 2 + ["plain Ada"] * 2


async def test_an_async_skill_cleans_up_with_its_own_context_variables() -> None:
    ended: list[str] = []
    begun = asyncio.Event()

    async def waits() -> str:
        USER.set("waits")
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(USER.get())
        return "never"

    async def fails() -> str:
        USER.set("fails")
        await asyncio.sleep(0)
        raise ValueError(USER.get())

    failing = Agent(instructions="", provider=MockProvider(command("s"), "<final>x</final>"), skills=[Skill("s", execute=fails)])
    assert (await aexecute(failing, "go")).messages[2].text == '<block type="error" name="s">fails</block>'
    waiting = failing.replace(provider=MockProvider(command("s")), skills=[Skill("s", execute=waits)])
    task = asyncio.create_task(aexecute(waiting, "go"))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["waits"]
    assert USER.get() == "nobody"
