"""The provider for tests, the user's own tests too."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import kernai
from kernai import Agent, GenerationOptions, LlmResponse, Message, MockProvider, Models, ProviderError, Usage
from tests.loop.loop_cases import command, echo

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
    with pytest.raises(ValueError, match=r"\[0, 2\]"):
        MockProvider().respond_with_script({0: "a", 2: "c"})


def test_a_function_answers_what_it_is_asked() -> None:
    provider = MockProvider("unused").on_call(lambda messages, model: f"{model.id}: {messages[-1].text}")
    assert ask(provider, "Why?").content == "text-only: Why?"


def test_a_test_of_an_agent_needs_no_more() -> None:
    provider = MockProvider(command("echo", "hi"), "<final>It said hi.</final>")
    assert kernai.run(Agent(instructions="Ask the echo.", skills=[echo], provider=provider), "Hello?") == "It said hi."
    assert provider.call_count == 2
    sent = provider.messages_at(1)
    assert sent is not None
    assert "hi</block>" in sent[-1].text


@pytest.mark.parametrize("size,pieces", [(1, list("abcde")), (2, ["ab", "cd", "e"]), (9, ["abcde"])])
def test_answers_are_streamed_in_pieces(size: int, pieces: list[str]) -> None:
    seen: list[str] = []
    provider = MockProvider("abcde", chunk_size=size)
    assert provider.call(GO, Models.TEXT_ONLY, NOTHING, seen.append).content == "abcde"
    assert seen == pieces


def test_pieces_have_one_character_unless_asked_otherwise() -> None:
    assert MockProvider().chunk_size == 1
    provider = MockProvider("abc")
    provider.chunk_size = 3
    seen: list[str] = []
    provider.call(GO, Models.TEXT_ONLY, NOTHING, seen.append)
    assert seen == ["abc"]


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
    ProviderError("overloaded", status=529, retryable=True), ProviderError, ValueError("bad"), TimeoutError,
    VendorError(500, "down"), KeyError("k"), OSError(2, "gone"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
], ids=repr)  # fmt: skip
def test_a_call_fails_at_the_chosen_step(error: Any) -> None:
    provider = MockProvider("a", "b", "c").fail_on_step(1, error)
    assert ask(provider).content == "a"
    with pytest.raises(error if isinstance(error, type) else type(error)) as caught:
        ask(provider)
    if not isinstance(error, type):
        assert str(caught.value) == str(error)
        assert vars(caught.value) == vars(error)
    assert ask(provider).content == "c"
    assert provider.call_count == 3


def test_a_call_fails_like_a_provider_by_default() -> None:
    with pytest.raises(ProviderError):
        ask(MockProvider().fail_on_step(0))


def test_one_failure_serves_two_runs_that_do_not_share_a_result() -> None:
    agent = Agent(instructions="", provider=MockProvider().fail_on_step(0, ProviderError("x")).fail_on_step(1))
    error = ProviderError("shared")
    provider = MockProvider().fail_on_step(0, error).fail_on_step(1, error)
    first, second = (kernai.execute(agent, text, provider=provider) for text in ("one", "two"))
    assert (first.error is not None, second.error is not None) == (True, True)
    assert first.error.result is first  # type: ignore[union-attr]  # just looked at
    assert second.error.result is second  # type: ignore[union-attr]  # just looked at
    assert error.result is None


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


def test_a_recorded_call_does_not_change_when_the_run_continues() -> None:
    provider = MockProvider(command("echo", "x"), "<final>done</final>")
    kernai.run(Agent(instructions="", skills=[echo]), "Go.", provider=provider)
    assert [len(call.messages) for call in provider.calls] == [2, 4]


def test_reset_forgets_calls_and_answers() -> None:
    provider = MockProvider("a", chunk_size=3).fail_on_step(2).with_token_counter(lambda *_: {"prompt_tokens": 1})
    provider.on_call(lambda *_: "x")
    ask(provider)
    assert provider.reset() is provider
    assert provider.calls == []
    assert answers(provider, 3) == ["", "", ""]
    assert ask(provider).prompt_tokens is None
    assert provider.chunk_size == 3


MAKE: Any = MockProvider  # the mistakes below are those a type checker would see


@pytest.mark.parametrize("make,error,message", [
    (lambda: MAKE(b"a"), TypeError, "bytes"),
    (lambda: MAKE("a", None), TypeError, "NoneType"),
    (lambda: MAKE(["a", "b"]), TypeError, r"got list: write MockProvider\(\*texts\)"),
    (lambda: ask(MAKE().on_call(lambda *_: 5)), TypeError, "must give text or an LlmResponse, got int"),
    (lambda: MAKE(chunk_size=0), ValueError, "chunk_size"),
    (lambda: MAKE(chunk_size="1"), ValueError, "chunk_size"),
    (lambda: MAKE().respond_with_script({0: 1}), TypeError, "int"),
    (lambda: MAKE().on_call("a"), TypeError, "on_call"),
    (lambda: MAKE().fail_on_step(0, "boom"), TypeError, "error"),
    (lambda: MAKE().fail_on_step(0, KeyboardInterrupt), TypeError, "error"),
    (lambda: MAKE().with_token_counter(3), TypeError, "token_counter|counter"),
])  # fmt: skip
def test_a_mistake_in_a_test_is_reported_at_once(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_parallel_calls_each_get_a_turn_of_their_own() -> None:
    provider = MockProvider(*map(str, range(40)), chunk_size=9)
    start, got = threading.Barrier(8), []

    def work() -> None:
        start.wait()
        got.extend(answers(provider, 5))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got, key=int) == list(map(str, range(40)))
    assert provider.call_count == 40
