"""Conversations that continue or fork, and runs that continue after a limit or a failure."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import pytest

import kernai
from kernai import (
    Agent,
    Context,
    Event,
    KernaiError,
    Limits,
    LlmResponse,
    Media,
    MemoryStore,
    Message,
    MockProvider,
    Model,
    Provider,
    ProviderError,
    Recorder,
    RunConflictError,
    Skill,
)
from kernai.recording.recorder import expand
from tests.durable.durable_cases import (
    EACH_WAY,
    PNG,
    Performed,
    Way,
    agent,
    command,
    cut,
    payer,
    provider,
    replayed,
    share_of,
)

COUNTED = Model("counted", ("text", "vision"), cost=(1.0, 1.0))


def echo(messages: Sequence[Message], model: Model) -> str:
    """Calls a skill once for each thing the user says, and answers with how much was said."""
    del model
    last = messages[-1].text
    if "<block" not in last:
        return command("note", last)
    return f"<final>{len(messages)} messages, last {messages[-3].text[-1:]}</final>"


def talker(notes: list[str], **changes: Any) -> Agent:
    def note(text: str) -> str:
        notes.append(text)
        return "noted"

    return Agent(**{"instructions": "x", "model": COUNTED, "skills": [Skill("note", execute=note)], **changes})


def talk(**options: Any) -> dict[str, Any]:
    count = {"prompt_tokens": 3, "completion_tokens": 2}
    return {"provider": MockProvider().on_call(echo).with_token_counter(lambda messages, content: count), **options}


# ---------------------------------------------------------------------------------------------------------- sessions


@EACH_WAY
def test_a_session_is_one_conversation_whose_turns_are_added_one_by_one(way: Way) -> None:
    store, notes = MemoryStore(), list[str]()
    options = talk(store=store)
    result = way.execute(talker(notes), "say 0", run_id="r", **options)
    for turn in range(1, 6):
        before = result
        result = way.resume(talker(notes), "r", input=f"say {turn}", **options)
        assert result.ok
        assert result.messages[:len(before.messages)] == before.messages
        assert result.messages[len(before.messages)].text == f"say {turn}"
        assert result.usage.model_calls == before.usage.model_calls + 2 == 2 * (turn + 1)
        assert way.resume(talker(notes), "r", **options) == result, "finished: as it was"
    assert notes == [f"say {turn}" for turn in range(6)]
    assert kernai.replay(talker([]), "r", store=store).result == result
    assert [one.status for one in store.runs()] == ["final"]


def test_each_turn_of_a_session_stores_only_what_is_new() -> None:
    store, options = MemoryStore(), talk()
    result = kernai.execute(talker([], instructions="x0"), "say 0", store=store, run_id="r", **options)
    for turn in range(1, 9):
        result = kernai.resume(talker([], instructions=f"x{turn // 4}"), "r", store=store, input=f"say {turn}", **options)
    sent = [one for one in store.load("r") if one["event"] == "messages_sent"]
    assert [len(one["data"]) for one in sent] == [2, *[2] * 7, 3, *[2] * 7, 3, 2], "a system message where it changed"
    whole = [one["data"] for one in expand(store.load("r")) if one["event"] == "messages_sent"]
    assert whole[-1] == [{"role": "system", "content": whole[-1][0]["content"]}, *(one.as_sent() for one in result.messages[:-1])]
    assert kernai.resume(talker([]), "r", store=store) == result


@pytest.mark.slow
@EACH_WAY
def test_a_session_cut_off_after_any_event_continues_to_the_same_end(way: Way) -> None:
    store, notes = MemoryStore(), list[str]()
    options = talk()
    way.execute(talker(notes), "say 0", store=store, run_id="r", **options)
    way.resume(talker(notes), "r", store=store, input="say 1", **options)
    result = way.resume(talker(notes), "r", store=store, input="say 2", **options)
    entries = store.load("r")
    for length in share_of(way, range(1, len(entries) + 1)):
        part = cut(store, length)
        again = way.resume(talker([]), "r", store=part, in_flight="retry", **options)
        assert again.ok
        for turn in range(1 + sum(one["event"] == "input_added" for one in entries[:length]), 3):
            again = way.resume(talker([]), "r", store=part, input=f"say {turn}", **options)
        assert (again.text, again.messages, again.usage) == (result.text, result.messages, result.usage)
        assert kernai.replay(talker([]), "r", store=part).result == again


@EACH_WAY
def test_media_that_are_added_later_are_kept_with_the_run_and_no_others(way: Way) -> None:
    store = MemoryStore()
    foreign, picture = Media.from_bytes(b"foreign", mime_type="image/png"), Media.from_bytes(PNG, mime_type="image/png")
    context = Context()
    context.media_store.put(foreign)
    options = talk(store=store)
    way.execute(talker([]), "say 0", run_id="r", context=context, **options)
    assert store.load_media("r") == [], "another run's"
    context = Context()
    context.media_store.put(foreign)
    way.resume(talker([]), "r", input=["say ", picture], context=context, **options)
    assert [one.id for one in store.load_media("r")] == [picture.id]
    again = way.resume(talker([]), "r", input="say 2", **options)
    assert [one.read_bytes() for message in again.messages for one in message.media] == [PNG]


@EACH_WAY
def test_after_a_failure_or_a_limit_the_user_may_say_something_else(way: Way) -> None:
    failing = [MockProvider().on_call(echo).fail_on_step(step, ProviderError("overloaded")) for step in (0, 1)]
    stops: list[dict[str, Any]] = [{"provider": failing[0]}, {"provider": failing[1]}, {"limits": Limits(max_calls=1)}]
    for stopped in stops:
        store, notes = MemoryStore(), list[str]()
        first = way.execute(talker(notes), "say 0", run_id="r", **{**talk(store=store), **stopped})
        assert not first.ok
        result = way.resume(talker(notes), "r", input="say 1", **talk(store=store))
        assert result.ok
        assert [message.text for message in result.messages if message.text.startswith("say")] == ["say 0", "say 1"]
        assert notes[-1] == "say 1"
        assert kernai.replay(talker([]), "r", store=store).result == result


@pytest.mark.parametrize("given", [[5], 5, [b"x"]])
def test_an_invalid_input_is_an_error_and_changes_nothing(given: Any) -> None:
    store = MemoryStore()
    kernai.execute(talker([]), "say 0", run_id="r", **talk(store=store))
    before = store.load("r")
    with pytest.raises(TypeError, match="input"):
        kernai.resume(talker([]), "r", input=given, **talk(store=store))
    assert store.load("r") == before


@EACH_WAY
def test_an_input_that_is_stopped_at_once_ends_with_the_reason_and_the_session_continues(way: Way) -> None:
    cancelled = threading.Event()
    cancelled.set()
    stops: list[tuple[dict[str, Any], str]] = [({"cancel": cancelled}, "cancelled"), ({"limits": Limits(timeout=0)}, "timeout")]
    for stopped, reason in stops:
        store, notes = MemoryStore(), list[str]()
        way.execute(talker(notes), "say 0", run_id="r", **talk(store=store))
        result = way.resume(talker(notes), "r", input="say 1", **stopped, **talk(store=store))
        assert (result.stop_reason, notes) == (reason, ["say 0"])
        assert result.error is not None
        assert way.resume(talker(notes), "r", **talk(store=store)).ok, "the input is still to be answered"
        assert notes == ["say 0", "say 1"]


@EACH_WAY
def test_a_plan_that_is_cancelled_before_it_begins_keeps_the_input_that_it_was_given(way: Way) -> None:
    cancelled = threading.Event()
    cancelled.set()
    store, plan = MemoryStore(), {"goal": "the goal", "tasks": [{"id": "a", "input": "one"}]}
    options: dict[str, Any] = {"store": store, "provider": MockProvider("<final>well</final>")}
    assert kernai.execute_plan(talker([]), plan, run_id="r", cancel=cancelled, **options).stop_reason == "cancelled"
    result = way.resume(talker([]), "r", input="and now?", **options)
    assert [one.text for one in result.messages] == ["the goal", "and now?", "<final>well</final>"]
    assert replayed(talker([]), "r", store=store) == result


def test_pending_calls_must_be_decided_before_the_next_input() -> None:
    store, paid = MemoryStore(), list[int]()
    it = payer(paid)
    options: dict[str, Any] = {"store": store, "provider": provider({"go": [command("pay"), command("pay")]})}
    kernai.execute(it, "go", run_id="r", **options)
    with pytest.raises(ValueError, match=r"input: the run waits for a decision on 0\.0"):
        kernai.resume(it, "r", input="and now?", **options)
    for limits, reason in ((None, "interrupt"), (Limits(max_calls=2), "max_calls")):
        decided = {f"{len(paid)}.0": True}
        result = kernai.resume(it, "r", input="and now?", approvals=decided, limits=limits, **options)
        assert (result.stop_reason, "and now?" in str(result.messages)) == (reason, False)
        assert "the new input was not added to the conversation" in str(result.to_dict()["error"])
    assert paid == [1, 1]


# --------------------------------------------------------------------------------------------------------------- fork


@EACH_WAY
def test_a_fork_is_the_same_run_up_to_a_step_and_another_one_from_there(way: Way) -> None:
    store, performed = MemoryStore(), Performed()
    whole = way.execute(agent(performed), "do everything", provider=provider(), store=store, run_id="r")
    before = store.load("r")
    for step in range(whole.steps):
        name = f"r-{step}"
        assert kernai.fork(store, "r", at_step=step, run_id=name) == name
        again = Performed()
        other = "<final>another way</final>"
        result = way.resume(agent(again), name, store=store, provider=MockProvider(other))
        assert (result.text, result.run_id, result.steps) == ("another way", name, step + 1)
        assert not again.calls
        start = store.load(name)[0]
        assert start["run_id"] == start["data"]["run_id"] == name
        assert start["data"]["metadata"]["forked_from"] == {"run_id": "r", "at_step": step}
        assert kernai.replay(agent(Performed()), name, store=store).result == result
    assert store.load("r") == before


def test_a_fork_has_the_media_up_to_its_step_alone() -> None:
    store = MemoryStore()
    pictures = [Media.from_bytes(PNG + str(at).encode(), mime_type="image/png") for at in range(3)]
    draw = Skill("draw", execute=lambda at: pictures[at], inputs={"at": int})
    it = Agent(instructions="", skills=[draw], model=Model("m", ("text", "vision")))
    model = MockProvider(command("draw", "1"), command("draw", "2"), "<final>done</final>")
    kernai.execute(it, ["like this", pictures[0]], provider=model, store=store, run_id="r")
    for step in range(3):
        kernai.fork(store, "r", at_step=step, run_id=f"f{step}")
        assert store.load_media(f"f{step}") == pictures[:step + 1]


def test_forking_a_run_or_step_that_does_not_exist_is_an_error() -> None:
    store = MemoryStore()
    kernai.execute(talker([]), "say 0", run_id="r", **talk(store=store))
    for step in (2, -1, None, "0", True, [0]):
        with pytest.raises(ValueError, match=r"at_step must be a step in which run 'r' called the model \(0, 1\)"):
            kernai.fork(store, "r", at_step=step, run_id="s")  # type: ignore[arg-type]
    with pytest.raises(KernaiError, match="no run 'x'"):
        kernai.fork(store, "x", at_step=0, run_id="s")
    with pytest.raises(TypeError, match="store must be a store"):
        kernai.fork("runs.db", "r", at_step=0, run_id="s")  # type: ignore[arg-type]
    with pytest.raises(RunConflictError):
        kernai.fork(store, "r", at_step=0, run_id="r")
    with pytest.raises(ValueError, match="run_id"):
        kernai.fork(store, "r", at_step=0, run_id="../r")
    assert [one.run_id for one in store.runs()] == ["r"]


def test_a_paused_run_takes_decisions_and_an_input_at_once_and_continues_from_there() -> None:
    paid: list[int] = []
    it, store = payer(paid), MemoryStore()
    options: dict[str, Any] = {"provider": provider({"go": [command("pay"), *["<final>ok</final>"] * 3]})}
    assert kernai.execute(it, "go", store=store, run_id="r", **options).stop_reason == "interrupt"
    assert kernai.resume(it, "r", store=store, input="and?", approvals={"0.0": True}, **options).ok
    assert kernai.replay(it, "r", store=store).result is not None
    assert kernai.resume(it, "r", store=store, input="more", **options).ok
    assert kernai.replay(it, "r", store=store).result is not None
    assert paid == [1]


def test_work_that_a_turn_left_undone_in_a_task_stays_undone_in_later_turns() -> None:
    plan = '<block type="plan">{"tasks": [{"id": "a", "input": "task a"}]}</block>'
    answers: dict[str, str | Exception] = {"one": plan, "task a": command("look", "1"), "two": ProviderError("vendor down")}
    looked: list[str] = []

    def model(messages: Sequence[Message], model: Model) -> str:
        del model
        answer = answers.pop(messages[-1].text, "<final>done</final>")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def look(it: str) -> str:
        looked.append(it)
        return "seen"

    def stop_in_the_task(event: Event) -> None:
        if event.type == "skill_execute" and event.scope:
            stop.set()

    it = Agent(instructions="x", skills=[Skill("look", execute=look)])
    store, stop = MemoryStore(), threading.Event()
    options: dict[str, Any] = {"provider": MockProvider().on_call(model)}
    first = kernai.execute(it, "one", store=store, run_id="r", cancel=stop, on_event=stop_in_the_task, **options)
    second = kernai.resume(it, "r", store=store, input="two", **options)
    assert (first.stop_reason, second.stop_reason) == ("cancelled", "error")
    assert kernai.resume(it, "r", store=store, **options).ok
    assert kernai.resume(it, "r", store=store, input="three", **options).ok
    assert kernai.replay(it, "r", store=store).result is not None
    assert not looked


# ------------------------------------------------------------------------------------------- after limits and failures


THREE = {"go": [command("note", "a"), command("note", "b"), command("note", "c"), "<final>done</final>"]}
#: what stops a run, what it is resumed with, and the stop reason
STOPPED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "calls": ({"limits": Limits(max_calls=3)}, {}, "max_calls"),
    "tokens": ({"limits": Limits(max_tokens=6)}, {"limits": Limits(max_tokens=600)}, "max_tokens"),
    "cost": ({"limits": Limits(max_cost=0.000006)}, {"limits": Limits(max_cost=1)}, "max_cost"),
    "time": ({"limits": Limits(timeout=0.000001)}, {"limits": Limits(timeout=100)}, "timeout"),
    "steps": ({"max_steps": 2}, {"max_steps": 9}, "max_steps"),
    **{f"the provider in step {step}": ({"failing": step}, {}, "error") for step in range(4)},
}


def three(failing: int | None = None, **options: Any) -> dict[str, Any]:
    model = provider(THREE)
    return {"provider": model if failing is None else model.fail_on_step(failing, ProviderError("overloaded")), **options}


@pytest.mark.parametrize("stopped", STOPPED)
@EACH_WAY
def test_a_run_that_was_stopped_continues_once_nothing_stops_it(stopped: str, way: Way) -> None:
    first, then, reason = deepcopy(STOPPED[stopped])
    store, notes = MemoryStore(), list[str]()
    before, after = (talker(notes, max_steps=given.pop("max_steps", 9)) for given in (first, then))
    result = way.execute(before, "go", run_id="r", **three(store=store, **first))
    assert result.stop_reason == reason
    entries = store.load("r")
    if reason not in ("timeout", "error"):
        again = way.resume(before, "r", **three(store=store, **first))
        assert again.stop_reason == reason, "the same holds again: what was used before counts"
    assert store.load("r")[:len(entries)] == entries
    last = way.resume(after, "r", **three(store=store, **then))
    assert (last.ok, last.steps, notes) == (True, 4, ["a", "b", "c"])
    whole = way.execute(talker([]), "go", **three())
    assert last.messages == whole.messages
    if reason == "error":
        assert str(result.error) == "overloaded"
        assert [one["event"] for one in store.load("r")].count("model_restarted") == 1
    else:
        assert last.usage == whole.usage
    assert kernai.replay(after, "r", store=store).result == last
    assert notes == ["a", "b", "c"]


def test_a_timeout_counts_each_segment_and_not_the_time_between() -> None:
    store = MemoryStore()
    kernai.execute(talker([]), "go", run_id="r", limits=Limits(max_calls=3), **three(store=store))
    entries = store.load("r")
    old = MemoryStore()
    old.append("r", 0, [{**one, "timestamp": "2001-01-01T00:00:00.000Z"} for one in entries], [])
    assert kernai.resume(talker([]), "r", limits=Limits(timeout=60), **three(store=old)).ok
    spent = MemoryStore()
    half = len(entries) // 2
    spent.append("r", 0, [
        {**one, "timestamp": "2001-01-01T00:00:00.000Z" if at < half else "2001-01-01T00:01:30.000Z"}
        for at, one in enumerate(entries)
    ], [])
    copy = cut(spent, len(entries))
    again = kernai.resume(talker([]), "r", limits=Limits(timeout=60), **three(store=spent))
    assert (again.stop_reason, str(again.error)) == ("timeout", "timeout=60 s has passed"), "the whole limit is named"
    assert kernai.resume(talker([]), "r", limits=Limits(timeout=120), **three(store=copy)).ok
    set_back = MemoryStore()  # while the last two entries were written
    rows = spent.load("r")[:len(entries)]
    set_back.append("r", 0, [*rows[:-2], *({**one, "timestamp": "2000-12-31T23:00:00.000Z"} for one in rows[-2:])], [])
    assert kernai.resume(talker([]), "r", limits=Limits(timeout=60), **three(store=set_back)).stop_reason == "timeout"


class AsyncStore(MemoryStore):
    """Its coroutines would never be awaited, and nothing be kept."""

    async def append(self, *given: Any) -> None: ...  # type: ignore[override]  # the mistake


@pytest.mark.parametrize("run_id, options, error, message", [
    ("x", {"store": MemoryStore()}, KernaiError, "the store has no run 'x'"),
    ("x", {"store": "runs.db"}, TypeError, "store must be a store"),
    ("x", {"store": AsyncStore()}, TypeError, r"AsyncStore\.append is an async function"),
    ("x", {}, TypeError, "pass store="),
    ("../x", {"store": MemoryStore()}, ValueError, "run_id must be"),
    ("x", {"store": MemoryStore(), "history": []}, TypeError, "unknown option 'history'"),
])
def test_resuming_a_run_that_does_not_exist_is_a_clear_error(
    run_id: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        kernai.resume(talker([]), run_id, **options)


@EACH_WAY
def test_an_unfinished_answer_does_not_begin_the_answer_to_the_next_question(way: Way) -> None:
    class Cut(Provider):
        def call(self, messages: Sequence[Message], *_: Any) -> LlmResponse:
            asked = messages[-1].text
            return LlmResponse("4") if asked == "2 + 2?" else LlmResponse("Dear Ann, I ", finish_reason="length")

    writer, store = Agent(instructions="x", provider=Cut(), on_truncated="continue"), MemoryStore()
    assert not way.execute(writer, "a letter", store=store, run_id="r", limits=Limits(max_calls=1)).ok
    assert way.resume(writer, "r", store=store, input="2 + 2?").text == "4"
    assert replayed(writer, "r", store=store).text == "4"


@EACH_WAY
def test_asking_the_same_question_again_is_not_a_loop(way: Way) -> None:
    store, limits = MemoryStore(), Limits(repeated_calls=2)
    for turn in range(4):
        asked = way.resume if turn else way.execute
        given = ("r",) if turn else ("say it",)
        options = {"input": "say it"} if turn else {"run_id": "r"}
        assert asked(talker([]), *given, limits=limits, **options, **talk(store=store)).ok


@EACH_WAY
def test_a_recorder_that_a_resume_without_news_is_given_still_holds_one_run(way: Way) -> None:
    recorder, store = Recorder(), MemoryStore()
    options: dict[str, Any] = {"store": store, "recorder": recorder, "provider": provider({"go": [command("pay"), "<final>done</final>"]})}
    it = payer([])
    assert way.execute(it, "go", run_id="r", **options).stop_reason == "interrupt"
    assert way.resume(it, "r", **options).pending
    assert way.resume(it, "r", approvals={"0.0": True}, **options).ok
    seen: list[str] = []
    assert way.resume(it, "r", on_event=lambda event: seen.append(event.type), **options).ok
    assert seen == ["result"]
    assert len(recorder.for_event("result")) == 2
    assert replayed(it, recording=recorder.to_list()).text == "done"


@EACH_WAY
def test_a_finished_plan_and_its_history_are_the_messages_of_a_resume(way: Way) -> None:
    store, plan = MemoryStore(), {"tasks": [{"id": "a", "input": "one"}]}
    options: dict[str, Any] = {"store": store, "provider": provider({"one": ["<final>1</final>"]})}
    ran = kernai.execute_plan(talker([]), plan, history=[Message("user", "hi"), Message("assistant", "ho")], run_id="r", **options)
    assert len(ran.messages) == 5
    assert way.resume(talker([]), "r", **options).messages == ran.messages


@pytest.mark.parametrize("repair", ["json", True, False])
def test_a_typed_answer_is_read_again_as_it_was_read(repair: Any) -> None:
    with kernai.isolated():
        kernai.configure(repair=repair)
        it, store = Agent(instructions="x", output=int, output_retries=0), MemoryStore()
        options: dict[str, Any] = {"store": store, "provider": provider({"go": ['<final>"5"</final>']})}
        ran = kernai.execute(it, "go", run_id="r", **options)
        assert ran.ok is (repair is True)
        if ran.ok:
            assert [kernai.resume(it, "r", **options).output, replayed(it, "r", store=store).output] == [5, 5]


@pytest.mark.parametrize("tags, warned", [({"order": "43"}, False), (None, False), (["order 43"], True), ("order", True)])
def test_a_warning_is_logged_about_tags_that_cannot_be_searched_for(tags: Any, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    kernai.execute(Agent(instructions="", provider=MockProvider("done")), "Go.", store=store, run_id="r", metadata={"tags": tags})
    info = store.info("r")
    assert info is not None
    assert info.tags == (tags if isinstance(tags, dict) else {})
    assert any("event=tags.ignored run_id=r" in line for line in caplog.messages) == warned
