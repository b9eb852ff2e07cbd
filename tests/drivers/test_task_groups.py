"""A `TaskGroup` that fails within a call fails that call, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from kernai import (
    Agent,
    LlmResponse,
    Message,
    MockProvider,
    Protocol,
    Provider,
    ProviderError,
    Skill,
)
from tests.loop.loop_cases import command
from tests.ways import WAYS, Way


async def fail() -> None:
    raise ValueError("inner")


async def group() -> str:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fail())
    return "never"


async def mended() -> str:
    try:
        await group()
    except* ValueError:
        pass
    return "mended"


async def handle(block: Any, ctx: Any) -> str:
    return await group()


async def cancel_oneself() -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)
    return "never"


def ring() -> ProviderError:
    """An error that is a cause of its own cause."""
    error = ProviderError("down")
    error.__cause__ = ValueError("because")
    error.__cause__.__cause__ = error
    return error


async def fail_in_a_ring() -> None:
    raise ring()


@WAYS
def test_an_error_whose_causes_form_a_ring_is_a_failure_like_any_other(way: Way) -> None:
    class Down(MockProvider):
        def call(self, *given: Any) -> LlmResponse:
            if self.call_count:
                raise ring()
            return super().call(*given)

    fails = Skill("fails", execute=fail_in_a_ring)
    result = way(Agent(instructions="", provider=Down(command("fails")), skills=[fails]))
    assert (result.messages[2].text, str(result.error)) == ('<block type="error" name="fails">down</block>', "down")


@WAYS
@pytest.mark.parametrize("at_once", [False, True])
def test_a_task_group_that_fails_in_a_call_is_that_calls_failure(way: Way, at_once: bool) -> None:
    calls = command("group") + '<block type="note">n</block>' + command("mended") + command("fails")
    agent = Agent(
        instructions="", provider=MockProvider(calls, command("mended"), command("fails"), "<final>done</final>"),
        skills=[Skill("group", execute=group), Skill("mended", execute=mended), Skill("fails", execute=fail)],
        protocols=[Protocol("note", handle)], parallel_skills=at_once,
    )
    result = way(agent)
    assert result.text == "done"
    assert [one.text.partition(">")[2].partition("</block>")[0] for one in result.messages[2:6]] == [
        "ValueError: inner", "ValueError: inner", "mended", "inner",
    ]


class Hedged(Provider):
    """Asks two servers at once."""

    def call(self, *given: Any) -> LlmResponse:
        return asyncio.run(self.acall(*given))

    async def acall(self, messages: Sequence[Message], model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
        try:
            await group()
        except* ValueError as group_error:
            raise ProviderError("both are down") from group_error
        raise AssertionError


@WAYS
def test_a_task_group_that_fails_in_a_model_call_is_the_providers_failure(way: Way) -> None:
    result = way(Agent(instructions="", provider=Hedged()))
    assert (result.stop_reason, str(result.error)) == ("error", "both are down")


@WAYS
def test_a_skill_that_cancels_its_own_task_has_failed(way: Way) -> None:
    agent = Agent(
        instructions="", provider=MockProvider(command("oneself"), "<final>done</final>"),
        skills=[Skill("oneself", execute=cancel_oneself)],
    )
    result = way(agent)
    assert result.text == "done"
