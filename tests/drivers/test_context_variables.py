"""The caller's context variables reach model calls, skills and tasks, each in a copy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import pytest

from kernai import Agent, Message, MockProvider, Model, Protocol, Skill, SkillContext, aexecute
from tests.ways import WAYS, Way
from tests.written import command, plan

USER: ContextVar[str] = ContextVar("user", default="nobody")
SEEN: list[str] = []


def note() -> str:
    SEEN.append(USER.get())
    USER.set("the skill")
    return "noted"


def with_context(ctx: SkillContext[Any]) -> str:
    return note()


async def later() -> str:
    token = USER.set("later")
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
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
@pytest.mark.parametrize("function", [note, with_context, later, answered, answered_later])
def test_what_a_skill_sets_reaches_neither_the_next_one_nor_the_caller(
    way: Way, function: Callable[..., Any], parallel: bool
) -> None:
    is_protocol = function in (answered, answered_later)
    call = '<block type="note">x</block>' if is_protocol else command("note")
    agent = Agent(
        instructions="", provider=MockProvider(call + call, call, "<final>done</final>"), parallel_skills=parallel,
        skills=[] if is_protocol else [Skill("note", execute=function)],
        protocols=[Protocol("note", function)] if is_protocol else [],
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
def test_they_reach_every_model_call_and_skill_also_in_tasks(way: Way, parallel: bool) -> None:
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


async def test_an_async_skill_that_is_cancelled_or_fails_is_so_in_its_own_variables() -> None:
    ended: list[str] = []

    async def waits() -> str:
        USER.set("waits")
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
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["waits"]
    assert USER.get() == "nobody"

