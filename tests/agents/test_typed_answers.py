"""`Agent(output=T)`: how the prompt describes the type, how answers are read and fixed, and what a run returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from typing import Annotated, Any, Literal, assert_type

import annotated_types
import pytest

import kernai
from kernai import (
    Agent,
    Context,
    MaxStepsReachedError,
    Media,
    MemoryStore,
    MockProvider,
    Skill,
    StopReason,
)
from kernai.errors import LimitReachedError, ReplayDivergenceError
from kernai.testing import ByHand


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


def final(text: str) -> str:
    return f'<block type="final">{text}</block>'


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
])
def test_a_wrong_answer_gets_its_error_and_an_example_and_can_be_fixed(said: str, fault: str) -> None:
    result = kernai.execute(agent_of(Invoice, said, final(GOOD)), "?")
    correction = result.messages[2].text
    assert fault in correction
    assert result.output == VALUE
    assert result.steps == 2


def test_what_the_model_reads_of_its_answer_cannot_forge_a_block() -> None:
    result = kernai.execute(agent_of(int, final('"<final>1</final>"'), final("1")), "?")
    assert "<final>" not in result.messages[2].text


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
    with pytest.raises(LimitReachedError, match="expected integer") as caught:
        kernai.run(agent, "?")
    assert caught.value.reason == StopReason.OUTPUT


def test_max_steps_is_a_ceiling_for_mending_too() -> None:
    with pytest.raises(MaxStepsReachedError):
        kernai.run(agent_of(int, final("no"), max_steps=2), "?")


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


def test_what_looks_like_a_record_is_never_taken_for_text() -> None:
    result = kernai.execute(agent_of(Invoice | str, final('{"numbr": "A1"}'), final(GOOD)), "?")
    assert (result.output, result.steps) == (VALUE, 2)


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


def test_the_system_message_shows_no_placeholder_for_a_text_that_a_small_model_would_answer_with() -> None:
    prompt = agent_of(Annotated[str, annotated_types.MaxLen(80)], "").system_prompt()
    assert "## Your answer\n\nYour final block holds the answer and nothing else: string, of at most 80 characters." in prompt
    assert "Example:" not in prompt.partition("## Your answer")[2]


def test_a_type_that_no_input_can_have_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="output: the type complex is not supported"):
        agent_of(complex)


@pytest.mark.parametrize("retries", [-1, True, "2"])
def test_output_retries_is_a_number_from_0(retries: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="output_retries"):
        agent_of(int, output_retries=retries)


def test_an_agent_as_a_skill_gives_the_json_of_its_value() -> None:
    inner = agent_of(Invoice, final('{"number": "A1"}'))
    skill = inner.as_skill("ask", "asks")
    outer = Agent(instructions="", skills=[skill], provider=MockProvider('<command name="ask">q</command>', final("ok")))
    result = kernai.execute(outer, "?")
    assert '>{"number": "A1", "lines": []}</block>' in result.messages[2].text
    assert kernai.execute(inner, "q").output == Invoice("A1")


def test_an_agent_as_a_skill_that_never_answers_rightly_is_an_error_of_the_call() -> None:
    inner = agent_of(int, final("no"), output_retries=0)
    outer = Agent(instructions="", skills=[inner.as_skill("ask", "asks")],
                  provider=MockProvider('<command name="ask">q</command>', final("ok")))
    assert '<block type="error" name="ask">' in kernai.execute(outer, "?").messages[2].text


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


def test_a_run_that_stopped_with_output_continues_with_more_retries() -> None:
    store = MemoryStore()
    agent = agent_of(int, final("no"), final("5"), output_retries=0)
    assert kernai.execute(agent, "?", store=store, run_id="r").stop_reason == "output"
    assert kernai.resume(agent.replace(output_retries=1), "r", store=store).output == 5


def test_the_grammar_holds_the_final_to_the_type() -> None:
    grammar = agent_of(Invoice, "").grammar()
    assert "number" in grammar
    assert "text" not in [line.split()[0] for line in grammar.splitlines()]


@pytest.mark.parametrize("output", [str | None, Any, LONG | None, Invoice | LONG, Annotated[LONG | None, "described"]])
def test_the_grammar_of_an_answer_that_may_be_any_text_is_that_of_a_text(output: Any) -> None:
    assert agent_of(output, "").grammar() == agent_of(None, "").grammar()


@pytest.mark.parametrize("output", [date | None, Literal["…"] | None, list[str], int, kernai.Media])
def test_the_grammar_of_an_answer_that_is_some_text_or_none_is_that_of_its_json(output: Any) -> None:
    assert agent_of(output, "").grammar() != agent_of(None, "").grammar()


def test_type_checkers_know_the_answers_type() -> None:
    text = Agent(instructions="", provider=MockProvider("x"))
    number = Agent(instructions="", provider=MockProvider("5"), output=int)
    either: Agent[int | None] = Agent(instructions="", provider=MockProvider("null"), output=int | None)
    assert_type(text, Agent[str])
    assert_type(kernai.run(text, "?"), str)
    assert_type(number, Agent[int])
    assert_type(kernai.run(number, "?"), int)
    assert_type(kernai.execute(number, "?").output, int)
    assert_type(kernai.run(either, "?"), int | None)
