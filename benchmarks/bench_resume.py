"""What a store adds to a step, and the cost of resuming a run.

Floors: a step without a store; `json.loads` of the same entries. Aims: a step with a `MemoryStore` takes at most 6
times as long as one without, with SQLite (`process`) at most 10 times; a bare INSERT with its commit is also shown. A
resume of 10,000 events takes at most 20 times as long as reading them as JSON. It is linear: with four times the
events, this ratio is at most 1.5 times as high.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import kernai
from bench_durable import bare_database, inserting
from bench_steps import UNLIMITED, Turns, echo
from kernai import Agent, MemoryStore, SqliteStore
from kernai.jsonio.json_data import dumps
from support import best, emit, timed

#: the number of events in a step with one call: messages_sent llm_response blocks_parsed skill_execute skill_result
EVENTS_A_STEP = 5


def main(*, quick: bool = False) -> None:
    """Emits the figures."""
    steps, rounds = (60, 3) if quick else (200, 5)
    with tempfile.TemporaryDirectory(prefix="kernai-bench-") as folder:
        _steps(steps, rounds, Path(folder))
    _resumes(2_500 if quick else 10_000, 3)


def _agent(steps: int) -> Agent:
    return Agent(instructions="You look things up.", skills=[echo], max_steps=steps + 1)


def _run(steps: int, **options: Any) -> None:
    kernai.execute(_agent(steps), "go", provider=Turns(steps), limits=UNLIMITED, **options)


def _steps(steps: int, rounds: int, folder: Path) -> None:
    store = SqliteStore(folder / "runs.db", durability="process")
    with store, closing(bare_database(folder / "bare.db", "process")) as connection:
        plain, memory, sqlite, bare = best(
            rounds, timed(lambda: _run(steps)), timed(lambda: _run(steps, store=MemoryStore(), run_id="r")),
            timed(lambda: _run(steps, store=store)), inserting(connection, 2 * steps),
        )  # fmt: skip
    emit("resume.step_memory_store", memory / steps, plain / steps, "<= 6", "us")
    emit("resume.step_sqlite_process", sqlite / steps, plain / steps, "<= 10", "us")
    # a step with a call is two appends
    emit("resume.append_beside_a_bare_insert", sqlite / steps / 2, bare / steps / 2, "<= 50", "us")


def _resumes(events: int, rounds: int) -> None:
    quarter, parsed_quarter = _resumed(events // 4, rounds)
    whole, parsed = _resumed(events, rounds)
    emit("resume.beside_json_loads", whole, parsed, "<= 20", "ms")
    emit("resume.four_times_the_events", whole / quarter, parsed / parsed_quarter, "<= 1.5", "times as long")


def _resumed(events: int, rounds: int) -> list[float]:
    """The seconds that a resume of this many events takes, and those that reading them as JSON takes."""
    steps = events // EVENTS_A_STEP
    store = MemoryStore()
    _run(steps, store=store, run_id="r")
    entries = store.load("r")[:-4]  # the last answer is still to come
    text = [dumps(entry) for entry in entries]

    def resume() -> float:
        part = MemoryStore()
        part.append("r", 0, entries, [])
        return timed(lambda: _last(part, steps))()

    return best(rounds, resume, timed(lambda: [json.loads(one) for one in text]))


def _last(store: MemoryStore, steps: int) -> None:
    provider = Turns(1)
    result = kernai.resume(_agent(steps), "r", store=store, provider=provider, limits=UNLIMITED)
    assert result.ok
    assert len(provider.times) == 1
