"""Plans that a run executes: tasks as sub-runs, concurrent or in order, each isolated from the others."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

import kernai
from kernai import Agent, Block, Context, Limits, Message, MockProvider, Model, Provider, Recorder, Result, Skill, skill
from tests.loop.loop_cases import Unprintable
from tests.scripted import AsyncScripted
from tests.ways import ALL, DRIVERS, PATIENCE, WAYS, Way, by_aexecute, by_astream, by_execute
from tests.written import command, final

#: what a model answers: called with the text of the last message and the whole conversation
Answer = Callable[[str, Sequence[Message]], str]


pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def planned(tasks: Sequence[Mapping[str, Any]], **rest: Any) -> str:
    return str(Block("plan", None, json.dumps({"tasks": list(tasks), **rest})))


def task(id: str, *needs: str, parallel: bool = True) -> dict[str, Any]:
    return {"id": id, "input": f"do {id}", "parallel": parallel, "depends_on": list(needs)}


def model_of(answer: Answer) -> MockProvider:
    """A model that may block in `answer`."""
    used = {"prompt_tokens": 1, "completion_tokens": 2}
    return MockProvider(chunk_size=1000).on_call(lambda messages, _: answer(messages[-1].text, messages)).with_token_counter(lambda *_: used)


def native_model(answer: Answer) -> AsyncScripted:
    """A model on the event loop; `answer` returns an awaitable or a text."""
    return AsyncScripted(lambda messages, _: answer(messages[-1].text, messages))


def agent_of(answer: Answer, kind: Callable[[Answer], Provider] = model_of, **options: Any) -> Agent:
    return Agent(instructions="x", provider=kind(answer), **{"max_tasks": 1000, **options})


def injected_results(result: Result) -> dict[str, str]:
    for message in result.messages:
        opening = '<block type="result" name="tasks">'
        if message.text.startswith(opening):
            found: dict[str, str] = json.loads(message.text.removeprefix(opening).split("</block>")[0])
            return found
    raise AssertionError("no results were injected")


# ------------------------------------------------------------------------------------------- at once, each on its own


@pytest.mark.parametrize("way, kind", [*((way, model_of) for way in ALL), (by_aexecute, native_model), (by_astream, native_model)])
def test_eight_tasks_run_at_once_one_of_them_as_soon_as_the_task_that_it_needs_is_done(way: Way, kind: Callable[[Answer], Provider]) -> None:
    in_threads, on_the_loop = threading.Barrier(8), list[asyncio.Barrier]()

    async def meet() -> str:
        on_the_loop[:] = on_the_loop or [asyncio.Barrier(8)]
        async with asyncio.timeout(PATIENCE):
            await on_the_loop[0].wait()
        return final("met")

    def answer(asked: str, _: Sequence[Message]) -> Any:
        if asked == "go":
            return planned([task("quick"), *(task(one) for one in "abcdefg"), task("h", "quick")])
        if "do " in asked and "do quick" not in asked:
            if kind is native_model:
                return meet()
            in_threads.wait(PATIENCE)
        return final("met" if "do " in asked else "all done")

    result = way(agent_of(answer, kind))
    assert (result.text, result.usage.model_calls) == ("all done", 11)
    assert injected_results(result) == dict.fromkeys(["quick", *"abcdefgh"], "met")
    assert result.usage.total_tokens == (33 if kind is model_of else None)


@WAYS
@pytest.mark.parametrize("error, said", [(OSError("no connection left"), "no connection left"), (Unprintable(), "Unprintable"), (pytest.fail.Exception(), "")])
@pytest.mark.parametrize("raised_by", ["context", "instructions"])
def test_an_exception_in_the_hosts_code_for_a_task_fails_only_that_task_and_an_interrupt_the_run(way: Way, raised_by: str, error: BaseException, said: str) -> None:
    def raised(by: str, task_id: str | None) -> None:
        if (by, task_id) == (raised_by, "b"):
            raise error

    class Connected(Context):
        def child(self, task_id: str | None) -> Connected:
            raised("context", task_id)
            return super().child(task_id)

    def instructions(context: Context) -> str:
        raised("instructions", context.task_id)
        return "x"

    def answer(asked: str, _: Sequence[Message]) -> str:
        return planned([task(one) for one in "bac"], strategy="sequential") if asked == "go" else final("done")

    recorder, agent = Recorder(), agent_of(answer).replace(instructions=instructions)
    if not isinstance(error, Exception):  # which is not for the model to read
        with pytest.raises(type(error)):
            way(agent, context=Connected(), recorder=recorder)
        return
    result = way(agent, context=Connected(), recorder=recorder)
    assert injected_results(result) == {"b": f"error: {said}", "a": "done", "c": "done"}
    assert [event.data["task_id"] for event in recorder.for_event("task_start")] == ["b", "a", "c"]
    assert [event.scope for event in recorder.for_event("result")].count("") == 1


# ------------------------------------------------------------------------------------------- order and dependencies


@pytest.mark.slow
@pytest.mark.parametrize("way", [by_execute, by_aexecute])
def test_a_chain_of_a_thousand_tasks_ends(way: Way) -> None:
    chain = [task(str(at), *([str(at - 1)] if at else [])) for at in range(1000)]

    def answer(asked: str, _: Sequence[Message]) -> str:
        if asked == "go":
            return planned(chain)
        return final(asked.rsplit(" ", 1)[1]) if "do " in asked else final("done")

    recorder = Recorder()
    result = way(agent_of(answer, native_model), recorder=recorder, limits=Limits(max_calls=None))
    assert injected_results(result) == {str(at): str(at) for at in range(1000)}
    assert [event.data["task_id"] for event in recorder.for_event("task_start")] == [str(at) for at in range(1000)]
    assert result.usage.model_calls == 1002


# ------------------------------------------------------------------------------------------- bounded


@pytest.mark.parametrize("given, at_most", [
    ({"max_tasks": Agent(instructions="x").max_tasks}, 50), ({"max_tasks": 3}, 3), ({"max_tasks": 1000}, 1000),
])
@pytest.mark.parametrize("more", [0, 1])
def test_a_plan_of_more_tasks_than_the_agent_allows_is_rejected(given: dict[str, Any], at_most: int, more: int) -> None:
    def answer(asked: str, _: Sequence[Message]) -> str:
        return planned([task(str(at)) for at in range(at_most + more)]) if asked == "go" else final("done")

    recorder = Recorder()
    result = by_execute(agent_of(answer, **given), recorder=recorder, limits=Limits(max_calls=None))
    assert [event.data["reason"] for event in recorder.for_event("plan_rejected")] == ["too_many_tasks"] * more
    assert (f"it has more than {at_most:,} tasks" in result.messages[2].text) == bool(more)


@pytest.mark.slow
@WAYS
def test_tasks_with_parallel_skills_with_agents_as_skills_cannot_starve_each_other(way: Way) -> None:
    called: list[str] = []

    @skill(register=False)
    def leaf() -> str:
        called.append("leaf")
        return "leaf"

    @skill(register=False)
    async def native_leaf() -> str:
        await asyncio.sleep(0)
        return leaf()

    def answer(asked: str, messages: Sequence[Message]) -> str:
        who = messages[0].text.split()[0]
        if asked == "go":
            return planned([task(str(at)) for at in range(40)])
        if len(messages) > 2:
            return final("done")
        if who == "inner":
            return command("leaf") + command("native_leaf")
        return command("inner", "help") * 2 if who == "middle" else command("middle", "help") * 2

    provider = model_of(answer)
    leaves: list[Skill] = [leaf, native_leaf]
    inner = Agent(instructions="inner", skills=leaves, provider=provider, parallel_skills=True).as_skill("inner", "i")
    middle = Agent(instructions="middle", skills=[inner], provider=provider, parallel_skills=True)
    outer = Agent(instructions="outer", skills=[middle.as_skill("middle", "m")], provider=provider, parallel_skills=True)
    result = way(outer, limits=Limits(max_calls=None))
    assert result.text == "done"
    assert injected_results(result) == {str(at): "done" for at in range(40)}
    assert len(called) == 40 * 2 * 2 * 2
    assert result.usage.model_calls == 2 + 40 * (2 + 2 * (2 + 2 * 2))
    assert result.usage.total_tokens == 3 * result.usage.model_calls


# ------------------------------------------------------------------------------------------- what tasks share


@WAYS
def test_the_hosts_context_reaches_every_task(way: Way) -> None:
    class Mine(Context):
        user = "nobody"
        connection = "root's"

        def child(self, task_id: str | None) -> Mine:
            made = super().child(task_id)
            made.connection = f"{task_id}'s"
            return made

    seen: list[tuple[str, str, int, str | None]] = []

    @skill(register=False)
    def who(ctx: kernai.SkillContext[Mine]) -> str:
        mine = ctx.run_context
        seen.append((mine.user, mine.connection, mine.depth, mine.task_id))
        return mine.user

    def answer(asked: str, _: Sequence[Message]) -> str:
        if asked == "go":
            return planned([task("a"), task("b")])
        return command("who") if asked.startswith("do") else final("done")

    context = Mine()
    context.user = "Ada"
    way(agent_of(answer, skills=[who]), context=context)
    assert sorted(seen, key=str) == [("Ada", "a's", 1, "a"), ("Ada", "b's", 1, "b")]
    assert context.connection == "root's"
    assert context.plan is not None
    assert [one.id for one in context.tasks] == ["a", "b"]
    assert context.task_results == {"a": "done", "b": "done"}


@WAYS
def test_tasks_inherit_model_generation_and_full_steps_and_draw_from_one_budget(way: Way) -> None:
    def answer(asked: str, messages: Sequence[Message]) -> str:
        if asked == "go":
            return planned([task("a", parallel=False), task("b", parallel=False)])
        if messages[1].text.startswith("do"):
            return final("done") if len(messages) > 4 else command("/skills")
        return final("all done")

    provider = model_of(answer)
    agent = Agent(instructions="x", provider=provider, max_steps=3, model=Model("other"))
    result = way(agent.replace(generation={"temperature": 0.5}), model=Model("mine", ("text", "vision")))
    assert result.text == "all done"
    assert {(call.model.id, call.generation.temperature) for call in provider.calls} == {("mine", 0.5)}
    assert provider.call_count == 1 + 3 + 3 + 1
    bounded = way(agent, limits=Limits(max_calls=5))
    assert bounded.stop_reason == "max_calls"
    assert bounded.usage.model_calls == 5
    assert way(agent, limits=Limits(max_calls=8)).text == "all done"


@WAYS
def test_the_hook_is_called_once_a_task_also_for_two_workflows_with_the_same_ids(way: Way) -> None:
    hooked: list[dict[str, Any]] = []

    def answer(asked: str, messages: Sequence[Message]) -> str:
        if asked.endswith("do b"):
            raise OSError("connection lost")
        return planned([task("a"), task("b", "a")]) if messages[1].text == "go" and len(messages) < 6 else final("done")

    assert way(agent_of(answer), on_task_complete=lambda **given: hooked.append(given)).text == "done"
    assert [one.pop("duration_ms") >= 0 for one in hooked] == [True] * 4
    assert hooked == [
        {"task_id": "a", "input": "do a", "result": "done", "error": None},
        {"task_id": "b", "input": "do b", "result": None, "error": "MockProvider raised OSError: connection lost"},
    ] * 2


@DRIVERS
def test_the_hook_gets_the_input_of_a_task_that_a_resume_ends(run: Way, again: Way) -> None:
    cancel, store, hooked = threading.Event(), kernai.MemoryStore(), list[Any]()

    def answer(asked: str, messages: Sequence[Message]) -> str:
        if asked == "do a":
            cancel.set()
        return planned([task("a")]) if asked == "go" else final("done")

    assert run(agent_of(answer), store=store, run_id="r", cancel=cancel).stop_reason == "cancelled"
    assert again(agent_of(answer), "r", store=store, on_task_complete=lambda **given: hooked.append(given["input"])).text == "done"
    assert hooked == ["do a"]
