"""Starting runs: `run`, `execute`, `stream`, and their asyncio twins `arun`, `aexecute`, `astream`.

All six take an agent, an input and the same options, `RunOptions`. A caller's mistake raises `TypeError` or
`ValueError` at the call. The twins' module is imported on first use, because asyncio is slow to import.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from kernai.agents.agent import Agent, check_model
from kernai.drivers.channel import Channel
from kernai.drivers.delivery import Delivery, EventWriter
from kernai.drivers.policy import Line
from kernai.drivers.run_stream import RunStream
from kernai.drivers.threads import ThreadsDriver
from kernai.loop.cancellation import Cancellation
from kernai.loop.effects import Work
from kernai.loop.kernel import run_loop
from kernai.loop.outbox import Clock, Outbox
from kernai.loop.root import Root
from kernai.loop.run_state import Run
from kernai.recording.log import EventLog
from kernai.recording.recorder import Recorder
from kernai.registry.configuration import config
from kernai.registry.protocol_registry import REGISTRY as PROTOCOLS
from kernai.registry.provider import Provider, check_provider
from kernai.registry.skill_registry import REGISTRY as SKILLS
from kernai.values.callables import is_async
from kernai.values.context import Context
from kernai.values.event import Event
from kernai.values.limits import Budget, Limits
from kernai.values.media import Media
from kernai.values.message import Message, Part, as_parts
from kernai.values.model import Model
from kernai.values.result import Result

if TYPE_CHECKING:
    from typing import Unpack

    from kernai.drivers.asyncio_delivery import AsyncioDelivery
    from kernai.drivers.asyncio_run_stream import AsyncRunStream

UserInput = str | Media | list[str | Media]


_NO_LIMITS = Limits()


class RunOptions(TypedDict, total=False):
    """What a run can be given besides agent and input. Everything may be left out.

    - `provider`, `model`: in place of the agent's. Without any provider, `config.default_provider` serves.
    - `history`: `Message` objects, or what `Message.to_dict` gives; media references are looked up in the context's
      media store. A system message is a `ValueError`: an agent's instructions make it.
    - `recorder`: records the run; by default `config.recorder`.
    - `context`: a `Context`, perhaps a subclass with the host's state, that skills and instructions get.
    - `limits`: `Limits`; by default only `max_depth` counts.
    - `cancel`: an object with `is_set()`, a `threading.Event` or an `asyncio.Event`.
    - `on_event`: is called with every `Event`, one at a time. What it raises is logged.
    - `on_task_complete`: is called with ``task_id= input= result= duration_ms= error=`` once per workflow task.
    - `run_id`: text; by default a new one. `metadata`: a mapping for the recording.
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


def run(agent: Agent, input: UserInput, **options: Unpack[RunOptions]) -> str:
    """Runs the agent and gives the answer's text.

    Raises `MaxStepsReachedError`, another `LimitReachedError`, `RunCancelledError` or `ProviderError`; each carries the
    `Result` as `.result`, so that the messages and what was used are not lost.
    """
    return execute(agent, input, **options).unwrap()


def execute(agent: Agent, input: UserInput, **options: Unpack[RunOptions]) -> Result:
    """Runs the agent and gives the `Result`; a limit, a cancellation or a provider's failure is its `stop_reason`."""
    request = RunRequest(agent, input, options)
    delivery = Delivery(request.writer, *_plain_observers(options))
    run = request.begin(delivery)
    result: Result = ThreadsDriver(run.root, delivery).run(Line(request.work(run), run.outbox, breakable=False))
    return result


def stream(agent: Agent, input: UserInput, **options: Unpack[RunOptions]) -> RunStream:
    """The run as an iterator of its events; see `RunStream`. Nothing happens before the first one is asked for."""
    request = RunRequest(agent, input, options)
    channel = Channel()
    delivery = Delivery(request.writer, *_plain_observers(options), channel)
    run = request.begin(delivery)
    return RunStream(ThreadsDriver(run.root, delivery), request.work(run), run, channel)


async def arun(agent: Agent, input: UserInput, **options: Unpack[RunOptions]) -> str:
    """`run` for asyncio. Cancelling its task ends the run with a `result` event ``cancelled``, then propagates."""
    return (await aexecute(agent, input, **options)).unwrap()


async def aexecute(agent: Agent, input: UserInput, **options: Unpack[RunOptions]) -> Result:
    """`execute` for asyncio: sync skills and providers without `acall` run in worker threads, callbacks on the loop."""
    request = RunRequest(agent, input, options)
    on_event = options.get("on_event")
    run, driving = _begin_async(request, () if on_event is None else (on_event,), options.get("on_task_complete"))
    await driving
    assert run.result is not None
    return run.result


def astream(agent: Agent, input: UserInput, **options: Unpack[RunOptions]) -> AsyncRunStream:
    """The run as an asynchronous iterator of its events, to be used in ``async with``; see `AsyncRunStream`."""
    from kernai.drivers.asyncio_run_stream import AsyncRunStream

    request = RunRequest(agent, input, options)
    on_event = options.get("on_event")

    def begin(give: Callable[[Event], Awaitable[None]]) -> tuple[Run, Awaitable[object]]:
        callbacks = (give,) if on_event is None else (on_event, give)
        return _begin_async(request, callbacks, options.get("on_task_complete"))

    return AsyncRunStream(begin, request.cancellation)


def _begin_async(
    request: RunRequest, callbacks: Sequence[Callable[[Event], Any]], on_task_complete: Callable[..., Any] | None
) -> tuple[Run, Awaitable[object]]:
    """On a running event loop: the root run, and what drives it to its end."""
    from kernai.drivers.asyncio_delivery import AsyncioDelivery
    from kernai.drivers.asyncio_driver import AsyncioDriver

    delivery = AsyncioDelivery(request.writer, callbacks, on_task_complete)
    run = request.begin(delivery)
    return run, AsyncioDriver(run.root, delivery).run(Line(request.work(run), run.outbox, breakable=False))


class RunRequest:
    """A root run's arguments, checked, and what can be made of them whatever drives the run."""

    def __init__(self, agent: Agent, content: UserInput, options: RunOptions) -> None:
        if not isinstance(agent, Agent):
            raise TypeError(f"agent must be an Agent, got {type(agent).__name__}")
        unknown = options.keys() - RunOptions.__annotations__.keys()
        if unknown:
            raise TypeError(f"unknown option {min(unknown)!r}; known: {', '.join(RunOptions.__annotations__)}")
        self.agent = agent
        self.parts: tuple[Part, ...] = as_parts(content, "input")
        self._clock = Clock()
        self._limits = _instance("limits", options.get("limits"), Limits) or _NO_LIMITS
        self.cancellation = Cancellation(self._clock, options.get("cancel"))
        self._log = EventLog(config.logger, debug=config.debug)
        recorder = _instance("recorder", options.get("recorder"), Recorder)
        self.writer = EventWriter(self._log, config.recorder if recorder is None else recorder)
        self._model = agent.model if options.get("model") is None else check_model(options["model"])
        self._provider = check_provider(options.get("provider")) or agent.provider or config.default_provider
        self._context = _instance("context", options.get("context"), Context) or Context()
        if not hasattr(self._context, "media_store"):
            raise TypeError(f"{type(self._context).__name__}.__init__ must call super().__init__()")
        self._limits.check_model(self._model)
        agent.check_provider(self._provider)
        self._history = _messages(options.get("history"), self._context)
        self._metadata = _instance("metadata", options.get("metadata"), Mapping) or {}
        self._run_id = _run_id(options.get("run_id"))
        for name in ("on_event", "on_task_complete"):
            observer = options.get(name)
            if observer is not None and not callable(observer):
                raise TypeError(f"{name} must be callable, got {type(observer).__name__}")

    def begin(self, delivery: Delivery | AsyncioDelivery) -> Run:
        """The root run, history in its conversation. Its time runs from now."""
        self.cancellation.begin(self._limits.timeout)
        root = Root(
            self._run_id,
            Budget(self._limits),
            self._clock,
            self.cancellation,
            skills=SKILLS,
            protocols=PROTOCOLS,
            allowed_skills=config.allowed_skills,
            credential_resolver=config.credential_resolver,
            setting_resolver=config.setting_resolver,
            warn=self._log.warn,
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
        )
        for message in self._history:
            for media in message.media:
                self._context.media_store.put(media)
            run.conversation.append(message)
        return run

    def work(self, run: Run) -> Work:
        """The loop, ready to be driven."""
        return run_loop(run, self.parts)


def _plain_observers(options: RunOptions) -> tuple[Callable[[Event], Any] | None, Callable[..., Any] | None]:
    for name in ("on_event", "on_task_complete"):
        if is_async(options.get(name)):
            raise TypeError(f"{name} is an async function: pass a plain one, or use arun, aexecute or astream")
    return options.get("on_event"), options.get("on_task_complete")


def _instance(name: str, value: Any, kind: type) -> Any:
    if value is not None and not isinstance(value, kind):
        hint = f"write {name}={kind.__name__}(...)" if kind is not Mapping else "pass a dict"
        raise TypeError(f"{name} must be a {kind.__name__}, got {type(value).__name__}: {hint}")
    return value


def _messages(history: Iterable[Message | Mapping[str, Any]] | None, context: Context) -> list[Message]:
    if history is None:
        return []
    if isinstance(history, (str, Message, Mapping)) or not isinstance(history, Iterable):
        raise TypeError(f"history must be a list of messages, got {type(history).__name__}")
    messages = []
    for at, given in enumerate(history):
        try:
            message = given if isinstance(given, Message) else _from_dict(given, context)
        except (TypeError, ValueError) as error:
            raise type(error)(f"history[{at}]: {error}") from error
        if message.role == "system":
            raise ValueError(f"history[{at}] is a system message: an agent's instructions make the only one")
        messages.append(message)
    return messages


def _from_dict(given: object, context: Context) -> Message:
    if not isinstance(given, Mapping):
        raise TypeError(f"must be a Message or a dict, got {type(given).__name__}")
    return Message.from_dict(given, context.media_store)


def _run_id(run_id: object) -> str:
    if run_id is None:
        return os.urandom(12).hex()
    if not isinstance(run_id, str) or not run_id:
        raise ValueError(f"run_id must be a non-empty text, got {run_id!r}")
    return run_id
