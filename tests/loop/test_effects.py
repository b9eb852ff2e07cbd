"""Effects are data: values and names, which can be read, compared, kept, and put in one another's place."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType, GeneratorType, MethodType
from typing import Any

import pytest

from kernai import Agent, GenerationOptions, Message, MockProvider, Models, Protocol, SkillContext, skill
from kernai.loop.effects import CallModel, CallSkill, Effect, Spawn
from kernai.testing import ByHand
from kernai.values.message import ConversationView
from tests.loop.loop_cases import command, plan, task


@skill(register=False)
def look(ctx: SkillContext[Any]) -> str:
    return "seen"


def run_of_every_kind() -> ByHand:
    """A workflow, parallel calls, a protocol, a built-in command and an agent called as a skill."""
    helper = Agent(instructions="h", provider=MockProvider("<final>helped</final>"), name="helper")
    calls = command("look") + command("helper", "x") + '<block type="echo">y</block>' + command("/skills")
    agent = Agent(
        instructions="x",
        skills=[look, helper.as_skill("helper", "Helps.")],
        protocols=[Protocol("echo", lambda block, ctx: block.content)],
        provider=MockProvider(plan(task("a", "x"), strategy="parallel"), "<final>task</final>", calls, "<final>4</final>"),
        parallel_skills=True,
    )
    hand = ByHand(agent)
    assert hand.run("Go.").text == "4"
    return hand


def parts(value: object) -> Iterator[object]:
    """Everything that an effect holds, agents (configuration) and the conversation's own list aside."""
    yield value
    if isinstance(value, Effect):
        for name in value.__slots__:
            yield from parts(getattr(value, name))
    elif isinstance(value, (list, tuple, ConversationView)):
        for one in value:
            yield from parts(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from parts(one)


def test_no_effect_holds_a_generator_a_function_or_a_live_object() -> None:
    hand = run_of_every_kind()
    assert {type(effect).__name__ for effect in hand.effects} == {"CallModel", "CallSkill", "CallProtocol", "CallBuiltin", "Spawn", "Join"}
    live = (FunctionType, MethodType, GeneratorType, SkillContext, MockProvider)
    assert [part for effect in hand.effects for part in parts(effect) if isinstance(part, live)] == []


def test_each_says_where_it_belongs() -> None:
    calls = [effect.what if isinstance(effect, Spawn) else effect for effect in run_of_every_kind().effects]
    identities = {(type(one).__name__, one.scope, getattr(one, "call_id", None)) for one in calls if hasattr(one, "scope")}
    assert identities == {
        ("CallModel", "", "0"), ("SubRun", "0.a", "0.a"), ("CallModel", "0.a", "0.a/0"), ("CallModel", "", "1"),
        ("CallSkill", "", "1.0"), ("SubRun", "1.1", "1.1"), ("CallModel", "1.1", "1.1/0"), ("CallProtocol", "", "1.2"),
        ("CallBuiltin", "", "1.3"), ("CallModel", "", "2"),
    }  # fmt: skip


def test_effects_compare_by_their_fields_and_show_them() -> None:
    one = CallSkill("", "0.0", "search", {"query": "x"})
    assert one == CallSkill("", "0.0", "search", {"query": "x"})
    assert one != CallSkill("", "0.1", "search", {"query": "x"})
    assert one != "search"
    assert repr(one) == "CallSkill(approval=None, arguments={'query': 'x'}, call_id='0.0', scope='', skill='search')"
    with pytest.raises(TypeError):
        hash(one)


def test_a_copy_may_differ_in_some_fields() -> None:
    one = CallModel("2.a", 1, [Message("user", "x")], Models.TEXT_ONLY, GenerationOptions())
    other = one.replace(model=Models.LLAVA)
    assert (one.model, other.model, other.call_id, other.messages) == (Models.TEXT_ONLY, Models.LLAVA, "2.a/1", one.messages)
    wrong: dict[str, Any] = {"voice": "loud"}
    with pytest.raises(TypeError, match="voice"):
        one.replace(**wrong)
