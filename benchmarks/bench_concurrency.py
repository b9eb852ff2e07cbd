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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kernai import Agent, GenerationOptions, LlmResponse, Message, Model, Provider, Recorder, aexecute, arun, run, skill
from support import emit

RUNS = 200
CALLS = 3
CALL_SECONDS = 0.05
CROWDS = (1000, 5000)
MOST_OBJECTS = 45.0
COMMAND = '<block type="command" name="echo">{"query": "hello"}</block>'
FINAL = '<block type="final">done</block>'


@skill(register=False)
async def echo(query: str) -> str:
    """Give the query back."""
    return query


@skill(register=False, name="echo")
def plain_echo(query: str) -> str:
    """Give the query back."""
    return query


def _answer(messages: Sequence[Message]) -> LlmResponse:
    return LlmResponse(COMMAND if len(messages) < 2 * CALLS else FINAL)


class Slow(Provider):
    """A vendor that takes its time."""

    def call(
        self,
        messages: Sequence[Message],
        model: Model,
        generation: GenerationOptions,
        on_chunk: Callable[[str], object],
    ) -> LlmResponse:
        del model, generation, on_chunk
        time.sleep(CALL_SECONDS)
        return _answer(messages)

    async def acall(
        self, messages: Sequence[Message], model: Model, generation: GenerationOptions, on_chunk: Callable[[str], Any]
    ) -> LlmResponse:
        del model, generation, on_chunk
        await asyncio.sleep(CALL_SECONDS)
        return _answer(messages)


async def _all_at_once(agent: Agent) -> None:
    answers = await asyncio.gather(*(arun(agent, "go") for _ in range(RUNS)))
    assert answers == ["done"] * RUNS


def _with_asyncio() -> float:
    agent = Agent(instructions="Answer.", provider=Slow(), skills=[echo])
    started = time.perf_counter()
    asyncio.run(_all_at_once(agent))
    return time.perf_counter() - started


def _with_threads() -> float:
    agent = Agent(instructions="Answer.", provider=Slow(), skills=[plain_echo])
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
    agent = Agent(instructions="Answer.", provider=Slow(), skills=[echo])
    gc.collect()
    began = time.process_time()
    await asyncio.gather(*(aexecute(agent, "go", recorder=Recorder()) for _ in range(runs)))
    return (time.process_time() - began) / runs / (CALLS + 1)


class Waiting(Slow):
    """Answers with two commands, and then waits until it may answer."""

    def __init__(self) -> None:
        self.allowed = asyncio.Event()
        self.waiting: asyncio.Queue[None] = asyncio.Queue()

    async def acall(
        self, messages: Sequence[Message], model: Model, generation: GenerationOptions, on_chunk: Callable[[str], Any]
    ) -> LlmResponse:
        if len(messages) > 2 * 2:
            self.waiting.put_nowait(None)
            await self.allowed.wait()
        return LlmResponse(COMMAND if not self.allowed.is_set() else FINAL)


async def _objects_of_a_run(runs: int = 200) -> float:
    """How many objects that the garbage collector visits a run has while it waits for its third model call."""
    provider = Waiting()
    agent = Agent(instructions="Answer.", provider=provider, skills=[echo])
    gc.collect()
    before = len(gc.get_objects())
    tasks = [asyncio.create_task(aexecute(agent, "go")) for _ in range(runs)]
    for _ in tasks:
        await provider.waiting.get()
    gc.collect()
    gc.collect()  # the first pass stops tracking some tuples, the second the objects that contain them
    held = (len(gc.get_objects()) - before) / runs
    provider.allowed.set()
    await asyncio.gather(*tasks)
    return held


def main(*, quick: bool = False) -> None:
    """One line for each of the two ways, one for thousands of runs, one for their objects."""
    floor = CALLS * CALL_SECONDS
    rounds = 2 if quick else 7
    for name, measure in (("asyncio", _with_asyncio), ("threads", _with_threads)):
        ours = min(measure() for _ in range(rounds))
        emit(f"{RUNS} concurrent runs, {name}", ours * 1e3, floor * 1e3, ours / floor, "<= 1.2", unit="ms")
    few, many = (min(asyncio.run(_crowd(runs)) for _ in range(2 if quick else 4)) for runs in CROWDS)
    name = f"a model call, {CROWDS[1]} runs at once against {CROWDS[0]}"
    emit(name, many * 1e6, few * 1e6, many / few, "<= 1.5", unit="us")
    asyncio.run(_objects_of_a_run(5))  # creates objects that do not belong to a run, such as caches
    held = asyncio.run(_objects_of_a_run())
    emit("objects of a run that waits", held, MOST_OBJECTS, held / MOST_OBJECTS, "<= 1", unit="objects")
