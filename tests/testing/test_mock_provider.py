"""The provider for tests, the user's own tests too."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

import kernai
from kernai import Agent, GenerationOptions, LlmResponse, Message, MockProvider, Models, ProviderError, Recorder, Usage
from kernai.middleware import fallback, retry
from kernai.testing import ByHand
from kernai.testing.contracts import at_once
from tests.loop.loop_cases import command, echo, plan, task
from tests.ways import WAYS, Way

GO = [Message("user", "Go.")]
NOTHING = GenerationOptions()


def ask(provider: MockProvider, text: str = "Go.") -> LlmResponse:
    return provider.call([Message("user", text)], Models.TEXT_ONLY, NOTHING, lambda _: None)


def answers(provider: MockProvider, count: int) -> list[str]:
    return [ask(provider).content for _ in range(count)]


def test_texts_are_answers_in_order_and_the_last_repeats() -> None:
    assert answers(MockProvider("a", "b"), 4) == ["a", "b", "b", "b"]
    assert answers(MockProvider().respond_with("a").respond_with("b", "c"), 4) == ["a", "b", "c", "c"]
    assert answers(MockProvider(), 2) == ["", ""]


def test_a_script_names_calls_by_number() -> None:
    assert answers(MockProvider("old").respond_with_script({1: "b", 0: "a"}), 3) == ["a", "b", "b"]
    mock = MockProvider("old")
    mistakes: list[Any] = [{0: "a", 2: "c"}, {0: "a", "1": "b"}, {0: 5}]
    for script in mistakes:
        with pytest.raises((ValueError, TypeError), match=r"got \[0, 2\]|got \[0, '1'\]|got int"):
            mock.respond_with_script(script)
    assert ask(mock).content == "old"


@pytest.mark.parametrize("options, pieces", [({}, list("abcde")), ({"chunk_size": 2}, ["ab", "cd", "e"]), ({"chunk_size": 9}, ["abcde"])])
def test_answers_are_streamed_in_pieces(options: dict[str, Any], pieces: list[str]) -> None:
    seen: list[str] = []
    assert MockProvider("abcde", **options).call(GO, Models.TEXT_ONLY, NOTHING, seen.append).content == "abcde"
    assert seen == pieces


def test_tokens_are_unknown_until_they_are_counted() -> None:
    assert ask(MockProvider("a")).total_tokens is None
    provider = MockProvider("abc").with_token_counter(
        lambda messages, content: {"prompt_tokens": len(messages), "completion_tokens": len(content)}
    )
    response = ask(provider)
    assert (response.prompt_tokens, response.completion_tokens, response.total_tokens) == (1, 3, 4)
    assert kernai.execute(Agent(instructions=""), "Go.", provider=provider).usage == Usage(2, 3, 5, None, 1)


class VendorError(Exception):
    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status


@pytest.mark.parametrize("error", [
    None, ProviderError("overloaded", status=529, retryable=True), ValueError("bad"), TimeoutError, VendorError(500, "down"),
    KeyError("k"), OSError(2, "gone"),
], ids=repr)  # fmt: skip
def test_a_call_fails_at_the_chosen_step(error: Any) -> None:
    given = () if error is None else (error,)
    provider = MockProvider("a", "b", "c").fail_on_step(1, *given)
    assert ask(provider).content == "a"
    expected = error or ProviderError
    with pytest.raises(expected if isinstance(expected, type) else type(expected)) as caught:
        ask(provider)
    if isinstance(error, Exception):
        assert str(caught.value) == str(error)
        assert vars(caught.value) == vars(error)
    assert ask(provider).content == "c"
    assert provider.call_count == 3


def test_an_answer_may_say_how_it_ended_and_what_it_used() -> None:
    cut = LlmResponse("<final>Half", finish_reason="length", prompt_tokens=3)
    for provider in (MockProvider(cut), MockProvider().on_call(lambda *_: cut), MockProvider().respond_with_script({0: cut})):
        result = kernai.execute(Agent(instructions=""), "?", provider=provider)
        assert (result.text, result.truncated, result.usage.prompt_tokens) == ("Half", True, 3)
    counted = MockProvider(cut).with_token_counter(lambda *_: {"completion_tokens": 4})
    assert kernai.execute(Agent(instructions=""), "?", provider=counted).usage.total_tokens == 7
    assert cut.completion_tokens is None


def test_what_was_asked_is_kept() -> None:
    provider = MockProvider("a")
    assert (provider.calls, provider.last_call, provider.call_count) == ([], None, 0)
    assert (provider.messages_at(0), provider.generation_at(0)) == (None, None)
    ask(provider, "one")
    options = GenerationOptions(temperature=0.5)
    provider.call(GO, Models.LLAVA, options, lambda _: None)
    assert provider.call_count == 2
    assert provider.last_call is provider.calls[1]
    assert provider.last_call.model is Models.LLAVA
    assert [one.text for one in provider.messages_at(0) or ()] == ["one"]
    assert provider.messages_at(-1) == GO
    assert (provider.generation_at(0), provider.generation_at(1)) == (NOTHING, options)
    assert (provider.messages_at(2), provider.generation_at(-3)) == (None, None)


def test_a_function_answers_what_it_is_asked_until_reset_forgets_it_with_all_calls_and_answers() -> None:
    provider = MockProvider("a", chunk_size=3).fail_on_step(2).with_token_counter(lambda *_: {"prompt_tokens": 1})
    provider.on_call(lambda messages, model: f"{model.id}: {messages[-1].text}")
    assert ask(provider, "Why?").content == "text-only: Why?"
    assert provider.reset() is provider
    assert provider.calls == []
    assert answers(provider, 3) == ["", "", ""]
    assert ask(provider).prompt_tokens is None
    assert provider.chunk_size == 3
    strict = MockProvider("a", strict=True)
    ask(strict)
    assert ask(strict.reset().respond_with("b")).content == "b"


MAKE: Any = MockProvider  # the mistakes below are those a type checker would see
BY_HAND: Any = partial(ByHand, Agent(instructions="x", provider=MockProvider()))


@pytest.mark.parametrize("make,error,message", [
    (lambda: MAKE(["a", "b"]), TypeError, r"got list: write MockProvider\(\*texts\)"),
    (lambda: MAKE(lambda messages, model: "a"), TypeError, r"got function: write MockProvider\(\)\.on_call\(function\)"),
    (lambda: ask(MAKE().on_call(lambda *_: 5)), TypeError, "must give text or an LlmResponse, got int"),
    (lambda: MAKE(chunk_size=0), ValueError, "chunk_size"),
    (lambda: MAKE().on_call(lambda: "a"), TypeError, "on_call must be a function of .messages, model.: too many"),
    (lambda: MAKE().fail_on_step(0, KeyboardInterrupt), TypeError, "error must be an exception, .*, got KeyboardInterrupt"),
    (lambda: MAKE().fail_on_step(-1), ValueError, "step must be 0 or a positive int"),
    (lambda: BY_HAND(history=[{"role": "user", "content": "Hi."}]), TypeError, "history must be a list of Messages, got dict"),
    (lambda: MAKE().with_token_counter(3), TypeError, "with_token_counter must be a plain function of .*, got 3"),
    (lambda: BY_HAND().run(3), TypeError, "the input may hold str and Media, not int"),
    (lambda: BY_HAND(context={}), TypeError, "context must be a Context, got dict"),
    (lambda: BY_HAND(provider=type("Own", (), {"call": len})()), TypeError, "got Own: derive its class from kernai.Provider"),
])  # fmt: skip
def test_a_mistake_in_a_test_is_reported_at_once(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_parallel_calls_each_get_a_turn_of_their_own() -> None:
    provider = MockProvider(*map(str, range(40)), chunk_size=9)
    got: list[str] = []
    assert at_once(lambda _: got.extend(answers(provider, 5)), 8) == []
    assert sorted(got, key=int) == list(map(str, range(40)))
    assert provider.call_count == 40


# ---------------------------------------------------------------------------------------------------------- strict


def test_a_strict_mock_refuses_a_call_for_which_it_has_no_answer() -> None:
    mock = MockProvider(command("echo", "x"), strict=True)
    agent = Agent(instructions="", skills=[echo])
    with pytest.raises(AssertionError, match=r"called once more than it has answers \(1\)\. The last.*name=.echo.>x<"):
        kernai.execute(agent, "Go.", provider=mock)
    for empty in (MockProvider(strict=True), mock.respond_with_script({})):
        with pytest.raises(AssertionError, match=r"has answers \(0\)"):
            ask(empty)


def test_a_strict_mock_refuses_answers_that_are_left_over() -> None:
    left = r"not asked for 2 of its 3 answers, the first is 'b'"
    with pytest.raises(AssertionError, match=left), MockProvider("a", "b", "c", strict=True) as mock:
        ask(mock)
    with pytest.raises(AssertionError, match=left):
        mock.check()
    with pytest.raises(ValueError, match="another"), MockProvider("a", strict=True):
        raise ValueError("another failure")
    with MockProvider("a") as lenient:
        pass
    lenient.check()


def test_a_failure_takes_no_answer_of_a_strict_mock() -> None:
    with MockProvider("a", "b", strict=True).fail_on_step(0).fail_on_step(2) as mock:
        for answer in ("a", "b"):
            with pytest.raises(ProviderError):
                ask(mock)
            assert ask(mock).content == answer
    failing = MockProvider("a", strict=True).fail_on_step(1)
    with pytest.raises(AssertionError, match="was to fail at call 1, counted from 0; calls made: 1"), failing:
        ask(failing)


LEAF = Agent(instructions="leaf", protocols=[]).as_skill("leaf", "A leaf.")
#: what the root says first, so that a sub-run asks the function below, or the root itself does
BELOW = {
    "the root": "", "an agent": command("leaf", "sub"), "agents at once": command("leaf", "sub") * 2,
    "tasks at once": plan(task("a", "sub"), task("b", "sub"), strategy="parallel"),
}


@pytest.mark.parametrize("below", BELOW)
@WAYS
def test_an_assert_in_the_answering_function_is_raised_by_the_run(way: Way, below: str) -> None:
    said = BELOW[below]

    def answer(messages: Sequence[Message], _: object) -> str:
        if said and messages[1].text == "go":
            return said if len(messages) == 2 else "<final>the run continued</final>"
        assert messages[0].text == "the right prompt", "the prompt is wrong"
        return "<final>x</final>"

    recorder = Recorder()
    kernai.configure(recorder=recorder)
    agent = Agent(
        instructions="x", skills=[LEAF], provider=MockProvider().on_call(answer), parallel_skills=True,
        middleware=[retry(), fallback(MockProvider("<final>other</final>"))],
    )
    with pytest.raises(AssertionError, match="the prompt is wrong"):
        way(agent)
    assert [event.type for event in recorder.entries if not event.scope][-1] == "result"


def test_an_assertion_error_of_another_provider_is_its_failure() -> None:
    class Broken(MockProvider):
        raises_assertions = False

    result = kernai.execute(Agent(instructions="", provider=Broken(strict=True)), "Go.")
    assert "Broken raised AssertionError: MockProvider was called once more" in str(result.error)
