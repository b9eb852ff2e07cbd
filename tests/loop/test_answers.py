"""What counts as an answer: prose of an agent that can make calls, stray closing tags, truncated answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest

import kernai
from kernai import Agent, LlmResponse, MemoryStore, MockProvider, ProviderError, Recorder, skill
from kernai.drivers.answer_stream import TAKEN_BACK
from kernai.values.llm_response import CUT
from tests.durable.durable_cases import replayed
from tests.loop.loop_cases import command, echo
from tests.ways import Way, by_execute, by_stream

DRAFT = "<json>{}</json>"
ECHO = command("echo", "x")
HM = "I'll check the stock for lamps. Let me call count_stock."
ACCEPT: dict[str, Any] = {"on_prose": "accept"}
NOTHING_TO_CALL: dict[str, Any] = {"skills": None, "protocols": []}

RUNS: dict[str, tuple[dict[str, Any], list[Any], str | None, int]] = {
    # the agent's options, the responses, the answer, the number of corrections
    "an announcement is no answer": ({}, [HM, ECHO, "<final>7</final>"], "7", 1),
    "a second one in a row is": ({}, [HM, "It is 7."], "It is 7.", 1),
    "a response with a block between starts over": ({}, [HM, ECHO, HM, "It is 7."], "It is 7.", 2),
    "so does one that is cut off in a block": ({}, [HM, "<final>it", HM, "It is 7."], "It is 7.", 2),
    "a call in a dialect does not": ({}, [HM, '<tool_call>{"name": "echo", "arguments": {}}</tool_call>', HM], HM, 1),
    "on the last step it is the answer": ({"max_steps": 2}, [ECHO, "It is 7."], "It is 7.", 0),
    "also where that is the only one": ({"max_steps": 1}, [HM], HM, 0),
    "an empty response is prose": ({}, ["", "<final>7</final>"], "7", 1),
    "corrected each time": ({"on_prose": "correct"}, [HM, HM, HM, "<final>7</final>"], "7", 3),
    "corrected after it was cut": ({"on_prose": "correct"}, [LlmResponse(HM, finish_reason="length"), "<final>7</final>"], "7", 1),
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
def test_prose_is_the_answer_or_is_corrected_as_the_options_say(case: str) -> None:
    options, said, answer, corrected = RUNS[case]
    provider, recorder = MockProvider(*said), Recorder()
    result = kernai.execute(
        Agent(**{"instructions": "", "skills": [echo], **options}), "How many?", provider=provider, recorder=recorder
    )
    assert (result.text, provider.call_count) == (answer, len(said))
    assert len(recorder.for_event("no_blocks_stall")) == corrected
    assert ("Your response reached its limit and was cut off before it contained a block" in str(result.messages)) == ("was cut" in case)


CLOSING = '<block type="final">Use <code></block></code> to close.</block>'
SHORT = "<final>Use </final> to close.</final >"
#: what the model says, its answer where that is not corrected, and the text after it
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
def test_other_text_after_an_answer_is_not_part_of_it(said: str) -> None:
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


def test_each_input_may_be_corrected_once_and_its_last_step_is_that_of_the_limit_when_it_was_recorded() -> None:
    store, agent = MemoryStore(), Agent(instructions="", skills=[echo], max_steps=2)
    said = MockProvider(HM, "It is 7.", ECHO, HM, HM, "<final>8</final>")
    assert kernai.execute(agent, "How many?", provider=said, store=store, run_id="r").text == "It is 7."
    assert kernai.resume(agent, "r", input="And now?", provider=said, store=store).text == HM
    longer = agent.replace(max_steps=9)
    assert kernai.resume(longer, "r", input="And now?", provider=said, store=store).text == "8"
    assert kernai.replay(longer, "r", store=store).result is not None


# ------------------------------------------------------------------------------------- answers that the vendor cut off


def said(*answers: tuple[str, str | None], **more: Any) -> MockProvider:
    """A model that answers with (text, finish reason), in order."""
    used: dict[str, Any] = {"prompt_tokens": 10, "completion_tokens": 5, **more}
    return MockProvider(*(LlmResponse(text, finish_reason=reason, **used) for text, reason in answers))


@skill(register=False)
def note(text: str) -> str:
    """Keeps a note."""
    return text


def run(*answers: tuple[str, str | None], **options: Any) -> tuple[kernai.Result[Any], MockProvider]:
    script = said(*answers)
    return kernai.execute(Agent(instructions="Go.", provider=script, **options), "Hi."), script


@pytest.mark.parametrize("way", [by_execute, by_stream])
@pytest.mark.parametrize("skills", [None, [note]])
@pytest.mark.parametrize("reason", CUT)
@pytest.mark.parametrize("content, text", [
    ("Half a sen", "Half a sen"), ("<final>Half a sen", "Half a sen"), ('<block type="final">\nHalf', "Half"), ("<final>Whole.</final>", None),
])
def test_a_truncated_answer_is_returned_and_marked_as_truncated(
    content: str, text: str | None, reason: str, skills: Any, way: Way
) -> None:
    script = said((content, reason))
    result = way(Agent(instructions="Go.", provider=script, skills=skills), "Hi.")
    assert (result.ok, result.text, result.finish_reason) == (True, text or "Whole.", reason)
    assert (result.truncated, script.call_count) == (text is not None, 1)


@pytest.mark.parametrize("on_truncated", ["accept", "continue", "fail"])
@pytest.mark.parametrize("content", ["", " \n"])
@pytest.mark.parametrize("reason", CUT)
def test_an_empty_answer_that_was_cut_off_is_a_failed_call(reason: str, content: str, on_truncated: Any) -> None:
    recorder = Recorder()
    script = said((content, reason))
    agent = Agent(instructions="Go.", provider=script, skills=[note], on_prose="correct", on_truncated=on_truncated)
    result = kernai.execute(agent, "Hi.", recorder=recorder)
    assert (result.stop_reason, result.text, script.call_count) == ("error", None, 1)
    assert isinstance(result.error, ProviderError)
    assert result.error.code == reason
    assert (result.usage.prompt_tokens, result.usage.model_calls) == (10, 1)
    (failed,) = recorder.for_event("model_failed")
    assert (failed.data["prompt_tokens"], failed.data["completion_tokens"]) == (10, 5)
    assert recorder.token_usage() == result.usage
    refusing = Agent(instructions="", provider=said((content, reason), ("Half", reason), metadata={"refusal": "I cannot."}), on_truncated="fail")
    for _ in range(2):
        assert str(kernai.execute(refusing, "Hi.").error).endswith(": I cannot.")


@pytest.mark.parametrize("answers,text", [
    ((("One, two, ", "length"), ("three.", "stop")), "One, two, three."),
    ((("<final>One, ", "length"), ("two, ", "length"), ("three.</final>", "stop")), "One, two, three."),
    ((('<block type="final">One, ', "length"), ("two.", None)), "One, two."),
    ((("<final>One, tw", "length"), ("<final>One, two.</final>", "stop")), "One, two."),
    ((("One", "length"), ("<final>Two.</final>", "stop")), "Two."),
    ((("One ", "length"), ("two", "content_filter")), "One two"),
])
def test_a_truncated_answer_is_continued_where_it_stopped(answers: Any, text: str) -> None:
    result, script = run(*answers, on_truncated="continue")
    assert (result.text, script.call_count) == (text, len(answers))
    assert result.truncated is (answers[-1][1] == "content_filter")
    assert "cut off" in script.calls[1].messages[-1].text
    assert [one.role for one in script.calls[1].messages] == ["system", "user", "assistant", "user"]


def test_a_typed_answer_that_was_cut_off_is_reported_as_truncated() -> None:
    result, script = run(("<final>[1, 2", "length"), ("<final>[3]</final>", "stop"), output=list[int])
    assert (result.output, result.truncated) == ([3], False)
    assert "cut off" in script.calls[1].messages[-1].text
    refusing = said(("<final>[1, 2", "length"), metadata={"refusal": "I cannot."})
    result = kernai.execute(Agent(instructions="", provider=refusing, output=list[int], output_retries=0), "Hi.")
    assert (result.stop_reason, result.truncated, ": I cannot.\n" in str(result.error)) == ("output", False, True)
    assert "raise generation.max_tokens" in str(result.error)


@dataclass
class Bill:
    total: int
    paid_by: str = ""


MISSPELLED = '<final>{"total": 3, "paidby": "Ada", "note": "cash"}</final>'


@pytest.mark.parametrize("retries, output, noted", [
    (1, Bill(3, "Ada"), ["unknown field colour"]),
    (0, Bill(3), ["unknown field paidby", "unknown field note"]),
])  # fmt: skip
def test_a_misspelled_field_of_an_answer_is_corrected_but_does_not_end_the_run(
    retries: int, output: Bill, noted: list[str]
) -> None:
    agent = Agent(instructions="", output=Bill, output_retries=retries)
    right = '<final>{"total": 3, "paid_by": "Ada", "colour": "red"}</final>'
    script, recorder = MockProvider(MISSPELLED, right), Recorder()
    assert kernai.run(agent, "Hi.", provider=script, recorder=recorder) == output
    rejected = [event.data["error"] for event in recorder.for_event("answer_rejected")]
    assert rejected == ['paidby: there is no such field, did you mean "paid_by"?'][:retries]
    assert recorder.for_event("result")[0].data["repaired"] == noted


def test_a_misspelled_field_of_an_answer_in_an_older_recording_is_replayed_as_recorded() -> None:
    store, agent = MemoryStore(), Agent(instructions="", output=Bill, output_retries=0, provider=MockProvider(MISSPELLED))
    kernai.execute(agent, "Hi.", store=store, run_id="r")
    entries = store.load("r")
    entries[0]["data"]["rules"] |= {"answers": 4, "output_retries": 2}
    del entries[-1]["data"]["repaired"]
    assert replayed(agent, recording=entries).output == Bill(3)


def test_a_run_that_continues_after_a_truncated_answer_is_no_longer_truncated() -> None:
    store = MemoryStore()
    agent = Agent(instructions="", provider=said(("Half", "length"), ("Whole.", "stop")))
    first = kernai.execute(agent, "Hi.", store=store, run_id="r")
    second = kernai.resume(agent, "r", store=store, input="Go on.")
    assert (first.truncated, second.truncated) == (True, False)


def test_a_truncated_answer_is_an_error_if_the_agent_says_so() -> None:
    result, script = run(("Half", "length"), on_truncated="fail")
    assert (result.stop_reason, script.call_count) == ("error", 1)
    assert "max_tokens" in str(result.error)
    assert run(("Whole.", "stop"), on_truncated="fail")[0].text == "Whole."


@pytest.mark.parametrize("reason, how, instead", [
    ("length", "reached its limit", "smaller steps"), ("context", "reached its limit", "smaller steps"),
    ("content_filter", "stopped by a filter", "in another way"), ("refusal", "stopped by a filter", "in another way"),
])  # fmt: skip
def test_a_truncated_call_is_not_run_and_the_model_reads_why(reason: str, how: str, instead: str) -> None:
    result, script = run(
        ('<block type="command" name="note">{"text": "lo', reason), ("<final>ok</final>", "stop"), skills=[note],
    )  # fmt: skip
    text = script.calls[1].messages[-1].text
    assert how in text
    assert instead in text
    assert "was not closed" not in text
    assert (result.text, result.truncated) == ("ok", False)


@pytest.mark.parametrize("answers,options", [
    ((("Half", "length"),), {}),
    ((("<final>One, ", "length"), ("two.</final>", "stop")), {"on_truncated": "continue"}),
])
def test_a_replay_and_a_finished_run_report_truncation(answers: Any, options: Any) -> None:
    store = MemoryStore()
    agent = Agent(instructions="Go.", provider=said(*answers), **options)
    first = kernai.execute(agent, "Hi.", store=store, run_id="r")
    again = (kernai.resume(agent, "r", store=store), kernai.replay(agent, "r", store=store).result)
    for other in again:
        assert other is not None
        assert (other.text, other.finish_reason, other.truncated) == (first.text, first.finish_reason, first.truncated)
        assert other.usage == first.usage


CUT_VALUES: list[tuple[Any, str]] = [
    (int, "12"), (float, "3.1"), (int | None, "12"), (Literal["yes", "yesterday"], "yes"), (Any, "12"), (list[int], "[1]"),
]  # fmt: skip


@pytest.mark.parametrize("output, said", CUT_VALUES)
def test_a_truncated_value_without_a_final_block_is_not_taken_for_complete(output: Any, said: str) -> None:
    result, _ = run((said, "length"), output=output)
    assert (result.ok, result.truncated) == (True, True)
    result, _ = run((said, "length"), output=output, on_truncated="fail")
    assert (result.stop_reason, result.output) == ("error", None)
    result, script = run((said, "length"), (" ", "stop"), output=output, on_truncated="continue")
    assert (result.ok, result.truncated, script.call_count) == (True, False, 2)
    result, _ = run((f"<final>{said}</final>", "length"), output=output, on_truncated="fail")
    assert (result.ok, result.truncated) == (True, False)
    result, _ = run(("12", "length"), ("50", "stop"), output=int, on_truncated="continue")
    assert result.output == 1250, "it is read together with its continuation"


@pytest.mark.parametrize("on_prose", ["accept", "correct_once", "correct"])
@pytest.mark.parametrize("reason", ["tool", "other"])
def test_an_empty_response_in_an_unfinished_turn_is_corrected_once_and_then_an_error(reason: str, on_prose: Any) -> None:
    def asked(*answers: Any, **options: Any) -> tuple[Any, int]:
        model = said(*answers, metadata={"finish_reason": "pause_turn"})
        return kernai.execute(Agent(instructions="Go.", provider=model, on_prose=on_prose, **options), "Hi."), model.call_count

    once, calls = asked((" ", reason), ("<final>done</final>", "stop"), skills=[note])
    assert (once.text, calls) == ("done", 2)
    twice, calls = asked((" ", reason), ("", reason), ("<final>done</final>", "stop"), skills=[note])
    nobody, first = asked(("", reason))
    for result in (twice, nobody):
        assert (result.stop_reason, result.text) == ("error", None)
        assert "the vendor's reason is 'pause_turn'" in str(result.error)
        assert isinstance(result.error, ProviderError)
        assert result.error.code == "pause_turn"
    assert (calls, first) == (2, 1)


@pytest.mark.parametrize("rules, recorded, stop", [(1, "stop", "final"), (2, "tool", "error")])
def test_an_empty_response_in_an_older_recording_is_replayed_as_recorded(rules: int, recorded: str, stop: str) -> None:
    store, agent = MemoryStore(), Agent(instructions="Go.", provider=said(("", recorded)))
    assert kernai.execute(agent, "Hi.", store=store, run_id="r").stop_reason == stop
    entries = store.load("r")
    entries[0]["data"]["rules"]["answers"] = rules
    for response in (entry for entry in entries if entry["event"] == "llm_response"):
        response["data"]["finish_reason"] = "tool"
    assert replayed(agent, recording=entries).stop_reason == stop
