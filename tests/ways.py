"""The ways to run an agent, for tests that try each of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection
from functools import wraps
from typing import Any

import pytest

from kernai import Agent, AsyncRunStream, Result, RunStream, aexecute, aresume, astream, execute, resume, stream
from kernai.events import KINDS

Way = Callable[..., Result]
#: seconds after which a test that hangs fails; nothing takes that long otherwise
PATIENCE = 20
#: events that are emitted live but not recorded: streamed pieces
LIVE_ONLY = frozenset(kind.type for kind in KINDS.values() if kind.role == "live")


def join_threads(name: str, others: Collection[threading.Thread] = ()) -> None:
    """Wait until the threads of this name have ended, apart from the others."""
    for thread in {*threading.enumerate()} - {*others}:
        if thread.name == name:
            thread.join(PATIENCE)
            assert not thread.is_alive(), f"{name} is still running"


def consumed(events: RunStream[Any]) -> Result[Any]:
    with events:
        for _ in events:
            pass
    return events.result


async def aconsumed(events: AsyncRunStream[Any]) -> Result[Any]:
    async with events:
        async for _ in events:
            pass
    return events.result


def by_execute(agent: Agent, *content: Any, **options: Any) -> Result:
    return execute(agent, list(content) or "go", **options)


def by_stream(agent: Agent, *content: Any, **options: Any) -> Result:
    return consumed(stream(agent, list(content) or "go", **options))


def by_aexecute(agent: Agent, *content: Any, **options: Any) -> Result:
    return asyncio.run(aexecute(agent, list(content) or "go", **options))


def by_astream(agent: Agent, *content: Any, **options: Any) -> Result:
    return asyncio.run(aconsumed(astream(agent, list(content) or "go", **options)))


def by_aresume(*given: Any, **options: Any) -> Result:
    return asyncio.run(aresume(*given, **options))


def as_async(function: Callable[..., Any]) -> Callable[..., Any]:

    @wraps(function)
    async def later(*given: Any, **named: Any) -> Any:
        return function(*given, **named)

    return later


ALL: list[Way] = [by_execute, by_stream, by_aexecute, by_astream]
WAYS = pytest.mark.parametrize("way", ALL)
SYNC_WAYS = pytest.mark.parametrize("way", [by_execute, by_stream])
#: a run, and the same run resumed, in threads and under asyncio
DRIVERS = pytest.mark.parametrize("run, again", [(by_execute, resume), (by_aexecute, by_aresume)], ids=["threads", "asyncio"])
