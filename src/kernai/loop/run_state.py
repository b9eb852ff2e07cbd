"""`Run`: the state of one run or sub-run.

An agent is configuration; everything that changes while it runs is here. The loop in `kernel` works on one `Run`; a
sub-run gets one of its own from `for_task` or `for_agent`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernai.errors import Control, KernaiError, LimitReachedError, ProviderError, RunStoppedError, Stop, error_text
from kernai.events import Place, ProgressRow, ResultRow, Row
from kernai.interrupts import calls_out
from kernai.jsonio.json_data import dumps
from kernai.loop.effects import LimitStop
from kernai.loop.model_stream import ModelStream
from kernai.loop.quoted_calls import QuotedCalls
from kernai.loop.scopes import task_scope
from kernai.registry.skill_context import SkillContext
from kernai.values.conversation import Conversation
from kernai.values.limits import UsageMeter
from kernai.values.message import Message, Part
from kernai.values.result import Result, StopReason, Usage

if TYPE_CHECKING:
    from kernai.agents.agent import Agent
    from kernai.agents.setup import Setup
    from kernai.blocks.plan import Plan, Task
    from kernai.inputs.answer_type import AnswerType
    from kernai.loop.effects import Work
    from kernai.loop.gate import Gate
    from kernai.loop.outbox import Outbox
    from kernai.loop.root import Root
    from kernai.registry.access import ProtocolAccess, SkillAccess
    from kernai.registry.provider import Provider
    from kernai.registry.skill_definition import Skill
    from kernai.values.context import Context
    from kernai.values.generation_options import GenerationOptions
    from kernai.values.model import Model
    from kernai.values.pending_call import PendingCall


NO_PROVIDER = (
    "no provider is set: pass run(..., provider=...), or Agent(provider=...), or configure(default_provider=...)"
)


class Run:
    """One run or sub-run while it goes on. `scope` is its path, ``""`` for the root."""

    __slots__ = (
        "_last_call", "_rows", "_wall", "agent", "answer_type", "clock", "context", "conversation", "depth", "ended_by",
        "finish_reason", "gate", "generation", "given_plan", "held", "may_plan", "metadata", "meter", "middleware",
        "model", "most_repeats", "outbox", "output", "place", "provider", "quoted", "rejected", "repairs", "repeats",
        "result", "root", "scope", "setup", "skill_contexts", "step", "steps", "stop", "stream", "task_agents",
        "task_id", "truncated", "unfinished", "warnings", "was_silent",
    )

    def __init__(
        self,
        agent: Agent[Any],
        root: Root,
        outbox: Outbox,
        context: Context,
        *,
        provider: Provider | None,
        model: Model,
        generation: GenerationOptions,
        scope: str = "",
        depth: int = 0,
        task_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        middleware: tuple[Callable[[Any], Work], ...] = (),
        answer_type: AnswerType | None = None,
    ) -> None:
        self._rows = outbox.rows
        self._wall = root.clock.wall
        self.agent = agent
        self.root = root
        self.outbox = outbox
        self.context = context
        self.provider = provider
        self.model = model
        self.generation = generation
        self.scope = scope
        self.depth = depth
        self.task_id = task_id
        self.metadata = metadata or {}
        self.middleware = middleware
        #: whether plans are run: in the root alone, where the agent has not switched them off
        self.may_plan = agent.workflows and depth == 0 and context.is_root
        self.clock = root.clock
        #: the type of this run's answer; None for text
        self.answer_type = answer_type
        self.setup = self._set_up()
        #: what is asked before anything is done
        self.gate: Gate = root.gate
        self.most_repeats = root.budget.limits.repeated_calls
        self._begin()
        root.runs[scope] = self
        for kind, name, close in self.setup.unknown():
            root.warn(f"{kind}.unknown", run_id=root.run_id, agent=agent.name, **{kind: name},
                      reason=f"no {kind} of that name is registered", **({"close": close} if close else {}))

    def _begin(self) -> None:
        """Everything that changes, as it is at first."""
        self.conversation = Conversation()
        self.meter = UsageMeter()
        #: the skill of each name that a call was checked against
        self.held: dict[str, Skill] = {}
        #: of the calls of this step, by call id
        self.skill_contexts: dict[str, SkillContext[Any]] = {}
        #: what the next message of the runtime has to say besides
        self.warnings: tuple[str, ...] = ()
        #: the calls in what the model has read from outside
        self.quoted = QuotedCalls()
        #: the model call that is under way, or the last one
        self.stream: ModelStream | None = None
        #: of the model's last response
        self.finish_reason: str | None = None
        self.step = 0
        self.begin_turn()
        #: the workflow that the caller has written for this run, and the agents of their own that its tasks may have
        self.given_plan: Plan | None = None
        self.task_agents: Mapping[str, Agent] = {}
        self.steps = 0

    def begin_turn(self) -> None:
        """What comes of one input of the caller, as it is at first."""
        #: how many times in a row the last call has come
        self.repeats = 0
        self._last_call: object = None
        #: whether the answer was cut off; such an answer, while it goes on
        self.truncated, self.unfinished = False, ""
        #: the vendor's own reason for the end of a response that says nothing, and whether there was one before
        self.ended_by, self.was_silent = ("", ""), False
        #: the answer's value, the mistakes in its JSON that were mended, how many answers of another type came before
        self.output: Any = None
        self.repairs: Sequence[str] = ()
        self.rejected = 0
        self.result: Result[Any] | None = None
        #: why the whole run stops, where what is written is written because of that
        self.stop: str | None = None
        self.begin_step(self.step)

    def _set_up(self) -> Setup:
        root = self.root
        return self.agent.setup_for(
            self.model, root.skills, root.protocols, root.allowed_skills, workflows=self.may_plan,
            answer_type=self.answer_type,
        )

    @property
    def skills(self) -> SkillAccess:
        """What the agent may call just now."""
        if not self.setup.holds(self.agent.options_version):
            self.setup = self._set_up()
        return self.setup.skills

    @property
    def protocols(self) -> ProtocolAccess:
        """The protocols that the agent may use just now."""
        if not self.setup.holds(self.agent.options_version):
            self.setup = self._set_up()
        return self.setup.protocols

    def held_skill(self, name: str) -> Skill:
        """The skill that a call of this name was checked against, however the registry has changed since.

        `KernaiError` where there is none.
        """
        skill = self.held.get(name) or self.skills.look_up(name)[0]
        if skill is None:
            raise KernaiError(f"Skill {name!r} not found")
        return skill

    def begin_step(self, step: int) -> None:
        """Rows that are written from now on belong to this step."""
        self.step = step
        if not self.setup.holds(self.agent.options_version):
            self.setup = self._set_up()
        self.place: Place = (step, self.depth, self.task_id, self.scope, self.root.run_id, self.stop)

    def write(self, row: Row, *, own: bool = False) -> None:
        """Records what has happened, just now and in this step; it is delivered before the next effect.

        `own`: nobody else has what the row's open fields hold, and it is no warning.
        """
        row.place = self.place
        wall = self._wall  # called as an attribute it would be looked up as a method first
        row.at = wall()
        if not (own or row.is_simple):
            row.seal()
            if row.is_warning and self.outbox.is_kept:
                self.outbox.waiting.append(row)  # for the log
        self._rows.append(row)

    def write_now(self, row: Row) -> None:
        """The same, delivered at once, while an effect is under way; dropped when this run has ended.

        A call that was left behind may still report something then, and `result` is a run's last event.
        """
        if self.result is None:
            self.outbox.now(self.sealed(row))

    def sealed(self, row: Row) -> Row:
        """A row of this run that somebody else delivers."""
        row.place, row.at = self.place, self._wall()
        row.seal()
        return row

    def keep(self, message: Message) -> None:
        """Adds the caller's message to the conversation, and its media to the store."""
        for media in message.media:
            self.context.media_store.put(media)
        self.conversation.append(message)

    def inject(self, content: Part | list[Part] | Message) -> None:
        """Adds a message of the runtime to the conversation, or one that is another's."""
        if isinstance(content, Message):
            self.conversation.append(content)
            self.inject_warnings()
            return
        if self.warnings:
            warnings = "".join(f"\n{warning}" for warning in self.warnings)
            content = content + warnings if isinstance(content, str) else [*_listed(content), warnings]
            self.warnings = ()
        self.conversation.messages.append(self.gate.as_recorded(self, Message("user", content)))

    def inject_warnings(self) -> None:
        """Gives warnings a message of their own, where the message before was not the runtime's."""
        if self.warnings:
            warnings, self.warnings = self.warnings, ()
            self.inject("\n".join(warnings))

    def call_id(self, index: int) -> str:
        """The id of call `index` of this step: ``0.1``, or ``2.a/0.1`` in a sub-run."""
        return f"{self.scope}/{self.step}.{index}" if self.scope else f"{self.step}.{index}"

    def check_provider(self) -> None:
        """Without a provider: `ProviderError` where nobody else could answer the model calls of this run."""
        if not self.middleware and not self.gate.is_decided():
            raise ProviderError(NO_PROVIDER)

    def stop_if_interrupted(self, error: BaseException) -> None:
        """Stops all work of the run at Ctrl-C: the loop itself calls code of the host, of which no driver hears."""
        if not isinstance(error, (Exception, Control)):
            self.root.cancellation.set()

    def stops(self, error: BaseException, *, ends: bool = True) -> None:
        """Marks what is written from now on, where it is written because the whole run stops: a resume leaves it out.

        `error` was raised here, and `ends` this run or sub-run. Whatever ends the root stops everything. A sub-run
        ends for the root's sake when that was cancelled, or has used up its budget.
        """
        if self.stop is not None or self.gate.is_on_record():
            return  # of what is on record the recording says it
        is_limit = isinstance(error, (LimitReachedError, LimitStop))
        is_cancelled = self.root.cancellation.is_set()
        if self.scope or not ends:
            if isinstance(error, Stop) and not is_limit:
                return
            if not is_cancelled and not (is_limit and self.root.budget.is_used_up()):
                return
        why = self.root.cancellation.error() if is_cancelled else error
        if isinstance(why, (LimitReachedError, Stop)):
            self._mark(why.reason)
        else:
            failed = isinstance(why, Exception) and not isinstance(why, RunStoppedError)
            self._mark((StopReason.ERROR if failed else StopReason.CANCELLED).value)

    def _mark(self, reason: str) -> None:
        self.stop = reason
        self.place = (*self.place[:5], reason)

    def came_again(self, kind: str, name: str, params: object) -> int:
        """How many times in a row this very call has come, this one included."""
        call = (kind, name, dumps(params))
        self.repeats = self.repeats + 1 if call == self._last_call else 1
        self._last_call = call
        return self.repeats

    def skill_context(self, owner: Any, call_id: str) -> SkillContext[Any]:
        """A context for a call of the skill `owner`, or with None for a protocol's handler."""
        root = self.root

        def progress(data: object) -> None:
            self.write_now(ProgressRow(call_id, data))

        return SkillContext(
            owner,
            self.context,
            self.context.media_store,
            root.credential_resolver,
            root.setting_resolver,
            call_id=call_id,
            run_id=root.run_id,
            emit=progress,
            cancelled=root.cancellation.is_set,
        )

    def skill_context_for(self, skill: Skill, call_id: str) -> SkillContext[Any]:
        """The context of a skill's call, kept until its outcome is told: it knows the secrets that were read."""
        context = self.skill_contexts.get(call_id)
        if context is None:
            context = self.skill_contexts[call_id] = self.skill_context(skill, call_id)
        return context

    def for_task(self, task: Task) -> Run:
        """The run of a workflow's task: the same agent or its own, one level deeper, events into another outbox."""
        own = self.task_agents.get(task.id)
        scope = task_scope(self.scope, self.step, task.id)
        if own is not None:
            return self._below(own, scope, task.id)
        return self._with_outer(Run(
            self.agent,
            self.root,
            self.outbox.beside(),
            self._child_context(task.id),
            provider=self.provider,
            model=self.model,
            generation=self.generation,
            scope=scope,
            depth=self.depth + 1,
            task_id=task.id,
            middleware=self.middleware,
        ))

    def for_agent(self, agent: Agent[Any], call_id: str) -> Run:
        """The run of an agent that was called as a skill."""
        return self._below(agent, call_id, self.task_id)

    def _below(self, agent: Agent[Any], scope: str, task_id: str | None) -> Run:
        """The run of another agent, one level deeper."""
        return self._with_outer(Run(
            agent,
            self.root,
            self.outbox.beside(),
            self._child_context(task_id),
            provider=agent.provider if agent.provider is not None else self.provider,
            model=agent.model,
            generation=self.generation.merge(agent.generation),
            scope=scope,
            depth=self.depth + 1,
            task_id=task_id,
            middleware=self.middleware if agent.middleware is None else agent.middleware,
            answer_type=agent.answer_type,
        ))

    def _with_outer(self, child: Run) -> Run:
        child.quoted.outer = self.quoted
        if self.stop is not None:
            child._mark(self.stop)
        return child

    def count_failed(self, used: Usage) -> None:
        """Counts what model calls used that came to nothing: for the bill, and against the limits."""
        self.meter.add(used)
        self.root.budget.spend_usage(used)

    def end_of(self, scope: str) -> Result[Any] | None:
        """Lets go of a sub-run, counts what it used as this run's too, and gives its result where it came to one."""
        runs = self.root.runs
        child = runs.pop(scope, None)
        if child is None:
            return None
        self.meter.add(child.meter.usage())
        if child.stop is not None and self.stop is None:
            self._mark(child.stop)
        if child.result is None:  # it waited for somebody when the run was stopped, and perhaps others below it
            for below in [one for one in runs if one.startswith(f"{scope}/")]:
                self.meter.add(runs.pop(below).meter.usage())
        return child.result

    def finish(
        self,
        reason: StopReason,
        text: str | None = None,
        error: KernaiError | None = None,
        pending: tuple[PendingCall, ...] = (),
        *,
        raised: bool = False,
    ) -> Result[Any]:
        """The result of this run, told as its last event. `raised`: a `Stop` ended it, and no limit of the root."""
        usage = self.meter.usage()
        messages = tuple(self.conversation.messages)
        answer = text if self.answer_type is None else self.output
        output = answer if reason is StopReason.FINAL else None
        result: Result[Any] = Result(
            text, reason, self.steps, usage, messages, self.root.run_id, error, pending, self.finish_reason,
            self.truncated, output,
        )
        if reason is StopReason.INTERRUPT and not self.scope:
            self._mark(reason.value)
        elif error is not None and not (raised and self.scope):
            self.stops(error)
        self.write(ResultRow(
            text, reason.value, self.steps, usage.to_dict(), None if error is None else error_text(error),
            truncated=self.truncated or None, repaired=list(self.repairs) or None, raised=raised or None,
        ))
        if error is not None:
            error.result = result
        self.result = result
        self.stream = None
        self.skill_contexts.clear()
        return result

    @calls_out
    def _child_context(self, task_id: str | None) -> Context:
        child = self.context.child(task_id)
        if child.media_store is not self.context.media_store:
            # media of sub-runs are named by id in the parent's conversation: there is one store for all
            child.media_store = self.context.media_store
        return child


def _listed(content: Part | list[Part]) -> list[Part]:
    return content if isinstance(content, list) else [content]


def input_summary(parts: tuple[Part, ...]) -> str | list[str | Mapping[str, Any]]:
    """What `run_start` tells of the input: text as it is, media as references."""
    if len(parts) == 1 and isinstance(parts[0], str):
        return parts[0]
    return [part if isinstance(part, str) else part.to_dict() for part in parts]
