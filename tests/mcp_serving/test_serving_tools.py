"""What can be served, with which names and inputs, and progress. In memory: no process, no socket.

A served tool accepts media as payloads; the rest is the skill's own schema, which tests/inputs/test_schema.py covers.
"""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernai import Agent, Input, Media, MockProvider, Model, Skill, SkillInputError, SkillRegistry, configure, skill
from kernai.inputs.table import InputTable
from kernai.mcp.serving import Server
from kernai.mcp.serving_tools import MAX_WAITING, Progress, Tools, served_table


def named(name: str, **options: Any) -> Skill:
    return Skill(name, execute=lambda: name, description=f"Does {name}.", inputs={}, **options)


def listed(toolbox: Tools) -> list[Any]:
    return asyncio.run(toolbox.list()).tools


def names(toolbox: Tools) -> list[str]:
    return [tool.name for tool in listed(toolbox)]


def test_a_skill_a_list_and_a_registry_can_be_served() -> None:
    registry = SkillRegistry()
    registry.register(named("a"))
    for source in (named("a"), [named("a")], (named("a"),), {named("a")}, registry, (one for one in [named("a")])):
        toolbox = Tools(source)
        assert names(toolbox) == [*toolbox.skills()] == ["a"]
        assert listed(toolbox)[0].description == "Does a."
    allowed = ["A-z_0.9", "x" * 128]  # names at the limits of the specification
    assert names(Tools(map(named, allowed))) == allowed


def test_changes_of_a_registry_are_served() -> None:
    registry = SkillRegistry()
    toolbox = Tools(registry)
    assert names(toolbox) == []
    registry.register(named("a"))
    registry.register(named("of no fit name"))
    assert names(toolbox) == [*toolbox.skills()] == ["a"]
    assert listed(toolbox)[0].input_schema["properties"] == {}
    registry.register(Skill("a", execute=lambda x: x, inputs={"x": int}))
    assert listed(toolbox)[0].input_schema["properties"] == {"x": {"type": "integer"}}
    registry.reset()
    assert "a" not in toolbox.skills()


def test_an_agent_is_one_tool_that_does_not_reveal_its_instructions() -> None:
    agent = Agent(name="The Boss: 1", instructions="a secret", provider=MockProvider("x"), skills=[named("a")])
    tool = listed(Tools(agent))[0]
    assert (tool.name, tool.input_schema["required"]) == ("The_Boss_1", ["input"])
    assert "The Boss: 1" in (tool.description or "")
    assert "secret" not in tool.model_dump_json()
    assert listed(Tools(agent, description="Ask it."))[0].description == "Ask it."
    assert names(Tools(agent.replace(name=None))) == ["agent"]
    assert names(Tools(agent.replace(name="x" * 200))) == ["x" * 128]


def test_the_served_skills_of_an_agent_are_those_that_it_may_call_itself() -> None:
    registered = skill(lambda: 1, name="registered")
    blind, seeing = Model("blind"), Model("seeing", ("text", "vision"))
    skills: list[str | Skill] = ["registered", "unknown", named("direct"), named("sees", requires="vision")]
    agent = Agent(instructions="", provider=MockProvider("x"), skills=skills, model=blind)
    toolbox = Tools(agent, agent_as="skills")
    assert names(toolbox) == [registered.name, "direct"]
    assert "sees" not in toolbox.skills()
    assert names(Tools(agent.replace(model=seeing), agent_as="skills")) == ["registered", "direct", "sees"]
    assert names(Tools(agent.replace(skills="all"), agent_as="skills")) == ["registered"]


@pytest.mark.parametrize("agent_as", ["tool", "skills"])
def test_skills_that_the_configuration_does_not_allow_are_neither_listed_nor_found(agent_as: Literal["tool", "skills"]) -> None:
    source: Any = [named("a"), named("b")]
    if agent_as == "skills":
        source = Agent(instructions="", provider=MockProvider("x"), skills=source)
    toolbox = Tools(source, agent_as=agent_as)
    assert names(toolbox) == ["a", "b"]
    configure(allowed_skills=["b"])
    assert names(toolbox) == ["b"]
    assert "a" not in toolbox.skills()


NONE = Agent(instructions="", provider=MockProvider("x"))
BAD: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    ([], {}, ValueError, "there is no skill to serve"),
    ("all", {}, TypeError, "serve takes a Skill"),
    ([lambda: 1], {}, TypeError, "got function: decorate it with @skill"),
    ([NONE], {}, TypeError, r"agent\.as_skill\(name, description\)"),
    ([named("a"), named("a")], {}, ValueError, "skills holds 'a' twice"),
    (named("two words"), {}, ValueError, "the skill's name 'two words' cannot be the name of an MCP tool"),
    (named("x" * 129), {}, ValueError, "cannot be the name"),
    (NONE, {"agent_as": "skills"}, ValueError, "the Agent has no skills to serve"),
    (NONE.replace(skills=[named("a")]), {"agent_as": "skills", "description": "x"}, ValueError, "description is for"),
    (named("a"), {"description": "x"}, ValueError, "description is for an Agent"),
    (NONE, {"agent_as": "both"}, ValueError, "agent_as must be"),
    ([named("a")], {"agent_as": "skills"}, ValueError, "agent_as must be 'tool' or, for an Agent, 'skills'"),
]


@pytest.mark.parametrize("source,options,kind,message", BAD)
def test_serving_an_unsupported_source_is_an_error_at_once(
    source: Any, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        Server(source, **options)


async def sent(*emitted: Any) -> list[tuple[float, float | None, str | None]]:
    got: list[tuple[float, float | None, str | None]] = []

    async def send(progress: float, total: float | None, message: str | None) -> None:
        got.append((progress, total, message))

    progress = Progress(send)
    for data in emitted:
        progress.add(data)
    await progress.finish()
    progress.add("after the end")
    return got


async def test_progress_is_a_number_with_an_optional_total_or_message() -> None:
    assert await sent(0, 0.5, "half", {"progress": 2, "total": 4, "message": "x"}, ["ö"], None, True) == [
        (0.0, None, None), (0.5, None, None), (1.0, None, "half"), (2.0, 4.0, "x"), (3.0, None, '["ö"]'),
        (4.0, None, "null"), (5.0, None, "true"),
    ]
    assert await sent("a\ud800b", {"progress": 2, "message": "\udfff"}) == [(1.0, None, "a?b"), (2.0, None, "?")]
    assert await sent({"progress": "2", "message": "two"}, {"progress": 7, "total": "many", "message": 5}) == [
        (1.0, None, "two"), (7.0, None, None),
    ]


NUMBERS = st.integers(-10, 10) | st.floats(-10, 10) | st.integers(2**53, 2**54)
EMITTED = NUMBERS | st.text(max_size=3) | st.fixed_dictionaries({"progress": NUMBERS}) | st.none()


@given(st.lists(EMITTED, max_size=20))
def test_progress_always_grows_whatever_a_skill_emits(emitted: list[Any]) -> None:
    numbers = [number for number, _, _ in asyncio.run(sent(*emitted))]
    assert len(numbers) == len(emitted)
    assert all(math.isfinite(number) for number in numbers)
    assert all(one < other for one, other in pairwise(numbers))


async def test_a_slow_client_gets_only_the_newest_progress() -> None:
    got = await sent(*range(3 * MAX_WAITING))
    assert len(got) == MAX_WAITING
    assert got[-1] == (3 * MAX_WAITING - 1.0, None, None)


async def test_a_client_that_cannot_be_sent_progress_does_not_end_the_call() -> None:
    async def send(*_: Any) -> None:
        raise ConnectionError

    progress = Progress(send)
    progress.add(1)
    await progress.finish()


# ------------------------------------------------------------------------------------------------------------- schemas


@dataclass
class Album:
    cover: Media
    others: list[Media] = field(default_factory=list)


PICTURE = {"data": "aGkg\naGk=", "mimeType": "image/png"}
MADE = Media.from_bytes(b"hi hi", mime_type="image/png")


def table_of(annotation: Any) -> tuple[Skill, InputTable]:
    """Return a skill with an input of this type, and the table that checks a client's calls."""
    skill = Skill("one", execute=lambda it: it, inputs={"it": Input(annotation)})
    jsonschema.Draft202012Validator.check_schema(served_table(skill).schema())
    return skill, served_table(skill)


@pytest.mark.parametrize("annotation,value,made", [
    (Media | None, PICTURE, MADE), (list[Media], [PICTURE], [MADE]), (dict[str, Media | str], {"x": PICTURE}, {"x": MADE}),
    (Album, {"cover": PICTURE, "others": [PICTURE]}, Album(MADE, [MADE])), (tuple[int, Media], [1, PICTURE], (1, MADE)),
])
def test_media_are_accepted_as_payloads_at_any_depth(annotation: Any, value: Any, made: Any) -> None:
    _, table = table_of(annotation)
    jsonschema.validate({"it": value}, table.schema())
    assert table.bind({"it": value}) == {"it": made}


def test_a_client_is_neither_offered_ids_of_media_nor_may_it_send_one() -> None:
    skill, table = table_of(Album)
    assert "media_" in json.dumps(skill.table.schema())
    assert "media_" not in json.dumps(table.schema())
    plain, same = table_of(int)
    assert same is plain.table
    with pytest.raises(SkillInputError) as error:
        table.bind({"it": {"cover": "media_0a1b2c3d4e5f"}})
    found, _, usage = str(error.value).partition("Usage: ")
    assert found.startswith('it.cover: expected media object such as {"data": "iVBORw0KGgo=", "mimeType"')
    assert "media_0a1b2c3d4e5f" not in usage
    jsonschema.validate(table.read(table.usage.partition(">")[2].rpartition("<")[0]), table.schema())
