"""The host's own state, `Context.save`: recorded with the outcome that changed it, and restored whenever a run continues."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from math import inf
from typing import Any, ClassVar

import pytest

import kernai
from kernai import Agent, Context, Event, Limits, Recorder, Skill, SkillContext
from kernai.durable import host_state
from kernai.events import ApprovalRequestedRow
from kernai.loop.effects import CallSkill, Sleep
from kernai.middleware import Hooks
from kernai.testing import ByHand
from tests.durable.durable_cases import EACH_WAY, WAYS, Appends, Stored, Way, command, share_of
from tests.loop.loop_cases import plan, task

PATIENCE = 20.0
RING: list[object] = []
RING.append(RING)


class Cart(Context):
    """The host's state, which a resume has to bring back."""

    def __init__(self, items: Sequence[str] = ()) -> None:
        super().__init__()
        self.items = list(items)

    def save(self) -> Any:
        return {"items": self.items}

    def restore(self, data: Any) -> None:
        self.items = list(data["items"])


def shopper() -> Agent:
    def put(what: str, ctx: SkillContext[Cart]) -> str:
        ctx.run_context.items.append(what)
        return f"{len(ctx.run_context.items)} items"

    def plain() -> str:
        return "nothing changed"

    return Agent(instructions="x", skills=[Skill("put", execute=put, idempotent=True), Skill("plain", execute=plain)])


def with_more(*skills: Skill) -> Agent:
    return shopper().replace(skills=[*shopper().skills, *skills])  # type: ignore[misc]


SHOPPING = {"go": [command("put", "a"), command("plain"), command("put", "b"), command("put", "c"), "<final>done</final>"]}


@EACH_WAY
def test_the_hosts_state_is_recorded_when_it_changes_and_restored_after_any_crash(way: Way) -> None:
    run, seen = Stored(way, shopper(), SHOPPING, Appends()), list[str]()
    run.execute(context=Cart(), on_event=lambda event: seen.append(event.type))
    assert all(seen[at - 1] == "skill_result" for at, one in enumerate(seen) if one == "context_saved"), "right after it"
    assert [one["items"] for one in run.data("context_saved")] == [["a"], ["a", "b"], ["a", "b", "c"]]
    for length in run.store.lengths:  # after the last one, the run has finished
        again = Cart()
        assert run.cut(length).resume(context=again, in_flight="retry").ok
        assert again.items == ["a", "b", "c"]


@dataclass
class Kept:
    name: str


#: what `save` returns or raises, and the error that the caller gets
NO_STATES: dict[str, tuple[Any, type[BaseException], str]] = {
    **{
        name: (given, TypeError, r"Context\.save must give JSON data: ") for name, given in {
            "an object": object(), "not a number": float("nan"), "a date": {"at": date(2026, 1, 1)}, "bytes": b"text",
            "a ring": [RING], "a set": {"a"}, "keys": {1: "a"}, "no key": {None: 1}, "a dataclass": Kept("a"),
        }.items()
    },
    "an error": (RuntimeError("no state today"), RuntimeError, "no state today"),
    "an exit, as of a signal handler": (SystemExit(3), SystemExit, "3"),
}


@pytest.mark.parametrize("given, kind, message", NO_STATES.values(), ids=NO_STATES)
@EACH_WAY
def test_a_state_that_cannot_be_saved_ends_the_run_and_the_caller_gets_the_error(
    way: Way, given: Any, kind: type[BaseException], message: str
) -> None:
    at = 2 if way.listens else 0  # after an outcome, or at the start

    class Odd(Cart):
        def save(self) -> Any:
            if len(self.items) < at:
                return super().save()
            if isinstance(given, BaseException):
                raise given
            return given

    run, again = Stored(way, shopper(), SHOPPING), Cart()
    with pytest.raises(kind, match=message):
        run.execute(context=Odd())
    if run.load():
        assert run.resume(context=again).ok
    assert at == 0 or again.items == ["a", "b", "c"]


class InPlace(Cart):
    """Its restore keeps the list that sub-runs refer to."""

    def restore(self, data: Any) -> None:
        self.items[:] = data["items"]


@pytest.mark.parametrize("kind", [Cart, InPlace])
@pytest.mark.parametrize("nested", [False, True], ids=["agent", "agent in a task"])
@EACH_WAY
def test_changes_of_shared_state_by_a_sub_run_survive_a_crash_and_reach_the_next_turn(
    way: Way, nested: bool, kind: type[Cart]
) -> None:
    it = with_more(shopper().as_skill("clerk", "Shops."))
    turns = [command("put", "x"), command("clerk", "buy"), command("put", "y"), "<final>done</final>"]
    scripts = {"go": [plan(task("t", "shop")), "<final>done</final>"] if nested else turns, "shop": turns, "buy": SHOPPING["go"]}
    run = Stored(way, it, scripts, Appends())
    whole = run.execute(context=kind())
    assert whole.ok
    for length in share_of(way, run.store.lengths[:-1]):
        again = kind()
        result = run.cut(length).resume(context=again, in_flight="retry")
        assert again.items == ["x", "a", "b", "c", "y"]
        assert [m.text for m in result.messages] == [m.text for m in whole.messages]
    later = kind()
    scripts["go"] = [*scripts["go"], command("put", "z"), "<final>done</final>"]
    assert run.resume(input="more", context=later).ok
    assert later.items == ["x", "a", "b", "c", "y", "z"]


@EACH_WAY
def test_a_sub_runs_own_state_is_recorded_when_it_becomes_equal_to_its_parents(way: Way) -> None:
    class Own(Cart):
        def child(self, task_id: str | None) -> Own:
            made = super().child(task_id)
            made.items = list(self.items)
            return made

    def drop(ctx: SkillContext[Cart]) -> str:
        return ctx.run_context.items.pop()

    clerk = with_more(Skill("drop", execute=drop)).as_skill("clerk", "Shops.")
    scripts = {"go": [command("clerk", "buy"), "<final>done</final>"], "buy": [command("put", "a"), command("drop"), "<final>x</final>"]}
    run = Stored(way, Agent(instructions="x", skills=[clerk]), scripts)
    run.execute(context=Own())
    saved = [(one["scope"], one["data"]["items"]) for one in run.load() if one["event"] == "context_saved"]
    assert saved == [("0.0", ["a"]), ("0.0", [])]


@EACH_WAY
def test_a_fork_has_the_state_that_the_step_before_it_left(way: Way) -> None:
    run = Stored(way, shopper(), SHOPPING)
    for step in range(run.execute(context=Cart()).steps):
        again = Cart()
        kernai.fork(run.store, "r", at_step=step, run_id=f"at-{step}")
        assert way.resume(run.agent, f"at-{step}", store=run.store, provider=run.model, context=again).ok
        assert again.items == ["a", "b", "c"]


# -------------------------------------------------------------------------------------------------------- tasks at once

BOTH = plan(task("a", "task-a", parallel=True), task("b", "task-b", parallel=True), strategy="parallel")


def at_once(how: str, tasks: int, puts: int) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """Scripts and an agent's options: so many tasks with so many calls each, or as many calls at once."""
    if how == "calls":
        calls = [command("put", f"{at}.{number}") for at in range(tasks) for number in range(puts)]
        return {"go": ["".join(calls), "<final>done</final>"]}, {"parallel_skills": True}
    whole = plan(*(task(f"t{at}", f"task {at}") for at in range(tasks)), strategy="parallel")
    scripts = {"go": [whole, "<final>done</final>"]}
    for at in range(tasks):
        scripts[f"task {at}"] = [*(command("put", f"{at}.{number}") for number in range(puts)), "<final>d</final>"]
    return scripts, {}


@pytest.fixture
def rushed(monkeypatch: pytest.MonkeyPatch, threads_are_often_switched: None) -> None:
    """Threads take turns after each few lines, and calls wait for one another as long as it takes."""
    monkeypatch.setattr(host_state, "LONGEST_WAIT", PATIENCE)


@pytest.mark.usefixtures("rushed")
@pytest.mark.parametrize("how, kind", [("tasks", Cart), ("tasks", InPlace), ("calls", Cart)])
@EACH_WAY
def test_concurrent_changes_of_a_state_are_neither_lost_nor_doubled_by_a_crash(way: Way, how: str, kind: type[Cart]) -> None:
    """At each append the state is that of the outcomes on record."""
    scripts, changes = at_once(how, 8, 3)
    run = Stored(way, shopper().replace(**changes), scripts, Appends())
    assert run.execute(context=kind()).ok
    every = sorted(f"{task}.{number}" for task in range(8) for number in range(3))
    entries = run.load()
    # one state, that of the run, however many tasks change it
    assert {one["scope"] for one in entries if one["event"] == "context_saved"} == {""}
    for length in run.store.lengths:
        done, put, state = (
            [one["data"] for one in entries[:length] if one["event"] == kind] for kind in ("skill_result", "skill_execute", "context_saved"))
        ended = {one["call_id"] for one in done}
        assert sorted(one["params"]["what"] for one in put if one["call_id"] in ended) == sorted(state[-1]["items"] if state else [])
    for length in run.store.lengths[WAYS.index(way):-1:20]:
        again = kind()
        assert run.cut(length).resume(context=again, in_flight="retry").ok
        assert sorted(again.items) == every


class Counting(Cart):
    """Shares its items with its tasks, but not its counter, nor the connection that each makes for itself."""

    own: ClassVar[tuple[str, ...]] = ("connection",)

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.connection: object = None

    def save(self) -> Any:
        return {"items": self.items, "count": self.count}

    def restore(self, data: Any) -> None:
        super().restore(data)
        self.count = data["count"]


class Replacing(Counting):
    """Like `Counting`, but `child` makes the connection, instead of `own`."""

    own = ()

    def child(self, task_id: str | None) -> Replacing:
        made = super().child(task_id)
        made.connection = object()
        return made


class CountingInPlace(Counting, InPlace):
    """Its `restore` changes the list that it shares with its tasks."""


@pytest.mark.parametrize("kind", [Counting, Replacing, CountingInPlace])
@EACH_WAY
def test_after_a_crash_a_task_shares_the_same_attributes_as_before(way: Way, kind: type[Counting]) -> None:
    def put(what: str, ctx: SkillContext[Counting]) -> str:
        context = ctx.run_context
        context.connection = context.connection or object()
        context.items.append(what)
        context.count += 1
        return f"number {context.count}"

    scripts, _ = at_once("tasks", 3, 3)
    scripts["go"].insert(1, command("put", "r"))
    run = Stored(way, Agent(instructions="x", skills=[Skill("put", execute=put)]), scripts, Appends())
    assert run.execute(context=kind()).ok
    for length in share_of(way, run.store.lengths[:-1]):
        again, part = kind(), run.cut(length)
        assert part.resume(context=again, in_flight="retry").ok
        assert sorted(set(again.items)) == sorted([*(f"{task}.{number}" for task in range(3) for number in range(3)), "r"])
        counts = [one["result"] for one in part.data("skill_result")]
        assert sorted(counts) == sorted([*["number 1", "number 2", "number 3"] * 3, "number 1"])


@EACH_WAY
def test_the_end_of_a_sub_agent_is_recorded_at_once_and_no_call_waits_for_it(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended, recorded = threading.Event(), threading.Event(), threading.Event()

    class Ending(Hooks):
        def on_run_end(self, run: Any, result: object) -> None:
            run.context.items.append("end")
            if run.scope == "2.1":
                begun.wait(PATIENCE)
                ended.set()

    class Noting(Recorder):
        def record(self, event: Event) -> None:
            if event.type == "skill_result" and event.data["call_id"] == "2.1":
                recorded.set()

    def wait(ctx: SkillContext[Cart]) -> str:
        begun.set()
        ended.wait(PATIENCE)
        ctx.run_context.items.append("wait")
        ctx.run_context.items.append(str(recorded.wait(PATIENCE)))
        return "waited"

    monkeypatch.setattr(host_state, "LONGEST_WAIT", inf)
    clerk = Agent(instructions="c", middleware=[Ending()]).as_skill("clerk", "Ends.")
    it, ask = with_more(clerk, Skill("wait", execute=wait)).replace(parallel_skills=True), command("clerk", "sub")
    scripts = {"go": [ask, command("put", "a"), command("wait") + ask, "<final>done</final>"], "sub": ["<final>s</final>"]}
    run = Stored(way, it, scripts)
    assert run.execute(context=Cart(), recorder=Noting(), limits=Limits(timeout=PATIENCE)).ok
    saved = [one["items"] for one in run.data("context_saved")]
    assert saved == [["end"], ["end", "a"], ["end", "a", "end", "wait", "True"]], "nothing half-finished"


def test_a_text_instead_of_a_list_of_a_contexts_own_attributes_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Odd\.own must be a tuple of names, such as \('connection',\)"):
        type("Odd", (Context,), {"own": "connection"})


def saved_last(run: Stored) -> Any:
    return [one["data"] for one in run.load() if one["event"] == "context_saved" and one["scope"] == ""][-1]


def test_a_task_that_undoes_what_another_added_is_recorded() -> None:
    begun, ended, taken = threading.Event(), threading.Event(), threading.Event()
    stored: list[str] = []

    def put(ctx: SkillContext[Cart]) -> None:
        assert begun.wait(PATIENCE)
        ctx.run_context.items.append("it")

    def take(ctx: SkillContext[Cart]) -> None:
        stored.extend(one["call_id"] for one in run.data("skill_execute"))  # although it had to wait for its turn
        begun.set()
        assert ended.wait(PATIENCE)
        ctx.run_context.items.pop()
        taken.set()

    def listen(event: Event) -> None:
        if event.type == "result" and event.scope == "0.a":
            ended.set()
            assert taken.wait(PATIENCE)  # so that the root learns of the task's end after the change

    it = Agent(instructions="x", skills=[Skill("put", execute=put, inputs={}), Skill("take", execute=take, inputs={})])
    scripts = {"go": [BOTH], "task-a": [command("put"), "<final>a</final>"], "task-b": [command("take"), "<final>b</final>"]}
    run = Stored(WAYS[0], it, scripts)
    assert run.execute(context=Cart(), on_event=listen).ok
    assert (saved_last(run), sorted(stored)) == ({"items": []}, ["0.a/0.0", "0.b/0.0"])


def test_a_task_that_waited_for_a_decision_still_shares_the_state_when_it_continues() -> None:
    waits, again = threading.Event(), Cart()
    it = with_more(
        Skill("pay", execute=lambda: "paid", inputs={}, approval=True),
        Skill("wait", execute=lambda: waits.wait(PATIENCE), inputs={}),
    )
    run = Stored(WAYS[0], it, {
        "go": [BOTH, command("put", "r"), "<final>done</final>"],
        "task-a": [command("put", "a1"), command("pay"), command("put", "a2"), "<final>a</final>"],
        "task-b": [command("wait"), command("put", "b1"), "<final>b</final>"],
    })
    result = run.execute(context=Cart(), on_event=lambda event: waits.set() if event.type == "approval_requested" else None)
    [pending] = result.pending
    assert run.resume(context=again, approvals={pending.call_id: True}).ok
    assert again.items == ["a1", "b1", "a2", "r"]
    assert saved_last(run) == {"items": again.items}


@pytest.mark.parametrize("shares", [False, True])
def test_a_state_that_cannot_be_saved_in_a_task_is_saved_when_its_own_run_continues(shares: bool) -> None:
    class Rows(Cart):
        def child(self, task_id: str | None) -> Rows:
            made = super().child(task_id)
            made.own_thread, made.items = None, []
            return made

        own_thread: threading.Thread | None = None
        shared: list[str] | None = None

        def save(self) -> Any:
            if self.own_thread not in (None, threading.current_thread()):
                failed.append(self.items)
                raise RuntimeError("not in this thread")
            return super().save()

    scripts = {"go": [command("put", "x"), BOTH, "<final>done</final>"], "task-a": ["<final>a</final>"], "task-b": ["<final>b</final>"]}
    run, context, failed = Stored(WAYS[0], shopper(), scripts), Rows(), list[Any]()
    context.own_thread, context.shared = threading.current_thread(), [] if shares else None
    result = run.execute(context=context)
    assert (result.ok, bool(failed)) == (True, shares), "a task that shares nothing saves nothing else"
    assert '{"a": "a", "b": "b"}' in result.messages[-2].text
    assert saved_last(run) == {"items": ["x"]}


def test_ctrl_c_while_a_call_waits_for_its_turn_is_not_lost() -> None:
    times = [0.0]
    run, state = ByHand(shopper(), context=Cart(), monotonic=lambda: times[-1]).state, host_state.HostState()
    assert list(state.in_turn(run, CallSkill("", "0.0", "put", {}))) == []
    waiting = state.in_turn(run, CallSkill("", "0.1", "put", {}))
    assert isinstance(next(waiting), Sleep)
    with pytest.raises(KeyboardInterrupt):
        waiting.throw(KeyboardInterrupt())
    times.append(host_state.LONGEST_WAIT)
    assert list(state.in_turn(run, CallSkill("", "0.2", "look", {}))) == []
    assert not any(state.in_turn(run, CallSkill("", "0.3", "put", {}))), "a skill that took too long takes no turns"
    state.recorded_with(ApprovalRequestedRow("0.2", "look", {}, "may it?", {}))
    assert not any(state.in_turn(run, CallSkill("", "0.4", "pay", {}))), "a call that waits for a decision has no turn"
