"""Where no thread can be started, as at a limit: what needs no thread works, and the rest raises Python's own error."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import kernai
from kernai import Agent, MemoryStore, MockProvider, Result, Skill
from tests.loop.loop_cases import command, plan, task
from tests.ways import by_execute


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)


def look() -> str:
    return "seen"


async def wait() -> str:
    return "waited"


def agent(*answers: str, **options: Any) -> Agent[str]:
    skills = [Skill("look", execute=look, inputs={}), Skill("wait", execute=wait, inputs={})]
    return Agent(instructions="x", skills=skills, provider=MockProvider(*answers, "<final>done</final>"), **options)


@pytest.mark.parametrize("options", [{}, {"store": MemoryStore(), "run_id": "r"}])
def test_a_run_whose_calls_are_made_in_the_callers_thread_works(options: dict[str, Any]) -> None:
    assert by_execute(agent(command("look") + command("look")), **options).text == "done"


@pytest.mark.parametrize("call", [
    lambda: by_execute(agent(command("look") * 2, parallel_skills=True)), lambda: by_execute(agent(plan(task("a")))),
    lambda: by_execute(agent(command("wait"))).messages[2].text, lambda: kernai.map_runs(agent(), ["a", "b"])[1].unwrap(),
    lambda: list(kernai.stream(agent(), "go")), lambda: kernai.stream(agent(), "go").close(),
    lambda: asyncio.run(kernai.arun(agent(), "go")),
])
def test_what_needs_a_thread_is_an_error_that_says_so(call: Callable[[], str | Result]) -> None:
    with pytest.raises((RuntimeError, kernai.KernaiError), match="can't start new thread"):
        raise RuntimeError(call())  # the error of a skill is what the model reads
