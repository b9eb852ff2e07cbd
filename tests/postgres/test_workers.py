"""`Workers` on a real server: a submitted run is done once, by any worker that can; a person decides the rest."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partialmethod
from pathlib import Path
from typing import Any
from unittest.mock import patch

import procrastinate
import psycopg
import psycopg_pool
import pytest

import kernai
from kernai import Agent, KernaiError, Media, MockProvider, Pause, RunConflictError, Skill, SkillContext, resume
from kernai.postgres import PostgresStore, RunHandle, Workers, server, workers
from kernai.postgres.workers import submit_again
from kernai.runs import run_request
from kernai.testing.contracts import at_once
from tests.durable.durable_cases import command, provider
from tests.postgres.server import Server
from tests.warm_python import WarmPython

PATIENCE = 60.0
SCRIPT = {"go": [command("act"), "<final>done</final>"], "twice": [command("act") * 2, "<final>done</final>"]}


@pytest.fixture
def store(server: Server, schema: str) -> Iterator[PostgresStore]:
    with PostgresStore(server.dsn, schema=schema, create=True) as made:
        yield made


@pytest.fixture(autouse=True)
def _reaps_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "ROUND", 0.05)
    monkeypatch.setattr(workers, "POLL", 0.1)


def acting(act: Any, **flags: Any) -> Agent[Any]:
    return Agent(instructions="x", skills=[Skill("act", execute=act, inputs={}, **flags)], provider=provider(SCRIPT))


@contextmanager
def working(*pool: Workers) -> Iterator[None]:
    threads = [threading.Thread(target=one.run) for one in pool]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for one in pool:
            one.stop()
        for thread in threads:
            thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)


def until(handle: RunHandle, *statuses: str) -> None:
    end = time.monotonic() + PATIENCE
    while handle.info().status not in statuses:
        assert time.monotonic() < end, f"the run is {handle.info().status}"
        threading.Event().wait(0.02)


def jobs(store: PostgresStore) -> list[Any]:
    with store.transaction() as connection:
        return connection.execute("SELECT status::text, args FROM procrastinate_jobs ORDER BY id").fetchall()


def test_a_submitted_run_is_done_and_its_result_can_be_read_elsewhere(store: PostgresStore) -> None:
    calls: list[str] = []
    it = acting(lambda: calls.append("act"))
    own = Workers(store, {"clerk": it}, concurrency=3)
    kernai.configure(recorder=(recorder := kernai.Recorder()))
    handles = [own.submit("clerk", "go", run_id=f"r{number}", tags={"n": str(number)}) for number in range(5)]
    assert [one.info().status for one in handles] == ["queued"] * 5
    assert [one.run_id for one in store.runs(tags={"n": "3"})] == ["r3"]
    own.run(wait=False)
    elsewhere = Workers(store, {"clerk": it})
    results = [elsewhere.handle(one.run_id).result(PATIENCE) for one in handles]
    assert [(one.text, one.stop_reason) for one in results] == [("done", "final")] * 5
    assert (len(calls), jobs(store)) == (5, [])
    events = list(handles[0].events())
    assert events[-1].type == "result"
    sent = [one for one in handles[0].events(2) if one.type == "messages_sent"]
    assert sent == [one for one in recorder.for_event("messages_sent") if one.run_id == "r0"], "as they happened"
    assert list(handles[0].events(len(events))) == [], "a reader that reconnects after the end waits for nothing"
    resume(it, "r0", store=store, input="and now?")
    with patch.object(PostgresStore, "load", autospec=True, side_effect=PostgresStore.load) as load:
        assert [one.type for one in handles[0].events()].count("result") == 2
    assert load.call_count == 1, "not once per result: a run with many sub-runs would be read as often"
    with pytest.raises(RunConflictError, match="run 'r1' has"):
        own.submit("clerk", "go", run_id="r1")


def test_an_input_with_media_a_history_and_a_tenant_reach_the_worker(store: PostgresStore) -> None:
    seen: list[Any] = []

    def answer(messages: Any, model: Any) -> str:
        seen.extend((one.role, one.text, [media.read_bytes() for media in one.media]) for one in messages[1:])
        return "<final>done</final>"

    own = Workers(store, {"clerk": Agent(instructions="x", provider=MockProvider().on_call(answer))})
    image = Media.from_bytes(b"abc", mime_type="image/png")
    handle = own.submit("clerk", ["look", image], history=[{"role": "user", "content": "before"}], tenant="acme")
    own.run(wait=False)
    assert (handle.result(PATIENCE).text, list(store.runs())) == ("done", [])
    assert [one[::2] for one in seen] == [("user", []), ("user", [b"abc"])]


@pytest.mark.parametrize("is_worker", [True, False], ids=["by a worker", "by another program"])
def test_a_decision_is_acted_on_even_if_it_comes_while_the_run_is_worked_on(
    store: PostgresStore, is_worker: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "ROUND", 2 * PATIENCE if is_worker else workers.ROUND)  # it is not left to a round
    calls: list[str] = []

    def act(ctx: SkillContext) -> None:
        if ctx.approval is None:
            raise Pause("may it?")
        if ctx.call_id == "0.1":
            store.decide(ctx.run_id, "0.0", True)
            while len(jobs(store)) > is_worker:  # the job of the decision finds the run busy
                threading.Event().wait(0.01)
        calls.append(ctx.call_id)

    own = Workers(store, {"clerk": acting(act).replace(parallel_skills=True)})
    with working(own):
        handle = own.submit("clerk", "twice")
        waits = handle.result(PATIENCE)
        assert (waits.stop_reason, [one.skill for one in waits.pending], calls) == ("interrupt", ["act", "act"], [])
        if is_worker:
            store.decide(handle.run_id, "0.1", True)
        else:
            resume(own.agents["clerk"], handle.run_id, store=store, approvals={"0.1": True})
        assert handle.result(PATIENCE).text == "done"
    assert calls == ["0.1", "0.0"]


def test_a_run_continues_when_the_time_it_waits_for_has_come(store: PostgresStore) -> None:
    seen: list[bool] = []

    def act(ctx: SkillContext) -> None:
        seen.append(ctx.woken)
        if not ctx.woken:
            raise Pause("later", until=datetime.now(UTC) + timedelta(seconds=0.2))

    own = Workers(store, {"clerk": acting(act)})
    with working(own):
        until(own.submit("clerk", "go"), "final")
    assert seen == [False, True]


def test_runs_are_cancelled_from_elsewhere_and_the_worker_asks_for_all_of_them_at_once(store: PostgresStore, server: Server) -> None:
    asked = threading.Event()

    class Asked(PostgresStore):
        def cancel_requests(self, run_ids: Iterable[str]) -> dict[str, str]:
            if len(wanted := list(run_ids)) == len(handles):
                asked.set()
            return super().cancel_requests(wanted)

    def act(ctx: SkillContext) -> None:
        while not ctx.cancelled:
            threading.Event().wait(0.01)

    with Asked(server.dsn, schema=store.schema) as watched:
        own = Workers(watched, {"clerk": acting(act)}, lease=1)
        queued = own.submit("clerk", "go")
        queued.cancel("not needed")
        assert (str(queued.result(0).error), queued.result(0).messages[0].text) == ("the run was closed: not needed", "go")
        with working(own):
            handles = [own.submit("clerk", "go") for _ in range(2)]
            assert asked.wait(PATIENCE)
            for handle in handles:
                handle.cancel("the customer has\0 left")
            results = [handle.result(PATIENCE) for handle in handles]
    assert [(one.stop_reason, str(one.error)) for one in results] == [("cancelled", "the run was cancelled: the customer has left")] * 2


SLEEPS = threading.Event()


def waits_or_sleeps(ctx: SkillContext) -> None:
    if ctx.call_id == "0.0":
        raise Pause("later", until=datetime.now(UTC))
    SLEEPS.set()
    while not ctx.cancelled:
        threading.Event().wait(0.01)


@pytest.mark.parametrize("given, act, limits, ends", [
    ("go", sys.exit, {}, ("cancelled", kernai.RunCancelledError, "the run was interrupted", 1)),
    ("go", print, {"max_calls": 2}, ("max_calls", kernai.LimitReachedError, "max_calls=2 is used up: allow more with Limits(max_calls=...)", 2)),
    ("twice", waits_or_sleeps, {"timeout": 0.4}, ("timeout", kernai.LimitReachedError, "timeout=0.4 s has passed", 2)),
])
def test_a_run_that_an_exit_or_a_limit_ends_has_a_result_whatever_its_agent_is_now(
    store: PostgresStore, given: str, act: Any, limits: Any, ends: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_request._CLOCK, "monotonic", SLEEPS.is_set)  # no time passes before a call sleeps
    own = Workers(store, {"clerk": acting(act).replace(parallel_skills=True)}, options=lambda _: {"limits": kernai.Limits(**limits)})
    handle = own.submit("clerk", given)
    own.run(wait=False)
    for it in (own.agents, {"clerk": Agent(instructions="another")}):
        result = Workers(store, it).handle(handle.run_id).result(0)
        assert (result.stop_reason, type(result.error), str(result.error), result.steps) == ends


def test_workers_continue_a_fork_of_a_submitted_run_once_it_is_enqueued(store: PostgresStore) -> None:
    own = Workers(store, {"clerk": acting(lambda: None)})
    handle = own.submit("clerk", "go")
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    own.run(wait=False)
    assert signal.signal(signal.SIGTERM, before) == signal.SIG_IGN, "as the program has set it"
    kernai.fork(store, handle.run_id, at_step=1, run_id="f")
    assert store.enqueue("f")
    own.run(wait=False)
    assert own.handle("f").result(0).text == "done"


def test_runs_with_the_same_lock_run_one_at_a_time(store: PostgresStore) -> None:
    at_work, most = [0], [0]

    def act() -> None:
        at_work[0] += 1
        most[0] = max(most[0], at_work[0])
        threading.Event().wait(0.02)
        at_work[0] -= 1

    own = Workers(store, {"clerk": acting(act)}, concurrency=8)
    handles = [own.submit("clerk", "go", lock="customer:7") for _ in range(4)]
    with working(own):
        assert [one.result(PATIENCE).text for one in handles] == ["done"] * 4
    assert most == [1]


# ---------------------------------------------------------------------------------- runs that no worker can continue


def test_a_run_is_blocked_if_the_worker_does_not_know_its_agent(store: PostgresStore) -> None:
    handle = Workers(store, {"clerk": acting(print)}).submit("clerk", "go")
    Workers(store, {"triage": acting(print), "other": acting(print)}).run(wait=False)
    why = "this worker has no agent 'clerk'; it has 'triage', 'other'"
    assert (handle.info().status, handle.info().why) == ("blocked", why)
    with pytest.raises(KernaiError, match=f"is blocked: {why}"):
        handle.result(PATIENCE)
    assert store.enqueue(handle.run_id)  # once a worker has the agent
    Workers(store, {"clerk": acting(lambda: None)}).run(wait=False)
    assert (handle.result(PATIENCE).text, handle.info().why) == ("done", None)
    with pytest.raises(KernaiError, match="this worker has no agent 'clerk'; it has none"):
        Workers(store, {}).handle(handle.run_id).result(PATIENCE)


def test_a_changed_agent_blocks_a_run_only_if_it_would_decide_differently(store: PostgresStore, caplog: pytest.LogCaptureFixture) -> None:
    own = Workers(store, {"clerk": acting(lambda: None, approval=True)})
    handle = own.submit("clerk", "go")
    own.run(wait=False)
    length = handle.info().length
    changed = Workers(store, {"clerk": Agent(instructions="x", provider=provider(SCRIPT))})
    waits = changed.handle(handle.run_id).result(0)
    assert (waits.stop_reason, waits.pending, waits.messages) == ("interrupt", handle.info().pending, handle.result(0).messages)
    store.decide(handle.run_id, "0.0", True)
    changed.run(wait=False)
    info = handle.info()
    assert (info.status, info.length, list(info.decisions)) == ("blocked", length, ["0.0"])
    assert ("skill_execute" in str(info.why), f"run {handle.run_id} is blocked: " in caplog.text) == (True, True)
    with pytest.raises(KernaiError, match="is blocked: ReplayDivergenceError"):
        handle.result(PATIENCE)  # although there is a decision
    store.enqueue(handle.run_id)
    reworded = acting(lambda: None, approval=True).replace(instructions="y", max_steps=7)
    Workers(store, {"clerk": reworded}).run(wait=False)
    assert handle.result(PATIENCE).text == "done"
    assert ["definition" in one["data"] for one in store.load(handle.run_id) if one["event"] == "run_resumed"] == [False, True]


def test_an_agent_that_protects_less_blocks_the_run_until_a_person_accepts_it(store: PostgresStore) -> None:
    calls: list[str] = []
    handle = Workers(store, {"clerk": acting(print, approval=True)}).submit("clerk", "go")
    loose = {"clerk": acting(lambda: calls.append("act"))}
    Workers(store, loose).run(wait=False)
    assert (handle.info().status, calls) == ("blocked", [])
    assert "skill act: approval was True, is False (accept with 'act.approval')" in str(handle.info().why)
    store.enqueue(handle.run_id)
    Workers(store, loose, accept=["act.approval"]).run(wait=False)
    assert (handle.result(PATIENCE).text, calls) == ("done", ["act"])


def test_a_run_is_blocked_if_its_options_cannot_be_computed(store: PostgresStore, caplog: pytest.LogCaptureFixture) -> None:
    def options(info: Any) -> Any:
        if info.run_id == "r":
            raise LookupError(f"no customer for {info.run_id}")
        return {} if info.run_id == "failing" else None

    own = Workers(store, {"clerk": acting(print), "failing": Agent(instructions=lambda: 1 / 0)}, options=options)  # type: ignore[arg-type]
    found = [own.submit("clerk", "go", run_id=run_id) for run_id in ("r", "s")]
    own.submit("failing", "go", run_id="failing")
    own.run(wait=False)
    assert "run failing has ended: ZeroDivisionError: division by zero\nTraceback" in caplog.text
    whys = ["LookupError: no customer for r", "TypeError: options must return a dict, got NoneType"]
    assert [(one.info().status, one.info().why) for one in found] == [("blocked", why) for why in whys]
    own.stop()  # it has ended already


@pytest.mark.parametrize("given, kind, why", [
    ({"store": object()}, TypeError, "store must be a PostgresStore, got object"),
    ({"agents": {"a": "b"}}, TypeError, "a mapping of names to agents, got str in it"),
    ({"agents": []}, TypeError, "a mapping of names to agents, got list"),
    ({"options": {}}, TypeError, "options must be a plain function of the run's RunInfo, got"),
    ({"concurrency": 0}, ValueError, "concurrency must be a positive int, got 0"),
    ({"lease": 0}, ValueError, "lease must be a number of seconds above 0"),
    ({"grace": "x"}, ValueError, "grace must be a number of seconds above 0"),
    *[({"queue": queue}, ValueError, "queue must be a name, got") for queue in (None, "")],
])
def test_invalid_arguments_of_workers_are_refused(store: PostgresStore, given: Any, kind: Any, why: str) -> None:
    with pytest.raises(kind, match=why):
        Workers(**{"store": store, "agents": {}, **given})
    with pytest.raises(ValueError, match=r"store is the view of 'acme': pass the store itself, and submit\(tenant='acme'\)"):
        Workers(store.tenant("acme"), {})


def test_an_unknown_agent_cannot_be_submitted_and_an_unknown_run_has_no_result(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "WATCHED", 0.1)
    own = Workers(store, {"clerk": acting(print)})
    with pytest.raises(KernaiError, match="this worker has no agent 'clark'; it has 'clerk'"):
        own.submit("clark", "go")
    mistakes: list[tuple[str, Any]] = [("tags", "urgent"), ("tenant", None), ("lock", 7)]
    for argument, value in mistakes:
        with pytest.raises((TypeError, ValueError), match=f"{argument} must be"):
            own.submit("clerk", "go", **{argument: value})
    for look in (lambda: own.handle("r").result(0), lambda: next(own.handle("r").events())):
        with pytest.raises(KernaiError, match="the store has no run 'r'"):
            look()
    handle = own.submit("clerk", "go")
    events = handle.events()
    assert next(events).type == "run_start"
    store.delete(handle.run_id)
    with pytest.raises(KernaiError, match="the store has no run"):
        next(events)
    another = Workers(store, own.agents, queue="another")
    with pytest.raises(TimeoutError, match="has not ended after 0 s; it is queued"):
        another.submit("clerk", "go", run_id=handle.run_id).result(0)
    with pytest.raises(TypeError, match="timeout must be a number of seconds, got str"):
        another.handle(handle.run_id).result("1")  # type: ignore[arg-type]  # the mistake
    another.run(wait=False)
    assert handle.result(0).text == "done"


# -------------------------------------------------------------------------------------------------- workers that stop


def test_a_stopped_worker_leaves_its_run_to_another_before_the_next_call(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    right = PostgresStore.info

    def stops(ctx: SkillContext) -> None:
        calls.append(ctx.call_id)
        one.stop()

    def fetched(own: PostgresStore, run_id: str) -> Any:
        fetching.stop()
        return right(own, run_id)

    providers = [provider(SCRIPT), provider(SCRIPT)]
    one = Workers(store, {"clerk": acting(stops).replace(provider=providers[0])})
    handle, fetching = one.submit("clerk", "go"), Workers(store, {})
    with monkeypatch.context() as patched:
        patched.setattr(PostgresStore, "info", fetched)
        fetching.run()
    assert (handle.info().status, [status for status, _ in jobs(store)]) == ("queued", ["todo"])
    one.run()
    assert (handle.info().status, handle.info().lease, calls) == ("abandoned", None, ["0.0"])
    assert [entry["event"] for entry in store.load(handle.run_id)][-1] == "skill_result"
    assert [status for status, _ in jobs(store)] == ["todo"]
    Workers(store, {"clerk": acting(print).replace(provider=providers[1])}).run(wait=False)
    assert (handle.result(PATIENCE).text, calls) == ("done", ["0.0"])
    assert [one.call_count for one in providers] == [1, 1]


def test_calls_in_progress_when_a_worker_is_stopped_are_not_lost(store: PostgresStore) -> None:
    calls: list[str] = []
    both = threading.Barrier(2)

    def act(ctx: SkillContext) -> None:
        both.wait(PATIENCE)
        for _ in range(50):  # stopping twice must not cut calls short
            one.stop()
            store.info(ctx.run_id)
        calls.append(ctx.call_id)

    one = Workers(store, {"clerk": acting(act).replace(parallel_skills=True)})
    handle = one.submit("clerk", "twice")
    one.run()
    assert sorted(calls) == ["0.0", "0.1"]
    Workers(store, {"clerk": acting(act).replace(parallel_skills=True)}).run(wait=False)
    assert (handle.result(PATIENCE).text, len(calls)) == ("done", 2)


WORKER = """
import sys, threading, kernai
from kernai import Agent, Skill
from kernai.postgres import PostgresStore, Workers, workers
from tests.durable.durable_cases import command, provider
workers.ROUND = 0.05
def act():
    with open({calls!r}, "a") as file:
        file.write("act\\n")
    print("acting", flush=True)
    if sys.argv[1] == "hangs":
        threading.Event().wait()
agent = Agent(instructions="x", skills=[Skill("act", execute=act, inputs={{}}, idempotent=sys.argv[2] == "idempotent")],
              provider=provider({{"go": [command("act"), "<final>done</final>"]}}))
with PostgresStore({dsn!r}, schema={schema!r}) as store:
    Workers(store, {{"clerk": agent}}, lease=3, grace=0.2).run()
"""


@pytest.mark.process
@pytest.mark.parametrize("kind, number", [
    ("idempotent", signal.SIGKILL), ("once", signal.SIGKILL), ("idempotent", signal.SIGTERM),
])
def test_the_run_of_a_worker_that_ends_during_a_call_is_continued_by_another(
    server: Server, store: PostgresStore, python: WarmPython, tmp_path: Path, kind: str, number: signal.Signals
) -> None:
    calls, script = tmp_path / "calls", tmp_path / "worker.py"
    script.write_text(WORKER.format(calls=str(calls), dsn=server.dsn, schema=store.schema))
    handle = Workers(store, {"clerk": acting(lambda: None, idempotent=kind == "idempotent")}).submit("clerk", "go")
    with python.run(script, "hangs", kind) as first:
        assert first.stdout.readline() == "acting\n"
        first.send_signal(number)  # a call that does not end within the grace period is abandoned
        first.communicate()
    with python.run(script, "works", kind) as second:
        if kind == "once":
            until(handle, "blocked")
            assert calls.read_text() == "act\n"
            assert [one.call_id for one in handle.info().pending] == ["0.0"]
            assert str(handle.info().why).startswith("its worker ended during 0.0 (act), which may have taken effect")
            store.decide(handle.run_id, "0.0", "it was done by hand")
        assert handle.result(PATIENCE).text == "done"
        second.send_signal(signal.SIGTERM)
        second.communicate()
    assert second.returncode == 0
    assert calls.read_text() == "act\n" * (2 if kind == "idempotent" else 1)
    assert jobs(store) == []


def test_a_run_that_ends_its_workers_again_and_again_is_blocked_until_it_is_enqueued(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Workers(store, {"clerk": acting(lambda: None)})
    handle = own.submit("clerk", "go")
    resumed = {**store.load(handle.run_id)[0], "event": "run_resumed", "data": {"from_seq": 1, "dropped": [], "format": 2}}
    store.append(handle.run_id, 1, [resumed] * 10, [], claim=("h:1:2:3", 0.001))
    seen, right = [replace(handle.info(), status="error")], PostgresStore.info
    monkeypatch.setattr(PostgresStore, "info", lambda own, run_id: seen.pop() if seen else right(own, run_id))
    with pytest.raises(TimeoutError):  # as if it had been continued just after it was found to have ended
        handle.result(0)
    own.run(wait=False)
    assert (handle.info().status, str(handle.info().why)[:32]) == ("blocked", "10 workers ended at this point, ")
    store.enqueue(handle.run_id)
    own.run(wait=False)
    assert handle.result(0).text == "done"


def test_a_failed_job_is_submitted_again(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = [2], PostgresStore.info

    def away(own: PostgresStore, run_id: str) -> Any:
        if threading.current_thread().name == "kernai-worker" and left[0]:
            left[0] -= 1
            raise KernaiError("the server is away") from psycopg.OperationalError()
        return right(own, run_id)

    monkeypatch.setattr(PostgresStore, "info", away)
    own = Workers(store, {"clerk": acting(lambda: None)})
    with working(own):
        assert own.submit("clerk", "go").result(PATIENCE).text == "done"
    assert (left, jobs(store)) == ([0], [])


def test_a_worker_that_fails_says_why_and_starts_again(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workers, "POLL", 0.01)

    def act() -> None:
        with store.transaction() as connection:  # as the reaper of a worker that has taken over the run
            connection.execute("DELETE FROM procrastinate_jobs")

    own = Workers(store, {"clerk": acting(act)})
    with psycopg.connect(store.conninfo, autocommit=True) as connection:
        connection.execute(f"ALTER TABLE {store.schema}.procrastinate_workers RENAME TO gone")
        with working(own):
            while "starts again" not in caplog.text:
                threading.Event().wait(0.01)
            connection.execute(f"ALTER TABLE {store.schema}.gone RENAME TO procrastinate_workers")
            assert own.submit("clerk", "go").result(PATIENCE).text == "done"
    gc.collect()
    assert 'the worker has failed and starts again: relation "procrastinate_workers" does not exist' in caplog.text
    (line,) = (one for one in caplog.messages if one.startswith("could not end a job; another worker may have its run: Job was not found"))
    assert "\n" not in line


def test_a_worker_stopped_while_it_connects_ends(store: PostgresStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = psycopg_pool.AsyncConnectionPool
    monkeypatch.setattr(pool, "open", partialmethod(pool.open, timeout=2 * PATIENCE))  # it does not give up on its own
    monkeypatch.setattr(pool, "close", partialmethod(pool.close, timeout=0.1))
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / ".s.PGSQL.5432"))
        silent.listen()
        own = Workers(store, {"clerk": acting(print)})
        store.conninfo = f"postgresql://kernai@/postgres?host={tmp_path}"
        with working(own):
            accepted, _ = silent.accept()
            own.stop()
        accepted.close()


def test_a_worker_ends_even_if_the_server_has_stopped_answering(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    async def stuck(*_: object, **options: object) -> None:
        begun.set()
        for _wait in range(4):  # for the response to a query, for the job's end, ...
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    monkeypatch.setattr(procrastinate.App, "run_worker_async", stuck)
    monkeypatch.setattr(workers, "LATE", 0.01)
    monkeypatch.setattr(server, "LATE", 0.01)
    with store._server._separate_lock:  # a renewal has it
        with working(Workers(store, {}, grace=0.01)):
            assert begun.wait(PATIENCE)
        store.close()


def test_a_job_of_a_worker_that_only_seems_dead_is_left_alone(store: PostgresStore) -> None:
    begun, go = threading.Event(), threading.Event()

    def act() -> None:
        begun.set()
        go.wait(PATIENCE)

    own = Workers(store, {"clerk": acting(act)})
    with working(own):
        handle = own.submit("clerk", "go")
        assert begun.wait(PATIENCE)
        with store.transaction() as connection:
            connection.execute("UPDATE procrastinate_workers SET last_heartbeat = now() - interval '1 hour'")
        assert submit_again(store, "kernai", 1.0) == 0
        go.set()
        assert handle.result(PATIENCE).text == "done"


def test_abandoned_runs_are_submitted_again_by_one_worker_at_a_time(store: PostgresStore, caplog: pytest.LogCaptureFixture) -> None:
    own = Workers(store, {"clerk": acting(print)})
    for run_id in ("left", "silent", "forgotten", "alive", "again", "deleted", "damaged", "damaged-too"):
        own.submit("clerk", "go", run_id=run_id)
    store.claim("again", "h:1:2:3", 0.001)  # before the job that is about to claim it began
    with store.transaction() as connection:
        connection.execute("UPDATE runs SET status = 'running'")
        connection.execute("WITH one AS (INSERT INTO procrastinate_workers DEFAULT VALUES RETURNING id) "
                           "UPDATE procrastinate_jobs SET status = 'doing', worker_id = one.id FROM one")
        connection.execute("DELETE FROM procrastinate_jobs WHERE args->>'run_id' IN ('forgotten', 'damaged-too')")
        connection.execute("UPDATE runs SET info = '{}' WHERE run_id LIKE 'damaged%'")
        connection.execute("UPDATE procrastinate_jobs SET worker_id = NULL WHERE args->>'run_id' = 'silent'")
    store.delete("deleted")
    store.claim("left", "h:1:2:3", 0.001)
    assert submit_again(store, "another queue", 3600.0) == 0
    failed = at_once(lambda number: submit_again(store, "kernai", 3600.0), 6)
    assert (failed, "run damaged cannot be read" in caplog.text) == ([], True)
    found = {args["run_id"]: status for status, args in jobs(store)}
    assert found == {"alive": "doing", "again": "doing", "damaged": "doing", "left": "todo", "silent": "todo", "forgotten": "todo"}
    assert submit_again(store, "kernai", 3600.0) == 0


def test_the_job_of_an_ended_run_is_left_to_its_worker_for_as_long_as_a_lease(store: PostgresStore) -> None:
    handle = Workers(store, {"clerk": acting(print)}).submit("clerk", "go")
    resume(acting(print), handle.run_id, store=store)
    for until, left in ("until", ["doing"]), ("0", []):
        with store.transaction() as connection:
            connection.execute(f"UPDATE procrastinate_jobs SET status = 'doing'; UPDATE runs SET until = {until}")
        assert submit_again(store, "kernai", 1.0) == 0
        assert [status for status, _ in jobs(store)] == left
