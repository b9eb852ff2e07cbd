"""200 concurrent runs with 3 model calls of 50 ms each, under asyncio and in threads; thousands under asyncio.

Floor: 150 ms, the time that a single run has to wait. Aim: at most 1.2 times. For thousands of recorded runs, the CPU
time of a model call is measured. The floor is that of 1,000 runs at once, and 5,000 may take at most 1.5 times as long:
the garbage collector visits all objects of the runs. A run that waits for its third model call has at most 45 such
objects.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench_steps import COMMAND, FINAL, echo
from kernai import Agent, LlmResponse, Message, Provider, Recorder, Skill, aexecute, arun, run, skill
from support import best, compare, emit, timed, tracked

RUNS = 200
CALLS = 3
CALL_SECONDS = 0.05
CROWDS = (1000, 5000)
MOST_OBJECTS = 45.0


@skill(register=False, name="echo")
async def async_echo(query: str) -> str:
    """Give the query back."""
    return query


def _answer(messages: Sequence[Message]) -> LlmResponse:
    return LlmResponse(COMMAND if len(messages) < 2 * CALLS else FINAL)


class Slow(Provider):
    """A vendor that takes its time."""

    def call(self, messages: Sequence[Message], *_: Any) -> LlmResponse:
        time.sleep(CALL_SECONDS)
        return _answer(messages)

    async def acall(self, messages: Sequence[Message], *_: Any) -> LlmResponse:
        await asyncio.sleep(CALL_SECONDS)
        return _answer(messages)


def _agent(provider: Provider, echo: Skill = async_echo) -> Agent:
    return Agent(instructions="Answer.", provider=provider, skills=[echo])


async def _all_at_once() -> None:
    agent = _agent(Slow())
    answers = await asyncio.gather(*(arun(agent, "go") for _ in range(RUNS)))
    assert answers == ["done"] * RUNS


def _with_threads() -> float:
    agent = _agent(Slow(), echo)
    ready = threading.Barrier(RUNS)
    with ThreadPoolExecutor(RUNS) as pool:
        # starting a thread costs the same without kernai, so all are started before the measurement
        list(pool.map(lambda _: ready.wait(), range(RUNS)))
        started = time.perf_counter()
        answers = list(pool.map(lambda _: run(agent, "go"), range(RUNS)))
        seconds = time.perf_counter() - started
    assert answers == ["done"] * RUNS
    return seconds


async def _crowd(runs: int) -> float:
    """The CPU seconds of a model call, with that many recorded runs at once."""
    agent = _agent(Slow())
    gc.collect()
    began = time.process_time()
    await asyncio.gather(*(aexecute(agent, "go", recorder=Recorder()) for _ in range(runs)))
    return (time.process_time() - began) / runs / (CALLS + 1)


class Waiting(Slow):
    """Answers with two commands, and then waits until it may answer."""

    def __init__(self) -> None:
        self.allowed = asyncio.Event()
        self.waiting: asyncio.Queue[None] = asyncio.Queue()

    async def acall(self, messages: Sequence[Message], *_: Any) -> LlmResponse:
        if len(messages) > 2 * 2:
            self.waiting.put_nowait(None)
            await self.allowed.wait()
        return LlmResponse(COMMAND if not self.allowed.is_set() else FINAL)


async def _objects_of_a_run(runs: int = 200) -> float:
    """How many objects that the garbage collector visits a run has while it waits for its third model call."""
    provider = Waiting()
    agent = _agent(provider)
    before = tracked()
    tasks = [asyncio.create_task(aexecute(agent, "go")) for _ in range(runs)]
    for _ in tasks:
        await provider.waiting.get()
    held = (tracked() - before) / runs
    provider.allowed.set()
    await asyncio.gather(*tasks)
    return held


def main(*, quick: bool = False) -> None:
    """One line for each of the two ways, one for thousands of runs, one for their objects."""
    for name, measure in (("asyncio", timed(lambda: asyncio.run(_all_at_once()))), ("threads", _with_threads)):
        (ours,) = best(2 if quick else 7, measure)
        emit(f"{RUNS} concurrent runs, {name}", ours, CALLS * CALL_SECONDS, "<= 1.2", "ms")
    compare(
        f"a model call, {CROWDS[1]} runs at once against {CROWDS[0]}",
        lambda: asyncio.run(_crowd(CROWDS[1])), lambda: asyncio.run(_crowd(CROWDS[0])),
        "<= 1.5", rounds=2 if quick else 4, unit="us",
    )  # fmt: skip
    asyncio.run(_objects_of_a_run(5))  # creates objects that do not belong to a run, such as caches
    emit("objects of a run that waits", asyncio.run(_objects_of_a_run()), MOST_OBJECTS, "<= 1", "objects")
