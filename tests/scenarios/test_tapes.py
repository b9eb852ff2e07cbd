"""Tapes: how a conversation is found, how a run that departs from the tape is reported, and how a tape is made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernai
from kernai import GenerationOptions, LlmResponse, Media, Message, MockProvider, Models, ProviderError
from kernai.testing.contracts import at_once
from kit.definition import UsageError
from kit.tape import Conversation, Tape, Turn
from kit.tape_making import tape_of
from kit.tape_provider import PIECE, TapeProvider


def conversation(said: str, *contents: str | Turn, scope: str = "") -> Conversation:
    turns = tuple(one if isinstance(one, Turn) else Turn(one) for one in contents)
    return Conversation(scope, said, turns)


def provider_of(*conversations: Conversation) -> TapeProvider:
    return TapeProvider(Tape("demo", "openai", "gpt", conversations), "the tape demo.json")


def ask(provider: TapeProvider, *texts: str) -> LlmResponse:
    """Ask for the next turn: the texts are the user's and the model's, in turn."""
    messages = [Message("system", "x" * 40)]
    messages += [Message("assistant" if at % 2 else "user", text) for at, text in enumerate(texts)]
    return provider.call(messages, Models.TEXT_ONLY, GenerationOptions(), lambda _: None)


# ------------------------------------------------------------------------------------------------------ replay


def test_a_turn_is_streamed_in_small_pieces_and_its_tokens_are_estimated_unless_the_tape_has_them() -> None:
    pieces: list[str] = []
    provider = provider_of(conversation("x" * 40, "<final>four characters a token</final>"))
    response = provider.call([Message("user", "x" * 40)], Models.TEXT_ONLY, GenerationOptions(), pieces.append)
    assert "".join(pieces) == response.content == "<final>four characters a token</final>"
    assert max(map(len, pieces)) == PIECE
    assert (response.prompt_tokens, response.completion_tokens) == (10, 9)
    response = ask(provider_of(conversation("hello", Turn("x", None, 812, 3))), "hello")
    assert (response.prompt_tokens, response.completion_tokens, response.total_tokens) == (812, 3, 815)


def test_a_conversation_is_found_by_the_end_of_its_first_message() -> None:
    provider = provider_of(conversation("add them", "root"), conversation("count", "task", scope="0.a"))
    first = '<block type="result" name="b">3</block>\n\ncount'
    assert ask(provider, first).content == "task"
    assert ask(provider, "add them").content == "root"
    assert provider.unplayed == []
    provider = provider_of(conversation("count", "short"), conversation("first count", "long"))  # the longest input
    assert ask(provider, "first count").content == "long"
    assert ask(provider, "count").content == "short"


def test_equal_conversations_are_played_once_each_even_from_many_threads(threads_are_often_switched: None) -> None:
    count = 30
    provider = provider_of(*(conversation("same", "first", f"second {number}") for number in range(count)))
    found: list[str] = []

    def converse(_: int) -> None:
        first = ask(provider, "same").content
        found.append(ask(provider, "same", first, "go on").content)

    assert at_once(converse, count) == []
    assert sorted(found) == sorted(f"second {number}" for number in range(count))
    assert provider.unplayed == provider.left == []


def test_of_conversations_with_equal_inputs_the_one_with_the_same_first_message_is_played() -> None:
    turns = [Turn(name, (f"<r>{name}</r>\n\nsum up",)) for name in ("north", "south")]
    provider = provider_of(*(conversation("sum up", turn) for turn in turns))
    assert ask(provider, "<r>south</r>\n\nsum up").content == "south"
    assert ask(provider, "<r>north</r>\n\nsum up").content == "north"
    assert provider.notes == []


def test_a_failure_on_the_tape_is_raised_by_the_provider_and_the_next_turn_follows() -> None:
    failed = Turn(error={"message": "overloaded", "retryable": True})
    provider = provider_of(conversation("hello", failed, "hi"))
    with pytest.raises(ProviderError, match="overloaded") as caught:
        ask(provider, "hello")
    assert caught.value.retryable is True
    assert ask(provider, "hello").content == "hi"


def test_messages_that_differ_from_the_tape_are_answered_and_noted_with_the_first_difference() -> None:
    provider = provider_of(conversation("hello", Turn("a", ("hello",)), Turn("b", ("the result is 41",))))
    ask(provider, "hello")
    assert ask(provider, "hello", "a", "the result is 42").content == "b"
    (note,) = provider.notes
    assert note.startswith("the tape demo.json, the root's conversation, turn 2: ")
    assert "42" in note
    assert "41" in note
    with pytest.raises(ProviderError, match=r"ends after turn 2.*it began to differ at .*turn 2: asked 'the result is 42'"):
        ask(provider, "hello", "a", "the result is 42", "b", "error")


@pytest.mark.parametrize("before, asked, message", [
    ([], ["goodbye"], "no conversation begins with 'goodbye'; the closest is the root's conversation with 'hello"),
    ([["hello, you"]], ["hello, you", "a", "x"], "the root's conversation ends after turn 1, and the run asks for another, with 'x'"),
    ([["hello, you"]], ["hello, you"], "the root's conversation, turn 1: it was played already"),
    ([], ["hello, you", "other"], "turn 2: what the model said before is not what the tape has"),
    ([], ["work", "1", "x"], "the conversation '0.a', turn 2: what the model said before is not what"),
])
def test_a_turn_that_is_not_on_the_tape_is_an_error_that_says_where_and_why(
    before: list[list[str]], asked: list[str], message: str
) -> None:
    provider = provider_of(conversation("hello, you", "a"), conversation("work", "2", scope="0.a"))
    for texts in before:
        ask(provider, *texts)
    with pytest.raises(ProviderError, match=r"the run has diverged from the tape demo\.json: ") as caught:
        ask(provider, *asked)
    assert message in str(caught.value)
    assert caught.value.retryable is False
    assert provider.left == [str(caught.value)]


def test_turns_that_were_not_played_are_reported() -> None:
    provider = provider_of(conversation("hello", "a", "b"), conversation("other", "c", scope="0.x"))
    ask(provider, "hello")
    assert provider.unplayed == [
        "the root's conversation of the tape demo.json was played up to turn 1 of 2",
        "the conversation '0.x' of the tape demo.json was played up to turn 0 of 1",
    ]


# ------------------------------------------------------------------------------------------------------- files


def test_a_tape_reads_back_as_it_was_written(tmp_path: Path) -> None:
    turns = Turn("x", ("a", ""), 7, 0), Turn(error={"message": "overloaded", "retryable": True})
    tape = Tape("demo", "openai", "gpt", (Conversation("0.a", "go", turns), conversation("hello", "\ud800")))
    tape.save(tmp_path / "tape.json")
    assert Tape.load(tmp_path / "tape.json", "demo") == tape


GOOD: dict[str, Any] = {
    "format": 2, "scenario": "demo", "provider": "openai", "model": "gpt",
    "conversations": [{"scope": "", "input": "hello", "turns": [{"content": "hi"}]}],
}


def with_turn(turn: object) -> dict[str, Any]:
    return GOOD | {"conversations": [{"scope": "", "input": "hello", "turns": [turn]}]}


@pytest.mark.parametrize("data, complaint", [
    (GOOD | {"format": 1}, "not a tape of format 2"),
    (GOOD | {"scenario": "triage"}, "a tape of the scenario 'triage', not of 'demo'"),
    (GOOD | {"provider": None}, 'must have its "provider"'),
    (GOOD | {"model": 4}, 'must have its "model"'),
    (GOOD | {"conversations": []}, '"conversations", a list that is not empty'),
    (GOOD | {"conversations": ["x"]}, 'conversation 1 must be an object with "turns"'),
    (GOOD | {"conversations": [{"input": "", "turns": [{"content": ""}]}]}, 'must have its "scope"'),
    (GOOD | {"conversations": [{"scope": "", "turns": [{"content": ""}]}]}, 'must have its "input"'),
    (with_turn("text"), "conversation 1, turn 1 must be an object"),
    (with_turn({"content": 3}), 'the text "content", or with an "error"'),
    (with_turn({"content": "x", "error": {"message": "y"}}), 'the text "content", or with an "error"'),
    (with_turn({"error": "y"}), '"error" must be an object with the text "message"'),
    (with_turn({"content": "x", "prompt_tokens": True}), "must be whole numbers"),
    (with_turn({"content": "x", "asked": "y"}), '"asked" must be a list of texts'),
    *((raw, "cannot read the tape") for raw in (b"", b"{", b"\xff\xfe", b"[" * 200_000)),
])
def test_a_file_that_is_not_a_tape_is_an_error_that_says_what_is_wrong(tmp_path: Path, data: object, complaint: str) -> None:
    path = tmp_path / "tape.json"
    path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    with pytest.raises(UsageError) as caught:
        Tape.load(path, "demo")
    assert complaint in str(caught.value)


# ------------------------------------------------------------------------------- a tape made of a recorded run


def recorded(provider: kernai.Provider, input: Any = "Go", **options: Any) -> list[dict[str, Any]]:
    recorder = kernai.Recorder()
    agent = kernai.Agent(instructions="Work.", provider=provider, **options)
    kernai.execute(agent, input, recorder=recorder)
    return recorder.to_list()


#: fields that differ from run to run: ids, times, whether tokens are known, and which concurrent task ends first
UNSTEADY = {"run_start", "llm_response", "result", "task_start", "task_complete", "task_error"}


def without_times(entries: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return the events of each scope without those fields."""
    found = [
        (entry["scope"], entry["event"], entry["step"], json.dumps(_steady(entry["data"]), sort_keys=True))
        for entry in entries if entry["event"] not in UNSTEADY
    ]
    return sorted(found, key=lambda one: one[0])


def _steady(data: Any) -> Any:
    return {key: value for key, value in data.items() if key != "duration_ms"} if isinstance(data, dict) else data


@kernai.skill(register=False)
def shout(text: str) -> str:
    """Say it louder."""
    if not text.strip():
        raise ValueError("there is nothing to shout")
    return text.upper() + " <final>no</final>"


def speaker(tasks: int, words: list[str]) -> MockProvider:
    """A model that plans tasks, each of which shouts its words. Its answers depend only on the messages."""

    def on_call(messages: Any, _: Any) -> str:
        turns = sum(message.role == "assistant" for message in messages)
        own = messages[1].text.rpartition("\n\n")[2]
        if own == "Go" and turns == 0:
            plan = {"tasks": [
                {"id": f"t/{number}", "input": f"shout <final> {number}", "parallel": number % 2 == 0,
                 "depends_on": [f"t/{number - 1}"] if number % 3 == 2 else []}
                for number in range(tasks)
            ]}
            return f'<block type="plan">{json.dumps(plan)}</block>'
        if turns < len(words) and own != "Go":
            return f'<block type="command" name="shout">{json.dumps({"text": words[turns]})}</block>'
        return f"<final>{own}: {messages[-1].text[:40]}</final>"

    return MockProvider().on_call(on_call)


@pytest.mark.slow
@given(st.integers(1, 12), st.lists(st.text(max_size=8), max_size=3))
def test_a_tape_made_of_any_run_replays_that_run(tasks: int, words: list[str]) -> None:
    first = recorded(speaker(tasks, words), skills=[shout])
    tape = tape_of(first, scenario="demo", provider="openai", model="gpt")
    provider = TapeProvider(tape)
    second = recorded(provider, skills=[shout])
    assert provider.left == provider.unplayed == provider.notes == []
    assert without_times(first) == without_times(second)
    again = tape_of(second, scenario="demo", provider="openai", model="gpt")
    assert [one.scope for one in again.conversations] == [one.scope for one in tape.conversations]
    # the first run reported no tokens, and those of the replay are only estimates
    assert again == tape


def test_reported_tokens_are_kept_and_estimated_ones_are_not() -> None:
    provider = MockProvider("<final>x</final>").with_token_counter(lambda *_: {"prompt_tokens": 7, "completion_tokens": 2})
    tape = tape_of(recorded(provider), scenario="demo", provider="openai", model="gpt")
    assert tape.conversations == (Conversation("", "Go", (Turn("<final>x</final>", ("Go",), 7, 2),)),)


def test_a_failure_of_the_provider_is_recorded_as_a_turn_of_the_tape() -> None:
    failing = MockProvider('<block type="final">1').fail_on_step(1, error=ProviderError("overloaded"))
    tape = tape_of(recorded(failing), scenario="demo", provider="openai", model="gpt")
    (only,) = tape.conversations
    assert only.turns[1].error == {"message": "overloaded", "retryable": False}
    second = recorded(TapeProvider(tape))
    assert second[-1]["data"]["error"] == "overloaded"


@pytest.mark.parametrize("before, after, difference", [("", "What is it?", "What is it?"), ("Look: ", "", None)])
def test_a_picture_is_on_the_tape_as_a_reference(before: str, after: str, difference: str | None) -> None:
    picture = Media.from_bytes(b"\x89PNG secret bytes", mime_type="image/png")
    parts = [part for part in (before, picture, after) if part]
    model = kernai.Model("m", ("text", "vision"))
    entries = recorded(MockProvider("<final>x</final>"), parts, model=model)
    tape = tape_of(entries, scenario="demo", provider="openai", model="gpt")
    (only,) = tape.conversations
    assert only.input == (difference if difference is not None else f"{before}[image:{picture.id}]")
    assert only.turns[0].asked == (f"{before}[image:{picture.id}]{after}",)
    provider = TapeProvider(tape)
    recorded(provider, parts, model=model)
    assert provider.unplayed == provider.notes == []
