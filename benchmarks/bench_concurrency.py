"""200 concurrent runs with 3 model calls of 50 ms each, under asyncio and in threads.

Floor: 150 ms, what one run alone has to wait for. Aim: at most 1.2 times.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kernai import Agent, GenerationOptions, LlmResponse, Message, Model, Provider, arun, run, skill
from support import emit

RUNS = 200
CALLS = 3
CALL_SECONDS = 0.05
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
        # starting a thread costs what it costs without kernai: they are all there before the clock runs
        list(pool.map(lambda _: ready.wait(), range(RUNS)))
        started = time.perf_counter()
        answers = list(pool.map(lambda _: run(agent, "go"), range(RUNS)))
        seconds = time.perf_counter() - started
    assert answers == ["done"] * RUNS
    return seconds


def main(*, quick: bool = False) -> None:
    """One line for each of the two ways."""
    floor = CALLS * CALL_SECONDS
    rounds = 2 if quick else 7
    for name, measure in (("asyncio", _with_asyncio), ("threads", _with_threads)):
        ours = min(measure() for _ in range(rounds))
        emit(f"{RUNS} concurrent runs, {name}", ours * 1e3, floor * 1e3, ours / floor, "<= 1.2", unit="ms")


if __name__ == "__main__":
    main()
