"""The loop: one table of cases by hand and through every driver, and what a table cannot say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernai
from kernai import (
    Agent,
    Block,
    Context,
    Event,
    GenerationOptions,
    KernaiError,
    Limits,
    LlmResponse,
    MappingResolver,
    Media,
    Message,
    MockProvider,
    Model,
    Protocol,
    Provider,
    ProviderError,
    Recorder,
    Result,
    Skill,
    SkillContext,
    parse,
    skill,
)
from kernai.loop.effects import CallModel, CallSkill, Cancelled, Completion, Join, NotPerformed, Spawn
from kernai.testing import ByHand, last_spawned
from tests.loop.loop_cases import (
    CASES,
    PROTOCOLS,
    SECRET,
    SKILLS,
    Case,
    Injected,
    Says,
    Sub,
    Tasks,
    Turn,
    command,
    echo,
    plan,
    result,
    task,
)
from tests.ways import LIVE_ONLY

COMMON = frozenset({"run_start", "messages_sent", "llm_response", "blocks_parsed", "result"})
MEASURED = frozenset({"duration_ms", "latency_ms"})
#: characters a piece (None streams the whole at once, 0 nothing), and whether a live callback watches
MANNERS = ((7, True), (0, False))
#: each of these in one of the ways to run, from case to case in another
OTHER_MANNERS = ((1, True), (7, False), (None, True), (0, True))


class Script(Provider):
    """Answers by conversation: the first message after the system message identifies it."""

    def __init__(self, turns: Mapping[str, Sequence[Turn]], size: int | None, answered: int = 0) -> None:
        self.turns = turns
        self.size = size
        self.answered = answered

    def call(self, messages: Sequence[Message], model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
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
    return Agent(**{"instructions": "Work.", "provider": provider, "skills": "all", "on_prose": "accept", **case.agent})


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
        "history": case.history,
        "limits": case.limits,
        "recorder": recorder,
        "run_id": "run-1",
    }
    if not watched:
        return recorder, [], options
    seen: list[Event] = []
    return recorder, [seen], {**options, "on_event": seen.append}


def _by_stream(agent: Agent, recorder: Recorder, **options: Any) -> Result:
    with kernai.stream(agent, "Go.", recorder=recorder, **options) as events:
        for _ in events:
            pass
    return events.result


async def _by_astream(agent: Agent, recorder: Recorder, **options: Any) -> Result:
    async with kernai.astream(agent, "Go.", recorder=recorder, **options) as events:
        async for _ in events:
            pass
    return events.result


#: an agent that is in no table
RUN: dict[str, Callable[..., Result]] = {
    "execute": lambda agent, recorder, **options: kernai.execute(agent, "Go.", recorder=recorder, **options),
    "stream": _by_stream,
    "aexecute": lambda agent, recorder, **options: asyncio.run(
        kernai.aexecute(agent, "Go.", recorder=recorder, **options)
    ),
    "astream": lambda agent, recorder, **options: asyncio.run(_by_astream(agent, recorder, **options)),
}
WAYS = {"execute": by_execute, "stream": by_stream, "aexecute": by_aexecute, "astream": by_astream}

# ---------------------------------------------------------------------------------------- what the table says

each_case = pytest.mark.parametrize("case", CASES, ids=str)


@each_case
def test_a_run_by_hand_records_the_events_of_the_table(case: Case) -> None:
    outcome = by_hand(case, 7, watched=False)
    root = Sub("", case.turns, case.events, stop=case.stop)
    for path, sub in {"": root, **case.subs}.items():
        recorded = [event.to_dict() for event in outcome.recorded if event.scope == path]
        _matches_events(sub.events, [event for event in recorded if event["event"] not in COMMON], at_once=case.at_once)
        _has_the_common_frame(sub, recorded, path)
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


#: what each event holds, `(maybe)` aside; the others are text
HOLDS = {
    "run_start": "run_id input history model agent metadata format rules (definition)",
    "llm_response": "content latency_ms prompt_tokens completion_tokens total_tokens finish_reason metadata (cost)",
    "model_failed": "error exception content prompt_tokens completion_tokens",
    "plan_rejected": "reason raw",
    "block_incomplete": "type name content",
    "forged_block": "type name content",
    "skill_execute": "call_id skill params (dropped)",
    "skill_result": "call_id skill result duration_ms (metadata)",
    "skill_error": "call_id skill error exception",
    "protocol_execute": "call_id protocol request",
    "protocol_result": "call_id protocol result duration_ms (metadata)",
    "protocol_error": "call_id protocol error exception duration_ms",
    "progress": "call_id data",
    "builtin_result": "command result",
    "builtin_error": "command error",
    "workflow_start": "goal strategy tasks",
    "workflow_complete": "results duration_ms",
    "task_start": "task_id input depends_on",
    "task_complete": "task_id result duration_ms",
    "task_error": "task_id error duration_ms",
    "informational_only": "kinds",
    "no_blocks_stall": "prose_preview",
    "result": "text stop_reason steps usage error",
    "block_start": "type name",
    "block_end": "type name",
}


@each_case
def test_every_event_holds_what_the_contract_says(case: Case) -> None:
    for event in by_hand(case, 7, watched=True).live[0]:
        if event.type in ("messages_sent", "blocks_parsed"):
            assert all(set(one) >= {"content"} for one in event.data)
        elif event.type not in HOLDS:
            assert event.type in ("plan", "json", "final", "text_chunk", "block_content")
            assert isinstance(event.data, str)
        else:
            keys = HOLDS[event.type].split()
            always = {key for key in keys if key[0] != "("}
            assert always <= set(event.data) <= {key.strip("()") for key in keys}, event.type
            assert all(isinstance(event.data[key], int) for key in MEASURED & set(event.data))


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


@pytest.mark.slow
@each_case
def test_every_driver_records_what_a_run_by_hand_records_and_streams_each_response(case: Case) -> None:
    wanted = by_hand(case, 7, watched=False)
    others = OTHER_MANNERS[CASES.index(case) % 4 :] * 2
    for way, (size, watched) in (
        (way, manner) for way, other in zip(WAYS, others, strict=False) for manner in (*MANNERS, other)
    ):
        got = WAYS[way](case, size, watched=watched)
        assert _comparable(got.recorded, at_once=case.at_once) == _comparable(wanted.recorded, at_once=case.at_once), way
        assert got.result.messages == wanted.result.messages, way
        assert (got.result.text, got.result.stop_reason, got.result.usage, str(got.result.error)) == (
            wanted.result.text,
            wanted.result.stop_reason,
            wanted.result.usage,
            str(wanted.result.error),
        ), way
        for live in got.live:
            assert [event for event in live if event.type not in LIVE_ONLY] == got.recorded, way
            assert live[-1].type == "result"
            _shows_the_responses(live)


@each_case
def test_the_pieces_shown_live_by_hand_are_the_response(case: Case) -> None:
    for size in (7, 0):
        for live in by_hand(case, size, watched=True).live:
            _shows_the_responses(live)


def _shows_the_responses(live: Sequence[Event]) -> None:
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
            # emitted before the response event, so that a live view never lags the recording
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
    dicts = [event.to_dict() for event in events]
    for one in dicts:
        one.pop("timestamp")
        if isinstance(one["data"], dict):
            one["data"] = {key: value for key, value in one["data"].items() if key not in MEASURED}
    return sorted(map(repr, dicts)) if at_once else dicts


# ------------------------------------------------------------------------------------------------- matching


def _matches_events(wanted: Sequence[tuple[str, Any]], recorded: Sequence[Mapping[str, Any]], *, at_once: bool) -> None:
    if at_once:
        wanted, recorded = sorted(wanted, key=_kind), sorted(recorded, key=lambda event: _kind((event["event"], event["data"])))
    assert [event["event"] for event in recorded] == [type for type, _ in wanted]
    for (type, data), event in zip(wanted, recorded, strict=True):
        assert _holds(data, event["data"]), (type, data, event["data"])


def _kind(event: tuple[str, Any]) -> str:
    type, data = event
    if not isinstance(data, dict):
        return type
    return f"{type} {data.get('call_id')} {data.get('task_id')}"


def _holds(wanted: Any, got: Any) -> bool:
    if wanted is ...:
        return True
    if isinstance(wanted, dict) and isinstance(got, dict):
        return all(key in got and _holds(value, got[key]) for key, value in wanted.items())
    return bool(wanted == got)


def _has_the_common_frame(sub: Sub, recorded: Sequence[Mapping[str, Any]], path: str) -> None:
    """What every run records: a start, each step's model call, and how it ended."""
    frame = [event for event in recorded if event["event"] in COMMON]
    assert frame[0] is recorded[0]
    assert frame[-1] is recorded[-1]
    kinds = [event["event"] for event in frame]
    answered = [turn for turn in sub.turns if isinstance(turn.response, (str, LlmResponse))]
    steps = ["messages_sent", "llm_response", "blocks_parsed"] * len(answered)
    assert kinds == ["run_start", *steps, *["messages_sent"] * (len(sub.turns) - len(answered)), "result"]
    assert [event["step"] for event in frame[1:-1:3]] == list(range(len(sub.turns)))
    assert {event["depth"] for event in recorded} == {path.count("/") + 1 if path else 0}
    assert {event["task_id"] for event in recorded} == {sub.task_id}
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
        for word in wanted.lacks:
            assert word not in text
    else:
        first, more = wanted
        at = text.rindex(f'<block type="{more.kind}" name="{more.name}">')
        _reads(first, text[:at].rstrip())
        _reads(more, text[at:])


# ---------------------------------------------------------------------------- what the loop asks for, and when


def test_events_announce_what_happens_before_it_happens() -> None:
    hand = ByHand(Agent(instructions="Work.", skills=[echo]), provider=MockProvider())
    work = hand.work("Go.")
    asked = next(work)
    assert isinstance(asked, CallModel)
    assert [event.type for event in hand.flush()] == ["run_start", "messages_sent"]
    called = work.send(LlmResponse(command("echo", "x") + command("echo", "y")))
    assert isinstance(called, CallSkill)
    assert (called.skill, called.arguments) == ("echo", {"text": "x"})
    assert [event.type for event in hand.flush()] == ["llm_response", "blocks_parsed", "skill_execute"]
    work.send("x")
    assert [event.type for event in hand.flush()] == ["skill_result", "skill_execute"]
    work.throw(RuntimeError("oh"))
    assert [event.type for event in hand.flush()] == ["skill_error", "messages_sent"]
    with pytest.raises(StopIteration) as stop:
        work.send(LlmResponse("<final>done</final>"))
    assert stop.value.value.text == "done"
    assert [event.type for event in hand.flush()] == ["llm_response", "blocks_parsed", "final", "result"]


def test_concurrent_calls_are_announced_in_order_and_recorded_as_they_end() -> None:
    agent = Agent(instructions="Work.", skills=[echo], parallel_skills=True)
    hand = ByHand(
        agent, provider=MockProvider("".join(command("echo", one) for one in "abc"), "done"), order=last_spawned
    )
    done = hand.run("Go.")
    assert [type(effect) for effect in hand.effects[1:5]] == [Spawn, Spawn, Spawn, Join]
    calls = [(event.type, event.data["call_id"]) for event in hand.events if event.type.startswith("skill")]
    announced, ended = calls[:3], calls[3:]
    assert announced == [("skill_execute", f"0.{at}") for at in range(3)]
    assert ended == [("skill_result", f"0.{at}") for at in (2, 1, 0)]
    assert [one.text for one in done.messages[2:5]] == [result("echo", one) for one in "abc"]


def test_the_limit_of_a_response_holds_for_calls_at_once_too() -> None:
    agent = Agent(instructions="Work.", skills=[echo], parallel_skills=True)
    hand = ByHand(agent, provider=MockProvider(command("echo", "x") * 103, "<final>done</final>"))
    messages = hand.run("Go.").messages
    assert sum(event.type == "skill_execute" for event in hand.events) == 100
    assert messages[101].text == result("echo", "x")
    assert "the other 3" in messages[102].text
    assert len(messages) == 104


def test_a_run_of_the_loop_decides_the_same_for_the_same_outcomes() -> None:
    agent = Agent(instructions="Work.", skills=[echo])
    turns = [command("echo", "x"), "<json>1</json>", plan(task("a")), "A!", "done"]
    hands = [ByHand(agent, provider=MockProvider(*turns)) for _ in range(2)]
    results = [hand.run("Go.") for hand in hands]
    assert results[0] == results[1]
    assert hands[0].events == hands[1].events


FRAGMENTS = st.sampled_from(
    [
        "prose ",
        "< ",
        "<block",
        "</block>",
        "<final>",
        "</final>",
        '<block type="final">',
        '<block type="command" name="echo">',
        '<block type="command" name="add">',
        '{"a": 1}',
        '<block type="plan">',
        '{"tasks": [{"id": "a", "input": "Go."}]}',
        '<block type="oracle">',
        "none",
        '<block type="result" name="echo">',
        '<block type="x"/>',
        "<json>",
        "</json>",
        "\n",
    ]
)


@given(st.lists(st.lists(FRAGMENTS, max_size=8).map("".join), min_size=1, max_size=4), st.booleans(), st.integers(1, 9))
def test_whatever_a_model_writes_the_run_ends_and_both_drivers_record_the_same(
    responses: list[str], correct: bool, size: int
) -> None:
    def agent() -> Agent:
        return set_up(
            Case(
                "",
                [],
                agent={
                    "provider": MockProvider(*responses, chunk_size=size),
                    "max_steps": 4,
                    "on_prose": "correct" if correct else "accept",
                },
            ),
            size,
        )

    hand = ByHand(agent(), listening=True)
    wanted = hand.run("Go.")
    assert [event.type for event in hand.events].count("result") == len({event.scope for event in hand.events})
    assert hand.events[-1].type == "result"
    recorder = Recorder()
    got = kernai.execute(agent(), "Go.", recorder=recorder, run_id="run-1")
    assert _comparable(recorder.entries, at_once=False) == _comparable(hand.recorded, at_once=False)
    arecorder = Recorder()
    asyncio.run(kernai.aexecute(agent(), "Go.", recorder=arecorder, run_id="run-1"))
    assert _comparable(arecorder.entries, at_once=False) == _comparable(hand.recorded, at_once=False)
    assert (got.text, got.stop_reason, got.messages) == (wanted.text, wanted.stop_reason, wanted.messages)


# ---------------------------------------------------------------------------------- what the provider shows


class Rewriting(MockProvider):
    """Streams one text and ends with another."""

    def __init__(self, streamed: str, content: str) -> None:
        super().__init__(streamed)
        self.content = content

    def call(self, *given: Any) -> LlmResponse:
        super().call(*given)
        return LlmResponse(self.content, finish_reason="stop", metadata={"request": "r1"})


@pytest.mark.parametrize("way", ["by hand", *WAYS])
def test_pieces_that_turn_out_wrong_are_taken_back(way: str) -> None:
    case = Case("", [], agent={"provider": Rewriting("<final>wro", "So <final>right</final>")})
    outcome = WAYS.get(way, by_hand)(case, None, watched=True)
    assert outcome.result.text == "right"
    for live in outcome.live:
        types = [event.type for event in live]
        restart = types.index("model_restarted")
        assert live[restart].data["reason"]
        assert set(types[types.index("messages_sent") + 1 : restart]) <= LIVE_ONLY
        after = types[restart + 1 : types.index("llm_response")]
        assert after
        assert set(after) <= LIVE_ONLY
        assert _rebuilt([event for event in live[restart:] if event.type in LIVE_ONLY]) == [("final", None, "right")]
        assert "block_incomplete" not in types


def test_a_provider_that_showed_nothing_has_nothing_to_take_back() -> None:
    outcome = by_execute(Case("", [], agent={"provider": Rewriting("", "<final>right</final>")}), None, watched=True)
    assert "model_restarted" not in [event.type for event in outcome.live[0]]
    assert outcome.result.text == "right"


def test_a_response_event_has_all_that_the_provider_reported() -> None:
    outcome = by_execute(Case("", [], agent={"provider": Rewriting("", "done")}), None, watched=False)
    [data] = [event.data for event in outcome.recorded if event.type == "llm_response"]
    assert set(data) == {
        "content",
        "latency_ms",
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
        "finish_reason",
        "metadata",
    }
    assert (data["finish_reason"], data["metadata"], data["prompt_tokens"]) == ("stop", {"request": "r1"}, None)


@pytest.mark.parametrize("listening", [False, True])
def test_a_provider_that_streams_bytes_has_failed(listening: bool) -> None:
    class Bytes(MockProvider):
        def call(self, messages: Any, model: Any, generation: Any, on_chunk: Callable[[Any], object]) -> LlmResponse:
            on_chunk(b"x")
            return LlmResponse("x")

    error = ByHand(Agent(instructions=""), provider=Bytes(), listening=listening).run("Go.").error
    assert isinstance(error, ProviderError)
    assert "on_chunk" in str(error)


class Timed(MockProvider):
    def __init__(self, clock: list[float], latency_ms: int) -> None:
        super().__init__()
        self.clock, self.latency_ms = clock, latency_ms

    def call(self, *_: Any) -> LlmResponse:
        self.clock[0] += 1.5
        return LlmResponse("done", latency_ms=self.latency_ms)


@pytest.mark.parametrize("reported,expected", [(20, 20), (0, 1500)])
def test_a_latency_is_the_vendors_or_else_measured(reported: int, expected: int) -> None:
    clock = [0.0]
    hand = ByHand(Agent(instructions=""), provider=Timed(clock, reported), monotonic=lambda: clock[0])
    hand.run("Go.")
    assert [event.data["latency_ms"] for event in hand.events if event.type == "llm_response"] == [expected]


def test_without_a_provider_the_error_says_how_to_set_one() -> None:
    with pytest.raises(ProviderError, match=r"provider=.*configure\(default_provider=") as caught:
        kernai.run(Agent(instructions=""), "Go.")
    assert caught.value.result is not None
    assert [message.text for message in caught.value.result.messages] == ["Go."]


class VendorDownError(ProviderError):
    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body}", status=status)


@pytest.mark.parametrize("error", [ProviderError("down", status=500), VendorDownError(500, "down")])
def test_one_error_that_ends_two_runs_does_not_mix_them_up(error: ProviderError) -> None:
    def fail(*_: object) -> str:
        raise error

    agent = Agent(instructions="", provider=MockProvider().on_call(fail))
    first, second = (kernai.execute(agent, text) for text in ("one", "two"))
    for done, text in ((first, "one"), (second, "two")):
        assert isinstance(done.error, ProviderError)
        assert done.error.result is done
        assert done.error.status == 500
        assert str(done.error) == str(error)
        assert [message.text for message in done.messages] == [text]


def test_a_run_starts_with_what_it_was_given() -> None:
    recorder = Recorder()
    agent = Agent(instructions="", provider=MockProvider("done"), name="clerk")
    kernai.run(agent, "Go.", model=Model("m"), run_id="r", metadata={"user": 7}, recorder=recorder)
    assert recorder.entries[0].type == "run_start"
    assert recorder.entries[0].data == {
        "definition": recorder.entries[0].data["definition"],  # see tests/agents/test_definition.py
        "run_id": "r",
        "input": "Go.",
        "history": [],
        "model": "m",
        "agent": "clerk",
        "metadata": {"user": 7},
        "format": 2,
        "rules": {
            "on_prose": "correct_once", "on_truncated": "accept", "quoted_calls": "confirm", "dialects": "correct",
            "output_retries": 2, "max_steps": 10, "max_tasks": 50, "neutralize": 2, "answers": 4, "quotes": 2,
                "repair": "json",
        },
    }


# -------------------------------------------------------------------------------------- stopping and breaking


def _cancelled_after(effects: int) -> tuple[ByHand, Result]:
    """A run of two commands, cancelled while the given effect is performed."""
    agent = Agent(instructions="Work.", skills=[echo])
    hand = ByHand(
        agent, provider=MockProvider(command("echo", "x") * 2, "done"), cancelled=lambda: len(hand.effects) >= effects
    )
    return hand, hand.run("Go.")


@pytest.mark.parametrize(
    "effects,types",
    [
        (0, ["run_start", "result"]),
        (1, ["run_start", "messages_sent", "model_failed", "result"]),
        (2, ["run_start", "messages_sent", "llm_response", "blocks_parsed", "skill_execute", "skill_result", "result"]),
        (
            4,
            [
                *["run_start", "messages_sent", "llm_response", "blocks_parsed"],
                *["skill_execute", "skill_result"] * 2,
                "messages_sent",
                "model_failed",
                "result",
            ],
        ),
    ],
)
def test_a_cancelled_run_ends_before_the_next_thing_it_would_do(effects: int, types: list[str]) -> None:
    hand, cancelled = _cancelled_after(effects)
    assert [event.type for event in hand.events] == types
    assert (cancelled.stop_reason, cancelled.text) == ("cancelled", None)
    assert isinstance(cancelled.error, kernai.RunCancelledError)
    assert cancelled.error.result is cancelled


def test_after_a_provider_raises_cancellation_is_looked_at_first() -> None:
    hand = ByHand(Agent(instructions=""), provider=MockProvider().fail_on_step(0), cancelled=lambda: bool(hand.effects))
    assert hand.run("Go.").stop_reason == "cancelled"


@pytest.mark.parametrize("listening", [False, True])
def test_what_was_streamed_before_a_call_was_broken_off_is_recorded(listening: bool) -> None:
    pieces = ["<final>It ", "is ", "4"]

    class Slow(MockProvider):
        def call(self, messages: Any, model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
            for piece in pieces:
                on_chunk(piece)
            raise stop

    stop: BaseException
    for stop, reason, name, why in (
        (ProviderError("reset by peer"), "error", "ProviderError", "reset by peer"),
        (Cancelled(), "cancelled", None, "the run was cancelled"),
        (KeyboardInterrupt(), "cancelled", "KeyboardInterrupt", "KeyboardInterrupt"),
    ):
        hand = ByHand(Agent(instructions=""), provider=Slow(), listening=listening)
        if isinstance(stop, KeyboardInterrupt):
            with pytest.raises(KeyboardInterrupt):
                hand.run("Go.")
        else:
            hand.run("Go.")
        failed, ended = hand.recorded[-2:]
        assert (failed.type, failed.data) == ("model_failed", {
            "error": why, "exception": name, "content": "<final>It is 4", "prompt_tokens": None,
            "completion_tokens": None,
        })
        assert (ended.type, ended.data["stop_reason"]) == ("result", reason)


def test_an_answer_that_a_cancelled_run_did_not_wait_for_is_recorded_and_counts() -> None:
    provider = MockProvider("<final>4</final>").with_token_counter(
        lambda *_: {"prompt_tokens": 4000, "completion_tokens": 1000}
    )
    hand = ByHand(Agent(instructions=""), provider=provider, cancelled=lambda: bool(hand.effects))
    asked = hand.work("Go.")
    next(asked)
    answer = LlmResponse("<final>4</final>", prompt_tokens=4000, completion_tokens=1000)
    hand.effects.append(CallModel("", 0, [], Model("m"), GenerationOptions()))
    with pytest.raises(StopIteration) as ended:
        asked.send(answer)
    failed = hand.flush()[-2]
    assert (failed.type, failed.data["content"], failed.data["prompt_tokens"]) == ("model_failed", "<final>4</final>", 4000)
    assert ended.value.value.usage.total_tokens == 5000


@pytest.mark.parametrize("way", WAYS)
def test_a_failure_of_the_hosts_own_code_is_an_error_of_the_result_and_none_of_the_provider(way: str) -> None:
    def broken() -> str:
        return str(1 // 0)

    recorder, agent = Recorder(), Agent(instructions=broken, provider=MockProvider("done"))
    with pytest.raises(ZeroDivisionError):
        RUN[way](agent, recorder)
    assert recorder.entries[-1].data["error"].startswith("ZeroDivisionError: ")
    hand = ByHand(agent)
    with pytest.raises(ZeroDivisionError):
        hand.run("Go.")
    assert hand.state.result is not None
    assert type(hand.state.result.error) is KernaiError


@pytest.mark.parametrize("way", WAYS)
def test_a_handlers_message_with_other_media_of_a_known_id_is_an_error_of_the_call(way: str) -> None:
    def show(block: Block, _: Any) -> Message:
        media = Media.from_bytes(b"one" if block.content == "1" else b"two", mime_type="image/png")
        object.__setattr__(media, "id", "media_000000000000")
        return Message("user", ["see", media])

    provider = MockProvider('<block type="show">1</block><block type="show">2</block>', "done")
    recorder, agent = Recorder(), Agent(instructions="", provider=provider, protocols=[Protocol("show", show)])
    assert RUN[way](agent, recorder).text == "done"
    [error] = recorder.for_event("protocol_error")
    assert error.data["call_id"] == "0.1"
    assert "media_000000000000" in error.data["error"]


def test_a_protocol_whose_handler_cannot_be_hashed_is_like_any_other() -> None:
    class Handler:
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Handler)

        def __call__(self, block: Block, _: Any) -> str:
            return block.content

    kernai.protocols.register("registered", Handler())
    agent = Agent(instructions="", provider=MockProvider('<block type="own">x</block>', "done"))
    for protocols in (None, [Protocol("own", Handler())]):
        run = agent.replace(protocols=protocols)
        assert "registered" in run.system_prompt() or protocols
        assert kernai.run(run, "Go.") == "done"


def test_names_that_no_skill_has_are_warned_of_when_a_run_starts_with_those_that_are_close() -> None:
    kernai.skills.register(Skill("search_archive", execute=lambda: ""))
    leaf = Agent(instructions="", skills=["Search_archiv"], name="leaf")
    agent = Agent(instructions="", skills=["echo", "serch_archive", "nothing", leaf.as_skill("leaf", "")], name="root")
    kernai.skills.register(echo)
    hand = ByHand(agent, provider=MockProvider(command("leaf", "x"), "done"))
    hand.run("Go.")
    warned = [(fields["agent"], fields["skill"], fields.get("close")) for name, fields in hand.warnings]
    assert warned == [("root", "serch_archive", "search_archive"), ("root", "nothing", None),
                    ("leaf", "Search_archiv", "search_archive")]
    assert {name for name, _ in hand.warnings} == {"skill.unknown"}


def test_names_that_no_protocol_has_are_warned_of_likewise() -> None:
    kernai.protocols.register("ticketing", lambda *_: "")
    hand = ByHand(Agent(instructions="", protocols=["tiketing", "ticketing"]), provider=MockProvider("done"))
    hand.run("Go.")
    [(name, fields)] = hand.warnings
    assert (name, fields["protocol"], fields["close"]) == ("protocol.unknown", "tiketing", "ticketing")


def test_a_name_that_no_skill_has_is_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    kernai.skills.register(echo)
    kernai.run(Agent(instructions="", skills=["ecko"], provider=MockProvider("done")), "Go.", run_id="r")
    [line] = [one for one in caplog.messages if one.startswith("event=skill.unknown")]
    assert "skill=ecko" in line
    assert "close=echo" in line


@pytest.mark.parametrize("way", WAYS)
def test_no_event_follows_the_result_of_a_run(way: str) -> None:
    kept: list[SkillContext[Any]] = []

    @skill(register=False)
    def keep(ctx: SkillContext[Any]) -> str:
        kept.append(ctx)
        return "kept"

    recorder, heard = Recorder(), list[Event]()
    leaf = Agent(instructions="", skills=[keep], provider=MockProvider(command("keep"), "leaf done"))
    provider = MockProvider(command("leaf", "x"), command("keep"), "done")
    agent = Agent(instructions="", skills=[leaf.as_skill("leaf", ""), keep], provider=provider)

    def listen(event: Event) -> None:
        heard.append(event)
        for ctx in kept if event.type == "result" else ():
            ctx.emit("late")

    RUN[way](agent, recorder, on_event=listen)
    for ctx in kept:
        ctx.emit("later")
    assert len(kept) == 2
    for events in (recorder.entries, heard):
        assert events[-1].type == "result"
        assert events[-1].scope == ""
        leaf_events = [event for event in events if event.scope == "0.0"]
        assert leaf_events[-1].type == "result"


@pytest.mark.parametrize("parallel", [False, True])
def test_a_sub_run_that_is_cancelled_cancels_the_run(parallel: bool) -> None:
    leaf = Agent(instructions="", provider=MockProvider("A!")).as_skill("leaf", "")
    agent = Agent(instructions="", skills=[leaf], parallel_skills=parallel)
    hand = ByHand(
        agent,
        provider=MockProvider(command("leaf", "x") + command("leaf", "y"), "done"),
        cancelled=lambda: sum(isinstance(effect, CallModel) for effect in hand.effects) >= 2,
    )
    assert hand.run("Go.").stop_reason == "cancelled"
    ends = [event for event in hand.events if event.type == "result"]
    assert {event.data["stop_reason"] for event in ends} == {"cancelled"}
    assert hand.events[-1] is ends[-1]


@pytest.mark.parametrize("way", ["by hand", *WAYS])
def test_an_error_in_the_hosts_code_is_raised_after_the_result_event(way: str) -> None:
    recorded: list[Event] = []

    def broken() -> str:
        raise ZeroDivisionError("host")

    class Telling:
        def record(self, event: Event) -> None:
            recorded.append(event)

    agent = Agent(instructions=broken, provider=MockProvider("done"))
    hand = ByHand(agent)
    kernai.configure(recorder=Recorder(Telling()))
    start: Callable[[Agent], object] = WAYS_OF.get(way, lambda _: hand.run("Go."))
    with pytest.raises(ZeroDivisionError, match="host"):
        start(agent)
    recorded = recorded or hand.events
    assert [event.type for event in recorded] == ["run_start", "result"]
    assert recorded[-1].data["stop_reason"] == "error"
    assert "host" in recorded[-1].data["error"]


async def _aconsume(agent: Agent) -> None:
    async with kernai.astream(agent, "Go.") as events:
        async for _ in events:
            pass


WAYS_OF: dict[str, Callable[[Agent], object]] = {
    "execute": lambda agent: kernai.execute(agent, "Go."),
    "stream": lambda agent: list(kernai.stream(agent, "Go.")),
    "aexecute": lambda agent: asyncio.run(kernai.aexecute(agent, "Go.")),
    "astream": lambda agent: asyncio.run(_aconsume(agent)),
}


@pytest.mark.parametrize("way", ["by hand", "execute", "stream"])
def test_an_interrupt_records_a_result_and_is_raised_again(way: str) -> None:
    @skill(register=False)
    def interrupt() -> str:
        raise KeyboardInterrupt

    recorder = Recorder()
    kernai.configure(recorder=recorder)
    agent = Agent(instructions="", skills=[interrupt], provider=MockProvider(command("interrupt")))
    hand = ByHand(agent)
    start: Callable[[Agent], object] = WAYS_OF.get(way, lambda _: hand.run("Go."))
    with pytest.raises(KeyboardInterrupt):
        start(agent)
    recorded = hand.events if way == "by hand" else recorder.entries
    assert (recorded[-1].type, recorded[-1].data["stop_reason"]) == ("result", "cancelled")
    assert (recorded[-2].type, recorded[-2].data["interrupted"]) == ("skill_error", True)


@pytest.mark.parametrize(
    "response",
    [
        plan(task("a"), task("b"), strategy="parallel"),
        command("echo", "a") + command("echo", "b"),
    ],
)
def test_an_interrupt_while_work_runs_waits_for_it_and_records_its_end(response: str) -> None:
    agent = Agent(instructions="", skills=[echo], provider=MockProvider(), parallel_skills=True)
    hand = ByHand(agent)
    work = hand.work("Go.")
    next(work)
    started = [work.send(LlmResponse(response)), work.send(None)]
    assert isinstance(work.send(None), Join)
    assert isinstance(work.throw(KeyboardInterrupt()), Join)
    assert hand.root.cancellation.is_set()  # what runs hears of it, also where no driver has
    keys = [effect.key for effect in started if isinstance(effect, Spawn)]
    assert isinstance(work.send(Completion(keys[1], error=RuntimeError("x"))), Join)
    with pytest.raises(KeyboardInterrupt):
        work.send(Completion(keys[0], error=RuntimeError("y")))
    types = [event.type for event in hand.flush()]
    assert [one for one in types if one.endswith("_error")][:2] in (["task_error"] * 2, ["skill_error"] * 2)
    assert ("workflow_error" in types) == ("plan" in response)
    assert types[-1] == "result"


@pytest.mark.parametrize("at", [0, 1])
def test_a_call_at_whose_spawn_an_interrupt_comes_was_not_run_and_those_before_it_are_waited_for(at: int) -> None:
    agent = Agent(instructions="", skills=[echo], provider=MockProvider(), parallel_skills=True)
    hand = ByHand(agent)
    work = hand.work("Go.")
    next(work)
    assert isinstance(work.send(LlmResponse(command("echo", "a") + command("echo", "b"))), Spawn)
    if at == 1:
        assert isinstance(work.send(None), Spawn)
        assert isinstance(work.throw(KeyboardInterrupt()), Join)
    with pytest.raises(KeyboardInterrupt):
        work.send(Completion(0, "a")) if at == 1 else work.throw(KeyboardInterrupt())
    hand.flush()
    ends = {event.data["call_id"]: event.data for event in hand.events if event.type in ("skill_error", "skill_result")}
    assert ends["0.0"].get("result") == ("a" if at == 1 else None)
    assert ("not_run" in ends["0.0"], "not_run" in ends["0.1"]) == (at == 0, True)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), NotPerformed()], ids=["interrupt", "not performed"])
def test_behind_a_task_that_could_not_be_spawned_no_other_is(error: BaseException) -> None:
    hand = ByHand(Agent(instructions="", provider=MockProvider()))
    work = hand.work("Go.")
    next(work)
    assert isinstance(work.send(LlmResponse(plan(task("a"), task("b")))), Spawn)
    with pytest.raises(type(error)):
        work.throw(error)


@pytest.mark.parametrize("response", ["done", plan(task("a")), command("echo", "a") * 2])
def test_a_loop_that_is_closed_asks_for_nothing_more(response: str) -> None:
    hand = ByHand(Agent(instructions="", skills=[echo], provider=MockProvider(), parallel_skills=True))
    work = hand.work("Go.")
    next(work)
    if response != "done":
        work.send(LlmResponse(response))
        work.send(None)
    count = len(hand.events)
    work.close()  # a generator that asked for more would raise here
    assert list(work) == []
    assert len(hand.events) == count


# ------------------------------------------------------------------------------------- sub-runs, and what is kept


def test_a_plan_of_more_than_a_thousand_tasks_is_rejected() -> None:
    raw = json.dumps({"tasks": [task(str(at), "x") for at in range(1001)]})
    provider = MockProvider(f'<block type="plan">{raw}</block>', "done")
    hand = ByHand(Agent(instructions="", skills=[echo]), provider=provider)
    assert hand.run("Go.").text == "done"
    [rejected] = [event.data for event in hand.events if event.type == "plan_rejected"]
    assert rejected == {"reason": "too_many_tasks", "raw": raw}


def test_a_run_that_starts_deeper_may_not_plan() -> None:
    hand = ByHand(Agent(instructions=""), provider=MockProvider(plan(task("a")), "done"), context=Context(depth=1))
    hand.run("Go.")
    assert [event.data["reason"] for event in hand.events if event.type == "plan_rejected"] == ["nested"]
    assert {event.depth for event in hand.events} == {1}


def test_a_context_that_cannot_have_a_child_fails_its_task_alone() -> None:
    class Host(Context):
        def child(self, task_id: str | None) -> Host:
            if task_id == "a":
                raise ConnectionError("no more connections")
            return super().child(task_id)

    hand = ByHand(
        Agent(instructions=""), provider=MockProvider(plan(task("a"), task("b")), "B!", "done"), context=Host()
    )
    assert hand.run("Go.").text == "done"
    [results] = [event.data["results"] for event in hand.events if event.type == "workflow_complete"]
    assert results == {"a": "error: no more connections", "b": "B!"}


def test_the_hosts_own_mistake_in_a_task_fails_the_task_alone() -> None:
    def instructions(context: Context) -> str:
        if context.task_id == "a":
            raise ZeroDivisionError("host")
        return ""

    agent = Agent(instructions=instructions)
    hand = ByHand(agent, provider=MockProvider(plan(task("a"), task("b")), "B!", "done"))
    assert hand.run("Go.").text == "done"
    assert [event.data["error"] for event in hand.events if event.type == "task_error"] == ["host"]
    [results] = [event.data["results"] for event in hand.events if event.type == "workflow_complete"]
    assert results == {"a": "error: host", "b": "B!"}


def test_sub_runs_have_one_media_store_whatever_their_context() -> None:
    class Apart(Context):
        def child(self, task_id: str | None) -> Apart:
            child = super().child(task_id)
            child.media_store = kernai.MediaStore()
            return child

    picture = kernai.Media.from_bytes(b"p", mime_type="image/png")
    draw = kernai.Skill("draw", execute=lambda: picture)
    context = Apart()
    turns = (plan(task("a")), command("draw"), "A!", "done")
    ByHand(Agent(instructions="", skills=[draw]), provider=MockProvider(*turns), context=context).run("Go.")
    assert list(context.media_store) == [picture]


def test_sub_runs_inherit_provider_and_generation_and_an_agents_own_go_first() -> None:
    own = MockProvider("own")
    inherits = Agent(instructions="i", generation={"top_p": 0.5}, model=Model("small")).as_skill("inherits", "")
    has_own = Agent(instructions="o", provider=own, generation={"temperature": 0.1}).as_skill("has_own", "")
    provider = MockProvider(plan(task("a")), "<final>A!</final>", command("inherits", "x") + command("has_own", "y"), "I!", "<final>done</final>")
    agent = Agent(
        instructions="r",
        skills=[inherits, has_own],
        provider=provider,
        model=Model("big"),
        generation=GenerationOptions(temperature=0.9, extra={"seed": 1}),
    )
    assert kernai.run(agent, "Go.") == "done"
    base = GenerationOptions(temperature=0.9, extra={"seed": 1})
    assert provider.generation_at(1) == base
    assert provider.generation_at(3) == base.merge({"top_p": 0.5})
    assert own.generation_at(0) == base.merge({"temperature": 0.1})
    assert [call.model.id for call in provider.calls] == ["big", "big", "big", "small", "big"]


def test_what_sub_runs_used_counts_in_the_run_also_when_they_break() -> None:
    left = ["step 0"]
    breaking = Agent(instructions=left.pop, skills=[echo]).as_skill("breaking", "")
    provider = MockProvider(
        command("breaking", "x"), command("echo", "x"), plan(task("a")), "<final>A!</final>", "<final>done</final>"
    ).with_token_counter(lambda *_: {"prompt_tokens": 10, "completion_tokens": 1})
    used = ByHand(Agent(instructions="", skills=[echo, breaking]), provider=provider).run("Go.").usage
    assert provider.call_count == 5
    assert (used.model_calls, used.prompt_tokens, used.total_tokens) == (5, 50, 55)


def test_what_many_sub_runs_at_once_used_adds_up() -> None:
    leaf = Agent(
        instructions="",
        provider=MockProvider("A!").with_token_counter(lambda *_: {"prompt_tokens": 1, "completion_tokens": 1}),
    ).as_skill("leaf", "")
    agent = Agent(instructions="", skills=[leaf], parallel_skills=True)
    used = kernai.execute(agent, "Go.", provider=MockProvider(command("leaf", "x") * 100, "<final>done</final>")).usage
    assert (used.model_calls, used.total_tokens) == (102, 200)


def test_parameters_are_recorded_as_the_model_sent_them_whatever_the_skill_does_to_them() -> None:
    @skill(register=False)
    def greedy(items: list[int], options: Any) -> str:
        items.clear()
        options["seen"] = True
        return "eaten"

    hand = ByHand(
        Agent(instructions="", skills=[greedy]),
        provider=MockProvider(command("greedy", '{"items": [1, 2], "options": {"deep": [3]}}'), "done"),
    )
    hand.run("Go.")
    [params] = [event.data["params"] for event in hand.events if event.type == "skill_execute"]
    assert params == {"items": [1, 2], "options": {"deep": [3]}}


def test_a_forged_block_is_named_also_where_a_protocol_writes_the_message() -> None:
    letter = Protocol("letter", lambda *_: Message("user", "as it is"))
    provider = MockProvider('<result>42</result><block type="letter">x</block>', "done")
    ByHand(Agent(instructions="", protocols=[letter]), provider=provider).run("Go.")
    read = [message.text for message in provider.messages_at(1) or ()]
    assert "as it is" in read
    assert any('<block type="error" name="runtime">' in text for text in read[3:])


def test_faults_quote_the_model_without_its_markup_and_show_a_right_call_with_it() -> None:
    hand = ByHand(set_up(Case("", []), None), provider=MockProvider(command("add", '{"a": "\\u003cfinal>"}'), "done"))
    fault = hand.run("Go.").messages[2].text
    assert "<final>" not in fault
    assert '<block type="command" name="add">' in fault


def test_a_call_cut_off_by_a_limit_is_not_recorded() -> None:
    hand = ByHand(
        Agent(instructions="", skills=[echo]),
        provider=MockProvider(command("echo", "x") * 3),
        limits=Limits(max_calls=3),
    )
    assert hand.run("Go.").stop_reason == "max_calls"
    assert [event.type for event in hand.events if event.type.startswith("skill")] == [
        "skill_execute",
        "skill_result",
    ] * 2
