"""`ByHand`: drives the loop without threads, an event loop or the system clock.

Running an agent means performing the loop's effects and sending back their outcomes. Spawned work waits until the loop
joins; `order` decides which work ends next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

from kernai._util.api import check_type
from kernai.agents.agent import Agent
from kernai.drivers.driver import Driver, Stack
from kernai.events import Event, Row
from kernai.loop import effects
from kernai.loop.kernel import run_loop
from kernai.loop.root import Cancellation, Clock, Outbox, Root
from kernai.loop.run_state import Run
from kernai.middleware.chain import wrap
from kernai.registry.configuration import config
from kernai.registry.protocol_registry import REGISTRY as PROTOCOLS
from kernai.registry.protocol_registry import ProtocolRegistry
from kernai.registry.provider import Provider
from kernai.registry.skill_registry import REGISTRY as SKILLS
from kernai.registry.skill_registry import SkillRegistry
from kernai.values.context import Context
from kernai.values.limits import Budget, Limits
from kernai.values.media import Media
from kernai.values.message import Message
from kernai.values.result import Result

Order = Callable[[Sequence[Any]], Any]


def first_spawned(keys: Sequence[Any]) -> Any:
    """An `order`: spawned work ends in the order in which it was spawned."""
    return keys[0]


def last_spawned(keys: Sequence[Any]) -> Any:
    """An `order`: the work that was spawned last ends first."""
    return keys[-1]


class ByHand:
    """One root run, driven by hand. `events` are those emitted so far, `effects` those that the loop yielded.

    `cancelled` says whether the run is cancelled, like the `cancel` of `execute`; `monotonic` returns the loop's time
    in seconds, by default 0, 1, 2, … from call to call; `skills` and `protocols` replace the process-wide registries.
    """

    def __init__(
        self, agent: Agent[Any], *, provider: Provider | None = None, history: Iterable[Message] = (),
        limits: Limits | None = None, context: Context | None = None, listening: bool = False,
        cancelled: Callable[[], bool] | None = None, monotonic: Callable[[], float] | None = None,
        order: Order = first_spawned, skills: SkillRegistry = SKILLS, protocols: ProtocolRegistry = PROTOCOLS,
    ) -> None:
        check_type(agent, Agent, "agent must be an Agent")
        self.events: list[Event] = []
        self.effects: list[effects.Effect] = []
        self.warnings: list[tuple[str, dict[str, Any]]] = []
        self.listening = listening
        self._order = order
        clock = Clock(wall=lambda: 0.0, monotonic=monotonic or map(float, count()).__next__)
        limits = limits or Limits()
        cancellation = Cancellation(clock, None if cancelled is None else SimpleNamespace(is_set=cancelled))
        cancellation.begin(limits.timeout)
        self.root = Root(
            "run-1", Budget(limits), cancellation, config=config, skills=skills, protocols=protocols, wrap=wrap,
            warn=lambda name, **fields: self.warnings.append((name, fields)),
        )
        context = Context() if context is None else context
        self.kept: list[Row] | None = None
        self.outbox = Outbox(self)
        self.state = Run(
            agent, self.root, self.outbox, context, agent.provider if provider is None else provider, agent.model,
            context.depth, context.task_id,
        )
        self._driver = _Driver(self.root, self)
        self.state.messages.extend(history)

    def work(self, *content: str | Media) -> effects.Work:
        """The loop's generator, for a test that sends the outcomes itself."""
        return wrap(self.state, None, run_loop(self.state, content))

    def run(self, *content: str | Media) -> Result[Any]:
        """Performs every effect until the loop ends."""
        result: Result[Any] = self._drive(Stack(self.work(*content), self.outbox, breakable=False))
        if self._driver.failure is not None:
            raise self._driver.failure
        return result

    def flush(self, outbox: Outbox | None = None) -> list[Event]:
        """Emits the waiting events and returns them."""
        outbox = self.outbox if outbox is None else outbox
        out = list(map(Event.of, outbox.waiting))
        outbox.waiting.clear()
        self.events += out
        return out

    def deliver_now(self, row: Row, outbox: Outbox) -> None:
        """See `Delivery`."""
        del outbox
        self.events.append(Event.of(row))

    @property
    def recorded(self) -> list[Event]:
        return [event for event in self.events if event.row.role != "live"]

    def _drive(self, stack: Stack) -> Any:
        outcome: Any = None
        error: BaseException | None = None
        while True:
            effect = effects.advance(stack.work, outcome, error)
            self.flush(stack.outbox)
            outcome = error = None
            if isinstance(effect, effects.Completion):
                if not stack.leave():
                    if effect.error is not None:
                        raise effect.error
                    return effect.value
                outcome, error = effect.value, effect.error
                continue
            self.effects.append(effect)
            try:
                outcome = self._perform(effect, stack)
            except BaseException as raised:  # noqa: BLE001 - the loop decides what to do about it
                error = self._driver.outcome_error(raised, effect, is_spawned=True)

    def _perform(self, effect: effects.Effect, stack: Stack) -> Any:
        if isinstance(effect, effects.CallModel):
            return self._driver.ask(effect)
        if isinstance(effect, (effects.CallSkill, effects.CallProtocol)):
            function, arguments, _ = self._driver.call_of(effect)
            outcome = function(**arguments)
            if not hasattr(outcome, "__await__"):
                return outcome
            import asyncio

            return asyncio.run(outcome)
        if isinstance(effect, effects.Sleep):
            return self.root.cancellation.check()
        if not isinstance(effect, effects.Join):
            return self._driver.perform_at_once(effect, stack)
        spawned = {one.key: one for one in stack.spawned}
        ending = spawned.pop(self._order(list(spawned)))
        stack.spawned = list(spawned.values())
        try:
            return effects.Completion(ending.key, self._drive(ending))
        except BaseException as error:  # noqa: BLE001 - reported by the loop that spawned it
            return effects.Completion(ending.key, error=error)


class _Driver(Driver):
    def spawn(self, spawned: Stack, stack: Stack) -> None:
        stack.spawned = [*stack.spawned, spawned]
