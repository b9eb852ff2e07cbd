"""The pytest plugin, in tests of its own that run in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

AGENT = """
import kernai, pytest
from kernai import Agent, Message, MockProvider, Skill

def agent(**options):
    return Agent(**{"instructions": "x", "skills": [Skill("look", execute=lambda: "seen", inputs={})], **options})

LOOK = '<block type="command" name="look"></block>'
"""


@pytest.fixture
def tests(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest('pytest_plugins = ["kernai.testing.plugin"]')
    return pytester


def outcome(tests: pytest.Pytester, code: str, *options: str, **counts: int) -> str:
    tests.makepyfile(test_it=AGENT + code)
    result = tests.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:asyncio", *options)
    result.assert_outcomes(**counts)
    return result.stdout.str()


def test_a_mock_model_is_asked_for_all_its_answers_and_no_more(tests: pytest.Pytester) -> None:
    report = outcome(tests, """
def test_right(mock_model):
    assert kernai.run(agent(), "Go.", provider=mock_model(LOOK, "<final>1</final>")) == "1"

def test_left_over(mock_model):
    assert kernai.run(agent(), "Go.", provider=mock_model("<final>1</final>", "<final>2</final>")) == "1"

def test_too_few(mock_model):
    kernai.execute(agent(), "Go.", provider=mock_model(LOOK))

def test_fails_and_says_nothing_of_answers(mock_model):
    mock_model("<final>1</final>")
    assert 1 == 2
""", passed=2, failed=2, errors=1)
    assert "1 of the 2 answers of MockProvider were not asked for, the first is '<final>2</final>'" in report
    assert """The last message was: '<block type="result" name="look">seen</block>'""" in report


def test_a_recorded_run_is_replayed_until_the_agent_decides_differently(tests: pytest.Pytester) -> None:
    code = """
def test_it(recorded_run):
    mock = MockProvider(LOOK, "<final>1</final>")
    assert recorded_run(agent(OPTIONS), "Go.", provider=mock).text == "1"
    assert recorded_run(agent(), "Go on.", provider=MockProvider("<final>2</final>"), name="second").text == "2"
    assert mock.call_count == CALLS
"""
    report = outcome(tests, code.replace("OPTIONS", "").replace("CALLS", "0"), failed=1)
    assert "test_it.test_it.jsonl: make it with pytest --kernai-record" in report
    outcome(tests, code.replace("OPTIONS", "").replace("CALLS", "2"), "--kernai-record", passed=1)
    assert sorted(one.name for one in (Path(tests.path) / "recordings").iterdir()) == [
        "test_it.test_it.jsonl", "test_it.test_it.second.jsonl",
    ]
    outcome(tests, code.replace("OPTIONS", "").replace("CALLS", "0"), passed=1)
    report = outcome(tests, code.replace("OPTIONS", "skills=[]").replace("CALLS", "0"), failed=1)
    assert "the agent decides" in report


def test_an_assert_shows_which_message_of_a_conversation_differs(tests: pytest.Pytester) -> None:
    report = outcome(tests, """
def test_it():
    result = kernai.execute(agent(provider=MockProvider(LOOK, "<final>1</final>")), "Go.")
    assert result.messages == (Message("user", "Go."), Message("assistant", "<final>1</final>"), Message("user", "Why?"))
""", failed=1)
    for line in (
        "[0] user: Go.", "[1] assistant:", "    - <final>1</final>", '    + <block type="command" name="look"></block>',
        "[2] user:", "    - Why?", "[3] only on the left: assistant: <final>1</final>",
    ):
        assert f"E         {line}" in report
