"""`Run`: the state of one run or sub-run.

An agent is configuration; everything that changes while it runs is here. The loop in `kernel` works on one `Run`; a
sub-run gets its own from `child`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from kernai.agents.definition import definition_of
from kernai.agents.setup import NO_SYSTEM, Setup
from kernai.blocks.block import Block, neutralize
from kernai.errors import Control, KernaiError, LimitReachedError, ProviderError, RunStoppedError, Stop, error_text
from kernai.events import Place, ProgressRow, ResultRow, Row, TrustedValuesRow, UntrustedValueRow
from kernai.jsonio.json_data import dumps
from kernai.loop.effects import CallProtocol, CallSkill, LimitStop, Work, task_scope
from kernai.loop.model_stream import ModelStream
from kernai.loop.quoted_calls import QuotedCalls, passed_on
from kernai.loop.root import Gate, Outbox, Root
from kernai.registry.registry import CHANGES
from kernai.registry.skill_context import SkillContext
from kernai.values.limits import UsageMeter
from kernai.values.media import Media
from kernai.values.message import By, InputPart, Message, Outside, Part, joined
from kernai.values.result import Result, StopReason

if TYPE_CHECKING:
    from kernai.agents.agent import Agent
    from kernai.blocks.plan import Plan, Task
    from kernai.loop.trust import Trust
    from kernai.registry.protocol_registry import ProtocolAccess
    from kernai.registry.provider import Provider
    from kernai.registry.skill_definition import Skill
    from kernai.registry.skill_registry import SkillAccess
    from kernai.values.context import Context
    from kernai.values.model import GenerationOptions, Model
    from kernai.values.pending_calls import PendingCall, UntrustedValue


NO_PROVIDER = (
    "no provider is set: pass run(..., provider=...), or Agent(provider=...), or configure(default_provider=...); "
    "kernai_providers.resolve('vendor/model') returns a provider and its model"
)


class Run:
    """One run or sub-run in progress. `scope` is its path, ``""`` for the root."""

    __slots__ = (
        "_counted", "_last_call", "_repeats", "_rows", "_wall", "agent", "answer_type", "clock", "context", "depth",
        "finish_reason", "first_step", "gate", "generation", "given_plan", "held", "may_plan", "messages", "metadata",
        "meter", "middleware", "model", "most_repeats", "native_calls", "outbox", "output", "output_check", "place",
        "provider", "quoted", "rejected", "repairs", "result", "root", "scope", "setup", "skill_contexts",
        "step", "steps", "stop", "stream", "system", "task_agents", "task_id", "truncated", "trust", "unfinished",
        "warnings", "was_corrected", "was_silent", "was_stray",
    )

    def __init__(
        self, agent: Agent[Any], root: Root, outbox: Outbox, context: Context, provider: Provider | None, model: Model,
        depth: int, task_id: str | None, *, scope: str = "", has_own_agent: bool = True,
        generation: GenerationOptions | None = None, middleware: tuple[Callable[[Any], Work], ...] | None = None,
    ) -> None:
        """`has_own_agent` is False for a workflow's task that its parent's agent runs: its answer is any text. If
        `generation` or `middleware` is None, the agent's are used.
        """
        self.write_to(outbox)
        self._wall = root.clock.wall
        self.agent = agent
        self.root = root
        self.context = context
        self.provider = provider
        self.model = model
        self.generation = agent.generation if generation is None else generation
        self.scope = scope
        self.depth = depth
        self.task_id = task_id
        self.metadata: Mapping[str, Any] = {}
        self.middleware = (agent.middleware if middleware is None else middleware) or ()
        #: whether plans are run: only in the root, unless the agent has switched them off
        self.may_plan = agent.workflows and depth == 0 and context.is_root
        self.clock = root.clock
        #: the type of this run's answer, None for text; and the function that checks the answers, if any
        self.answer_type = agent.answer_type if has_own_agent else None
        self.output_check = agent.output_check if has_own_agent else None
        self.quoted = QuotedCalls()
        self._set_up()
        self.gate: Gate = root
        self.most_repeats = root.budget.limits.repeated_calls
        #: the conversation: the messages after the system message
        self.messages: list[Message] = []
        self._counted = 0, 0
        self.meter = UsageMeter()
        #: skills by name, as they were when a call was checked
        self.held: dict[str, Skill] = {}
        #: the contexts of this step's calls, by call id; they know which credentials were read
        self.skill_contexts: dict[str, SkillContext[Any]] = {}
        #: texts to append to the runtime's next message
        self.warnings: tuple[str, ...] = ()
        #: the stream of the model call in progress, or of the last one
        self.stream: ModelStream | None = None
        #: the finish reason of the model's last response
        self.finish_reason: str | None = None
        self.native_calls: Sequence[Block] = ()
        #: the workflow that the caller supplied for this run, and the agents for some of its tasks
        self.given_plan: Plan | None = None
        self.task_agents: Mapping[str, Agent] = {}
        self.step = self.steps = 0
        self.begin_turn()
        #: the system message that was last sent
        self.system = NO_SYSTEM
        #: decides what a `Trusted` input may contain; None unless a skill of the root's agents needs it
        self.trust: Trust | None = None if root.trusts is None else root.trusts(self)
        root.runs[scope] = self
        for kind, name, close in self.setup.unknown:
            root.warn(f"{kind}.unknown", agent=self.agent.name, **{kind: name},
                      reason=f"no {kind} of that name is registered", **({"close": close} if close else {}))

    def definition(self) -> dict[str, Any]:
        """Returns the definition of the agent and of those that it can call; see `kernai.agents.definition`."""
        alone, called = self.setup.definition(self.agent)
        if not called and not self.task_agents:  # most agents
            return alone
        return definition_of(self.agent, self._setup_of, self.task_agents)

    def _setup_of(self, agent: Agent[Any]) -> Setup:
        root = self.root
        if agent is self.agent:
            return self.setup
        model = agent.model_under(self.model)
        return agent.setup_for(model, root.skills, root.protocols, root.allowed_skills, False, agent.answer_type)

    def begin_turn(self) -> None:
        """Begins a turn: resets the state that belongs to one input of the caller."""
        #: how many times in a row the last call was made
        self._repeats = 0
        self._last_call: object = None
        #: the first step of the turn
        self.first_step = self.steps
        #: whether the last response was corrected for being prose, or a draft by an agent that can call nothing
        self.was_corrected = False
        #: whether an answer was corrected for containing its own closing tag
        self.was_stray = False
        #: whether the answer was cut off; the text so far of an answer that the model is asked to continue
        self.truncated, self.unfinished = False, ""
        #: whether the model sent an empty response without ending its turn
        self.was_silent = False
        #: the answer's value, the repairs of its JSON, and how many answers were rejected before
        self.output: Any = None
        self.repairs: Sequence[str] = ()
        self.rejected = 0
        self.result: Result[Any] | None = None
        #: the stop reason, once the whole run is stopping: rows from then on are marked with it
        self.stop: str | None = None
        self.place: Place = (self.step, self.depth, self.task_id, self.scope, self.root.run_id, None)

    def begin_step(self, step: int) -> None:
        """Begins a step: rows written from now on belong to it."""
        self.step = step
        if self.setup.checked is not CHANGES.latest and not self.setup.is_current():
            self._set_up()
        self.place = (step, self.depth, self.task_id, self.scope, self.root.run_id, self.stop)

    def _set_up(self) -> Setup:
        root = self.root
        self.setup = self.agent.setup_for(
            self.model, root.skills, root.protocols, root.allowed_skills, self.may_plan, self.answer_type)
        for source, text in self.setup.foreign:
            self.quoted.record_untrusted(source, passed_on(text))
        return self.setup

    @property
    def skills(self) -> SkillAccess:
        return (self.setup if self.setup.is_current() else self._set_up()).skills

    @property
    def protocols(self) -> ProtocolAccess:
        return (self.setup if self.setup.is_current() else self._set_up()).protocols

    def needs_trust(self) -> Trust:
        """Returns what guarded calls are judged by. It is created here if no guarded skill was known at the start."""
        if self.trust is None:
            from kernai.loop.trust import Trust  # few runs have such skills

            self.root.trusts = Trust
            self.trust = Trust(self)
            self.trust.note_instructions()
        return self.trust

    def doubts(self, call_id: str, skill: Skill, arguments: Mapping[str, Any]) -> tuple[UntrustedValue, ...]:
        """Returns a guarded call's values that came from neither the user nor the host; records the sources of all."""
        doubts, sources = self.needs_trust().judged(skill, call_id, arguments)
        if sources:
            self.write(TrustedValuesRow(call_id, skill.name, sources))
        for one in doubts:
            self.write(UntrustedValueRow(call_id, skill.name, one.path, one.source))
        return tuple(doubts)

    def held_skill(self, name: str) -> Skill:
        """Returns the skill against which a call of this name was checked, even if the registry has changed since.

        Raises `KernaiError` if there is none.
        """
        skill = self.held.get(name) or self.skills.find(name)
        if skill is None:
            raise KernaiError(f"Skill {name!r} not found")
        return skill

    def ms_since(self, started: float) -> int:
        return int((self.clock.monotonic() - started) * 1000)

    # ------------------------------------------------------------------------------------------- rows and messages

    def write(self, row: Row) -> None:
        """Records something that has happened in this step. The row is delivered before the next effect."""
        row.seal()
        self.put(row)
        if row.is_warning and self.outbox.rows is not self.outbox.waiting:
            self.outbox.waiting.append(row)  # for the log

    def write_to(self, outbox: Outbox) -> None:
        """Has the rows from now on put into this outbox."""
        self.outbox, self._rows = outbox, outbox.rows

    def put(self, row: Row, after: Row | None = None) -> None:
        """Records a row like `write`, but faster: for rows that are not warnings and share no values with others.

        `after` is another row, recorded at the same time.
        """
        row.place = self.place
        wall = self._wall  # faster: `self._wall()` would first be looked up as a method
        row.at = wall()
        self._rows.append(row)
        if after is not None:
            after.place, after.at = row.place, row.at
            self._rows.append(after)

    def write_now(self, row: Row) -> None:
        """Records a row and delivers it immediately, while an effect is being performed.

        Once this run has ended, the row is dropped: an abandoned call may still report something, but `result` is a
        run's last event.
        """
        if self.result is None:  # from another thread, the run may end now: so the delivery checks this too
            self.outbox.delivery.deliver_now(self.sealed(row), self)

    def sealed(self, row: Row) -> Row:
        """Completes a row of this run, for somebody else to deliver."""
        row.place, row.at = self.place, self._wall()
        row.seal()
        return row

    def keep(self, message: Message, source: str = "the input") -> None:
        """Adds the caller's message to the conversation, and its media to the store."""
        for at, part in enumerate(message.content):
            if isinstance(part, Media):
                self.quoted.record_untrusted(source, dumps(part.to_dict()))  # the file's name is untrusted
                self.context.media_store.put(part)
            elif at in message.outside:
                self.quoted.record_untrusted(source, part)
            elif message.role == "user" and "&lt;" in part:
                self.quoted.record_untrusted(source, passed_on(part))
        self.messages.append(message)

    def inject(self, content: Part | list[Part] | Message, block: Block | None = None, *, by: By = "runtime") -> None:
        """Adds a message to the conversation: text of the runtime, or a `Message` by a protocol's handler.

        `block` is the block that the message answers, if any.
        """
        answers = None
        if self.native_calls:
            answers = next((at for at, one in enumerate(self.native_calls) if one is block), None)
        if isinstance(content, Message):
            if content.role == "user":
                content = Message("user", content.content, answers=answers, by=by)
            self.messages.append(content)
            self.inject_warnings()
            return
        if self.warnings:
            texts = (text for warning in self.warnings for text in ("\n", warning))
            if isinstance(content, str):
                content = joined((content, *texts))
            else:
                content = [*(content if isinstance(content, list) else [content]), joined(texts)]
            self.warnings = ()
        message = Message("user", content, by, answers)
        live = self.gate is self.root
        self.messages.append(message if live else self.gate.as_recorded(self, message))

    def inject_warnings(self) -> None:
        """Adds the warnings to the conversation as a message of their own."""
        if self.warnings:
            first, *more = self.warnings
            self.warnings = tuple(more)
            self.inject(first)

    def characters(self) -> int:
        """Returns the length of the conversation. Media count only as their ids: only vendors know what they cost."""
        counted, length = self._counted
        length += sum(len(message.text) for message in islice(self.messages, counted, None))
        self._counted = len(self.messages), length
        return length

    # ----------------------------------------------------------------------------------------------------- calls

    def call_id(self, index: int) -> str:
        """Returns the id of call `index` of this step: ``0.1``, or ``2.a/0.1`` in a sub-run."""
        return f"{self.scope}/{self.step}.{index}" if self.scope else f"{self.step}.{index}"

    def check_repeats(self, kind: str, name: str, params: object) -> None:
        """Stops the run if the same call is made too often in a row. Call this before recording the call."""
        is_decided = self.gate.is_decided()  # raises a recorded stop, whatever the limits are now
        most = self.most_repeats
        if most is None:
            return
        call = (kind, name, dumps(params))
        self._repeats = self._repeats + 1 if call == self._last_call else 1
        self._last_call = call
        if self._repeats >= most and not is_decided:
            why = f"the same call of {kind} '{name}' came {most} times in a row"
            raise LimitReachedError(f"{why}, and Limits(repeated_calls={most}) allows no more", StopReason.LOOP)

    def skill_context(self, owner: Any, call: CallSkill | CallProtocol) -> SkillContext[Any]:
        """Returns the context of a call, which all its attempts share. `owner` is the skill, or None for a protocol."""
        root, call_id = self.root, call.call_id
        context = self.skill_contexts.get(call_id)
        if context is None:
            context = self.skill_contexts[call_id] = SkillContext(
                owner, self.context, self.context.media_store, root.credential_resolver, root.setting_resolver,
                call_id=call_id, run_id=root.run_id, key=None if root.journal is None else root.journal.held.key,
                cancelled=root.cancellation.is_set,
                emit=lambda data: self.write_now(ProgressRow(call_id, data)),
            )
        context.woken = root.durable is not None and call_id in root.durable.woken
        context.approval = None if context.woken else call.approval
        return context

    def scrub(self, call_id: str, value: Any) -> Any:
        """Returns `value` without the credentials that the call has read."""
        context = self.skill_contexts.get(call_id)
        return value if context is None else context.scrub(value)

    def require_provider(self) -> None:
        """Raises `ProviderError` if there is no provider, and no middleware that could answer instead."""
        if not self.middleware and not self.gate.is_decided():
            raise ProviderError(NO_PROVIDER)

    # -------------------------------------------------------------------------------------------------- sub-runs

    def child(
        self, other: Agent[Any] | None, call_id: str = "", *, task: Task | None = None, is_given: bool = False
    ) -> Run:
        """Creates the run of a call or a task, one level deeper, with another agent or this run's (None).

        `is_given`: the caller wrote the task.
        """
        scope = call_id if task is None else task_scope(self.scope, self.step, task.id)
        task_id = self.task_id if task is None else task.id
        context = self.gate.child_context(self, scope, task_id)
        # the parent's conversation refers to media of sub-runs by id, so all runs share one store
        context.media_store = self.context.media_store
        child = Run(
            self.agent if other is None else other,
            self.root,
            Outbox(self.outbox.delivery),
            context,
            self.provider if other is None or other.provider is None else other.provider,
            self.model if other is None else other.model_under(self.model),
            self.depth + 1,
            task_id,
            scope=scope,
            has_own_agent=other is not None,
            generation=self.generation if other is None else self.generation.merge(other.generation),
            middleware=self.middleware if other is None or other.middleware is None else other.middleware,
        )
        child.quoted.begin_sub_run(self.quoted)
        if child.trust is not None:
            child.trust.parent = self.needs_trust(), task, is_given
        if self.stop is not None:
            child._mark(self.stop)
        return child

    def end_of(self, call_id: str = "", task_id: str | None = None) -> Result[Any] | None:
        """Removes the sub-run of a call or a task, adds its usage to this run's, and returns its result if any."""
        scope = call_id if task_id is None else task_scope(self.scope, self.step, task_id)
        runs = self.root.runs
        child = runs.pop(scope, None)
        if child is None:
            return None
        self.meter.add(child.meter.usage())
        if self.trust is not None and child.trust is not None:
            self.trust.add_from_sub_run(child.trust, task_id)
        if child.stop is not None and self.stop is None:
            self._mark(child.stop)
        if child.result is None:  # it, and maybe runs below it, was waiting for a decision when the run was stopped
            for below in [one for one in runs if one.startswith(f"{scope}/")]:
                self.meter.add(runs.pop(below).meter.usage())
        return child.result

    # --------------------------------------------------------------------------------------------------- the end

    def stops(self, error: BaseException, *, ends: bool = True) -> None:
        """Marks the rows written from now on, which a resume drops, if the whole run stops because of `error`.

        `error` was raised in this scope; `ends`: it ends this run or sub-run. An error that ends the root run stops
        everything. Other errors do so only if the root run was cancelled or has used up its budget.
        """
        if self.stop is not None or self.gate.is_on_record() or (isinstance(error, Stop) and error.is_final):
            return  # rows are marked already, or the recording has the mark, or the run ends with an answer
        is_limit = isinstance(error, (LimitReachedError, LimitStop))
        is_cancelled = self.root.cancellation.is_set()
        stops_root = is_cancelled or (is_limit and self.root.budget.is_used_up())
        if isinstance(error, Stop) and not is_limit:
            stops_root = False  # it ends only the run of the call that raised it, whatever else has happened
        if stops_root or (ends and not self.scope):
            self._mark(_reason_of(self.root.cancellation.error() if is_cancelled else error))

    def stops_all(self, error: BaseException) -> None:
        """Does as `stops` does for an error that ends concurrent work. Ctrl-C also stops the rest of that work.

        That is done here because no driver sees a Ctrl-C in user code that the loop itself calls.
        """
        if not isinstance(error, (Exception, Control)):
            self.root.cancellation.set()
        self.stops(error)

    def _mark(self, reason: str) -> None:
        self.stop = str(reason)
        self.place = (*self.place[:5], self.stop)

    def finish(
        self, text: str | None = None, error: KernaiError | None = None, *, raised: bool = False,
        pending: tuple[PendingCall, ...] | None = None,
    ) -> Result[Any]:
        """Records the end of this run as its last event, and returns its result.

        `raised`: a `Stop` that a call raised has ended the run, and not a limit of the root. `pending`: the calls for
        whose decisions the run waits, if that is why it ends.
        """
        usage = self.meter.usage()
        reason = StopReason.FINAL if error is None else _reason_of(error)
        reason = reason if pending is None else StopReason.INTERRUPT
        result: Result[Any] = Result(
            text, reason, self.steps, usage, tuple(self.messages), self.root.run_id, error,
            pending or (), self.finish_reason, self.truncated, None if text is None else self.output,
        )
        if reason is StopReason.INTERRUPT and not self.scope:
            self._mark(reason)
        elif error is not None and not (raised and self.scope):
            self.stops(error)
        self.put(ResultRow(
            text, reason._value_, self.steps, usage.to_dict(), None if error is None else error_text(error),
            truncated=self.truncated or None, repaired=list(self.repairs) or None, raised=raised or None,
        ))
        if error is not None:
            error.result = result
        self.result = result
        self.stream = None
        self.skill_contexts.clear()
        return result


def _reason_of(error: BaseException) -> StopReason:
    """Returns the stop reason of a run that `error` ends."""
    if isinstance(error, (LimitReachedError, Stop)):
        return StopReason(error.reason)
    failed = isinstance(error, Exception) and not isinstance(error, RunStoppedError)
    return StopReason.ERROR if failed else StopReason.CANCELLED


def input_message(parts: tuple[InputPart, ...], by: By) -> Message:
    """Returns the message for an input."""
    if len(parts) == 1 and type(parts[0]) is str:
        return Message("user", parts[0], by=by)
    marked = [at for at, part in enumerate(parts) if isinstance(part, Outside)]
    content = [neutralize(part.text) if isinstance(part, Outside) else part for part in parts]
    return Message("user", content, by=by, outside=marked)


def recorded_parts(parts: tuple[InputPart, ...]) -> str | list[str | Mapping[str, Any]]:
    """Returns an input or a result as it is recorded: a text, or a list of texts and references to media."""
    if len(parts) == 1 and isinstance(parts[0], str):
        return parts[0]
    return [part if isinstance(part, str) else part.to_dict() for part in parts]
