"""`decide`: what a response asks for, without a run around it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernai import Block, parse
from kernai.agents.agent import OnProse
from kernai.loop.decision import Answer, Calls, Correction, Decision, ParsedResponse, Workflow, decide

PLAN = json.dumps({"tasks": [{"id": "a", "input": "x"}]})
#: the response's text, the decision, and the events
Summary = tuple[Any, ...]


def asked(
    text: str, *, may_plan: bool = True, on_prose: OnProse = "accept", can_call: bool = True,
    finish: str | None = None, answers: int = 2, was_corrected: bool = False,
) -> Decision:
    parsed = parse(text)
    response = ParsedResponse(text, parsed.blocks, parsed.incomplete, parsed.certain, finish)
    return decide(response, {"mcp"}, may_plan, on_prose, can_call, answers=answers, was_corrected=was_corrected)


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
def test_every_block_is_in_the_decision_once_and_the_same_response_is_decided_alike(
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
