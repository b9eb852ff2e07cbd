"""A run that was cut off anywhere continues as if nothing had happened, and its usage is counted across every resume.

Everything is rebuilt for each resume (agent, skills, provider, context), as in a new process.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import cycle, islice
from typing import Any, NamedTuple

import pytest

import kernai
from kernai import Agent, Limits, MemoryStore, Message, MockProvider, Protocol, ProviderError, Skill, Task, outside
from kernai.durable.history import History
from kernai.durable.recorded_run import RecordedRun
from kernai.durable.store import Entry
from kernai.events import CallEndedRow, MessagesSentRow, Row
from kernai.jsonio.json_data import dumps
from kernai.middleware import retry
from kernai.recording.recorder import Shortening
from tests.durable.durable_cases import (
    AT_ONCE,
    EACH_WAY,
    WAYS,
    Appends,
    CancelAt,
    Performed,
    Stored,
    Way,
    agent,
    command,
    cut,
    payer,
    provider,
)


class Whole(NamedTuple):
    store: MemoryStore
    result: kernai.Result
    entries: list[Entry]
    facts: dict[str, list[Any]]


@pytest.fixture(scope="module")
def whole() -> Whole:
    store = MemoryStore()
    result = kernai.execute(agent(Performed()), "do everything", provider=provider(), store=store, run_id="r")
    assert result.ok
    entries = store.load("r")
    return Whole(store, result, entries, facts_of(RecordedRun("r", entries)))


def facts_of(run: RecordedRun) -> dict[str, list[Any]]:
    """The loop's events by scope, without times and without what a resume left out."""
    scopes: dict[str, list[Any]] = {}
    for scope, events in run.scopes.items():
        scopes[scope] = [(one.row.type, one.step, dumps(_timeless(one.row))) for one in events]
    return {scope: sorted(events) for scope, events in scopes.items()}  # concurrent work ends in any order


def _timeless(row: Row) -> Any:
    data = row.fields()
    if isinstance(row, MessagesSentRow):
        return None  # each resume records all messages once; the result's messages show whether they are the same
    ignored = ("duration_ms", "latency_ms", "usage")  # the usage of failed calls is billed as well
    return {k: v for k, v in data.items() if k not in ignored} if isinstance(data, dict) else data


def outcomes(rows: Iterable[Row]) -> Counter[str]:
    """The calls with a known outcome, by idempotency key."""
    return Counter(f"r:{row.call_id}" for row in rows if isinstance(row, CallEndedRow) and not row.is_broken_off)


def check_resumed(way: Way, store: kernai.Store, whole: Whole, **options: Any) -> Performed:
    """Resumes with new objects, and checks that this gives the same run as without an interruption."""
    before = outcomes(one.row for rows in RecordedRun("r", store.load("r")).scopes.values() for one in rows)
    performed = Performed()
    result = way.resume(agent(performed), "r", store=store, provider=provider(), in_flight="retry", **options)
    assert (result.text, result.stop_reason, result.steps) == (whole.result.text, "final", whole.result.steps)
    assert result.messages == whole.result.messages
    recorded = RecordedRun("r", store.load("r"))
    used = sum((one for calls in History.whole(recorded).wasted.values() for one in calls), whole.result.usage)
    assert (result.usage.total_tokens, result.usage.model_calls) == (used.total_tokens, used.model_calls)
    assert result.usage.cost == pytest.approx(used.cost)
    assert {media.id: media.read_bytes() for message in result.messages for media in message.media if media.is_bytes} != {}
    assert facts_of(recorded) == whole.facts
    assert not performed.calls.keys() & before.keys(), "an outcome that is on record was performed again"
    if not way.listens:  # a callback changes nothing on record
        kernai.replay(agent(Performed()), "r", store=store)
    return performed


def test_the_long_run_has_every_kind_of_event(whole: Whole) -> None:
    kinds = Counter(entry["event"] for entry in whole.entries)
    assert len(whole.entries) >= 120
    for kind in ("protocol_result", "skill_error", "task_complete", "builtin_result", "block_incomplete", "progress"):
        assert kinds[kind], kind
    assert [entry["event"] for entry in whole.entries[-2:]] == ["final", "result"]
    assert any(isinstance(media, kernai.Media) for media in whole.store.load_media("r"))


def test_a_run_resumes_with_media_stored_meanwhile_which_are_stored_once_and_without_lost_ones() -> None:
    image, brought, others = kernai.Media.from_bytes(b"png", mime_type="image/png"), list[str](), list[Limits]()
    it = Agent(instructions="", skills=[Skill("look", execute=lambda: image, inputs={})])

    class Shared(MemoryStore):
        def append(self, run_id: str, first_seq: int, entries: Sequence[Entry], media: Any, **terms: Any) -> Any:
            brought.extend(one.id for one in media)
            return super().append(run_id, first_seq, entries, media, **terms)

        def load_media(self, run_id: str, ids: Iterable[str] | None = None) -> list[kernai.Media]:
            found = super().load_media(run_id, ids)
            if others:
                run.resume(limits=others.pop())
            return found

    run = Stored(WAYS[0], it, MockProvider(command("look"), "<final>seen</final>"), Shared())
    run.execute(limits=Limits(max_calls=1))
    length = len(run.load()) + 3
    others.append(Limits(max_calls=2))
    assert (run.resume().messages[-2].media, brought) == ((image,), [image.id])  # although later rows name it too
    lossy = MemoryStore()
    lossy.append("r", 0, run.load()[:length], [])
    result = Stored(WAYS[0], it, MockProvider("<final>not seen</final>"), lossy).resume()
    assert (result.text, [one.id for one in result.messages[-2].media]) == ("not seen", [image.id])


def by_kind(whole: Whole) -> dict[str, list[int]]:
    """The lengths at which a run ends with an event of each kind."""
    found: dict[str, list[int]] = {}
    for length, entry in enumerate(whole.entries, 1):
        found.setdefault(entry["event"], []).append(length)
    return found


@pytest.mark.slow
def test_a_run_cut_off_after_any_event_continues_to_the_same_end(whole: Whole) -> None:
    resumed = set()
    for lengths in by_kind(whole).values():
        times = max(len(lengths), len(WAYS))
        for length, way in islice(zip(cycle(lengths), cycle(WAYS), strict=False), times):
            check_resumed(way, cut(whole.store, length), whole)
            resumed.add(length)
    assert len(resumed) == len(whole.entries)


def test_a_run_cut_off_after_some_events_continues_to_the_same_end(whole: Whole) -> None:
    for length, way in zip(range(1, len(whole.entries) + 1, 15), cycle(WAYS), strict=False):
        check_resumed(way, cut(whole.store, length), whole)


def test_resuming_a_finished_run_returns_its_result_and_calls_nothing(whole: Whole) -> None:
    store, performed = cut(whole.store, len(whole.entries)), Performed()
    assert kernai.resume(agent(performed, instructions="You are another by now."), "r", store=store) == whole.result
    assert (store.load("r"), performed.calls) == (whole.entries, {})


@pytest.mark.parametrize("lost", [0, 1])
def test_the_messages_of_a_finished_run_say_what_the_user_wrote_and_what_is_from_outside(lost: int) -> None:
    """They may become the history of another run, where only the user's own words are trusted."""
    ticket, skills = Protocol("ticket", lambda *_: Message("user", "a ticket")), [Skill("look", execute=lambda: "seen")]
    model = MockProvider('<block type="ticket">one</block>' + command("look"), "<final>1</final>", "<final>2</final>")
    run = Stored(WAYS[0], Agent(instructions="x", protocols=[ticket], skills=skills), model)
    earlier = [Message("user", ["see", "a mail"], by="user", outside=[1]), Message("assistant", "seen")]
    run.execute(["and", outside("a page"), kernai.Media.from_bytes(b"a picture", mime_type="image/png")], history=earlier)
    run.resume(input=["but", outside("a letter")], limits=Limits(max_calls=0))
    run = run.cut(len(run.load()) - lost)  # without its end, that turn is continued first
    ended = run.resume(input=[outside("a file"), "too"])
    assert [message.to_dict() for message in run.resume().messages] == [message.to_dict() for message in ended.messages]


@pytest.mark.parametrize("was, on_prose", [("accept",) * 2, ("correct",) * 2, ("accept", "correct"), ("correct", "accept")])
def test_resuming_a_finished_plan_reports_again_which_tasks_failed(was: Any, on_prose: Any) -> None:
    """The conversation may go on, and the model is to answer from the rest."""
    it = Agent(instructions="x", provider=MockProvider("done"), on_prose=on_prose)
    lost = {"b": Agent(instructions="x", provider=Script(DOWN))}
    store, plan = MemoryStore(), [Task("a", "one"), Task("b", "two")]
    kernai.execute_plan(it.replace(on_prose=was), plan, agents=lost, store=store, run_id="r")
    other = it.replace(on_prose="accept" if on_prose == "correct" else "correct")
    kernai.resume(other, "r", store=(store := cut(store, 1)), agents=lost)
    ended = kernai.resume(it, "r", store=(store := cut(store, 2)), agents=lost)
    again = kernai.resume(it, "r", store=store, agents=lost)
    assert ("1 of 2 tasks failed: b" in ended.messages[-1].text) == (on_prose != "accept")
    assert [message.to_dict() for message in again.messages] == [message.to_dict() for message in ended.messages]


def cancelled_at(at: int, way: Way) -> MemoryStore:
    store, cancel = MemoryStore(), CancelAt(at)
    way.execute(agent(Performed()), "do everything", provider=provider(), store=store, run_id="r", cancel=cancel, on_event=cancel)
    return store


@pytest.mark.parametrize("calls", ["blocks", "native"])
@pytest.mark.parametrize("beside", ["text", Message("user", "a message"), kernai.SkillResult("parts", metadata={"n": 1})], ids=repr)
def test_resuming_a_run_that_a_call_ended_with_an_answer_returns_the_same_messages(beside: Any, calls: Any) -> None:
    def stop() -> str:
        raise kernai.Stop("final", "enough")

    skills = [Skill("stop", execute=stop), Skill("look", execute=lambda number: "", inputs={"number": int})]
    asked = [command(name, "one") for name in ("/help", "/skills", "/tasks", "look", "lock", "", "stop")]
    asked.insert(1, '<block type="ticket">one</block>')
    model = MockProvider("".join(asked), native=calls == "native")
    it = Agent(instructions="x", protocols=[Protocol("ticket", lambda *_: beside)], skills=skills, calls=calls, provider=model)
    store = MemoryStore()
    ended, again = kernai.execute(it, "go", store=store, run_id="r"), kernai.resume(it, "r", store=store)
    assert (again.text, [one.to_dict() for one in again.messages]) == ("enough", [one.to_dict() for one in ended.messages])


@pytest.mark.parametrize("step", [pytest.param(3, marks=pytest.mark.slow), 21])
def test_a_run_cancelled_at_any_event_continues_to_the_same_end(whole: Whole, step: int) -> None:
    ends = set()
    for at, way in zip(range(1, len(whole.entries) + 1, step), cycle(WAYS), strict=False):
        store = cancelled_at(at, way)
        # a run checks for cancellation only now and then, so cancelling it one event later often ends it at the same one
        ends_with = frozenset((entry["event"], entry["scope"], entry["step"]) for entry in store.load("r"))
        if ends_with not in ends:
            ends.add(ends_with)
            check_resumed(way, store, whole)
    assert len(ends) * step > 40


# a coroutine that is cancelled before its first line raises the warning "never awaited"
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize("error, after, step", [
    (OSError, False, 10), *(pytest.param(*one, marks=pytest.mark.slow) for one in (
        (OSError, False, 1), (KeyboardInterrupt, False, 3), (KeyboardInterrupt, True, 3))),
])
def test_if_any_append_fails_the_caller_gets_the_error_and_the_run_can_be_resumed(
    whole: Whole, error: type[BaseException], after: bool, step: int
) -> None:
    at, ways = 2, cycle(WAYS if error is OSError else WAYS[:2])  # asyncio's own loop ends at Ctrl-C
    while True:
        store, way, recorder = Appends(at - 1, error, after=after), next(ways), kernai.Recorder(kernai.MemorySink())
        with suppress(error):
            way.execute(agent(Performed()), "do everything", provider=provider(), store=store, run_id="r", recorder=recorder)
        if len(store.batches) < at:
            break
        assert len(store.batches) == at, "after the failure nothing is appended"
        check_resumed(way, cut(store, len(store.load("r"))), whole, recorder=recorder)
        assert all(kernai.replay(agent(Performed()), recording=map(form, recorder.to_list())).result for form in (dict, Shortening().entry))
        at += step
    assert at > 20


PRICED = kernai.Model("priced", cost=(1.0, 2.0))
DOWN = "DOWN"


class Script(kernai.Provider):
    """Answers in turn, with what it used; `DOWN` breaks off, after the vendor has counted the prompt."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked = 0

    def call(self, messages: Sequence[Message], model: Any, generation: Any, on_chunk: Any) -> kernai.LlmResponse:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer == DOWN:
            on_chunk.report_usage(kernai.Usage(prompt_tokens=100, completion_tokens=7))
            raise ProviderError("down", retryable=True)
        return kernai.LlmResponse(answer, prompt_tokens=10, completion_tokens=1, total_tokens=12)


TWICE = retry(2, first_wait=0)
CLERK = Agent(instructions="c", model=PRICED).as_skill("clerk", "Counts.")
#: an agent's changes, what the model says in each segment (the inputs of turns in brackets), and the calls of it all
BILLS: dict[str, tuple[dict[str, Any], list[tuple[str, ...] | list[str]], tuple[int, int]]] = {
    "failed three times": ({}, [(DOWN,), (DOWN,), (DOWN,), ("<final>ok</final>",)], (3, 1)),
    "each try of each segment": ({"middleware": [TWICE]}, [(DOWN,), (DOWN,), (DOWN, "<final>ok</final>")], (5, 1)),
    "in a later step": ({"skills": [CLERK]}, [(command("/skills"), DOWN), ("<final>ok</final>",)], (1, 2)),
    "in a later turn": ({}, [(DOWN,), ("<final>one</final>",), ["more"], (DOWN,), (DOWN,), ("<final>ok</final>",)], (3, 2)),
    "after an agent": ({"skills": [CLERK]}, [(command("clerk", "x"), "<final>sub</final>", DOWN), ("<final>ok</final>",)], (1, 3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("changes, segments, counts", BILLS.values(), ids=BILLS)
@EACH_WAY
def test_the_usage_of_failed_calls_is_still_counted_after_a_resume(
    changes: Any, segments: Any, counts: tuple[int, int], way: Way
) -> None:
    failed, made = counts
    run, recorder = Stored(way, Agent(instructions="x", model=PRICED, **changes)), kernai.Recorder()
    result, again = None, dict[str, Any]()
    for segment in segments:
        if isinstance(segment, list):
            again = {"input": segment[0]}
            continue
        go = run.execute if result is None else run.resume
        result, again = go(provider=Script(*segment), recorder=recorder, **again), {}
        assert run.replay().usage == result.usage
    assert result is not None
    assert result.ok
    used = result.usage
    assert (used.prompt_tokens, used.completion_tokens) == (100 * failed + 10 * made, 7 * failed + made)
    assert used.model_calls == recorder.token_usage().model_calls == failed + made, "no event counts it twice"
    assert used.cost == pytest.approx((114 * failed + 12 * made) / 1e6)
    assert run.resume().usage == used
    for length in range(1, len(run.load())):
        run.cut(length).replay()
    if failed > 1 and not changes:
        kernai.fork(run.store, "r", at_step=result.steps - 1, run_id="s")
        forked = way.resume(run.agent, "s", store=run.store, provider=Script("<final>else</final>"))
        assert kernai.replay(run.agent, "s", store=run.store).result == forked


def test_the_usage_of_failed_attempts_counts_against_the_limits() -> None:
    it = Agent(instructions="x", model=PRICED, middleware=[retry(9, first_wait=0)])
    down = Script(DOWN)
    result = kernai.execute(it, "go", provider=down, limits=Limits(max_tokens=250))
    assert (result.stop_reason, down.asked) == ("max_tokens", 3)


@pytest.mark.parametrize("limits", [Limits(max_tokens=107), Limits(max_cost=0.0001), Limits(max_calls=2), Limits(timeout=0)])
@EACH_WAY
def test_a_model_is_not_called_again_if_failed_calls_have_used_up_a_limit(limits: Limits, way: Way) -> None:
    fine = Script("<final>ok</final>")
    run = Stored(way, Agent(instructions="x", model=PRICED, middleware=[TWICE]), fine)
    run.execute(provider=Script(DOWN))
    for _ in range(2):
        stopped, again = run.resume(limits=limits), run.replay()
        assert (stopped.ok, again.stop_reason, again.usage) == (False, stopped.stop_reason, stopped.usage)
    assert fine.asked == 0
    result = run.resume(limits=Limits(max_calls=4), provider=Script(DOWN, "<final>ok</final>"))
    assert (result.ok, result.usage.model_calls) == (True, 4)
    assert run.resume(limits=Limits(max_calls=4), input="more").stop_reason == "max_calls"
    assert (run.resume(limits=Limits(max_calls=5)).ok, fine.asked) == (True, 1)


def test_the_attempts_of_an_agent_that_failed_count_against_max_calls_after_a_resume() -> None:
    clerk = Agent(instructions="c", middleware=[TWICE]).as_skill("clerk", "Counts.")
    run = Stored(WAYS[0], Agent(instructions="x", skills=[clerk]), Script("<final>ok</final>"))
    run.execute(provider=Script(command("clerk", "x"), DOWN))  # three calls of models fail
    assert [run.resume(limits=Limits(max_calls=most)).stop_reason for most in (5, 6)] == ["max_calls", "final"]


def test_an_answer_that_a_middleware_replaced_counts_as_one_call_after_a_resume() -> None:
    def replaced(effect: Any) -> Any:
        answer = yield effect
        return kernai.LlmResponse(answer.content)

    run = Stored(WAYS[0], Agent(instructions="x", model=PRICED, middleware=[replaced]), Script("<final>ok</final>"))
    run.execute()
    assert run.resume(input="more", limits=Limits(max_calls=2)).ok


@AT_ONCE
@EACH_WAY
def test_an_approved_call_is_not_made_by_a_run_that_must_stop_but_by_the_next_resume(way: Way, at_once: bool) -> None:
    paid: list[int] = []
    run = Stored(way, payer(paid, parallel_skills=at_once), Script(command("pay", "1") + command("pay", "2"), "<final>x</final>"))
    waiting = {call.call_id: True for call in run.execute().pending}
    result = run.resume(cancel=CancelAt(0), approvals=waiting)
    assert (result.stop_reason, paid) == ("cancelled", [])
    assert run.replay() is not None
    result = run.resume()
    if not at_once:
        assert paid == [1]
        result = run.resume(approvals={"0.1": True})
    assert (result.ok, sorted(paid)) == (True, [1, 2])


@EACH_WAY
def test_a_call_is_not_made_if_the_run_is_cancelled_while_approve_runs(way: Way) -> None:
    paid: list[str] = []
    stopped = threading.Event()

    def approve(call: kernai.PendingCall) -> bool:
        stopped.set()
        return True

    it = Agent(instructions="x", skills=[Skill("pay", execute=lambda: paid.append("x"), inputs={})], approve=approve)
    asked = Script(command("pay"), "<final>x</final>")
    assert way.execute(it, "go", provider=asked, cancel=stopped).stop_reason == "cancelled"
    assert paid == []
