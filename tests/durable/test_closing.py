"""A run that is closed has a recorded end, and only another input opens it again."""

from __future__ import annotations

from typing import Any

import pytest

import kernai
from kernai import KernaiError, Limits, MemoryStore, RunConflictError, RunStoppedError
from tests.durable.durable_cases import (
    EACH_WAY,
    Performed,
    Way,
    agent,
    command,
    cut,
    entries_of,
    payer,
    provider,
    replayed,
    share_of,
)
from tests.durable.format_1.world import RUN, Segment, store_of
from tests.durable.test_format_1 import cases

PAYING = {"go": [command("pay"), "<final>paid</final>"], "and now": ["<final>nothing</final>"]}


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def answering(text: str) -> Any:
    return kernai.MockProvider(f"<final>{text}</final>")


@EACH_WAY
def test_a_waiting_run_that_is_closed_has_ended(way: Way, store: MemoryStore) -> None:
    paid: list[int] = []
    waiting = way.execute(payer(paid, provider=provider(PAYING)), "go", store=store, run_id="r")
    store.close("r", "the customer has cancelled")
    assert [one.status for one in store.runs()] == ["closed"]
    length = len(store.load("r"))
    result = way.resume(payer(paid, provider=provider(PAYING)), "r", store=store)
    assert (result.stop_reason, str(result.error)) == ("closed", "the run was closed: the customer has cancelled")
    assert (result.messages, result.usage, result.pending) == (waiting.messages, waiting.usage, ())
    with pytest.raises(RunStoppedError):
        result.unwrap()
    with pytest.raises(ValueError, match="no call of this run waits"):
        way.resume(payer(paid, provider=provider(PAYING)), "r", store=store, approvals={"0.0": True})
    assert replayed(payer(paid, provider=provider(PAYING)), "r", store=store).stop_reason == "closed"
    assert len(store.load("r")) == length
    assert not paid


@EACH_WAY
def test_another_input_opens_a_closed_run_and_its_waiting_calls_are_not_made(way: Way, store: MemoryStore) -> None:
    paid: list[int] = []
    it = payer(paid, provider=provider(PAYING))
    assert way.execute(it, "go", store=store, run_id="r", limits=Limits(max_calls=0)).stop_reason == "max_calls"
    store.close("r", "too expensive")
    assert way.resume(it, "r", store=store).stop_reason == "closed"
    store.delete("r")
    way.execute(it, "go", store=store, run_id="r")
    store.decide("r", "0.0", True)
    store.close("r", "a mistake")
    assert [one.decisions for one in store.runs()] == [{}]
    result = way.resume(it, "r", store=store, input="and now?", limits=Limits(timeout=60))
    assert [one.text for one in result.messages] == ["go", command("pay"), "and now?", "<final>paid</final>"]
    assert [one["data"]["not_run"] for one in store.load("r") if one["event"] == "skill_error"] == [True]
    assert [one.status for one in store.runs()] == ["final"]
    assert replayed(it, "r", store=store) == result
    assert way.resume(it, "r", store=store, input="and then?").messages[:4] == result.messages
    assert not paid


def test_closing_a_run_that_cannot_be_closed_is_an_error_and_changes_nothing(store: MemoryStore) -> None:
    with pytest.raises(KernaiError, match="no run 'r'"):
        store.close("r", "gone")
    kernai.execute(payer([], provider=provider(PAYING)), "go", store=store, run_id="r")
    for reason in ("", " ", None):
        with pytest.raises(ValueError, match="reason must say why"):
            store.close("r", reason)  # type: ignore[arg-type]  # the mistake
    kernai.resume(payer([], provider=provider(PAYING)), "r", store=store, approvals={"0.0": False})
    with pytest.raises(KernaiError, match="has ended already: final"):
        store.close("r", "late")
    kernai.execute(payer([], provider=provider(PAYING)), "go", store=store, run_id="s")
    store.close("s", "first")
    with pytest.raises(KernaiError, match="has ended already: closed"):
        store.close("s", "again")
    for run_id, status in (("r", "final"), ("s", "closed")):
        with pytest.raises(KernaiError, match=f"has ended already: {status}"):
            store.request_cancel(run_id, "late")


def test_a_worker_stops_when_its_run_is_closed_meanwhile(store: MemoryStore) -> None:
    paid: list[int] = []
    it = payer(paid, provider=provider(PAYING))
    kernai.execute(it, "go", store=store, run_id="r")

    def close(event: kernai.Event) -> None:
        if event.type == "run_resumed":
            store.close("r", "just now")

    with pytest.raises(RunConflictError):
        kernai.resume(it, "r", store=store, approvals={"0.0": True}, on_event=close)
    assert not paid
    assert [one.status for one in store.runs()] == ["closed"]


@EACH_WAY
def test_a_run_that_died_anywhere_can_be_closed_and_opened_again(whole: MemoryStore, way: Way) -> None:
    length = len(entries_of(whole))
    for died in share_of(way, range(1, length, 3)):
        part, performed = cut(whole, died), Performed()
        part.close("r", "dead")
        it = agent(performed)
        closed = way.resume(it, "r", store=part, provider=answering("never"))
        assert (closed.stop_reason, len(entries_of(part))) == ("closed", died + 1)
        again = way.resume(it, "r", store=part, input="thanks", provider=answering("welcome"))
        assert again.text == "welcome", died
        assert [one.text for one in again.messages[-2:]] == ["thanks", "<final>welcome</final>"]
        assert again.messages[:len(closed.messages)] == closed.messages
        assert again.usage.model_calls == closed.usage.model_calls + 1
        assert replayed(it, "r", store=part) == again
        assert way.resume(it, "r", store=part, input="bye", provider=answering("bye")).text == "bye"
        assert not performed.calls


def test_recordings_of_format_1_are_closed_and_opened_again() -> None:
    for case in cases(range(0, 200, 10)):
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
