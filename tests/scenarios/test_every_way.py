"""Every bundled tape in every way to run, from a provider that streams and from one that does not: one recording."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import kernai
from kernai.loop import kernel
from kit.tape import Tape
from kit.tape_provider import TapeProvider

pytestmark = pytest.mark.slow

TAPES = Path(__file__).resolve().parents[2] / "scenarios" / "tapes"
#: those without MCP servers, which are programs of others
#: their runs are resumed from a store
KEPT = {"approval_of_payments", "crash_and_resume", "fork_another_way"}
NAMES = sorted(path.stem for path in TAPES.glob("*.json") if "mcp" not in path.stem and path.stem not in KEPT)
#: what a clock has measured
MEASURED = frozenset({"duration_ms", "latency_ms"})


class Silent(TapeProvider):
    """The same answers, in no pieces."""

    def call(
        self,
        messages: Sequence[kernai.Message],
        model: kernai.Model,
        generation: kernai.GenerationOptions,
        on_chunk: Callable[[str], object],
    ) -> kernai.LlmResponse:
        del on_chunk
        return super().call(messages, model, generation, lambda _: None)


class Native(TapeProvider):
    """The same on the event loop."""

    async def acall(self, *given: Any) -> kernai.LlmResponse:
        await asyncio.sleep(0)
        return self.call(*given)


def by_execute(agent: kernai.Agent, content: Any, **options: Any) -> None:
    kernai.execute(agent, content, **options)


def by_stream(agent: kernai.Agent, content: Any, **options: Any) -> None:
    for _ in kernai.stream(agent, content, **options):
        pass


def by_aexecute(agent: kernai.Agent, content: Any, **options: Any) -> None:
    asyncio.run(kernai.aexecute(agent, content, **options))


def by_astream(agent: kernai.Agent, content: Any, **options: Any) -> None:
    async def consume() -> None:
        async with kernai.astream(agent, content, **options) as events:
            async for _ in events:
                pass

    asyncio.run(consume())


WAYS = (by_execute, by_stream, by_aexecute, by_astream)


def recorded(name: str, way: Callable[..., None], kind: type[TapeProvider]) -> list[dict[str, Any]]:
    definition = importlib.import_module(name).scenario.definition
    provider, recorder = kind(Tape.load(TAPES / f"{name}.json", name)), kernai.Recorder()
    for prepare in definition.preparations:
        prepare()
    with definition.agent(provider, kernai.Model("tape", definition.capabilities)) as agent:
        way(agent, definition.input, recorder=recorder, limits=definition.limits, run_id="run-1")
    assert provider.left == provider.unplayed == []
    entries = json.loads(recorder.to_json())
    for entry in entries:
        del entry["timestamp"]
        if isinstance(entry["data"], dict):
            entry["data"] = {key: one for key, one in entry["data"].items() if key not in MEASURED}
    return list(entries)


def comparable(entries: list[dict[str, Any]]) -> list[Any]:
    """Each scope's events in order; those of concurrent tasks have none."""
    by_scope: dict[str, list[str]] = {}
    for entry in entries:
        text = json.dumps(entry, sort_keys=True)
        by_scope.setdefault(f"tasks of {entry['scope']}" if "task_" in entry["event"] else entry["scope"], []).append(text)
    return sorted((scope, sorted(events) if "tasks of" in scope else events) for scope, events in by_scope.items())


@pytest.mark.parametrize("name", NAMES)
def test_every_way_to_run_records_the_same(name: str) -> None:
    first = comparable(recorded(name, by_execute, TapeProvider))
    for way in WAYS:
        for kind in (TapeProvider, Silent, Native):
            assert comparable(recorded(name, way, kind)) == first, (way.__name__, kind.__name__)


@pytest.mark.parametrize("name", NAMES)
def test_the_short_way_of_plain_calls_records_what_the_general_way_does(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = comparable(recorded(name, by_execute, TapeProvider))
    monkeypatch.setattr(kernel, "plain_call", lambda *_: None)
    assert comparable(recorded(name, by_execute, TapeProvider)) == short
