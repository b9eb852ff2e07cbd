"""The cost of a step: a model turn with a command, the skill, its result; recorder on, no callback. The cost of a run.

Floor: a hand-written loop that does the same with a regex and a dict of functions. Aims: at most 4.5 times the
floor, and 6 times in steps 300-1,000; the cost of steps 100-300 and of steps 300-1,000 at most 1.15 times that of steps
1-10. A run of one model call, including start and end, takes at most 32 us. A step under asyncio whose skill is a plain
function takes at most 80 us, and at most twice as long as the event loop's own executor takes for an empty function.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from kernai import Agent, Limits, LlmResponse, Provider, Recorder, aexecute, execute, skill
from support import best, emit, timed

COMMAND = 'I will look.\n<block type="command" name="echo">{"query": "hello"}</block>'
FINAL = '<block type="final">done</block>'
UNLIMITED = Limits(max_calls=None)
BLOCK = re.compile(r'<block type="(\w+)"(?: name="([^"]*)")?>(.*?)</block>', re.DOTALL)


@skill(register=False)
def echo(query: str) -> str:
    """Give the query back."""
    return query


class Turns(Provider):
    """Answers with commands, then with a final; records the time of each call."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.times: list[float] = []

    def call(self, messages: Any, model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
        self.times.append(time.perf_counter())
        content = COMMAND if len(self.times) < self.steps else FINAL
        on_chunk(content)
        return LlmResponse(content, prompt_tokens=10, completion_tokens=5)


class AsyncTurns(Turns):
    """The same for asyncio, without a thread."""

    async def acall(self, *asked: Any) -> LlmResponse:
        return self.call(*asked)


def kernai_run(steps: int) -> list[float]:
    """The time of each model call of a run, in seconds."""
    provider = Turns(steps)
    agent = Agent(instructions="Answer.", provider=provider, skills=[echo], max_steps=steps)
    assert execute(agent, "go", recorder=Recorder(), limits=UNLIMITED).text == "done"
    return provider.times


def asyncio_run(steps: int) -> list[float]:
    """The same under asyncio: the skill, a plain function, runs in a worker thread."""
    provider = AsyncTurns(steps)
    agent = Agent(instructions="Answer.", provider=provider, skills=[echo], max_steps=steps)
    assert asyncio.run(aexecute(agent, "go", recorder=Recorder(), limits=UNLIMITED)).text == "done"
    return provider.times


def executor_run(steps: int) -> list[float]:
    """The time of each of as many calls of an empty function in the event loop's executor, one after the other."""
    times: list[float] = []

    async def hand_over() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(steps):
            times.append(time.perf_counter())
            await loop.run_in_executor(None, int)

    asyncio.run(hand_over())
    return times


def runs_of_one_call() -> Callable[[], None]:
    agent = Agent(instructions="Answer.", provider=Turns(0), skills=[echo])

    def many() -> None:
        for _ in range(200):
            execute(agent, "go", recorder=Recorder())

    return many


def floor_run(steps: int) -> list[float]:
    """The same in a hand-written loop."""
    skills = {"echo": lambda query: query}
    tape = [("user", "go")]
    times: list[float] = []
    while True:
        times.append(time.perf_counter())
        response = COMMAND if len(times) < steps else FINAL
        tape.append(("assistant", response))
        for block in BLOCK.finditer(response):
            if block[1] == "final":
                return times
            result = skills[block[2]](**json.loads(block[3]))
            tape.append(("user", f'<block type="result" name="{block[2]}">{result}</block>'))


def spans(
    runs: Sequence[Callable[[int], list[float]]], marks: Sequence[int], rounds: int
) -> Iterator[dict[tuple[int, int], float]]:
    """The best time of a step in seconds, for each kind of run, between each pair of marks. The kinds take turns."""
    for rows in zip(*([run(marks[-1] + 1) for run in runs] for _ in range(rounds)), strict=True):
        yield {
            (first, last): min(times[last] - times[first] for times in rows) / (last - first)
            for first, last in pairwise(marks)
        }


def main(*, quick: bool = False) -> None:
    """Emits one line for the ratio to the floor, and two for its growth."""
    rounds = 5 if quick else 40
    floor, ours = spans((floor_run, kernai_run), (1, 10, 100, 300, 1000), rounds)
    emit("step", ours[10, 100], floor[10, 100], "<= 4.5", "us")
    emit("step, 300-1000", ours[300, 1000], floor[300, 1000], "<= 6", "us")
    emit("step, 100-300 against 1-10", ours[100, 300], ours[1, 10], "<= 1.15", "us")
    emit("step, 300-1000 against 1-10", ours[300, 1000], ours[1, 10], "<= 1.15", "us")
    (calls,) = best(51, timed(runs_of_one_call()))
    emit("a run of one model call", calls / 200, 32e-6, "<= 1", "us")
    ((step,), (handed,)) = (found.values() for found in spans((asyncio_run, executor_run), (20, 200), rounds))
    emit("step under asyncio, sync skill", step, 80e-6, "<= 1", "us")
    emit("the same, against an executor", step, handed, "<= 2", "us")
