"""The parts of the scenarios' harness that are worth a look by themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness import PIECE, Tape, TapeProvider
from kernai import GenerationOptions, LlmResponse, Message, Models, ProviderError
from live_view import printable, shortened


@pytest.mark.parametrize(
    "text, shown",
    [
        ("plain text\n\twith a tab", "plain text\n\twith a tab"),
        ("\x1b[31mred\x1b[0m", "[31mred[0m"),
        ("over\rwritten \x00\x07\x7f\x9b2J", "overwritten 2J"),
        ("a\u202egpj.exe", "a\ufffdgpj.exe"),
        ("half a pair \ud800", "half a pair \ufffd"),
        ("クランプ مصباح 👷🏽‍♀️", "クランプ مصباح 👷🏽‍♀️"),
    ],
)
def test_text_reaches_a_terminal_without_what_would_steer_it(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_long_value_is_cut_and_tells_its_length() -> None:
    assert shortened("x" * 1500) == "x" * 150 + "... (1,500 characters)"
    assert shortened({"name": "クランプ"}) == '{"name": "クランプ"}'


def ask(provider: TapeProvider) -> tuple[LlmResponse, list[str]]:
    pieces: list[str] = []
    messages = [Message("user", "x" * 40)]
    return provider.call(messages, Models.TEXT_ONLY, GenerationOptions(), pieces.append), pieces


def tape_of(tmp_path: Path, *turns: dict[str, object]) -> Tape:
    path = tmp_path / "demo.json"
    path.write_text(json.dumps({"format": 1, "scenario": "demo", "turns": turns}))
    return Tape.load(path, "demo")


def test_a_turn_is_streamed_in_small_pieces_and_its_tokens_are_estimated(tmp_path: Path) -> None:
    response, pieces = ask(TapeProvider(tape_of(tmp_path, {"content": "<final>four characters a token</final>"})))
    assert "".join(pieces) == response.content == "<final>four characters a token</final>"
    assert max(map(len, pieces)) == PIECE
    assert (response.prompt_tokens, response.completion_tokens) == (10, 9)


def test_token_counts_on_the_tape_go_before_the_estimate(tmp_path: Path) -> None:
    turn = {"content": "x", "prompt_tokens": 812, "completion_tokens": 3}
    response, _ = ask(TapeProvider(tape_of(tmp_path, turn)))
    assert (response.prompt_tokens, response.completion_tokens, response.total_tokens) == (812, 3, 815)


def test_a_turn_that_the_tape_does_not_have_is_a_clear_error(tmp_path: Path) -> None:
    provider = TapeProvider(tape_of(tmp_path, {"content": "x"}))
    ask(provider)
    with pytest.raises(ProviderError, match=r"demo\.json ends after 1 turns .* left the recorded path") as caught:
        ask(provider)
    assert caught.value.retryable is False
