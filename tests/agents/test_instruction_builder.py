"""The system message: what it must hold, where it applies, and that it stays short."""

from __future__ import annotations

import re
from typing import Any

import pytest

import kernai
from kernai import Agent, Context, Model, Models, Protocol, Skill, parse
from kernai.agents.instruction_builder import WORKFLOW_HELP
from tests.loop.loop_cases import add, echo

ORACLE = Protocol("oracle", lambda *_: "yes", "Ask it {anything}.")
EVERYTHING = Model("all", ("text", "vision", "audio_in", "audio_out", "video_in", "document_in", "image_gen"))
INSTRUCTIONS = "You keep the {stock} of <b>two</b> warehouses.\n"


def prompt(**options: Any) -> str:
    return Agent(instructions=INSTRUCTIONS, **options).system_prompt()


def test_an_agent_that_can_call_nothing_has_its_instructions_alone() -> None:
    assert prompt(protocols=[]) == INSTRUCTIONS
    assert prompt(protocols=[], skills=None, list_skills=True, model=EVERYTHING) == INSTRUCTIONS


@pytest.mark.parametrize("model", [Models.TEXT_ONLY, Models.CLAUDE_SONNET_4, EVERYTHING])
def test_the_format_stays_under_700_tokens(model: Model) -> None:
    """Four characters a token. All sections but the listing, the protocols' names and the instructions."""
    text = prompt(skills=[], model=model).removeprefix(INSTRUCTIONS)
    assert len(text) / 4 < 700


def test_the_examples_are_blocks_that_the_parser_reads() -> None:
    text = prompt(skills=[], protocols=[ORACLE], model=EVERYTHING)
    found = parse(text)
    assert found.incomplete is None
    assert {block.type for block in found.blocks} == {"command", "final", "plan", "json", "result", "error", "oracle", "media"}
    workflow = next(block for block in found.blocks if block.type == "plan" and "tasks" in block.content)
    assert kernai.Plan.validate(workflow.content).ok


SECTIONS = {
    "skills": '<block type="command" name="/skills">',
    "protocols": '<block type="command" name="/protocols">',
    "protocol example": '<block type="oracle">',
    "workflow": '<block type="command" name="/workflow">', "another word on workflows": "orkflow",
    "tasks": '<block type="command" name="/tasks">',
    "listing": "### echo",
    "media in": "perceive",
    "media out": "produce",
}


@pytest.mark.parametrize("options,sections", [
    ({"skills": []}, {"skills"}),
    ({"skills": [], "protocols": [ORACLE]}, {"skills", "protocols", "protocol example"}),
    ({"skills": [], "workflows": True}, {"skills", "workflow", "another word on workflows", "tasks"}),
    ({"skills": [], "model": Models.LLAVA}, {"skills", "media in"}),
    ({"skills": [], "model": Model("m", ("text", "image_gen"))}, {"skills", "media out"}),
    ({"skills": [echo]}, {"skills", "listing"}),
    ({"skills": [echo], "workflows": True, "model": EVERYTHING, "protocols": [ORACLE]}, set(SECTIONS)),
    ({"workflows": True, "model": EVERYTHING, "list_skills": True}, set()),
])  # fmt: skip
def test_each_section_appears_only_where_it_applies(options: dict[str, Any], sections: set[str]) -> None:
    built = Agent(**{"instructions": "", "list_skills": bool(options.get("skills")), "workflows": False, **options}).system_prompt()
    assert {name for name, sign in SECTIONS.items() if sign in built} == sections


@pytest.mark.parametrize("capabilities,kinds,first", [
    (("vision",), "image content", "image"),
    (("vision", "audio_in"), "image and audio content", "image"),
    (("audio_in", "video_in", "document_in"), "audio, video and document content", "audio"),
])  # fmt: skip
def test_the_kinds_a_model_can_perceive_are_named(capabilities: tuple[str, ...], kinds: str, first: str) -> None:
    text = prompt(skills=[], model=Model("m", ("text", *capabilities)))
    assert kinds in text
    assert f'<block type="media" id="media_…" kind="{first}"' in text


def test_protocols_are_named_with_an_example_of_the_first() -> None:
    kernai.protocols.register("q{}", lambda *_: "")
    kernai.protocols.register(ORACLE)
    text = prompt()
    assert "q{}, oracle" in text
    assert '<block type="q{}">' in text
    assert "Ask it" not in text  # the documentation is what /protocols shows


def test_a_listing_holds_what_the_agent_may_call_and_no_more() -> None:
    see = Skill("see", execute=lambda: "", requires="vision")
    kernai.configure(allowed_skills=["echo", "see"])
    text = prompt(skills=[echo, add, see], list_skills=True)
    assert re.findall(r"### (\w+)", text) == ["echo"]
    assert re.findall(r"### (\w+)", prompt(skills=[echo, see], list_skills=True, model=Models.LLAVA)) == ["echo", "see"]
    assert "### echo" not in prompt(skills=[echo], list_skills=False)


def test_a_short_listing_is_in_the_message_and_a_long_one_is_asked_for() -> None:
    def described(length: int) -> Skill:
        return Skill("long", execute=lambda: "", description="x" * length)

    most = 8_000 - len(kernai.skills.listing([described(0)])) - 1  # the line break before the description
    at_most, above = (prompt(skills=[described(length)]) for length in (most, most + 1))
    assert ("### long" in at_most, "run /skills" in at_most) == (True, False)
    assert ("### long" in above, "run /skills" in above) == (False, True)
    assert "### long" in prompt(skills=[described(most + 1)], list_skills=True)


def test_of_thousands_of_skills_not_all_are_described_to_find_that_the_listing_is_long() -> None:
    described: list[str] = []

    class Counted(Skill):
        def describe(self) -> str:
            described.append(self.name)
            return super().describe()

    prompt(skills=[Counted(f"s{at}", execute=lambda: "", description="x" * 90) for at in range(5_000)])
    assert len(described) < 80


def test_the_help_on_workflows_shows_a_plan_that_runs_and_a_sub_agent_does_not_read_of_them() -> None:
    agent = Agent(instructions="", skills=[])
    assert "/workflow" in agent.system_prompt()
    assert "/workflow" not in agent.system_prompt(Context(depth=1))
    [plan] = [block for block in parse(WORKFLOW_HELP).blocks if block.type == "plan"]
    checked = kernai.Plan.validate(plan.content).plan
    assert checked is not None
    assert [task.id for task in checked.tasks] == ["a", "b", "compare"]
    assert checked.tasks[-1].depends_on == ("a", "b")
