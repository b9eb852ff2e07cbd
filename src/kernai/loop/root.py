"""`Root`: what a root run and all its sub-runs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kernai.loop.gate import Gate

if TYPE_CHECKING:
    from kernai.inputs.params import Repair
    from kernai.loop.cancellation import Cancellation
    from kernai.loop.effects import Effect, Work
    from kernai.loop.outbox import Clock
    from kernai.loop.run_state import Run
    from kernai.registry.credential_resolver import Resolver
    from kernai.registry.protocol_registry import ProtocolRegistry
    from kernai.registry.skill_registry import SkillRegistry
    from kernai.values.limits import Budget


class Durable(Protocol):
    """Whoever records a run so that it survives."""

    def commit(self) -> None:
        """Appends what was told since the last time. What it raises ends the run."""


class Root:
    """Configuration and registries as they were named when the run started; nothing in the loop asks for global ones.

    `runs` are the runs that go on just now, by scope: whoever performs an effect finds there what it speaks of. The
    driver empties it at the end, so that a run is freed when nobody has it any more, without waiting for a collection.
    """

    def __init__(
        self,
        run_id: str,
        budget: Budget,
        clock: Clock,
        cancellation: Cancellation,
        *,
        wrap: Callable[[Run, Effect | None, Work], Work],
        skills: SkillRegistry,
        protocols: ProtocolRegistry,
        allowed_skills: tuple[str, ...] | None = None,
        credential_resolver: Resolver | None = None,
        setting_resolver: Resolver | None = None,
        repair: Repair = "json",
        warn: Callable[..., None] = lambda *_, **__: None,
        trace: Callable[..., None] | None = None,
    ) -> None:
        self.run_id = run_id
        self.budget = budget
        self.clock = clock
        self.cancellation = cancellation
        self.skills = skills
        self.protocols = protocols
        self.allowed_skills = allowed_skills
        self.credential_resolver = credential_resolver
        self.setting_resolver = setting_resolver
        #: whether parameters with mistakes of which nothing is lost are taken
        self.repair = repair
        self.warn = warn
        #: where the traceback of a failing call goes, None where nobody wants it
        self.trace = trace
        #: what its runs ask before they do something
        self.gate = Gate(cancellation, budget)
        self.runs: dict[str, Run] = {}
        #: what stands between a piece of work and its driver: ``wrap(run, effect, work)`` gives the work to drive.
        #: `effect` is None for the root run itself, else the sub-run or the spawned call.
        self.wrap = wrap
        #: whoever can keep a paused run; None where nobody can
        self.durable: Durable | None = None
