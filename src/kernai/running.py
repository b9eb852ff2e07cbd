"""Starting runs: `run`, `execute`, `stream`, and their asyncio twins `arun`, `aexecute`, `astream`.

All six take an agent, an input and the same options, `RunOptions`. A caller's mistake raises `TypeError` or
`ValueError` at the call. The twins' module is imported on first use, because asyncio is slow to import.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from kernai.agents.agent import Agent, check_model
from kernai.drivers.cancellation import Cancellation
from kernai.drivers.channel import Channel
from kernai.drivers.delivery import Rails, Records
from kernai.drivers.run_stream import RunStream
from kernai.drivers.threads import Driver
from kernai.loop.effects import Work
from kernai.loop.kernel import run_loop
from kernai.loop.outbox import Clock, Outbox
from kernai.loop.run_state import Root, Scope
from kernai.recording.log import EventLog
from kernai.recording.recorder import Recorder
from kernai.registry.configuration import config
from kernai.registry.provider import Provider, check_provider
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

    from kernai.drivers.asyncio_run_stream import AsyncRunStream

Input = str | Media | list[str | Media]


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


def run(agent: Agent, input: Input, **options: Unpack[RunOptions]) -> str:
    """Runs the agent and gives the answer's text.

    Raises `MaxStepsReachedError`, another `LimitReachedError`, `RunCancelledError` or `ProviderError`; each carries the
    `Result` as `.result`, so that the tape and what was used are not lost.
    """
    return execute(agent, input, **options).unwrap()


def execute(agent: Agent, input: Input, **options: Unpack[RunOptions]) -> Result:
    """Runs the agent and gives the `Result`; a limit, a cancellation or a provider's failure is its `stop_reason`."""
    start = Start(agent, input, options)
    rails = Rails(start.records, *_plain_observers(options))
    scope = start.scope(rails.outbox())
    result: Result = Driver(rails, start.cancellation).run(start.work(scope), scope.outbox)
    return result


def stream(agent: Agent, input: Input, **options: Unpack[RunOptions]) -> RunStream:
    """The run as an iterator of its events, which drives it; see `RunStream`. Nothing happens before the first one."""
    start = Start(agent, input, options)
    channel = Channel()
    rails = Rails(start.records, *_plain_observers(options), channel)
    scope = start.scope(rails.outbox())
    return RunStream(Driver(rails, start.cancellation), start.work(scope), scope, channel, start.cancellation)


async def arun(agent: Agent, input: Input, **options: Unpack[RunOptions]) -> str:
    """`run` for asyncio. Cancelling its task ends the run with a `result` event ``cancelled``, then propagates."""
    return (await aexecute(agent, input, **options)).unwrap()


async def aexecute(agent: Agent, input: Input, **options: Unpack[RunOptions]) -> Result:
    """`execute` for asyncio: sync skills and providers without `acall` run in worker threads, callbacks on the loop."""
    start = Start(agent, input, options)
    on_event = options.get("on_event")
    scope, driving = _begin_async(start, () if on_event is None else (on_event,), options.get("on_task_complete"))
    await driving
    assert scope.result is not None
    return scope.result


def astream(agent: Agent, input: Input, **options: Unpack[RunOptions]) -> AsyncRunStream:
    """The run as an asynchronous iterator of its events, to be used in ``async with``; see `AsyncRunStream`."""
    from kernai.drivers.asyncio_run_stream import AsyncRunStream

    start = Start(agent, input, options)
    on_event = options.get("on_event")

    def begin(give: Callable[[Event], Awaitable[None]]) -> tuple[Scope, Awaitable[object]]:
        callbacks = (give,) if on_event is None else (on_event, give)
        return _begin_async(start, callbacks, options.get("on_task_complete"))

    return AsyncRunStream(begin, start.cancellation)


def _begin_async(
    start: Start, callbacks: Sequence[Callable[[Event], Any]], on_task_complete: Callable[..., Any] | None
) -> tuple[Scope, Awaitable[object]]:
    """On a running event loop: the root's scope, and what drives it to its end."""
    from kernai.drivers.asyncio_delivery import AsyncRails
    from kernai.drivers.asyncio_driver import AsyncDriver

    rails = AsyncRails(start.records, callbacks, on_task_complete)
    scope = start.scope(rails.outbox())
    return scope, AsyncDriver(rails, start.cancellation).run(start.work(scope), scope.outbox)


class Start:
    """A root run's arguments, checked, and the objects it needs whatever drives it."""

    def __init__(self, agent: Agent, content: Input, options: RunOptions) -> None:
        if not isinstance(agent, Agent):
            raise TypeError(f"agent must be an Agent, got {type(agent).__name__}")
        unknown = options.keys() - RunOptions.__annotations__.keys()
        if unknown:
            raise TypeError(f"unknown option {min(unknown)!r}; known: {', '.join(RunOptions.__annotations__)}")
        self.agent = agent
        self.parts: tuple[Part, ...] = as_parts(content, "input")
        self.cancellation = Cancellation(options.get("cancel"))
        self._log = EventLog(config.logger, debug=config.debug)
        recorder = _instance("recorder", options.get("recorder"), Recorder)
        self.records = Records(self._log, config.recorder if recorder is None else recorder)
        self._model = agent.model if options.get("model") is None else check_model(options["model"])
        self._provider = check_provider(options.get("provider")) or agent.provider or config.default_provider
        self._context = _instance("context", options.get("context"), Context) or Context()
        if not hasattr(self._context, "media_store"):
            raise TypeError(f"{type(self._context).__name__}.__init__ must call super().__init__()")
        self._limits = _instance("limits", options.get("limits"), Limits) or _NO_LIMITS
        self._limits.check_model(self._model)
        self._history = _messages(options.get("history"), self._context)
        self._metadata = _instance("metadata", options.get("metadata"), Mapping) or {}
        self._run_id = _run_id(options.get("run_id"))
        for name in ("on_event", "on_task_complete"):
            observer = options.get(name)
            if observer is not None and not callable(observer):
                raise TypeError(f"{name} must be callable, got {type(observer).__name__}")

    def scope(self, outbox: Outbox) -> Scope:
        """The root's scope, history on its tape."""
        clock = Clock()
        root = Root(
            self._run_id,
            Budget(self._limits, clock.monotonic()),
            allowed_skills=config.allowed_skills,
            credential_resolver=config.credential_resolver,
            setting_resolver=config.setting_resolver,
            cancelled=self.cancellation.is_set,
            warn=self._log.warn,
            clock=clock,
        )
        scope = Scope(
            self.agent,
            root,
            outbox,
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
            scope.tape.append(message)
        return scope

    def work(self, scope: Scope) -> Work:
        """The loop, ready to be driven."""
        return run_loop(scope, self.parts)


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
