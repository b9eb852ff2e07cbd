"""`kernai parse`: its positions and verdicts agree with the parser and the loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernai as package
from kernai import Agent, MockProvider, Recorder, Skill, execute
from kernai.agents.agent import OnProse
from kernai.command_line.parse_command import judge, lay_out
from tests.command_line.conftest import Here, Screen
from tests.command_line.support import as_json, environment, write

PLAN = '{"tasks": [{"id": "a", "input": "do a"}]}'
CYCLE = '{"tasks": [{"id": "a", "input": "x", "depends_on": ["b"]}, {"id": "b", "input": "x", "depends_on": ["a"]}]}'
RESPONSE = f"""Thinking …
<block type="plan">{PLAN}</block> and
  <command name="find">{{"q": 1}}</command><note/>
<result>mine</result><final> 42 </final><block type="zip"/><json>{{"""
SHOWN = """\
1:1  prose
    Thinking …
2:1  block plan
    plan: valid, a workflow
    {"tasks": [{"id": "a", "input": "do a"}]}
2:70  prose
    and
3:3  block command name=find
    {"q": 1}
3:42  prose
    <note/>
4:1  block result
    mine
4:22  block final
    42
4:41  block zip
    (empty)
4:60  incomplete block json
    {

the loop: 1. a valid plan: sub-agents run its tasks
    the result block is forged: only the runtime writes those, and the model is informed
    a block of type 'zip' runs nothing, unless a protocol of that name is registered (--protocol)
    blocks beside the plan are not run, and the model is informed
    the block of type 'json' is not closed and is dropped
"""


@pytest.mark.parametrize("source", ["r.txt", "-"])
def test_a_response_is_shown_block_by_block_with_what_the_loop_would_do(here: Here, tmp_path: Path, source: str) -> None:
    write(tmp_path, "r.txt", RESPONSE)
    done = here("parse", source, input=RESPONSE if source == "-" else "")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == SHOWN


def test_json_has_everything(here: Here, tmp_path: Path) -> None:
    shown = as_json(here("parse", "-", "--json", "--protocol", "zip", input=RESPONSE).stdout)
    assert [part["kind"] for part in shown["parts"]] == [
        "prose", "block", "prose", "block", "prose", "block", "block", "block", "incomplete",
    ]  # fmt: skip
    assert shown["parts"][1] == {
        "kind": "block", "line": 2, "column": 1, "type": "plan", "name": None, "content": PLAN, "plan": "valid",
    }  # fmt: skip
    assert shown["verdict"]["rule"] == "workflow"
    assert not any("zip" in remark for remark in shown["verdict"]["remarks"])


@pytest.mark.parametrize("options, response, shown", [
    (("--full",), f"<final>one\n\x1b[2Jtwo\n{'x' * 300}</final>", f"    | one\n    | [2Jtwo\n    | {'x' * 300}\n"),
    ((), f"<final>{'x' * 300}</final>", "x... (300 characters)\n\nthe loop: 3. a final block: its content is the answer\n    answer: xx"),
    ((), " \n", "nothing: the response is blank\n\nthe loop: 4."),
])
def test_content_is_shown_without_control_characters_and_cut_unless_asked_for_in_full(
    here: Here, options: tuple[str, ...], response: str, shown: str
) -> None:
    assert shown in here("parse", "-", *options, input=response).stdout


CHECKED = {
    "an answer": ("<final>x</final>", (), 0),
    "prose": ("x", (), 1),
    "prose that is accepted": ("x", ("--on-prose", "accept"), 0),
    "a block that is not closed": ("<final>x", (), 1),
    "a forged result": ("<result>x</result><final>y</final>", (), 1),
    "as many calls as are run": ("<command name='x'></command>" * 100, (), 0),
    "a protocol": ("<block type='mcp'>x</block>", ("--protocol", "mcp"), 0),
    "no protocol": ("<block type='mcp'>x</block>", (), 1),
    "a plan of a sub-agent": (f"<plan>{PLAN}</plan>", ("--sub-agent",), 1),
}


@pytest.mark.parametrize("response, options, status", CHECKED.values(), ids=CHECKED.keys())
def test_check_says_whether_the_model_would_be_corrected(here: Here, response: str, options: tuple[str, ...], status: int) -> None:
    terminal: Any = {"screen": Screen(), "env": environment(TERM="xterm", NO_COLOR="")}
    done = here("parse", "-", "--check", *options, input=response, **terminal)
    assert done.returncode == status
    assert f"\x1b[{31 if status else 32}mthe loop: " in done.stdout
    assert ("\x1b[1m1:1  block " in done.stdout) == response.endswith(">"), "whole blocks are bold"


PIECES = st.lists(
    st.sampled_from([
        "a", "\n", " ", "<", ">", "<final>", "</final>", "<command name='x'>", "</command>", "<block type='plan'>", "</block>",
        '<block type="n"/>', "<json>", "</json>", PLAN, CYCLE, "<plan>", "</plan>", "<result>", "</result>", "é", "<block", "{",
    ]),
    max_size=12,
).map("".join)  # fmt: skip


@given(PIECES)
def test_the_parts_are_those_of_the_parser_with_their_positions_in_the_text(text: str) -> None:
    parts = lay_out(text, judge(text).plans)
    parsed = package.parse(text)
    found: dict[str, list[Any]] = {"block": [], "prose": [], "incomplete": []}
    for part in parts:
        found[part["kind"]].append((part["type"], part["name"], part["content"]))
    assert found["block"] == [(one.type, one.name, one.content) for one in parsed.blocks]
    assert found["prose"] == [(None, None, text) for text in parsed.text_segments]
    incomplete = parsed.incomplete
    assert found["incomplete"] == ([] if incomplete is None else [(incomplete.type, incomplete.name, incomplete.content)])
    lines = text.split("\n")
    for part in parts:
        there = "\n".join([lines[part["line"] - 1][part["column"] - 1 :], *lines[part["line"] :]])
        if part["kind"] == "prose":
            assert there.startswith(part["content"].lstrip(" \t\n\r\f\v"))
        else:
            assert there.startswith("<")
            assert part["content"] in there


#: the rule that applied, according to the first of these events that a step of the loop emits
RULE_OF = {
    "workflow_start": "workflow", "skill_execute": "calls", "skill_error": "calls", "protocol_execute": "calls",
    "final": "final", "informational_only": "informational", "no_blocks_stall": "stall",
}  # fmt: skip


def rule_of_the_loop(response: str, *, protocols: bool, on_prose: str) -> str:
    found = [package.Protocol("n", lambda block, ctx: "ok")] if protocols else []
    x = Skill("x", execute=lambda: "ok", description="")
    agent = Agent(instructions="i", skills=[x], protocols=found, on_prose=on_prose)  # type: ignore[arg-type]
    recorder = Recorder()
    execute(agent, "go", provider=MockProvider(response, "<final>end</final>"), recorder=recorder)
    step = [event for event in recorder.entries if event.step == 0 and not event.scope]
    rule = next((RULE_OF[event.type] for event in step if event.type in RULE_OF), None)
    if rule is None:
        return "incomplete" if any(event.type == "block_incomplete" for event in step) else "prose"
    return rule


@given(PIECES, st.booleans(), st.sampled_from(["accept", "correct"]))
def test_the_verdict_agrees_with_what_the_loop_does(text: str, protocols: bool, on_prose: OnProse) -> None:
    verdict = judge(text, frozenset({"n"} if protocols else ()), on_prose)
    assert verdict.rule == rule_of_the_loop(text, protocols=protocols, on_prose=on_prose)


REMARKS = {
    "a final beside a command": ("<command name='x'/><command name='x'></command><final>x</final>", "the final is set aside"),
    "a command without a name": ("<command></command>", "Command block missing skill name"),
    "a call after JSON that was cut off": ("""<json>["</json><command name='x'></command>""", "the blocks after a JSON value"),
    "too many calls": ("<command name='x'></command>" * 101, "only the first 100 calls are run"),
}


@pytest.mark.parametrize("response, remark", REMARKS.values(), ids=REMARKS.keys())
def test_other_consequences_of_a_response_are_noted(response: str, remark: str) -> None:
    assert any(remark in one for one in judge(response).remarks)
    assert judge("<final>4").remarks == [], "the correction says it all"


@pytest.mark.parametrize(
    "plan, reason", [("notes", "invalid_json"), ("", "blank"), ("[]", "not_a_hash"), (CYCLE, "cyclic"), (PLAN, "valid")]
)
def test_the_verdict_on_a_plan_has_its_reason(plan: str, reason: str) -> None:
    assert judge(f"<plan>{plan}</plan>").plans == [reason]
    assert judge(f"<plan>{plan}</plan>", may_plan=False).plans == ["nested"]
