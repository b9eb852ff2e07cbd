"""The commands that the runtime answers itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

import kernai
from kernai import Agent, Block, Context, MockProvider, Plan, Protocol, parse
from kernai.loop.builtin_commands import BUILTINS
from kernai.testing import ByHand
from tests.loop.loop_cases import Turn, command, final, plan, task
from tests.loop.test_loop import Script


def ask(name: str, *, context: Context | None = None, **options: Any) -> str:
    """The block the model reads for the command; the event holds the same text."""
    hand = ByHand(Agent(instructions="", **options), provider=MockProvider(command(name), "done"), context=context)
    [block] = parse(hand.run("Go.").messages[2].text).blocks
    [data] = [event.data for event in hand.events if event.type == "builtin_result"]
    assert data == {"command": name, "result": block.content}
    assert block == Block("result", name, data["result"])
    return block.content


def test_protocols_is_json_of_those_the_agent_may_speak() -> None:
    kernai.protocols.register("p", lambda *_: "", documentation="Ask é <block>.")
    kernai.protocols.register("q", lambda *_: "")
    own = Protocol("own", lambda *_: "", "Mine.")
    assert json.loads(ask("/protocols")) == [
        {"name": "p", "documentation": "Ask é <block>."},
        {"name": "q", "documentation": None},
    ]
    assert json.loads(ask("/protocols", protocols=["q", own])) == [
        {"name": "own", "documentation": "Mine."},
        {"name": "q", "documentation": None},
    ]


def test_workflow_explains_plans_and_says_that_a_sub_agent_has_none() -> None:
    text = ask("/workflow")
    assert '<block type="plan">' in text
    assert "You are a sub-agent: your plans are not run" in ask("/workflow", context=Context(depth=1))
    assert "Your plans are not run" in ask("/workflow", workflows=False)


def test_tasks_shows_the_workflow_its_state_and_its_results() -> None:
    response = f'<block type="plan">{json.dumps({"goal": "G", "tasks": [task("b"), task("a", depends_on=["b"])]})}</block>'
    provider = Script({
        "Go.": [Turn(response), Turn(command("/tasks")), Turn("done")],
        '<block type="result" name="b">error: Script raised RuntimeError: oh</block>\n\nDo a.': [Turn(final("<final>A"))],
        "Do b.": [Turn(RuntimeError("oh"))],
    }, None)  # fmt: skip
    text = ByHand(Agent(instructions=""), provider=provider).run("Go.").messages[4].text
    assert "<final>" not in text
    state = json.loads(parse(text).blocks[0].content)
    assert (state["depth"], state["goal"], state["strategy"]) == (0, "G", "mixed")
    assert state["task_results"] == {"a": "&lt;final>A", "b": "error: Script raised RuntimeError: oh"}
    assert [(one["id"], one["input"], one["status"]) for one in state["tasks"]] == [
        ("b", "Do b.", "failed"), ("a", "Do a.", "done"),
    ]
    assert list(state["task_results"]) == ["b", "a"], "in the order of the plan"


def test_tasks_shows_typed_results_as_data() -> None:
    agent, store = Agent(instructions="x", skills="all"), kernai.MemoryStore()
    options: Any = {"agents": {"a": Agent(instructions="x", output=dict[str, int], provider=MockProvider('{"n": 3}'))}, "store": store}
    kernai.execute_plan(agent.replace(provider=MockProvider()), [task("a")], run_id="r", **options)
    provider = MockProvider(command("/tasks"), "done")
    text = kernai.resume(agent, "r", input="And?", provider=provider, **options).messages[-2].text
    [one] = json.loads(parse(text).blocks[0].content)["tasks"]
    assert (one["status"], one["result"]) == ("done", {"n": 3})


def test_a_task_that_has_not_run_is_pending() -> None:
    context = Context()
    context.plan = Plan.parse({"tasks": [task("a")]})
    state = json.loads(ask("/tasks", context=context))
    assert state["tasks"][0]["status"] == "pending"


def test_built_in_commands_in_a_task_show_its_own_run_and_not_its_parents() -> None:
    provider = Script({"Go.": [Turn(plan(task("a"))), Turn("done")], "Do a.": [Turn(command("/tasks")), Turn("A!")]}, None)
    hand = ByHand(Agent(instructions=""), provider=provider)
    hand.run("Go.")
    [state] = [json.loads(event.data["result"]) for event in hand.events if event.type == "builtin_result"]
    assert state == {"depth": 1, "goal": None, "strategy": None, "tasks": [], "task_results": {}}


@pytest.mark.parametrize("name", ["/", "/nope", "/Skills", "/skills x", "//skills"])
def test_any_other_command_of_the_runtime_is_unknown(name: str) -> None:
    hand = ByHand(Agent(instructions="", skills="all"), provider=MockProvider(command(name), "done"))
    message = hand.run("Go.").messages[2].text
    assert message == f'<block type="error" name="{name}">Unknown command \'{name}\'</block>'
    [data] = [event.data for event in hand.events if event.type == "builtin_error"]
    assert data == {"command": name, "error": f"Unknown command '{name}'"}


@pytest.mark.parametrize("name", BUILTINS)
def test_a_built_in_command_accepts_any_parameters_and_no_allow_list_excludes_it(name: str) -> None:
    kernai.configure(allowed_skills=[])
    hand = ByHand(Agent(instructions=""), provider=MockProvider(command(name, '{"what": "ever"'), "done"))
    assert parse(hand.run("Go.").messages[2].text).blocks[0].type == "result"
