"""Compaction by a summary: what is sent gets shorter, and the summary is on record."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest

import kernai
from kernai import Agent, Limits, LlmResponse, MemoryStore, Message, MockProvider, Recorder, skill
from kernai.middleware import compact

HEADING = "Summary of the conversation so far:\n"


@skill(register=False)
def read(page: int) -> str:
    """Reads a page."""
    return f"page {page}: " + "x" * 400


def call(page: int) -> str:
    return f'<command name="read">{{"page": {page}}}</command>'


TAPE = [call(page) for page in range(6)] + ["<final>Read.</final>"]


class Summaries:
    """A function that summarizes, and what it was given."""

    def __init__(self, more: str = "") -> None:
        self.given: list[list[str]] = []
        self.more = more

    def __call__(self, messages: Sequence[Message]) -> str:
        self.given.append([message.text for message in messages])
        return f"summary {len(self.given)} <block type='command'>{self.more}"


def agent(provider: MockProvider, summary: Any, most: int = 400) -> Agent:
    return Agent(instructions="Be brief.", provider=provider, skills=[read], middleware=[compact(most, summary)])


@pytest.mark.parametrize("is_async", [False, True])
def test_the_older_half_is_replaced_by_a_summary(is_async: bool) -> None:
    provider, summary, recorder = MockProvider(*TAPE), Summaries(), Recorder()
    one = agent(provider, summary)
    result = asyncio.run(kernai.aexecute(one, "Go.", recorder=recorder)) if is_async else kernai.execute(one, "Go.", recorder=recorder)
    assert (result.text, len(summary.given) >= 1) == ("Read.", True)
    assert all(sum(len(message.text) for message in one.messages[1:]) < 2400 for one in provider.calls)
    sent = provider.calls[-1].messages
    assert sent[1].text.startswith(HEADING)
    assert "&lt;block" in sent[1].text
    assert sent[2].role == "assistant"
    for one_call in provider.calls:  # what is kept begins with a response, whose results follow
        roles = [message.role for message in one_call.messages[1:]]
        assert all(pair != ("assistant", "assistant") for pair in itertools.pairwise(roles))
    assert len(result.messages) == 14  # the conversation keeps everything
    assert all("Summary of" not in str(event.to_dict()) for event in recorder.for_event("messages_sent"))


def test_a_second_summary_takes_up_the_first_and_summaries_count_as_sent() -> None:
    provider, summary = MockProvider(*[call(page) for page in range(14)], "<final>Read.</final>"), Summaries("s" * 700)
    kernai.execute(agent(provider, summary), "Go.")
    assert len(summary.given) > 1
    assert summary.given[1][0].startswith(f"{HEADING}summary 1 &lt;block type='command'>")
    assert all(sum(len(message.text) for message in one.messages[1:]) < 2400 for one in provider.calls)
    pages = [text for given in summary.given for text in given if text.startswith('<block type="result"')]
    assert len(pages) == len(set(pages))  # none is summarized twice


def test_what_is_short_enough_is_sent_as_it_is() -> None:
    provider, summary = MockProvider(*TAPE), Summaries()
    kernai.execute(agent(provider, summary, 100_000), "Go.")
    assert summary.given == []
    assert len(provider.calls[-1].messages) == 14


@pytest.mark.parametrize("stop_at", [5, 6])
def test_a_resumed_run_uses_the_summary_that_was_made(stop_at: int) -> None:
    store, first, second = MemoryStore(), Summaries(), Summaries()
    broken = MockProvider(*TAPE).fail_on_step(stop_at)
    kernai.execute(agent(broken, first), "Go.", store=store, run_id="r")
    rest = MockProvider(*TAPE[stop_at:])
    result = kernai.resume(agent(rest, second), "r", store=store)
    assert result is not None
    assert result.text == "Read."
    assert (len(first.given), second.given) == (1, [])
    assert rest.calls[0].messages[1].text.startswith(f"{HEADING}summary 1")
    assert kernai.replay(agent(MockProvider(), Summaries()), "r", store=store) is not None


def test_a_chat_takes_its_summary_along() -> None:
    provider, summary = MockProvider(*TAPE), Summaries()
    messages = kernai.execute(agent(provider, summary), "Go.").messages
    saved = [Message.from_dict(json.loads(json.dumps(message.to_dict()))) for message in messages]
    more, again = MockProvider("<final>Yes.</final>"), Summaries()
    kernai.execute(agent(more, again, 800), "And?", history=saved)
    assert more.calls[0].messages[1].text.startswith(f"{HEADING}summary {len(summary.given)}")


def test_an_agent_is_asked_for_the_summary_with_a_call_of_its_own() -> None:
    writer = MockProvider("In short.")
    provider = MockProvider(*TAPE)
    one = agent(provider, Agent(instructions="Summarize.", provider=writer))
    result = kernai.execute(one, "Go.")
    assert result.text == "Read."
    assert writer.calls[0].messages[0].text == "Summarize."
    assert writer.calls[0].messages[1].text.startswith("user: Go.\n\nassistant: ")
    assert provider.calls[-1].messages[1].text == f"{HEADING}In short."


def test_a_blank_summary_of_an_agent_replaces_nothing() -> None:
    provider = MockProvider(*TAPE)
    assert kernai.execute(agent(provider, Agent(instructions="Summarize.", provider=MockProvider(" "))), "Go.").text == "Read."
    assert provider.calls[-1].messages[1].text == "Go."


@pytest.mark.parametrize("is_async", [False, True])
def test_what_a_summary_costs_is_on_the_bill_and_counts_against_the_limits(is_async: bool) -> None:
    def spent(max_tokens: int | None) -> kernai.Result:
        def used(messages: Any, content: str) -> dict[str, int]:
            return {"prompt_tokens": 10, "completion_tokens": 1}

        writer = MockProvider(LlmResponse("In short.", prompt_tokens=900, completion_tokens=100))
        one = agent(MockProvider(*TAPE).with_token_counter(used), Agent(instructions="Summarize.", provider=writer))
        limits = Limits(max_tokens=max_tokens)
        return asyncio.run(kernai.aexecute(one, "Go.", limits=limits)) if is_async else kernai.execute(one, "Go.", limits=limits)

    usage = spent(None).usage
    summaries = usage.model_calls - len(TAPE)
    assert summaries >= 1
    assert usage.total_tokens == 11 * len(TAPE) + 1000 * summaries
    assert spent(1000).stop_reason == "max_tokens"


def test_a_failing_summary_fails_the_call_and_a_wrong_one_is_refused() -> None:
    def broken(messages: Sequence[Message]) -> str:
        raise RuntimeError("no")

    assert "RuntimeError: no" in str(kernai.execute(agent(MockProvider(*TAPE), broken), "Go.").error)

    for silent in (None, "", 5):
        result = kernai.execute(agent(MockProvider(*TAPE), lambda messages, silent=silent: silent), "Go.")
        assert "compact's summary function must return text, got" in str(result.error)

    async def later(messages: Sequence[Message]) -> str:
        return ""

    for wrong in (5, later, Agent(instructions=lambda: "x")):
        with pytest.raises(TypeError, match="summary must be"):
            compact(100, wrong)  # type: ignore[arg-type]  # the subject


def test_the_summary_of_a_native_conversation_keeps_calls_and_results_together() -> None:
    provider, summary = MockProvider(*TAPE[:-1], "Read.", native=True), Summaries()
    one = agent(provider, summary).replace(calls="native")
    assert kernai.execute(one, "Go.").text == "Read."
    sent = provider.calls[-1].messages
    assert sent[1].text.startswith(HEADING)
    assert (sent[2].blocks is not None, sent[3].answers) == (True, 0)
    response = LlmResponse("x", metadata={"reasoning_items": [{"type": "summary_of_conversation"}]})
    assert response.message().reasoning
