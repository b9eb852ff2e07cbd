"""Ctrl-C in a synchronous run: it is raised in the user's code, noted in kernai's, and always raised to the caller."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import pytest

import kernai
from kernai import Agent, Context, MemorySink, MemoryStore, MockProvider, Protocol, Recorder, Skill, SkillContext
from kernai._util import worker_pool
from kernai.drivers.background_loop import BackgroundLoop
from kernai.interrupts import INTERRUPTS
from kernai.loop.effects import CallModel, Sleep
from kernai.middleware import Hooks
from kernai.recording_file import read_recording
from tests.ways import PATIENCE
from tests.written import command, final, plan


@pytest.fixture(autouse=True)
def pythons_own_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


class Key:
    """Ctrl-C, pressed once, or `times` in a row, by whoever calls this; and whether it was raised there."""

    def __init__(self, times: int = 1) -> None:
        self.left = times
        self.raised: list[bool] = []

    def __call__(self, *_: object) -> None:
        if self.left == 0:
            return
        self.left -= 1
        try:
            signal.raise_signal(signal.SIGINT)
            self.raised.append(False)
        except KeyboardInterrupt:
            self.raised.append(True)
            raise


def skill(body: Callable[..., Any]) -> dict[str, Any]:
    def work() -> str:
        body()
        return "worked"

    return {"skills": [Skill("work", execute=work)]}


def working(work: Callable[[], Any]) -> Agent:
    """An agent whose model calls its only skill, then ends."""
    provider = MockProvider(command("work"), final("done"))
    return Agent(instructions="x", skills=[Skill("work", execute=work)], provider=provider)


def then(key: Callable[[], None], value: Any) -> Callable[..., Any]:
    """A function that presses the key, whatever it is given, and returns the value."""

    def press(*_: object, **__: object) -> Any:
        key()
        return value

    return press


def with_context(key: Key) -> dict[str, Any]:
    def work(ctx: SkillContext[Context]) -> str | None:
        return ctx.credential("key")

    kernai.configure(credential_resolver=type("Resolver", (), {"resolve": staticmethod(then(key, "secret"))})())
    return {"skills": [Skill("work", execute=work, credentials={"key": kernai.Credential()})]}


def flow(effect: Any) -> Generator[Any, Any, Any]:
    return (yield effect)


def middleware(key: Key) -> dict[str, Any]:
    def pressed(effect: Any) -> Generator[Any, Any, Any]:
        key()
        return (yield effect)

    return {"middleware": [pressed]}


def hook(name: str) -> Callable[[Key], dict[str, Any]]:
    return lambda key: {"middleware": [type("Pressed", (Hooks,), {name: then(key, None)})()]}


def pressing(key: Key, kind: type, method: str) -> Any:
    """An instance of the class that presses the key before it does what it does in this method."""

    def press(self: object, *given: Any, **named: Any) -> Any:
        key()
        return getattr(kind, method)(self, *given, **named)

    return type("Pressing", (kind,), {method: press})()


class SavedContext(Context):
    """Presses the key at its second save, after the first outcome: at the first, the run has not begun."""

    def __init__(self, key: Key) -> None:
        super().__init__()
        self.saves: list[Callable[[], None]] = [lambda: None, key]

    def save(self) -> Any:
        self.saves.pop(0)()
        return {}


#: what the agent is made with
MADE: dict[str, Callable[[Key], dict[str, Any]]] = {
    "a skill": skill,
    "a credential resolver": with_context,
    "a protocol's handler": lambda key: {"protocols": [Protocol("work", then(key, None))]},
    "instructions": lambda key: {"instructions": then(key, "x")},
    "a middleware": middleware,
    "what makes a middleware": lambda key: {"middleware": [lambda effect: then(key, flow(effect))()]},
    "on_run_start": hook("on_run_start"),
    "on_run_end": hook("on_run_end"),
    "before_model": hook("before_model"),
    "a provider": lambda key: {"provider": MockProvider().on_call(then(key, final("done")))},
    "approve": lambda key: {"approve": then(key, True), **skill(lambda: None)},
}
#: what the run is given
GIVEN: dict[str, Callable[[Key], dict[str, Any]]] = {
    "on_event": lambda key: {"on_event": key},
    "on_task_complete": lambda key: {"on_task_complete": then(key, None)},
    "on_progress": lambda key: {"on_progress": key},
    "a sink": lambda key: {"recorder": Recorder(pressing(key, MemorySink, "record"))},
    "one of several sinks": lambda key: {"recorder": Recorder(kernai.CompositeSink(pressing(key, MemorySink, "record"), MemorySink()))},
    "a recorder": lambda key: {"recorder": pressing(key, Recorder, "record")},
    "Context.child": lambda key: {"context": pressing(key, Context, "child")},
    "a store": lambda key: {"store": pressing(key, MemoryStore, "append")},
    "Context.save": lambda key: {"context": SavedContext(key), "store": MemoryStore()},
}


@pytest.mark.parametrize("place", [*MADE, *GIVEN])
def test_ctrl_c_is_raised_inside_the_users_code(place: str) -> None:
    key = Key()
    options = GIVEN[place](key) if place in GIVEN else {}
    own = MADE[place](key) if place in MADE else skill(lambda: None)
    says = [command("work"), '<block type="work">x</block>', plan("a"), *[final("done")] * 3]
    made: dict[str, Any] = {"instructions": "x", "provider": MockProvider(*says), **own}
    recorder = options.setdefault("recorder", Recorder())
    run: Any = kernai.map_runs if "on_progress" in options else kernai.execute
    with pytest.raises(KeyboardInterrupt):
        run(Agent(**made), ["go"], **options)
    assert key.raised == [True]
    if place not in ("a sink", "one of several sinks"):
        assert recorder.entries[-1].type == "result"


class Asked:
    """A `cancel` of the user's. Nobody expects an exception from `is_set`, so it counts as kernai's own code."""

    def __init__(self, key: Callable[[], None]) -> None:
        self.is_set = then(key, False)


@pytest.mark.parametrize("store", [None, MemoryStore()])
def test_in_kernais_own_code_ctrl_c_is_noted_and_ends_the_run_before_the_next_effect(store: MemoryStore | None) -> None:
    key, recorder, asked = Key(), Recorder(), MockProvider(final("done"))
    with pytest.raises(KeyboardInterrupt):
        kernai.execute(Agent(instructions="x", provider=asked), "go", cancel=Asked(key), recorder=recorder, store=store, run_id="r")
    assert key.raised == [False]
    assert store is None or store.load("r")[-1]["data"]["stop_reason"] == "cancelled"
    assert asked.call_count == 0
    assert (recorder.entries[-1].type, recorder.entries[-1].data["stop_reason"]) == ("result", "cancelled")


def freed(key: Key) -> object:
    class Freed:
        def __del__(self) -> None:
            key()

    return Freed()


def forgotten(key: Key) -> object:
    class Member:
        """May be referred to weakly."""

    member, members = Member(), WeakSet[Any]()
    members.add(member)
    # what the callback of the reference changes
    members.data = type("Pressing", (set,), {"discard": then(key, None)})(members.data)  # type: ignore[attr-defined]
    member.members = members  # type: ignore[attr-defined]  # so that it lives as long
    return member


@pytest.mark.parametrize("dying", [freed, forgotten])
def test_ctrl_c_while_an_object_is_freed_is_not_lost(dying: Callable[[Key], object]) -> None:
    key, recorder, kept = Key(), Recorder(), list[object]()

    def drop() -> str:
        kept.append(dying(key))
        kept.clear()
        threading.Event().wait(PATIENCE)  # ends when the signal is sent again
        return "dropped"

    with pytest.raises(KeyboardInterrupt):
        kernai.execute(working(drop), "go", recorder=recorder)
    assert key.raised == [False]
    assert (recorder.entries[-1].type, recorder.entries[-1].data["stop_reason"]) == ("result", "cancelled")


def test_a_second_ctrl_c_is_raised_at_once() -> None:
    key, agent = Key(2), Agent(instructions="x", provider=MockProvider(final("done")))
    with pytest.raises(KeyboardInterrupt):
        kernai.execute(agent, "go", cancel=Asked(key), on_event=lambda event: None)
        key()
    assert key.raised[-1]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_second_signal_that_is_swallowed_is_raised_when_the_run_has_ended(error: type[BaseException]) -> None:
    recorder = Recorder()

    def impatient() -> None:
        with suppress(error):
            for _ in range(2):
                INTERRUPTS.arrived(signal.SIGURG, sys._getframe(), error())

    agent = Agent(instructions="x", provider=MockProvider(final("done")))
    with pytest.raises(error):
        kernai.execute(agent, "go", cancel=Asked(impatient), recorder=recorder)
    assert recorder.entries[-1].data["stop_reason"] == "final"


def test_ctrl_c_after_the_answer_is_raised_once_the_recording_is_complete() -> None:
    key, recorder = Key(), Recorder()

    class Pressing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "event=result" in record.getMessage():
                key()

    logger = logging.getLogger("tests.interrupts")
    logger.setLevel(logging.INFO)
    kernai.configure(logger=logger)
    logger.addHandler(Pressing())
    with pytest.raises(KeyboardInterrupt):
        kernai.execute(Agent(instructions="x", provider=MockProvider(final("done"))), "go", recorder=recorder)
    assert key.raised == [False]
    assert recorder.entries[-1].data["stop_reason"] == "final"


def pressed_elsewhere(waits: threading.Event) -> str:
    """Called in a thread other than the main one: Ctrl-C interrupts only that one, and this call would go on waiting."""
    os.kill(os.getpid(), signal.SIGINT)
    waits.wait(PATIENCE)
    return "too late"


@pytest.mark.parametrize("wait", ["for parallel calls", "for an async skill", "in a pause", "for a stream"])
def test_ctrl_c_while_kernai_waits_ends_the_wait_and_the_run(wait: str, no_thread_is_left: None) -> None:
    let_go, recorder = threading.Event(), Recorder()

    async def work_later() -> str:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
        return "too late"

    def pausing(effect: Any) -> Generator[Any, Any, Any]:
        if isinstance(effect, CallModel):
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
            yield Sleep(PATIENCE)
        return (yield effect)

    work = Skill("work", execute=work_later if wait == "for an async skill" else lambda: pressed_elsewhere(let_go))
    agent = Agent(
        instructions="x", skills=[work], provider=MockProvider(command("work") + command("work"), final("done")),
        parallel_skills=wait == "for parallel calls", middleware=[pausing] if wait == "in a pause" else None,
    )
    run: Any = kernai.stream if wait == "for a stream" else kernai.execute
    with pytest.raises(KeyboardInterrupt):
        list(run(agent, "go", recorder=recorder))
    assert (recorder.entries[-1].type, recorder.entries[-1].data["stop_reason"]) == ("result", "cancelled")
    let_go.set()


def test_without_a_run_the_signal_of_a_command_is_raised_at_once_in_kernais_own_code() -> None:
    class Pressing:
        def __fspath__(self) -> str:
            if signals:
                INTERRUPTS.arrived(signal.SIGURG, sys._getframe(), signals.pop())
            return "no/such/file"

    signals = [SystemExit()]
    with pytest.raises(SystemExit):
        read_recording(Pressing())


def test_a_run_within_a_run_shares_the_handler_and_leaves_it_there() -> None:
    handlers: list[Any] = []
    inner = Agent(instructions="x", provider=MockProvider(final("inner")))

    def work() -> str:
        handlers.append(signal.getsignal(signal.SIGINT))
        text = kernai.run(inner, "go")
        handlers.append(signal.getsignal(signal.SIGINT))
        return text

    assert kernai.run(working(work), "go") == "done"
    assert handlers[0] is handlers[1]
    assert handlers[0] is not signal.default_int_handler


def test_a_handler_of_the_hosts_stays_in_place_whether_it_was_there_before_or_a_skill_puts_it_in() -> None:
    presses: list[int] = []

    def own(number: int, _: object) -> None:
        presses.append(number)

    def work() -> str:
        signal.signal(signal.SIGINT, own)
        signal.raise_signal(signal.SIGINT)
        return "worked"

    try:
        assert kernai.run(working(work), "go") == "done"
        assert signal.getsignal(signal.SIGINT) is own
        assert kernai.run(working(work), "go") == "done"
        assert presses == [signal.SIGINT] * 2
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize("run, calls", [(kernai.execute, 2), (lambda agent, text: kernai.map_runs(agent, [text]), 1)])
def test_another_signals_handler_that_raises_just_as_a_call_or_run_ends_hangs_nothing(
    run: Callable[..., Any], calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = MockProvider(command("work") * calls, final("done"))
    agent = working(lambda: "worked").replace(provider=provider, parallel_skills=True)

    class Interrupted(worker_pool.Inbox[Any]):
        def get(self, *given: Any, **named: Any) -> Any:
            got = super().get(*given, **named)
            if lost or threading.current_thread() is not caller:
                return got
            lost.append(got)
            raise SystemExit

    def go() -> None:
        monkeypatch.setattr(worker_pool, "Inbox", Interrupted)
        with pytest.raises(SystemExit):
            run(agent, "go")
        ended.set()

    lost: list[object] = []
    ended, caller = threading.Event(), threading.Thread(target=go, daemon=True)
    caller.start()
    assert ended.wait(PATIENCE)


def test_what_another_signals_handler_raises_just_as_a_call_gets_its_worker_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(pool: worker_pool.WorkerPool, job: worker_pool.Job) -> None:
        submit(pool, job)
        if signals:  # the second call does not begin
            assert begun.wait(PATIENCE)
            raise signals.pop()

    signals, submit, begun, recorder = [SystemExit], worker_pool.WorkerPool.submit, threading.Event(), Recorder()
    monkeypatch.setattr(worker_pool.WorkerPool, "submit", interrupted)
    agent = working(begun.set).replace(provider=MockProvider(command("work") * 2), parallel_skills=True)
    with pytest.raises(SystemExit):
        kernai.execute(agent, "go", recorder=recorder)
    assert recorder.entries[-1].data["stop_reason"] == "cancelled"


def test_no_thread_is_left_if_a_second_ctrl_c_is_pressed_as_the_run_ends_its_threads(
    monkeypatch: pytest.MonkeyPatch, no_thread_is_left: None
) -> None:
    def interrupted(pool: worker_pool.WorkerPool) -> None:
        if again:
            raise again.pop()
        close(pool)

    again, close = [KeyboardInterrupt], worker_pool.WorkerPool.close
    monkeypatch.setattr(worker_pool.WorkerPool, "close", interrupted)
    provider = MockProvider().on_call(lambda messages, _: command("work") * 2 if len(messages) < 3 else then(Key(), "")())
    with pytest.raises(KeyboardInterrupt):
        kernai.execute(working(lambda: "worked").replace(provider=provider, parallel_skills=True), "go")


def test_no_event_loop_is_left_if_a_signals_handler_raises_as_its_thread_starts_or_its_last_work_hangs(
    monkeypatch: pytest.MonkeyPatch, no_thread_is_left: None
) -> None:
    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise SystemExit

    loop, start = BackgroundLoop("kernai-test"), threading.Thread.start
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(threading.Thread, "start", interrupted)
        loop.run(asyncio.sleep(0))
    loop.close(0.01, last=asyncio.Event().wait)


@pytest.mark.parametrize("is_mapped", [False, True])
def test_a_signals_handler_that_takes_longer_than_a_wait_does_not_prolong_it(is_mapped: bool) -> None:
    left, ended = threading.Event(), list[bool]()
    provider = MockProvider(command("work") * 2, final("done"))
    agent = working(lambda: ended.append(left.wait(PATIENCE))).replace(provider=provider, parallel_skills=not is_mapped)
    limits = kernai.Limits(timeout=0.5)
    before = signal.signal(signal.SIGALRM, lambda *_: threading.Event().wait(0.1))
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        result = kernai.map_runs(agent, ["go"], limits=limits)[0] if is_mapped else kernai.execute(agent, "go", limits=limits)
        assert result.stop_reason == "timeout"
        assert not ended  # otherwise the skills have ended on their own
    finally:
        left.set()
        signal.signal(signal.SIGALRM, before)


def test_a_run_in_another_thread_leaves_ctrl_c_to_the_main_one() -> None:
    found: list[Any] = []
    agent = working(lambda: found.append(signal.getsignal(signal.SIGINT)))
    thread = threading.Thread(target=kernai.run, args=(agent, "go"))
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]
