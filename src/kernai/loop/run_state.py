"""`Scope`: the state of one run or sub-run, and what it shares with the others of its root.

An agent is configuration; everything that changes while it runs is here. The loop in `kernel` works on one `Scope`; a
sub-run gets one of its own from `for_task` or `for_agent`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kernai.agents.instruction_builder import system_text
from kernai.errors import KernaiError, error_text
from kernai.loop.effects import Cancelled
from kernai.loop.outbox import Clock, Outbox
from kernai.registry.access import ProtocolAccess, SkillAccess
from kernai.registry.protocol_registry import REGISTRY as protocols
from kernai.registry.skill_context import SkillContext
from kernai.registry.skill_registry import REGISTRY as skills
from kernai.values.conversation import Tape
from kernai.values.event import Event
from kernai.values.json_data import dumps
from kernai.values.limits import UsageMeter
from kernai.values.message import Message, Part
from kernai.values.result import Result, StopReason

if TYPE_CHECKING:
    from kernai.agents.agent import Agent
    from kernai.blocks.plan import Task
    from kernai.registry.credential_resolver import Resolver
    from kernai.registry.provider import Provider
    from kernai.values.context import Context
    from kernai.values.generation_options import GenerationOptions
    from kernai.values.limits import Budget
    from kernai.values.model import Model


class Root:
    """What a root run and all its sub-runs share. Configuration is read once, when the run starts."""

    __slots__ = (
        "allowed_skills", "budget", "cancelled", "clock", "credential_resolver", "run_id", "setting_resolver", "warn",
    )

    def __init__(
        self,
        run_id: str,
        budget: Budget,
        *,
        allowed_skills: tuple[str, ...] | None = None,
        credential_resolver: Resolver | None = None,
        setting_resolver: Resolver | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        warn: Callable[..., None] = lambda *_, **__: None,
        clock: Clock | None = None,
    ) -> None:
        self.run_id = run_id
        self.budget = budget
        self.allowed_skills = allowed_skills
        self.credential_resolver = credential_resolver
        self.setting_resolver = setting_resolver
        self.cancelled = cancelled
        self.warn = warn
        self.clock = Clock() if clock is None else clock


class Scope:
    """One run or sub-run while it goes on."""

    __slots__ = (
        "_last_call", "_run_id", "_system", "_system_key", "_wall", "agent", "clock", "context", "depth", "generation",
        "metadata", "meter", "model", "outbox", "path", "protocols", "provider", "repeats", "result", "root", "skills",
        "step", "steps", "tape", "task_id", "warnings",
    )

    def __init__(
        self,
        agent: Agent,
        root: Root,
        outbox: Outbox,
        context: Context,
        *,
        provider: Provider | None,
        model: Model,
        generation: GenerationOptions,
        path: str = "",
        depth: int = 0,
        task_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.agent = agent
        self.root = root
        self.outbox = outbox
        self.context = context
        self.provider = provider
        self.model = model
        self.generation = generation
        self.path = path
        self.depth = depth
        self.task_id = task_id
        self.metadata = dict(metadata or {})
        self.clock = root.clock
        self._run_id, self._wall = root.run_id, root.clock.wall
        self.skills = SkillAccess(agent.skills, root.allowed_skills, model)
        self.protocols = ProtocolAccess(agent.protocols)
        self.tape = Tape()
        self.meter = UsageMeter()
        self.step = 0
        self.steps = 0
        self.result: Result | None = None
        self._system: Message | None = None
        self._system_key: object = None
        #: what the next injected message has to say besides
        self.warnings: list[str] = []
        self.repeats = 0
        self._last_call: object = None

    def emit(self, type: str, data: Any) -> None:
        """An event of this scope, delivered before the next effect."""
        self.outbox.waiting.append(
            Event(type, data, self.step, self.depth, self.task_id, self.path, self._run_id, self._wall())
        )

    def emit_now(self, type: str, data: Any) -> None:
        """An event that is delivered at once, while an effect is under way."""
        self.outbox.now(
            Event(type, data, self.step, self.depth, self.task_id, self.path, self._run_id, self._wall())
        )

    def inject(self, content: Part | list[Part]) -> None:
        """Puts a message of the runtime on the tape."""
        if self.warnings:
            warnings = "".join(f"\n{warning}" for warning in self.warnings)
            content = content + warnings if isinstance(content, str) else [*_listed(content), warnings]
            self.warnings = []
        self.tape.append(Message("user", content))

    def inject_warnings(self) -> None:
        """Gives warnings a message of their own, where the message before was not the runtime's."""
        if self.warnings:
            warnings, self.warnings = self.warnings, []
            self.inject("\n".join(warnings))

    def system_message(self) -> Message:
        """The system message of this step, built anew only when one of its ingredients has changed."""
        agent = self.agent
        instructions = agent.instructions_for(self.context)
        key = (instructions, protocols.version, skills.version if agent.list_skills else 0)
        if self._system is None or key != self._system_key:
            text = system_text(
                instructions,
                self.model,
                agent.skills,
                self.skills,
                self.protocols,
                workflows=self.may_plan,
                list_skills=agent.list_skills,
            )
            self._system, self._system_key = Message("system", text), key
        return self._system

    @property
    def may_plan(self) -> bool:
        """Whether plans of this scope are run: in the root alone."""
        return self.depth == 0 and self.context.is_root

    def call_id(self, index: int) -> str:
        """The id of call `index` of this step: ``0.1``, or ``2.a/0.1`` in a sub-run."""
        return f"{self.path}/{self.step}.{index}" if self.path else f"{self.step}.{index}"

    def check_cancelled(self) -> None:
        """Raises `Cancelled` when the run was cancelled from outside."""
        if self.root.cancelled():
            raise Cancelled

    def came_again(self, kind: str, name: str, params: object) -> int:
        """How many times in a row this very call has come, this one included."""
        call = (kind, name, dumps(params))
        self.repeats = self.repeats + 1 if call == self._last_call else 1
        self._last_call = call
        return self.repeats

    def skill_context(self, owner: Any, call_id: str) -> SkillContext[Any]:
        """The context handed to a skill or a protocol handler."""
        root = self.root

        def progress(data: object) -> None:
            self.emit_now("progress", {"call_id": call_id, "data": data})

        return SkillContext(
            owner,
            self.context,
            self.context.media_store,
            root.credential_resolver,
            root.setting_resolver,
            call_id=call_id,
            run_id=root.run_id,
            emit=progress,
            cancelled=root.cancelled,
        )

    def for_task(self, task: Task) -> Scope:
        """The scope of a workflow's task: the same agent, one level deeper, events into an outbox of its own."""
        return Scope(
            self.agent,
            self.root,
            self.outbox.beside(),
            self._child_context(task.id),
            provider=self.provider,
            model=self.model,
            generation=self.generation,
            path=_join(self.path, f"{self.step}.{_escape(task.id)}"),
            depth=self.depth + 1,
            task_id=task.id,
        )

    def for_agent(self, agent: Agent, call_id: str, outbox: Outbox) -> Scope:
        """The scope of an agent that was called as a skill."""
        return Scope(
            agent,
            self.root,
            outbox,
            self._child_context(self.task_id),
            provider=agent.provider if agent.provider is not None else self.provider,
            model=agent.model,
            generation=self.generation.merge(agent.generation),
            path=call_id,
            depth=self.depth + 1,
            task_id=self.task_id,
        )

    def finish(self, reason: StopReason, text: str | None = None, error: KernaiError | None = None) -> Result:
        """The result of this scope, told as its last event."""
        usage = self.meter.usage()
        result = Result(text, reason, self.steps, usage, tuple(self.tape.messages), self.root.run_id, error)
        self.emit("result", {
            "text": text,
            "stop_reason": reason.value,
            "steps": self.steps,
            "usage": usage.to_dict(),
            "error": None if error is None else error_text(error),
        })
        if error is not None:
            error.result = result
        self.result = result
        return result

    def _child_context(self, task_id: str | None) -> Context:
        child = self.context.child(task_id)
        if child.media_store is not self.context.media_store:
            # media of sub-runs are named by id in the parent's tape: there is one store for all
            child.media_store = self.context.media_store
        return child


def _listed(content: Part | list[Part]) -> list[Part]:
    return content if isinstance(content, list) else [content]


def _join(path: str, part: str) -> str:
    return f"{path}/{part}" if path else part


def _escape(task_id: str) -> str:
    """`/` separates scopes, so an id may not hold one; `%` first, so that the escape can be undone."""
    return task_id.replace("%", "%25").replace("/", "%2F")


def input_summary(parts: tuple[Part, ...]) -> str | list[str | Mapping[str, Any]]:
    """What `run_start` tells of the input: text as it is, media as references."""
    if len(parts) == 1 and isinstance(parts[0], str):
        return parts[0]
    return [part if isinstance(part, str) else part.to_dict() for part in parts]
