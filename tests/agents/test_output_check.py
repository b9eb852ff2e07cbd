"""`Agent(output_check=...)`: what the host thinks of an answer, with the run's context."""

from __future__ import annotations

import ast
import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import kernai
from kernai import Agent, Context, MemoryStore, MockProvider, Recorder, Task, execute_plan
from kernai.agents import agent as agent_module
from kernai.agents.agent import OPTIONS
from tests.loop.loop_cases import command


@dataclass
class Deps(Context):
    """A dataclass needs no `super().__init__()`."""

    most: int
    seen: list[Any] = field(default_factory=list)


def at_most(value: Any, ctx: Any) -> str | None:
    ctx.seen.append(value)
    return f"it may be {ctx.most} at most, and is {value}" if int(value) > ctx.most else None


def agent(*said: str, **options: Any) -> Agent[Any]:
    given: dict[str, Any] = {"instructions": "x", "protocols": [], "output": int, "output_check": at_most}
    return Agent(**{**given, "provider": MockProvider(*said), **options})


@pytest.mark.parametrize("output", [int, str])
@pytest.mark.parametrize("is_async", [False, True])
def test_the_model_reads_why_an_answer_is_refused_and_corrects_it(output: type, is_async: bool) -> None:
    deps, recorder = Deps(most=5), Recorder()
    it = agent("9", "<final>7</final>", "<final>3</final>", output=output, name="clerk")
    options: dict[str, Any] = {"context": deps, "recorder": recorder}
    result = asyncio.run(kernai.aexecute(it, "?", **options)) if is_async else kernai.execute(it, "?", **options)
    assert result.output == output(3)
    assert deps.seen == [output(9), output(7), output(3)]
    correction = '<block type="error" name="final">Your answer cannot be used. it may be 5 at most, and is 9</block>'
    assert result.messages[2].text == correction
    assert [event.data["attempt"] for event in recorder.for_event("answer_rejected")] == [1, 2]


def test_refused_answers_count_as_retries() -> None:
    result = kernai.execute(agent("9", output_retries=1), "?", context=Deps(most=5))
    assert (result.stop_reason, result.output) == ("output", None)
    assert "the model answered 2 times" in str(result.error)
    assert "it may be 5 at most, and is 9" in str(result.error)


def test_what_a_replay_and_a_resume_find_on_record_is_not_checked_again() -> None:
    store, deps = MemoryStore(), Deps(most=5)
    it = agent("9", "<final>3</final>", "<final>8</final>", "<final>2</final>")
    assert kernai.execute(it, "?", context=deps, store=store, run_id="r").output == 3
    stricter, unused = it.replace(output_check=lambda value, ctx: pytest.fail("it is called")), Deps(most=0)
    replayed = kernai.replay(stricter, "r", store=store, context=unused)
    assert replayed.result is not None
    assert replayed.result.output == 3
    assert replayed.changes == ("output_check was 'at_most', is 'test_what_a_replay_and_a_resume_find_on_record_is_not_checked_again'",)
    entries = store.load("r")
    cut = next(at for at, one in enumerate(entries) if one["event"] == "answer_rejected")
    for length in (cut, cut + 1):
        part = MemoryStore()
        part.append("r", 0, entries[:length], [])
        context = Deps(most=5)
        rest = it.replace(provider=MockProvider("<final>3</final>"))
        assert kernai.resume(rest, "r", store=part, context=context).output == 3
        assert context.seen == ([9, 3] if length == cut else [3])
        assert kernai.replay(stricter, "r", store=part, context=Deps(most=0)).result is not None
        assert kernai.replay(stricter, recording=entries[:cut], context=Deps(most=0)).result is None
    assert kernai.resume(it, "r", store=store, input="And?", context=Deps(most=5)).output == 2


def test_an_agent_that_is_called_checks_its_answers_and_a_plans_task_has_none() -> None:
    deps = Deps(most=5)
    leaf = agent("9", "<final>3</final>", name="leaf")
    caller = Agent(
        instructions="x", skills=[leaf.as_skill("leaf", "A leaf.")], protocols=[],
        provider=MockProvider(command("leaf", "go"), "<final>done</final>"),
    )
    assert '<block type="result" name="leaf">3</block>' in [
        message.text for message in kernai.execute(caller, "?", context=deps).messages
    ]
    deps.seen.clear()
    tasks = [Task("a", "x"), Task("b", "x")]
    result = execute_plan(agent("9"), tasks, agents={"b": agent("9", "<final>3</final>")}, context=deps)
    assert result.output == {"a": "9", "b": 3}
    assert deps.seen == [9, 3]


@pytest.mark.parametrize("said", [False, 0, "", "  ", ["no"]])
def test_a_check_that_gives_neither_a_text_nor_none_is_a_mistake_of_the_caller(said: Any) -> None:
    with pytest.raises(TypeError, match="output_check must give a text"):
        kernai.execute(agent("9", output_check=lambda value, ctx: said), "?")


async def later(value: Any, ctx: Any) -> None: ...


@pytest.mark.parametrize("check", [lambda value: None, later, "check", lambda a, b, c: None])
def test_a_check_is_a_plain_function_of_the_value_and_the_context(check: Any) -> None:
    with pytest.raises(TypeError, match="output_check must be a"):
        agent(output_check=check)
    one = agent()
    with pytest.raises(TypeError, match="output_check must be a"):
        one.output_check = check


def test_a_dataclass_is_a_context() -> None:
    class Own(Context):
        def __init__(self, name: str) -> None:
            self.name = name

    for context in (Deps(most=3), Own("x")):
        child = context.child("a")
        assert (child.depth, child.task_id, child.is_root, child.tasks) == (1, "a", False, ())
        assert child.media_store is context.media_store
        assert kernai.execute(Agent(instructions="x", provider=MockProvider("<final>1</final>")), "?", context=context).ok
    assert Deps(most=3).media_store is not Deps(most=3).media_store
    assert Deps(1).task_results is not Deps(1).task_results


def test_a_frozen_dataclass_is_refused_since_a_run_changes_its_context() -> None:
    @dataclass(frozen=True)
    class Fixed(Context):
        name: str = "x"

    with pytest.raises(TypeError, match="Fixed must not be a frozen dataclass"):
        kernai.execute(Agent(instructions="x", provider=MockProvider("x")), "?", context=Fixed())


def test_what_editors_know_of_replace_are_the_options_of_an_agent() -> None:
    given = Agent.__init__.__annotations__
    tree = ast.parse(Path(agent_module.__file__).read_text(encoding="utf-8"))
    changes = next(one for one in ast.walk(tree) if isinstance(one, ast.ClassDef) and one.name == "AgentChanges")
    fields = [one for one in changes.body if isinstance(one, ast.AnnAssign)]
    written = {ast.unparse(one.target): ast.unparse(one.annotation) for one in fields}
    assert written.keys() == set(OPTIONS) - {"output"}
    for name, annotation in written.items():
        assert annotation == ast.unparse(ast.parse(given[name].replace("Output_co", "Any"))), name
