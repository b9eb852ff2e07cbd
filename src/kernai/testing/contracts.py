"""Checks for users' own code: an agent replays its recording, a provider or a sink keeps its contract."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from kernai import Agent, Context, LlmResponse, Media, Message, MockProvider, Provider, events
from kernai.errors import ReplayDivergenceError, RunCancelledError, described
from kernai.recording.recorder import CompositeSink, Recorder, Sink
from kernai.runs.running import aexecute, execute, replay
from kernai.values.model import GenerationOptions, Model, Models
from kernai.values.result import Output_co, Result

AnySink = TypeVar("AnySink", bound=Sink)
_THREADS = 8
_EVENTS_EACH = 25
_MESSAGES = (Message("system", "Be brief."), Message("user", "Say something."))
_OPTIONS = GenerationOptions(temperature=0.5, max_tokens=100)


def assert_replays(
    agent: Agent[Output_co], recording: str | os.PathLike[str] | Iterable[events.Event | Mapping[str, Any]],
    run_id: str | None = None, *, model: Model | None = None, context: Context | None = None,
    accept: Iterable[str] = (), strict: bool = False,
) -> Result[Output_co] | None:
    """Replays a recording: given the same outcomes, the agent must make the same decisions and record the same events.

    No model, skill or protocol is called. The agent must not have lost protections either, except for the keys in
    `accept`; with `strict`, nothing else about the agent may have changed.

    `recording` is a file written by a `JsonlSink` or `Recorder.to_json`, or entries as `Recorder.to_list` returns them;
    `run_id` selects a run if there are several. Returns the `Result`, or None if the recording stops in the middle of
    the run. Raises an `AssertionError` that names the first event that differs. Media without data in the recording
    stay references; if the agent reads them, pass a `context` whose media store has them. ::

        def test_the_agent_still_refunds_as_it_did():
            assert_replays(agent, "tests/refund.jsonl")
    """
    __tracebackhide__ = True  # so that pytest shows the line of the test
    try:
        found = replay(agent, run_id, recording=recording, model=model, context=context, accept=accept)
    except ReplayDivergenceError as error:
        raise AssertionError(str(error)) from None
    if strict and found.changes:
        raise AssertionError("\n  ".join(["the agent has changed since it was recorded:", *found.changes]))
    return found.result


class _Checks:
    """Runs every check, even after one has failed; `done` raises an `AssertionError` that lists all failures."""

    def __init__(self, kind: str, make: object) -> None:
        """`make` returns a new `kind` for each check. Raises `TypeError` if it cannot be called."""
        if not callable(make):
            raise TypeError(f"check_{kind} takes a function that makes a fresh {kind}, got {type(make).__name__}")
        self._what = f"the {kind} of {getattr(make, '__name__', make)}"
        self._failed: list[str] = []

    @contextmanager
    def that(self, name: str) -> Iterator[Callable[[object, str], None]]:
        """One check: yields ``holds(condition, otherwise)``. The check also fails if the block raises an exception."""

        def holds(condition: object, otherwise: str) -> None:
            if not condition:
                self._failed.append(f"{name}: {otherwise}")

        try:
            yield holds
        except Exception as error:  # noqa: BLE001 - the object under test may raise anything
            self._failed.append(f"{name}: raised {described(error)}")

    def done(self) -> None:
        if self._failed:
            raise AssertionError("\n- ".join([f"{self._what} does not keep the contract:", *self._failed]))


def at_once(work: Callable[[int], object], workers: int) -> list[BaseException]:
    """Starts `workers` threads at the same moment, each with its number, and returns the exceptions they raised."""
    from concurrent.futures import ThreadPoolExecutor  # slow to import

    barrier = threading.Barrier(workers)

    def begin(number: int) -> None:
        barrier.wait()
        work(number)

    with ThreadPoolExecutor(workers) as pool:
        begun = [pool.submit(begin, number) for number in range(workers)]
    return [error for one in begun if (error := one.exception()) is not None]


# --------------------------------------------------------------------------------------------------------- providers


def check_provider(make: Callable[[], Provider], *, model: Model = Models.TEXT_ONLY) -> None:
    """Checks a provider from `make`. Raises an `AssertionError` that lists every part of the contract that it breaks.

    The provider must answer each call with some text; the text itself does not matter. `model` is passed to each call.
    """
    import asyncio

    def agent() -> Agent[Any]:
        return Agent(instructions="Be brief.", provider=make(), model=model, generation=_OPTIONS, max_steps=1)

    checks = _Checks("provider", make)
    with checks.that("a call") as holds:
        on_chunk = _OnChunk()
        answer = make().call(_MESSAGES, model, _OPTIONS, on_chunk)
        holds(isinstance(answer, LlmResponse), f"gave {type(answer).__name__}, not an LlmResponse")
        holds(answer.content, "gave no text")
        holds(all(isinstance(piece, str) for piece in on_chunk.pieces), "a piece was not text")
        shown = "".join(map(str, on_chunk.pieces))
        holds(shown in ("", answer.content), "what it streamed is not what it answered")
    with checks.that("a run that is to stop") as holds:
        on_chunk = _OnChunk(stop_after=1)
        with suppress(Exception):  # once a run has stopped, it ignores any exception
            make().call(_MESSAGES, model, _OPTIONS, on_chunk)
            holds(not on_chunk.pieces, "the call continued although on_chunk had raised")
        holds(len(on_chunk.pieces) <= 1, "on_chunk was called again after it had raised")
    with checks.that("media that the model cannot take") as holds:
        provider, image = make(), Media.from_bytes(b"x", mime_type="image/png")
        encoded = provider.encode(["look: ", image], Models.TEXT_ONLY)
        holds(len(encoded) == 2, f"two parts became {len(encoded)}")  # noqa: PLR2004 - as many as were given
        holds(None not in encoded, "a part was encoded as None, not as its placeholder")
    with checks.that("a run") as holds:
        for way, run in (("sync", execute), ("async", lambda *given, **more: asyncio.run(aexecute(*given, **more)))):
            recorder = Recorder()
            result: Result[Any] = run(agent(), "Say something.", recorder=recorder)
            holds(str(result.stop_reason) in ("final", "max_steps"), f"{way}: {result.stop_reason}: {result.error}")
            restarted = recorder.for_event(events.ModelRestartedRow.type)
            holds(not restarted, f"{way}: what it streamed is not what it answered")
    with checks.that(f"{_THREADS} threads at once") as holds:
        shared, results = make(), list[Any]()
        one = agent().replace(provider=shared)
        failures = at_once(lambda _: results.append(execute(one, "Say something.").error), _THREADS)
        failures += [error for error in results if error is not None and "steps without" not in str(error)]
        holds(not failures, f"runs failed: {failures[:1]}")
    checks.done()


class _OnChunk:
    """The callback that a run passes to a provider, with what a provider may read and report there."""

    deadline: float | None = None
    tools = None
    report_usage = waiting = attempt_failed = staticmethod(lambda *_, **__: None)

    def __init__(self, stop_after: int | None = None) -> None:
        self.pieces: list[str] = []
        self._stop_after = stop_after

    def cancelled(self) -> bool:
        return self._stop_after is not None and len(self.pieces) >= self._stop_after

    def __call__(self, text: str) -> None:
        self.pieces.append(text)
        if self.cancelled():
            raise RunCancelledError("the run was cancelled")


# ------------------------------------------------------------------------------------------------------------- sinks


def check_sink(
    make: Callable[[], AnySink], *, entries: Callable[[AnySink], list[dict[str, Any]]] | None = None
) -> None:
    """Checks a sink from `make`. Raises an `AssertionError` that lists every part of the contract that it breaks.

    A sink must accept every event of a run, whatever its data, from many threads at once. `entries` returns the events
    that a sink has stored, as `Event.to_dict` returns them. With it, the check also proves that no event is lost or
    changed.
    """
    checks = _Checks("sink", make)
    several = [*_a_run("first"), *_odd_events(), *_a_run("second"), *_a_run("first")]
    for what, given in {"a run": _a_run("only"), "odd data, several runs, a reused id": several}.items():
        with checks.that(what) as holds:
            checked = CompositeSink(sink := make())  # unlike Recorder, it has no sink of its own in place of None
            for event in given:
                checked.record(event)
            if entries is not None:
                holds(entries(sink) == [event.to_dict() for event in given], "what was kept is not what was recorded")
    with checks.that(f"{_THREADS} threads at once") as holds:
        checked = CompositeSink(sink := make())

        def record(number: int) -> None:
            for step in range(_EVENTS_EACH):
                checked.record(events.Event("final", "x" * 200, step, run_id=str(number)))

        failures = at_once(record, _THREADS)
        holds(not failures, f"record raised {failures[:1]}")
        if entries is not None:
            kept = entries(sink)
            for number in range(_THREADS):
                steps = [entry["step"] for entry in kept if entry["run_id"] == str(number)]
                holds(steps == [*range(_EVENTS_EACH)], f"of a thread's {_EVENTS_EACH} events these were kept: {steps}")
    checks.done()


def _a_run(run_id: str) -> list[events.Event]:
    """The events of a run with a sub-agent."""
    helper = Agent(instructions="Help.", provider=MockProvider("<final>helped</final>")).as_skill("helper", "Helps.")
    mock = MockProvider('… <command name="helper">x</command>', "<final>done</final>")
    recorder = Recorder()
    execute(Agent(instructions="Work.", skills=[helper]), "Go.", provider=mock, recorder=recorder, run_id=run_id)
    return recorder.entries


def _odd_events() -> list[events.Event]:
    deep: list[Any] = []
    for _ in range(150):
        deep = [deep]
    odd: list[Any] = [
        None, "", "é\ud800\n\u2028\x00", {"nan": float("nan"), "long": 10**30, 1: {"a", "b"}}, deep, b"bytes",
        {"text": "x" * 100_000}, object, ValueError("an exception"),
    ]
    return [events.Event("progress", {"call_id": "0.0", "data": data}, 0, run_id="odd") for data in odd]
