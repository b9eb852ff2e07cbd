"""Workflows and agents as skills, with everything below the model's boundary real."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from kernai import (
    Agent,
    Context,
    GenerationOptions,
    Limits,
    LlmResponse,
    Media,
    Message,
    MockProvider,
    Model,
    Provider,
    Recorder,
    Result,
    SkillContext,
    aexecute,
    execute,
    skill,
)

DRIVERS = pytest.mark.parametrize("driver", ["threads", "asyncio"])
PATIENCE = 20.0


def drive(driver: str, agent: Agent, content: str = "go", **options: Any) -> Result:
    if driver == "threads":
        return execute(agent, content, **options)
    return asyncio.run(aexecute(agent, content, **options))


def plan_of(tasks: Sequence[dict[str, Any]], strategy: str = "parallel") -> str:
    return f'<block type="plan">{json.dumps({"strategy": strategy, "tasks": list(tasks)})}</block>'


def independent(count: int) -> list[dict[str, Any]]:
    return [{"id": f"t{at}", "input": f"do {at}"} for at in range(count)]


def planner(plan: str, task: Callable[[str], str]) -> MockProvider:
    """The root plans, then answers with its last message; a task answers with `task(input)`."""

    def answer(messages: Sequence[Message], _: Model) -> str:
        text = messages[-1].text
        if text == "go":
            return plan
        return f"<final>{text}</final>" if text.startswith('<block type="result" name="tasks">') else task(text)

    return MockProvider(chunk_size=1000).on_call(answer)


def results_of(result: Result) -> dict[str, str]:
    assert result.text is not None
    found: dict[str, str] = json.loads(result.text[result.text.index(">") + 1 : -len("</block>")])
    return found


def test_eight_tasks_run_at_once_on_threads() -> None:
    meeting = threading.Barrier(8, timeout=PATIENCE)

    def task(text: str) -> str:
        meeting.wait()
        return f"<final>{text}!</final>"

    result = execute(Agent(instructions="x", provider=planner(plan_of(independent(8)), task)), "go")
    assert results_of(result) == {f"t{at}": f"do {at}!" for at in range(8)}


async def test_eight_tasks_run_at_once_under_asyncio() -> None:
    inside, all_in = [], asyncio.Event()

    class Meeting(Provider):
        def call(self, *_: Any) -> LlmResponse:
            raise AssertionError("acall is there")

        async def acall(
            self,
            messages: Sequence[Message],
            model: Model,
            generation: GenerationOptions,
            on_chunk: Callable[[str], Awaitable[None] | None],
        ) -> LlmResponse:
            text = messages[-1].text
            if text == "go":
                return LlmResponse(plan_of(independent(8)))
            if text.startswith("<block"):
                return LlmResponse(f"<final>{text}</final>")
            inside.append(text)
            if len(inside) == 8:
                all_in.set()
            await asyncio.wait_for(all_in.wait(), PATIENCE)
            return LlmResponse(f"<final>{text}!</final>")

    result = await aexecute(Agent(instructions="x", provider=Meeting()), "go")
    assert len(results_of(result)) == 8


@DRIVERS
def test_a_failing_task_spoils_no_other(driver: str) -> None:
    def task(text: str) -> str:
        if text == "do 3":
            raise OSError("the line is dead")
        return f"<final>{text}</final>"

    recorder = Recorder()
    agent = Agent(instructions="x", provider=planner(plan_of(independent(6)), task), on_prose="accept")
    found = results_of(drive(driver, agent, recorder=recorder))
    assert found.pop("t3") == "error: MockProvider raised OSError: the line is dead"
    assert found == {f"t{at}": f"do {at}" for at in (0, 1, 2, 4, 5)}
    assert [event.data["task_id"] for event in recorder.for_event("task_error")] == ["t3"]


@DRIVERS
def test_media_made_in_one_task_are_there_for_the_next(driver: str) -> None:
    picture = Media.from_bytes(b"picture", mime_type="image/png")

    @skill(register=False)
    def draw() -> Media:
        return picture

    @skill(register=False)
    def look(image: Media) -> str:
        return f"{len(image.read_bytes())} bytes"

    def task(text: str) -> str:
        if text == "do draw":
            return '<block type="command" name="draw"></block>'
        if "[image:" in text:
            return f"<final>{picture.id}</final>"
        if text.endswith("do look"):
            return f'<block type="command" name="look">{{"image": "{picture.id}"}}</block>'
        return f"<final>{text}</final>"

    tasks: list[dict[str, Any]] = [
        {"id": "draw", "input": "do draw"}, {"id": "look", "input": "do look", "depends_on": ["draw"]},
    ]
    context = Context()
    agent = Agent(instructions="x", provider=planner(plan_of(tasks), task), skills=[draw, look])
    found = results_of(drive(driver, agent, context=context))
    assert "7 bytes" in found["look"]
    assert [media.id for media in context.media_store] == [picture.id]


@DRIVERS
def test_two_hundred_parallel_tasks_use_a_bounded_number_of_workers(driver: str) -> None:
    lock, now, most = threading.Lock(), [0], [0]

    def task(text: str) -> str:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        with lock:
            now[0] -= 1
        return f"<final>{text}</final>"

    before = threading.active_count()
    threads: list[int] = []
    agent = Agent(instructions="x", provider=planner(plan_of(independent(200)), task), max_tasks=200)
    result = drive(driver, agent, on_event=lambda _: threads.append(threading.active_count()))
    assert len(results_of(result)) == 200
    assert max(threads) - before <= 34, "at most 32 workers, and what asyncio needs"
    assert most[0] <= 32


@pytest.mark.parametrize("given, at_most", [({}, 50), ({"max_tasks": 3}, 3), ({"max_tasks": 2000}, 1000)])
def test_a_plan_of_more_tasks_than_the_agent_allows_is_rejected(given: dict[str, Any], at_most: int) -> None:
    recorder = Recorder()
    provider = MockProvider(plan_of(independent(at_most + 1)), "<final>x</final>", chunk_size=1000)
    agent = Agent(instructions="x", provider=provider, **given)
    text = execute(agent, "go", recorder=recorder).messages[2].text
    assert recorder.for_event("plan_rejected")[0].data["reason"] == "too_many_tasks"
    assert f"it has more than {at_most:,} tasks" in text
    recorder.clear()
    execute(agent, "go", provider=planner(plan_of(independent(at_most)), "<final>{}</final>".format), recorder=recorder)
    assert not recorder.for_event("plan_rejected")


@pytest.mark.slow
@DRIVERS
def test_tasks_with_parallel_skills_and_agents_below_them_cannot_starve_each_other(driver: str) -> None:
    @skill(register=False)
    def ping() -> str:
        return "pong"

    leaf = Agent(
        instructions="leaf",
        provider=MockProvider(chunk_size=100).on_call(
            lambda messages, _: "<final>leaf</final>"
            if len(messages) > 2
            else '<block type="command" name="ping"></block>' * 3
        ),
        skills=[ping],
        parallel_skills=True,
    )

    def task(text: str) -> str:
        if text.startswith("do "):
            return '<block type="command" name="leaf">x</block><block type="command" name="ping"></block>' * 2
        return "<final>ok</final>"

    agent = Agent(
        instructions="x",
        provider=planner(plan_of(independent(100)), task),
        skills=[leaf.as_skill("leaf", "Ask the leaf."), ping],
        parallel_skills=True,
        max_tasks=100,
    )
    recorder = Recorder()
    found = results_of(drive(driver, agent, recorder=recorder, limits=Limits(max_calls=None)))
    assert set(found.values()) == {"ok"}
    assert len(recorder.for_event("skill_result")) == 100 * (4 + 2 * 3)


@DRIVERS
def test_call_ids_and_scopes_name_the_way_down(driver: str) -> None:
    seen: list[str] = []

    @skill(register=False)
    def where(ctx: SkillContext[Any]) -> str:
        seen.append(ctx.idempotency_key)
        return "here"

    inner = Agent(
        instructions="inner", skills=[where], provider=MockProvider('<block type="command" name="where"></block>', "x")
    )

    def task(text: str) -> str:
        return '<block type="command" name="inner">x</block>' if text == "do it" else "<final>ok</final>"

    tasks = [{"id": "a/b%", "input": "do it"}]
    agent = Agent(
        instructions="x", provider=planner(plan_of(tasks), task), skills=[inner.as_skill("inner", "Ask inner.")]
    )
    recorder = Recorder()
    drive(driver, agent, recorder=recorder, run_id="r")
    assert seen == ["r:0.a%2Fb%25/0.0/0.0"]
    assert {event.scope for event in recorder.entries} == {"", "0.a%2Fb%25", "0.a%2Fb%25/0.0"}
    assert {event.depth for event in recorder.entries} == {0, 1, 2}


@DRIVERS
def test_two_agents_that_are_each_others_skills_end(driver: str) -> None:
    one = Agent(instructions="one", provider=MockProvider('<block type="command" name="other">again</block>'))
    other = Agent(instructions="other", provider=one.provider, skills=[one.as_skill("other", "Ask one.")])
    one.skills = (other.as_skill("other", "Ask the other."),)
    recorder = Recorder()
    result = drive(driver, one, recorder=recorder)
    assert result.stop_reason == "max_depth"
    assert "max_depth=8" in recorder.for_event("skill_error")[0].data["error"]
    assert len(recorder.for_event("llm_response")) < 100


def test_a_sub_agent_draws_from_the_runs_limits() -> None:
    thinking = MockProvider('<block type="plan">thinking</block>')
    leaf = Agent(instructions="leaf", provider=thinking, skills="all", max_steps=50)
    root = MockProvider('<block type="command" name="leaf">x</block>')
    agent = Agent(instructions="x", provider=root, skills=[leaf.as_skill("leaf", "Ask the leaf.")])
    result = execute(agent, "go", limits=Limits(max_calls=5))
    assert result.stop_reason == "max_calls"
    assert result.usage.model_calls == 4, "one of the root, three of the leaf; the fifth call was the leaf itself"
