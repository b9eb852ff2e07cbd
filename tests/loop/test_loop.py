"""The loop: one table of cases, run by hand and through every driver, and tests that do not fit in a table."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
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
    LlmResponse,
    MappingResolver,
    Media,
    Message,
    MockProvider,
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
from kernai.events import KINDS
from kernai.loop.effects import CallModel, CallSkill, Cancelled, Completion, Join, NotPerformed, Spawn, Work
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
from tests.scripted import OnChunk, Scripted
from tests.ways import ALL, LIVE_ONLY, WAYS, Way

COMMON = frozenset({"run_start", "messages_sent", "llm_response", "blocks_parsed", "result"})
MEASURED = frozenset({"duration_ms", "latency_ms"})
#: characters a piece (None streams the whole at once, 0 nothing), and whether a live callback watches
MANNERS = ((7, True), (0, False))
#: each of these in one of the ways to run, from case to case in another
OTHER_MANNERS = ((1, True), (7, False), (None, True), (0, True))


class Script(Provider):
    """Answers by conversation: the first message after the system message identifies it."""

    def __init__(self, turns: Mapping[str, Sequence[Turn]], size: int | None) -> None:
        self.turns = turns
        self.size = size

    def call(self, messages: Sequence[Message], model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
        said = sum(message.text != "I said so" for message in messages if message.role == "assistant")
        answer: Any = self.turns[messages[1].text][said].response
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
    """A run: its result, what was recorded, and what a live callback saw, if there was one."""

    result: Result
    recorded: list[Event]
    live: list[Event]


def set_up(case: Case, size: int | None) -> Agent:
    for one in SKILLS:
        kernai.skills.register(one)
    for other in PROTOCOLS:
        kernai.protocols.register(other)
    kernai.configure(allowed_skills=case.allowed, credential_resolver=MappingResolver({"key": SECRET}))
    turns = {sub.input: sub.turns for sub in case.subs.values()}
    before = [Turn(message.text) for message in case.history if message.role == "assistant"]
    turns[case.history[0].text if case.history else Message("user", case.input).text] = [*before, *case.turns]
    provider = Script(turns, size)
    return Agent(**{"instructions": "Work.", "provider": provider, "skills": "all", "on_prose": "accept", **case.agent})


def by_hand(case: Case, size: int | None, *, watched: bool) -> Outcome:
    hand = ByHand(set_up(case, size), history=case.history, limits=case.limits, listening=watched)
    result = hand.run(*case.input)
    return Outcome(result, hand.recorded, hand.events if watched else [])


def by_driver(way: Way, case: Case, size: int | None, *, watched: bool) -> Outcome:
    recorder, seen = Recorder(), list[Event]()
    listener: dict[str, Any] = {"on_event": seen.append} if watched else {}
    result = way(
        set_up(case, size), *case.input, history=case.history, limits=case.limits, recorder=recorder, run_id="run-1",
        **listener,
    )
    return Outcome(result, recorder.entries, seen)


# ---------------------------------------------------------------------------------------- what the table says

each_case = pytest.mark.parametrize("case", CASES, ids=str)


@each_case
def test_a_run_by_hand_does_what_the_table_says(case: Case) -> None:
    for size, watched in ((7, True), (1, True), (0, True), (None, False)):
        outcome = by_hand(case, size, watched=watched)
        _ends_as_the_table_says(case, outcome.result)
        _records_the_events_of_the_table(case, outcome.recorded)
        _leaves_the_conversation_of_the_table(case, outcome)
        _shows_the_responses(outcome.live)


def _ends_as_the_table_says(case: Case, result: Result) -> None:
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


def _records_the_events_of_the_table(case: Case, events: Sequence[Event]) -> None:
    root = Sub("", case.turns, case.events, stop=case.stop)
    for path, sub in {"": root, **case.subs}.items():
        recorded = [event.to_dict() for event in events if event.scope == path]
        _matches_events(sub.events, [event for event in recorded if event["event"] not in COMMON], at_once=case.at_once)
        _has_the_common_frame(sub, recorded, path)
    assert {event.scope for event in events} == {"", *case.subs}
    assert {event.run_id for event in events} == {"run-1"}
    assert (events[-1].type, events[-1].scope) == ("result", "")
    for event in events:
        KINDS[event.type].read(event.to_dict()["data"])  # raises where a field is missing or of another type


def _leaves_the_conversation_of_the_table(case: Case, outcome: Outcome) -> None:
    start = [*case.history, Message("user", case.input)]
    messages = outcome.result.messages
    assert list(messages[: len(start)]) == start
    _matches_tape(case.turns, messages[len(start) :])
    for path, sub in case.subs.items():
        sent = [event.data for event in outcome.recorded if event.type == "messages_sent" and event.scope == path]
        messages = tuple(Message(one["role"], one["content"]) for one in sent[-1])
        assert messages[0].role == "system"
        assert messages[1].text == sub.input
        _matches_tape(sub.turns[:-1], messages[2:])


@pytest.mark.slow
@each_case
def test_every_driver_records_what_a_run_by_hand_records_and_streams_each_response(case: Case) -> None:
    wanted = by_hand(case, 7, watched=False)
    others = OTHER_MANNERS[CASES.index(case) % 4 :] * 2
    for way, (size, watched) in (
        (way, manner) for way, other in zip(ALL, others, strict=False) for manner in (*MANNERS, other)
    ):
        got = by_driver(way, case, size, watched=watched)
        assert _comparable(got.recorded, at_once=case.at_once) == _comparable(wanted.recorded, at_once=case.at_once), way
        assert _ended(got.result) == _ended(wanted.result), way
        if watched:
            assert [event for event in got.live if event.type not in LIVE_ONLY] == got.recorded, way
        _shows_the_responses(got.live)


def _ended(result: Result) -> tuple[Any, ...]:
    return result.messages, result.text, result.stop_reason, result.usage, str(result.error)


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
    """Events without measured times; sorted if work was done `at_once`."""
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
    hand = ByHand(agent, provider=MockProvider("".join(command("echo", one) for one in "abc"), "done"), order=last_spawned)
    done = hand.run("Go.")
    assert [type(effect) for effect in hand.effects[1:5]] == [Spawn, Spawn, Spawn, Join]
    calls = [(event.type, event.data["call_id"]) for event in hand.events if event.type.startswith("skill")]
    announced, ended = calls[:3], calls[3:]
    assert announced == [("skill_execute", f"0.{at}") for at in range(3)]
    assert ended == [("skill_result", f"0.{at}") for at in (2, 1, 0)]
    assert [one.text for one in done.messages[2:5]] == [result("echo", one) for one in "abc"]
    again = hand.run("Again.")
    assert (again.text, again.messages[:len(done.messages)]) == ("done", done.messages)


def test_by_hand_ctrl_c_in_a_concurrent_call_is_raised_and_an_exit_in_a_task_is_only_its_failure() -> None:
    def leave(text: str) -> None:
        raise {"c": KeyboardInterrupt, "exit": SystemExit}[text]("left")

    skills = [Skill("leave", execute=leave, inputs={"text": str})]
    ctrl_c = MockProvider(command("leave", "c") + command("leave", "c"))
    with pytest.raises(KeyboardInterrupt, match="left"):
        ByHand(Agent(instructions="", skills=skills, parallel_skills=True), provider=ctrl_c).run("Go.")
    exits = MockProvider(plan(task("a"), task("b")), command("leave", "exit"), "<final>b</final>", "<final>done</final>")
    hand = ByHand(Agent(instructions="", skills=skills), provider=exits)
    assert hand.run("Go.").text == "done"
    assert [event.type for event in hand.events if event.type.startswith("task_")][1::2] == ["task_error", "task_complete"]


FRAGMENTS = st.sampled_from([
    "prose ", "< ", "<block", "</block>", "<final>", "</final>", '<block type="final">', '<block type="command" name="echo">',
    '<block type="command" name="add">', '{"a": 1}', '<block type="plan">', '{"tasks": [{"id": "a", "input": "Go."}]}',
    '<block type="oracle">', "none", '<block type="result" name="echo">', '<block type="x"/>', "<json>", "</json>", "\n",
])  # fmt: skip


@given(st.lists(st.lists(FRAGMENTS, max_size=8).map("".join), min_size=1, max_size=4), st.booleans(), st.integers(1, 9))
def test_whatever_a_model_writes_the_run_ends_and_both_drivers_record_the_same(
    responses: list[str], correct: bool, size: int
) -> None:
    def agent() -> Agent:
        options = {"max_steps": 4, "on_prose": "correct" if correct else "accept"}
        return set_up(Case("", [], agent={"provider": MockProvider(*responses, chunk_size=size), **options}), size)

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


@pytest.mark.parametrize("reported,expected", [(20, 20), (0, 1500)])
def test_a_latency_is_reported_by_the_provider_or_else_measured(reported: int, expected: int) -> None:
    clock = [0.0]

    def answer(*_: object) -> LlmResponse:
        clock[0] += 1.5
        return LlmResponse("done", latency_ms=reported)

    hand = ByHand(Agent(instructions=""), provider=MockProvider().on_call(answer), monotonic=lambda: clock[0])
    hand.run("Go.")
    assert [event.data["latency_ms"] for event in hand.events if event.type == "llm_response"] == [expected]


def test_without_a_provider_the_error_says_how_to_set_one() -> None:
    with pytest.raises(ProviderError, match=r"run\(\.\.\., provider=.*Agent\(provider=.*configure\(default_provider=") as caught:
        kernai.run(Agent(instructions=""), "Go.")
    assert caught.value.result is not None
    assert [message.text for message in caught.value.result.messages] == ["Go."]


class VendorDownError(ProviderError):
    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body}", status=status)


class WordedError(ProviderError):
    def __init__(self, body: str) -> None:
        super().__init__(f"500: {body}", status=500)


@pytest.mark.parametrize("error", [VendorDownError(500, "down"), WordedError("down")])
def test_one_error_that_ends_two_runs_does_not_mix_them_up(error: ProviderError) -> None:
    agent = Agent(instructions="", provider=MockProvider().fail_on_step(0, error).fail_on_step(1, error))
    for done, text in [(kernai.execute(agent, text), text) for text in ("one", "two")]:
        assert isinstance(done.error, ProviderError)
        assert done.error.result is done
        assert (done.error.status, str(done.error)) == (500, str(error))
        assert [message.text for message in done.messages] == [text]
    limit = kernai.LimitReachedError("enough", "timeout")

    def instructions() -> str:
        raise limit

    one, two = (kernai.execute(Agent(instructions=instructions, provider=MockProvider("x")), text) for text in ("one", "two"))
    assert [done.error is not None and done.error.result is done for done in (one, two)] == [True, True]
    assert [(done.stop_reason, str(done.error)) for done in (one, two)] == [("timeout", "enough")] * 2


# -------------------------------------------------------------------------------------- stopping and breaking


def asked(**options: Any) -> tuple[ByHand, Work]:
    """A run by hand that has asked for its first response."""
    hand = ByHand(Agent(instructions="", skills=[echo], provider=MockProvider(), parallel_skills=True), **options)
    work = hand.work("Go.")
    next(work)
    return hand, work


ANSWERED = ["run_start", "messages_sent", "llm_response", "blocks_parsed"]


@pytest.mark.parametrize("effects, types", [
    (0, ["run_start"]), (1, ["run_start", "messages_sent", "model_failed"]), (2, [*ANSWERED, "skill_execute", "skill_error"]),
    (4, [*ANSWERED, *["skill_execute", "skill_result"] * 2, "messages_sent", "model_failed"]),
])  # fmt: skip
def test_a_cancelled_run_ends_before_its_next_effect(effects: int, types: list[str]) -> None:
    """Two calls, cancelled once the given effect was yielded: a model call that has begun ends, a skill is not called."""
    agent = Agent(instructions="Work.", skills=[echo], provider=MockProvider(command("echo", "x") * 2, "done"))
    hand = ByHand(agent, cancelled=lambda: len(hand.effects) >= effects)
    cancelled = hand.run("Go.")
    assert [event.type for event in hand.events] == [*types, "result"]
    assert (cancelled.stop_reason, cancelled.text) == ("cancelled", None)
    assert isinstance(cancelled.error, kernai.RunCancelledError)
    assert cancelled.error.result is cancelled


@pytest.mark.parametrize("stop, reason, name, why", [
    (ProviderError("reset by peer"), "error", "ProviderError", "reset by peer"),
    (Cancelled(), "cancelled", None, "the run was cancelled"),
    (KeyboardInterrupt(), "cancelled", "KeyboardInterrupt", "KeyboardInterrupt"),
])
def test_text_streamed_before_a_call_was_interrupted_is_recorded(
    stop: BaseException, reason: str, name: str | None, why: str
) -> None:
    def script(_: Sequence[Message], on_chunk: OnChunk) -> str:
        for piece in ("<final>It ", "is ", "4"):
            on_chunk(piece)
        raise stop

    hand = ByHand(Agent(instructions=""), provider=Scripted(script), listening=True)
    with suppress(KeyboardInterrupt):
        hand.run("Go.")
    failed, ended = hand.recorded[-2:]
    assert (failed.type, failed.data) == ("model_failed", {
        "error": why, "exception": name, "content": "<final>It is 4", "prompt_tokens": None, "completion_tokens": None,
    })
    assert (ended.type, ended.data["stop_reason"]) == ("result", reason)


def test_an_answer_that_a_cancelled_run_did_not_wait_for_is_recorded_and_counts() -> None:
    cancelled: list[bool] = []
    hand, work = asked(cancelled=lambda: bool(cancelled))
    cancelled.append(True)
    with pytest.raises(StopIteration) as ended:
        work.send(LlmResponse("<final>4</final>", prompt_tokens=4000, completion_tokens=1000))
    failed = hand.flush()[-2]
    assert (failed.type, failed.data["content"], failed.data["prompt_tokens"]) == ("model_failed", "<final>4</final>", 4000)
    assert ended.value.value.usage.total_tokens == 5000


def test_a_handlers_message_with_other_media_of_a_known_id_is_an_error_of_the_call() -> None:
    def show(block: Block, _: Any) -> Message:
        media = Media.from_bytes(b"one" if block.content == "1" else b"two", mime_type="image/png")
        object.__setattr__(media, "id", "media_000000000000")
        return Message("user", ["see", media])

    provider = MockProvider('<block type="show">1</block><block type="show">2</block>', "done")
    hand = ByHand(Agent(instructions="", provider=provider, protocols=[Protocol("show", show)]))
    assert hand.run("Go.").text == "done"
    [error] = [event.data for event in hand.events if event.type == "protocol_error"]
    assert error["call_id"] == "0.1"
    assert "media_000000000000" in error["error"]


def test_a_protocol_with_an_unhashable_handler_works() -> None:
    @dataclass
    class Handler:
        def __call__(self, block: Block, _: Any) -> str:
            return block.content

    kernai.protocols.register("registered", Handler())
    agent = Agent(instructions="", provider=MockProvider('<block type="own">x</block>', "done"))
    for protocols in (None, [Protocol("own", Handler())]):
        run = agent.replace(protocols=protocols)
        assert "registered" in run.system_prompt() or protocols
        assert kernai.run(run, "Go.") == "done"


def test_a_skill_that_a_call_adds_may_be_called_by_the_next_one_of_the_same_response() -> None:
    def grow() -> str:
        agent.skills = (more, echo)
        return "grown"

    more = Skill("grow", execute=grow)
    provider = MockProvider(command("grow") + command("echo", "x"), "<final>done</final>")
    agent = Agent(instructions="", skills=[more], provider=provider)
    done = kernai.execute(agent, "Go.")
    assert [message.text for message in done.messages[2:4]] == [result("grow", "grown"), result("echo", "x")]


def test_at_the_start_unknown_names_of_skills_are_logged_with_close_matches() -> None:
    kernai.skills.register(Skill("search_archive", execute=lambda: ""))
    kernai.skills.register(echo)
    kernai.protocols.register("ticketing", lambda *_: "")
    leaf = Agent(instructions="", skills=["Search_archiv"], name="leaf")
    skills: list[str | Skill] = ["echo", "serch_archive", "nothing", leaf.as_skill("leaf", "")]
    agent = Agent(instructions="", skills=skills, protocols=["tiketing", "ticketing"], name="root")
    hand = ByHand(agent, provider=MockProvider(command("leaf", "x"), "done"))
    hand.run("Go.")
    warned = [(name, fields["agent"], fields.get("skill") or fields["protocol"], fields.get("close")) for name, fields in hand.warnings]
    assert warned == [
        ("skill.unknown", "root", "serch_archive", "search_archive"), ("skill.unknown", "root", "nothing", None),
        ("protocol.unknown", "root", "tiketing", "ticketing"), ("skill.unknown", "leaf", "Search_archiv", "search_archive"),
    ]  # fmt: skip


@WAYS
def test_no_event_follows_the_result_of_a_run(way: Way) -> None:
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

    way(agent, recorder=recorder, on_event=listen)
    for ctx in kept:
        ctx.emit("later")
    assert len(kept) == 2
    for events in (recorder.entries, heard):
        assert (events[-1].type, events[-1].scope) == ("result", "")
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


@pytest.mark.parametrize("response", [
    plan(task("a"), task("b"), strategy="parallel"),
    command("echo", "a") + command("echo", "b"),
])
def test_an_interrupt_while_work_runs_waits_for_it_and_records_its_end(response: str) -> None:
    hand, work = asked()
    started = [work.send(LlmResponse(response)), work.send(None)]
    assert isinstance(work.send(None), Join)
    assert isinstance(work.throw(KeyboardInterrupt()), Join)
    assert hand.root.cancellation.is_set()  # so work that is running is cancelled, even if no driver has noticed
    keys = [effect.key for effect in started if isinstance(effect, Spawn)]
    assert isinstance(work.send(Completion(keys[1], error=RuntimeError("x"))), Join)
    with pytest.raises(KeyboardInterrupt):
        work.send(Completion(keys[0], error=RuntimeError("y")))
    types = [event.type for event in hand.flush()]
    assert [one for one in types if one.endswith("_error")][:2] in (["task_error"] * 2, ["skill_error"] * 2)
    assert ("workflow_error" in types) == ("plan" in response)
    assert types[-1] == "result"


@pytest.mark.parametrize("at", [0, 1])
def test_a_call_interrupted_while_it_is_started_is_not_run_and_earlier_ones_are_waited_for(at: int) -> None:
    hand, work = asked()
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
def test_if_a_task_cannot_be_started_no_later_one_is(error: BaseException) -> None:
    hand, work = asked()
    assert isinstance(work.send(LlmResponse(plan(task("a"), task("b")))), Spawn)
    with pytest.raises(type(error)):
        work.throw(error)
    ends = [event.data for event in hand.flush() if event.type == "task_error"]
    assert [(one["task_id"], one["error"], one["not_run"]) for one in ends] == [("a", "the run was stopped", True)]


@pytest.mark.parametrize("response", ["done", plan(task("a")), command("echo", "a") * 2])
def test_a_closed_loop_requests_no_more_effects(response: str) -> None:
    hand, work = asked()
    if response != "done":
        work.send(LlmResponse(response))
        work.send(None)
    count = len(hand.events)
    work.close()  # a generator that asked for more would raise here
    assert list(work) == []
    assert len(hand.events) == count


# ------------------------------------------------------------------------------------- sub-runs, and what is kept


def test_sub_runs_have_one_media_store_whatever_their_context() -> None:
    class Apart(Context):
        def child(self, task_id: str | None) -> Apart:
            child = super().child(task_id)
            child.media_store = kernai.MediaStore()
            return child

    picture = Media.from_bytes(b"p", mime_type="image/png")
    draw = kernai.Skill("draw", execute=lambda: picture)
    context = Apart()
    turns = (plan(task("a")), command("draw"), "A!", "done")
    ByHand(Agent(instructions="", skills=[draw]), provider=MockProvider(*turns), context=context).run("Go.")
    assert list(context.media_store) == [picture]
