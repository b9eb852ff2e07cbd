"""Random runs that are stopped at random, again and again, and resumed: no call is made twice, and each state replays."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from math import inf
from typing import Any

import pytest
from hypothesis import settings

import kernai
from kernai import Limits, LlmResponse, ProviderError, Result, Usage
from kernai.durable.recorded_run import RecordedRun
from tests.durable.durable_cases import WAYS, Appends, CancelAt, command
from tests.durable.format_1.world import Scripted, Segment
from tests.loop.loop_cases import plan, task

SKILLS = ("look", "look", "pay", "fail", "stop", "clerk", "waits")


def script(draw: random.Random) -> list[str]:
    said = []
    for _ in range(draw.randint(1, 3)):
        one, two, three = (f"s{draw.randint(0, 9)}" for _ in range(3))
        if draw.random() < 0.15:
            parallel = task("a", one, parallel=True), task("b", two, parallel=True)
            said.append(plan(*parallel, task("c", three, depends_on=["a"]), strategy="mixed"))
            continue
        names = [draw.choice(SKILLS) for _ in range(draw.randint(1, 3))]
        said.append("".join(command(name, one if name == "clerk" else f'{{"x": "{draw.randint(1, 9)}"}}') for name in names))
    return [*said, "<final>done</final>"]


class Failing(Scripted):
    def __init__(self, segment: Segment, failing: float, seed: float) -> None:
        super().__init__(segment)
        self._failing, self._draw = failing, random.Random(seed)

    def call(self, messages: Any, model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
        if self._draw.random() < self._failing:
            on_chunk.report_usage(Usage(prompt_tokens=100, completion_tokens=1))
            raise ProviderError("down", retryable=self._draw.random() < 0.5)
        return super().call(messages, model, generation, on_chunk)


class RandomRun(Segment):
    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        super().__init__({
            "scripts": {name: script(draw) for name in ("go", *(f"s{at}" for at in range(10)))}, "last": "<final>enough</final>",
            "state": False, "async": ["pay"], "idempotent": [], "concurrent": False, "at_once": draw.random() < 0.5,
            "middleware": ["retry", "pausing"] if draw.random() < 0.6 else [], "max_steps": 8, "on_prose": "correct",
            "approve": "agents" if draw.random() < 0.25 else None, "on_truncated": "continue", "list_skills": True,
            "output": None, "plan": None, "task_agents": [],
        })
        self.calls: Counter[str] = Counter()
        self.store = Appends()

    def note(self, effect: str) -> None:
        if not effect.startswith("model"):
            with self._lock:
                self.calls[effect.split()[1]] += 1

    def options(self, *, calm: bool) -> dict[str, Any]:
        draw, self.store.left = self.draw, inf
        if calm:
            return {"store": self.store, "provider": Scripted(self)}
        given: dict[str, Any] = {"store": self.store, "provider": Failing(self, draw.choice([0, 0, 0.3]), draw.random())}
        cancel = CancelAt(draw.randint(1, 25))
        given |= draw.choice([
            {}, {}, {"cancel": cancel, "on_event": cancel}, {"limits": Limits(max_calls=draw.randint(1, 30))},
            {"limits": Limits(max_tokens=draw.randint(10, 900))},
        ])
        if draw.random() < 0.25:
            self.store.left = draw.randint(2, 12)
        return given

    def replays(self, result: Result | None) -> None:
        replayed = kernai.replay(self.agent(), "r", store=self.store).result
        if result is not None and replayed is not None and not result.pending:
            assert (replayed.stop_reason, replayed.usage, replayed.messages) == (
                result.stop_reason, result.usage, result.messages)

    def to_the_end(self) -> Result:
        result: Result | None = None
        for turn in range(60):
            way, options = self.draw.choice(WAYS), self.options(calm=turn >= 25)
            with suppress(OSError):
                if not self.store.load("r"):
                    result = way.execute(self.agent(), "go", run_id="r", **options)
                else:
                    before, result = result, None
                    result = way.resume(self.agent(), "r", in_flight="skip", **self._said(before), **options)
            if self.store.load("r"):
                self.replays(result)
            if result is not None and (result.ok or result.stop_reason == "max_steps"):
                return result
        raise AssertionError("it does not end")

    def _said(self, before: Result | None) -> dict[str, Any]:
        """Decisions on some of what waits; or else, now and then, another input."""
        waiting = RecordedRun("r", self.store.load("r")).waiting
        if not waiting and before is not None and self.draw.random() < 0.3:
            return {"input": "s3"}
        decided = {call: self.draw.choice([True, True, False, "no"]) for call in waiting if self.draw.random() < 0.7}
        return {"approvals": decided}


SOME = range(3)
MORE = range(3, 3 + settings().max_examples // 3)


@pytest.mark.parametrize("seeds", [SOME, pytest.param(MORE, marks=pytest.mark.slow)])
def test_a_random_run_stopped_at_random_moments_can_be_resumed_to_its_end(seeds: range) -> None:
    for seed in seeds:
        run = RandomRun(seed)
        run.to_the_end()
        assert not [call for call, count in run.calls.items() if count > 1], seed
