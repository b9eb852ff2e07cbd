"""`Agent(output=T)`: how the prompt describes the type, how answers are read and fixed, and what a run returns."""

from __future__ import annotations

import ast
import enum
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import annotated_types
import pytest

import kernai
from kernai import Agent, Context, Media, MemoryStore, MockProvider, Recorder, Skill, StopReason, Task, execute_plan
from kernai.agents import agent as agent_module
from kernai.agents.agent import OPTIONS
from kernai.errors import LimitReachedError, ReplayDivergenceError
from kernai.testing import ByHand
from tests.ways import Way, by_aexecute, by_execute
from tests.written import command, final


@dataclass
class Line:
    text: str
    price: Annotated[float, annotated_types.Ge(0)]


@dataclass
class Invoice:
    number: str
    lines: list[Line] = field(default_factory=list)


LONG = Annotated[str, annotated_types.MinLen(4)]
GOOD = '{"number": "A1", "lines": [{"text": "tea", "price": 3.5}]}'
VALUE = Invoice("A1", [Line("tea", 3.5)])


def agent_of(output: Any, *texts: str, **options: Any) -> Agent[Any]:
    return Agent(instructions="Answer.", provider=MockProvider(*texts), output=output, **options)


@pytest.mark.parametrize("said", [
    final(GOOD), f"<final>\n{GOOD}\n</final>", GOOD, f"  {GOOD}\n", f"```json\n{GOOD}\n```", final(f"```\n{GOOD}\n```"),
    f"Here it is. {final(GOOD)}",
])
def test_a_right_answer_is_its_value_whether_in_a_final_in_prose_or_in_a_fence(said: str) -> None:
    result = kernai.execute(agent_of(Invoice, said), "?")
    assert (result.output, result.stop_reason, result.steps) == (VALUE, "final", 1)


@pytest.mark.parametrize("said, fault", [
    (final('{"lines": []}'), "number: required, but missing"),
    (final('{"number": 1, "lines": [{"text": "a", "price": -1}]}'), "lines[0].price: expected number, at least 0"),
    (final('{"number": "A1",'), "not valid JSON"),
    (final(""), "not valid JSON"),
    ("Let me think.", "not valid JSON"),
    (f"Here you are: {GOOD}", "not valid JSON"),
    ('<final>{"number": "A1"', "was not closed"),
    (final('{"number": "A1", "number": "A2"}'), "twice"),
    (final("NaN"), "NaN"),
    (final('"<final>1</final>"'), r"\u003cfinal>1\u003c/final>"),
])
def test_a_wrong_answer_gets_its_error_and_an_example_and_can_be_fixed(said: str, fault: str) -> None:
    result = kernai.execute(agent_of(Invoice, said, final(GOOD)), "?")
    assert fault in result.messages[2].text
    assert (result.output, result.steps) == (VALUE, 2)
    assert kernai.execute(agent_of(Invoice, said, max_steps=1), "?").stop_reason == "max_steps"


def test_a_repaired_answer_says_so_and_can_be_refused() -> None:
    said = final(GOOD.replace('"', "'"))
    hand = ByHand(agent_of(Invoice, said))
    assert hand.run("?").output == VALUE
    assert hand.events[-1].data["repaired"] == ["single-quoted string"]
    with kernai.isolated():
        kernai.configure(repair=False)
        assert kernai.execute(agent_of(Invoice, said), "?").stop_reason == "output"
        kernai.configure(repair=True)
        assert kernai.run(agent_of(int, final('"5"')), "?") == 5


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_after_so_many_wrong_answers_the_run_stops_with_output(retries: int) -> None:
    agent = agent_of(int, final("no"), output_retries=retries)
    result = kernai.execute(agent, "?")
    assert (result.stop_reason, result.steps, result.output, result.text) == ("output", retries + 1, None, None)
    times = "once" if retries == 0 else f"{retries + 1} times"
    looks_like_one = kernai.execute(agent_of(Invoice | str, final('{"numbr": "A1"}'), final(GOOD)), "?")
    assert (looks_like_one.output, looks_like_one.steps) == (VALUE, 2), "it is never taken for text"
    with pytest.raises(LimitReachedError, match=f"the model answered {times} and never .*expected integer") as caught:
        kernai.run(agent, "?")
    assert caught.value.reason == StopReason.OUTPUT


def test_an_answer_that_is_refused_is_an_event() -> None:
    hand = ByHand(agent_of(int, final("no"), final("5")))
    assert hand.run("?").output == 5
    assert [event.data for event in hand.events if event.type in ("answer_rejected", "final")] == [
        {"error": 'expected integer as JSON, received string "no": not valid JSON, Expecting value at line 1, column 1 '
                  "(character 0)", "attempt": 1},
        "5",
    ]


@pytest.mark.parametrize("output, said, value", [
    (str, "hello", "hello"),
    (None, final(GOOD), GOOD),
    (Annotated[str, annotated_types.MinLen(3)], '"quoted"', '"quoted"'),
    (int, "5", 5),
    (int | None, final("null"), None),
    (str | None, final("null"), None),
    (str | None, final("hello"), "hello"),
    (str | None, final('"hello"'), "hello"),
    (bool, final("true"), True),
    (date, "2026-11-20", date(2026, 11, 20)),
    (date, final('"2026-11-20"'), date(2026, 11, 20)),
    (Literal["yes", "no"], "yes", "yes"),
    (Literal["5", "no"], final("5"), "5"),
    (list[int], "[1, 2]", [1, 2]),
    (Invoice | str, final("no invoice"), "no invoice"),
])
def test_each_type_is_read_as_it_is_written(output: Any, said: str, value: object) -> None:
    found = kernai.run(agent_of(output, said, "never"), "?")
    assert found == value
    assert type(found) is type(value)


def test_a_media_id_is_the_media() -> None:
    context, media = Context(), Media.from_bytes(b"\x89PNG", mime_type="image/png")
    context.media_store.put(media)
    assert kernai.run(agent_of(Media, final(media.id)), "?", context=context) is media


def test_prose_that_is_the_value_counts_although_prose_is_corrected() -> None:
    skill = kernai.Skill("look", execute=lambda: "x", description="looks")
    agent = agent_of(dict[str, Any], '{"name": "look", "arguments": {}}', skills=[skill], on_prose="correct")
    assert kernai.run(agent, "?") == {"name": "look", "arguments": {}}


@pytest.mark.parametrize("said", [
    "Let me see what is in stock.", '<tool_call>{"name": "count", "arguments": {}}</tool_call>',
    '[TOOL_CALLS] [{"name": "count", "arguments": {}}]', '<BLOCK TYPE="COMMAND" NAME="count"></BLOCK>',
])
@pytest.mark.parametrize("output", [str | None, Invoice | str, Any, LONG | None])
def test_prose_is_not_surely_the_answer_where_any_text_is_one(said: str, output: Any) -> None:
    agent = agent_of(output, said, final("none"), skills=[Skill("count", execute=lambda: "")], on_prose="correct")
    assert kernai.execute(agent, "?").text == "none"


def test_the_system_message_shows_the_shape_once_with_an_example() -> None:
    prompt = agent_of(Invoice, "").system_prompt()
    assert prompt.count("## Your answer") == 1
    assert "- lines[].price (number, at least 0, required)" in prompt
    assert '<block type="final">{"number": "..."}</block>' in prompt
    assert "## Your answer" not in agent_of(str, "").system_prompt()
    prompt = agent_of(Annotated[str, annotated_types.MaxLen(80)], "").system_prompt()
    assert "## Your answer\n\nYour final block holds the answer and nothing else: string, of at most 80 characters." in prompt
    assert "Example:" not in prompt.partition("## Your answer")[2], "a small model would answer with a placeholder"


def test_the_tasks_of_a_workflow_answer_with_text_and_the_whole_with_the_type() -> None:
    plan = '<block type="plan">{"tasks": [{"id": "a", "input": "part"}]}</block>'
    seen: list[str] = []

    def answer(messages: Any, _: object) -> str:
        seen.append(messages[0].text)
        if messages[-1].text == "part":
            return final("a part")
        return plan if len(seen) == 1 else final("7")

    agent = agent_of(int, skills="all").replace(provider=MockProvider().on_call(answer))
    assert kernai.run(agent, "?") == 7
    assert ["## Your answer" in system for system in seen] == [True, False, True]


def test_a_replay_and_a_resume_give_the_same_value() -> None:
    store = MemoryStore()
    agent = agent_of(Invoice, final("no"), final(GOOD))
    first = kernai.execute(agent, "?", store=store, run_id="r")
    again = kernai.replay(agent, "r", store=store).result
    assert again is not None
    assert first.output == VALUE == again.output == kernai.resume(agent, "r", store=store).output
    with pytest.raises(ReplayDivergenceError, match=r"Agent\(output=\.\.\.\)"):
        kernai.resume(agent.replace(output=int), "r", store=store)
    wrong = agent_of(int, final("no"), final("5"), output_retries=0)
    assert kernai.execute(wrong, "?", store=store, run_id="w").stop_reason == "output"
    assert kernai.resume(wrong.replace(output_retries=1), "w", store=store).output == 5, "with more retries it continues"


@pytest.mark.parametrize("output, is_any_text", [
    *((output, True) for output in (str | None, Any, LONG | None, Invoice | LONG, Annotated[LONG | None, "described"])),
    *((output, False) for output in (date | None, Literal["…"] | None, list[str], int, Media, Invoice)),
])
def test_the_grammar_of_an_answer_is_that_of_its_json_unless_it_may_be_any_text(output: Any, is_any_text: bool) -> None:
    grammar = agent_of(output, "").grammar()
    assert (grammar == agent_of(None, "").grammar()) is is_any_text
    assert output is not Invoice or ("number" in grammar and "text" not in [line.split()[0] for line in grammar.splitlines()])


# --------------------------------------------------------------------------------------------- Agent(output_check=...)


@dataclass
class Deps(Context):
    """A dataclass needs no `super().__init__()`."""

    most: int
    seen: list[Any] = field(default_factory=list)


def at_most(value: Any, ctx: Any) -> Any:
    ctx.seen.append(value)
    why: Any = enum.Enum("why", {"MOST": f"it may be {ctx.most} at most, and is {value}"}, type=str)
    return why.MOST if int(value) > ctx.most else None


def checked(*said: str, **options: Any) -> Agent[Any]:
    given: dict[str, Any] = {"instructions": "x", "protocols": [], "output": int, "output_check": at_most}
    return Agent(**{**given, "provider": MockProvider(*said), **options})


@pytest.mark.parametrize("output", [int, str])
@pytest.mark.parametrize("way", [by_execute, by_aexecute])
def test_the_model_reads_why_an_answer_is_refused_and_corrects_it(output: type, way: Way) -> None:
    deps, recorder = Deps(most=5), Recorder()
    it = checked("9", "<final>7</final>", "<final>3</final>", output=output, name="clerk")
    result = way(it, "?", context=deps, recorder=recorder)
    assert (result.output, deps.seen) == (output(3), [output(9), output(7), output(3)])
    correction = '<block type="error" name="final">Your answer cannot be used. it may be 5 at most, and is 9</block>'
    assert result.messages[2].text == correction
    assert [event.data["attempt"] for event in recorder.for_event("answer_rejected")] == [1, 2]
    stopped: Any = way(checked("9", output=output, output_retries=1), "?", context=deps)
    assert (stopped.stop_reason, stopped.output, "the model answered 2 times" in str(stopped.error)) == ("output", None, True)
    assert "it may be 5 at most, and is 9" in str(stopped.error)


def test_what_a_replay_and_a_resume_find_on_record_is_not_checked_again() -> None:
    store, deps = MemoryStore(), Deps(most=5)
    it = checked("9", "<final>3</final>", "<final>8</final>", "<final>2</final>")
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


def test_an_agent_that_is_called_gives_json_and_checks_its_answers_and_a_plans_task_has_none() -> None:
    deps = Deps(most=5)
    inner = agent_of(Invoice, final('{"number": "A1"}'))
    outer = Agent(instructions="", skills=[inner.as_skill("ask", "")], provider=MockProvider(command("ask", "q"), final("ok")))
    assert '>{"number": "A1", "lines": []}</block>' in kernai.execute(outer, "?").messages[2].text
    leaf = checked("9", "<final>3</final>", name="leaf")
    caller = Agent(
        instructions="x", skills=[leaf.as_skill("leaf", "A leaf.")], protocols=[],
        provider=MockProvider(command("leaf", "go"), "<final>done</final>"),
    )
    assert '<block type="result" name="leaf">3</block>' in [
        message.text for message in kernai.execute(caller, "?", context=deps).messages
    ]
    deps.seen.clear()
    tasks = [Task("a", "x"), Task("b", "x")]
    result = execute_plan(checked("9"), tasks, agents={"b": checked("9", "<final>3</final>")}, context=deps)
    assert result.output == {"a": "9", "b": 3}
    assert deps.seen == [9, 3]


@pytest.mark.parametrize("said", [False, 0, "", "  ", ["no"]])
def test_a_check_that_gives_neither_a_text_nor_none_is_a_mistake_of_the_caller(said: Any) -> None:
    with pytest.raises(TypeError, match="output_check must give a text"):
        kernai.execute(checked("9", output_check=lambda value, ctx: said), "?")


async def later(value: Any, ctx: Any) -> None: ...


@pytest.mark.parametrize("check", [lambda value: None, later, "check", lambda a, b, c: None])
def test_a_check_is_a_plain_function_of_the_value_and_the_context(check: Any) -> None:
    with pytest.raises(TypeError, match="output_check must be a"):
        checked(output_check=check)
    one = checked()
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
    assert all(getattr(Deps(1), name) is not getattr(Deps(1), name) for name in ("media_store", "task_results"))


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
