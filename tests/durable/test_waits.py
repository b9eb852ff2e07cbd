"""`Pause(until=...)`: waits that end on their own, in every store and however the run is resumed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import kernai
from kernai import Agent, MemoryStore, Pause, RunStore, Skill, SkillContext, SqliteStore
from kernai.middleware import CallModel
from tests.durable.durable_cases import WAYS, Way, command, provider, replayed, way_id
from tests.durable.test_store_rules import Plain

EACH_WAY = pytest.mark.parametrize("way", WAYS, ids=way_id)
NOW = datetime.now(UTC)
PAST, FUTURE = NOW - timedelta(hours=1), NOW + timedelta(hours=1)
SCRIPT = {"go": [command("act"), "<final>done</final>"]}


@pytest.fixture(params=["memory", "sqlite", "without leases"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "sqlite":
        with SqliteStore(tmp_path / "runs.db", durability="process") as made:
            yield made
    else:
        yield MemoryStore() if request.param == "memory" else Plain()


class Acts:
    """A skill that pauses until each of these times in turn, and what it saw."""

    def __init__(self, *until: datetime | None, **flags: Any) -> None:
        self.seen: list[tuple[Any, bool]] = []

        def act(ctx: SkillContext) -> str:
            self.seen.append((ctx.approval and ctx.approval.value, ctx.woken))
            if len(self.seen) <= len(until):
                raise Pause("later", until=until[len(self.seen) - 1])
            return "acted"

        self.agent = Agent(instructions="x", skills=[Skill("act", execute=act, **flags)], provider=provider(SCRIPT))


@EACH_WAY
def test_a_call_whose_time_has_come_is_made_again_without_a_decision(store: Any, way: Way) -> None:
    acts = Acts(PAST, PAST)
    for _ in range(2):
        result = way.execute(acts.agent, "go", store=store, run_id="r") if not acts.seen else way.resume(
            acts.agent, "r", store=store)
        assert [call.until for call in result.pending] == [PAST.isoformat(timespec="milliseconds").replace("+00:00", "Z")]
    assert way.resume(acts.agent, "r", store=store).text == "done"
    assert acts.seen == [(None, False), (None, True), (None, True)]
    assert replayed(Acts().agent, "r", store=store).text == "done"


@EACH_WAY
def test_before_its_time_a_call_waits_and_a_decision_comes_first(store: Any, way: Way) -> None:
    acts = Acts(FUTURE)
    way.execute(acts.agent, "go", store=store, run_id="r")
    length = len(store.load("r"))
    assert way.resume(acts.agent, "r", store=store).stop_reason == "interrupt"
    assert (len(acts.seen), len(store.load("r"))) == (1, length)
    assert way.resume(acts.agent, "r", store=store, approvals={"0.0": True}).text == "done"
    assert acts.seen[1:] == [(True, False)]


@EACH_WAY
def test_a_decision_wins_over_a_time_that_has_come(way: Way) -> None:
    acts, store = Acts(PAST), MemoryStore()
    way.execute(acts.agent, "go", store=store, run_id="r")
    assert [one.due for one in store.runs(due=True)] == [("0.0",)]
    assert way.resume(acts.agent, "r", store=store, approvals={"0.0": "no"}).text == "done"
    assert len(acts.seen) == 1
    assert list(store.runs(due=True)) == []


@EACH_WAY
def test_time_is_no_consent(way: Way) -> None:
    made: list[str] = []
    store: RunStore = MemoryStore()

    def gate(effect: Any) -> Any:
        if not isinstance(effect, CallModel) and effect.approval is None:
            made.append("asked")
            raise Pause("may it?", until=PAST)
        return (yield effect)

    acts = Acts()
    gated = acts.agent.replace(middleware=[gate])
    way.execute(gated, "go", store=store, run_id="r")
    assert way.resume(gated, "r", store=store).stop_reason == "interrupt"
    assert (made, acts.seen) == (["asked", "asked"], [])
    assert way.resume(gated, "r", store=store, approvals={"0.0": True}).text == "done"


@EACH_WAY
def test_a_call_that_was_approved_and_then_waited_needs_no_second_approval(way: Way) -> None:
    acts, store = Acts(PAST, approval=True), MemoryStore()
    assert way.execute(acts.agent, "go", store=store, run_id="r").stop_reason == "interrupt"
    assert way.resume(acts.agent, "r", store=store, approvals={"0.0": True}).stop_reason == "interrupt"
    assert way.resume(acts.agent, "r", store=store).text == "done"
    assert acts.seen == [(True, False), (None, True)]


@EACH_WAY
def test_a_model_call_may_wait_for_a_time(way: Way) -> None:
    store, opens = MemoryStore(), [FUTURE, PAST]

    def office_hours(effect: Any) -> Any:
        if isinstance(effect, CallModel) and opens:
            raise Pause("closed", until=opens.pop())
        return (yield effect)

    it = Acts().agent.replace(middleware=[office_hours])
    assert [call.call_id for call in way.execute(it, "go", store=store, run_id="r").pending] == ["0"]
    assert way.resume(it, "r", store=store).stop_reason == "interrupt"  # it is still closed
    assert way.resume(it, "r", store=store, approvals={"0": True}).text == "done"


def test_a_process_that_dies_after_it_was_woken_wakes_again() -> None:
    whole, store, acts = MemoryStore(), MemoryStore(), Acts(PAST, idempotent=True)
    kernai.execute(acts.agent, "go", store=whole, run_id="r")
    kernai.resume(acts.agent, "r", store=whole)
    entries = whole.load("r")
    woken = [one["event"] for one in entries].index("approval_given")
    store.append("r", 0, entries[:woken + 1], [])
    again = Acts(idempotent=True)
    assert kernai.resume(again.agent, "r", store=store).text == "done"
    assert again.seen == [(None, True)]


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=-9))], ids=str)
def test_the_last_moment_of_all_is_no_time_that_has_come(store: Any, zone: timezone) -> None:
    acts = Acts(datetime.max.replace(tzinfo=zone))
    assert kernai.execute(acts.agent, "go", store=store, run_id="r").stop_reason == "interrupt"
    assert kernai.resume(acts.agent, "r", store=store).stop_reason == "interrupt"
    assert len(acts.seen) == 1


@pytest.mark.parametrize("until", ["2026-11-24", datetime(2026, 11, 24), 5.0])  # noqa: DTZ001 - the case
def test_a_time_without_a_zone_is_refused(until: Any) -> None:
    with pytest.raises(TypeError, match="until must be a datetime with a time zone"):
        Pause("later", until=until)
