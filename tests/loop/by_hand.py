"""A driver for the loop in a few lines: no thread, no event loop, no clock of the machine.

It shows what the loop is worth: whoever performs the effects and sends back what came of them runs an agent. Started
work is kept until the loop asks for the next that ends; `order` says which one that is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

from kernai import Agent, Context, Event, Limits, Media, Message, Provider, Result, config
from kernai.loop.effects import CallModel, CallProtocol, CallSkill, Effect, Ended, NextEnded, Start, Work
from kernai.loop.kernel import run_loop
from kernai.loop.outbox import Clock, Outbox
from kernai.loop.run_state import Root, Scope
from kernai.values.event import LIVE_ONLY
from kernai.values.limits import Budget

Order = Callable[[Sequence[Any]], Any]


def first_started(keys: Sequence[Any]) -> Any:
    return keys[0]


def last_started(keys: Sequence[Any]) -> Any:
    return keys[-1]


class ByHand:
    """One root run, driven by hand. `events` is what went out, in order; `effects` what the loop asked for."""

    def __init__(
        self,
        agent: Agent,
        *,
        provider: Provider | None = None,
        history: Iterable[Message] = (),
        limits: Limits | None = None,
        context: Context | None = None,
        listening: bool = False,
        cancelled: Callable[[], bool] = lambda: False,
        monotonic: Callable[[], float] | None = None,
        order: Order = first_started,
    ) -> None:
        self.events: list[Event] = []
        self.effects: list[Effect] = []
        self.warnings: list[tuple[str, dict[str, Any]]] = []
        self._order = order
        ticks = count()
        clock = Clock(wall=lambda: 0.0, monotonic=monotonic or (lambda: float(next(ticks))))
        root = Root(
            run_id="run-1",
            budget=Budget(limits or Limits(), 0.0),
            allowed_skills=config.allowed_skills,
            credential_resolver=config.credential_resolver,
            setting_resolver=config.setting_resolver,
            cancelled=cancelled,
            warn=lambda name, **fields: self.warnings.append((name, fields)),
            clock=clock,
        )
        context = Context() if context is None else context
        self.outbox = Outbox(self.events.append, listening=listening)
        self.scope = Scope(
            agent,
            root,
            self.outbox,
            context,
            provider=provider or agent.provider,
            model=agent.model,
            generation=agent.generation,
            depth=context.depth,
        )
        for message in history:
            self.scope.tape.append(message)

    def work(self, *content: str | Media) -> Work:
        """The loop itself, for a test that sends the outcomes with its own hands."""
        return run_loop(self.scope, content)

    def run(self, *content: str | Media) -> Result:
        """Performs every effect until the loop ends."""
        result: Result = self._drive(self.work(*content), self.outbox)
        return result

    def flush(self, outbox: Outbox | None = None) -> list[Event]:
        """Lets the waiting events out; gives them."""
        outbox = self.outbox if outbox is None else outbox
        out = list(outbox.waiting)
        outbox.waiting.clear()
        self.events += out
        return out

    @property
    def recorded(self) -> list[Event]:
        return [event for event in self.events if event.type not in LIVE_ONLY]

    def _drive(self, work: Work, outbox: Outbox) -> Any:
        started: dict[Any, Start] = {}
        outcome: Any = None
        error: BaseException | None = None
        while True:
            try:
                effect = work.send(outcome) if error is None else work.throw(error)
            except StopIteration as stop:
                return stop.value
            finally:
                self.flush(outbox)
            self.effects.append(effect)
            outcome = error = None
            try:
                outcome = self._perform(effect, started)
            except BaseException as raised:
                error = raised

    def _perform(self, effect: Effect, started: dict[Any, Start]) -> Any:
        if isinstance(effect, CallModel):
            return effect.provider.call(effect.messages, effect.model, effect.generation, effect.on_chunk)
        if isinstance(effect, CallSkill):
            return _awaited(effect.skill.invoke(effect.arguments, effect.context))
        if isinstance(effect, CallProtocol):
            return _awaited(effect.protocol.handler(effect.block, effect.context))
        if isinstance(effect, Start):
            started[effect.key] = effect
            return None
        assert isinstance(effect, NextEnded)
        ending = started.pop(self._order(list(started)))
        try:
            return Ended(ending.key, self._drive(ending.work, ending.outbox))
        except BaseException as error:
            return Ended(ending.key, error=error)


def _awaited(value: Any) -> Any:
    return asyncio.run(value) if asyncio.iscoroutine(value) else value
