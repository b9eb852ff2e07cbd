"""Counts what many runs leak: `python3 dev.py soak [--share 0.01]`.

20,000 runs, 2,000 abandoned streams and 2,000 cancelled calls, in all ways to run. Threads, asyncio tasks, file
descriptors and memory are counted before and after; the exit status is 1 if any of them has grown.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

from kernai import (
    Agent,
    Event,
    JsonlSink,
    Limits,
    LlmResponse,
    Message,
    Protocol,
    Provider,
    Recorder,
    Skill,
    SkillContext,
    aexecute,
    astream,
    execute,
    skill,
    stream,
)

RUNS, STREAMS, CALLS = 20_000, 2_000, 2_000
BATCH = 100  # jobs whose async runs share an event loop
#: allocator blocks that caches and free lists may use, for any number of runs
SPARE_BLOCKS = 1_000
PATIENCE = 10.0  # seconds in which threads must end


@skill(register=False)
def count(what: str) -> int:
    """Count something."""
    return len(what)


@skill(register=False)
async def later(what: str) -> str:
    """Give it back later."""
    await asyncio.sleep(0)
    return what


@skill(register=False)
def hang(ctx: SkillContext[Any]) -> str:
    """End only with the run."""
    ctx.emit("under way")
    while not ctx.cancelled:
        time.sleep(0.0005)
    return "ended"


@skill(register=False)
async def hang_later(ctx: SkillContext[Any]) -> str:
    """Never end."""
    ctx.emit("under way")
    await asyncio.Event().wait()
    return "never"


def command(name: str, content: str = "x") -> str:
    return f'<block type="command" name="{name}">{content}</block>'


TASKS = '[{"id": "a", "input": "do a"}, {"id": "b", "input": "do b"}]'
PLAN = f'<block type="plan">{{"strategy": "parallel", "tasks": {TASKS}}}</block>'


class Answers(Provider):
    """Sends `turn` first, in pieces. Not a `MockProvider`, which would keep each call."""

    def __init__(self, turn: str) -> None:
        self.turn = turn

    def call(self, messages: Sequence[Message], model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
        text = self.turn if self.turn and len(messages) == 2 and messages[1].text == "go" else "<final>done</final>"
        for start in range(0, len(text), 16):
            on_chunk(text[start : start + 16])
        return LlmResponse(text)


HELPER = Agent(instructions="Help.", provider=Answers("")).as_skill("helper", "Helps.")
SPEAK = Protocol("speak", lambda block, _: block.content)
TURNS = (
    "",
    command("count") + command("later"),
    command("helper"),
    '<block type="speak">x</block>',
    command("nobody"),
    PLAN,
    "<final>cut off",
)


@cache
def agent(turn: str, *, parallel: bool = False) -> Agent:
    """An agent that sends `turn` first, and then its answer."""
    skills: list[str | Skill] = [count, later, hang, hang_later, HELPER]
    return Agent(
        instructions="Work.", skills=skills, protocols=[SPEAK], provider=Answers(turn), parallel_skills=parallel
    )


# ---------------------------------------------------------------------------------------------- what is run

Job = Callable[..., object]  # an async job returns a coroutine


def runs() -> Iterator[Job]:
    for parallel, turn, way in product((False, True), TURNS, (execute, aexecute, _stream, _astream)):
        yield partial(way, agent(turn, parallel=parallel), "go")


def _stream(one: Agent, content: str, recorder: Recorder) -> None:
    for _ in stream(one, content, recorder=recorder):
        pass


async def _astream(one: Agent, content: str, recorder: Recorder) -> None:
    async with astream(one, content, recorder=recorder) as events:
        async for _ in events:
            pass


def streams() -> Iterator[Job]:
    """Streams that are abandoned at different events: dropped, closed, or left by their ``with`` block."""
    for turn, at, how, leave in product(
        ("Hm. " * 20, command("hang"), command("hang_later"), command("hang") * 2, PLAN),
        ("run_start", "messages_sent", "text_chunk", "progress", "task_start", "final"),
        ("dropped", "closed", "block"),
        (_leave, _leave_async),
    ):
        yield partial(leave, agent(turn, parallel=True), at, how)


def _leave(one: Agent, at: str, how: str, recorder: Recorder) -> None:
    events = stream(one, "go", recorder=recorder, limits=Limits(timeout=0.05))
    for event in events:
        if event.type == at:
            break
    if how == "closed":
        events.close()
    elif how == "block":
        with events:
            pass


async def _leave_async(one: Agent, at: str, how: str, recorder: Recorder) -> None:
    events = astream(one, "go", recorder=recorder, limits=Limits(timeout=0.05))
    async for event in events:
        if event.type == at:
            break
    if how == "closed":
        await events.aclose()
    elif how == "block":
        async with events:
            pass


def calls() -> Iterator[Job]:
    """Calls that are running when their run or its task is cancelled, or when the run's time is up."""
    turns = (command("hang"), command("hang_later"), command("hang") + command("hang_later"))
    for turn, parallel in product(turns, (False, True)):
        one = agent(turn, parallel=parallel)
        yield from (partial(_cancelled, one), partial(_cancelled_async, one), partial(_cancelled_task, one))
        yield partial(execute, one, "go", limits=Limits(timeout=0.01))


def _when_under_way(event: threading.Event | asyncio.Event) -> Callable[[Event], None]:
    return lambda emitted: event.set() if emitted.type == "progress" else None


def _cancelled(one: Agent, recorder: Recorder) -> None:
    cancel = threading.Event()
    execute(one, "go", recorder=recorder, cancel=cancel, on_event=_when_under_way(cancel))


async def _cancelled_async(one: Agent, recorder: Recorder) -> None:
    cancel = asyncio.Event()
    await aexecute(one, "go", recorder=recorder, cancel=cancel, on_event=_when_under_way(cancel))


async def _cancelled_task(one: Agent, recorder: Recorder) -> None:
    under_way = asyncio.Event()
    running = asyncio.ensure_future(aexecute(one, "go", recorder=recorder, on_event=_when_under_way(under_way)))
    await under_way.wait()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


# ---------------------------------------------------------------------------------------------- counting


def perform(jobs: Sequence[Job], number: int, sink: JsonlSink) -> int:
    """Performs `number` jobs, in turns. Returns how many asyncio tasks they left behind."""
    left, turns = 0, islice(cycle(jobs), number)
    while batch := [job(recorder=Recorder(sink)) for job in islice(turns, BATCH)]:
        left += asyncio.run(_all([made for made in batch if asyncio.iscoroutine(made)]))
    return left


async def _all(coroutines: list[Any]) -> int:
    await asyncio.gather(*coroutines)
    coroutines.clear()
    gc.collect()
    begun = time.monotonic()
    while len(asyncio.all_tasks()) > 1 and time.monotonic() - begun < PATIENCE:  # noqa: ASYNC110 - no event reports their end
        await asyncio.sleep(0.01)  # dropped streams end on their own
    return len(asyncio.all_tasks()) - 1


def counts() -> dict[str, int]:
    """The threads, descriptors and memory in use, after waiting for threads that end on their own."""
    begun = time.monotonic()
    while threading.active_count() > 1 and time.monotonic() - begun < PATIENCE:
        time.sleep(0.01)
    for _ in range(3):
        gc.collect()
    descriptors = Path("/dev/fd")
    return {
        "threads": threading.active_count(),
        "descriptors": len(list(descriptors.iterdir())) if descriptors.is_dir() else 0,
        "blocks": sys.getallocatedblocks(),
    }


def main() -> int:
    """Runs everything, and prints the counts before and after."""
    parser = argparse.ArgumentParser(description="Count what very many runs leave behind.")
    parser.add_argument("--share", type=float, default=1.0, help="how much of it all, 0.01 for a hundredth")
    share = parser.parse_args().share
    work = {"runs": (runs(), RUNS), "abandoned streams": (streams(), STREAMS), "cancelled calls": (calls(), CALLS)}
    failed = False
    with tempfile.TemporaryDirectory() as folder, JsonlSink(Path(folder) / "soak.jsonl") as sink:
        for name, (found, whole) in work.items():
            jobs, number = list(found), max(int(whole * share), 1)
            perform(jobs, len(jobs), sink)  # so that everything that is imported and cached once exists before
            before, begun = counts(), time.monotonic()
            tasks = perform(jobs, number, sink)
            seconds, after = time.monotonic() - begun, counts()
            changes = ", ".join(f"{key} {before[key]:,} → {after[key]:,}" for key in before)
            more = [key for key in before if after[key] > before[key] + (SPARE_BLOCKS if key == "blocks" else 0)]
            failed = failed or bool(more) or tasks > 0
            behind = f"  LEFT BEHIND: {', '.join(more)}" if more else ""
            print(f"{number:,} {name} in {seconds:.1f} s: tasks left {tasks}, {changes}{behind}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
