"""`map_runs` and `amap_runs`: bounded concurrency, results in order, and a failed run does not affect the others."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

import kernai
from kernai import Agent, MockProvider, Model, Progress, ProviderError, Recorder, RunResults, SkillContext, Usage
from tests.loop.loop_cases import command

PATIENCE = 20


class Lost(kernai.Context):
    def child(self, task_id: str | None) -> Any:
        super().child(task_id)


MapRuns = Callable[..., RunResults[Any]]


def by_asyncio(*given: Any, **options: Any) -> RunResults[Any]:
    return asyncio.run(kernai.amap_runs(*given, **options))


WAYS = pytest.mark.parametrize("map_runs", [kernai.map_runs, by_asyncio])


def answers(messages: Any, model: Model) -> str:
    """An agent that calls `look`, then answers with the input; it fails for the input "broken"."""
    if messages[-1].text == "broken":
        raise ProviderError("no service")
    return command("look") if len(messages) == 2 else f"<final>{messages[1].text}!</final>"


def agent(look: Callable[..., Any] = lambda: "seen", **options: Any) -> Agent[str]:
    counted = MockProvider().on_call(answers).with_token_counter(
        lambda messages, content: {"prompt_tokens": 10, "completion_tokens": 1})
    return Agent(**{"instructions": "x", "skills": [kernai.Skill("look", execute=look)], "provider": counted, **options})


@WAYS
def test_the_results_are_in_the_order_of_the_inputs_and_usage_is_summed(map_runs: MapRuns) -> None:
    inputs = [str(one) for one in range(20)]
    results = map_runs(agent(model=Model("m", cost=(1.0, 0.0))), (one for one in inputs))
    assert [one.text for one in results] == [f"{one}!" for one in inputs]
    assert (len(results), results.failed) == (20, ())
    assert results.usage == sum((one.usage for one in results), Usage())
    assert (results.usage.model_calls, results.usage.total_tokens) == (40, 440)
    assert results.usage.cost == pytest.approx(400 / 1e6)
    assert len({one.run_id for one in results}) == 20
    assert ((none := map_runs(agent(), [])), none.usage) == (RunResults(), Usage())


@WAYS
def test_no_more_runs_than_concurrency_are_active_at_once(map_runs: MapRuns) -> None:
    together, lock = threading.Barrier(3, timeout=PATIENCE), threading.Lock()
    active: list[int] = [0, 0]

    def look() -> str:
        with lock:
            active[0] += 1
            active[1] = max(active)
        together.wait()
        with lock:
            active[0] -= 1
        return "seen"

    assert map_runs(agent(look), list("abcdefghi"), concurrency=3).failed == ()
    assert active == [0, 3]


class Refuses(kernai.MemoryStore):
    """A store that is full for one run."""

    def append(self, run_id: str, first_seq: int, entries: Any, *given: Any, **more: Any) -> Any:
        if any(entry["data"].get("input") == "full" for entry in entries if entry["event"] == "run_start"):
            raise OSError("disk full")
        return super().append(run_id, first_seq, entries, *given, **more)


@WAYS
def test_a_failed_run_does_not_affect_the_others(map_runs: MapRuns) -> None:
    store = Refuses()
    results = map_runs(agent(), ["a", "broken", "b", "full", "c"], store=store, concurrency=2)
    assert [one.text for one in results] == ["a!", None, "b!", None, "c!"]
    assert results.failed == (1, 3)
    assert [str(one.stop_reason) for one in results] == ["final", "error", "final", "error", "final"]
    assert isinstance(results[1].error, ProviderError)
    assert isinstance(results[3].error, kernai.KernaiError)
    assert isinstance(results[3].error.__cause__, OSError)
    with pytest.raises(kernai.KernaiError, match="OSError: disk full") as caught:
        results[3].unwrap()
    assert caught.value.result is results[3]
    assert {one.run_id for one in store.runs()} == {results[at].run_id for at in (0, 1, 2, 4)}
    limited = map_runs(agent(), ["a", "b"], limits=kernai.Limits(max_calls=1))
    assert [str(one.stop_reason) for one in limited] == ["max_calls", "max_calls"]


@pytest.mark.parametrize("given, error", [
    ({"inputs": "text"}, "inputs must be a list with an input for each run, got str"),
    ({"inputs": ["a", 5]}, r"inputs\[1\] must be str, Media, or a list"),
    *[({"concurrency": one}, f"concurrency must be a positive int, got {one}") for one in (0, True)],
    ({"on_progress": "tqdm"}, r"on_progress must be a function of the progress \(or True, for a bar\), got 'tqdm'"),
    ({"on_progress": lambda: None}, "on_progress must be a function of the progress .*: too many positional arguments"),
    ({"on_progres": print}, "did you mean 'on_progress'"),
    ({"inputs": [], "limits": 5}, "limits must be a Limits"),
    ({"run_id": "r"}, "unknown option 'run_id'"),
    ({"on_event": lambda: None}, "on_event must be a function of the event: too many positional arguments"),
    ({"context": Lost()}, "Lost.child must return the sub-run's context, got None"),
])
@WAYS
def test_a_mistake_of_the_caller_is_raised_before_a_model_is_called(
    map_runs: MapRuns, given: dict[str, Any], error: str
) -> None:
    one = agent()
    with pytest.raises((TypeError, ValueError), match=error):
        map_runs(one, **{"inputs": ["a"], **given})
    assert one.provider.calls == []  # type: ignore[union-attr]  # it is a MockProvider
    with pytest.raises(TypeError, match="agent must be an Agent"):
        map_runs("agent", [])


@WAYS
def test_progress_is_reported_after_each_run(map_runs: MapRuns) -> None:
    seen: list[Progress[str]] = []
    results = map_runs(agent(), ["a", "broken", "b"], on_progress=seen.append, concurrency=1)
    assert [(one.index, one.done, one.total, one.failed) for one in seen] == [(0, 1, 3, 0), (1, 2, 3, 1), (2, 3, 3, 1)]
    assert [one.result for one in seen] == list(results)
    assert seen[-1].usage == results.usage
    assert map_runs(agent(), ["a"], on_progress=False).failed == ()


@WAYS
def test_an_observer_that_raises_is_logged_and_the_runs_continue(
    map_runs: MapRuns, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(progress: Progress[str]) -> None:
        raise kernai.Stop("guardrail", "no") if progress.index else ValueError("no")

    with caplog.at_level(logging.WARNING, "kernai"):
        assert map_runs(agent(), ["a", "b"], on_progress=fails, concurrency=1).failed == ()
    logged = [one.getMessage() for one in caplog.records]
    assert [line for line in logged if "during=on_progress" in line and "event=callback.failed" in line] == logged
    assert len(logged) == 2


def test_async_callbacks_need_asyncio_and_are_called_one_at_a_time() -> None:
    inside, seen = list[str](), list[Any]()

    async def observe(given: Any) -> None:
        inside.append("in")
        await asyncio.sleep(0)
        seen.append(given if inside == ["in"] else "two at once")
        inside.pop()

    assert by_asyncio(agent(), ["a", "b", "c"], on_progress=observe, on_event=observe).failed == ()
    assert {one.index for one in seen if isinstance(one, Progress)} == {0, 1, 2}
    by_asyncio(agent(), list("abc"), on_progress=observe, on_event=lambda _: seen.extend(["two at once"] * len(inside)))
    assert "two at once" not in seen
    for wrong, inputs in (("on_progress", ["a"]), ("on_event", ["a"]), ("on_event", [])):
        one = agent()
        with pytest.raises(TypeError, match=f"{wrong} is an async function: .* the asyncio version"):
            kernai.map_runs(one, inputs, **{wrong: observe})  # type: ignore[arg-type]  # the subject
        assert one.provider.calls == []  # type: ignore[union-attr]  # it is a MockProvider


@WAYS
def test_events_of_concurrent_runs_are_delivered_one_at_a_time(map_runs: MapRuns, threads_are_often_switched: None) -> None:
    inside, types = [0], list[str]()

    def observe(event: kernai.Event) -> None:
        inside[0] += 1
        types.append(event.type if inside == [1] else "two at once")
        inside[0] -= 1

    map_runs(agent(), list("abcdefgh"), on_event=observe)
    assert (types.count("run_start"), types.count("result"), types.count("two at once")) == (8, 8, 0)


@WAYS
def test_cancelling_keeps_the_remaining_runs_from_starting(map_runs: MapRuns) -> None:
    cancel, store = threading.Event(), kernai.MemoryStore()
    results = map_runs(
        agent(), list("abcd"), concurrency=1, cancel=cancel, store=store,
        on_progress=lambda progress: cancel.set() if progress.done == 2 else None,
    )
    assert [str(one.stop_reason) for one in results] == ["final", "final", "cancelled", "cancelled"]
    assert {one.run_id for one in store.runs()} == {results[0].run_id, results[1].run_id}
    with pytest.raises(kernai.RunCancelledError):
        results[2].unwrap()


@pytest.fixture
def leave(no_thread_is_left: None) -> Iterator[threading.Event]:
    """An event for calls that hang until the test has ended."""
    made = threading.Event()
    yield made
    made.set()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, type("Own", (BaseException,), {})])
@pytest.mark.usefixtures("leave")
@WAYS
def test_a_base_exception_ends_all_runs_and_reaches_the_caller(map_runs: MapRuns, error: type[BaseException]) -> None:
    first, recorder = threading.Event(), Recorder()

    def look(ctx: SkillContext) -> str:
        if not first.is_set():
            first.set()
            raise error
        for _ in range(PATIENCE * 100):
            if ctx.cancelled:
                break
            threading.Event().wait(0.01)
        return "seen"

    with pytest.raises(error):
        map_runs(agent(look), list("abcdef"), concurrency=2, recorder=recorder)
    ends = [event.data["stop_reason"] for event in recorder.for_event("result")]
    assert len(ends) == len(recorder.for_event("run_start")) <= 3
    assert set(ends) == {"cancelled"}


@pytest.fixture
def pressed_once() -> Iterator[Callable[[], str]]:
    """A skill that returns at once, and on its first call also sends Ctrl-C."""
    before, first = signal.signal(signal.SIGINT, signal.default_int_handler), threading.Lock()

    def press() -> str:
        if first.acquire(blocking=False):
            os.kill(os.getpid(), signal.SIGINT)
        return "seen"

    yield press
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("_again", range(10))
def test_ctrl_c_while_a_run_ends_is_not_lost_and_ends_the_others(pressed_once: Callable[[], str], _again: int) -> None:
    recorder = Recorder()
    with pytest.raises(KeyboardInterrupt):
        kernai.map_runs(agent(pressed_once), list("abcdef") * 10, concurrency=2, recorder=recorder)
    assert len(recorder.for_event("result")) == len(recorder.for_event("run_start")) < 60


async def test_a_cancelled_task_ends_all_runs() -> None:
    recorder, begun = Recorder(), asyncio.Event()

    async def look() -> None:
        begun.set()
        await asyncio.sleep(PATIENCE)

    task = asyncio.create_task(kernai.amap_runs(agent(look), list("abcdef"), concurrency=2, recorder=recorder))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    ends = [event.data["stop_reason"] for event in recorder.for_event("result")]
    assert len(ends) == len(recorder.for_event("run_start")) <= 2
    assert set(ends) == {"cancelled"}


@pytest.mark.parametrize("options", [{"limits": kernai.Limits(timeout=0.05)}, {}], ids=["timeout", "cancel"])
@WAYS
def test_a_call_that_hangs_is_abandoned(map_runs: MapRuns, options: dict[str, Any], leave: threading.Event) -> None:
    entered, waited, recorder = threading.Event(), threading.Event(), Recorder()

    def look() -> None:
        entered.set()
        leave.wait(PATIENCE)
        waited.set()

    given = options or {"cancel": entered}
    results = map_runs(agent(look), ["a", "b"], recorder=recorder, **given)
    assert {str(one.stop_reason) for one in results} == {"timeout" if options else "cancelled"}
    assert not waited.is_set()
    assert len(recorder.for_event("result")) == len(recorder.for_event("run_start"))


def _raise(error: type[BaseException]) -> str:
    raise error


@dataclass
class Deps(kernai.Context):
    own = ("connection",)
    name: str = "x"
    shared: list[str] = field(default_factory=list)
    connection: Any = None


@WAYS
def test_each_run_has_its_own_context_that_shares_attributes_it_does_not_own(map_runs: MapRuns) -> None:
    seen: list[Deps] = []

    def look(ctx: SkillContext[Deps]) -> str:
        seen.append(ctx.run_context)
        return "seen"

    given = Deps("Ada", connection=object())
    given.trust("DE1")
    assert map_runs(agent(look), ["a", "b"], context=given).failed == ()
    assert len({id(one) for one in (*seen, given)}) == 3
    assert {(one.name, id(one.shared), one.connection, one.depth, one.task_id) for one in seen} == {
        ("Ada", id(given.shared), None, 0, None)}
    assert given.trusted == ("DE1",)


@WAYS
def test_a_history_given_as_an_iterator_is_used_for_every_run(map_runs: MapRuns) -> None:
    history = (kernai.Message("user", text) for text in ("one", "two"))
    one = Agent(instructions="x", provider=MockProvider().on_call(lambda messages, model: f"<final>{len(messages)}</final>"))
    assert [result.text for result in map_runs(one, ["a", "b"], history=history)] == ["4", "4"]


# ----------------------------------------------------------------------------------------------------- the progress bar


class NoReader(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("hidden", [(), ("tqdm",), ("tqdm", "rich")])
@WAYS
def test_the_progress_bar_is_drawn_with_the_installed_package(
    map_runs: MapRuns, hidden: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in hidden:
        monkeypatch.setitem(sys.modules, name, None)
    assert map_runs(agent(), ["a", "broken", "b"], on_progress=True).failed == (1,)
    out, err = capfd.readouterr()
    assert out == ""
    assert "1 failed" in err
    assert ("3/3" in err) == (hidden != ("tqdm",))
    for unusable in (None, NoReader()):
        monkeypatch.setattr(sys, "stderr", unusable)
        assert [one.text for one in map_runs(agent(), ["a", "b"], on_progress=True)] == ["a!", "b!"]
    assert "event=callback.failed" in caplog.text, "a failing bar is only logged"


def test_on_a_terminal_one_line_is_rewritten_as_each_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tqdm", "rich"):
        monkeypatch.setitem(sys.modules, name, None)
    shown, seen = io.BytesIO(), list[bytes]()
    monkeypatch.setattr(sys, "stderr", terminal := io.TextIOWrapper(shown, newline=""))
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    made = agent(lambda: seen.append(shown.getvalue()), model=Model("m", cost=(1.0, 0.0)))
    kernai.map_runs(made, ["a", "b"], on_progress=True, concurrency=1)
    terminal.flush()
    one, two = b"\rruns: 1/2 under $0.0001\x1b[K", b"\rruns: 2/2 under $0.0001\x1b[K"
    assert [*seen, shown.getvalue()] == [b"", one, one + two + b"\n"]
