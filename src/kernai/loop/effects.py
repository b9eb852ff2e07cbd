"""What the loop can ask for, as data.

The loop yields one of these and is sent its outcome; a failure is thrown into it. A driver performs them. They hold
only values and names: providers, skills, contexts and stores are looked up in the root run (`root.Root`). So one loop
serves threads, asyncio, manual tests and replays, and middleware can read an effect, keep it, or replace it.

==============  =========================================  ====================================================
effect          sent back                                  may be thrown
==============  =========================================  ====================================================
`CallModel`     the `LlmResponse`                          whatever the provider raises
`CallSkill`     what the skill returned                    whatever it raises
`CallProtocol`  what the handler returned                  whatever it raises
`CallBuiltin`   the text to show                           nothing
`SubRun`        its `Result`                               what the host's own code raised in it
`Spawn`         None, at once                              nothing
`Join`          the `Completion` of one spawned piece      nothing of that piece: its `Completion` carries it
`Sleep`         None, after that time                      nothing
`Raise`         nothing                                    its error, as a call's
==============  =========================================  ====================================================

At any effect these may be thrown: Ctrl-C and the cancellation of an asyncio task, as they are; `Cancelled` if a call
was interrupted because the run is to stop; `NotPerformed` if the effect was not begun. At a call also a `Stop` or
`Pause` that it raised. An exception at a `Spawn` means that the work was not begun.

The loop never yields `Sleep` or `Raise`: they are for middleware and the like, as are some fields of the calls.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from sys import float_info
from typing import TYPE_CHECKING, Any, Literal

from kernai.errors import Control, Stop

if TYPE_CHECKING:
    from typing import Self

    from kernai.agents.agent import Agent
    from kernai.blocks.block import Block
    from kernai.registry.provider import Provider, Tools
    from kernai.values.message import InputPart, Message
    from kernai.values.model import GenerationOptions, Model


class Cancelled(Control):
    """The run is to stop: its time is up, or it was cancelled. Never seen outside of a run."""


class LimitStop(Stop):
    """A limit of the root run is used up during a call: middleware must not mistake that for the call's failure.

    Never seen outside of a run.
    """


class NotBegun(Cancelled):
    """The run is to stop, and an announced call was not begun."""


class NotPerformed(Control):
    """Events could not be delivered, so the effect after them was not begun. Never seen outside of a run."""

    def __init__(self) -> None:
        super().__init__("the run was stopped")


def task_scope(scope: str, step: int, task_id: str) -> str:
    """The scope of a workflow's task: ``2.a``, or ``0.1/2.a`` below another run."""
    # `/` separates scopes, so an id may not hold one; `%` first, so that the escape can be undone
    escaped = task_id.replace("%", "%25").replace("/", "%2F")
    return f"{scope}/{step}.{escaped}" if scope else f"{step}.{escaped}"


def how_broken_off(error: BaseException) -> Literal["not_run", "interrupted"] | None:
    """How work without an outcome of its own is marked in its event, if its run was to stop."""
    if isinstance(error, (Exception, SystemExit, Stop)):
        return None
    return "not_run" if isinstance(error, (NotBegun, NotPerformed)) else "interrupted"


class Effect:
    """Equal by its fields. Slotted classes written out, not dataclasses: two are made each step."""

    __slots__: tuple[str, ...] = ()

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return type(self)(**{**{name: getattr(self, name) for name in self.__slots__}, **changes})

    def __replace__(self, /, **changes: Any) -> Self:
        return self.replace(**changes)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # arguments may be anything

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"


class CallModel(Effect):
    """One turn of the model.

    The provider is that of the scope, unless `provider` names another. One that can call natively gets `tools`, if
    there are any. Without `stream`, the text is shown when it is whole. `timeout` is how many seconds the call may take
    from when it is performed; then it is a `ProviderError`. `approval` is what was decided on it, where it had been
    paused.
    """

    __slots__ = (
        "approval", "generation", "messages", "model", "provider", "scope", "step", "stream", "timeout", "tools",
    )

    def __init__(
        self,
        scope: str,
        step: int,
        messages: Sequence[Message],
        model: Model,
        generation: GenerationOptions,
        *,
        provider: Provider | None = None,
        stream: bool = True,
        timeout: float | None = None,
        approval: Any = None,
        tools: Tools | None = None,
    ) -> None:
        self.scope = scope
        self.step = step
        self.messages = messages
        self.model = model
        self.generation = generation
        self.provider = provider
        self.stream = stream
        self.timeout = timeout
        self.approval = approval
        self.tools = tools

    @property
    def call_id(self) -> str:
        """``0``, or ``2.a/1`` in a sub-run."""
        return f"{self.scope}/{self.step}" if self.scope else str(self.step)


class CallSkill(Effect):
    """One call of a skill, by name, with arguments that have been checked and converted."""

    __slots__ = ("approval", "arguments", "call_id", "scope", "skill")

    def __init__(
        self, scope: str, call_id: str, skill: str, arguments: Mapping[str, Any], approval: Any = None
    ) -> None:
        self.scope = scope
        self.call_id = call_id
        self.skill = skill
        self.arguments = arguments
        self.approval = approval

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed; for the same skill, `arguments` are merged."""
        if "arguments" in changes and changes.get("skill", self.skill) == self.skill:
            changes["arguments"] = {**self.arguments, **changes["arguments"]}
        return super().replace(**changes)


class CallProtocol(Effect):
    """One block handed to the protocol of that name."""

    __slots__ = ("approval", "block", "call_id", "protocol", "scope")

    def __init__(self, scope: str, call_id: str, protocol: str, block: Block, approval: Any = None) -> None:
        self.scope = scope
        self.call_id = call_id
        self.protocol = protocol
        self.block = block
        self.approval = approval


class CallBuiltin(Effect):
    """One of the runtime's own commands. An effect, because its output depends on what is registered now."""

    __slots__ = ("call_id", "command", "scope")

    def __init__(self, scope: str, call_id: str, command: str) -> None:
        self.scope = scope
        self.call_id = call_id
        self.command = command


class SubRun(Effect):
    """A run within the run, whose state the root has under `scope`. Unless spawned, it runs in place.

    For an agent that was called, `skill` is the name it was called by, and `scope` the call's id; for a task it is
    None.
    """

    __slots__ = ("agent", "approval", "input", "scope", "skill")

    def __init__(
        self, scope: str, agent: Agent[Any], input: tuple[InputPart, ...], skill: str | None = None,
        approval: Any = None,
    ) -> None:
        self.scope = scope
        self.agent = agent
        self.input = input
        self.skill = skill
        self.approval = approval

    @property
    def call_id(self) -> str:
        return self.scope


class Spawn(Effect):
    """Start `what` concurrently; `key` identifies its `Completion`."""

    __slots__ = ("key", "what")

    def __init__(self, key: str | int, what: CallSkill | CallProtocol | SubRun) -> None:
        self.key = key
        self.what = what


class Join(Effect):
    """Wait for the next of the spawned pieces of work to end."""

    __slots__ = ()


class Sleep(Effect):
    """Wait so many seconds, at least 0 and finite, else `ValueError`. Ends at once when the run is to stop.

    Before a model call is made again: `reason` is what it failed with, `attempt` the number of the retry, from 1.
    """

    __slots__ = ("attempt", "call_id", "reason", "scope", "seconds")

    def __init__(
        self, seconds: float, scope: str = "", call_id: str = "", *, reason: str | None = None, attempt: int = 1
    ) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
            raise TypeError(f"seconds must be a number, got {seconds!r}")
        if not 0 <= seconds <= float_info.max:
            raise ValueError(f"seconds must be at least 0 and finite, got {seconds!r}")
        self.seconds = seconds
        self.scope = scope
        self.call_id = call_id
        self.reason = reason
        self.attempt = attempt


class Raise(Effect):
    """Have the driver judge an exception from between loop and driver as if a call had raised it."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Commit(Effect):
    """Append the new rows to the run's store, before something is performed that cannot be undone.

    The loop never yields it: `kernai.durable` does.
    """

    __slots__ = ()


class Parked(Control):
    """Work waits for a decision, and so does whatever waits for that work. Never seen outside of a run."""


class Completion:
    """How a spawned piece of work ended: with `value`, or with `error`."""

    __slots__ = ("error", "key", "value")

    def __init__(self, key: Any, value: Any = None, error: BaseException | None = None) -> None:
        self.key = key
        self.value = value
        self.error = error


#: a generator of effects: the loop itself, or one effect on its own
Work = Generator[Effect, Any, Any]


def advance(work: Work, outcome: Any, error: BaseException | None) -> Effect | Completion:
    """Sends an outcome into a piece of work, or throws an error; returns its next effect, or how it ended."""
    try:
        effect: Effect = work.send(outcome) if error is None else work.throw(error)
    except StopIteration as stop:
        return Completion(None, stop.value)
    except BaseException as raised:  # noqa: BLE001 - how the work ended
        return Completion(None, error=raised)
    return effect


def alone(effect: Effect) -> Work:
    """One effect as a piece of work."""
    return (yield effect)


def attempted(effect: Effect) -> Generator[Effect, Any, Completion]:
    """The outcome of an effect, as a value."""
    try:
        return Completion(None, (yield effect))
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001 - it belongs to the loop, which decides
        return Completion(None, error=error)
