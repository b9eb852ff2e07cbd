"""Prose from an agent that can call something: corrected once, and a second time in a row it is the answer."""

from __future__ import annotations

from typing import Any

import pytest

import kernai
from kernai import Agent, MemoryStore, MockProvider, Recorder
from kernai.drivers.answer_stream import TAKEN_BACK
from tests.loop.loop_cases import command, echo

DRAFT = "<json>{}</json>"
ECHO = command("echo", "x")
HM = "I'll check the stock for lamps. Let me call count_stock."
ACCEPT: dict[str, Any] = {"on_prose": "accept"}
NOTHING_TO_CALL: dict[str, Any] = {"skills": None, "protocols": []}

RUNS: dict[str, tuple[dict[str, Any], list[str], str | None, int]] = {
    # the agent's options, what the model says, the answer, how often it was corrected
    "an announcement is no answer": ({}, [HM, ECHO, "<final>7</final>"], "7", 1),
    "a second one in a row is": ({}, [HM, "It is 7."], "It is 7.", 1),
    "a response with a block between starts over": ({}, [HM, ECHO, HM, "It is 7."], "It is 7.", 2),
    "so does one that is cut off in a block": ({}, [HM, "<final>it", HM, "It is 7."], "It is 7.", 2),
    "a call in a dialect does not": ({}, [HM, '<tool_call>{"name": "echo", "arguments": {}}</tool_call>', HM], HM, 1),
    "on the last step it is the answer": ({"max_steps": 2}, [ECHO, "It is 7."], "It is 7.", 0),
    "also where that is the only one": ({"max_steps": 1}, [HM], HM, 0),
    "an empty response is prose": ({}, ["", "<final>7</final>"], "7", 1),
    "corrected each time": ({"on_prose": "correct"}, [HM, HM, HM, "<final>7</final>"], "7", 3),
    "accepted": (ACCEPT, [HM], HM, 0),
    "without anything to call": (NOTHING_TO_CALL, [HM], HM, 0),
    "a rejected answer does not start over": ({"output": int}, [HM, "<final>x</final>", HM, "<final>7</final>"], "7", 1),
    "prose of the answer's type is an answer": ({"output": int}, ["7"], "7", 0),
    "a draft of an agent that can call nothing": (NOTHING_TO_CALL, [DRAFT, "It is 7."], "It is 7.", 0),
    "a second draft in a row": (NOTHING_TO_CALL, [DRAFT, DRAFT], DRAFT, 0),
    "a draft, also on the last step": ({**NOTHING_TO_CALL, "max_steps": 1}, [DRAFT], None, 0),
    "drafts where prose is accepted": ({**NOTHING_TO_CALL, **ACCEPT}, [DRAFT, DRAFT, "It is 7."], "It is 7.", 0),
    "drafts of an agent with skills": ({"max_steps": 3}, [DRAFT, DRAFT, DRAFT], None, 0),
}


@pytest.mark.parametrize("case", RUNS)
def test_what_becomes_of_prose(case: str) -> None:
    options, said, answer, corrected = RUNS[case]
    provider, recorder = MockProvider(*said), Recorder()
    result = kernai.execute(
        Agent(**{"instructions": "", "skills": [echo], **options}), "How many?", provider=provider, recorder=recorder
    )
    assert (result.text, provider.call_count) == (answer, len(said))
    assert len(recorder.for_event("no_blocks_stall")) == corrected


CLOSING = '<block type="final">Use <code></block></code> to close.</block>'
SHORT = "<final>Use </final> to close.</final >"
#: what the model says, its answer where that is not corrected, and the text behind it
STRAY = {
    "a canonical block": (CLOSING, "Use <code>", "</code> to close.</block>"),
    "the shorthand": (SHORT, "Use", " to close.</final >"),
    "white space behind it": (CLOSING + " \n", "Use <code>", "</code> to close.</block>"),
    "notes before it": ("<json>{}</json>Well: " + CLOSING, "Use <code>", "</code> to close.</block>"),
    "several closing tags": ("<final>a</final>b</final>c</final>", "a", "b</final>c</final>"),
}
NOT_STRAY = {
    "a doubled close": "<final>7</final> </final>",
    "prose behind it": "<final>7</final> That is all.",
    "a close that is not the block's": "<final>7</final> and </block>",
    "another block behind it": '<final>7</final> and <block type="json">{}</block>',
    "a block that is still open behind it": "<final>7</final> and <final>8",
    "two finals": "<final>7</final> and <final>8</final>",
    "a tag in its JSON": '<final>{"a": "</final>"}</final>',
    "a close before it": "a</final> b <final>7</final>",
}


@pytest.mark.parametrize("said, left, behind", STRAY.values(), ids=STRAY)
def test_an_answer_that_contains_its_closing_tag_is_corrected_once(said: str, left: str, behind: str) -> None:
    provider, recorder = MockProvider(said, said), Recorder()
    result = kernai.execute(Agent(instructions="", protocols=[]), "How?", provider=provider, recorder=recorder)
    assert (result.text, provider.call_count) == (left, 2)
    [event] = recorder.for_event("stray_close")
    assert event.data["text"] == behind
    assert "&lt;" in result.messages[2].text
    for options in ({"on_prose": "accept"}, {"max_steps": 1}):
        provider.reset().respond_with(said)
        assert kernai.execute(Agent(instructions="", **options), "How?", provider=provider).text == left
        assert provider.call_count == 1


@pytest.mark.parametrize("said", NOT_STRAY.values(), ids=NOT_STRAY)
def test_other_text_behind_an_answer_is_no_part_of_it(said: str) -> None:
    recorder = Recorder()
    kernai.execute(Agent(instructions="", provider=MockProvider(said)), "How?", recorder=recorder)
    assert not recorder.for_event("stray_close")


def test_an_answer_without_its_closing_tag_replaces_the_one_that_was_cut() -> None:
    whole = "Use <code>&lt;/block></code> to close."
    said = MockProvider(CLOSING, f'<block type="final">{whole}</block>')
    with kernai.stream(Agent(instructions="", provider=said), "How?") as events:
        pieces = list(events.text())
    assert pieces[pieces.index(TAKEN_BACK) + 1:] != []
    assert "".join(pieces[pieces.index(TAKEN_BACK):]) == whole
    assert events.result.text == whole


def test_another_input_starts_over() -> None:
    store, agent = MemoryStore(), Agent(instructions="", skills=[echo])
    said = MockProvider(HM, "It is 7.", HM, "<final>8</final>")
    assert kernai.execute(agent, "How many?", provider=said, store=store, run_id="r").text == "It is 7."
    assert kernai.resume(agent, "r", input="And now?", provider=said, store=store).text == "8"
    assert kernai.replay(agent, "r", store=store).result is not None


def test_which_step_was_the_last_is_judged_by_the_limit_of_then() -> None:
    store = MemoryStore()
    agent = Agent(instructions="", skills=[echo], max_steps=2)
    first = kernai.execute(agent, "Go.", provider=MockProvider(ECHO, HM), store=store, run_id="r")
    assert first.text == HM
    longer = agent.replace(max_steps=9)
    assert kernai.resume(longer, "r", input="More.", provider=MockProvider(HM, "<final>8</final>"), store=store).text == "8"
