"""`check_sink`: whether a sink of one's own is what a `Recorder` expects of one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from kernai.events import (
    Event,
    FinalRow,
    LlmResponseRow,
    MessagesSentRow,
    ProgressRow,
    ResultRow,
    Row,
    RunStartRow,
)
from kernai.recording.recorder import Sink
from kernai.testing.checks import Checks, at_once

AnySink = TypeVar("AnySink", bound=Sink)
_THREADS, _EACH = 8, 25


def check_sink(
    make: Callable[[], AnySink], *, entries: Callable[[AnySink], list[dict[str, Any]]] | None = None
) -> None:
    """Raises an `AssertionError` that names all that a sink made by `make` does not do.

    It must take every event of a run, whatever stands in its data, from many threads at once.
    With `entries`, which gives what a sink has kept in the form of `Event.to_dict`, nothing may be lost or changed.
    """
    checks = Checks("sink", make)
    events = [*_a_run("first"), *_odd_events(), *_a_run("second"), *_a_run("first")]
    for what, given in {"a run": _a_run("only"), "odd data, several runs, an id taken up again": events}.items():
        with checks.that(what) as holds:
            sink = make()
            for event in given:
                sink.record(event)
            if entries is not None:
                holds(entries(sink) == [event.to_dict() for event in given], "what was kept is not what was recorded")
    with checks.that(f"{_THREADS} threads at once") as holds:
        sink = make()
        failures = at_once(partial(_record_steps, sink), _THREADS)
        holds(not failures, f"record raised {failures[:1]}")
        if entries is not None:
            kept = entries(sink)
            for number in range(_THREADS):
                steps = [entry["step"] for entry in kept if entry["run_id"] == str(number)]
                holds(steps == list(range(_EACH)), f"of one thread's {_EACH} events these were kept: {steps}")
    checks.done()


def _a_run(run_id: str) -> list[Event]:
    system, user = {"role": "system", "content": "Work."}, {"role": "user", "content": "Go."}
    sent = [system, user]
    more = [system, user, {"role": "assistant", "content": "…"}, {"role": "user", "content": "result"}]
    rows: list[tuple[Row, str]] = [
        (RunStartRow(run_id, "Go.", [], "m", None, {}), ""),
        (MessagesSentRow(sent), ""),
        (LlmResponseRow("…", 1, None, None, None, "stop", {}), ""),
        (RunStartRow(run_id, "x", [], "m", "helper", {}), "0.0"),
        (MessagesSentRow(sent), "0.0"),
        (ResultRow("helped", "final", 1, {}, None), "0.0"),
        (MessagesSentRow(more), ""),
        (FinalRow("done"), ""),
        (ResultRow("done", "final", 2, {}, None), ""),
    ]
    return [_event(row, step, run_id, scope) for step, (row, scope) in enumerate(rows)]


def _event(row: Row, step: int, run_id: str, scope: str = "") -> Event:
    row.place, row.at = (step, int(bool(scope)), None, scope, run_id, None), 1.0
    return Event.of(row)


def _odd_events() -> list[Event]:
    deep: list[Any] = []
    for _ in range(150):
        deep = [deep]
    odd: list[Any] = [
        None, "", "é\ud800\n\u2028\x00", {"nan": float("nan"), "long": 10**30, 1: {"a", "b"}}, deep, b"bytes",
        {"text": "x" * 100_000}, object, ValueError("an exception"),
    ]
    return [_event(ProgressRow("0.0", data), 0, "odd") for data in odd]


def _record_steps(sink: Sink, number: int) -> None:
    for step in range(_EACH):
        sink.record(_event(FinalRow("x" * 200), step, str(number)))
