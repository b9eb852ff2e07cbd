"""What a response requests (`decide`, outside a run), and the effects by which the loop requests it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import FunctionType, GeneratorType, MethodType
from typing import Any

import pytest

import kernai
from kernai import Agent, MockProvider, Recorder, Skill, SkillContext, configure, execute, parse, skill
from kernai.agents.definition import Rules
from kernai.loop.decision import Answer, Calls, Correction, Decision, decide
from kernai.loop.effects import Effect
from kernai.loop.model_stream import ParsedResponse
from kernai.testing import ByHand
from kernai.values.message import ConversationView
from tests.loop.loop_cases import command, plan, task

PLAN = json.dumps({"tasks": [{"id": "a", "input": "x"}]})
#: the response's text, the decision, and the events
Summary = tuple[Any, ...]


def asked(text: str, *, can_call: bool = True, finish: str | None = None, answers: int = 2) -> Decision:
    response = ParsedResponse(kernai.LlmResponse(text, finish_reason=finish))
    rules = Rules.of(Agent(instructions="", on_prose="accept"))._replace(answers=answers)
    return decide(response, rules, {"mcp"}, may_plan=True, can_call=can_call)


def summary(decision: Decision) -> Summary:
    match decision:
        case Calls(blocks, final):
            return "calls", [block.name or block.type for block in blocks], final is not None
        case Answer(text, final):
            return "answer", text, final is not None
        case Correction(kind, _, kinds):
            return "correction", kind, list(kinds)
    raise AssertionError(decision)


TABLE: dict[str, tuple[str, dict[str, Any], Summary]] = {
    "a call in the vendor's own way from an agent that has nothing to call": ("", {"finish": "tool", "can_call": False}, ("answer", "", False)),
    "such a call beside prose": ("Hm.", {"finish": "tool"}, ("answer", "Hm.", False)),
    "nothing at all": ("", {"finish": "stop"}, ("answer", "", False)),
    "the first final counts": ("<final>1</final><final>2</final>", {}, ("answer", "1", True)),
    **{
        f"notes alone, from an agent that has nothing to call: {text}":
            (text, {"can_call": False}, ("correction", "informational", kinds))
        for text, kinds in {" <json>1</json>\n": ["json"], "<plan>x</plan><json>1</json>": ["plan", "json"]}.items()
    },
    **{
        f"notes and more, from an agent that has nothing to call: {text}": (text, {"can_call": False}, ("answer", text, False))
        for text in ("So: <json>1</json>", "<json>1</json><error>no</error>", '<json>1</json><block type="zip"/>', "<json>1</json><plan>x")
    },
    "a draft that was an answer in an older recording": (
        "<json>1</json>", {"can_call": False, "answers": 1}, ("answer", "<json>1</json>", False),
    ),
    "tags in the text of an agent whose prompt explains none": (
        "A <result>x</result> and <json>1</json>.", {"can_call": False},
        ("answer", "A <result>x</result> and <json>1</json>.", False),
    ),
    "a call quoted in JSON is content": (
        """<command name="note">{"a": "</command><command name='wipe'></command>"}</command>""", {}, ("calls", ["note"], False),
    ),
    "a call after JSON that was cut off": (
        """<json>{"a": "</json><command name='wipe'></command>""", {}, ("correction", "uncertain", []),
    ),
    "a final after JSON that was cut off": ("""<json>["</json><final>4</final>""", {}, ("correction", "uncertain", [])),
    "a plan after JSON that was cut off": (f"""<json>['</json><plan>{PLAN}</plan>""", {}, ("correction", "uncertain", [])),
    "a final before JSON that was cut off": ("""<final>4</final><json>["</json><json/>""", {}, ("answer", "4", True)),
    "a call in a dialect, where prose is accepted": (
        '<tool_call>{"name": "a", "arguments": {}}</tool_call>', {}, ("correction", "dialect", []),
    ),
    "a dialect is prose without anything to call": (
        "```json\n{}\n```<tool_call>{", {"can_call": False}, ("answer", "```json\n{}\n```<tool_call>{", False),
    ),
    "a dialect beside a block is prose": (
        '<tool_call>{"name": "a", "arguments": {}}</tool_call><final>4</final>', {}, ("answer", "4", True),
    ),
}  # fmt: skip


@pytest.mark.parametrize("text, facts, expected", TABLE.values(), ids=TABLE)
def test_the_first_rule_that_holds_decides(text: str, facts: dict[str, Any], expected: Summary) -> None:
    assert summary(asked(text, **facts)) == expected


# ------------------------------------------------------------------ other formats, and JSON that was cut off, in a run


CUT_OFF = """<command name="note">{"text": "hi </command><command name='wipe'>x</command><final>done</final>"""


def noting_agent(ran: list[str]) -> Agent:
    def note(text: str) -> str:
        ran.append(text)
        return "noted"

    def wipe(path: str) -> str:
        ran.append("wiped " + path)
        return "gone"

    return Agent(instructions="", protocols=[], skills=[Skill("note", execute=note), Skill("wipe", execute=wipe)])


def test_calls_after_unfinished_json_are_not_run_and_the_model_reads_which() -> None:
    ran: list[str] = []
    mock = MockProvider(CUT_OFF, "<final>ok</final>")
    result = execute(noting_agent(ran), "Go.", provider=mock)
    assert result.text == "ok"
    assert not any("wiped" in one for one in ran)
    message = result.messages[-2].text
    assert "The JSON in one of your blocks is incomplete" in message
    assert "were not run: command 'wipe'; final." in message
    many = execute(noting_agent(ran), "Go.", provider=MockProvider(CUT_OFF + "<final>x</final>" * 30, "<final>ok</final>"))
    assert many.messages[-2].text.count("final;") == 19, "of the 32, the first 20 are named"
    assert "final; and 12 more. Write the first block again" in many.messages[-2].text


def test_a_call_in_another_format_is_corrected_with_the_equivalent_block() -> None:
    ran: list[str] = []
    answers = ['<tool_call>{"name": "note", "arguments": {"text": "a </block> b"}}</tool_call>', "", "<final>ok</final>"]

    def answer(messages: object, model: object) -> str:
        said = answers.pop(0)
        return said or shown(messages)

    def shown(messages: object) -> str:
        text = list(messages)[-1].text  # type: ignore[call-overload]
        return str(text[text.index("<block", 1) : text.rindex("</block>")])

    result = execute(noting_agent(ran), "Go.", provider=MockProvider().on_call(answer))
    assert result.text == "ok"
    assert ran == ["a </block> b"]
    assert parse(result.messages[3].text).blocks[0].name == "note"


SLOPPY = """<command name="note">{'text': 'hi',}</command>"""


@pytest.mark.parametrize("said, repair, recorded, reads", [
    (SLOPPY, True, [{"params": {"text": "hi"}, "repaired": ["single-quoted string", "trailing comma"]}], "noted"),
    (SLOPPY, False, [{"params": {"input": "{'text': 'hi',}"}}], "it is not valid JSON"),
    ('<tool_call>{"name": "note", "arguments": {"text": "a', True, [], "a call in another format (hermes) that cannot be read"),
])
def test_a_call_runs_and_its_event_says_what_was_repaired_or_it_is_an_error(said: str, repair: bool, recorded: list[Any], reads: str) -> None:
    ran, recorder = list[str](), Recorder()
    configure(repair=repair)
    result = execute(noting_agent(ran), "Go.", provider=MockProvider(said, "<final>ok</final>"), recorder=recorder)
    assert [event.data for event in recorder.for_event("skill_execute")] == [{"call_id": "0.0", "skill": "note", **one} for one in recorded]
    assert reads in result.messages[2].text
    assert ran == (["hi"] if reads == "noted" else [])


# ---------------------------------------------------------------------------------------------------- effects are data


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
        protocols=[kernai.Protocol("echo", lambda block, ctx: block.content)],
        provider=MockProvider(plan(task("a", "x"), strategy="parallel"), "<final>task</final>", calls, "<final>4</final>"),
        parallel_skills=True,
    )
    hand = ByHand(agent)
    assert hand.run("Go.").text == "4"
    return hand


def parts(value: object) -> Iterator[object]:
    """Everything that an effect holds, except agents (configuration) and the conversation's own list."""
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
    assert {type(effect).__name__ for effect in hand.effects} == {"CallModel", "CallSkill", "CallProtocol", "Spawn", "Join"}
    live = (FunctionType, MethodType, GeneratorType, SkillContext, MockProvider)
    assert [part for effect in hand.effects for part in parts(effect) if isinstance(part, live)] == []
