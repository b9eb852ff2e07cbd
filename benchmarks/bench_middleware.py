"""What middleware costs: an effect through a list of functions that only pass it on, per function after the first.

Floor: one microsecond. Also a step of a run with one such function, compared to the same run without.
"""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from bench_steps import Turns, echo
from kernai import Agent, Recorder, execute
from kernai.loop.effects import CallSkill, Effect
from kernai.middleware.chain import Flow, Middleware, through
from support import Measure, best, compare, emit, timed

EFFECTS = 2000
MOST = 11


def passing(effect: Effect) -> Flow:
    """The least that a middleware can do."""
    return (yield effect)


def effects_through(middleware: list[Middleware]) -> Measure:
    """The seconds for `EFFECTS` effects through a list, each answered immediately."""
    effect = CallSkill("", "0.0", "echo", {})
    run: Any = SimpleNamespace(middleware=middleware)
    ended = suppress(StopIteration)

    def perform() -> None:
        for _ in range(EFFECTS):
            flow = through(run, effect)
            next(flow)
            with ended:
                flow.send("")

    return timed(perform)


def step_with(middleware: list[Middleware] | None) -> float:
    """The seconds of a step."""
    provider = Turns(101)
    agent = Agent(instructions="Answer.", provider=provider, skills=[echo], max_steps=101, middleware=middleware)
    assert execute(agent, "go", recorder=Recorder()).text == "done"
    return (provider.times[100] - provider.times[10]) / 90


def main(*, quick: bool = False) -> None:
    """Emits one line for an effect, one for a step."""
    rounds = 10 if quick else 60
    first, last = best(2 * rounds, *(effects_through([passing] * many) for many in (1, MOST)))
    emit("a middleware that passes on, after the first", (last - first) / EFFECTS / (MOST - 1), 1e-6, "<= 1", "us")
    compare(
        "step with one middleware against none", lambda: step_with([passing]), lambda: step_with(None),
        "<= 1.5", rounds=rounds, unit="us",
    )  # fmt: skip
