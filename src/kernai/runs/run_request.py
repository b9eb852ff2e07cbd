"""`RunRequest`: the checked arguments of a root run, and the ways to drive it. `RunOptions`: the options of a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypedDict

from kernai._util.api import check_function, check_seconds, check_type, closest, is_async, likely
from kernai.agents.agent import OPTIONS as AGENT_OPTIONS
from kernai.agents.agent import Agent, check_model
from kernai.drivers.delivery import TASK_ARGUMENTS, ThreadsDelivery
from kernai.drivers.driver import Stack
from kernai.drivers.threads import ThreadsDriver
from kernai.errors import Stop
from kernai.events import Event
from kernai.loop.effects import Work
from kernai.loop.kernel import record_start, run_loop, take_input
from kernai.loop.root import Cancellation, Clock, Outbox, Root
from kernai.loop.run_state import Run
from kernai.middleware.chain import wrap
from kernai.recording.log import EventLog
from kernai.recording.recorder import Recorder
from kernai.registry.configuration import config
from kernai.registry.protocol_registry import REGISTRY as PROTOCOLS
from kernai.registry.provider import Provider, check_provider
from kernai.registry.skill_registry import REGISTRY as SKILLS
from kernai.values.context import Context
from kernai.values.limits import Budget, Limits
from kernai.values.media import Media, MediaStore
from kernai.values.message import INPUT_PARTS, InputPart, Message, Outside, as_parts
from kernai.values.model import Model
from kernai.values.result import Result

if TYPE_CHECKING:
    from kernai.blocks.plan import Plan
    from kernai.drivers.asyncio_delivery import AsyncioDelivery
    from kernai.drivers.asyncio_run_stream import AsyncRunStream
    from kernai.drivers.run_stream import Channel, Driving, RunStream
    from kernai.durable.store import Store

UserInput = str | Media | Outside | Sequence[str | Media | Outside]
"""The input of a run: text, `Media`, text marked by `outside`, or a list of these."""
#: those of a plan's tasks, by task id
Agents = Mapping[str, Agent[Any]] | None

_DEFAULT_LIMITS = Limits()
#: how many seconds a run stays with its worker if the worker stops renewing its lease
LEASE = 30.0
_CLOCK = Clock()


class ResumeOptions(TypedDict, total=False):
    """
    - `provider`, `model`: used instead of the agent's. If neither has a provider, `config.default_provider` is used.
    - `recorder`: records the run; by default `config.recorder`.
    - `context`: a `Context`, perhaps a subclass with state of your own, that skills and instructions get.
    - `limits`: by default ``Limits()``. A resumed run has the limits passed now, and its earlier usage counts.
    - `cancel`: an object with `is_set()`, such as a `threading.Event` or an `asyncio.Event`.
    - `on_event`: called with every `Event`, one at a time. An error in it is logged, a `Stop` ends the run.
    - `on_task_complete`: called with ``task_id= input= result= duration_ms= error=`` once per workflow task.
    - `metadata`: a mapping that is added to the recording.
    - `store`: keeps the run, so that it can be resumed after a crash; see docs/durable.md.
    - `lease`: how many seconds the run stays with this process if it stops renewing its lease; by default 30.
    """

    provider: Provider | None
    model: Model | None
    recorder: Recorder | None
    context: Context | None
    limits: Limits | None
    cancel: Any
    on_event: Callable[[Event], Any] | None
    on_task_complete: Callable[..., Any] | None
    metadata: Mapping[str, Any] | None
    store: Store | None
    lease: float | None


class MapOptions(ResumeOptions, total=False):
    """
    - `history`: `Message` objects, or dicts from `Message.to_dict`; media references are looked up in the context's
      media store. Raises `ValueError` for a system message, since that comes from the agent's instructions.
    """

    history: Iterable[Message | Mapping[str, Any]] | None


class RunOptions(MapOptions, total=False):
    """
    - `run_id`: text; by default a new one. Raises `RunConflictError` if the store already has it.
    """  # noqa: D200 - `_list_options` adds it to other docstrings

    run_id: str | None


class RunRequest:
    """The checked arguments of a root run, and the ways to drive it."""

    _plan: Plan | None = None
    _task_agents: Mapping[str, Agent] = MappingProxyType({})
    _history: Sequence[Message] = ()
    _lease = LEASE

    def __init__(self, agent: Agent[Any], content: UserInput, options: Mapping[str, Any], name: str = "input") -> None:
        check_type(agent, Agent, "agent must be an Agent")
        check_options(options, RunOptions)
        self.agent = agent
        self.parts: tuple[InputPart, ...] = as_parts(content, name, INPUT_PARTS)
        self._limits = _instance("limits", options.get("limits"), Limits) or _DEFAULT_LIMITS
        self.cancellation = Cancellation(_CLOCK, options.get("cancel"))
        self._log = EventLog(config.logger, debug=config.debug)
        recorder = _instance("recorder", options.get("recorder"), Recorder)
        self.recorder = config.recorder if recorder is None else recorder
        model, provider = options.get("model"), check_provider(options.get("provider"))
        self._model = agent.model if model is None else check_model(model)
        if provider is None:
            provider = config.default_provider if agent.provider is None else agent.provider
        self._provider = provider
        self._context = checked_context(options.get("context"))
        self._limits.check_model(self._model)
        agent.check_provider(provider)
        run_id = options.get("run_id")
        if run_id is None:
            run_id = os.urandom(12).hex()
        elif not isinstance(run_id, str) or not run_id:
            raise ValueError(f"run_id must be a non-empty text, got {run_id!r}")
        self.run_id = str.__str__(run_id)  # of a text that is an enum, f-strings show the member
        if options.get("history") is not None:
            self._history = self._messages(options["history"])
        self._metadata = _instance("metadata", options.get("metadata"), Mapping) or {}
        self._store = options.get("store")
        if options.get("lease") is not None:
            self._lease = check_seconds("lease", options["lease"])
            if self._store is None:
                raise TypeError("lease needs the store that keeps the run: pass store=...")
        if self._store is not None:
            from kernai.durable.store import check_run_id, check_store

            check_store(self._store)
            check_run_id(run_id)
            if not isinstance(tags := self._metadata.get("tags") or {}, Mapping):
                self._log.warn("tags.ignored", run_id=run_id, reason="tags must be a mapping", got=type(tags).__name__)
        self._on_event, self._on_task_complete = options.get("on_event"), options.get("on_task_complete")
        if self._on_event is not None:
            check_function("on_event", self._on_event, "the event", None, may_be_async=True)
        if self._on_task_complete is not None:
            words = " ".join(f"{one}=" for one in TASK_ARGUMENTS)
            named: dict[str, Any] = dict.fromkeys(TASK_ARGUMENTS)
            check_function("on_task_complete", self._on_task_complete, words, may_be_async=True, **named)

    # ---------------------------------------------------------------------------------------------- ways to drive it

    def execute(self) -> Result[Any]:
        delivery = self._delivery()
        run, work = self.begin(delivery)
        result: Result[Any] = ThreadsDriver(run.root, delivery).run(Stack(work, run.outbox, breakable=False))
        return result

    def stream(self) -> RunStream[Any]:
        from kernai.drivers.run_stream import Channel, RunStream

        channel = Channel()
        return RunStream(*self.driven(channel, channel), channel)

    def driven(self, channel: Channel, events: Channel | None = None) -> tuple[Run, Driving]:
        """Returns the root run, and what drives it in a thread. `channel` learns of its end, `events` gets events."""
        from kernai.drivers.run_stream import Driving

        delivery = self._delivery(events)
        run, work = self.begin(delivery)
        return run, Driving(ThreadsDriver(run.root, delivery), Stack(work, run.outbox), channel)

    def aexecute(self) -> Coroutine[Any, Any, Result[Any]]:
        return self.begin_async()[1]  # not an `async def`, which would add a coroutine to every step

    def astream(self) -> AsyncRunStream[Any]:
        from kernai.drivers.asyncio_run_stream import AsyncRunStream

        return AsyncRunStream(self.begin_async, self.cancellation)

    def begin_async(self, stream: Callable[[Event], Any] | None = None) -> tuple[Run, Coroutine[Any, Any, Result[Any]]]:
        """Returns the root run, and the coroutine that drives it to its end. Needs a running event loop."""
        from kernai.drivers.asyncio_delivery import AsyncioDelivery
        from kernai.drivers.asyncio_driver import AsyncioDriver

        delivery = AsyncioDelivery(
            self._log, self.recorder, self.cancellation, stream, self._on_event, self._on_task_complete)
        run, work = self.begin(delivery)
        return run, AsyncioDriver(run.root, delivery).run(Stack(work, run.outbox, breakable=False))

    def _delivery(self, channel: Channel | None = None) -> ThreadsDelivery:
        self.check_observers_are_plain()
        return ThreadsDelivery(
            self._log, self.recorder, self.cancellation, channel, self._on_event, self._on_task_complete)

    def check_observers_are_plain(self, *others: tuple[str, Any]) -> None:
        """Raises `TypeError` for an async function, which only the asyncio driver can call."""
        for name, observer in (("on_event", self._on_event), ("on_task_complete", self._on_task_complete), *others):
            if observer is not None and is_async(observer):
                raise TypeError(f"{name} is an async function: use a plain one, or the asyncio version, such as arun")

    def begin(self, delivery: ThreadsDelivery | AsyncioDelivery) -> tuple[Run, Work]:
        """Returns the root run and its loop, ready to be driven. The timeout starts now, or with `Driving.begin`."""
        self.cancellation.begin(self._limits.timeout)
        run = self._run(delivery)
        may_need_approval = self._prepare_approvals(run)
        if self._store is not None or may_need_approval:
            from kernai.durable.durable_run import DurableRun

            DurableRun(run)
        if self._store is not None:
            self._begin_journal(delivery, run)
        return run, run.root.wrap(run, None, run_loop(run, self.parts))

    def first_entry(self) -> tuple[dict[str, Any], list[Media]]:
        """Returns the first entry of a run that has not begun, and its media. A resume begins the run."""
        delivery = ThreadsDelivery(self._log, None, self.cancellation)
        delivery.kept = None
        run = self._run(delivery)
        self._prepare_approvals(run)
        record_start(run, self.parts)
        take_input(run, self.parts)
        return run.outbox.waiting[0].entry(), list(self._context.media_store)

    def _run(self, delivery: ThreadsDelivery | AsyncioDelivery) -> Run:
        agent, context = self.agent, self._context
        root = Root(
            self.run_id, Budget(self._limits), self.cancellation, config=config, skills=SKILLS, protocols=PROTOCOLS,
            wrap=wrap, log=self._log,
        )
        run = Run(agent, root, Outbox(delivery), context, self._provider, self._model, context.depth, context.task_id)
        run.metadata, run.given_plan, run.task_agents = self._metadata, self._plan, self._task_agents
        for message in self._history:
            run.keep(message, "history")
        return run

    def give_plan(self, plan: Plan, agents: Agents) -> None:
        """Sets the plan and its tasks' agents. Raises for an agent that cannot run: only its task would fail."""
        known = [task.id for task in plan.tasks]
        given = {} if agents is None else check_type(agents, Mapping, "agents must be a mapping of task ids to Agents")
        for task_id, agent in given.items():
            if task_id not in known:
                raise ValueError(f"agents: the plan has no task {task_id!r}; it has {', '.join(known)}")
            check_type(agent, Agent, f"agents[{task_id!r}] must be an Agent")
            self._limits.check_model(agent.model_under(self._model))
            agent.check_provider(self._provider if agent.provider is None else agent.provider)
        self._plan, self._task_agents = plan, dict(given)

    def _messages(self, history: Any) -> list[Message]:
        if isinstance(history, (str, Message, Mapping)) or not isinstance(history, Iterable):
            raise TypeError(f"history must be a list of messages, as in Result.messages, got {type(history).__name__}")

        def lost(reference: Mapping[str, Any]) -> None:
            reason = "history refers to it, context.media_store does not have it: the model reads a placeholder"
            self._log.warn("media.lost", run_id=self.run_id, id=reference["id"], kind=reference["kind"], reason=reason)

        messages = []
        for at, given in enumerate(history):
            try:
                is_made = isinstance(given, Message)
                message = given if is_made else Message.from_dict(given, self._context.media_store, on_lost=lost)
            except (TypeError, ValueError) as error:
                raise type(error)(f"history[{at}]: {error}") from error
            if message.role == "system":
                raise ValueError(f"history[{at}] is a system message: leave it out, the agent has its instructions")
            messages.append(message)
        return messages

    def _prepare_approvals(self, run: Run) -> bool:
        """Returns whether a call of the run's agent, its tasks' agents, or agents that these call may need approval.

        If a skill of one of them requires trusted values, the run will track where values come from. Raises
        `ValueError` for one of them that cannot be run: its calls would fail, and only a model would read why.
        """
        asks = is_guarded = False
        setups, seen = [run.setup], {id(run.agent)}  # ids: a subclass may call different agents equal
        for setup in setups:  # the list grows
            asks, is_guarded = asks or setup.asks, is_guarded or setup.is_guarded
            for agent in (*setup.agents, *self._task_agents.values()):
                if id(agent) not in seen:
                    seen.add(id(agent))
                    self._limits.check_model(agent.model_under(self._model))
                    agent.check_provider(agent.provider)
                    setups.append(agent.setup_now(workflows=False))
        if is_guarded:
            run.needs_trust()
        return asks or is_guarded

    def _begin_journal(self, delivery: ThreadsDelivery | AsyncioDelivery, run: Run, **so_far: Any) -> None:
        """Has the run's events written to the store after those already there; see `Journal`."""
        assert self._store is not None
        from kernai.durable.journal import Journal
        from kernai.durable.lease import HeldRun

        cancellation = self.cancellation
        held = HeldRun(self._store, self.run_id, self._lease, lambda why: cancellation.stop(Stop("cancelled", why)))
        if held.has_leases:
            cancellation.is_quiet = False  # another thread renews the lease, and may stop the run at any time
        run.root.journal = delivery.journal = Journal(held, self._context.media_store, **so_far)


def check_options(options: Mapping[str, Any], known: type, *others: str) -> None:
    """Raises `TypeError` for an option that `known` lacks, which says where an agent's option or a limit belongs."""
    if options.keys() <= known.__annotations__.keys():
        return
    name, names = min(options.keys() - known.__annotations__.keys()), [*known.__annotations__, *others]
    if name in AGENT_OPTIONS:
        hint = f"it is the agent's: agent.replace({name}=...)"
    elif name in Limits.__dataclass_fields__:
        hint = f"it is a limit: limits=Limits({name}=...)"
    elif name in ("approvals", "in_flight", "wait", "accept"):
        hint = "it is for a run that is resumed: resume(...)"
    elif name == "history":
        hint = "a run that is resumed has its own"
    elif closest(name, names) is None and (close := closest(name, AGENT_OPTIONS)) is not None:
        hint = f"did you mean the agent's {close!r}? It is set by agent.replace({close}=...)"
    else:
        hint = likely(name, names, "known:").removeprefix("; ")
    raise TypeError(f"unknown option {name!r}; {hint}")


def checked_context(given: object) -> Context:
    """Returns the context, or a new one for None. Raises `TypeError` for anything else, and for a frozen dataclass."""
    if given is None:
        return Context()
    context: Context = _instance("context", given, Context)
    name = type(context).__name__
    if getattr(getattr(type(context), "__dataclass_params__", None), "frozen", False):
        raise TypeError(f"context: a run changes its context, so {name} must not be a frozen dataclass")
    if not (context.plan is None or hasattr(context.plan, "tasks")) or not isinstance(context.trusted, tuple):
        raise TypeError(f"context: runs set {name}.plan and {name}.trusted, so keep your own under other names")
    check_type(context.media_store, MediaStore, "context.media_store must be a MediaStore")
    return context


def _instance(name: str, value: Any, kind: type) -> Any:
    if value is not None and not isinstance(value, kind):
        hint = "pass a dict" if kind is Mapping else f"write {name}={kind.__name__}(...)"
        raise TypeError(f"{name} must be a {kind.__name__}, got {type(value).__name__}: {hint}")
    return value
