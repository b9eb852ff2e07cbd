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
from collections.abc import Callable, Sequence
from itertools import pairwise

from kernai import (
    Agent,
    GenerationOptions,
    Limits,
    LlmResponse,
    Message,
    Model,
    Provider,
    Recorder,
    aexecute,
    execute,
    skill,
)
from support import best_of, emit

COMMAND = 'I will look.\n<block type="command" name="echo">{"query": "hello"}</block>'
FINAL = '<block type="final">done</block>'
UNLIMITED = Limits(max_calls=None)
BLOCK = re.compile(r'<block type="(\w+)"(?: name="([^"]*)")?>(.*?)</block>', re.DOTALL)
MARKS = (1, 10, 100, 300, 1000)


@skill(register=False)
def echo(query: str) -> str:
    """Give the query back."""
    return query


class Turns(Provider):
    """Answers with commands, then with a final; records the time of each call."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.times: list[float] = []

    def call(
        self,
        messages: Sequence[Message],
        model: Model,
        generation: GenerationOptions,
        on_chunk: Callable[[str], object],
    ) -> LlmResponse:
        del messages, model, generation
        self.times.append(time.perf_counter())
        content = COMMAND if len(self.times) < self.steps else FINAL
        on_chunk(content)
        return LlmResponse(content, prompt_tokens=10, completion_tokens=5)


class AsyncTurns(Turns):
    """The same for asyncio, without a thread."""

    async def acall(
        self,
        messages: Sequence[Message],
        model: Model,
        generation: GenerationOptions,
        on_chunk: Callable[[str], object],
    ) -> LlmResponse:
        return self.call(messages, model, generation, on_chunk)


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


def one_call() -> float:
    """The best time in seconds of a run with one model call, after a warm-up."""
    agent = Agent(instructions="Answer.", provider=Turns(0), skills=[echo])

    def many() -> None:
        for _ in range(200):
            execute(agent, "go", recorder=Recorder())

    many()
    return best_of(many, 50) / 200


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


def spans(runs: Sequence[Callable[[int], list[float]]], rounds: int) -> list[dict[tuple[int, int], float]]:
    """The best time of a step in seconds, for each kind of run, between each pair of marks.

    The kinds take turns, so that a slow moment affects all of them.
    """
    best = [dict.fromkeys(pairwise(MARKS), float("inf")) for _ in runs]
    for _ in range(rounds):
        for run, spent in zip(runs, best, strict=True):
            times = run(MARKS[-1] + 1)
            for (first, last), seconds in spent.items():
                spent[first, last] = min(seconds, (times[last] - times[first]) / (last - first))
    return best


def main(*, quick: bool = False) -> None:
    """Emits one line for the ratio to the floor, and two for its growth."""
    rounds = 5 if quick else 40
    floor, ours = spans((floor_run, kernai_run), rounds)
    steady = (10, 100)
    emit("step", ours[steady] * 1e6, floor[steady] * 1e6, ours[steady] / floor[steady], "<= 4.5", unit="us")
    late = (300, 1000)
    emit("step, 300-1000", ours[late] * 1e6, floor[late] * 1e6, ours[late] / floor[late], "<= 6", unit="us")
    for span in ((100, 300), late):
        ours_first = ours[1, 10]
        name = f"step, {span[0]}-{span[1]} against 1-10"
        emit(name, ours[span] * 1e6, ours_first * 1e6, ours[span] / ours_first, "<= 1.15", unit="us")
    call = one_call()
    emit("a run of one model call", call * 1e6, 32.0, call / 32e-6, "<= 1", unit="us")
    best = [float("inf")] * 2
    for _ in range(rounds):
        for kind, run in enumerate((asyncio_run, executor_run)):
            times = run(201)
            best[kind] = min(best[kind], (times[200] - times[20]) / 180)
    step, handed = best
    emit("step under asyncio, sync skill", step * 1e6, 80.0, step / 80e-6, "<= 1", unit="us")
    emit("the same, against an executor", step * 1e6, handed * 1e6, step / handed, "<= 2", unit="us")
