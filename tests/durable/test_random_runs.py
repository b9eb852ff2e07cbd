"""Random runs that are stopped at random, again and again, and resumed: no call is made twice, and each state replays."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from typing import Any

import pytest
from hypothesis import settings

import kernai
from kernai import (
    Agent,
    Context,
    Limits,
    LlmResponse,
    Message,
    Pause,
    Provider,
    ProviderError,
    Result,
    Skill,
    SkillContext,
    Stop,
    Usage,
)
from kernai.durable.recorded_run import RecordedRun
from kernai.middleware import CallModel, retry
from tests.durable.durable_cases import PRICED, WAYS, Appends, CancelAt, command

Ctx = SkillContext[Context]
REASONS = ("guardrail", "timeout", "cancelled", "max_cost")
SKILLS = ("look", "look", "pay", "fail", "stop", "clerk", "waits")


def script(draw: random.Random, *, plans: bool) -> list[str]:
    said = []
    for _ in range(draw.randint(1, 3)):
        one, two, three = (f"s{draw.randint(0, 9)}" for _ in range(3))
        if plans and draw.random() < 0.15:
            said.append(
                f'<block type="plan">{{"goal": "g", "tasks": [{{"id": "a", "input": "{one}", "parallel": true}}, '
                f'{{"id": "b", "input": "{two}", "parallel": true}}, '
                f'{{"id": "c", "input": "{three}", "depends_on": ["a"]}}]}}</block>'
            )
            continue
        names = [draw.choice(SKILLS) for _ in range(draw.randint(1, 3))]
        given = {"clerk": one, "stop": draw.choice(REASONS)}
        said.append("".join(command(name, given.get(name, str(draw.randint(1, 9)))) for name in names))
    return [*said, "<final>done</final>"]


class Scripted(Provider):
    """Answers from the script that the conversation began with; fails now and then, after counting the call."""

    def __init__(self, scripts: dict[str, list[str]], failing: float, seed: float) -> None:
        self._scripts, self._failing, self._draw = scripts, failing, random.Random(seed)

    def call(self, messages: Sequence[Message], model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
        first = next(message.text for message in messages if message.role == "user").rpartition("\n")[2]
        said = sum(message.role == "assistant" for message in messages)
        if self._draw.random() < self._failing:
            on_chunk.report_usage(Usage(prompt_tokens=100, completion_tokens=1))
            raise ProviderError("down", retryable=self._draw.random() < 0.5)
        lines = self._scripts[first]
        content = lines[said] if said < len(lines) else "<final>enough</final>"
        return LlmResponse(content, prompt_tokens=10, completion_tokens=2, total_tokens=12)


class RandomRun:
    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        self.scripts = {"go": script(draw, plans=True), **{f"s{at}": script(draw, plans=True) for at in range(10)}}
        self.at_once, self.asks, self.pauses = draw.random() < 0.5, draw.random() < 0.25, draw.random() < 0.6
        self.calls: Counter[str] = Counter()
        self.store = Appends()
        self._lock = threading.Lock()

    def _note(self, ctx: Ctx) -> str:
        with self._lock:
            self.calls[ctx.call_id] += 1
        return "done"

    def agent(self) -> Agent:
        def fail(x: str, ctx: Ctx) -> str:
            raise LookupError(self._note(ctx))

        def stop(why: str, ctx: Ctx) -> str:
            raise Stop(why, self._note(ctx))

        def waits(x: str, ctx: Ctx) -> str:
            if ctx.approval is None:
                raise Pause("may it?")
            return self._note(ctx)

        def pausing(effect: Any) -> Any:
            if isinstance(effect, CallModel) and effect.approval is None and len(effect.call_id) % 5 == 1:
                raise Pause("dear")
            return (yield effect)

        def plain(x: str, ctx: Ctx) -> str:
            return self._note(ctx)

        skills = [Skill("look", execute=plain), Skill("pay", execute=plain, approval=True), Skill("fail", execute=fail),
                  Skill("stop", execute=stop), Skill("waits", execute=waits)]
        options: dict[str, Any] = {"model": PRICED, "parallel_skills": self.at_once, "max_steps": 8}
        clerk = Agent(instructions="c", skills=skills, **options).as_skill("clerk", "Does it.")
        return Agent(
            instructions="x", skills=[*skills, clerk], middleware=[retry(2, first_wait=0), pausing] if self.pauses else [],
            approve=(lambda call: Pause("it?") if call.skill == "clerk" else True) if self.asks else None, **options,
        )

    def options(self, *, calm: bool) -> dict[str, Any]:
        draw, self.store.left = self.draw, inf
        if calm:
            return {"store": self.store, "provider": Scripted(self.scripts, 0, 0)}
        given: dict[str, Any] = {
            "store": self.store, "provider": Scripted(self.scripts, draw.choice([0, 0, 0.3]), draw.random())
        }
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
    ended: Counter[str] = Counter()
    for seed in seeds:
        run = RandomRun(seed)
        ended[run.to_the_end().stop_reason] += 1
        assert not [call for call, count in run.calls.items() if count > 1], seed
    print(f"{len(seeds)} random runs, stopped at random: {dict(ended)}, no call made twice")
