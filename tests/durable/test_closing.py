"""A run that is closed has a recorded end, and only another input opens it again."""

from __future__ import annotations

from typing import Any

import pytest

import kernai
from kernai import KernaiError, Limits, MemoryStore, RunConflictError, RunStoppedError, Skill
from kernai.durable.lease import end_run
from kernai.testing.run_store_rules import started
from tests.durable.durable_cases import EACH_WAY, WAYS, Performed, Stored, Way, agent, command, cut, payer, share_of
from tests.durable.format_1.world import RUN, Segment, store_of
from tests.durable.test_format_1 import cases

PAYING = {"go": [command("pay"), "<final>paid</final>"], "and now": ["<final>nothing</final>"]}


def answering(text: str) -> Any:
    return kernai.MockProvider(f"<final>{text}</final>")


def paying(way: Way) -> tuple[Stored, list[Any]]:
    paid: list[Any] = []
    return Stored(way, payer(paid), PAYING), paid


@EACH_WAY
def test_a_waiting_run_that_is_closed_has_ended(way: Way) -> None:
    paid: list[Any] = []
    look = Skill("look", execute=lambda: "seen")
    run = Stored(way, payer(paid, look, parallel_skills=True), {"go": [command("/tasks") + command("pay") + command("look")]})
    waiting = run.execute()
    assert "seen" in waiting.messages[-1].text
    run.store.block("r", "no worker has its agent")
    run.store.close("r", "the customer has cancelled")
    assert [(one.status, one.why) for one in run.store.runs()] == [("closed", None)]
    length, result = len(run.load()), run.resume()
    assert (result.stop_reason, str(result.error)) == ("closed", "the run was closed: the customer has cancelled")
    assert (result.messages, result.usage, result.pending) == (waiting.messages, waiting.usage, ())
    with pytest.raises(RunStoppedError):
        result.unwrap()
    with pytest.raises(ValueError, match="no call of this run waits"):
        run.resume(approvals={"0.1": True})
    assert run.replay().stop_reason == "closed"
    assert (len(run.load()), paid) == (length, [])


@EACH_WAY
def test_another_input_opens_a_closed_run_and_its_waiting_calls_are_not_made(way: Way) -> None:
    run, paid = paying(way)
    assert run.execute(limits=Limits(max_calls=0)).stop_reason == "max_calls"
    run.store.close("r", "too expensive")
    assert run.resume().stop_reason == "closed"
    run.store.delete("r")
    run.execute()
    run.store.decide("r", "0.0", True)
    run.store.close("r", "a mistake")
    assert [one.decisions for one in run.store.runs()] == [{}]
    *waited, end = run.load()
    run.store = MemoryStore()
    run.store.append("r", 0, [*({**one, "timestamp": "2026-01-02T10:00:00.000Z"} for one in waited), end], [])
    result = run.resume(input="and now?", limits=Limits(timeout=60))
    assert [one.text for one in result.messages] == ["go", command("pay"), "and now?", "<final>paid</final>"]
    assert [one["not_run"] for one in run.data("skill_error")] == [True]
    assert [one.status for one in run.store.runs()] == ["final"]
    assert run.replay() == result
    assert run.resume(input="and then?").messages[:4] == result.messages
    assert not paid


def test_a_run_that_another_worker_has_just_continued_is_asked_to_stop() -> None:
    class Continued(MemoryStore):
        def append(self, run_id: str, first_seq: int, entries: Any, media: Any, **terms: Any) -> Any:
            if entries[0]["event"] == "result":
                super().append(run_id, first_seq, [started()], [])
            return super().append(run_id, first_seq, entries, media, **terms)

    store = Continued()
    store.append("r", 0, [started()], [])
    assert not end_run(store, "r", "not needed")
    assert store.claim("r", "another", 60).cancel == "not needed"


def test_closing_a_run_that_cannot_be_closed_is_an_error_and_changes_nothing() -> None:
    run, _ = paying(WAYS[0])
    with pytest.raises(KernaiError, match="no run 'r'"):
        run.store.close("r", "gone")
    with pytest.raises(TypeError, match="run_id must say which run to close, got NoneType"):
        run.store.close(None, "gone")
    for reason in ("", " ", None):
        with pytest.raises(ValueError, match="reason must say why"):
            run.store.close("r", reason)
    for status in ("closed", "final"):
        run.execute()
        if status == "closed":
            run.store.close("r", "first")
        else:
            run.resume(approvals={"0.0": False})
        for act in run.store.close, run.store.request_cancel:
            with pytest.raises(KernaiError, match=f"has ended already: {status}"):
                act("r", "late")
        run.store.delete("r")


def test_a_worker_stops_when_its_run_is_closed_meanwhile() -> None:
    run, paid = paying(WAYS[0])
    run.execute()

    def close(event: kernai.Event) -> None:
        if event.type == "run_resumed":
            run.store.close("r", "just now")

    with pytest.raises(RunConflictError):
        run.resume(approvals={"0.0": True}, on_event=close)
    assert (paid, [one.status for one in run.store.runs()]) == ([], ["closed"])


@EACH_WAY
def test_a_run_that_died_anywhere_can_be_closed_and_opened_again(whole: MemoryStore, way: Way) -> None:
    performed = Performed()
    for died in share_of(way, range(1, len(whole.load("r")), 5)):
        run = Stored(way, agent(performed), store=cut(whole, died))
        run.store.close("r", "dead")
        closed = run.resume(provider=answering("never"))
        assert (closed.stop_reason, len(run.load())) == ("closed", died + 1)
        again = run.resume(input="thanks", provider=answering("welcome"))
        assert again.text == "welcome", died
        assert [one.text for one in again.messages[-2:]] == ["thanks", "<final>welcome</final>"]
        # those of calls that were in flight come in between
        assert [one for one in again.messages if one in closed.messages] == [*closed.messages]
        assert again.usage.model_calls == closed.usage.model_calls + 1
        assert {one["stop"] for one in run.load() if "stop" in one} == {"closed"}, "why calls and sub-runs were not ended"
        assert run.replay() == again
        assert run.resume(input="bye", provider=answering("bye")).text == "bye"
    assert not performed.calls


def test_recordings_of_format_1_are_closed_and_opened_again() -> None:
    for case in cases(range(0, 200, 20)):
        store = store_of(case, 1 + case["number"] * 7 % len(case["entries"]))
        if [one.status for one in store.runs()] == ["final"]:
            continue
        store.close(RUN, "old")
        segment, is_async = Segment(case["world"]), bool(case["number"] % 8)
        assert segment.resume(store, is_async=is_async).stop_reason == "closed"
        opened = segment.resume(store, is_async=is_async, input="thanks", provider=answering("7"))
        assert opened.stop_reason != "closed", case["number"]
        again = segment.replay(store)
        assert again is not None
        assert (again.stop_reason, again.usage) == (opened.stop_reason, opened.usage)
        assert not [effect for effect in segment.effects if not effect.startswith("model")]
