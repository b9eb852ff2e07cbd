"""The loop: one table of cases by hand and through every driver, and what a table cannot say."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

import kernai
from kernai import (
    Agent,
    Block,
    Event,
    GenerationOptions,
    LlmResponse,
    MappingResolver,
    Message,
    Model,
    Provider,
    Recorder,
    Result,
    RunStoppedError,
    StopReason,
    parse,
)
from kernai.event import LIVE_ONLY
from kernai.message import Part
from tests.by_hand import ByHand, last_started
from tests.loop_cases import CASES, PROTOCOLS, SECRET, SKILLS, Case, Injected, Says, Sub, Tasks, Turn

COMMON = frozenset({"run_start", "messages_sent", "llm_response", "blocks_parsed", "result"})
MEASURED = frozenset({"duration_ms", "latency_ms"})
SIZES = (1, 7, None, 0)  # characters a piece; None streams the whole at once, 0 nothing


class Script(Provider):
    """Answers by conversation: the first message behind the system message tells which one it is."""

    def __init__(self, turns: Mapping[str, Sequence[Turn]], size: int | None, answered: int = 0) -> None:
        self.turns = turns
        self.size = size
        self.answered = answered

    def call(
        self,
        messages: Sequence[Message],
        model: Model,
        generation: GenerationOptions,
        on_chunk: Callable[[str], object],
    ) -> LlmResponse:
        said = sum(message.text != "I said so" for message in messages if message.role == "assistant")
        answer: Any = self.turns[messages[1].text][said - self.answered].response
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, str):
            answer = LlmResponse(answer)
        if isinstance(answer, LlmResponse) and self.size != 0:
            size = self.size or len(answer.content) or 1
            for start in range(0, len(answer.content), size):
                on_chunk(answer.content[start : start + size])
        return answer  # type: ignore[no-any-return]  # a case may say that it is nothing of the kind


@dataclass
class Outcome:
    """A run: its result, what was recorded, and what a live callback and the stream's consumer saw."""

    result: Result
    recorded: list[Event]
    live: list[list[Event]]


def set_up(case: Case, size: int | None) -> Agent:
    for one in SKILLS:
        kernai.skills.register(one)
    for other in PROTOCOLS:
        kernai.protocols.register(other)
    kernai.configure(allowed_skills=case.allowed, credential_resolver=MappingResolver({"key": SECRET}))
    turns = {sub.input: sub.turns for sub in case.subs.values()}
    turns[case.history[0].text if case.history else Message("user", case.input).text] = case.turns
    answered = sum(message.role == "assistant" for message in case.history)
    provider = Script(turns, size, answered)
    return Agent(**{"instructions": "Work.", "provider": provider, "skills": "all", **case.agent})


def by_hand(case: Case, size: int | None, *, watched: bool) -> Outcome:
    hand = ByHand(set_up(case, size), history=case.history, limits=case.limits, listening=watched)
    result = hand.run(*case.input)
    return Outcome(result, hand.recorded, [hand.events] if watched else [])


def by_execute(case: Case, size: int | None, *, watched: bool) -> Outcome:
    recorder, live, options = _options(case, watched=watched)
    return Outcome(kernai.execute(set_up(case, size), list(case.input), **options), recorder.entries, live)


def by_stream(case: Case, size: int | None, *, watched: bool) -> Outcome:
    recorder, live, options = _options(case, watched=watched)
    with kernai.stream(set_up(case, size), list(case.input), **options) as events:
        live.append(list(events))
    return Outcome(events.result, recorder.entries, live)


def by_aexecute(case: Case, size: int | None, *, watched: bool) -> Outcome:
    recorder, live, options = _options(case, watched=watched)
    result = asyncio.run(kernai.aexecute(set_up(case, size), list(case.input), **options))
    return Outcome(result, recorder.entries, live)


def by_astream(case: Case, size: int | None, *, watched: bool) -> Outcome:
    recorder, live, options = _options(case, watched=watched)

    async def consume() -> Result:
        async with kernai.astream(set_up(case, size), list(case.input), **options) as events:
            live.append([event async for event in events])
            return events.result

    return Outcome(asyncio.run(consume()), recorder.entries, live)


def _options(case: Case, *, watched: bool) -> tuple[Recorder, list[list[Event]], dict[str, Any]]:
    recorder = Recorder()
    options: dict[str, Any] = {
        "history": case.history, "limits": case.limits, "recorder": recorder, "run_id": "run-1",
    }
    if not watched:
        return recorder, [], options
    seen: list[Event] = []
    return recorder, [seen], {**options, "on_event": seen.append}


WAYS = {"execute": by_execute, "stream": by_stream, "aexecute": by_aexecute, "astream": by_astream}

# ---------------------------------------------------------------------------------------- what the table says

each_case = pytest.mark.parametrize("case", CASES, ids=str)


@each_case
def test_a_run_by_hand_tells_what_the_table_says(case: Case) -> None:
    outcome = by_hand(case, 7, watched=False)
    root = Sub("", case.turns, case.told, stop=case.stop)
    for path, sub in {"": root, **case.subs}.items():
        told = [event.to_dict() for event in outcome.recorded if event.scope == path]
        _matches_events(sub.told, [event for event in told if event["event"] not in COMMON], at_once=case.at_once)
        _has_the_common_frame(sub, told, path)
    assert {event.scope for event in outcome.recorded} == {"", *case.subs}
    assert {event.run_id for event in outcome.recorded} == {"run-1"}
    assert outcome.recorded[-1].type == "result"
    assert outcome.recorded[-1].scope == ""


@each_case
def test_a_run_by_hand_leaves_the_tape_that_the_table_says(case: Case) -> None:
    outcome = by_hand(case, 1, watched=True)
    result = outcome.result
    start = [*case.history, Message("user", case.input)]
    assert list(result.messages[: len(start)]) == start
    _matches_tape(case.turns, result.messages[len(start) :])
    for path, sub in case.subs.items():
        sent = [event.data for event in outcome.recorded if event.type == "messages_sent" and event.scope == path]
        messages = [Message(one["role"], one["content"]) for one in sent[-1]]
        assert messages[0].role == "system"
        assert messages[1].text == sub.input
        _matches_tape(_before_the_last_call(sub.turns), messages[2:])


@each_case
def test_a_run_by_hand_ends_as_the_table_says(case: Case) -> None:
    result = by_hand(case, None, watched=False).result
    assert (result.text, result.stop_reason, result.steps) == (case.answer, case.stop, len(case.turns))
    assert result.run_id == "run-1"
    if case.error is None:
        assert result.error is None
        assert result.unwrap() == case.answer
    else:
        assert type(result.error) is case.error
        assert result.error.result is result
        with pytest.raises(case.error):
            result.unwrap()


@each_case
@pytest.mark.parametrize("way", WAYS)
def test_every_driver_tells_what_a_run_by_hand_tells(case: Case, way: str) -> None:
    wanted = by_hand(case, 7, watched=False)
    for size in SIZES:
        for watched in (False, True):
            got = WAYS[way](case, size, watched=watched)
            assert _comparable(got.recorded, at_once=case.at_once) == _comparable(wanted.recorded, at_once=case.at_once)
            assert got.result.messages == wanted.result.messages
            assert (got.result.text, got.result.stop_reason, got.result.usage, str(got.result.error)) == (
                wanted.result.text, wanted.result.stop_reason, wanted.result.usage, str(wanted.result.error))
            for live in got.live:
                assert [event for event in live if event.type not in LIVE_ONLY] == got.recorded
                assert live[-1].type == "result"


@each_case
@pytest.mark.parametrize("way", ["by hand", *WAYS])
def test_the_pieces_shown_live_are_the_response(case: Case, way: str) -> None:
    run = WAYS.get(way, by_hand)
    for size in SIZES:
        for live in run(case, size, watched=True).live:
            for path in {event.scope for event in live}:
                _shows_each_response(event for event in live if event.scope == path)


def _shows_each_response(events: Iterator[Event]) -> None:
    pieces: list[Event] = []
    for event in events:
        if event.type in LIVE_ONLY:
            pieces.append(event)
        elif event.type == "messages_sent":
            pieces = []
        elif event.type == "llm_response":
            # shown before the response is told, so that a live view never runs behind the recording
            parsed = parse(event.data["content"])
            prose = "".join(piece.data for piece in pieces if piece.type == "text_chunk")
            assert prose.split() == " ".join(parsed.text_segments).split()
            blocks = [*parsed.blocks, *([parsed.incomplete] if parsed.incomplete else [])]
            assert _rebuilt(pieces) == [(one.type, one.name, one.content) for one in blocks]


def _rebuilt(pieces: Sequence[Event]) -> list[tuple[str, str | None, str]]:
    blocks: list[tuple[str, str | None, str]] = []
    for piece in pieces:
        if piece.type == "block_start":
            blocks.append((piece.data["type"], piece.data["name"], ""))
        elif piece.type == "block_content":
            type, name, content = blocks.pop()
            blocks.append((type, name, content + piece.data))
    return blocks


def _comparable(events: Sequence[Event], *, at_once: bool) -> list[Any]:
    """Events without what a clock measured; with work done at once, in no order."""
    told = [event.to_dict() for event in events]
    for one in told:
        one.pop("timestamp")
        if isinstance(one["data"], dict):
            one["data"] = {key: value for key, value in one["data"].items() if key not in MEASURED}
    return sorted(map(repr, told)) if at_once else told


# ------------------------------------------------------------------------------------------------- matching


def _matches_events(wanted: Sequence[tuple[str, Any]], told: Sequence[Mapping[str, Any]], *, at_once: bool) -> None:
    if at_once:
        wanted, told = sorted(wanted, key=_kind), sorted(told, key=lambda event: _kind((event["event"], event["data"])))
    assert [event["event"] for event in told] == [type for type, _ in wanted]
    for (type, data), event in zip(wanted, told, strict=True):
        assert _holds(data, event["data"]), (type, data, event["data"])


def _kind(told: tuple[str, Any]) -> str:
    type, data = told
    if not isinstance(data, dict):
        return type
    return f"{type} {data.get('call_id')} {data.get('task_id')}"


def _holds(wanted: Any, got: Any) -> bool:
    if wanted is ...:
        return True
    if isinstance(wanted, dict) and isinstance(got, dict):
        return all(key in got and _holds(value, got[key]) for key, value in wanted.items())
    return bool(wanted == got)


def _has_the_common_frame(sub: Sub, told: Sequence[Mapping[str, Any]], path: str) -> None:
    """What every run tells: a start, each step's model call, and how it ended."""
    frame = [event for event in told if event["event"] in COMMON]
    assert frame[0] is told[0]
    assert frame[-1] is told[-1]
    kinds = [event["event"] for event in frame]
    answered = [turn for turn in sub.turns if isinstance(turn.response, (str, LlmResponse))]
    steps = ["messages_sent", "llm_response", "blocks_parsed"] * len(answered)
    assert kinds == ["run_start", *steps, *["messages_sent"] * (len(sub.turns) - len(answered)), "result"]
    assert [event["step"] for event in frame[1:-1:3]] == list(range(len(sub.turns)))
    assert {event["depth"] for event in told} == {path.count("/") + 1 if path else 0}
    assert {event["task_id"] for event in told} == {sub.task_id}
    for turn, response, parsed in zip(answered, frame[2::3], frame[3::3], strict=False):
        content = _text(turn)
        assert response["data"]["content"] == content
        blocks = [{"type": one.type, "name": one.name, "content": one.content} for one in parse(content).blocks]
        assert parsed["data"] == blocks
    assert frame[-1]["data"]["stop_reason"] == sub.stop
    assert frame[-1]["data"]["steps"] == len(sub.turns)


def _matches_tape(turns: Sequence[Turn], messages: Sequence[Message]) -> None:
    left = list(messages)
    for turn in turns:
        if isinstance(turn.response, (str, LlmResponse)):
            assert left.pop(0) == Message("assistant", _text(turn))
        for wanted in turn.injected:
            message = left.pop(0)
            assert message.role == ("assistant" if message.text == "I said so" else "user")
            _reads(wanted, message.text)
    assert left == []


def _before_the_last_call(turns: Sequence[Turn]) -> Sequence[Turn]:
    return turns[:-1]


def _text(turn: Turn) -> str:
    response = turn.response
    return response.content if isinstance(response, LlmResponse) else str(response)


def _reads(wanted: Injected, text: str) -> None:
    if isinstance(wanted, str):
        assert text == wanted
    elif isinstance(wanted, Tasks):
        head, tail = '<block type="result" name="tasks">', "</block>"
        assert text.startswith(head)
        assert text.endswith(tail)
        assert json.loads(text.removeprefix(head).removesuffix(tail)) == wanted.results
    elif isinstance(wanted, Says):
        name = "" if wanted.name is None else f' name="{wanted.name}"'
        assert text.startswith(f'<block type="{wanted.kind}"{name}>')
        assert text.endswith("</block>")
        for word in wanted.words:
            assert word in text
    else:
        first, more = wanted
        at = text.rindex(f'<block type="{more.kind}" name="{more.name}">')
        _reads(first, text[:at].rstrip())
        _reads(more, text[at:])
