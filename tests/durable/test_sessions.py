"""Conversations that continue or fork, and runs that continue after a limit or a failure."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import count, cycle
from time import sleep
from typing import Any

import pytest

import kernai
from kernai import Agent, Limits, LlmResponse, Media, MemoryStore, Message, MockProvider, Model, ProviderError, Skill
from kernai.recording.recorder import expand
from tests.durable.durable_cases import EACH_WAY, PNG, WAYS, CancelAt, Stored, Way, command, payer, provider, share_of
from tests.loop.loop_cases import plan, task

COUNTED = Model("counted", ("text", "vision"), cost=(1.0, 1.0))


def echo(messages: Sequence[Message], _: Model) -> str:
    """Calls a skill once for each thing the user says, and answers with how much was said."""
    last = messages[-1].text
    if "<block" not in last:
        return command("note", last)
    return f"<final>{len(messages)} messages, last {messages[-3].text[-1:]}</final>"


def talker(notes: list[str], **changes: Any) -> Agent:
    def note(text: str) -> str:
        notes.append(text)
        return "noted"

    return Agent(**{"instructions": "x", "model": COUNTED, "skills": [Skill("note", execute=note)], **changes})


class Talk(Stored):
    """A session with a `talker`, and its notes."""

    def __init__(self, way: Way, **changes: Any) -> None:
        self.notes: list[str] = []
        count = {"prompt_tokens": 3, "completion_tokens": 2}
        model = MockProvider().on_call(echo).with_token_counter(lambda messages, content: count)
        super().__init__(way, talker(self.notes, **changes), model)

    def say(self, number: int, **options: Any) -> kernai.Result[Any]:
        return self.resume(input=f"say {number}", **options) if number else self.execute("say 0", **options)


# ---------------------------------------------------------------------------------------------------------- sessions


@EACH_WAY
def test_a_session_is_one_conversation_whose_turns_are_added_one_by_one(way: Way) -> None:
    talk = Talk(way)
    result = talk.say(0)
    for turn in range(1, 6):
        before, result = result, talk.say(turn)
        assert result.ok
        assert result.messages[:len(before.messages)] == before.messages
        assert result.messages[len(before.messages)].text == f"say {turn}"
        assert result.usage.model_calls == before.usage.model_calls + 2 == 2 * (turn + 1)
        assert talk.resume() == result, "finished: as it was"
    for wrong in ([5], 5, [b"x"]):
        with pytest.raises(TypeError, match="input"):
            talk.resume(input=wrong)  # it changes nothing
    assert talk.notes == [f"say {turn}" for turn in range(6)]
    assert talk.replay() == result
    assert [one.status for one in talk.store.runs()] == ["final"]


def test_each_turn_of_a_session_stores_only_what_is_new() -> None:
    talk = Talk(WAYS[0], instructions="x0")
    result = talk.say(0)
    for turn in range(1, 9):
        talk.agent = talk.agent.replace(instructions=f"x{turn // 4}")
        result = talk.say(turn)
    lengths = [len(one) for one in talk.data("messages_sent")]
    assert lengths == [2, *[2] * 7, 3, *[2] * 7, 3, 2], "a system message where it changed"
    whole = [one["data"] for one in expand(talk.load(), "talk") if one["event"] == "messages_sent"][-1]
    assert whole == [{"role": "system", "content": whole[0]["content"]}, *(one.as_sent() for one in result.messages[:-1])]
    assert talk.resume() == result


@pytest.mark.slow
@EACH_WAY
def test_a_session_cut_off_after_any_event_continues_to_the_same_end(way: Way) -> None:
    talk = Talk(way)
    result = [talk.say(turn) for turn in range(3)][-1]
    entries = talk.load()
    for length in share_of(way, range(1, len(entries) + 1)):
        part = talk.cut(length)
        again = part.resume(in_flight="retry")
        assert again.ok
        for turn in range(1 + sum(one["event"] == "input_added" for one in entries[:length]), 3):
            again = part.resume(input=f"say {turn}")
        assert (again.text, again.messages, again.usage) == (result.text, result.messages, result.usage)
        assert part.replay() == again


@EACH_WAY
def test_media_that_are_added_later_are_kept_with_the_run_and_no_others(way: Way) -> None:
    talk, picture = Talk(way), Media.from_bytes(PNG, mime_type="image/png")

    def with_foreign() -> kernai.Context:
        context = kernai.Context()
        context.media_store.put(Media.from_bytes(b"foreign", mime_type="image/png"))
        return context

    talk.say(0, context=with_foreign())
    assert talk.store.load_media("r") == [], "another run's"
    talk.resume(input=["say ", picture], context=with_foreign())
    assert [one.id for one in talk.store.load_media("r")] == [picture.id]
    assert [one.read_bytes() for message in talk.say(2).messages for one in message.media] == [PNG]


@EACH_WAY
def test_after_a_failure_or_a_limit_the_user_may_say_something_else(way: Way) -> None:
    failing = [MockProvider().on_call(echo).fail_on_step(step, ProviderError("overloaded")) for step in (0, 1)]
    for stopped in {"provider": failing[0]}, {"provider": failing[1]}, {"limits": Limits(max_calls=1)}:
        talk = Talk(way)
        assert not talk.say(0, **stopped).ok
        result = talk.say(1)
        assert result.ok
        assert [message.text for message in result.messages if message.text.startswith("say")] == ["say 0", "say 1"]
        assert talk.notes[-1] == "say 1"
        assert talk.replay() == result


@pytest.mark.parametrize("place", ["CallSkill", "CallModel", "approve"])
@pytest.mark.parametrize("error", [SystemExit(2), KeyboardInterrupt()], ids=repr)
def test_a_session_continues_after_an_exit_or_ctrl_c(place: str, error: BaseException) -> None:
    def leaving(effect: Any) -> Any:
        if type(effect).__name__ == place:
            approve(effect)
        return (yield effect)

    def approve(call: Any) -> bool:
        if not leaves.is_set():
            leaves.set()
            raise error
        return True

    leaves, skills = threading.Event(), [Skill("look", execute=str, inputs={})]
    it = Agent(instructions="x", skills=skills, middleware=[leaving], approve=approve if place == "approve" else None)
    run = Stored(WAYS[0], it, MockProvider(command("look"), "<final>done</final>"))
    with pytest.raises(type(error)):
        run.execute()
    result = run.resume(input="more")
    read = [one.text for one in result.messages if one.role == "user"]
    is_known = place == "CallSkill" or (place == "approve" and isinstance(error, SystemExit))  # the outcome of the call
    assert (result.ok, read[0], read.index("more")) == (True, "go", 1 + is_known)
    assert run.replay() == result


TASKS = plan(task("a"), task("b"), task("c", depends_on=["a"]), strategy="parallel")


@pytest.mark.parametrize("work", [TASKS, command("end") + command("look")], ids=["tasks", "an end beside a call"])
@EACH_WAY
def test_a_run_interrupted_at_any_event_of_parallel_work_replays_and_continues_with_or_without_another_input(way: Way, work: str) -> None:
    def end() -> None:
        raise kernai.Stop("guardrail" if way.listens else "final", "x")

    skills = [Skill("end", execute=end), Skill("look", execute=lambda: sleep(0.01))]
    model = MockProvider().on_call(lambda messages, _: work if messages[-1].text == "go" else f"<final>{messages[-1].text[:4]}</final>")
    for at in count(way.listens, 2):
        interrupted, run = CancelAt(at), Stored(way, Agent(instructions="x", skills=skills, parallel_skills=True), model)

        def interrupt(event: kernai.Event, interrupted: CancelAt = interrupted, error: Any = (KeyboardInterrupt, SystemExit)[at // 2 % 2]) -> None:
            interrupted(event)
            if interrupted.is_set():
                raise error

        with suppress(KeyboardInterrupt, SystemExit):
            assert run.execute(on_event=interrupt).stop_reason in ("final", "guardrail")
            return
        assert run.replay() is None or run.replay().text == run.load()[-1]["data"]["text"]
        assert run.cut(len(run.load())).resume(in_flight="skip").stop_reason in ("final", "guardrail")
        result = run.resume(input="more")
        assert (result.text, run.replay()) == ("more", result)


@EACH_WAY
def test_an_input_that_is_stopped_at_once_ends_with_the_reason_and_the_session_continues(way: Way) -> None:
    stops: dict[str, dict[str, Any]] = {"cancelled": {"cancel": CancelAt(0)}, "timeout": {"limits": Limits(timeout=0)}}
    for reason, stopped in stops.items():
        talk = Talk(way)
        talk.say(0)
        result = talk.say(1, **stopped)
        assert (result.stop_reason, talk.notes, result.error is not None) == (reason, ["say 0"], True)
        assert talk.resume().ok, "the input is still to be answered"
        assert talk.notes == ["say 0", "say 1"]


@EACH_WAY
def test_a_plan_that_is_cancelled_before_it_begins_keeps_the_input_that_it_was_given(way: Way) -> None:
    store, cancelled, given = MemoryStore(), CancelAt(0), {"goal": "the goal", "tasks": [{"id": "a", "input": "one"}]}
    options: dict[str, Any] = {"store": store, "provider": MockProvider("<final>well</final>")}
    assert kernai.execute_plan(talker([]), given, run_id="r", cancel=cancelled, **options).stop_reason == "cancelled"
    result = way.resume(talker([]), "r", input="and now?", **options)
    assert [one.text for one in result.messages] == ["the goal", "and now?", "<final>well</final>"]
    assert kernai.replay(talker([]), "r", store=store).result == result
    assert kernai.execute_plan(talker([]), given, run_id="closed", cancel=cancelled, **options).text is None
    store.close("closed", "not needed")
    assert [one.text for one in way.resume(talker([]), "closed", **options).messages] == ["the goal"]


def test_pending_calls_must_be_decided_before_the_next_input() -> None:
    paid: list[int] = []
    run = Stored(WAYS[0], payer(paid), {"go": [command("pay"), command("pay")]})
    run.execute()
    with pytest.raises(ValueError, match=r"input: the run waits for a decision on 0\.0"):
        run.resume(input="and now?")
    for limits, reason in ((None, "interrupt"), (Limits(max_calls=2), "max_calls")):
        result = run.resume(input="and now?", approvals={f"{len(paid)}.0": True}, limits=limits)
        assert (result.stop_reason, "and now?" in str(result.messages)) == (reason, False)
        assert "the new input was not added to the conversation" in str(result.to_dict()["error"])
    assert paid == [1, 1]


# --------------------------------------------------------------------------------------------------------------- fork


@EACH_WAY
def test_a_fork_is_the_same_run_up_to_a_step_and_another_one_from_there(way: Way) -> None:
    run = Talk(way)
    whole = [run.say(0), run.say(1)][-1]
    before = run.load()
    for step in range(whole.steps):
        name = f"r-{step}"
        assert kernai.fork(run.store, "r", at_step=step, run_id=name) == name
        result = way.resume(run.agent, name, store=run.store, provider=MockProvider("<final>another way</final>"))
        assert (result.text, result.run_id, result.steps) == ("another way", name, step + 1)
        start = run.store.load(name)[0]
        assert start["run_id"] == start["data"]["run_id"] == name
        assert start["data"]["metadata"]["forked_from"] == {"run_id": "r", "at_step": step}
        assert kernai.replay(run.agent, name, store=run.store).result == result
    assert (run.load(), run.notes) == (before, ["say 0", "say 1"])


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


@pytest.mark.parametrize("given, error, message", [
    *[({"at_step": step}, ValueError, r"at_step must be a step in which run 'r' called the model \(0, 1\)")
      for step in (2, -1, None, "0")],
    ({"source": "x"}, kernai.KernaiError, "no run 'x'"), ({"store": "runs.db"}, TypeError, "store must be a store"),
    ({"run_id": "r"}, kernai.RunConflictError, "run 'r' has"), ({"run_id": "../r"}, ValueError, "run_id"),
])
def test_forking_a_run_or_step_that_does_not_exist_is_an_error(given: Any, error: type[Exception], message: str) -> None:
    talk = Talk(WAYS[0])
    talk.say(0)
    with pytest.raises(error, match=message):
        kernai.fork(**{"store": talk.store, "source": "r", "at_step": 0, "run_id": "s", **given})
    assert [one.run_id for one in talk.store.runs()] == ["r"]


def test_a_paused_run_takes_decisions_and_an_input_at_once_and_continues_from_there() -> None:
    paid: list[int] = []
    run = Stored(WAYS[0], payer(paid), {"go": [command("pay"), *["<final>ok</final>"] * 3]})
    assert run.execute().stop_reason == "interrupt"
    for given in {"input": "and?", "approvals": {"0.0": True}}, {"input": "more"}:
        assert run.resume(**given).ok
        assert run.replay() is not None
    assert paid == [1]


def test_work_that_a_turn_left_undone_in_a_task_stays_undone_in_later_turns() -> None:
    answers: dict[str, str | Exception] = {"one": plan(task("a", "task a")), "task a": command("look"), "two": ProviderError("vendor down")}
    looked, stop = list[int](), threading.Event()

    def model(messages: Sequence[Message], model: Model) -> str:
        answer = answers.pop(messages[-1].text, "<final>done</final>")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def stop_in_the_task(event: kernai.Event) -> None:
        if event.type == "skill_execute" and event.scope:
            stop.set()

    it = Agent(instructions="x", skills=[Skill("look", execute=lambda: looked.append(1), inputs={})])
    run = Stored(WAYS[0], it, MockProvider().on_call(model))
    assert run.execute("one", cancel=stop, on_event=stop_in_the_task).stop_reason == "cancelled"
    assert run.resume(input="two").stop_reason == "error"
    assert (run.resume().ok, run.resume(input="three").ok, run.replay() is not None) == (True, True, True)
    assert not looked


# ------------------------------------------------------------------------------------------- after limits and failures


THREE = {"go": [command("note", "a"), command("note", "b"), command("note", "c"), "<final>done</final>"]}
#: what stops a run, what it is resumed with, and the stop reason
STOPPED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "calls": ({"limits": Limits(max_calls=3)}, {}, "max_calls"),
    "tokens": ({"limits": Limits(max_tokens=6)}, {"limits": Limits(max_tokens=600)}, "max_tokens"),
    "cost": ({"limits": Limits(max_cost=0.000006)}, {"limits": Limits(max_cost=1)}, "max_cost"),
    "time": ({"limits": Limits(timeout=0.000001)}, {"limits": Limits(timeout=100)}, "timeout"),
    "steps": ({"max_steps": 2}, {}, "max_steps"),
    **{f"the provider in step {step}": ({"failing": step}, {}, "error") for step in range(4)},
}


def three(way: Way, first: dict[str, Any]) -> tuple[Talk, dict[str, Any]]:
    """Return a run of three calls, and the options with which it is stopped."""
    run, options = Talk(way, max_steps=first.get("max_steps", 9)), {**first, "provider": provider(THREE)}
    options.pop("max_steps", None)
    if (failing := options.pop("failing", None)) is not None:
        options["provider"].fail_on_step(failing, ProviderError("overloaded"))
    run.model = provider(THREE)
    return run, options


@pytest.mark.parametrize("stopped", STOPPED)
@EACH_WAY
def test_a_run_that_was_stopped_continues_once_nothing_stops_it(stopped: str, way: Way) -> None:
    first, then, reason = STOPPED[stopped]
    run, options = three(way, first)
    result = run.execute(**options)
    assert result.stop_reason == reason
    entries = run.load()
    if reason not in ("timeout", "error"):
        assert run.resume(**options).stop_reason == reason, "the same holds again: what was used before counts"
    assert run.load()[:len(entries)] == entries
    run.agent = run.agent.replace(max_steps=9)
    last = run.resume(**then)
    assert (last.ok, last.steps, run.notes) == (True, 4, ["a", "b", "c"])
    whole = three(way, {})[0].execute()
    assert last.messages == whole.messages
    if reason == "error":
        assert str(result.error) == "overloaded"
        assert len(run.data("model_restarted")) == 1
    else:
        assert last.usage == whole.usage
    assert (run.replay(), run.notes) == (last, ["a", "b", "c"])


def stepper(most: int) -> Agent[Any]:
    options: dict[str, Any] = {"instructions": "x", "max_steps": most, "name": "clerk"}
    clerk = payer([], Skill("note", execute=lambda: "noted"), **options)
    return payer([], Skill("note", execute=lambda: "noted"), clerk.as_skill("clerk", "Counts."), **options)


NOTES = [command("note")] * 2
#: the script; and the segments of the run: the `max_steps` of its agent, the options of the resume, how it ends
SEGMENTS: dict[str, tuple[list[str], list[tuple[int, dict[str, Any], str]]]] = {
    "more after the end": ([*NOTES, *NOTES, "<final>1</final>"], [(2, {}, "max_steps"), (4, {}, "max_steps"), (9, {}, "final")]),
    "turns": ([*NOTES, "<final>1</final>", *NOTES, *NOTES], [
        (2, {}, "max_steps"), (1, {"input": "a"}, "final"), (3, {"input": "b"}, "max_steps"), (1, {"input": "c"}, "max_steps")]),
    "turns after one that a limit ended": ([*NOTES, *NOTES, *NOTES], [
        (9, {"limits": Limits(max_calls=4)}, "max_calls"), (2, {"input": "a"}, "max_steps"), (1, {"input": "b"}, "max_steps")]),
    "fewer in the middle": ([*NOTES, command("pay"), *NOTES], [(9, {}, "interrupt"), (1, {"approvals": {"2.0": True}}, "max_steps")]),
    **{f"in {where}": ([said, "<final>1</final>"], [(3, {}, "interrupt"), (6, {"approvals": {f"{scope}/2.0": True}}, "final"), (3, {"input": "a"}, "final")])
       for where, scope, said in (("a sub-agent", "0.0", command("clerk", "sub")), ("a task", "0.a", plan(task("a", "sub"))))},
}


@pytest.mark.parametrize("case, way", [*zip(SEGMENTS, cycle(WAYS), strict=False)])
def test_steps_on_record_are_those_of_the_agents_that_made_them(case: str, way: Way) -> None:
    script, segments = SEGMENTS[case]
    run = Stored(way, stepper(1), {"go": script, "sub": [*NOTES, command("pay"), *NOTES, "<final>1</final>"]})
    agents, accept = [stepper(most) for most, *_ in segments], ["max_steps", "clerk/max_steps"]
    result: Any = None
    for run.agent, (_, options, reason) in zip(agents, segments, strict=True):
        result = (run.resume if result else run.execute)(**options)
        assert (result.stop_reason, run.replay().messages) == (reason, result.messages)
        sent = [one["event"] for one in run.load() if not one.get("scope")][::-1]
        used = sent[:sent.index("input_added") if "input_added" in sent else None].count("messages_sent")
        assert reason != "max_steps" or f"used all its {used} steps" in str(result.error)
    for run.agent in [*agents, stepper(1), stepper(50)]:
        assert run.replay(accept=accept).messages == result.messages
        assert run.cut(len(run.load())).resume(input="more").messages[:len(result.messages)] == result.messages
    for part in run.cuts():
        for part.agent in (stepper(1), stepper(50)):
            assert part.resume(in_flight="retry").pending or part.replay(accept=accept)
    with pytest.raises(kernai.ReplayDivergenceError, match="messages_sent"):
        run.cut(run.index("run_resumed"), stepper(1)).replay()


def test_a_timeout_counts_each_segment_and_not_the_time_between() -> None:
    run, _ = three(WAYS[0], {})
    run.execute(limits=Limits(max_calls=3))
    entries = run.load()

    def stopped(timeout: int, *seconds: str) -> kernai.Result[Any]:
        """Continue the run after its entries were written at these times, each at an equal share of them."""
        times = [f"2001-01-01T{seconds[at * len(seconds) // len(entries)]}.000Z" for at in range(len(entries))]
        run.store = MemoryStore()
        run.store.append("r", 0, [{**one, "timestamp": at} for one, at in zip(entries, times, strict=True)], [])
        return run.resume(limits=Limits(timeout=timeout))

    assert stopped(60, "00:00:00").ok
    spent = stopped(60, "01:00:00", "01:01:30")
    assert (spent.stop_reason, str(spent.error)) == ("timeout", "timeout=60 s has passed"), "the whole limit is named"
    assert stopped(120, "01:00:00", "01:01:30").ok
    assert stopped(60, "01:00:00", "01:01:30", "00:00:00").stop_reason == "timeout", "the clock was set back"


class AsyncStore(MemoryStore):
    async def append(self, *given: Any) -> None: ...  # type: ignore[override]  # the mistake: nobody awaits it


@pytest.mark.parametrize("run_id, options, error, message", [
    ("x", {"store": MemoryStore()}, kernai.KernaiError, "the store has no run 'x'"),
    ("x", {"store": "runs.db"}, TypeError, "store must be a store"),
    ("x", {"store": AsyncStore()}, TypeError, r"AsyncStore\.append is an async function"),
    ("x", {}, TypeError, "store must be a store, such as .*, got NoneType"),
    ("../x", {"store": MemoryStore()}, ValueError, "run_id must be"),
    ("x", {"store": MemoryStore(), "history": []}, TypeError, "unknown option 'history'; a run that is resumed"),
])
def test_resuming_a_run_that_does_not_exist_is_a_clear_error(
    run_id: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        kernai.resume(talker([]), run_id, **options)


@EACH_WAY
def test_an_unfinished_answer_does_not_begin_the_answer_to_the_next_question(way: Way) -> None:
    class Cut(kernai.Provider):
        def call(self, messages: Sequence[Message], *_: Any) -> LlmResponse:
            asked = messages[-1].text
            return LlmResponse("4") if asked == "2 + 2?" else LlmResponse("Dear Ann, I ", finish_reason="length")

    run = Stored(way, Agent(instructions="x", on_truncated="continue"), Cut())
    assert not run.execute("a letter", limits=Limits(max_calls=1)).ok
    assert (run.resume(input="2 + 2?").text, run.replay().text) == ("4", "4")


@EACH_WAY
def test_an_answer_that_only_a_resume_accepts_is_replayed_with_its_options(way: Way) -> None:
    fails = Agent(instructions="x", on_truncated="fail")
    run = Stored(way, fails, MockProvider().on_call(lambda *_: LlmResponse("one", finish_reason="length")))
    assert run.execute().stop_reason == "error"
    run.agent = fails.replace(on_truncated="accept")
    assert run.resume().text == "one"
    run.agent = fails
    assert run.replay().text == "one"


@EACH_WAY
def test_asking_the_same_question_again_is_not_a_loop(way: Way) -> None:
    talk, limits = Talk(way), Limits(repeated_calls=2)
    assert talk.execute("say it", limits=limits).ok
    for _ in range(3):
        assert talk.resume(input="say it", limits=limits).ok


@EACH_WAY
def test_a_recorder_that_a_resume_without_news_is_given_still_holds_one_run(way: Way) -> None:
    recorder, seen = kernai.Recorder(), list[str]()
    run = Stored(way, payer([]), {"go": [command("pay"), "<final>done</final>"]})
    assert run.execute(recorder=recorder).stop_reason == "interrupt"
    assert run.resume(recorder=recorder).pending
    assert run.resume(approvals={"0.0": True}, recorder=recorder).ok
    assert run.resume(on_event=lambda event: seen.append(event.type), recorder=recorder).ok
    assert seen == ["result"]
    assert len(recorder.for_event("result")) == 2
    assert kernai.replay(run.agent, recording=recorder.to_list()).result == run.resume()


@EACH_WAY
def test_a_finished_plan_and_its_history_are_the_messages_of_a_resume(way: Way) -> None:
    store, given = MemoryStore(), {"tasks": [{"id": "a", "input": "one"}]}
    options: dict[str, Any] = {"store": store, "provider": provider({"one": ["<final>1</final>"]})}
    ran = kernai.execute_plan(talker([]), given, history=[Message("user", "hi"), Message("assistant", "ho")], run_id="r", **options)
    assert len(ran.messages) == 5
    assert way.resume(talker([]), "r", **options).messages == ran.messages


@pytest.mark.parametrize("repair, later", [("json", True), (True, False), (False, True), (True, "json")])
def test_each_typed_answer_is_read_again_as_it_was_read(repair: Any, later: Any) -> None:
    with kernai.isolated():
        kernai.configure(repair=repair)
        run = Stored(WAYS[0], Agent(instructions="x", output=int, output_retries=0), {"go": ['<final>"5"</final>'] * 2})
        assert run.execute().ok is (repair is True)
        kernai.configure(repair=later)
        assert run.resume(input="again").ok is (later is True)
        kernai.configure(repair=repair)
        assert run.replay().output == (5 if later is True else None)
        assert later is not True or run.resume().output == 5


@pytest.mark.parametrize("tags, warned", [({"order": "43"}, False), (None, False), (["order 43"], True), ("order", True)])
def test_a_warning_is_logged_about_tags_that_cannot_be_searched_for(tags: Any, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    kernai.execute(Agent(instructions="", provider=MockProvider("done")), "Go.", store=store, run_id="r", metadata={"tags": tags})
    info = store.info("r")
    assert info is not None
    assert info.tags == (tags if isinstance(tags, dict) else {})
    assert any("event=tags.ignored run_id=r" in line for line in caplog.messages) == warned
