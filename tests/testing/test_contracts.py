"""The public suites: they pass what keeps the contract, and name what does not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kernai import CompositeSink, Event, JsonlSink, LlmResponse, Media, MemorySink, Message, MockProvider, ProviderError
from kernai.testing import check_provider, check_sink
from kernai.testing.plugin import LONGEST_SHOWN, pytest_assertrepr_compare
from kernai.values.result import Usage


def kept(sink: MemorySink) -> list[dict[str, Any]]:
    return [event.to_dict() for event in sink.entries]


def test_the_sinks_of_kernai_keep_the_contract(tmp_path: Path) -> None:
    files = iter(range(10))
    check_sink(MemorySink, entries=kept)
    check_sink(lambda: CompositeSink(MemorySink(), MemorySink()))
    check_sink(lambda: JsonlSink(tmp_path / f"{next(files)}.jsonl"), entries=lambda sink: JsonlSink.read(sink.path))


class Losing(MemorySink):
    lost = "progress"

    def record(self, event: Event) -> None:
        if event.type != self.lost:
            super().record(event)


class LosingStarts(Losing):
    lost = "run_start"


class LosingThreads(MemorySink):
    def record(self, event: Event) -> None:
        if threading.current_thread() is threading.main_thread():
            super().record(event)


class Async(MemorySink):
    async def record(self, event: Event) -> None:  # type: ignore[override]
        super().record(event)


class OfOneThread(MemorySink):
    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.get_ident()

    def record(self, event: Event) -> None:
        assert threading.get_ident() == self.thread, "wrong thread"
        super().record(event)


@pytest.mark.parametrize("sink, failure", [
    (Losing, "odd data.*not what was recorded"),
    (LosingStarts, "- a run: what was kept is not what was recorded"),
    (LosingThreads, r"8 threads at once: of a thread's 25 events these were kept: \[\]"),
    (Async, "a run: raised TypeError: sink must be an object .*, and Async.record is an async function"),
    (OfOneThread, "8 threads at once: record raised.*wrong thread"),
    (lambda: None, "a run: raised TypeError: sink must be an object .*, got NoneType"),
])
def test_a_sink_that_does_not_keep_the_contract_is_found_out(sink: type[MemorySink], failure: str) -> None:
    with pytest.raises(AssertionError, match=rf"(?s)the sink of {sink.__name__} does not keep the contract:.*{failure}"):
        check_sink(sink, entries=kept)


class Reporting(MockProvider):
    def call(self, messages: Any, model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
        assert on_chunk.tools is None
        on_chunk.report_usage(Usage(prompt_tokens=1))
        on_chunk.attempt_failed()
        on_chunk.waiting(0.01, reason="busy", attempt=1)
        return super().call(messages, model, generation, on_chunk)


@pytest.mark.parametrize("kind", [MockProvider, Reporting])
def test_a_provider_that_keeps_the_contract_passes(kind: type[MockProvider]) -> None:
    check_provider(lambda: kind("Hello."))


class Bare(MockProvider):
    def call(self, *given: Any) -> Any:
        return super().call(*given).content


class Deaf(MockProvider):
    pieces: Sequence[Any] = "Hello."

    def call(self, messages: Any, model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
        for piece in self.pieces:
            with suppress(Exception):
                on_chunk(piece)
        return LlmResponse("Hello.")


class Swallowing(Deaf):
    pieces = ("Hello.",)


class Counting(Deaf):
    pieces = (1,)


class Inventive(Deaf):
    pieces = ("Something else.",)


class Dropping(MockProvider):
    def encode(self, parts: Any, model: Any) -> list[Any]:
        return [part for part in parts if not isinstance(part, Media)]


class Emptying(MockProvider):
    def encode(self, parts: Any, model: Any) -> list[Any]:
        return [None if isinstance(part, Media) else part for part in parts]


class InventiveAsync(Inventive):
    def call(self, *given: Any) -> LlmResponse:
        return MockProvider.call(self, *given)

    async def acall(self, *given: Any) -> LlmResponse:
        return Inventive.call(self, *given)


class Differing(MockProvider):
    async def acall(self, *given: Any) -> LlmResponse:
        raise ProviderError("not implemented")


@pytest.mark.parametrize("provider, failure", [
    (lambda text: MockProvider(text).fail_on_step(0, ValueError("no luck")), "- a call: raised ValueError: no luck\n"),
    (Bare, "a call: gave str, not an LlmResponse"),
    (lambda _: MockProvider(), "- a call: gave no text$"),
    (Deaf, "a run that is to stop: on_chunk was called again"),
    (Swallowing, "a run that is to stop: the call continued although on_chunk had raised"),
    (Counting, "a call: a piece was not text"),
    (Inventive, "a call: what it streamed is not what it answered"),
    (InventiveAsync, "- a run: async: what it streamed is not what it answered"),
    (Dropping, "media that the model cannot take: two parts became 1"),
    (Emptying, "media that the model cannot take: a part was encoded as None"),
    (Differing, "a run: async: error: not implemented"),
    (lambda text: MockProvider(text).fail_on_step(1), "8 threads at once: runs failed"),
])
def test_a_provider_that_does_not_keep_the_contract_is_found_out(provider: Callable[[str], MockProvider], failure: str) -> None:
    def make() -> MockProvider:
        return provider("Hello.")

    with pytest.raises(AssertionError, match=rf"(?s)the provider of make does not keep the contract:.*{failure}"):
        check_provider(make)


@pytest.mark.parametrize("check", [check_provider, check_sink])
def test_a_check_of_a_thing_in_place_of_a_function_that_makes_it_says_so(check: Any) -> None:
    with pytest.raises(TypeError, match="takes a function that makes a fresh"):
        check(MockProvider("x"))


# --------------------------------------------------------------------------------------------------- the pytest plugin


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

def test_left_over_in_a_block():
    with MockProvider("<final>1</final>", strict=True):
        pass

@pytest.mark.xfail
def test_fails_as_expected(mock_model):
    mock_model("<final>1</final>")
    assert 1 == 2

def test_is_skipped(mock_model):
    mock_model("<final>1</final>")
    pytest.skip("not today")
""", passed=2, failed=3, errors=1, xfailed=1, skipped=1)
    assert "MockProvider was not asked for 1 of its 2 answers, the first is '<final>2</final>'" in report
    assert report.count("mock_provider.py:") == 1, "only the call that has no answer is shown in it"
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
    for _ in range(2):  # a recording is replaced
        outcome(tests, code.replace("OPTIONS", "").replace("CALLS", "2"), "--kernai-record", passed=1)
    assert sorted(one.name for one in (Path(tests.path) / "recordings").iterdir()) == [
        "test_it.test_it.jsonl", "test_it.test_it.second.jsonl",
    ]
    outcome(tests, code.replace("OPTIONS", "").replace("CALLS", "0"), passed=1)
    report = outcome(tests, code.replace("OPTIONS", "skills=[]").replace("CALLS", "0"), failed=1)
    assert "the agent decides" in report
    assert [f"{name}.py:" in report for name in ("test_it", "plugin", "contracts")] == [True, False, False], "shown is the test"
    strict = code.replace("OPTIONS", "instructions='y'").replace('"Go.", ', '"Go.", strict=True, ')
    assert "the agent has changed since it was recorded:\nE         instructions changed" in outcome(tests, strict, failed=1)
    recording = Path(tests.path) / "recordings" / "test_it.test_it.jsonl"
    assert recording.read_text().count('"run_start"') == 1
    recording.write_text("".join(recording.read_text().splitlines(keepends=True)[:2]))
    report = outcome(tests, code.replace("OPTIONS", "").replace("CALLS", "0"), failed=1)
    assert "test_it.test_it.jsonl stops in the middle of the run: pytest --kernai-record" in report


@pytest.mark.parametrize("options", [(), ("--kernai-record",)])
def test_a_wrong_option_of_a_recorded_run_is_an_error_and_leaves_the_recording(tests: pytest.Pytester, options: tuple[str, ...]) -> None:
    code = """
def test_it(recorded_run):
    recorded_run(agent(), "Go.", provider=MockProvider("<final>1</final>"), OPTION)
"""
    outcome(tests, code.replace("OPTION", "strict=True"), "--kernai-record", passed=1)
    outcome(tests, code.replace("OPTION", "name='openrouter/openai/gpt-4o'"), "--kernai-record", passed=1)
    for wrong, error in {
        "strct=True": "unknown option 'strct'; did you mean 'strict'?", "recorder=None": "recorded_run takes no recorder",
    }.items():
        assert error in outcome(tests, code.replace("OPTION", wrong), *options, failed=1)
    outcome(tests, code.replace("OPTION", "limits=5"), "--kernai-record", failed=1)
    outcome(tests, code.replace("OPTION", "strict=True"), passed=1)  # the recording is still there


def test_a_recording_is_of_one_run_and_one_input(tests: pytest.Pytester) -> None:
    code = """
class TestOne:
    def test_it(self, recorded_run):
        assert recorded_run(agent(), ["Go.", kernai.outside("mail")], provider=MockProvider("<final>1</final>")).text == "1"

class TestOther:
    def test_it(self, recorded_run):
        assert recorded_run(agent(), "Go on.", provider=MockProvider("<final>2</final>"), name="NAME").text == "2"

@pytest.mark.parametrize("question", ["ü" * 90])
def test_twice(recorded_run, question):
    mock = MockProvider("<final>3</final>", "<final>4</final>")
    assert recorded_run(agent(), "INPUT", provider=mock).text == "3"
    assert recorded_run(agent(), "Stop.", provider=mock, name="SECOND").text == "4"
"""
    unnamed = code.replace("NAME", "").replace("SECOND", "")
    report = outcome(tests, unnamed, "--kernai-record", passed=1, failed=2)
    assert "test_it.py::TestOne::test_it uses " in report
    assert "test_it.py::test_twice[" in report
    assert "name this run, recorded_run(..., name='second')" in report
    named = code.replace("NAME", "other").replace("SECOND", "second" * 9)
    outcome(tests, named, "--kernai-record", passed=3)
    outcome(tests, named, passed=3)
    report = outcome(tests, named.replace("INPUT", "Begin."), passed=2, failed=1)
    assert "the input is ['Begin.'], in " in report
    assert "it was ['INPUT']: pytest --kernai-record" in report


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


ONE, OTHER = Media.from_bytes(b"1", mime_type="image/png"), Media.from_bytes(b"1", mime_type="image/gif")


@pytest.mark.parametrize("op, left, right, lines", [
    ("==", Message("user", "a"), Message("assistant", "b\x1b[2J"), ["[0] user, not assistant:", "    - b[2J", "    + a"]),
    ("==", Message("user", "a\0"), Message("user", "a"), ["[0] user:", "    - a", "    + a", "    with different content: ('a\\x00',) and ('a',)"]),
    ("==", [Message("user", "a\x9b")], [Message("user", "a\x9b"), Message("user", "b")], ["[0] user: a", "[1] only on the right: user: b"]),
    ("==", [Message("user", "x" * LONGEST_SHOWN)], (), [f"[0] only on the left: user: {'x' * LONGEST_SHOWN}"]),
    ("==", [Message("user", "x " * 300)], (), [f"[0] only on the left: user: {'x ' * 40}... (600 characters)"]),
    ("==", Message("user", [ONE]), Message("user", [OTHER]), [
        "[0] user:", f"      [image:{ONE.id}]", f"    with different content: {(ONE,)!r} and {(OTHER,)!r}",
    ]),
    ("!=", Message("user", "a"), Message("user", "b"), None), ("==", [1], [2], None), ("==", Message("user", "a"), "a", None),
    ("==", (), [], None), ("==", (Message("user", "a"),), [Message("user", "a")], None),
])
def test_a_comparison_of_conversations_names_each_message(op: str, left: Any, right: Any, lines: list[str] | None) -> None:
    assert pytest_assertrepr_compare(op, left, right) == (lines and ["the conversations differ:", *lines])
