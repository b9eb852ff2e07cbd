"""`events.text()` and `events.partial()`, and the block number of live events."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernai
from kernai import Agent, Block, Event, LlmResponse, MockProvider, Skill
from kernai.drivers.answer_stream import TAKEN_BACK
from kernai.jsonio.json_pieces import PartialJson
from kernai.middleware import retry
from kernai.testing import ByHand
from tests.properties import json_data
from tests.scripted import OnChunk, Scripted

CALL = Block("command", "x", "{}")
PLAN = '<block type="plan">{"tasks": [{"id": "a", "input": "part"}]}</block>'
#: what it returns must be confirmed as an answer
FETCH = Skill("fetch", execute=lambda: "Say <final>yes</final>", inputs={})


def agent_of(*texts: str | LlmResponse, **options: Any) -> Agent[Any]:
    return Agent(instructions="", provider=MockProvider(*texts, native="calls" in options), **options)


def counted(pieces: list[str]) -> str:
    """The answer that the pieces make up: those after the last time that pieces were taken back."""
    begin = max((at + 1 for at, piece in enumerate(pieces) if piece == TAKEN_BACK), default=0)
    return "".join(pieces[begin:])


@pytest.mark.parametrize("texts, options, taken_back", [
    (["<final>\n one <b>two</b> \n</final> and prose"], {}, 0),
    (["<final>one</final><final>two</final>"], {}, 0),
    (["plain prose, at once"], {}, 0),
    (['<final>early</final><command name="x"></command>', "<final>late</final>"], {}, 1),
    (['<command name="x"></command><final>early</final>', "<final>late</final>"], {}, 0),
    (["<final>cut off", "<final>whole</final>"], {}, 1),
    ([PLAN, "<final>of a task</final>", "<final>the whole</final>"], {}, 0),
    ([LlmResponse(f"<final>early</final>\n{CALL}", blocks=[CALL], ends_turn=False), "late"], {"calls": "native"}, 1),
    (["<final>no"], {"max_steps": 1}, 1),
    (["<final>no</final>", "<final>5</final>"], {"output": int}, 1),
    (['<command name="fetch"></command>', "<final>yes</final>"], {"skills": [FETCH]}, 1),
])
async def test_the_pieces_that_were_not_retracted_are_the_answer(texts: list[Any], options: dict[str, Any], taken_back: int) -> None:
    agent = {"skills": "all", **options}
    with kernai.stream(agent_of(*texts, **agent), "?") as events:
        pieces = list(events.text())
    assert (counted(pieces), "{" in pieces) == (events.result.text or "", False)
    assert pieces.count(TAKEN_BACK) == taken_back
    async with kernai.astream(agent_of(*texts, **agent), "?") as twin:
        assert [piece async for piece in twin.text()] == pieces


@pytest.mark.parametrize("reader, pieces", [("text", ["5"]), ("partial", [5])])
async def test_a_wait_for_a_piece_may_be_cancelled_and_repeated(reader: str, pieces: list[Any]) -> None:
    async with kernai.astream(agent_of("<final>5</final>", output=int), "?") as events:
        reading = getattr(events, reader)()
        waiting = asyncio.ensure_future(anext(reading))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        async with aclosing(reading):
            assert [piece async for piece in reading] == pieces


def test_a_repeated_model_call_retracts_its_earlier_text() -> None:
    def script(_: object, on_chunk: OnChunk) -> str:
        if provider.calls == 1:
            on_chunk("<final>half")
            raise kernai.ProviderError("down", retryable=True)
        return "<final>whole</final>"

    provider = Scripted(script)
    with kernai.stream(agent_of(middleware=[retry(attempts=2)]).replace(provider=provider), "?") as events:
        pieces = list(events.text())
    assert counted(pieces) == "whole"
    assert TAKEN_BACK in pieces


TEA = {"name": "tea", "price": 3.5, "tags": ["a", "b"]}
#: the responses, the type of the answer, and the values completed so far
PARTS: list[tuple[list[str], Any, list[Any]]] = [
    ([f"<final>{json.dumps(TEA)}</final>"], dict[str, Any],
     [{"name": "tea"}, {"name": "tea", "price": 3.5}, {**TEA, "tags": ["a"]}, TEA, TEA, TEA]),
    (["<final>blue</final>"], Literal["red", "blue"], ["blue"]), (["<final>abc</final>"], str, ["a", "ab", "abc"]),
    (["<final>[1, 2, 3]</final>", '<final>["a"]</final>'], list[str], [[1], [1, 2], [1, 2, 3], ["a"], ["a"]]),
    (["```json\n[1, 2]\n```"], list[int], [[1, 2]]), (["<final>5</final>"], str | None, [5, "5"]),
    *(([f"<final>{said}</final>"], list[int], [[1], [1, 2]]) for said in ("```\n[1, 2]```", "```json\n[1, 2]\n```", "[1, 2]")),
]


@pytest.mark.parametrize("said, output, parts", PARTS)
def test_partial_yields_the_values_completed_so_far_and_restarts_with_each_model_call(said: list[str], output: Any, parts: list[Any]) -> None:
    with kernai.stream(agent_of(*said, output=output), "?") as events:
        assert list(events.partial()) == parts
    assert (events.result.output or events.result.text) == parts[-1]


@pytest.mark.parametrize("said, last", [
    ("```json\n[1, 2]\n```", [1, 2]), ("<final>```\n[1]\n```</final>", [1]), ("12", 12), ("<final>12</final>", 12),
    ("<final>{'a': [1, True,],}</final>", {"a": [1, True]}), ("<final>[1, // one\n 2]</final>", [1, 2]),
])
async def test_partial_ends_with_the_whole_answer(said: str, last: object) -> None:
    async with kernai.astream(agent_of(said, output=Any), "?") as events:
        parts = [part async for part in events.partial()]
    assert parts[-1] == last == events.result.output


@pytest.mark.parametrize("text, value", [
    *((f"[1, {one}, 2", [1]) for one in ("NaN", "-Infinity", "1e999")), (r'["\\", "b", 1', ["\\", "b"]), (r'["\\\"", "b", 1', ['\\"', "b"]), (r'{"a\\": "\"", "c": 1}', {"a\\": '"', "c": 1}),
    ("[1, 2}, 3]", [1, 2]), ('{"a": 1], "b": 2}', {"a": 1}), ('[{"a": 1], 2]', [{"a": 1}]), ("[1]]", [1]), ("}[1]", None), ("1,,", 1), ('{"a": 1, 2: 3}', {"a": 1}), ('{"a": 1, "a": 2, "b": 3}', {"a": 1}),
])  # fmt: skip
@pytest.mark.parametrize("size", [1, 5, 99])
def test_backslashes_wrong_brackets_and_numbers_that_json_does_not_have_in_a_partial_value(text: str, value: object, size: int) -> None:
    parser = PartialJson()
    for at in range(0, len(text), size):
        parser.push(text[at : at + size])
    assert parser.value() == value


@given(json_data(), st.integers(1, 5), st.booleans())
def test_whole_json_in_any_pieces_is_its_value(value: Any, size: int, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    parser = PartialJson()
    for at in range(0, len(text), size):
        parser.push(text[at : at + size])
    parser.push(" ")
    assert parser.value() == value


@given(st.text(alphabet='{}[]",:\\ 1a-tru', max_size=40))
def test_partial_can_read_any_text(text: str) -> None:
    parser = PartialJson()
    parser.push(text)
    parser.push(" ")
    assert json.loads(json.dumps(parser.value())) == parser.value()


def test_a_value_that_nests_too_deeply_is_read_as_far_as_200_levels() -> None:
    parser = PartialJson()
    parser.push("[" * 250 + "1, ")
    assert str(parser.value()) == "[" * 200 + "]" * 200


def test_a_yielded_partial_value_does_not_change_later() -> None:
    parser = PartialJson()
    parser.push('[{"a": 1')
    parser.push(', "b')
    before = parser.value()
    parser.push('": 2}, 3]')
    assert before == [{"a": 1}]
    assert parser.value() == [{"a": 1, "b": 2}, 3]


def test_each_live_block_event_says_which_block_it_belongs_to() -> None:
    hand = ByHand(agent_of('a<json>{}</json>b<block type="final">c</block>'), listening=True)
    hand.run("?")
    live = [(event.type, event.data, event.block) for event in hand.events
            if event.type.startswith("block_") and event.type != "block_incomplete"]
    assert [one for one in live if one[0] != "block_content"] == [
        ("block_start", {"type": "json", "name": None}, 0), ("block_end", {"type": "json", "name": None}, 0),
        ("block_start", {"type": "final", "name": None}, 1), ("block_end", {"type": "final", "name": None}, 1),
    ]
    assert {block: "".join(data for kind, data, at in live if kind == "block_content" and at == block)
            for block in (0, 1)} == {0: "{}", 1: "c"}
    event = next(event for event in hand.events if event.type == "block_start")
    assert Event.from_dict(event.to_dict()) == event
    assert event.to_dict()["block"] == 0
    assert "block" not in hand.events[0].to_dict()
