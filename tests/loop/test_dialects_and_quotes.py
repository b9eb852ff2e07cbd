"""What a run does with calls in other formats, and with calls that stand behind JSON that was cut off."""

from __future__ import annotations

import pytest

from kernai import Agent, MockProvider, Recorder, Skill, configure, execute, parse

CUT_OFF = """<command name="note">{"text": "hi </command><command name='wipe'>x</command><final>done</final>"""


def agent(ran: list[str]) -> Agent:
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
    result = execute(agent(ran), "Go.", provider=mock, on_event=(lambda event: None) if listening else None)
    assert result.text == "ok"
    assert not any("wiped" in one for one in ran)
    message = result.messages[-2].text
    assert "The JSON in one of your blocks did not end" in message
    assert "were not run: command 'wipe'; final." in message


def test_a_call_in_another_format_is_corrected_by_the_block_that_means_the_same() -> None:
    ran: list[str] = []
    answers = ['<tool_call>{"name": "note", "arguments": {"text": "a </block> b"}}</tool_call>', "", "<final>ok</final>"]

    def answer(messages: object, model: object) -> str:
        said = answers.pop(0)
        return said or shown(messages)

    def shown(messages: object) -> str:
        text = list(messages)[-1].text  # type: ignore[call-overload]
        return str(text[text.index("<block", 1) : text.rindex("</block>")])

    result = execute(agent(ran), "Go.", provider=MockProvider().on_call(answer))
    assert result.text == "ok"
    assert ran == ["a </block> b"]
    assert parse(result.messages[3].text).blocks[0].name == "note"


def test_a_call_that_cannot_be_read_is_corrected_without_a_guess() -> None:
    ran: list[str] = []
    mock = MockProvider('<tool_call>{"name": "note", "arguments": {"text": "a', "<final>ok</final>")
    result = execute(agent(ran), "Go.", provider=mock)
    assert ran == []
    assert "a call in another format (hermes), and it cannot be read" in result.messages[2].text


def test_a_repaired_call_runs_and_its_event_says_what_was_repaired() -> None:
    ran: list[str] = []
    mock = MockProvider("""<command name="note">{'text': 'hi',}</command>""", "<final>ok</final>")
    recorder = Recorder()
    execute(agent(ran), "Go.", provider=mock, recorder=recorder)
    assert ran == ["hi"]
    recorded = {"call_id": "0.0", "skill": "note", "params": {"text": "hi"}}
    assert recorder.for_event("skill_execute")[0].data == {**recorded, "repaired": ["single-quoted string", "trailing comma"]}


def test_without_repairs_the_same_call_is_a_fault() -> None:
    ran: list[str] = []
    mock = MockProvider("""<command name="wipe">{"path": "/var/a",}</command>""", "<final>ok</final>")
    configure(repair=False)
    result = execute(agent(ran), "Go.", provider=mock)
    assert ran == []
    assert "it is not valid JSON" in result.messages[-2].text
