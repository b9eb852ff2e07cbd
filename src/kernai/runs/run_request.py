"""`RunRequest`: a root run's arguments, checked, and what can be made of them whatever drives the run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypedDict

from kernai._util.close_matches import closest, likely
from kernai.agents.agent import OPTIONS as AGENT_OPTIONS
from kernai.agents.agent import Agent, check_model
from kernai.drivers.delivery import EventWriter, ThreadsDelivery
from kernai.events import Event
from kernai.loop.effects import Work
from kernai.loop.kernel import root_work
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
from kernai.values.media import Media
from kernai.values.message import Message, Part, as_parts
from kernai.values.model import Model

if TYPE_CHECKING:
    from kernai.blocks.plan import Plan
    from kernai.drivers.asyncio_delivery import AsyncioDelivery
    from kernai.durable.journal import Journal
    from kernai.durable.store import Store

UserInput = str | Media | list[str | Media]


_DEFAULT_LIMITS = Limits()
_CLOCK = Clock()


class RunOptions(TypedDict, total=False):
    """What a run can be given besides agent and input. Everything may be left out.

    - `provider`, `model`: in place of the agent's. Without any provider, `config.default_provider` serves.
    - `history`: `Message` objects, or what `Message.to_dict` gives; media references are looked up in the context's
      media store. A system message is a `ValueError`: an agent's instructions make it.
    - `recorder`: records the run; by default `config.recorder`.
    - `context`: a `Context`, perhaps a subclass with the host's state, that skills and instructions get.
    - `limits`: `Limits`; by default 500 calls for each input, and `max_depth`.
    - `cancel`: an object with `is_set()`, a `threading.Event` or an `asyncio.Event`.
    - `on_event`: is called with every `Event`, one at a time. What it raises is logged.
    - `on_task_complete`: is called with ``task_id= input= result= duration_ms= error=`` once per workflow task.
    - `run_id`: text; by default a new one. `metadata`: a mapping for the recording.
    - `store`: records the run so that it survives, see docs/durable.md. A `run_id` that it has is a `RunConflictError`.
    """

    provider: Provider | None
    model: Model | None
    history: Iterable[Message | Mapping[str, Any]]
    recorder: Recorder | None
    context: Context | None
    limits: Limits | None
    cancel: Any
    on_event: Callable[[Event], Any] | None
    on_task_complete: Callable[..., Any] | None
    run_id: str | None
    metadata: Mapping[str, Any] | None
    store: Store | None


class RunRequest:
    """A root run's arguments, checked, and what can be made of them whatever drives the run."""

    _plan: Plan | None = None
    _task_agents: Mapping[str, Agent] = MappingProxyType({})

    def __init__(self, agent: Agent[Any], content: UserInput, options: RunOptions) -> None:
        if not isinstance(agent, Agent):
            raise TypeError(f"agent must be an Agent, got {type(agent).__name__}")
        check_options(options, RunOptions)
        self.agent = agent
        self.parts: tuple[Part, ...] = as_parts(content, "input")
        self._limits = _instance("limits", options.get("limits"), Limits) or _DEFAULT_LIMITS
        self.cancellation = Cancellation(_CLOCK, options.get("cancel"))
        self._log = EventLog.now(config.logger, debug=config.debug)
        recorder = _instance("recorder", options.get("recorder"), Recorder)
        self.writer = EventWriter(
            self._log, config.recorder if recorder is None else recorder, self.cancellation.stop
        )
        self._model = agent.model if options.get("model") is None else check_model(options["model"])
        providers = check_provider(options.get("provider")), agent.provider, config.default_provider
        self._provider = next((one for one in providers if one is not None), None)
        context = _instance("context", options.get("context"), Context)
        self._context = Context() if context is None else context
        if not hasattr(self._context, "media_store"):
            raise TypeError(f"{type(self._context).__name__}.__init__ must call super().__init__()")
        self._limits.check_model(self._model)
        agent.check_provider(self._provider)
        self._run_id = _run_id(options.get("run_id"))
        self._history = _messages(options.get("history"), self._read_message)
        self._metadata = _instance("metadata", options.get("metadata"), Mapping) or {}
        self._store = options.get("store")
        if self._store is not None:
            from kernai.durable.store import check_run_id, check_store

            check_store(self._store)
            check_run_id(self._run_id)
        for name in ("on_event", "on_task_complete"):
            observer = options.get(name)
            if observer is not None and not callable(observer):
                raise TypeError(f"{name} must be callable, got {type(observer).__name__}")

    def begin(self, delivery: ThreadsDelivery | AsyncioDelivery) -> tuple[Run, Work]:
        """The root run, and its loop, ready to be driven. Its time runs from now."""
        self.cancellation.begin(self._limits.timeout)
        if self._store is not None:
            delivery.kept = None
        run = self._run(delivery)
        if self._store is not None or _asks(run, self._task_agents.values()):
            from kernai.durable.durable_run import DurableRun

            DurableRun(run.root, None if self._store is None else self._journal())
        return run, root_work(run, self.parts)

    def _run(self, delivery: ThreadsDelivery | AsyncioDelivery) -> Run:
        """The state of the root run, history in its conversation."""
        root = Root(
            self._run_id,
            Budget(self._limits),
            _CLOCK,
            self.cancellation,
            wrap=wrap,
            skills=SKILLS,
            protocols=PROTOCOLS,
            allowed_skills=config.allowed_skills,
            credential_resolver=config.credential_resolver,
            setting_resolver=config.setting_resolver,
            repair=config.repair,
            warn=self._log.warn,
            trace=self._log.trace,
        )
        run = Run(
            self.agent,
            root,
            Outbox(delivery),
            self._context,
            provider=self._provider,
            model=self._model,
            generation=self.agent.generation,
            depth=self._context.depth,
            task_id=self._context.task_id,
            metadata=self._metadata,
            middleware=self.agent.middleware or (),
            answer_type=self.agent.answer_type,
        )
        run.given_plan, run.task_agents = self._plan, self._task_agents
        for message in self._history:
            run.keep(message)
        return run

    def _read_message(self, given: object) -> Message:
        if isinstance(given, Message):
            return given
        if not isinstance(given, Mapping):
            raise TypeError(f"must be a Message or a dict, got {type(given).__name__}")
        return Message.from_dict(given, self._context.media_store, on_lost=self._warn_of_lost_media)

    def _warn_of_lost_media(self, reference: Mapping[str, object]) -> None:
        self._log.warn("media.lost", run_id=self._run_id, id=reference["id"], kind=reference["kind"],
                       reason="history names it, context.media_store does not have it: the model reads a placeholder")

    def _journal(self, **there: Any) -> Journal:
        """Where the run's events go on their way into the store, behind what is `there`; see `Journal`."""
        assert self._store is not None
        from kernai.durable.journal import Journal

        media = self._context.media_store
        journal = self.writer.journal = Journal(self._store, self._run_id, media, **there)
        return journal


def _asks(run: Run, others: Iterable[Agent[Any]]) -> bool:
    """Whether the run's agent, one of the others, or one that these can call, asks before it calls something."""
    left = [run.agent, *run.setup.agents(), *others]
    seen = {id(run.agent)}
    while left:
        agent = left.pop()
        if agent.approve is not None:
            return True
        if id(agent) not in seen:
            left += agent.setup_now(workflows=False).agents()
        seen.add(id(agent))
    return False


def check_options(options: Mapping[str, Any], known: type) -> None:
    """`TypeError` for an option that the TypedDict `known` does not have; it says where one of the agent's belongs."""
    if options.keys() <= known.__annotations__.keys():
        return
    for name in sorted(options.keys() - known.__annotations__.keys()):
        if name in AGENT_OPTIONS:
            hint = f"it is the agent's: agent.replace({name}=...)"
        elif name in Limits.__dataclass_fields__:
            hint = f"it is a limit: limits=Limits({name}=...)"
        elif closest(name, known.__annotations__) is None and (close := closest(name, AGENT_OPTIONS)) is not None:
            hint = f"did you mean the agent's {close!r}? It is set by agent.replace({close}=...)"
        else:
            hint = likely(name, known.__annotations__, "known:").removeprefix("; ")
        raise TypeError(f"unknown option {name!r}; {hint}")


def _instance(name: str, value: Any, kind: type) -> Any:
    if value is not None and not isinstance(value, kind):
        hint = f"write {name}={kind.__name__}(...)" if kind is not Mapping else "pass a dict"
        raise TypeError(f"{name} must be a {kind.__name__}, got {type(value).__name__}: {hint}")
    return value


def _messages(
    history: Iterable[Message | Mapping[str, Any]] | None, read: Callable[[object], Message]
) -> list[Message]:
    if history is None:
        return []
    if isinstance(history, (str, Message, Mapping)) or not isinstance(history, Iterable):
        raise TypeError(f"history must be a list of messages, got {type(history).__name__}")
    messages = []
    for at, given in enumerate(history):
        try:
            message = read(given)
        except (TypeError, ValueError) as error:
            raise type(error)(f"history[{at}]: {error}") from error
        if message.role == "system":
            raise ValueError(f"history[{at}] is a system message: an agent's instructions make the only one")
        messages.append(message)
    return messages


def _run_id(run_id: object) -> str:
    if run_id is None:
        return os.urandom(12).hex()
    if not isinstance(run_id, str) or not run_id:
        raise ValueError(f"run_id must be a non-empty text, got {run_id!r}")
    return run_id
