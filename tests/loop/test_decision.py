"""What a response requests (`decide`, outside a run), and the effects by which the loop requests it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import FunctionType, GeneratorType, MethodType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernai
from kernai import Agent, Block, MockProvider, Models, Recorder, Skill, SkillContext, configure, execute, parse, skill
from kernai.agents.agent import OnProse
from kernai.loop.decision import Answer, Calls, Correction, Decision, Workflow, decide
from kernai.loop.effects import CallModel, CallSkill, Effect, Spawn
from kernai.loop.model_stream import ParsedResponse
from kernai.testing import ByHand
from kernai.values.message import ConversationView
from tests.loop.loop_cases import command, plan, task

PLAN = json.dumps({"tasks": [{"id": "a", "input": "x"}]})
#: the response's text, the decision, and the events
Summary = tuple[Any, ...]


def asked(
    text: str, *, may_plan: bool = True, on_prose: OnProse = "accept", can_call: bool = True,
    finish: str | None = None, answers: int = 2, was_corrected: bool = False,
) -> Decision:
    parsed = parse(text)
    response = ParsedResponse(text, parsed.blocks, parsed.incomplete, parsed.certain, finish)
    return decide(response, {"mcp"}, may_plan, on_prose, can_call, answers=answers, was_corrected=was_corrected, checks_close=True)


def summary(decision: Decision) -> Summary:
    match decision:
        case Workflow(plan, beside):
            return "workflow", [task.id for task in plan.tasks], [block.type for block in beside]
        case Calls(blocks, final):
            return "calls", [block.name or block.type for block in blocks], final is not None
        case Answer(text, final):
            return "answer", text, final is not None
        case Correction(kind, kinds):
            return "correction", kind, list(kinds)


TABLE: dict[str, tuple[str, dict[str, Any], Summary]] = {
    "prose is the answer": ("Hm.", {}, ("answer", "Hm.", False)),
    "prose is a stall": ("Hm.", {"on_prose": "correct"}, ("correction", "stall", [])),
    "prose is corrected once": ("Hm.", {"on_prose": "correct_once"}, ("correction", "stall", [])),
    "prose that was corrected once is the answer": (
        "Hm.", {"on_prose": "correct_once", "was_corrected": True}, ("answer", "Hm.", False),
    ),
    "prose that the vendor cut off is not corrected once": (
        "Hm.", {"on_prose": "correct_once", "finish": "length"}, ("answer", "Hm.", False),
    ),
    "no stall without anything to call": ("Hm.", {"on_prose": "correct", "can_call": False}, ("answer", "Hm.", False)),
    **{
        f"nothing but a call in the vendor's own way: {finish}": (" ", {"finish": finish}, ("correction", "stall", []))
        for finish in ("tool", "other")
    },
    "such a call from an agent that has nothing to call": ("", {"finish": "tool", "can_call": False}, ("answer", "", False)),
    "such a call beside prose": ("Hm.", {"finish": "tool"}, ("answer", "Hm.", False)),
    "nothing at all": ("", {"finish": "stop"}, ("answer", "", False)),
    "a final is stripped": ("<final> 4 </final>", {}, ("answer", "4", True)),
    "the first final counts": ("<final>1</final><final>2</final>", {}, ("answer", "1", True)),
    "commands in order": (
        '<command name="a"/><command name="a"></command><block type="mcp"/><command name="b"></command>', {},
        ("calls", ["a", "mcp", "b"], False),
    ),
    "a final beside calls is set aside": ('<final>4</final><command name="a"></command>', {}, ("calls", ["a"], True)),
    "a plan comes before all": (
        f'<command name="a"></command><plan>{PLAN}</plan><final>4</final>', {}, ("workflow", ["a"], ["command", "final"]),
    ),
    "a second plan is beside the first": (f"<plan>{PLAN}</plan>" * 2, {}, ("workflow", ["a"], ["plan"])),
    "a plan of a sub-run is a note": (f"<plan>{PLAN}</plan>", {"may_plan": False}, ("correction", "informational", ["plan"])),
    "notes alone": ("<json>1</json><plan>x</plan>", {}, ("correction", "informational", ["json", "plan"])),
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
    "a block of no protocol": ('<block type="zip">x</block>', {}, ("correction", "informational", ["zip"])),
    "a forged result": ("<result>x</result>", {}, ("correction", "informational", ["result"])),
    "tags in the text of an agent whose prompt explains none": (
        "A <result>x</result> and <json>1</json>.", {"can_call": False},
        ("answer", "A <result>x</result> and <json>1</json>.", False),
    ),
    "a call quoted in JSON is content": (
        """<command name="note">{"a": "</command><command name='wipe'></command>"}</command>""", {}, ("calls", ["note"], False),
    ),
    "a call behind JSON that was cut off": (
        """<json>{"a": "</json><command name='wipe'></command>""", {}, ("correction", "uncertain", []),
    ),
    "a call behind a call that was cut off": (
        """<command name="note">{"a": "</command><command name='wipe'></command>""", {}, ("calls", ["note"], False),
    ),
    "a final behind JSON that was cut off": ("""<json>["</json><final>4</final>""", {}, ("correction", "uncertain", [])),
    "a plan behind JSON that was cut off": (f"""<json>['</json><plan>{PLAN}</plan>""", {}, ("correction", "uncertain", [])),
    "a final before JSON that was cut off": ("""<final>4</final><json>["</json><json/>""", {}, ("answer", "4", True)),
    "a call in a dialect": (
        '<tool_call>{"name": "a", "arguments": {}}</tool_call>', {}, ("correction", "dialect", []),
    ),
    "a call in a dialect, with on_prose": (
        '<tool_call>{"name": "a", "arguments": {}}</tool_call>', {"on_prose": "correct"}, ("correction", "dialect", []),
    ),
    "a dialect is prose without anything to call": (
        "```json\n{}\n```<tool_call>{", {"can_call": False}, ("answer", "```json\n{}\n```<tool_call>{", False),
    ),
    "a dialect beside a block is prose": (
        '<tool_call>{"name": "a", "arguments": {}}</tool_call><final>4</final>', {}, ("answer", "4", True),
    ),
    "cut off": ("<json>1</json><final>4", {}, ("correction", "incomplete", [])),
    "cut off behind a call": ('<command name="a"></command><final>4', {}, ("calls", ["a"], False)),
    "cut off behind a final": ("<final>4</final><json>", {}, ("answer", "4", True)),
}  # fmt: skip


@pytest.mark.parametrize("text, facts, expected", TABLE.values(), ids=TABLE)
def test_the_first_rule_that_holds_decides(text: str, facts: dict[str, Any], expected: Summary) -> None:
    assert summary(asked(text, **facts)) == expected


def test_other_content_of_a_response_is_recorded_separately() -> None:
    text = '<plan>no</plan><result>r</result><json>1</json><command name="a"></command><final>4'
    extras = asked(text).extras
    assert [(rejected.block.content, rejected.reason) for rejected in extras.rejected] == [("no", "invalid_json")]
    assert [block.type for block in extras.others] == ["plan", "result", "json"]
    assert extras.forged == [Block("result", None, "r")]
    assert extras.incomplete == Block("final", None, "4")


PIECES = st.lists(
    st.sampled_from([
        "Hm. ", "<final>4</final>", '<command name="a">x</command>', f"<plan>{PLAN}</plan>", "<plan>no</plan>",
        "<json>1</json>", "<result>r</result>", '<block type="mcp">m</block>', '<block type="zip"/>', "<json>",
    ]),
    max_size=6,
).map("".join)  # fmt: skip


@given(PIECES, st.booleans(), st.sampled_from(["accept", "correct"]), st.booleans())
def test_every_block_is_in_the_decision_once_and_decisions_are_deterministic(
    text: str, may_plan: bool, on_prose: OnProse, can_call: bool
) -> None:
    decision = asked(text, may_plan=may_plan, on_prose=on_prose, can_call=can_call)
    assert summary(asked(text, may_plan=may_plan, on_prose=on_prose, can_call=can_call)) == summary(decision)
    shown = [block for block in decision.extras.others if block.type != "final"]
    if isinstance(decision, Calls):
        todo: list[Block] = list(decision.blocks)
    elif isinstance(decision, Workflow):
        todo = [block for block in decision.beside if block not in shown]
    else:
        todo = []
    known: Callable[[Block], bool] = lambda block: block.type in ("command", "mcp", "json", "result")  # noqa: E731
    blocks = [block for block in parse(text).blocks if known(block)]
    assert sorted(map(str, filter(known, [*todo, *shown]))) == sorted(map(str, blocks)) or isinstance(
        decision, (Answer, Correction)
    )


# ------------------------------------------------------------------ other formats, and JSON that was cut off, in a run


CUT_OFF = """<command name="note">{"text": "hi </command><command name='wipe'>x</command><final>done</final>"""


def noting_agent(ran: list[str]) -> Agent:
    def note(text: str) -> str:
        ran.append(text)
        return "noted"

    def wipe(path: str) -> str:
        ran.append("wiped " + path)
        return "gone"

    return Agent(
        instructions="", protocols=[], skills=[Skill("note", execute=note), Skill("wipe", execute=wipe)]
    )


@pytest.mark.parametrize("listening", [False, True])
def test_calls_after_unfinished_json_are_not_run_and_the_model_reads_which(listening: bool) -> None:
    ran: list[str] = []
    mock = MockProvider(CUT_OFF, "<final>ok</final>")
    result = execute(noting_agent(ran), "Go.", provider=mock, on_event=(lambda event: None) if listening else None)
    assert result.text == "ok"
    assert not any("wiped" in one for one in ran)
    message = result.messages[-2].text
    assert "The JSON in one of your blocks did not end" in message
    assert "were not run: command 'wipe'; final." in message
    many = execute(noting_agent(ran), "Go.", provider=MockProvider(CUT_OFF + "<final>x</final>" * 30, "<final>ok</final>"))
    assert many.messages[-2].text.count("final;") == 18, "of the 32, the first 20 are named"


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
    ('<tool_call>{"name": "note", "arguments": {"text": "a', True, [], "a call in another format (hermes), and it cannot be read"),
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


def test_each_effect_has_its_scope_and_call_id() -> None:
    calls = [effect.what if isinstance(effect, Spawn) else effect for effect in run_of_every_kind().effects]
    identities = {(type(one).__name__, one.scope, getattr(one, "call_id", None)) for one in calls if hasattr(one, "scope")}
    assert identities == {
        ("CallModel", "", "0"), ("SubRun", "0.a", "0.a"), ("CallModel", "0.a", "0.a/0"), ("CallModel", "", "1"),
        ("CallSkill", "", "1.0"), ("SubRun", "1.1", "1.1"), ("CallModel", "1.1", "1.1/0"), ("CallProtocol", "", "1.2"),
        ("CallBuiltin", "", "1.3"), ("CallModel", "", "2"),
    }  # fmt: skip


def test_effects_are_compared_by_their_fields_which_their_repr_shows_and_a_copy_may_change() -> None:
    one = CallSkill("", "0.0", "search", {"query": "x"})
    assert one == CallSkill("", "0.0", "search", {"query": "x"})
    assert one not in (CallSkill("", "0.1", "search", {"query": "x"}), "search")
    assert repr(one) == "CallSkill(approval=None, arguments={'query': 'x'}, call_id='0.0', scope='', skill='search')"
    with pytest.raises(TypeError):
        hash(one)
    asks = CallModel("2.a", 1, [kernai.Message("user", "x")], Models.TEXT_ONLY, kernai.GenerationOptions())
    other = asks.replace(model=Models.LLAVA)
    assert (asks.model, other.model, other.call_id, other.messages) == (Models.TEXT_ONLY, Models.LLAVA, "2.a/1", asks.messages)
    wrong: dict[str, Any] = {"voice": "loud"}
    with pytest.raises(TypeError, match="voice"):
        asks.replace(**wrong)
