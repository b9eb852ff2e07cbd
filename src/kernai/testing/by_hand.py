"""`ByHand`: drives the loop without the system clock, and without threads unless a skill is async.

Running an agent means performing the loop's effects and sending back their outcomes, as the synchronous driver does.
Spawned work waits until the loop joins; `order` decides which work ends next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

from kernai import Agent, Context, Media, ProtocolRegistry, Result, SkillRegistry, config
from kernai._util.api import check_type
from kernai.drivers.driver import Stack
from kernai.drivers.threads import ThreadsDriver
from kernai.events import Event, Row
from kernai.loop import effects
from kernai.loop.kernel import run_loop
from kernai.loop.root import Cancellation, Clock, Outbox, Root
from kernai.loop.run_state import Run
from kernai.middleware.chain import wrap
from kernai.registry.protocol_registry import REGISTRY as PROTOCOLS
from kernai.registry.provider import Provider, check_provider
from kernai.registry.skill_registry import REGISTRY as SKILLS
from kernai.runs.run_request import checked_context
from kernai.values.limits import Budget, Limits
from kernai.values.message import INPUT_PARTS, Message, as_parts

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
        clock = Clock(wall=lambda: 0.0, monotonic=monotonic or map(float, count()).__next__)
        limits = Limits() if limits is None else check_type(limits, Limits, "limits must be a Limits")
        cancellation = Cancellation(clock, None if cancelled is None else SimpleNamespace(is_set=cancelled))
        cancellation.begin(limits.timeout)
        log: Any = SimpleNamespace(warn=lambda name, **fields: self.warnings.append((name, fields)), trace=None)
        self.root = Root(
            "run-1", Budget(limits), cancellation, config=config, skills=skills, protocols=protocols, wrap=wrap,
            log=log,
        )
        context = checked_context(context)
        self.kept: Any = None
        self.outbox = Outbox(self)
        self.state = Run(
            agent, self.root, self.outbox, context, agent.provider if provider is None else check_provider(provider),
            agent.model, context.depth, context.task_id,
        )
        self._driver = _Driver(self, order)
        for message in history:
            self.state.keep(check_type(message, Message, "history must be a list of Messages"), "history")

    def work(self, *content: str | Media) -> effects.Work:
        """The loop's generator, for a test that sends the outcomes itself."""
        self.root.runs[self.state.scope] = self.state  # the end of an earlier `run` has removed it
        return wrap(self.state, None, run_loop(self.state, as_parts(content, "the input", INPUT_PARTS)))

    def run(self, *content: str | Media) -> Result[Any]:
        """Performs every effect until the loop ends."""
        result: Result[Any] = self._driver.run(Stack(self.work(*content), self.outbox))
        return result

    def flush(self, outbox: Outbox | None = None) -> list[Event]:
        """Emits the waiting events and returns them."""
        outbox = self.outbox if outbox is None else outbox
        out = list(map(Event.of, outbox.waiting))
        outbox.waiting.clear()
        self.events += out
        return out

    def deliver_now(self, row: Row, run: Run) -> None:
        """See `Delivery`."""
        del run
        self.events.append(Event.of(row))

    @property
    def recorded(self) -> list[Event]:
        return [event for event in self.events if event.row.role != "live"]


class _Driver(ThreadsDriver):
    """Keeps the effects, drives spawned work in the order that the test wants, and never sleeps."""

    def __init__(self, by_hand: ByHand, order: Order) -> None:
        super().__init__(by_hand.root, by_hand)
        self._effects, self._order = by_hand.effects, order

    def spawn(self, spawned: Stack, stack: Stack) -> None:
        stack.spawned = [*stack.spawned, spawned]
        stack.completions = stack.completions or SimpleQueue()

    def _performed(self, effect: effects.Effect, stack: Stack, call: Any) -> Any:
        self._effects.append(effect)
        if isinstance(effect, effects.Sleep):
            return self.root.cancellation.check()
        return super()._performed(effect, stack, call)

    def _join(self, stack: Stack) -> effects.Completion:
        spawned = {one.key: one for one in stack.spawned}
        ending = spawned.pop(self._order(list(spawned)))
        stack.spawned = list(spawned.values())
        self._drive_spawned(ending, stack)
        ended: effects.Completion = stack.completions.get()
        return ended
